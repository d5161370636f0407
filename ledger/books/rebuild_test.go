package books

import (
	"testing"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/p2p/identity"
)

// TestSalvageKeepsClearings: a ledger that is made anew of what reads of a damaged one owes no debt again that a clearing ended, and does
// not believe a device again that was let go.
func TestSalvageKeepsClearings(t *testing.T) {
	r := newRing(t, 1000, 700, 900)
	terms := r.terms(700)
	r.gather(terms)
	cleared, err := r.all[0].complete(r.id(terms))
	must(t, err)
	for _, p := range r.all[1:] {
		p.hear(terms, cleared.Words())
	}
	r.owed(300, 0, 200)
	whom := newPerson(t)
	laptop := whom.pc(whom.device(1, identity.AllPowers))
	_, err = rent(laptop, r.all[0], 1)
	must(t, err)
	if !learn(r.all[0], whom.revoke(laptop.dev.Peer(), 1)) {
		t.Fatal("the revocation was not kept")
	}

	broken, err := kv.Open(t.Context(), copyEngine(t, r.all[0].engine), schema)
	must(t, err)
	fresh := r.all[0].restored(&kv.Memory{}, time.Now())
	out, err := fresh.Salvage(t.Context(), broken)
	if err != nil || out.Lost != 0 || out.Settlements != 1 {
		t.Fatalf("%+v, %v", out, err)
	}
	fresh.verified(ResultOK)
	if got := fresh.account(ledger.AsRenter, r.all[1]).Owed; got != 300 {
		t.Errorf("it owes %d, want 300", got)
	}
	if got := fresh.account(ledger.AsProvider, r.all[2]).Owed; got != 200 {
		t.Errorf("it is owed %d, want 200", got)
	}
	if all, err := fresh.Revocations(t.Context()); err != nil || len(all) != 1 {
		t.Errorf("%d revocations, %v", len(all), err)
	}
}
