package settle

import (
	"context"
	"maps"
	"math/rand/v2"
	"time"

	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/p2p/identity"
)

// When peers are asked about their logs. Only connected ones are: who is away is asked when it is back.
const (
	lookEvery  = 20 * time.Second // which peers are due
	checkEvery = 10 * time.Minute // a peer whose records keep coming
	retryFirst = time.Minute      // after a failure; twice as long after each further one
	retryMost  = time.Hour
	maxSoon    = 1024 // peers waiting to be asked without delay; they are due by the clock anyway
)

// failure is that of the last tries with a peer.
type failure struct {
	until time.Time
	pause time.Duration
}

// Soon has a peer asked without delay, as after a settlement. It returns at once.
func (w *Witness) Soon(peer identity.PeerID) {
	w.mu.Lock()
	if len(w.soon) < maxSoon {
		w.soon[peer] = true
	}
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Run asks connected peers about their logs until ctx ends: when they connect (so that a ledger that was restored learns soon what it
// lacks), after a settlement, when a lane with them has ended, and every ten minutes while their records keep coming, each a little off so
// that not all of them come at once. A failure is logged once, until the next success.
func (w *Witness) Run(ctx context.Context) error {
	for {
		timer := time.NewTimer(jitter(lookEvery))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-w.wake:
			timer.Stop()
		case <-timer.C:
		}
		w.look(ctx)
	}
}

// jitter is d, up to a tenth shorter or longer.
func jitter(d time.Duration) time.Duration { return d - d/10 + rand.N(d/5) }

// look asks every connected peer that is due.
func (w *Witness) look(ctx context.Context) {
	w.mu.Lock()
	soon := w.soon
	w.soon = map[identity.PeerID]bool{}
	w.mu.Unlock()
	connected := map[identity.PeerID]bool{}
	for _, p := range w.c.Network.Peers() {
		connected[p.Peer] = true
	}
	maps.DeleteFunc(w.failed, func(peer identity.PeerID, f failure) bool { return !connected[peer] && time.Now().After(f.until) })
	maps.DeleteFunc(w.met, func(peer identity.PeerID, _ bool) bool { return !connected[peer] })
	for peer := range connected {
		if ctx.Err() != nil {
			return
		}
		if due, err := w.due(ctx, peer, soon[peer]); err != nil {
			w.c.Log.Warn("not known whether a peer's ledger is to be checked", "peer", peer.Short(), "err", err)
		} else if due {
			w.try(ctx, peer)
		}
	}
}

// due reports whether a peer is to be asked now.
func (w *Witness) due(ctx context.Context, peer identity.PeerID, soon bool) (due bool, err error) {
	if time.Now().Before(w.failed[peer].until) {
		return false, nil
	}
	if soon || !w.met[peer] {
		return true, nil
	}
	err = w.c.Books.View(ctx, func(r *books.Reader) (err error) {
		due, err = r.Due(peer, time.Now(), jitter(checkEvery))
		return err
	})
	return due, err
}

// try asks a peer and notes how it went.
func (w *Witness) try(ctx context.Context, peer identity.PeerID) {
	err := w.Ask(ctx, peer)
	if ctx.Err() != nil {
		return
	}
	f, again := w.failed[peer]
	if err == nil {
		delete(w.failed, peer)
		w.met[peer] = true
		return
	}
	f.pause = min(max(2*f.pause, retryFirst), retryMost)
	f.until = time.Now().Add(jitter(f.pause))
	w.failed[peer] = f
	if !again {
		w.c.Log.Warn("a peer's ledger was not checked; tried again later", "peer", peer.Short(), "err", err)
	}
}
