package settle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
)

// A store that was put back from an older copy looks whole: only those whom the device dealt with since know better. So each peer is
// heard once in the life of a process, before anything is booked for it or signed and sent to it: it says which heads of this ledger it
// holds. One that this ledger has not makes it behind, and read-only, while that is all that has happened. Had it signed a head of the
// same size first, the peer would hold the proof that the device keeps two histories.
const (
	hearWithin = 10 * time.Second       // then it is dealt with unheard, until it is asked again after retryFirst
	busyFirst  = 200 * time.Millisecond // before a busy peer is asked again; twice as long each time
	maxHeard   = 4096                   // peers; beyond that all are heard anew
)

// hearing is what one peer said of this ledger.
type hearing struct {
	slot  chan struct{} // holds a token while the peer is asked; guards the fields below
	heard bool          // it said what it holds, or it is not going to
	again time.Time     // when it is asked again, after it gave no answer
}

// Hear asks peer, once in the life of this process, which heads of this ledger it holds. The error wraps [books.ErrBehind] where the ledger
// is behind what it signed, found now or before; else it is that of ctx, or [p2p.ErrUnreachable]. A peer that does not answer, or of a
// release that can't, is no error.
func (w *Witness) Hear(ctx context.Context, peer identity.PeerID) error {
	h := w.hearing(peer)
	select {
	case h.slot <- struct{}{}:
	case <-ctx.Done():
		return w.about(peer, context.Cause(ctx))
	}
	defer func() { <-h.slot }()
	if !h.heard && time.Now().After(h.again) {
		err := w.listen(ctx, peer)
		switch {
		case ctx.Err() != nil:
			return w.about(peer, context.Cause(ctx))
		case errors.Is(err, p2p.ErrUnreachable):
			return w.about(peer, err)
		case err == nil || !passing(err):
			h.heard = true
		default:
			h.again = time.Now().Add(retryFirst)
			w.c.Log.Info("a peer did not say what it holds of this ledger", "peer", peer.Short(), "err", err)
		}
	}
	if err := w.c.Books.ReadOnly(); errors.Is(err, books.ErrBehind) {
		return w.about(peer, err)
	}
	return nil
}

func (w *Witness) hearing(peer identity.PeerID) *hearing {
	w.mu.Lock()
	defer w.mu.Unlock()
	h := w.hearings[peer]
	if h == nil {
		if len(w.hearings) >= maxHeard {
			clear(w.hearings)
		}
		h = &hearing{slot: make(chan struct{}, 1)}
		w.hearings[peer] = h
	}
	return h
}

// listen asks peer for its heads of this ledger and compares them. What it says that is none of this device is no word at all.
func (w *Witness) listen(ctx context.Context, peer identity.PeerID) error {
	ctx, cancel := context.WithTimeout(ctx, hearWithin)
	defer cancel()
	got, err := w.call(ctx, peer, Heads{})
	for pause := busyFirst; kindOf(err) == p2p.KindBusy; pause *= 2 {
		select {
		case <-ctx.Done():
		case <-time.After(pause):
			got, err = w.call(ctx, peer, Heads{})
		}
		if ctx.Err() != nil {
			break
		}
	}
	if kindOf(err) == p2p.KindBadRequest { // of a release that says it only to those who hold a head of its own
		var known [][]byte
		err = w.c.Books.View(ctx, func(r *books.Reader) (err error) { known, err = r.Known(peer); return err })
		if err != nil || len(known) == 0 {
			return err
		}
		got, err = w.call(ctx, peer, Heads{Known: known})
	}
	switch {
	case err == nil:
		_, err = w.standing(ctx, got.Known)
	case ctx.Err() != nil: // whatever the network calls it
		err = context.Cause(ctx)
	}
	return err
}

// kindOf is the kind that the peer gave, KindOK where the error is not its own.
func kindOf(err error) p2p.Kind {
	var told *p2p.Error
	if errors.As(err, &told) {
		return told.Kind
	}
	return p2p.KindOK
}

// passing says that a peer that gave no answer may give one later.
func passing(err error) bool {
	if kind := kindOf(err); kind != p2p.KindOK {
		return !slices.Contains([]p2p.Kind{p2p.KindBadRequest, p2p.KindRefused, p2p.KindForbidden, p2p.KindConflict}, kind)
	}
	return !errors.Is(err, p2p.ErrUnsupported) && !errors.Is(err, books.ErrBehind) && !malformed(err)
}

// Guard is the network for all conversations that money depends on: on them no peer is dealt with before it was heard ([Witness.Hear]).
// Those of signed carry what this device signs with the head of its ledger; none of them is opened by a ledger that is behind. Those of
// rest may make it book something. On others it is the network as it is.
func (w *Witness) Guard(signed, rest []p2p.Protocol) p2p.Network {
	return &guard{Network: w.c.Network, w: w, signed: signed, rest: rest}
}

type guard struct {
	p2p.Network
	w            *Witness
	signed, rest []p2p.Protocol
}

// Handle serves peers once they were heard. What a ledger that is behind may still answer is the handler's to know: nothing is written.
func (g *guard) Handle(protocol p2p.Protocol, limits p2p.Limits, h p2p.Handler) {
	signed := slices.Contains(g.signed, protocol)
	if !signed && !slices.Contains(g.rest, protocol) {
		g.Network.Handle(protocol, limits, h)
		return
	}
	g.Network.Handle(protocol, limits, func(ctx context.Context, s p2p.Stream) error {
		if err := g.w.Hear(ctx, s.Peer()); err != nil && ctx.Err() != nil {
			return err
		}
		if signed {
			g.w.c.Books.Showed()
		}
		return h(ctx, s)
	})
}

// Open opens a stream once the peer was heard.
func (g *guard) Open(ctx context.Context, peer identity.PeerID, protocol p2p.Protocol) (p2p.Stream, error) {
	signed := slices.Contains(g.signed, protocol)
	if !signed && !slices.Contains(g.rest, protocol) {
		return g.Network.Open(ctx, peer, protocol)
	}
	if err := g.w.Hear(ctx, peer); err != nil && (signed || !errors.Is(err, books.ErrBehind)) {
		return nil, fmt.Errorf("open %s: %w", protocol, err)
	}
	if signed {
		g.w.c.Books.Showed()
	}
	return g.Network.Open(ctx, peer, protocol)
}
