package settle

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
)

// How often those that did not answer are asked again, how many at a time, and how long after a restore everybody who connects is asked:
// of a counterparty that came after the backup nothing is here, not even its name.
const (
	recoverFirst = 15 * time.Second
	recoverMost  = time.Hour
	askAtOnce    = 4
	askStrangers = 30 * 24 * time.Hour
	maxStrangers = 4096 // of one process
)

// Run asks by itself, after a restore, until everybody has answered or was given up: at once, whenever one connects, and besides ever more
// seldom. It returns when ctx ends.
func (r *Recovery) Run(ctx context.Context) error {
	if r.c.Books.ReadOnly() != nil {
		<-ctx.Done() // nothing can be taken back before the store was rebuilt
		return nil
	}
	restored, err := r.restored(ctx)
	for err == nil && restored.IsZero() { // nothing was lost
		select {
		case <-ctx.Done():
			return nil
		case <-r.began:
		}
		restored, err = r.restored(ctx)
	}
	if err != nil {
		return err
	}
	r.c.Network.Watch(ctx, func(peer identity.PeerID, up bool) {
		if !up {
			return
		}
		select {
		case r.arrived <- peer:
		default: // it is asked with the others
		}
	})
	asked := map[identity.PeerID]bool{}
	for pause := recoverFirst; ; pause = min(2*pause, recoverMost) {
		if at, err := r.restored(ctx); err == nil && at.After(restored) { // a lost device was taken over: who was asked before is asked again
			restored, asked = at, map[identity.PeerID]bool{}
		}
		if _, err := r.AskAll(ctx); err != nil && ctx.Err() == nil {
			r.c.Log.Warn("ledger not recovered yet", "err", err)
		}
		r.follow(ctx, restored, identity.PeerID{})
		for _, p := range r.c.Network.Peers() {
			if !asked[p.Peer] {
				r.greets(ctx, p.Peer, restored, asked)
			}
		}
		if err := r.await(ctx, pause, restored, asked); err != nil {
			return nil
		}
	}
}

func (r *Recovery) restored(ctx context.Context) (at time.Time, err error) {
	err = r.c.Books.View(ctx, func(b *books.Reader) (err error) { at, err = b.Restored(); return err })
	return at, err
}

// await waits for the next round, and asks who connects meanwhile. The error is that of ctx.
func (r *Recovery) await(ctx context.Context, pause time.Duration, restored time.Time, asked map[identity.PeerID]bool) error {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
			return nil
		case <-r.began:
			return nil
		case peer := <-r.arrived:
			r.greets(ctx, peer, restored, asked)
		}
	}
}

// greets asks a peer that is connected.
func (r *Recovery) greets(ctx context.Context, peer identity.PeerID, restored time.Time, asked map[identity.PeerID]bool) {
	if err := r.greet(ctx, peer, restored, asked); err != nil && !errors.Is(err, p2p.ErrUnsupported) && ctx.Err() == nil {
		r.c.Log.Debug("asked who is connected", "peer", peer.Short(), "err", err)
	}
}

// greet asks a peer that connected: one of those that are waited for, or one that this process has not asked.
func (r *Recovery) greet(ctx context.Context, peer identity.PeerID, restored time.Time, asked map[identity.PeerID]bool) error {
	list, err := r.toAsk(ctx)
	if err != nil {
		return err
	}
	for _, p := range list {
		if device, err := r.c.Peer(ctx, p.Account); err == nil && device == peer {
			asked[peer] = true
			r.askAccount(ctx, p.Account)
			return nil
		}
	}
	r.follow(ctx, restored, peer)
	if asked[peer] || len(asked) == maxStrangers || time.Since(restored) > askStrangers {
		return nil
	}
	asked[peer] = true
	f, err := r.Ask(ctx, peer)
	r.skipped(f)
	if f.Lanes+f.Settlements > 0 {
		r.c.Log.Info("records recovered from a peer that the backup did not know", "account", f.Account.Short(), "leases", f.Lanes,
			"settlements", f.Settlements)
	}
	return err
}

// each calls f for each index, a few at a time, until ctx ends.
func each(ctx context.Context, n int, f func(int)) error {
	var g errgroup.Group
	g.SetLimit(askAtOnce)
	for i := range n {
		if ctx.Err() != nil {
			break
		}
		g.Go(func() error { f(i); return nil })
	}
	return errors.Join(g.Wait(), ctx.Err())
}
