package proof_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/history"
	"github.com/gpufair/gpufair/ledger/meter"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/proof"
	"github.com/gpufair/gpufair/ledger/statement"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

func amounts(v statement.Proof) [6]string {
	return [6]string{v.Promised, v.Booked, v.PaidAtLeast, v.PaidAtMost, v.LeftAtLeast, v.LeftAtMost}
}

// checked is the check of a party's own file, which must have the result.
func (p *party) checked(lane ledger.Lane, result string) statement.Proof {
	p.tb.Helper()
	v := proof.Check(encode(p.tb, p.prove(lane)))
	if v.Result != result {
		p.tb.Errorf("%s, %q: %s; want %s", v.Result, v.Record, v.Detail, result)
	}
	return v
}

// TestLives are what leases go through in real books; the files of both sides come to the same amounts.
func TestLives(t *testing.T) {
	for name, c := range map[string]struct {
		live func(w world)
		want [6]string // promised, booked, paid at least and at most, left at least and at most
		says string    // among what is not proven
	}{
		"only opened":   {func(w world) {}, [6]string{"0", "0", "0", "0", "0", "0"}, "no receipt"},
		"running":       {func(w world) { w.pay(lease, 3000) }, [6]string{"0.003", "0.003", "0", "0", "0.003", "0.003"}, "newer voucher"},
		"paid in parts": {func(w world) { w.pay(lease, 3000); w.settle(1000) }, [6]string{"0.003", "0.003", "0.001", "0.001", "0.002", "0.002"}, "do not list"},
		"prepaid":       {func(w world) { w.pay(lease, 3000); w.settle(9000) }, [6]string{"0.003", "0.003", "0.003", "0.003", "0", "0"}, "do not list"},
		"two leases, all paid": {func(w world) {
			w.sell(otherLease)
			w.pay(lease, 3000)
			w.pay(otherLease, 2000)
			w.settle(5000)
		}, [6]string{"0.003", "0.003", "0.003", "0.003", "0", "0"}, "do not list"},
		"two leases, one payment for a part": {func(w world) {
			w.sell(otherLease)
			w.pay(lease, 3000)
			w.pay(otherLease, 2000)
			w.settle(2500)
		}, [6]string{"0.003", "0.003", "0.0025", "0.0025", "0.0005", "0.0005"}, "do not list"},
		"two leases, paid by a part and the exact rest": {func(w world) {
			w.sell(otherLease)
			w.pay(lease, 3000)
			w.pay(otherLease, 2000)
			w.settleAs(300, "transfer 0")
			w.settle(4700)
		}, [6]string{"0.003", "0.003", "0.003", "0.003", "0", "0"}, "do not list"},
		"ended with a lower charge": {func(w world) {
			w.pay(lease, 3000)
			for _, side := range []*party{w.renter, w.provider} {
				side.update(func(t *books.Tx) error { _, err := t.CloseLane(lease, 2800); return err })
			}
		}, [6]string{"0.003", "0.0028", "0", "0", "0.0028", "0.003"}, "lower charge"},
	} {
		w := world{newParty(t), newParty(t)}
		w.renter.update(func(t *books.Tx) error { _, _, err := t.KeepDelegation(w.provider.dev.Delegation()); return err })
		w.sell(lease)
		c.live(w)
		for side, p := range map[string]*party{"renter": w.renter, "provider": w.provider} {
			v := p.checked(lease, proof.OK)
			if amounts(v) != c.want || !strings.Contains(strings.Join(v.NotProven, "\n"), c.says) {
				t.Errorf("%s, %s's file: %v, want %v; not proven:\n%s", name, side, amounts(v), c.want, strings.Join(v.NotProven, "\n"))
			}
		}
	}
}

// TestFraudInTheBooks: the provider keeps two vouchers of one sequence for ever, and its file shows them to anybody.
func TestFraudInTheBooks(t *testing.T) {
	w := newWorld(t)
	f := w.renter.prove(lease)
	second := w.sign(t, f, lease, 3, 6999, f.Vouchers[0])
	err := w.provider.Update(t.Context(), func(t *books.Tx) error { _, err := t.AcceptVoucher(second, wire.Hash{}); return err })
	if !errors.Is(err, voucher.ErrEquivocation) {
		t.Fatal(err)
	}
	v := w.provider.checked(lease, proof.Forged)
	if v.Record != "voucher 3" || !strings.Contains(v.Detail, w.renter.Self().String()) || v.Promised != "0.007" {
		t.Errorf("%+v", v)
	}
}

// TestTwoHistories: the provider signs two heads of one size in records that the renter keeps.
func TestTwoHistories(t *testing.T) {
	w := newWorld(t)
	f := w.renter.prove(lease)
	counter, err := voucher.OpenSettlement(f.Settlements[0].Counter)
	must(t, err)
	honest, err := history.Open(counter.Checkpoint, w.provider.dev.Peer())
	must(t, err)
	honest.Root[0]++
	f.Receipt, err = voucher.SignReceipt(w.provider.dev, voucher.Receipt{Voucher: identity.Hash(f.Vouchers[1]), Checkpoint: head(t, honest, w.provider)})
	must(t, err)
	v := proof.Check(encode(t, f))
	if v.Result != proof.Forged || !strings.Contains(v.Detail, "two histories") || !strings.Contains(v.Detail, w.provider.dev.Peer().String()) {
		t.Errorf("%+v", v)
	}
}

// TestDamageIsNamed: damage shows by the sum, and the check still says in which record it is.
func TestDamageIsNamed(t *testing.T) {
	w := newWorld(t)
	f := w.renter.prove(lease)
	raw := encode(t, f)
	for name, inside := range map[string][]byte{"voucher in place 1": f.Vouchers[1], "receipt": f.Receipt, "settlement": f.Settlements[0].Counter} {
		bad := bytes.Clone(raw)
		bad[bytes.Index(raw, inside)+len(inside)-1] ^= 1
		if v := proof.Check(bad); v.Result != proof.Corrupt || !strings.HasPrefix(v.Record, name) || !strings.Contains(v.Detail, "ask for the file again") {
			t.Errorf("%s: %+v", name, v)
		}
	}
	head := bytes.IndexByte(raw, '\n') + 1
	if v := proof.Check(raw[:head+20]); v.Result != proof.Corrupt || strings.Contains(v.Detail, "\n") || strings.Count(v.Detail, proof.ErrFile.Error()) != 1 {
		t.Errorf("cut short: %+v", v)
	}
}

// TestProposals: a payment that only one side signed is shown, and counts nothing.
func TestProposals(t *testing.T) {
	w := newWorld(t)
	w.renter.update(func(t *books.Tx) error {
		_, _, err := t.Propose(books.Payment{Channel: w.renter.Channel(w.provider.Self(), money.Credit), Amount: 4000, Method: "manual", Reference: "transfer 2"})
		return err
	})
	v := w.renter.checked(lease, proof.OK)
	if len(v.Settlements) != 2 || len(v.Settlements[1].Signed) != 1 || v.LeftAtLeast != "0.004" ||
		!strings.Contains(strings.Join(v.NotProven, "\n"), "that 0.004 was paid") {
		t.Errorf("%+v", v)
	}
}

// TestLongLease: a lease of more vouchers than a file has room for is still proven by its newest ones.
func TestLongLease(t *testing.T) {
	w := world{newParty(t), newParty(t)}
	w.sell(lease)
	const vouchers = proof.MaxEntries + 100
	for from := 1; from <= vouchers; from += 100 {
		w.renter.update(func(tx *books.Tx) error {
			for i := from; i < from+100 && i <= vouchers; i++ {
				if _, err := tx.SignVoucher(lease, money.Micro(i), []meter.Segment{{Rate: perMs, Devices: 1, Ms: uint64(i)}}); err != nil {
					return err
				}
			}
			return nil
		})
	}
	raw := encode(t, w.renter.prove(lease))
	v := proof.Check(raw)
	if v.Result != proof.OK || v.Sequence != vouchers || v.Booked != "" || v.LeftAtLeast != v.Promised || len(raw) > 2<<20 ||
		!strings.Contains(strings.Join(v.NotProven, "\n"), "101 older entries") {
		t.Errorf("%d bytes: %+v", len(raw), v)
	}
}

// TestPowers: what a device signs beyond what its account let it do proves nothing.
func TestPowers(t *testing.T) {
	provider := newParty(t)
	account, key, first, err := identity.Generate()
	must(t, err)
	for name, c := range map[string]struct {
		powers identity.Powers
		limit  uint64
		result string
		why    string
	}{
		"may pay":      {identity.PowerPay, 7000, proof.OK, ""},
		"may not pay":  {identity.PowerTrade | identity.PowerProvide, 7000, proof.Forged, `needs "pay"`},
		"over its cap": {identity.PowerPay, 6999, proof.Forged, "over the cap"},
	} {
		delegation, err := identity.Delegate(account, first.Peer(), 2, c.powers, c.limit)
		must(t, err)
		dev, err := identity.NewDevice(key, delegation)
		must(t, err)
		cp := head(t, history.Empty(history.Origin{Peer: dev.Peer()}), &party{dev: dev})
		f := proof.File{
			Account: provider.Self(), Channel: ledger.Channel{Renter: dev.Account(), Provider: provider.Self(), Unit: money.Credit, Epoch: 1}, Lane: lease,
			Delegations: [][]byte{delegation, provider.dev.Delegation()}, Checkpoint: head(t, history.Empty(history.Origin{Peer: provider.dev.Peer()}), provider),
		}
		opening, err := voucher.Sign(dev, voucher.Voucher{Channel: f.Channel, Lane: lease, Checkpoint: cp})
		must(t, err)
		promise, err := voucher.Sign(dev, voucher.Voucher{Channel: f.Channel, Lane: lease, Seq: 1, Amount: 7000, Prev: opening.Hash, Checkpoint: cp})
		must(t, err)
		f.Vouchers = [][]byte{opening.Raw, promise.Raw}
		if v := proof.Check(encode(t, f)); v.Result != c.result || !strings.Contains(v.Detail, c.why) {
			t.Errorf("%s: %+v", name, v)
		}
	}
}
