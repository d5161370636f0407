package settle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/history"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Limits of the conversation about logs: a proof has 96 hashes at most, and there is one for each head that a peer holds.
const (
	maxExtension = 96*36 + voucher.MaxCheckpoint + 64                                                         // bytes
	maxHeads     = books.MaxKnown*(maxExtension+voucher.MaxCheckpoint+8) + 2*(voucher.MaxCheckpoint+8) + 1024 // bytes
	askWithin    = 30 * time.Second                                                                           // for one peer, both ways
)

// WitnessLimits is what the protocol may cost.
func WitnessLimits() p2p.Limits {
	return p2p.Limits{Streams: 32, PeerStreams: 2, Idle: 30 * time.Second}
}

// Heads is what one peer tells another about their two logs, in a question as in an answer. First the asker sends what it knows of the
// answerer's log and gets how that grew, with what the answerer knows of its own; then it sends the same of its own log with its
// cosignature, and gets the answerer's. A question without any of it asks what the answerer knows of the asker's log alone.
type Heads struct {
	Known      [][]byte          `cbor:"1,keyasint,omitempty"` // heads of the other's log that this side holds
	Head       []byte            `cbor:"2,keyasint,omitempty"` // newest of its own
	Extensions []books.Extension `cbor:"3,keyasint,omitempty"` // how that stands to those that the other side holds
	Cosigned   []byte            `cbor:"4,keyasint,omitempty"` // the other's newest head, with this side's cosignature
}

// WitnessConfig is what the conversation needs.
type WitnessConfig struct {
	Network  p2p.Network
	Protocol p2p.Protocol
	Books    *books.Books
	Log      *slog.Logger
}

// Witness holds the conversation in which peers check that each other's logs only grew, and cosign them. Safe for concurrent use.
type Witness struct {
	c    WitnessConfig
	wake chan struct{} // capacity 1

	mu       sync.Mutex
	soon     map[identity.PeerID]bool     // guarded by mu; to be asked without delay; at most maxSoon
	hearings map[identity.PeerID]*hearing // guarded by mu; at most maxHeard

	met    map[identity.PeerID]bool    // of Run alone; connected, and asked since
	failed map[identity.PeerID]failure // of Run alone
}

// NewWitness makes a service; the caller serves its Handler and runs it.
func NewWitness(c WitnessConfig) (*Witness, error) {
	if c.Network == nil || c.Books == nil || c.Protocol == "" || c.Log == nil {
		return nil, errors.New("witness config: network, protocol, books and log are needed")
	}
	return &Witness{
		c: c, wake: make(chan struct{}, 1),
		soon: map[identity.PeerID]bool{}, hearings: map[identity.PeerID]*hearing{}, met: map[identity.PeerID]bool{}, failed: map[identity.PeerID]failure{},
	}, nil
}

// Ask has peer show how its log grew since the heads of it that are here, cosigns it, and shows this side's log in return. Errors:
// [books.Fork] where peer signed two histories; [books.ErrUnproven] where it did not show that it did not, which is kept as a suspicion;
// [books.ErrBehind] where this side's own ledger is found behind, which is read-only from then on.
func (w *Witness) Ask(ctx context.Context, peer identity.PeerID) error {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	var known [][]byte
	err := w.c.Books.View(ctx, func(r *books.Reader) (err error) {
		if err = r.Forked(peer); err != nil {
			return err
		}
		known, err = r.Known(peer)
		return err
	})
	if err != nil {
		return w.about(peer, err)
	}
	if len(known) == 0 { // there is nothing to ask about, but it may hold what a lost store knew
		return w.Hear(ctx, peer)
	}
	got, err := w.call(ctx, peer, Heads{Known: known})
	if err != nil {
		return w.about(peer, errors.Join(err, w.suspect(ctx, peer, err)))
	}
	mine, own := w.standing(ctx, got.Known)
	if !errors.Is(own, books.ErrBehind) { // else nothing is written any more
		if mine.Cosigned, err = w.judge(ctx, peer, known, got); err != nil {
			return w.about(peer, errors.Join(err, own))
		}
	}
	if mine.Head == nil {
		return w.about(peer, own)
	}
	w.c.Books.Showed()
	got, err = w.call(ctx, peer, mine)
	if err == nil && got.Cosigned != nil {
		err = w.keep(ctx, peer, got.Cosigned)
	}
	return w.about(peer, errors.Join(err, own))
}

func (w *Witness) about(peer identity.PeerID, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("compare ledgers with %s: %w", peer.Short(), err)
}

func (w *Witness) call(ctx context.Context, peer identity.PeerID, h Heads) (got Heads, err error) {
	return got, p2p.Call(ctx, w.c.Network, peer, w.c.Protocol, h, &got, maxHeads)
}

// judge checks what peer shows of its log, and gives its head with this side's cosignature. What it does not show is kept as a suspicion.
func (w *Witness) judge(ctx context.Context, peer identity.PeerID, asked [][]byte, got Heads) (cosigned []byte, err error) {
	err = w.c.Books.Update(ctx, func(t *books.Tx) (err error) {
		cosigned, err = t.Witness(peer, asked, books.Testimony{Head: got.Head, Extensions: got.Extensions}, true)
		return err
	})
	return cosigned, errors.Join(err, w.suspect(ctx, peer, err))
}

// suspect keeps as suspicion that peer refused to show its log, or could not. That it is away or busy is none.
func (w *Witness) suspect(ctx context.Context, peer identity.PeerID, why error) error {
	if !suspicious(why) {
		return nil
	}
	return w.c.Books.Update(ctx, func(t *books.Tx) error { return t.Suspect(peer, why.Error()) })
}

func suspicious(why error) bool {
	var refused *p2p.Error
	switch {
	case why == nil, errors.Is(why, books.ErrCorrupt), errors.Is(why, books.ErrFork), errors.Is(why, books.ErrReadOnly):
		return false
	case errors.As(why, &refused):
		return !slices.Contains([]p2p.Kind{p2p.KindInternal, p2p.KindBusy, p2p.KindTimeout, p2p.KindUnavailable}, refused.Kind)
	}
	return errors.Is(why, books.ErrUnproven) || errors.Is(why, p2p.ErrUnsupported) || malformed(why)
}

// malformed says that a peer sent something that is no head of the log that it should be of.
func malformed(err error) bool {
	for _, known := range []error{history.ErrCheckpoint, identity.ErrSignature, identity.ErrSigner, wire.ErrFormat, wire.ErrTooLarge} {
		if errors.Is(err, known) {
			return true
		}
	}
	return false
}

// tell gives an error the kind that the peer may see.
func tell(err error) error {
	switch {
	case errors.Is(err, books.ErrReadOnly), errors.Is(err, books.ErrCorrupt):
		return p2p.Errorf(p2p.KindUnavailable, "this ledger is read-only")
	case errors.Is(err, books.ErrBehind):
		return p2p.Errorf(p2p.KindConflict, "this ledger is behind what it signed")
	case errors.Is(err, books.ErrFork):
		return p2p.Errorf(p2p.KindRefused, "device signed two histories of its ledger: its owner gives it another key with `identity rotate --device --force`")
	case malformed(err):
		return p2p.Errorf(p2p.KindBadRequest, "%.500v", err)
	}
	return err
}

// standing shows this side's log to who holds heads of it. Where those contradict it, the books are told: then the error wraps
// books.ErrBehind, and there is no head to show if they are from the ledger's future.
func (w *Witness) standing(ctx context.Context, known [][]byte) (Heads, error) {
	if len(known) > books.MaxKnown {
		return Heads{}, p2p.Errorf(p2p.KindBadRequest, "at most %d heads in one message", books.MaxKnown)
	}
	var out Heads
	var against []byte
	err := w.c.Books.View(ctx, func(r *books.Reader) (err error) {
		out.Head, out.Extensions, against, err = r.Standing(known)
		return err
	})
	if err != nil {
		out = Heads{}
	}
	if against != nil {
		err = w.c.Books.Behind(context.WithoutCancel(ctx), against)
	}
	return out, err
}

// keep keeps a cosignature of this side's log.
func (w *Witness) keep(ctx context.Context, peer identity.PeerID, cosigned []byte) error {
	err := w.c.Books.Update(ctx, func(t *books.Tx) error { return t.KeepCosigned(peer, cosigned) })
	if errors.Is(err, books.ErrBehind) && !errors.Is(err, books.ErrReadOnly) {
		err = errors.Join(err, w.c.Books.Behind(context.WithoutCancel(ctx), cosigned))
	}
	return err
}

// Handler answers other peers. Who asks how this log grew must hold a head of it: so it has dealt with this side.
func (w *Witness) Handler() p2p.Handler {
	return p2p.Answer(maxHeads, func(ctx context.Context, from identity.PeerID, q Heads) (Heads, error) {
		switch {
		case len(q.Known) > 0:
			return w.show(ctx, from, q.Known)
		case len(q.Head) > 0:
			return w.hear(ctx, from, q)
		}
		return w.holds(ctx, from)
	})
}

// show answers the first question.
func (w *Witness) show(ctx context.Context, from identity.PeerID, known [][]byte) (Heads, error) {
	out, err := w.standing(ctx, known)
	if err != nil && out.Head == nil {
		return Heads{}, tell(err)
	}
	w.c.Books.Showed()
	theirs, err := w.holds(ctx, from)
	out.Known = theirs.Known
	return out, err
}

// holds says which heads of a peer's log are here.
func (w *Witness) holds(ctx context.Context, peer identity.PeerID) (out Heads, err error) {
	err = w.c.Books.View(ctx, func(r *books.Reader) (err error) { out.Known, err = r.Known(peer); return err })
	return out, err
}

// hear answers the second.
func (w *Witness) hear(ctx context.Context, from identity.PeerID, q Heads) (out Heads, err error) {
	if q.Cosigned != nil {
		if err := w.keep(ctx, from, q.Cosigned); err != nil {
			return Heads{}, tell(err)
		}
	}
	err = w.c.Books.Update(ctx, func(t *books.Tx) error {
		known, err := t.Known(from)
		if err != nil {
			return err
		}
		out.Cosigned, err = t.Witness(from, known, books.Testimony{Head: q.Head, Extensions: q.Extensions}, false)
		if errors.Is(err, books.ErrUnknownDevice) {
			err = nil
		}
		return err
	})
	if err != nil {
		return Heads{}, tell(err)
	}
	return out, nil
}
