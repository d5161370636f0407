package settle

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/netting"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Cleared is what became of a circle that this account proposed to clear.
type Cleared struct {
	ID    wire.Hash
	State netting.State
	Has   int    // members that have booked it, this one too
	Why   string // it was not cleared
}

// Clear clears a circle, all or nothing: it sets the amount aside, gets the signature of every other member, and then signs last. If one does
// not sign it refuses the clearing, which frees them all. An error says that nothing was set aside, or that the ledger failed.
func (n *Net) Clear(ctx context.Context, c Circle) (Cleared, error) {
	if !n.c.Consent() {
		return Cleared{}, ErrNoConsent
	}
	t := netting.Terms{
		Unit: c.Unit, Amount: c.Amount, Legs: c.Legs, Last: n.c.Network.Self(), Deadline: time.Now().Add(netDeadline).UnixMilli(),
	}
	if _, err := rand.Read(t.Nonce[:]); err != nil {
		return Cleared{}, fmt.Errorf("clear a circle: %w", err)
	}
	id, err := t.ID()
	if err != nil {
		return Cleared{}, err
	}
	n.start(id)
	defer n.stop(id)
	if err := n.c.Books.Update(ctx, func(tx *books.Tx) error { return tx.ProposeClearing(t) }); err != nil {
		return Cleared{}, err
	}
	state, why, err := n.collect(ctx, id, t)
	if err != nil {
		return Cleared{ID: id, State: state, Why: why}, err
	}
	out := Cleared{ID: id, State: state, Why: why, Has: 1}
	if state != netting.Cleared {
		out.Has = 0
		return out, n.giveUp(ctx, t)
	}
	out.Has += n.spread(ctx, id, t)
	return out, nil
}

// start marks a clearing as being proposed by this process, until stop: Poll leaves it alone.
func (n *Net) start(id wire.Hash) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.running[id] = true
}

func (n *Net) stop(id wire.Hash) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.running, id)
}

// collect goes around the circle for signatures, and signs when all others have.
func (n *Net) collect(ctx context.Context, id wire.Hash, t netting.Terms) (state netting.State, why string, err error) {
	ctx, cancel := context.WithTimeout(ctx, roundFor)
	defer cancel()
	for range netTries {
		got, err := n.ask(ctx, t.Next(n.c.Network.Self()), NetAsk{Round: &NetRound{Terms: t, Wait: left(ctx)}})
		why = got.Why
		if err != nil {
			n.c.Log.Debug("round of signatures broken", "clearing", id.Short(), "err", err)
			why = "a member can't be reached"
		}
		err = n.c.Books.Update(context.WithoutCancel(ctx), func(tx *books.Tx) error {
			c, err := tx.HearClearing(t, got.Words)
			if err == nil && len(c.Missing()) == 1 {
				c, err = tx.CompleteClearing(id)
			}
			state = c.State
			return err
		})
		switch {
		case errors.Is(err, books.ErrExpired), badWord(err):
			return netting.Prepared, err.Error(), nil
		case err != nil:
			return state, why, err
		case state != netting.Prepared:
			return state, why, nil
		case got.Why != "" || ctx.Err() != nil:
			return state, why, nil // a member does not want to: another round changes nothing
		}
	}
	return state, why, nil
}

// badWord reports whether an error is of what another member sent.
func badWord(err error) bool {
	return errors.Is(err, netting.ErrWord) || errors.Is(err, identity.ErrSignature) || errors.Is(err, identity.ErrPower) ||
		errors.Is(err, identity.ErrVersion) || errors.Is(err, identity.ErrSigner) || errors.Is(err, wire.ErrTooLarge) || errors.Is(err, wire.ErrFormat)
}

// spread brings all signatures around the circle, and gives how many others have booked the clearing. Poll goes on with the rest.
func (n *Net) spread(ctx context.Context, id wire.Hash, t netting.Terms) int {
	ctx, cancel := context.WithTimeout(ctx, roundFor)
	defer cancel()
	var words []netting.Word
	err := n.c.Books.View(ctx, func(r *books.Reader) error {
		v, err := r.Clearing(id)
		words = v.Words()
		return err
	})
	if err != nil {
		return 0
	}
	got, err := n.ask(ctx, t.Next(n.c.Network.Self()), NetAsk{Round: &NetRound{Terms: t, Words: words, Wait: left(ctx)}})
	if err != nil {
		n.c.Log.Debug("signatures not brought around", "clearing", id.Short(), "err", err)
	}
	return n.told(ctx, id, t, got.Has)
}

// told notes who has booked a clearing, and gives how many that are.
func (n *Net) told(ctx context.Context, id wire.Hash, t netting.Terms, has []identity.PeerID) int {
	if len(has) == 0 {
		return 0
	}
	count := 0
	err := n.c.Books.Update(ctx, func(tx *books.Tx) error {
		for _, d := range has {
			if t.Side(d) == (netting.Side{}) || d == n.c.Network.Self() {
				continue
			}
			if err := tx.ToldClearing(id, d); err != nil {
				return err
			}
			count++
		}
		return nil
	})
	if err != nil {
		n.c.Log.Warn("not noted who has booked a clearing", "clearing", id.Short(), "err", err)
	}
	return count
}

// giveUp refuses a clearing of ours, which this device has not signed, and brings the word to the members. Whoever can't be reached asks.
func (n *Net) giveUp(ctx context.Context, t netting.Terms) error {
	var words []netting.Word
	ctx = context.WithoutCancel(ctx)
	err := n.c.Books.Update(ctx, func(tx *books.Tx) error {
		c, err := tx.RefuseClearing(t)
		words = c.Words()
		return err
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, findFor)
	defer cancel()
	for _, d := range t.Devices() {
		if d == n.c.Network.Self() {
			continue
		}
		if _, err := n.ask(ctx, d, NetAsk{News: &NetNews{Terms: t, Words: words}}); err != nil {
			n.c.Log.Debug("refusal not brought", "peer", d, "err", err)
		}
	}
	return nil
}

// member checks that a peer may speak about a clearing, and gives its id.
func (n *Net) member(from identity.PeerID, t netting.Terms) (id wire.Hash, err error) {
	if err := t.Validate(); err != nil {
		return id, p2p.Errorf(p2p.KindBadRequest, "%v", err)
	}
	if t.Side(from) == (netting.Side{}) || t.Side(n.c.Network.Self()).Account() != n.c.Books.Self() {
		return id, p2p.Errorf(p2p.KindForbidden, "not between members of the clearing")
	}
	return t.ID()
}

// round answers a round: it agrees, or books what all have agreed to, and passes it on to the next member but the last.
func (n *Net) round(ctx context.Context, from identity.PeerID, r NetRound) (NetAnswer, error) {
	id, err := n.member(from, r.Terms)
	if err != nil {
		return NetAnswer{}, err
	}
	ctx, cancel := within(ctx, r.Wait, roundFor)
	defer cancel()
	self := n.c.Network.Self()
	var c netting.Clearing
	refused := ""
	err = n.c.Books.Update(context.WithoutCancel(ctx), func(tx *books.Tx) (err error) {
		if c, err = tx.HearClearing(r.Terms, r.Words); err != nil || c.State == netting.Cleared {
			return err
		}
		if c.State == 0 && !n.c.Consent() {
			refused = "a member does not let itself be cleared"
			return nil
		}
		agreed, err := tx.AgreeClearing(r.Terms, nil)
		if refused = whyNot(err); refused != "" {
			return nil
		}
		c = agreed
		return err
	})
	if err != nil {
		return NetAnswer{}, netToPeer(err)
	}
	out := NetAnswer{Words: c.Words(), Why: refused}
	if c.State == netting.Cleared {
		out.Has = append(out.Has, self)
	}
	next := r.Terms.Next(self)
	if refused != "" || next == r.Terms.Last {
		return out, nil
	}
	further, err := n.ask(ctx, next, NetAsk{Round: &NetRound{Terms: r.Terms, Words: c.Words(), Wait: left(ctx)}})
	if err != nil {
		n.c.Log.Debug("clearing not passed on", "clearing", id.Short(), "peer", next, "err", err)
		return out, nil
	}
	out.Words, out.Why = append(out.Words, further.Words...), ledger.Cut(further.Why, 100)
	out.Words = out.Words[:min(len(out.Words), 2*netting.MaxDevices)]
	if c.State == netting.Cleared {
		n.told(ctx, id, r.Terms, further.Has)
		out.Has = append(out.Has, further.Has...)
	}
	return out, nil
}

// whyNot is what members that this account does not deal with may know of why it did not agree: no amounts.
func whyNot(err error) string {
	switch {
	case errors.Is(err, books.ErrNotOwed):
		return "a member owes or is owed less by now"
	case errors.Is(err, books.ErrExpired):
		return "it is too late by a member's clock"
	case errors.Is(err, books.ErrClearings):
		return "a member has too many clearings open"
	case errors.Is(err, books.ErrUnsure):
		return "a member has restored its ledger"
	case errors.Is(err, netting.ErrOver):
		return "a member has refused"
	case errors.Is(err, identity.ErrPower):
		return "a member's device may not sign for it"
	}
	return ""
}

// news answers what another member says and asks.
func (n *Net) news(ctx context.Context, from identity.PeerID, m NetNews) (NetAnswer, error) {
	id, err := n.member(from, m.Terms)
	if err != nil {
		return NetAnswer{}, err
	}
	var c netting.Clearing
	err = n.c.Books.Update(ctx, func(tx *books.Tx) (err error) {
		if c, err = tx.HearClearing(m.Terms, m.Words); err != nil {
			return err
		}
		if m.Free && c.State == 0 && tx.Now().UnixMilli() > m.Terms.Deadline {
			if c, err = tx.RefuseClearing(m.Terms); errors.Is(err, books.ErrUnsure) || errors.Is(err, books.ErrClearings) {
				err = nil // nothing to say yet
			}
			return err
		}
		if m.Booked && c.State == netting.Cleared {
			return tx.ToldClearing(id, from)
		}
		return nil
	})
	if err != nil {
		return NetAnswer{}, netToPeer(err)
	}
	out := NetAnswer{Words: c.Words()}
	if c.State == netting.Cleared {
		out.Has = []identity.PeerID{n.c.Network.Self()}
	}
	return out, nil
}

// netToPeer gives an error of a clearing the kind that a peer may see.
func netToPeer(err error) error {
	switch {
	case errors.Is(err, netting.ErrTerms), errors.Is(err, netting.ErrWord):
		return p2p.Errorf(p2p.KindBadRequest, "not a word of this clearing")
	case errors.Is(err, netting.ErrLast):
		return p2p.Errorf(p2p.KindConflict, "the one who proposed it signs last")
	}
	return toPeer(err)
}
