package books

import (
	"crypto/ed25519"
	"errors"
	"testing"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/p2p/identity"
)

// heir changes a person's key; the person's own tests go on with the first one.
func heir(t *testing.T, a identity.Authority) identity.Authority {
	t.Helper()
	_, key, err := ed25519.GenerateKey(nil)
	must(t, err)
	next, err := a.Succeed(key)
	must(t, err)
	return next
}

// granted is a device of an account under some key of it.
func granted(t *testing.T, a identity.Authority, key ed25519.PrivateKey, serial uint64) *identity.Device {
	t.Helper()
	raw, err := a.Delegate(identity.PeerID(key.Public().(ed25519.PublicKey)), serial, identity.AllPowers, identity.DefaultCap)
	must(t, err)
	dev, err := identity.NewDevice(key, raw)
	must(t, err)
	return dev
}

// news is what tells others that a key follows another.
func news(t *testing.T, a identity.Authority) []byte {
	t.Helper()
	former, err := a.Chain[:len(a.Chain)-1].Key(a.Account)
	must(t, err)
	raw, err := a.Revoke(identity.PeerID(former), 1, 0)
	must(t, err)
	return raw
}

// TestAccountKeyChanged: whoever dealt with an account sees the same one after its key was changed: debts, history, limits and the lease that
// runs go on, and the old key gets nothing new.
func TestAccountKeyChanged(t *testing.T) {
	p := newPerson(t)
	_, key, err := ed25519.GenerateKey(nil)
	must(t, err)
	first := identity.FirstKey(p.key)
	pair := pairOf{renter: p.pc(granted(t, first, key, 1)), provider: newParty(t)}
	pair.meet()
	must(t, pair.renter.KeepOwn(t.Context()))
	done, runs := pair.sell(1, 0), pair.sell(2, 1000)
	pair.pay(done, 5000)
	pair.close(done, 5000)
	pair.settle(pair.renter, pair.provider, 4000, "before")
	pair.pay(runs, 300)
	limit := money.Micro(700_000)
	pair.provider.update(func(t *Tx) error { return t.SetLimit(p.self(), money.Credit, &limit) })
	before := pair.provider.account(ledger.AsProvider, pair.renter)

	second := heir(t, first)
	for range 2 {
		if kept, err := pair.provider.KeepRevocation(t.Context(), news(t, second)); !kept || err != nil {
			t.Fatalf("the news was not kept: %v", err)
		}
	}
	pair.renter = pair.renter.replace(granted(t, second, key, 2))
	pair.meet()
	if got := pair.provider.account(ledger.AsProvider, pair.renter); got.Owed != before.Owed || got.Settled != before.Settled || *got.ByHand != limit || got.Lanes != 2 {
		t.Errorf("after the change it is %+v, before %+v", got, before)
	}
	pair.pay(runs, 900) // the lease that runs stays with its delegation
	next := pair.sell(3, 100)
	pair.pay(next, 50)
	pair.close(runs, 900)
	pair.settle(pair.renter, pair.provider, 1000, "after")
	pair.settle(pair.provider, pair.renter, 200, "after, the other way")
	pair.equal()
	if got := pair.provider.account(ledger.AsProvider, pair.renter); got.Owed != 750 || got.Settled != 5200 || got.Lanes != 3 {
		t.Errorf("at the end: %+v", got)
	}
	thief := p.pc(p.device(1<<60, identity.AllPowers)) // whoever has the old key makes himself a device
	oldKeyTries(t, p, pair, thief)
	// It stays so over a restart, also of a store made again from the journal.
	again := pair.provider.reopen(true)
	again.verified(ResultOK)
	if _, err := rent(thief, again, 11); !errors.Is(err, identity.ErrReplaced) {
		t.Errorf("a lease under the old key after a restart: %v", err)
	}
}

// oldKeyTries lets who has the old key of an account try what he can at somebody who heard of the new one.
func oldKeyTries(t *testing.T, p *person, pair pairOf, thief *party) {
	t.Helper()
	if _, err := rent(thief, pair.provider, 9); !errors.Is(err, identity.ErrReplaced) {
		t.Errorf("a lease under the old key: %v", err)
	}
	refused := func() error {
		var raw []byte
		thief.update(func(t *Tx) (err error) {
			_, raw, err = t.Propose(Payment{Channel: thief.Channel(pair.provider.Self(), money.Credit), Amount: 750, Method: "manual"})
			return err
		})
		return pair.provider.Update(t.Context(), func(t *Tx) error {
			_, _, err := t.KeepDelegation(thief.dev.Delegation())
			if err == nil {
				_, _, err = t.RecordProposal(raw)
			}
			return err
		})
	}()
	if !errors.Is(refused, identity.ErrReplaced) {
		t.Errorf("a payment under the old key: %v", refused)
	}
	if kept, err := pair.provider.KeepRevocation(t.Context(), p.revoke(pair.renter.dev.Peer(), 1<<60)); kept || err != nil {
		t.Errorf("the old key revokes a device: %v %v", kept, err)
	}
	if _, err := rent(pair.renter, pair.provider, 10); err != nil {
		t.Errorf("the account's own device after that: %v", err)
	}
}

// TestOldKeysRevocation: what the old key revoked before, however far ahead, does not void what the new one grants.
func TestOldKeysRevocation(t *testing.T) {
	p, provider := newPerson(t), newParty(t)
	_, key, err := ed25519.GenerateKey(nil)
	must(t, err)
	first := identity.FirstKey(p.key)
	if _, err := rent(p.pc(granted(t, first, key, 1)), provider, 1); err != nil {
		t.Fatal(err)
	}
	device := identity.PeerID(key.Public().(ed25519.PublicKey))
	learn(provider, p.revoke(device, 1<<62)) // by the thief
	second := heir(t, first)
	pc := p.pc(granted(t, second, key, 2))
	if _, err := rent(pc, provider, 2); err != nil {
		t.Errorf("granted by the new key: %v", err)
	}
	raw, err := second.Revoke(device, 2, 0)
	must(t, err)
	if !learn(provider, raw) {
		t.Error("the new key's revocation of a lower serial is not taken")
	}
	if _, err := rent(pc, provider, 3); !errors.Is(err, identity.ErrRevoked) {
		t.Errorf("revoked by the new key: %v", err)
	}
}

// TestTwoHeirs: one key names two to follow it. Nobody can tell whose is the owner's, so nothing new is agreed on with either; what is owed
// stays, the lease that runs goes on, and the proof is kept and checks by itself.
func TestTwoHeirs(t *testing.T) {
	p := newPerson(t)
	_, key, err := ed25519.GenerateKey(nil)
	must(t, err)
	first := identity.FirstKey(p.key)
	pair := pairOf{renter: p.pc(granted(t, first, key, 1)), provider: newParty(t)}
	pair.meet()
	runs := pair.sell(1, 1000)
	pair.pay(runs, 300)
	mine, thiefs := heir(t, first), heir(t, heir(t, first))
	must(t, second1(pair.provider.KeepRevocation(t.Context(), news(t, mine))))
	must(t, second1(pair.provider.KeepRevocation(t.Context(), news(t, thiefs))))
	proven := func(at *party) {
		t.Helper()
		at.view(func(r *Reader) error {
			proof, ok, err := r.TwoKeysOf(p.self())
			if !ok || err != nil || proof.Check() != nil || proof.Have.Against(mine.Chain) != identity.SameKey || proof.Got.Against(thiefs.Chain) != identity.SameKey {
				t.Errorf("the proof: %+v %v %v", proof, ok, err)
			}
			return nil
		})
	}
	proven(pair.provider)
	for what, a := range map[string]identity.Authority{"the first heir": mine, "the second": thiefs, "the old key": first} {
		_, fresh, err := ed25519.GenerateKey(nil)
		must(t, err)
		if _, err := rent(p.pc(granted(t, a, fresh, 9)), pair.provider, 9); !errors.Is(err, identity.ErrTwoKeys) {
			t.Errorf("a lease by %s: %v", what, err)
		}
	}
	channel := pair.renter.Channel(pair.provider.Self(), money.Credit)
	for what, f := range map[string]func(t *Tx) error{
		"a hold": func(t *Tx) error { return t.Hold([32]byte{7}, channel, 1) },
		"a payment": func(t *Tx) error {
			_, _, err := t.Propose(Payment{Channel: channel, Amount: 1, Method: "manual"})
			return err
		},
	} {
		if err := pair.provider.Update(t.Context(), f); !errors.Is(err, identity.ErrTwoKeys) {
			t.Errorf("%s: %v", what, err)
		}
	}
	pair.pay(runs, 500)
	if got := pair.provider.account(ledger.AsProvider, pair.renter); got.Owed != 500 {
		t.Errorf("owed: %+v", got)
	}
	pair.provider.verified(ResultOK)
	again := pair.provider.reopen(true)
	proven(again)
	must(t, again.store.Update(t.Context(), func(tx *kv.Txn) error {
		return save(tx.Of(kv.Books), twoKeysKey(p.self()), TwoKeys{Account: p.self(), Have: mine.Chain, Got: mine.Chain})
	}))
	again.verified(ResultForged)
}

func second1[A any](_ A, err error) error { return err }

// TestHeirOfAStranger: a stranger's change makes nobody write, and a list of changes that was altered is found.
func TestHeirOfAStranger(t *testing.T) {
	p, provider := newPerson(t), newParty(t)
	next := heir(t, identity.FirstKey(p.key))
	if learn(provider, news(t, next)) {
		t.Error("a stranger's change was kept")
	}
	_, key, err := ed25519.GenerateKey(nil)
	must(t, err)
	if _, err := rent(p.pc(granted(t, next, key, 1)), provider, 1); err != nil {
		t.Errorf("first dealt with under its second key: %v", err)
	}
	if _, err := rent(p.pc(p.device(1<<60, identity.AllPowers)), provider, 2); !errors.Is(err, identity.ErrReplaced) {
		t.Errorf("then under the first, before any other news: %v", err)
	}
	if !learn(provider, news(t, next)) {
		t.Error("a partner's change was not kept")
	}
	provider.verified(ResultOK)
	must(t, provider.store.Update(t.Context(), func(tx *kv.Txn) error {
		c := append(identity.Chain(nil), next.Chain...)
		c[0].Old[0] ^= 1
		return save(tx.Of(kv.Books), keysKey(p.self()), c)
	}))
	provider.verified(ResultForged)
}
