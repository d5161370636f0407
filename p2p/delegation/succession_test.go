package delegation

import (
	"crypto/ed25519"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/p2ptest"
)

// heir changes the key of an account.
func heir(t *testing.T, a identity.Authority) identity.Authority {
	t.Helper()
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	next, err := a.Succeed(key)
	if err != nil {
		t.Fatal(err)
	}
	return next
}

// news is what tells others of an authority's newest key.
func news(t *testing.T, a identity.Authority) []byte {
	t.Helper()
	former, err := a.Chain[:len(a.Chain)-1].Key(a.Account)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := a.Revoke(identity.PeerID(former), 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func under(t *testing.T, a identity.Authority) (raw []byte, d identity.Delegation) {
	t.Helper()
	raw, err := a.Delegate(identity.PeerID{1, 2, 3}, 7, identity.AllPowers, 1)
	if err != nil {
		t.Fatal(err)
	}
	d, err = identity.OpenDelegation(raw)
	if err != nil {
		t.Fatal(err)
	}
	return raw, d
}

// TestChangedKeySpreads: those that hear of an account's new key take nothing new under the old one, which can't take that back; those that
// come later hear it when they connect. Where two keys claim to follow one, nothing is taken under any.
func TestChangedKeySpreads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := p2ptest.NewNet(t)
		a, b := joinParty(t, net), joinParty(t, net)
		meet(t, a, b)
		a.run(t)
		b.run(t)
		synctest.Wait()
		first := identity.FirstKey(a.account)
		second := heir(t, first)
		_, old := under(t, first)
		_, fresh := under(t, second)
		if err := a.dir.Spread(t.Context(), news(t, second)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		late := joinParty(t, net)
		late.run(t)
		meet(t, late, a)
		synctest.Wait()
		all := map[string]party{"the account's own": a, "a neighbour": b, "one that came later": late}
		for name, p := range all {
			if err := p.dir.Revoked(old); !errors.Is(err, identity.ErrReplaced) || !errors.Is(err, identity.ErrPower) {
				t.Errorf("%s, under the old key: %v", name, err)
			}
			if err := p.dir.Revoked(fresh); err != nil {
				t.Errorf("%s, under the new key: %v", name, err)
			}
			if took, err := p.dir.Learn(t.Context(), a.revoke(t, fresh.Device, 1<<60)); took || err != nil {
				t.Errorf("%s takes a revocation by the old key: %v %v", name, took, err)
			}
			if err := p.dir.Revoked(fresh); err != nil {
				t.Errorf("%s, after a revocation by the old key: %v", name, err)
			}
		}
		raw, _ := under(t, first)
		if err := b.dir.RevokedRecord(old.Header, raw); !errors.Is(err, identity.ErrReplaced) {
			t.Errorf("a record under the old key: %v", err)
		}
		if err := b.dir.Spread(t.Context(), news(t, heir(t, first))); err != nil { // a thief's
			t.Fatal(err)
		}
		synctest.Wait()
		for name, p := range all {
			for _, d := range []identity.Delegation{old, fresh} {
				if err := p.dir.Revoked(d); !errors.Is(err, identity.ErrTwoKeys) {
					t.Errorf("%s, after a second heir: %v", name, err)
				}
			}
		}
	})
}

// TestKeyLearnedFromDelegation: a delegation by a newer key is news of the key by itself.
func TestKeyLearnedFromDelegation(t *testing.T) {
	net := p2ptest.NewNet(t)
	a, b := joinParty(t, net), joinParty(t, net)
	first := identity.FirstKey(a.account)
	raw, _ := under(t, heir(t, first))
	if _, _, err := b.dir.Add(raw); err != nil {
		t.Fatal(err)
	}
	if _, old := under(t, first); !errors.Is(b.dir.Revoked(old), identity.ErrReplaced) {
		t.Error("the old key still counts")
	}
	if _, old := under(t, identity.FirstKey(b.account)); b.dir.Revoked(old) != nil {
		t.Error("another account's key is replaced")
	}
}

// TestChangesOfStrangersAreForgotten: a flood of keys that nobody dealt with pushes out others of that kind, and none that is kept.
func TestChangesOfStrangersAreForgotten(t *testing.T) {
	l, err := newLineages()
	if err != nil {
		t.Fatal(err)
	}
	chain := identity.Chain{{Next: identity.AccountID{9}}}
	l.follow(identity.AccountID{1}, chain, true)
	for i := range 2 * heardRevocations {
		l.follow(identity.AccountID{2, byte(i), byte(i >> 8)}, chain, false)
		l.follow(identity.AccountID{3, byte(i), byte(i >> 8)}, nil, false) // was never changed: costs nothing
	}
	if len(l.of(identity.AccountID{1}).chain) != 1 || l.heard.Len() != heardRevocations || len(l.kept) != 1 {
		t.Errorf("%d kept, %d heard", len(l.kept), l.heard.Len())
	}
}
