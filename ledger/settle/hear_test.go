package settle_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/meter"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/settle"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/p2ptest"
)

const payProtocol = p2p.Protocol("/gpufair/test/pay/1.0.0")

// putBack is a renter whose whole folder was copied, went on, and was put back: its provider has more of it than it has itself.
func putBack(t *testing.T) (old, provider *keeper) {
	t.Helper()
	n, renter, provider := twoKeepers(t)
	must(t, renter.Ask(t.Context(), provider.dev.Peer()))
	engine, dir := renter.copied()
	voucherFor(renter, provider, 1, 40, 50) // a voucher carries the head of before its own entry
	renter.net.(*p2ptest.Node).Close()
	old = newKeeper(t, n.Join(renter.dev), renter.dev, engine, dir)
	n.Mesh()
	return old, provider
}

// pay signs a voucher, as for a beat of a lease.
func (k *keeper) pay(ctx context.Context, amount money.Micro) (v []byte, err error) {
	err = k.books.Update(ctx, func(tx *books.Tx) (err error) {
		v, err = tx.SignVoucher(ledger.Lane{1}, amount, []meter.Segment{{Rate: 3_600_000, Devices: 1, Ms: uint64(amount)}})
		return err
	})
	return v, err
}

// honest checks that k was found behind, and that other holds nothing against it, now and when it asks.
func (k *keeper) honest(other *keeper, when string) {
	k.t.Helper()
	if err := k.books.ReadOnly(); !errors.Is(err, books.ErrBehind) {
		k.t.Errorf("%s: %v", when, err)
	}
	_ = other.Ask(k.t.Context(), k.dev.Peer()) // that it is refused is a suspicion at most
	_ = k.Ask(k.t.Context(), other.dev.Peer())
	if w := other.about(k); w.Fork != nil {
		k.t.Errorf("%s: who put a copy back is proven a forger: %+v", when, w)
	}
}

// TestPutBackAsked: a folder was copied and put back, and before anything else a peer asks for something that its ledger books and signs.
func TestPutBackAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old, provider := putBack(t)
		dealing := old.Guard([]p2p.Protocol{payProtocol}, nil)
		dealing.Handle(payProtocol, p2p.Limits{}, p2p.Answer(1<<16, func(ctx context.Context, _ identity.PeerID, amount money.Micro) ([]byte, error) {
			return old.pay(ctx, amount)
		}))
		var v []byte
		if err := p2p.Call(t.Context(), provider.net, old.dev.Peer(), payProtocol, money.Micro(60), &v, 1<<16); err == nil {
			t.Error("a voucher was signed")
			_ = provider.books.Update(t.Context(), func(tx *books.Tx) error { _, err := tx.AcceptVoucher(v, [32]byte{1}); return err })
		}
		old.honest(provider, "asked by its peer")
	})
}

// TestPutBackActs: the copy booked something by itself before it met anybody. Neither is that sent, nor does it give its own head of a size
// of which the peer has another.
func TestPutBackActs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old, provider := putBack(t)
		dealing := old.Guard([]p2p.Protocol{payProtocol}, nil)
		var sent atomic.Bool
		provider.net.Handle(payProtocol, p2p.Limits{}, func(context.Context, p2p.Stream) error { sent.Store(true); return nil })
		_, err := old.pay(t.Context(), 60)
		must(t, err)
		var got int
		err = p2p.Call(t.Context(), dealing, provider.dev.Peer(), payProtocol, 1, &got, 64)
		if !errors.Is(err, books.ErrBehind) {
			t.Errorf("it sent what it had signed: %v", err)
		}
		synctest.Wait()
		if sent.Load() {
			t.Error("a stream was opened")
		}
		old.honest(provider, "when it acted first")
		engine, dir := old.copied()
		again := newKeeper(t, old.net, old.dev, engine, dir)
		again.honest(provider, "after a restart")
	})
}

// TestPutBackOldPeer: a peer of a release before says what it holds only to those who show a head of its own.
func TestPutBackOldPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old, provider := putBack(t)
		provider.net.Handle(witnessProtocol, settle.WitnessLimits(), p2p.Answer(1<<16, func(ctx context.Context, from identity.PeerID, q settle.Heads) (out settle.Heads, err error) {
			if len(q.Known) == 0 {
				return out, p2p.Errorf(p2p.KindBadRequest, "neither heads of this log nor one of the asker's")
			}
			err = provider.books.View(ctx, func(r *books.Reader) (err error) { out.Known, err = r.Known(from); return err })
			return out, err
		}))
		if err := old.Hear(t.Context(), provider.dev.Peer()); !errors.Is(err, books.ErrBehind) {
			t.Errorf("%v", err)
		}
	})
}

// TestUnheard: whoever can't or won't say what it holds is dealt with all the same, and is asked once.
func TestUnheard(t *testing.T) {
	for name, answer := range map[string]func(ctx context.Context) error{
		"knows no such question": func(context.Context) error { return p2p.Errorf(p2p.KindBadRequest, "what?") },
		"refuses":                func(context.Context) error { return p2p.Errorf(p2p.KindForbidden, "no") },
		"is silent":              func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
		"is busy":                func(context.Context) error { return p2p.Errorf(p2p.KindBusy, "later") },
		"is read-only":           func(context.Context) error { return p2p.Errorf(p2p.KindUnavailable, "later") },
	} {
		synctest.Test(t, func(t *testing.T) {
			n := p2ptest.NewNet(t)
			us, peer := fresh(t, n), fresh(t, n)
			n.Mesh()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var asked atomic.Int32
			peer.net.Handle(witnessProtocol, p2p.Limits{}, p2p.Answer(1<<16, func(context.Context, identity.PeerID, settle.Heads) (settle.Heads, error) {
				asked.Add(1)
				return settle.Heads{}, answer(ctx)
			}))
			peer.net.Handle(payProtocol, p2p.Limits{}, p2p.Answer(64, func(_ context.Context, _ identity.PeerID, n int) (int, error) { return 2 * n, nil }))
			dealing := us.Guard([]p2p.Protocol{payProtocol}, nil)
			var got int
			var first int32
			for i := range 3 {
				if err := p2p.Call(t.Context(), dealing, peer.dev.Peer(), payProtocol, 21, &got, 64); err != nil || got != 42 {
					t.Errorf("%s: %d, %v", name, got, err)
				}
				if i == 0 {
					first = asked.Load()
				}
			}
			if n := asked.Load(); n == 0 || n != first {
				t.Errorf("%s: asked %d times, %d of them at first", name, n, first)
			}
			cancel()
		})
	}
}
