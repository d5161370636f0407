package books

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/proof"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

const twoWeeks = 14 * 24 * 60 * 60 * 1000

// dispute opens a dispute on one side and tells the other.
func (p pairOf) dispute(from, to *party, lane ledger.Lane) []byte {
	p.renter.tb.Helper()
	var raw []byte
	from.update(func(t *Tx) (err error) { raw, err = t.OpenDispute(lane, "it never ran", twoWeeks); return err })
	to.update(func(t *Tx) error { return t.RecordDispute(raw) })
	return raw
}

func (p *party) disputeOf(lane ledger.Lane) (d Dispute) {
	p.tb.Helper()
	p.view(func(r *Reader) (err error) { d, err = r.Dispute(lane); return err })
	return d
}

// turns checks who is to act, as both sides show it.
func turns(a, b *party, lane ledger.Lane, mine, theirs string) error {
	for side, want := range map[*party]string{a: mine, b: theirs} {
		err := side.View(side.tb.Context(), func(r *Reader) error {
			v, err := r.ShowDispute(lane)
			if err == nil && v.Turn != want {
				err = fmt.Errorf("%q is to act, want %q: %+v", v.Turn, want, v)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// offer proposes a credit note on one side and takes it, and the answer, to the others.
func (p pairOf) offer(from, to *party, lane ledger.Lane, amount money.Micro) {
	p.renter.tb.Helper()
	from.update(func(t *Tx) error { return t.OfferCredit(lane, amount) })
	for _, two := range [][2]*party{{from, to}, {to, from}} {
		d := two[0].disputeOf(lane)
		for _, raw := range [][]byte{d.Offer, d.Counter} {
			if raw != nil {
				two[1].update(func(t *Tx) error {
					err := t.RecordNote(raw)
					if errors.Is(err, ErrRole) { // the other's own
						return nil
					}
					return err
				})
			}
		}
	}
}

// A dispute freezes its lane on both sides and keeps the two from dealing with each other, until its time is over; then what both signed
// stands, and nobody has written anything.
func TestDisputeFreezesTheLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, byRenter := range []bool{true, false} {
			p := newPair(t)
			from, to := p.provider, p.renter
			if byRenter {
				from, to = to, from
			}
			o := p.opening(1, 5)
			o.DueDays = 3
			must(t, p.trySell(o))
			lane := o.Lane
			p.pay(lane, 600)
			late := p.promise(lane, 700)
			raw := p.dispute(from, to, lane)
			if again := p.dispute(from, to, lane); string(again) != string(raw) {
				t.Fatal("a repeat signs another")
			}
			err := p.renter.Update(t.Context(), func(tx *Tx) error { _, err := tx.SignVoucher(lane, 800, nil); return err })
			if !errors.Is(err, ErrDisputed) {
				t.Fatalf("the renter signs on: %v", err)
			}
			if _, err := p.deliver(late); !errors.Is(err, ErrDisputed) {
				t.Fatalf("the provider takes more: %v", err)
			}
			p.provider.view(func(r *Reader) error {
				room, cause, err := r.LaneRoom(lane)
				if room != 0 || !errors.Is(cause, ErrDisputed) {
					t.Errorf("room %v by %v", room, cause)
				}
				return err
			})
			next := p.opening(2, 5)
			err = p.renter.Update(t.Context(), func(tx *Tx) error { _, err := tx.Promise(next); return err })
			if !errors.Is(err, ErrDisputed) {
				t.Fatalf("the renter buys on: %v", err)
			}
			err = p.provider.Update(t.Context(), func(tx *Tx) error { return tx.Hold(wire.Hash{9}, next.Channel, 5) })
			if !errors.Is(err, ErrDisputed) {
				t.Fatalf("the provider sells on: %v", err)
			}
			p.provider.update(func(tx *Tx) error { _, err := tx.AcceptDisputed(late); return err }) // the exchange brings it
			p.close(lane, 900)
			time.Sleep(13 * 24 * time.Hour)
			if a := p.provider.account(ledger.AsProvider, p.renter); a.Late {
				t.Fatal("late with what is disputed")
			}
			time.Sleep(24 * time.Hour)
			must(t, p.trySell(next))
			p.renter.update(func(tx *Tx) error { _, err := tx.SignVoucher(lane, 700, nil); return err })
			if err := p.provider.Update(t.Context(), func(tx *Tx) error { return tx.OfferCredit(lane, 5) }); !errors.Is(err, ErrNoDispute) {
				t.Fatalf("a credit note after its time: %v", err)
			}
			p.equal()
			if a := p.provider.account(ledger.AsProvider, p.renter); a.Owed != 700 {
				t.Fatalf("what both signed does not stand: %+v", a)
			}
		}
	})
}

// A bid that stayed sealed loses its hold although a dispute was opened since it was sent: both sides agreed to it before.
func TestForfeitInADispute(t *testing.T) {
	p := newPair(t)
	c, lost := p.renter.Channel(p.provider.Self(), money.Credit), wire.Hash{7}
	p.provider.update(func(tx *Tx) error { return tx.Hold(lost, c, 50) })
	lane := p.sell(1, 0)
	p.pay(lane, 600)
	p.dispute(p.provider, p.renter, lane)
	p.provider.update(func(tx *Tx) error { return tx.PostHold(lost, 50) })
	p.renter.update(func(tx *Tx) error { return errors.Join(tx.Forfeit(lost, c, 50), tx.Forfeit(lost, c, 50)) })
	if err := p.renter.Update(t.Context(), func(tx *Tx) error { return tx.Forfeit(lost, c, 51) }); !errors.Is(err, ErrConflict) {
		t.Errorf("another amount: %v", err)
	}
	if err := p.provider.Update(t.Context(), func(tx *Tx) error { return tx.Forfeit(wire.Hash{8}, c, 50) }); !errors.Is(err, ErrConflict) {
		t.Errorf("by its provider: %v", err)
	}
	if a := p.renter.account(ledger.AsRenter, p.provider); a.Owed != 650 || a.Open != 0 {
		t.Errorf("%+v", a)
	}
	p.equal()
}

// Both sides name the same amount, in any order: the lane comes to it on both, and no later end or voucher changes it.
func TestDisputeEndsByAgreement(t *testing.T) {
	for _, byRenter := range []bool{true, false} {
		p := newPair(t)
		from, to := p.provider, p.renter
		if byRenter {
			from, to = to, from
		}
		lane := p.sell(1, 0)
		p.pay(lane, 600)
		p.dispute(from, to, lane)
		for _, side := range []*party{from, to} {
			err := side.Update(t.Context(), func(tx *Tx) error { return tx.OfferCredit(lane, 300) })
			if !errors.Is(err, ErrRunning) {
				t.Fatalf("while it runs: %v", err)
			}
		}
		p.close(lane, 600)
		p.offer(from, to, lane, 200)
		must(t, turns(from, to, lane, "other", "me"))
		p.offer(to, from, lane, 400)
		must(t, turns(from, to, lane, "both", "both"))
		if d := from.disputeOf(lane); d.Agreed != nil {
			t.Fatalf("agreed on %v, which one side never said", *d.Agreed)
		}
		p.equal()
		if err := from.Update(t.Context(), func(tx *Tx) error { return tx.OfferCredit(lane, 601) }); !errors.Is(err, ErrDiffer) {
			t.Fatalf("more than was promised: %v", err)
		}
		p.offer(from, to, lane, 400)
		for _, side := range []*party{from, to} {
			if d := side.disputeOf(lane); d.Agreed == nil || *d.Agreed != 400 || side.lane(lane).Owed() != 400 {
				t.Fatalf("%+v", d)
			}
		}
		p.equal()
		if a := p.provider.account(ledger.AsProvider, p.renter); a.Owed != 400 || a.DisputedUntil != 0 {
			t.Fatalf("%+v", a)
		}
		for _, side := range []*party{from, to} {
			err := side.Update(t.Context(), func(tx *Tx) error { _, err := tx.OpenDispute(lane, "it is not over", twoWeeks); return err })
			if !errors.Is(err, ErrConflict) {
				t.Fatalf("opened again after both agreed: %v", err)
			}
		}
		p.close(lane, 500)
		p.close(lane, 100)
		if p.renter.lane(lane).Owed() != 400 {
			t.Fatal("an end changed what both signed")
		}
		must(t, p.trySell(p.opening(2, 5)))
		p.equal()
		for _, side := range []*party{p.renter, p.provider} {
			side.view(func(r *Reader) error {
				f, err := r.Prove(lane, nil)
				must(t, err)
				raw, err := f.Encode()
				must(t, err)
				v := proof.Check(raw)
				if v.Result != proof.OK || len(v.Attachments) < 3 || v.LeftAtMost != "0.0004" || v.LeftAtLeast != "0.0004" {
					t.Errorf("%+v", v)
				}
				return nil
			})
		}
	}
}

// A payment that was proposed during a dispute, of all that was promised, is signed after both agreed on less: the money came in. What is
// beyond is prepaid, on both sides.
func TestPaidBeforeTheAgreement(t *testing.T) {
	for _, late := range []bool{false, true} { // the proposal arrives after the agreement
		p := newPair(t)
		lane := p.sell(1, 0)
		p.pay(lane, 600)
		p.dispute(p.renter, p.provider, lane)
		p.close(lane, 600)
		var id wire.Hash
		var proposal, counter []byte
		p.renter.update(func(tx *Tx) (err error) {
			id, proposal, err = tx.Propose(Payment{Channel: p.renter.Channel(p.provider.Self(), money.Credit), Amount: 600, Method: "manual", Reference: "bank 7"})
			return err
		})
		record := func() { p.provider.update(func(tx *Tx) error { _, _, err := tx.RecordProposal(proposal); return err }) }
		if !late {
			record()
		}
		p.offer(p.renter, p.provider, lane, 400)
		p.offer(p.provider, p.renter, lane, 400)
		if late {
			record()
		}
		p.provider.update(func(tx *Tx) (err error) { counter, err = tx.Countersign(id); return err })
		p.renter.update(func(tx *Tx) error { _, err := tx.RecordCounter(counter); return err })
		if a := p.renter.account(ledger.AsRenter, p.provider); a.Owed != -200 || a.Settled != 600 {
			t.Errorf("%+v", a)
		}
		p.equal()
		for _, side := range []*party{p.renter, p.provider} {
			side.view(func(r *Reader) error {
				f, err := r.Prove(lane, nil)
				must(t, err)
				raw, err := f.Encode()
				must(t, err)
				if v := proof.Check(raw); v.Result != proof.OK || v.LeftAtMost != "0" {
					t.Errorf("%+v", v)
				}
				return nil
			})
		}
	}
}

func TestDisputeGuards(t *testing.T) {
	p := newPair(t)
	lane := p.sell(1, 0)
	open := func(side *party) error {
		return side.Update(t.Context(), func(tx *Tx) error { _, err := tx.OpenDispute(lane, "x", twoWeeks); return err })
	}
	if err := open(p.renter); !errors.Is(err, ErrNothingOwed) {
		t.Fatalf("nothing was promised: %v", err)
	}
	p.pay(lane, 600)
	if err := p.renter.Update(t.Context(), func(tx *Tx) error { return tx.OfferCredit(lane, 5) }); !errors.Is(err, ErrNoDispute) {
		t.Fatalf("no dispute: %v", err)
	}
	var mine []byte
	p.renter.update(func(tx *Tx) (err error) { mine, err = tx.OpenDispute(lane, "x", twoWeeks); return err })
	if err := p.renter.Update(t.Context(), func(tx *Tx) error { return tx.RecordDispute(mine) }); !errors.Is(err, ErrRole) {
		t.Fatalf("its own came back: %v", err)
	}
	third := newParty(t)
	if err := third.Update(t.Context(), func(tx *Tx) error { return tx.RecordDispute(mine) }); !errors.Is(err, ErrNoLane) {
		t.Fatalf("of strangers: %v", err)
	}
	if err := open(p.renter); err != nil {
		t.Fatal(err)
	}
	p.provider.update(func(tx *Tx) error { return tx.RecordDispute(mine) })
	p.renter.verified(ResultOK)
	p.provider.verified(ResultOK)
	weak := openParty(t, weakDevice(t, identity.PowerTrade, 100), p.renter.engine, t.TempDir(), nil)
	if weak.ReadOnly() == nil {
		if err := weak.View(t.Context(), func(r *Reader) error {
			return r.maySettle(p.opening(1, 0).Channel, weak.dev.Header(1), weak.dev.DelegationHash())
		}); !errors.Is(err, identity.ErrPower) {
			t.Fatalf("a device without the power to pay: %v", err)
		}
	}
	p.close(lane, 600)
	p.dispute(p.provider, p.renter, lane)
	for name, forge := range map[string]func(*Tx, *Dispute, *Lane, *Account){
		"another end":        func(_ *Tx, d *Dispute, _ *Lane, _ *Account) { d.Until++ },
		"no record":          func(_ *Tx, d *Dispute, _ *Lane, _ *Account) { d.Mine, d.Theirs = nil, nil },
		"a thawed lane":      func(_ *Tx, _ *Dispute, l *Lane, _ *Account) { l.Disputed = 0 },
		"agreed alone":       func(_ *Tx, d *Dispute, l *Lane, _ *Account) { d.Agreed, l.Agreed = new(money.Micro(5)), true },
		"an account at ease": func(_ *Tx, _ *Dispute, _ *Lane, a *Account) { a.DisputedUntil = 0 },
		"swapped records":    func(_ *Tx, d *Dispute, _ *Lane, _ *Account) { d.Mine, d.Theirs = d.Theirs, d.Mine },
		"a changed record":   func(_ *Tx, d *Dispute, _ *Lane, _ *Account) { d.Mine[len(d.Mine)-1] ^= 1 },
	} {
		forged := p.provider.reopen(false)
		forged.update(func(tx *Tx) error {
			d, err := tx.Reader.Dispute(lane)
			must(t, err)
			l, err := tx.Lane(lane)
			must(t, err)
			return tx.change(ledger.AsProvider, money.Credit, p.renter.Self(), func(a *Account) error {
				forge(tx, &d, &l, a)
				return errors.Join(save(tx.own, disputeKey(lane), d), save(tx.own, laneKey(lane), l))
			})
		})
		if v, err := forged.Verify(t.Context()); err != nil || v.Result == ResultOK {
			t.Errorf("%s: %+v, %v", name, v, err)
		}
	}
	p.provider.reopen(true).verified(ResultOK)
}
