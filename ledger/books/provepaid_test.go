package books

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/proof"
	"github.com/gpufair/gpufair/p2p/wire"
)

func (p *party) provePayment(id wire.Hash) (f proof.Payment, raw []byte) {
	p.tb.Helper()
	p.view(func(r *Reader) (err error) { f, err = r.ProvePayment(id); return err })
	raw, err := f.Encode()
	must(p.tb, err)
	return f, raw
}

// TestProvePayment: the file of a payment shows one signature while there is one, then both and the booking, from either side; whatever is
// changed in it is found.
func TestProvePayment(t *testing.T) {
	p := newPair(t)
	p.pay(p.sell(1, 0), 900)
	other := p.sell(2, 0)
	var id wire.Hash
	var proposal, counter []byte
	pay := Payment{Channel: p.renter.Channel(p.provider.Self(), money.Credit), Amount: 900, Method: "bank", Reference: "INV-7"}
	p.renter.update(func(tx *Tx) (err error) { id, proposal, err = tx.Propose(pay); return err })
	_, raw := p.renter.provePayment(id)
	v := proof.CheckPayment(raw)
	if v.Result != proof.OK || len(v.Signed) != 1 || v.Reference != "INV-7" || v.Entry != nil || len(v.NotProven) != 1 || !strings.Contains(v.NotProven[0], "agrees") {
		t.Fatalf("proposed: %+v", v)
	}
	p.provider.update(func(tx *Tx) error {
		_, _, err := tx.RecordProposal(proposal)
		if err == nil {
			counter, err = tx.Countersign(id)
		}
		return err
	})
	p.renter.update(func(tx *Tx) error { _, err := tx.RecordCounter(counter); return err })
	p.pay(other, 50) // the log goes on
	for _, side := range []*party{p.renter, p.provider} {
		f, raw := side.provePayment(id)
		v := proof.CheckPayment(raw)
		if v.Result != proof.OK || len(v.Signed) != 2 || v.Entry == nil || v.Amount != "0.0009" || v.Renter != p.renter.Self().String() ||
			v.MadeBy != side.Self().String() || len(v.Leases) != 1 || len(v.Proven) < 4 {
			t.Fatalf("signed: %+v", v)
		}
		for i := 0; i < len(raw); i += 7 {
			bad := slices.Clone(raw)
			bad[i] ^= 1
			if got := proof.CheckPayment(bad); got.Result == proof.OK {
				t.Fatalf("byte %d was changed: %+v", i, got)
			}
		}
		forge := func(what, want string, change func(*proof.Payment)) {
			t.Helper()
			bad := f
			bad.Delegations = slices.Clone(f.Delegations)
			entry := *f.Entry
			bad.Entry = &entry
			change(&bad)
			raw, err := bad.Encode()
			must(t, err)
			if got := proof.CheckPayment(raw); got.Result != want || got.Amount != "" {
				t.Errorf("%s: %+v, want %s", what, got, want)
			}
		}
		forge("another entry", proof.Forged, func(b *proof.Payment) { b.Entry.Index-- })
		forge("no entry", proof.Corrupt, func(b *proof.Payment) { b.Entry = nil })
		forge("no counter", proof.Corrupt, func(b *proof.Payment) { b.Settlement.Counter = nil })
		forge("twice the proposal", proof.Forged, func(b *proof.Payment) { b.Settlement.Counter = b.Settlement.Proposal })
		forge("no delegations", proof.Corrupt, func(b *proof.Payment) { b.Delegations = nil })
		forge("another account", proof.Corrupt, func(b *proof.Payment) { b.Account[0]++ })
		forge("no extensions", proof.Corrupt, func(b *proof.Payment) { b.Extensions = nil })
	}
	if got := proof.CheckPayment([]byte("gpufair-proof/1 x\n")); got.Result != proof.Corrupt {
		t.Errorf("another file: %+v", got)
	}
}

// TestProveCleared: the file of a lease says when a circle of debts paid for it, with the words of all members; one that lacks a word, or
// names another circle, shows nothing.
func TestProveCleared(t *testing.T) {
	r := newRing(t, 1000, 700, 900)
	terms := r.terms(700)
	r.gather(terms)
	done, err := r.all[0].complete(r.id(terms))
	must(t, err)
	for _, p := range r.all {
		p.hear(terms, done.Words())
	}
	for i, want := range []string{"0.0003", "0", "0.0002"} { // left of the debts
		for _, side := range []*party{r.pair(i).renter, r.pair(i).provider} {
			var f proof.File
			side.view(func(rd *Reader) (err error) { f, err = rd.Prove(r.lanes[i], nil); return err })
			check := func(f proof.File) (got struct{ result, left, most string }, n int) {
				raw, err := f.Encode()
				must(t, err)
				v := proof.Check(raw)
				got.result, got.left, got.most = v.Result, v.LeftAtLeast, v.PaidAtMost
				return got, len(v.Clearings)
			}
			if got, n := check(f); got.result != proof.OK || n != 1 || got.left != want || got.most != "0.0007" {
				t.Fatalf("lease %d: %+v, %d clearings, want %s left", i, got, n, want)
			}
			short := f
			short.Clearings = slices.Clone(f.Clearings)
			short.Clearings[0].Words = slices.Clone(f.Clearings[0].Words)[1:]
			if got, _ := check(short); got.result != proof.Corrupt {
				t.Errorf("a word is missing: %+v", got)
			}
			changed := f
			changed.Clearings = slices.Clone(f.Clearings)
			changed.Clearings[0].Terms.Amount++
			if got, _ := check(changed); got.result == proof.OK {
				t.Errorf("another amount: %+v", got)
			}
			none := f
			none.Clearings = nil
			if got, _ := check(none); got.result == proof.OK {
				t.Errorf("an entry of a clearing without its words: %+v", got)
			}
			twice := f
			twice.Clearings = append(slices.Clone(f.Clearings), f.Clearings[0])
			if got, _ := check(twice); got.result != proof.Corrupt {
				t.Errorf("twice: %+v", got)
			}
		}
	}
}
