package delegation

import (
	"context"
	"crypto/ed25519"
	"errors"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/p2ptest"
	"github.com/gpufair/gpufair/p2p/wire"
)

const topic = "/gpufair/test/revocations/1"

// party is an account with a device on the network.
type party struct {
	node
	account ed25519.PrivateKey
}

func joinParty(t *testing.T, net *p2ptest.Net) party {
	t.Helper()
	account, _, dev, err := identity.Generate()
	if err != nil {
		t.Fatal(err)
	}
	n := net.Join(dev)
	dir, err := New(n, proto, dev)
	if err != nil {
		t.Fatal(err)
	}
	n.Handle(proto, Limits(), dir.Handler())
	return party{node{Node: n, dev: dev, dir: dir}, account}
}

// run lets the party spread revocations until the test's end.
func (p party) run(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.dir.Run(ctx, topic) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// second is a delegation of another device of the party's account, and revoke a revocation of it.
func (p party) second(t *testing.T, serial uint64) identity.Delegation {
	t.Helper()
	raw, err := identity.Delegate(p.account, identity.PeerID{1, 2, 3}, serial, identity.AllPowers, 1)
	if err != nil {
		t.Fatal(err)
	}
	d, err := identity.OpenDelegation(raw)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func (p party) revoke(t *testing.T, device identity.PeerID, serial uint64) []byte {
	t.Helper()
	raw, err := identity.Revoke(p.account, device, serial, 0)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// TestRevocationSpreads: those that are there hear it by gossip, those that come later when they connect.
func TestRevocationSpreads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := p2ptest.NewNet(t)
		a, b, c := joinParty(t, net), joinParty(t, net), joinParty(t, net)
		meet(t, a, b)
		meet(t, b, c)
		for _, p := range []party{a, b, c} {
			p.run(t)
		}
		synctest.Wait()
		lost := a.second(t, 7)
		if err := a.dir.Spread(t.Context(), a.revoke(t, lost.Device, 7)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		for name, p := range map[string]party{"the account's own": a, "a neighbour": b, "a neighbour's neighbour": c} {
			if err := p.dir.Revoked(lost); !errors.Is(err, identity.ErrRevoked) || !errors.Is(err, identity.ErrPower) {
				t.Errorf("%s: %v", name, err)
			}
			if err := p.dir.Revoked(a.second(t, 8)); err != nil {
				t.Errorf("%s refuses a newer delegation: %v", name, err)
			}
		}
		late := joinParty(t, net)
		late.run(t)
		meet(t, late, a)
		synctest.Wait()
		if err := late.dir.Revoked(lost); !errors.Is(err, identity.ErrRevoked) {
			t.Errorf("one that came later: %v", err)
		}
		own, err := identity.OpenDelegation(a.dev.Delegation())
		if err != nil || a.dir.Self() != nil || late.dir.Revoked(own) != nil {
			t.Error("the device that stayed is revoked, too", err)
		}
	})
}

// TestRevocationRules is what a revocation can't do.
func TestRevocationRules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := p2ptest.NewNet(t)
		a, b := joinParty(t, net), joinParty(t, net)
		net.Mesh()
		lost := a.second(t, 7)
		learn := func(raw []byte) (bool, error) { return b.dir.Learn(t.Context(), raw) }
		if news, err := learn(b.revoke(t, lost.Device, 9)); err != nil || !news {
			t.Fatal(news, err)
		}
		if err := b.dir.Revoked(lost); err != nil {
			t.Errorf("another account's revocation counts: %v", err)
		}
		if news, err := learn(a.dev.Delegation()); err == nil || news {
			t.Errorf("a delegation is taken for a revocation: %v %v", news, err)
		}
		if news, err := learn(a.revoke(t, lost.Device, 7)); err != nil || !news {
			t.Fatal(news, err)
		}
		for _, serial := range []uint64{7, 3} {
			if news, err := learn(a.revoke(t, lost.Device, serial)); err != nil || news {
				t.Errorf("serial %d after 7 is news: %v", serial, err)
			}
		}
		if err := b.dir.Revoked(lost); !errors.Is(err, identity.ErrRevoked) {
			t.Errorf("a lower revocation undid a higher one: %v", err)
		}
		// What is asked about comes with what is revoked of its account, and of the answerer's.
		if _, err := b.dir.Lookup(t.Context(), a.Self(), a.dev.DelegationHash()); err != nil {
			t.Fatal(err)
		}
		var got Answer
		if err := p2p.Call(t.Context(), a, b.Self(), proto, Ask{Hashes: []wire.Hash{a.dev.DelegationHash()}}, &got, maxMessage); err != nil {
			t.Fatal(err)
		}
		if len(got.Revocations) != 2 || len(got.Delegations) != 1 {
			t.Errorf("answered %d delegations, %d revocations", len(got.Delegations), len(got.Revocations))
		}
	})
}

// TestRevocationFlood: a peer tells a bounded number, and those that were dealt with are never pushed out.
func TestRevocationFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := p2ptest.NewNet(t)
		a, b := joinParty(t, net), joinParty(t, net)
		net.Mesh()
		k := &keeper{accounts: map[identity.AccountID]bool{a.dev.Account(): true}}
		if err := b.dir.Remember(t.Context(), k); err != nil {
			t.Fatal(err)
		}
		lost := a.second(t, 7)
		if _, err := b.dir.Learn(t.Context(), a.revoke(t, lost.Device, 7)); err != nil {
			t.Fatal(err)
		}
		flood := make([][]byte, MaxRevocations+1)
		for i := range flood {
			flood[i] = a.revoke(t, identity.PeerID{byte(i), 9}, 1)
		}
		var got Answer
		if err := p2p.Call(t.Context(), a, b.Self(), proto, Ask{Revocations: flood}, &got, 1<<20); p2p.KindOf(err) != p2p.KindBadRequest {
			t.Errorf("too many at once: %v", err)
		}
		taken := 0
		for range 5 {
			_, account, _ := ed25519.GenerateKey(nil)
			var list [][]byte
			for i := range MaxRevocations {
				raw, _ := identity.Revoke(account, identity.PeerID{byte(i)}, 1, 0)
				list = append(list, raw)
			}
			if err := p2p.Call(t.Context(), a, b.Self(), proto, Ask{Revocations: list}, &got, maxMessage); err != nil {
				t.Fatal(err)
			}
			taken = b.dir.revoked.heard.Len()
		}
		if taken == 0 || taken > revocationBurst {
			t.Errorf("%d were taken of one peer, want at most %d", taken, revocationBurst)
		}
		for i := range 2 * heardRevocations { // as learned: their signatures are not looked at again
			account := identity.AccountID{byte(i), byte(i >> 8), 1}
			b.dir.revoked.put(revoked{r: identity.Revocation{Header: identity.Header{Account: account}, Serial: 1}}, false)
		}
		if err := b.dir.Revoked(lost); !errors.Is(err, identity.ErrRevoked) {
			t.Errorf("a flood of strangers' made it forget: %v", err)
		}
		if n := b.dir.revoked.heard.Len(); n != heardRevocations {
			t.Errorf("%d are remembered", n)
		}
		// The next process knows it, too.
		again, err := New(b.Node, proto, b.dev)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(again.Remember(t.Context(), k)); err != nil {
			t.Fatal(err)
		}
		if err := again.Revoked(lost); !errors.Is(err, identity.ErrRevoked) {
			t.Errorf("after a restart: %v", err)
		}
	})
}

// TestRevocationNotStored: a higher revocation counts although it could not be stored, and is news no more.
func TestRevocationNotStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := p2ptest.NewNet(t)
		a, b := joinParty(t, net), joinParty(t, net)
		k := &keeper{accounts: map[identity.AccountID]bool{a.dev.Account(): true}}
		if err := b.dir.Remember(t.Context(), k); err != nil {
			t.Fatal(err)
		}
		again := a.second(t, 8)
		if _, err := b.dir.Learn(t.Context(), a.revoke(t, again.Device, 7)); err != nil {
			t.Fatal(err)
		}
		k.full = errors.New("disk full")
		higher := a.revoke(t, again.Device, 8)
		if news, err := b.dir.Learn(t.Context(), higher); !news || !errors.Is(err, k.full) {
			t.Fatal(news, err)
		}
		if err := b.dir.Revoked(again); !errors.Is(err, identity.ErrRevoked) {
			t.Errorf("it does not count: %v", err)
		}
		if news, err := b.dir.Learn(t.Context(), higher); news || err != nil {
			t.Errorf("it is news again: %v", err)
		}
	})
}

// TestRevocationOfALaterPartner: what was heard of a stranger is kept for ever once he is dealt with.
func TestRevocationOfALaterPartner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := p2ptest.NewNet(t)
		a, b := joinParty(t, net), joinParty(t, net)
		k := &keeper{accounts: map[identity.AccountID]bool{}}
		if err := b.dir.Remember(t.Context(), k); err != nil {
			t.Fatal(err)
		}
		if _, err := b.dir.Learn(t.Context(), a.revoke(t, identity.PeerID{1}, 7)); err != nil || len(k.list) != 0 {
			t.Fatal(len(k.list), err)
		}
		k.accounts[a.dev.Account()] = true
		if err := b.dir.Dealt(t.Context(), a.dev.Account()); err != nil || len(k.list) != 1 || b.dir.revoked.heard.Len() != 0 {
			t.Error(len(k.list), err)
		}
	})
}

// keeper keeps revocations of some accounts.
type keeper struct {
	accounts map[identity.AccountID]bool
	full     error

	mu   sync.Mutex
	list [][]byte // guarded by mu
}

func (k *keeper) KeepRevocation(_ context.Context, raw []byte) (bool, error) {
	r, err := identity.OpenRevocation(raw)
	if err != nil || !k.accounts[r.Account] {
		return false, err
	}
	if k.full != nil {
		return false, k.full
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.list = append(k.list, raw)
	return true, nil
}

func (k *keeper) Revocations(context.Context) ([][]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.list, nil
}

func meet(t *testing.T, a, b party) {
	t.Helper()
	if err := a.Connect(t.Context(), p2p.PeerAddr{Peer: b.Self(), Addrs: b.Addrs()}); err != nil {
		t.Fatal(err)
	}
}
