package books

import (
	"errors"
	"testing"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/meter"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// The tests of this file name the real bug that each keeps out (spec: ledger, Real bugs).

// Voucher checked against its lane only (lotus PR 2374): each lane fits, all of them together do not.
func TestCreditIsOverAllLanes(t *testing.T) {
	p := newPair(t)
	p.provider.SetLimits(map[money.Unit]ledger.Limits{money.Credit: {Stranger: 1000, StrangersTotal: 10_000}})
	a, b := p.sell(1, 400), p.sell(2, 400)
	if err := p.trySell(p.opening(3, 400)); !errors.Is(err, ledger.ErrCreditLimit) {
		t.Fatal("third hold:", err)
	}
	p.pay(a, 600)
	_, err := p.deliver(p.promise(b, 500))
	var credit *ledger.CreditError
	if !errors.As(err, &credit) || credit.Asked != 100 || credit.Room != 0 {
		t.Fatalf("600 + 500 of 1000: %v", err)
	}
	if got := p.provider.account(ledger.AsProvider, p.renter); got.Owed != 600 || got.Open != 400 {
		t.Fatalf("a refused voucher changed %+v", got)
	}
	p.provider.verified(ResultOK)
	// Prepaid money lets the same voucher in.
	p.settle(p.renter, p.provider, 100, "prepay")
	p.pay(b, 500)
	p.equal()
}

// Overdrawn leases ran on for free (akash node#1635): the room of a lane ends where the credit does, metered time included.
func TestLaneRoomEnds(t *testing.T) {
	p := newPair(t)
	p.provider.SetLimits(map[money.Unit]ledger.Limits{money.Credit: {Stranger: 1000, StrangersTotal: 10_000}})
	lane := p.sell(1, 300)
	for _, c := range []struct{ metered, room money.Micro }{{0, 1000}, {200, 800}, {300, 700}, {900, 100}, {1000, 0}, {1500, 0}} {
		p.provider.update(func(t *Tx) error { return t.Meter(lane, c.metered) })
		p.provider.view(func(r *Reader) error {
			room, cause, err := r.LaneRoom(lane)
			if err != nil || room != c.room || !errors.Is(cause, ledger.ErrCreditLimit) {
				t.Errorf("metered %d: room %d by %v, %v; want %d", uint64(c.metered), uint64(room), cause, err, uint64(c.room))
			}
			return nil
		})
	}
	// A promise for what was metered is never refused, even over the limit: it only adds proof.
	p.pay(lane, 1500)
	if _, err := p.deliver(p.promise(lane, 1501)); !errors.Is(err, ledger.ErrCreditLimit) {
		t.Error("more than was metered, over the limit:", err)
	}
	p.provider.verified(ResultOK)
}

func TestStrangersTotalOverAccounts(t *testing.T) {
	p := newPair(t)
	p.provider.SetLimits(map[money.Unit]ledger.Limits{money.Credit: {Stranger: 400, StrangersTotal: 1000, KnownPercent: 50, KnownCap: 10_000}})
	p.sell(1, 400)
	for i, want := range []error{nil, ledger.ErrStrangersTotal} {
		q := pairOf{renter: newParty(t), provider: p.provider}
		q.meet()
		if err := q.trySell(q.opening(byte(2+i), 400)); !errors.Is(err, want) || (want == nil) != (err == nil) {
			t.Fatalf("stranger %d: %v", i, err)
		}
		if want != nil { // a full total is passed by prepaying
			q.settle(q.renter, q.provider, 400, "prepay")
			if err := q.trySell(q.opening(9, 400)); err != nil {
				t.Fatal("prepaid stranger:", err)
			}
		}
	}
	p.provider.view(func(r *Reader) error {
		used, err := r.StrangersUsed(money.Credit, identity.AccountID{})
		c, err2 := r.ShowCredit(money.Credit)
		if used != 800 || err != nil || err2 != nil || c.StrangersUsed != "0.0008" || len(c.Accounts) != 3 {
			t.Errorf("used %d, %v; %+v, %v", uint64(used), err, c, err2)
		}
		return nil
	})
	p.provider.verified(ResultOK)
}

func TestLimitByHand(t *testing.T) {
	p := newPair(t)
	p.provider.SetLimits(nil)
	if err := p.trySell(p.opening(1, 1)); !errors.Is(err, ledger.ErrCreditLimit) {
		t.Fatal("a unit without limits gave credit:", err)
	}
	hand := money.Micro(50)
	p.provider.update(func(t *Tx) error { return t.SetLimit(p.renter.Self(), money.Credit, &hand) })
	must(t, p.trySell(p.opening(2, 50)))
	err := p.trySell(p.opening(3, 1))
	if c := (*ledger.CreditError)(nil); !errors.Is(err, ledger.ErrCreditLimit) || !errors.As(err, &c) || !c.ByHand {
		t.Fatal(err)
	}
}

// Duplicate acceptance paid twice (yagna PR 3347, golem-js PR 735); same invoice paid twice (lnd#560).
func TestDuplicatesCountOnce(t *testing.T) {
	p := newPair(t)
	lane := p.sell(1, 100)
	raw := p.promise(lane, 500)
	first, err := p.deliver(raw)
	must(t, err)
	before := p.provider.size()
	for range 3 {
		again, err := p.deliver(raw)
		if err != nil || !again.Already || again.Added != 0 || string(again.Receipt) != string(first.Receipt) {
			t.Fatalf("again: %+v, %v", again, err)
		}
		must(t, p.trySell(p.opening(1, 100)))
		p.renter.update(func(tx *Tx) error {
			_, err := tx.RecordReceipt(first.Receipt)
			return err
		})
		if same := p.promise(lane, 500); string(same) != string(raw) {
			t.Fatal("the same amount was signed twice")
		}
		p.close(lane, 500)
	}
	if p.provider.size() != before {
		t.Fatal("a repeat made entries")
	}
	p.equal()
}

// Same invoice paid twice (lnd#6791); settled twice in one instant panicked (akash support#414); settlement timed out after it was sent
// (storj#4190).
// Final invoice after the agreement's end never paid (yagna#3126).
func TestVoucherAfterTheEnd(t *testing.T) {
	p := newPair(t)
	lane := p.sell(1, 100)
	p.pay(lane, 50)
	p.close(lane, 800)
	if got := p.provider.account(ledger.AsProvider, p.renter); got.Owed != 50 || got.Open != 750 {
		t.Fatalf("ended, not vouchered: %+v", got)
	}
	if got := p.pay(lane, 800); got.Added != 750 {
		t.Fatalf("final voucher: %+v", got)
	}
	err := p.renter.Update(t.Context(), func(tx *Tx) error {
		_, err := tx.SignVoucher(lane, 801, nil)
		return err
	})
	if !errors.Is(err, voucher.ErrFinal) {
		t.Error("more than the final charge:", err)
	}
	if err := p.provider.Update(t.Context(), func(tx *Tx) error { return tx.Meter(lane, 900) }); !errors.Is(err, ErrConflict) {
		t.Error("metered after its end:", err)
	}
	p.equal()
}

// The reclaim credit, or a release that comes late, takes back what was vouchered beyond the final charge, on both sides alike.
func TestFinalBelowVouchers(t *testing.T) {
	p := newPair(t)
	lane := p.sell(1, 100)
	p.pay(lane, 700)
	p.close(lane, 640)
	p.close(lane, 600)
	p.close(lane, 600)
	p.equal()
	if got := p.provider.account(ledger.AsProvider, p.renter); got.Owed != 600 || got.Open != 0 {
		t.Fatalf("%+v", got)
	}
	err := p.provider.Update(t.Context(), func(tx *Tx) error {
		_, err := tx.CloseLane(lane, 650)
		return err
	})
	if !errors.Is(err, ErrConflict) {
		t.Error("a final charge rose:", err)
	}
	p.settle(p.renter, p.provider, 600, "x")
	p.equal()
}

// A voucher that was under way when the lane ended lower is taken as a record and owes no more than the end: else the two sides differ.
func TestVoucherBeyondTheEnd(t *testing.T) {
	p := newPair(t)
	lane := p.sell(1, 0)
	late := p.promise(lane, 300)
	p.close(lane, 110)
	a, err := p.deliver(late)
	if err != nil || a.Added != 110 {
		t.Fatal(a, err)
	}
	if a, err = p.deliver(late); err != nil || !a.Already {
		t.Fatal(a, err)
	}
	p.equal()
	if got := p.provider.account(ledger.AsProvider, p.renter); got.Owed != 110 || got.Open != 0 {
		t.Fatalf("%+v", got)
	}
}

// One failing close blocked the rest (akash support#441).
func TestOneFailureBlocksNobody(t *testing.T) {
	p := newPair(t)
	a, b := p.sell(1, 10), p.sell(2, 10)
	p.close(a, 0)
	p.provider.update(func(tx *Tx) error {
		for id, want := range map[ledger.Lane]error{a: ErrConflict, {99}: ErrNoLane, b: nil} {
			if _, err := tx.CloseLane(id, 5); !errors.Is(err, want) {
				t.Errorf("close %s: %v, want %v", id.Short(), err, want)
			}
		}
		return nil
	})
	if l := p.provider.lane(b); l.Final == nil || *l.Final != 5 {
		t.Fatalf("%+v", l)
	}
	p.provider.verified(ResultOK)
}

// A dust check that was one-sided let a negative balance pass (akash console PR 3600); balance zeroed on a cheque without reading its
// amount (swarm#1551): paying too much is prepaid to the micro-unit, and too little is still owed.
// Both sides' balances drifted (bee PR 1983): a settlement that lists more than this side knows is refused, naming the lane.
func TestEquivocationIsKept(t *testing.T) {
	p := newPair(t)
	lane := p.sell(1, 0)
	p.pay(lane, 100)
	twin := p.renter.lane(lane)
	cp := []byte(nil)
	p.renter.view(func(r *Reader) (err error) {
		cp, err = r.Checkpoint()
		return err
	})
	for _, amount := range []money.Micro{90, 120} {
		other, err := voucher.Sign(p.renter.dev, voucher.Voucher{
			Channel: twin.Channel, Lane: lane, Seq: 1, Amount: amount, Prev: twin.Voucher, Checkpoint: cp,
		})
		must(t, err)
		if _, err := p.deliver(other.Raw); !errors.Is(err, voucher.ErrEquivocation) {
			t.Fatal(err)
		}
		p.provider.view(func(r *Reader) error {
			have, got, err := r.Fraud(lane)
			if err != nil || identity.Hash(have) != twin.Voucher || (amount == 90) != (string(got) == string(other.Raw)) {
				t.Errorf("kept %x, %v", got, err)
			}
			return nil
		})
	}
	if l := p.provider.lane(lane); l.Amount != 100 || l.Seq != 1 {
		t.Fatalf("%+v", l)
	}
	p.provider.verified(ResultOK)
}

func TestOpenLaneRefuses(t *testing.T) {
	p := newPair(t)
	o := p.opening(1, 10)
	var first []byte
	p.renter.update(func(tx *Tx) (err error) {
		first, err = tx.Promise(o)
		return err
	})
	other := newDevice(t)
	dearer := o
	dearer.Hold = 11
	elsewhere := o
	elsewhere.Lane = ledger.Lane{2}
	for name, c := range map[string]struct {
		o          Opening
		voucher    []byte
		delegation []byte
		want       error
	}{
		"another lane's voucher":       {elsewhere, first, p.renter.dev.Delegation(), voucher.ErrLane},
		"another account's delegation": {o, first, other.Delegation(), voucher.ErrSigner},
		"garbage":                      {o, []byte("x"), p.renter.dev.Delegation(), identity.ErrSignature},
	} {
		err := p.provider.Update(t.Context(), func(tx *Tx) error {
			_, err := tx.OpenLane(c.o, c.voucher, c.delegation)
			return err
		})
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	must(t, p.trySell(o))
	for _, side := range []*party{p.renter, p.provider} {
		err := side.Update(t.Context(), func(tx *Tx) (err error) {
			if side == p.renter {
				_, err = tx.Promise(dearer)
			} else {
				_, err = tx.OpenLane(dearer, first, p.renter.dev.Delegation())
			}
			return err
		})
		if !errors.Is(err, ErrConflict) {
			t.Errorf("the same lane with another hold: %v", err)
		}
	}
	if err := p.renter.Update(t.Context(), func(tx *Tx) error { return tx.Meter(o.Lane, 1) }); !errors.Is(err, ErrRole) {
		t.Error("the renter meters for the provider:", err)
	}
}

func TestReceiptRefuses(t *testing.T) {
	p := newPair(t)
	lane := p.sell(1, 0)
	raw := p.promise(lane, 10)
	a, err := p.deliver(raw)
	must(t, err)
	other := newDevice(t)
	forged, err := voucher.SignReceipt(other, voucher.Receipt{Voucher: identity.Hash(raw)})
	must(t, err)
	unknown, err := voucher.SignReceipt(p.provider.dev, voucher.Receipt{Voucher: wire.Hash{1}})
	must(t, err)
	bare, err := voucher.SignReceipt(p.provider.dev, voucher.Receipt{Voucher: identity.Hash(raw)})
	must(t, err)
	for name, c := range map[string]struct {
		raw  []byte
		want error
	}{
		"by a stranger": {forged, identity.ErrSigner}, "for nothing of ours": {unknown, ErrNoLane}, "a voucher": {raw, identity.ErrSignature},
		"without a checkpoint": {bare, nil},
	} {
		err := p.renter.Update(t.Context(), func(tx *Tx) error {
			_, err := tx.RecordReceipt(c.raw)
			return err
		})
		if err == nil || !errors.Is(err, c.want) && c.want != nil {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	if l := p.renter.lane(lane); l.Missing() != 1 {
		t.Fatalf("missing %d receipts", l.Missing())
	}
	p.promise(lane, 20)
	if l := p.renter.lane(lane); l.Missing() != 2 {
		t.Fatalf("missing %d receipts", l.Missing())
	}
	p.renter.update(func(tx *Tx) error {
		_, err := tx.RecordReceipt(a.Receipt)
		return err
	})
	if l := p.renter.lane(lane); l.Missing() != 1 || !l.Receipt.IsZero() {
		t.Fatalf("missing %d receipts", l.Missing())
	}
}

func TestHolds(t *testing.T) {
	p := newPair(t)
	c := p.renter.Channel(p.provider.Self(), money.Credit)
	p.provider.SetLimits(map[money.Unit]ledger.Limits{money.Credit: {Stranger: 100, StrangersTotal: 1000}})
	both := func(f func(*Tx) error) {
		t.Helper()
		p.renter.update(f)
		p.provider.update(f)
	}
	both(func(tx *Tx) error { return errors.Join(tx.Hold(wire.Hash{1}, c, 60), tx.Hold(wire.Hash{1}, c, 60)) })
	if err := p.provider.Update(t.Context(), func(tx *Tx) error { return tx.Hold(wire.Hash{2}, c, 41) }); !errors.Is(err, ledger.ErrCreditLimit) {
		t.Fatal(err)
	}
	if err := p.provider.Update(t.Context(), func(tx *Tx) error { return tx.Hold(wire.Hash{1}, c, 61) }); !errors.Is(err, ErrConflict) {
		t.Fatal(err)
	}
	both(func(tx *Tx) error { return tx.Hold(wire.Hash{2}, c, 40) })
	both(func(tx *Tx) error { return errors.Join(tx.VoidHold(wire.Hash{1}), tx.VoidHold(wire.Hash{1})) })
	both(func(tx *Tx) error {
		return errors.Join(tx.PostHold(wire.Hash{2}, 25), tx.PostHold(wire.Hash{2}, 25), tx.VoidHold(wire.Hash{2}))
	})
	p.equal()
	if got := p.provider.account(ledger.AsProvider, p.renter); got.Owed != 25 || got.Open != 0 {
		t.Fatalf("%+v", got)
	}
	both(func(tx *Tx) error { return tx.Hold(wire.Hash{3}, c, 5) })
	if err := p.provider.Update(t.Context(), func(tx *Tx) error { return tx.PostHold(wire.Hash{3}, 6) }); !errors.Is(err, ErrConflict) {
		t.Error(err)
	}
	both(func(tx *Tx) error { return tx.PostHold(wire.Hash{3}, 0) })
	p.equal()
}

func TestAmountsAtTheEnd(t *testing.T) {
	p := newPair(t)
	most := money.Max
	p.provider.update(func(tx *Tx) error { return tx.SetLimit(p.renter.Self(), money.Credit, &most) })
	p.renter.cap = money.Max
	rich := p.sell(1, 0)
	err := p.renter.Update(t.Context(), func(tx *Tx) error {
		_, err := tx.SignVoucher(rich, money.Max, nil)
		return err
	})
	must(t, err)
	raw := []byte(nil)
	p.renter.view(func(r *Reader) (err error) {
		raw, err = r.Voucher(rich, 1)
		return err
	})
	if _, err := p.deliver(raw); !errors.Is(err, voucher.ErrCap) {
		t.Fatal("over the delegation's cap:", err)
	}
	second := pairOf{renter: p.renter, provider: newParty(t)}
	second.meet()
	before := p.renter.size()
	lane := second.sell(2, 0)
	err = p.renter.Update(t.Context(), func(tx *Tx) error { // its expenses would overflow
		_, err := tx.SignVoucher(lane, 1, []meter.Segment{{Rate: perMs, Devices: 1, Ms: 1}})
		return err
	})
	if !errors.Is(err, money.ErrOverflow) || p.renter.size() != before {
		t.Fatal(err)
	}
	p.renter.verified(ResultForged) // the test went over the delegation's cap by hand
}

// Both sides propose the same payment before either knows of the other's proposal: the payer's stands, and it counts once even if the
// payer signs both.
