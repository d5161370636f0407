package p2p

import (
	"context"
	"sync"

	"github.com/gpufair/gpufair/p2p/identity"
)

// maxPending is how far a watcher may fall behind before its oldest news is dropped: ten times the connections of a machine.
const maxPending = 1024

type change struct {
	peer identity.PeerID
	up   bool
}

// Watchers tells functions of peers that come and go; a [Network] holds one. The zero value is ready. Safe for concurrent use.
type Watchers struct {
	mu  sync.Mutex
	up  map[identity.PeerID]bool // guarded by mu
	all map[*watcher]struct{}    // guarded by mu
}

type watcher struct {
	pending []change      // guarded by Watchers.mu
	wake    chan struct{} // capacity 1
}

// Set notes that peer is up or down and tells the watchers if that is news.
func (w *Watchers) Set(peer identity.PeerID, up bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.up[peer] == up {
		return
	}
	if w.up == nil {
		w.up = map[identity.PeerID]bool{}
	}
	if up {
		w.up[peer] = true
	} else {
		delete(w.up, peer)
	}
	for one := range w.all {
		one.add(change{peer, up})
	}
}

func (w *watcher) add(c change) {
	if len(w.pending) == maxPending {
		w.pending = w.pending[1:]
	}
	w.pending = append(w.pending, c)
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Watch fulfils [Network]'s Watch: it returns at once and calls f, one call at a time, first for each peer that is up already.
func (w *Watchers) Watch(ctx context.Context, f func(peer identity.PeerID, up bool)) {
	one := &watcher{wake: make(chan struct{}, 1)}
	w.mu.Lock()
	for peer := range w.up {
		one.add(change{peer, true})
	}
	if w.all == nil {
		w.all = map[*watcher]struct{}{}
	}
	w.all[one] = struct{}{}
	w.mu.Unlock()
	go func() {
		defer func() {
			w.mu.Lock()
			delete(w.all, one)
			w.mu.Unlock()
		}()
		for {
			select {
			case <-ctx.Done():
				return
			case <-one.wake:
			}
			w.mu.Lock()
			news := one.pending
			one.pending = nil
			w.mu.Unlock()
			for _, c := range news {
				if ctx.Err() != nil {
					return
				}
				f(c.peer, c.up)
			}
		}
	}()
}
