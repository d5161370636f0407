package settle_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/settle"
	"github.com/gpufair/gpufair/ledger/statement"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
)

const recovering = p2p.Protocol("/gpufair/test/recover/1.0.0")

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// recovery serves the conversation for a side and gives it.
func (s side) recovery(t *testing.T, known ...side) *settle.Recovery {
	t.Helper()
	r, err := settle.NewRecovery(settle.RecoveryConfig{
		Network: s.net, Protocol: recovering, Books: s.books, Log: quiet,
		Peer: func(_ context.Context, a identity.AccountID) (identity.PeerID, error) {
			for _, k := range known {
				if k.dev.Account() == a {
					return k.dev.Peer(), nil
				}
			}
			return identity.PeerID{}, errors.New("never met")
		},
	})
	must(t, err)
	s.net.Handle(recovering, settle.RecoverLimits(), r.Handler())
	return r
}

// lost gives the side with a ledger of which nothing is left but who it dealt with, if known.
func (s side) lost(t *testing.T, known bool) side {
	t.Helper()
	schema := kv.Schema{Release: "v0.0.1", Steps: []kv.Step{{Number: 1, Name: "first", Run: func(context.Context, *kv.Txn) error { return nil }}}}
	engine := &kv.Memory{}
	store, err := kv.Open(t.Context(), engine, schema)
	must(t, err)
	if known {
		b, err := books.Open(t.Context(), books.Config{Dir: t.TempDir(), Store: store, Device: s.dev, Log: quiet})
		must(t, err)
		must(t, b.Update(t.Context(), func(tx *books.Tx) error {
			return s.books.View(t.Context(), func(r *books.Reader) error {
				totals, err := r.Totals()
				for _, v := range totals {
					err = errors.Join(err, tx.SetLimit(v.Peer, v.Unit, nil))
				}
				return err
			})
		}))
		must(t, b.Close())
	}
	_, err = books.NewEpoch(t.Context(), store, s.dev, 0, time.Now())
	must(t, err)
	s.books, err = books.Open(t.Context(), books.Config{Dir: t.TempDir(), Store: store, Device: s.dev, Log: quiet})
	must(t, err)
	t.Cleanup(func() { s.books.Close() })
	return s
}

// TestRecover: everything comes back over the network, page by page, on both sides.
func TestRecover(t *testing.T) {
	for name, renterLost := range map[string]bool{"renter": true, "provider": false} {
		synctest.Test(t, func(t *testing.T) {
			_, renter, provider := world(t, always(settle.Accept))
			c := owe(t, renter, provider, 11, 1000)
			_, state, err := renter.Settle(t.Context(), provider.dev.Peer(), books.Payment{Channel: c, Amount: 4000, Method: "manual"})
			if err != nil || state != books.Signed {
				t.Fatal(state, err)
			}
			same(t, renter, provider, 7000, 4000)
			back, other := &renter, provider
			if !renterLost {
				back, other = &provider, renter
			}
			other.recovery(t)
			*back = back.lost(t, true)
			r := back.recovery(t, other)
			got, err := r.AskAll(t.Context())
			must(t, err)
			if len(got) != 1 || got[0].Result != statement.Found || got[0].Leases != 11 || got[0].Settlements != 1 {
				t.Errorf("%s: %+v", name, got)
			}
			same(t, renter, provider, 7000, 4000)
			if got, err := r.AskAll(t.Context()); err != nil || len(got) != 0 {
				t.Errorf("%s: asked again: %+v, %v", name, got, err)
			}
			f, err := r.Ask(t.Context(), other.dev.Peer())
			if err != nil || f.Lanes+f.Settlements != 0 || f.Unchanged != 12 {
				t.Errorf("%s: a repeat: %+v, %v", name, f, err)
			}
		})
	}
}

// TestRecoverByItself: the daemon asks again when the peer is back, and also whom the backup did not know.
func TestRecoverByItself(t *testing.T) {
	for name, known := range map[string]bool{"a known peer": true, "one that the backup does not know": false} {
		synctest.Test(t, func(t *testing.T) {
			n, renter, provider := world(t, nil)
			c := owe(t, renter, provider, 3, 1000)
			must(t, renter.Exchange(t.Context(), provider.dev.Peer(), c))
			provider.recovery(t)
			n.Partition(renter.dev.Peer(), provider.dev.Peer())
			renter = renter.lost(t, known)
			r := renter.recovery(t, provider)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error)
			go func() { done <- r.Run(ctx) }()
			synctest.Wait()
			if a := renter.account(t, ledger.AsRenter, provider); a.Owed != 0 {
				t.Errorf("%s: %+v while nobody answers", name, a)
			}
			n.Heal(renter.dev.Peer(), provider.dev.Peer())
			n.Mesh()
			time.Sleep(5 * time.Minute)
			synctest.Wait()
			same(t, renter, provider, 3000, 0)
			cancel()
			must(t, <-done)
		})
	}
}

// TestRecoverFromLiars: what a peer makes up is not taken, it is said, and the peer is not done with.
func TestRecoverFromLiars(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, renter, provider := world(t, nil)
		other := newSide(t, n, 1<<30, nil)
		n.Mesh()
		c := owe(t, renter, provider, 2, 1000)
		must(t, renter.Exchange(t.Context(), provider.dev.Peer(), c))
		elsewhere := newSide(t, n, 1<<30, nil)
		owe(t, other, elsewhere, 1, 5000)
		var mine, theirs []books.LaneCopy
		must(t, provider.books.View(t.Context(), func(r *books.Reader) (err error) {
			p, err := r.Copies(renter.dev.Account(), nil, 9)
			mine = p.Lanes
			return err
		}))
		must(t, elsewhere.books.View(t.Context(), func(r *books.Reader) (err error) {
			p, err := r.Copies(other.dev.Account(), nil, 9)
			theirs = p.Lanes
			return err
		}))
		renter = renter.lost(t, true)
		r := renter.recovery(t, provider)
		answer := func(a settle.RecoverAnswer) {
			provider.net.Handle(recovering, settle.RecoverLimits(), p2p.Answer(1<<20, func(context.Context, identity.PeerID, settle.RecoverAsk) (settle.RecoverAnswer, error) {
				return a, nil
			}))
		}
		own := provider.dev.Delegation()
		for name, a := range map[string]settle.RecoverAnswer{
			"another's lane":       {Delegation: own, Lanes: theirs},
			"one of ours among it": {Delegation: own, Lanes: append(theirs[:1:1], mine[0])},
			"another's delegation": {Delegation: other.dev.Delegation(), Lanes: mine},
			"no delegation":        {Lanes: mine},
			"too much at once":     {Delegation: own, Lanes: append(append(mine[:2:2], mine...), mine...)},
			"no end":               {Delegation: own, Lanes: mine[:1], Place: []byte("s")},
		} {
			answer(a)
			got, err := r.AskAll(t.Context())
			must(t, err)
			if len(got) != 1 || got[0].Result == statement.Unchanged || got[0].Detail == "" {
				t.Errorf("%s: %+v", name, got)
			}
			v, err := renter.books.Verify(t.Context())
			must(t, err)
			if v.Result != books.ResultOK {
				t.Errorf("%s: %+v", name, v)
			}
		}
		if a := renter.account(t, ledger.AsRenter, provider); a.Owed != 1000 {
			t.Errorf("%d owed, want the 1000 of the one lane that was ours", a.Owed)
		}
		answer(settle.RecoverAnswer{Delegation: own, Lanes: mine})
		if got, err := r.AskAll(t.Context()); err != nil || len(got) != 1 || got[0].Result != statement.Found {
			t.Errorf("the truth: %+v, %v", got, err)
		}
		same(t, renter, provider, 2000, 0)
	})
}

// TestRecoverIsOwn: a device hears what is of its own account, and nothing else.
func TestRecoverIsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, renter, provider := world(t, nil)
		stranger := newSide(t, n, 0, nil)
		n.Mesh()
		c := owe(t, renter, provider, 2, 1000)
		must(t, renter.Exchange(t.Context(), provider.dev.Peer(), c))
		provider.recovery(t)
		for name, x := range map[string]struct {
			from  side
			ask   settle.RecoverAsk
			kind  p2p.Kind
			lanes int
		}{
			"its own":              {renter, settle.RecoverAsk{Delegation: renter.dev.Delegation()}, 0, 2},
			"a stranger":           {stranger, settle.RecoverAsk{Delegation: stranger.dev.Delegation()}, 0, 0},
			"another's delegation": {stranger, settle.RecoverAsk{Delegation: renter.dev.Delegation()}, p2p.KindForbidden, 0},
			"no delegation":        {renter, settle.RecoverAsk{}, p2p.KindBadRequest, 0},
			"a long place":         {renter, settle.RecoverAsk{Delegation: renter.dev.Delegation(), Place: make([]byte, 99)}, p2p.KindBadRequest, 0},
			"a strange place":      {renter, settle.RecoverAsk{Delegation: renter.dev.Delegation(), Place: []byte("zz")}, 0, 0},
		} {
			synctest.Wait() // the last stream is over
			var got settle.RecoverAnswer
			err := p2p.Call(t.Context(), x.from.net, provider.dev.Peer(), recovering, x.ask, &got, 1<<20)
			if kind := p2p.KindOf(err); kind != x.kind || len(got.Lanes) != x.lanes {
				t.Errorf("%s: %d lanes, kind %v, %v", name, len(got.Lanes), kind, err)
			}
		}
	})
}
