package delegation

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/p2ptest"
	"github.com/gpufair/gpufair/p2p/wire"
)

const proto p2p.Protocol = "/gpufair/test/identity/1.0.0"

type node struct {
	*p2ptest.Node
	dev *identity.Device
	dir *Directory
}

func join(t *testing.T, net *p2ptest.Net) node {
	t.Helper()
	dev := p2ptest.Device(t)
	n := net.Join(dev)
	dir, err := New(n, proto, dev)
	if err != nil {
		t.Fatal(err)
	}
	n.Handle(proto, Limits(), dir.Handler())
	return node{Node: n, dev: dev, dir: dir}
}

// serve lets n answer with f and counts the questions.
func serve(n node, f func(Ask) Answer) *atomic.Int64 {
	var asked atomic.Int64
	n.Handle(proto, Limits(), p2p.Answer(maxMessage, func(_ context.Context, _ identity.PeerID, ask Ask) (Answer, error) {
		asked.Add(1)
		return f(ask), nil
	}))
	return &asked
}

func TestLookup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := p2ptest.NewNet(t)
		a, b := join(t, net), join(t, net)
		net.Mesh()
		own, err := a.dir.Lookup(t.Context(), b.Self(), a.dev.DelegationHash())
		if err != nil || own.Device != a.Self() {
			t.Errorf("own: %v %v", own, err)
		}
		if raw, ok := a.dir.Envelope(b.dev.DelegationHash()); ok {
			t.Errorf("known before it was asked for: %x", raw)
		}
		d, err := a.dir.Lookup(t.Context(), b.Self(), b.dev.DelegationHash())
		if err != nil || d.Device != b.Self() || d.Account != b.dev.Account() {
			t.Fatal(d, err)
		}
		if raw, ok := a.dir.Envelope(b.dev.DelegationHash()); !ok || identity.Hash(raw) != b.dev.DelegationHash() {
			t.Error("the envelope is not remembered")
		}
		b.Close()
		if _, err := a.dir.Lookup(t.Context(), b.Self(), b.dev.DelegationHash()); err != nil {
			t.Errorf("asked again: %v", err)
		}
		if _, err := a.dir.Lookup(t.Context(), b.Self(), wire.Hash{1}); !errors.Is(err, p2p.ErrUnreachable) {
			t.Errorf("from a peer that is gone: %v", err)
		}
	})
}

func TestLookupUnknownAndLies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := p2ptest.NewNet(t)
		a, b, c := join(t, net), join(t, net), join(t, net)
		net.Mesh()
		if _, err := a.dir.Lookup(t.Context(), b.Self(), wire.Hash{1}); !errors.Is(err, ErrUnknown) {
			t.Errorf("unknown: %v", err)
		}
		other := c.dev.Delegation()
		for name, f := range map[string]func(Ask) Answer{
			"another's":    func(Ask) Answer { return Answer{Delegations: [][]byte{other}} },
			"one too much": func(Ask) Answer { return Answer{Delegations: [][]byte{b.dev.Delegation(), other}} },
			"garbage":      func(Ask) Answer { return Answer{Delegations: [][]byte{{1, 2, 3}}} },
		} {
			serve(b, f)
			if _, err := a.dir.Lookup(t.Context(), b.Self(), b.dev.DelegationHash()); !errors.Is(err, ErrUnknown) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if _, ok := a.dir.Envelope(c.dev.DelegationHash()); ok {
			t.Error("what nobody asked for is remembered")
		}
		// Bytes that have the right hash but are no delegation.
		junk := []byte("junk")
		serve(b, func(Ask) Answer { return Answer{Delegations: [][]byte{junk}} })
		if _, err := a.dir.Lookup(t.Context(), b.Self(), identity.Hash(junk)); !errors.Is(err, identity.ErrSignature) {
			t.Errorf("junk: %v", err)
		}
	})
}

func TestManyLookupsAskOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := p2ptest.NewNet(t)
		a, b := join(t, net), join(t, net)
		net.Mesh()
		hold := make(chan struct{})
		asked := serve(b, func(Ask) Answer {
			<-hold
			return Answer{Delegations: [][]byte{b.dev.Delegation()}}
		})
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				if _, err := a.dir.Lookup(t.Context(), b.Self(), b.dev.DelegationHash()); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		close(hold)
		wg.Wait()
		if n := asked.Load(); n != 1 {
			t.Errorf("asked %d times", n)
		}
	})
}

// One caller that gives up must not cost the others their answer.
func TestOneGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := p2ptest.NewNet(t)
		a, b := join(t, net), join(t, net)
		net.Mesh()
		hold := make(chan struct{})
		serve(b, func(Ask) Answer {
			<-hold
			return Answer{Delegations: [][]byte{b.dev.Delegation()}}
		})
		ctx, cancel := context.WithCancel(t.Context())
		first, second := make(chan error, 1), make(chan error, 1)
		go func() {
			_, err := a.dir.Lookup(ctx, b.Self(), b.dev.DelegationHash())
			first <- err
		}()
		synctest.Wait()
		go func() {
			_, err := a.dir.Lookup(t.Context(), b.Self(), b.dev.DelegationHash())
			second <- err
		}()
		synctest.Wait()
		cancel()
		synctest.Wait()
		close(hold)
		if err := <-first; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if err := <-second; err != nil {
			t.Error(err)
		}
	})
}

func TestHandlerLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := p2ptest.NewNet(t)
		a, b := join(t, net), join(t, net)
		net.Mesh()
		for _, n := range []int{MaxHashes + 1} {
			var got Answer
			err := p2p.Call(t.Context(), a, b.Self(), proto, Ask{Hashes: make([]wire.Hash, n)}, &got, maxMessage)
			if p2p.KindOf(err) != p2p.KindBadRequest {
				t.Errorf("%d hashes: %v", n, err)
			}
		}
		var got Answer
		ask := Ask{Hashes: make([]wire.Hash, MaxHashes)}
		for i := range ask.Hashes {
			ask.Hashes[i] = b.dev.DelegationHash()
		}
		if err := p2p.Call(t.Context(), a, b.Self(), proto, ask, &got, maxMessage); err != nil || len(got.Delegations) != MaxHashes {
			t.Error(len(got.Delegations), err)
		}
	})
}

func TestAdd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := p2ptest.NewNet(t)
		a := join(t, net)
		account, _, dev, err := identity.Generate()
		if err != nil {
			t.Fatal(err)
		}
		d, h, err := a.dir.Add(dev.Delegation())
		if err != nil || h != dev.DelegationHash() || d.Device != dev.Peer() {
			t.Fatal(d, h, err)
		}
		if _, _, err := a.dir.Add(make([]byte, identity.MaxDelegation+1)); !errors.Is(err, wire.ErrTooLarge) {
			t.Error(err)
		}
		forged := append([]byte(nil), dev.Delegation()...)
		forged[len(forged)-1] ^= 1
		if _, _, err := a.dir.Add(forged); !errors.Is(err, identity.ErrSignature) {
			t.Error(err)
		}
		// Strangers' delegations are forgotten in time, the own one never.
		const size = 8
		if a.dir, err = newSized(a, proto, a.dev, size); err != nil {
			t.Fatal(err)
		}
		var first wire.Hash
		for i := range size + 1 {
			raw, err := identity.Delegate(account, dev.Peer(), uint64(i), identity.AllPowers, 1)
			if err != nil {
				t.Fatal(err)
			}
			if _, h, err = a.dir.Add(raw); err != nil {
				t.Fatal(err)
			}
			if i == 0 {
				first = h
			}
		}
		if _, ok := a.dir.Envelope(first); ok || a.dir.known.Len() != size {
			t.Errorf("%d are remembered", a.dir.known.Len())
		}
		if _, ok := a.dir.Envelope(a.dev.DelegationHash()); !ok {
			t.Error("the own delegation was forgotten")
		}
	})
}
