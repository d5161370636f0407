package announce

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gpufair/gpufair/market/book"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/p2ptest"
)

// wary is a board that knows devices which were let go. stop ends it and waits.
func wary(t *testing.T, net *p2ptest.Net, gone func(identity.Header) bool) (board *Board, stop func()) {
	t.Helper()
	offers, err := book.New(book.Config{})
	if err != nil {
		t.Fatal(err)
	}
	node := net.Join(p2ptest.Device(t))
	board, err = New(node, offers, Config{Network: "test", Log: slog.New(slog.DiscardHandler), Revoked: func(h identity.Header, delegation []byte) error {
		d, err := identity.OpenDelegation(delegation)
		if err != nil || d.Device != h.Device {
			t.Errorf("asked about %s with a delegation of %s: %v", h.Device.Short(), d.Device.Short(), err)
		}
		if gone(h) {
			return errors.New("let go")
		}
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var g errgroup.Group
	g.Go(func() error { return board.Run(ctx) })
	return board, func() {
		node.Close()
		cancel()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	}
}

// TestRevoked: the offer of a device that its account let go leaves the book soon, and comes back by no way: gossip, another's book or a
// heartbeat. Once it is let in again it is shown again.
func TestRevoked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := p2ptest.NewNet(t)
		owner := newMachine(t, net, p2ptest.Device(t), &seqStore{})
		unaware := newMachine(t, net, p2ptest.Device(t), nil)
		var gone atomic.Bool
		board, stop := wary(t, net, func(h identity.Header) bool { return gone.Load() && h.Device == owner.dev.Peer() })
		offers := board.Book()
		after(time.Second)
		net.Mesh()
		after(5 * time.Second)
		if err := owner.pub.Set(offer(owner.dev)); err != nil {
			t.Fatal(err)
		}
		shown := func() bool { _, ok := offers.Get(owner.dev.Peer(), time.Now()); return ok }
		after(5 * time.Second)
		if !shown() {
			t.Fatal("the offer did not come")
		}
		gone.Store(true)
		after(expireEvery + time.Second)
		if shown() {
			t.Error("the offer of a revoked device is shown")
		}
		o := offer(owner.dev)
		o.Lots[0].Price++
		if err := owner.pub.Set(o); err != nil {
			t.Fatal(err)
		}
		never := func(how string, d time.Duration) {
			t.Helper()
			for range d / (100 * time.Millisecond) {
				if after(100 * time.Millisecond); shown() {
					t.Fatal(how, "brought it back")
				}
			}
		}
		never("gossip", 20*time.Second)
		if e, ok := unaware.sees(owner.dev); !ok || e.Lots[0].Price != o.Lots[0].Price {
			t.Fatal("nobody else has the new offer")
		}
		if _, err := board.Sync(t.Context(), unaware.dev.Peer()); err != nil || shown() {
			t.Errorf("another's book brought it back, or %v", err)
		}
		never("a heartbeat", 2*time.Minute)
		if _, ok := unaware.sees(owner.dev); !ok {
			t.Error("nobody else has it")
		}
		gone.Store(false)
		if _, err := board.Sync(t.Context(), unaware.dev.Peer()); err != nil || !shown() {
			t.Errorf("let in again, it is not shown: %v", err)
		}
		gone.Store(true)
		if _, err := board.Probe(t.Context(), owner.dev.Peer()); err == nil || shown() {
			t.Errorf("a search shows it before the book is looked through: %v", err)
		}
		stop()
		for _, m := range []*machine{owner, unaware} {
			m.stop()
			m.node.Close()
		}
	})
}
