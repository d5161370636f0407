package books

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// TestSalvageKeepsClearings: a ledger that is made anew of what reads of a damaged one owes no debt again that a clearing ended, does not
// believe a device or a key again that was let go, and makes no second invoice beside one that is open.
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
	lost := newLettingGo(t, r.all[0])
	asked := r.all[0].invoice(r.all[2], "invoice 1")

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
	lost.verified(fresh)
	if got := fresh.invoice(r.all[2], "invoice 2"); got.Key != asked.Key || got.Reference != "invoice 1" || got.State != BillOpen {
		t.Errorf("with an invoice open it makes another: %+v, open is %+v", got, asked)
	}
}

// invoice asks for an invoice and opens it, if it was not open.
func (p *party) invoice(renter *party, reference string) (b Bill) {
	p.tb.Helper()
	p.update(func(t *Tx) (err error) {
		if b, err = t.AskBill(money.Credit, renter.Self()); err == nil {
			err = t.OpenBill(money.Credit, renter.Self(), b.Key, "manual", reference, "")
		}
		if err == nil {
			b, _, err = t.Bill(ledger.AsProvider, money.Credit, renter.Self())
		}
		return err
	})
	return b
}

// lettingGo is accounts that changed their keys and let devices go, as a provider knows them.
type lettingGo struct {
	t       *testing.T
	revoked int
	whom    []*person
	laptops []*party // let go under the first key, of whom each has a lease that runs
	lanes   []Opening
	heirs   *person // one whose key named two to follow it
}

// newLettingGo tells a provider of two accounts, and of one with two heirs: each let its laptop go, then changed its key, and let another
// device go with the new one. In the order of devices, that one is before the laptop for one account and behind it for the other.
func newLettingGo(t *testing.T, provider *party) *lettingGo {
	t.Helper()
	g := &lettingGo{t: t, heirs: newPerson(t)}
	for i, other := range []identity.PeerID{{}, identity.PeerID(bytes.Repeat([]byte{0xff}, 32))} {
		p := newPerson(t)
		laptop := p.pc(p.device(1, identity.AllPowers))
		o, err := rent(laptop, provider, byte(20+i))
		must(t, err)
		second := heir(t, identity.FirstKey(p.key))
		late, err := second.Revoke(other, 1, 0)
		must(t, err)
		if !learn(provider, p.revoke(laptop.dev.Peer(), 1)) || !learn(provider, late) {
			t.Fatal("a revocation was not kept")
		}
		g.whom, g.laptops, g.lanes = append(g.whom, p), append(g.laptops, laptop), append(g.lanes, o)
	}
	laptop := g.heirs.pc(g.heirs.device(1, identity.AllPowers))
	o, err := rent(laptop, provider, 30)
	must(t, err)
	learn(provider, g.heirs.revoke(laptop.dev.Peer(), 1))
	g.laptops, g.lanes = append(g.laptops, laptop), append(g.lanes, o)
	for range 2 {
		must(t, second1(provider.KeepRevocation(t.Context(), news(t, heir(t, identity.FirstKey(g.heirs.key))))))
	}
	all, err := provider.Revocations(t.Context())
	must(t, err)
	g.revoked = len(all)
	provider.verified(ResultOK)
	return g
}

// verified checks that another ledger knows of it all.
func (g *lettingGo) verified(at *party) {
	g.t.Helper()
	if all, err := at.Revocations(g.t.Context()); err != nil || len(all) != g.revoked {
		g.t.Errorf("%d revocations, want %d: %v", len(all), g.revoked, err)
	}
	for i, o := range g.lanes {
		if _, err := pay(g.laptops[i], at, o, 100); !errors.Is(err, identity.ErrRevoked) {
			g.t.Errorf("laptop %d, that was let go, pays on: %v", i, err)
		}
	}
	for i, p := range g.whom {
		if _, err := rent(p.pc(p.device(9, identity.AllPowers)), at, byte(40+i)); !errors.Is(err, identity.ErrReplaced) {
			g.t.Errorf("a lease under the old key of account %d: %v", i, err)
		}
	}
	if _, err := rent(g.heirs.pc(g.heirs.device(9, identity.AllPowers)), at, 50); !errors.Is(err, identity.ErrTwoKeys) {
		g.t.Errorf("a lease of an account with two heirs: %v", err)
	}
}

// TestSalvageOrder: what a device signed before it was let go, under a key that was changed since, comes along whatever its place is among the
// records: also what this side has still to decide, which it would not take any more.
func TestSalvageOrder(t *testing.T) {
	provider, whom := newParty(t), newPerson(t)
	laptop := whom.pc(whom.device(1, identity.AllPowers))
	o, err := rent(laptop, provider, 1)
	must(t, err)
	must(t, second1(pay(laptop, provider, o, 100)))
	var id wire.Hash
	var proposal []byte
	laptop.update(func(tx *Tx) (err error) {
		id, proposal, err = tx.Propose(Payment{Channel: laptop.Channel(provider.Self(), money.Credit), Amount: 60, Method: "bank", Reference: "9"})
		return err
	})
	provider.update(func(tx *Tx) error { _, _, err := tx.RecordProposal(proposal); return err })
	next := heir(t, identity.FirstKey(whom.key))
	late, err := next.Revoke(identity.PeerID{}, 1, 0)
	must(t, err)
	if !learn(provider, whom.revoke(laptop.dev.Peer(), 1)) || !learn(provider, late) {
		t.Fatal("a revocation was not kept")
	}
	broken, err := kv.Open(t.Context(), copyEngine(t, provider.engine), schema)
	must(t, err)
	fresh := provider.restored(&kv.Memory{}, time.Now())
	out, err := fresh.Salvage(t.Context(), broken)
	if err != nil || out.Lost != 0 || out.Lanes != 1 || out.Settlements != 1 {
		t.Fatalf("%+v, %v", out, err)
	}
	fresh.verified(ResultOK)
	fresh.view(func(r *Reader) error {
		if v, err := r.Settlement(id); err != nil || v.State != Waiting {
			t.Errorf("the proposal is %s, %v", v.State, err)
		}
		if l, err := r.Lane(o.Lane); err != nil || l.Amount != 100 {
			t.Errorf("the lane has %v, %v", l.Amount, err)
		}
		return nil
	})
}

// TestSalvageProofs: the proofs that others signed two vouchers with one sequence, or two histories, come along, and what proves nothing is
// found by a check and lost.
func TestSalvageProofs(t *testing.T) {
	p := newPair(t)
	lane := p.sell(1, 0)
	p.pay(lane, 100)
	l := p.renter.lane(lane)
	twin, err := voucher.Sign(p.renter.dev, voucher.Voucher{Channel: l.Channel, Lane: lane, Seq: 1, Amount: 90, Prev: l.Voucher})
	must(t, err)
	if _, err := p.deliver(twin.Raw); !errors.Is(err, voucher.ErrEquivocation) {
		t.Fatal(err)
	}
	dev := p.renter.dev
	p.provider.update(func(tx *Tx) error {
		return keepFork(tx.own, &Fork{Device: dev.Peer(), Have: claim(t, dev, 1, 5, 1), Got: claim(t, dev, 1, 5, 2)}, 1)
	})
	p.provider.verified(ResultOK)
	salvaged := func() (*party, Salvaged) {
		broken, err := kv.Open(t.Context(), copyEngine(t, p.provider.engine), schema)
		must(t, err)
		fresh := p.provider.restored(&kv.Memory{}, time.Now())
		out, err := fresh.Salvage(t.Context(), broken)
		must(t, err)
		fresh.verified(ResultOK)
		return fresh, out
	}
	proofs := func(at *party) (n int) {
		at.view(func(r *Reader) error {
			have, got, err := r.Fraud(lane)
			if have != nil && got != nil {
				n++
			}
			if forked := r.Forked(dev.Peer()); errors.Is(forked, ErrFork) {
				n++
			}
			return err
		})
		return n
	}
	if fresh, out := salvaged(); proofs(fresh) != 2 || out.Lost != 0 {
		t.Errorf("%d proofs of 2 came along: %+v", proofs(fresh), out)
	}
	var first, newest []byte
	p.renter.view(func(r *Reader) (err error) {
		first, err = r.Voucher(lane, 0)
		if err == nil {
			newest, err = r.Voucher(lane, 1)
		}
		return err
	})
	for what, f := range map[string]fraud{
		"a voucher twice": {Have: newest, Got: newest}, "two of a lane": {Have: first, Got: newest}, "no signature": {Have: newest, Got: newest[1:]},
	} {
		p.provider.update(func(tx *Tx) error { return save(tx.own, key("fraud/", lane[:]), f) })
		p.provider.verified(ResultForged)
		if fresh, out := salvaged(); proofs(fresh) != 1 || out.Lost != 1 {
			t.Errorf("%s: %d proofs, %+v", what, proofs(fresh), out)
		}
	}
	p.provider.update(func(tx *Tx) error {
		return errors.Join(tx.own.Delete(key("fraud/", lane[:])), save(tx.own, forkKey(dev.Peer()), forked{Have: claim(t, dev, 1, 5, 1), Got: claim(t, dev, 1, 6, 2)}))
	})
	p.provider.verified(ResultForged)
	if fresh, out := salvaged(); proofs(fresh) != 0 || out.Lost != 1 {
		t.Errorf("%d proofs, %+v", proofs(fresh), out)
	}
}

// TestSalvageChecks: what no signature bears out, or is in another's place, is lost and counted, and the rest comes along.
func TestSalvageChecks(t *testing.T) {
	p := newParty(t)
	whom, other := newPerson(t), newPerson(t)
	mine, theirs := heir(t, identity.FirstKey(whom.key)), heir(t, identity.FirstKey(whom.key))
	revoked := whom.revoke(identity.PeerID{1}, 1)
	encoded := func(v any) []byte {
		b, err := wire.Marshal(v)
		must(t, err)
		return b
	}
	proof := TwoKeys{Account: whom.self(), Have: mine.Chain, Got: theirs.Chain}
	open := Bill{State: BillOpen, Amount: 5, Method: "manual", Reference: "1"}
	vast, unknown := open, open
	vast.Pay, unknown.State = string(make([]byte, maxPay+1)), BillClosed+1
	bad := []kv.Write{
		{Key: keysKey(other.self()), Value: encoded(mine.Chain)},
		{Key: append(keysKey(whom.self()), 1), Value: encoded(mine.Chain)},
		{Key: keysKey(p.Self()), Value: []byte{1}},
		{Key: twoKeysKey(whom.self()), Value: encoded(TwoKeys{Account: whom.self(), Have: mine.Chain, Got: mine.Chain})},
		{Key: twoKeysKey(other.self()), Value: encoded(proof)},
		{Key: revocationKey(other.self(), identity.PeerID{1}), Value: revoked},
		{Key: revocationKey(whom.self(), identity.PeerID{2}), Value: append(bytes.Clone(revoked[:len(revoked)-1]), revoked[len(revoked)-1]^1)},
		{Key: billKey(ledger.AsProvider, money.Credit, other.self()), Value: encoded(vast)},
		{Key: billKey(ledger.AsRenter, money.Credit, other.self()), Value: encoded(unknown)},
		{Key: billKey(3, money.Credit, whom.self()), Value: encoded(open)},
		{Key: billKey(ledger.AsRenter, "/", whom.self()), Value: encoded(open)},
		{Key: []byte("bill/1"), Value: encoded(open)},
		{Key: billKey(ledger.AsProvider, money.Credit, p.Self()), Value: []byte{1}},
	}
	good := []kv.Write{
		{Key: keysKey(whom.self()), Value: encoded(mine.Chain)},
		{Key: revocationKey(whom.self(), identity.PeerID{1}), Value: revoked},
		{Key: billKey(ledger.AsProvider, money.Credit, whom.self()), Value: encoded(Bill{State: BillAsked, Amount: 5})},
		{Key: billKey(ledger.AsRenter, money.Credit, whom.self()), Value: encoded(open)},
	}
	broken, err := kv.Open(t.Context(), &kv.Memory{}, schema)
	must(t, err)
	must(t, broken.Update(t.Context(), func(tx *kv.Txn) (err error) {
		for _, w := range append(bad, good...) {
			err = errors.Join(err, tx.Of(kv.Books).Set(w.Key, w.Value))
		}
		return err
	}))
	out, err := p.Salvage(t.Context(), broken)
	if err != nil || out.Lost != len(bad) {
		t.Errorf("%+v, %v; want %d lost", out, err, len(bad))
	}
	p.view(func(r *Reader) error {
		for _, w := range bad {
			if b, err := raw(r.own, w.Key); b != nil || err != nil {
				t.Errorf("%q was taken over: %v", w.Key, err)
			}
		}
		for _, w := range good {
			if b, err := raw(r.own, w.Key); !bytes.Equal(b, w.Value) || err != nil {
				t.Errorf("%q was not taken over: %v", w.Key, err)
			}
		}
		return nil
	})
	p.verified(ResultOK)
}
