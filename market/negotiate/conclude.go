package negotiate

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gpufair/gpufair/market/auction"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// conclude makes the leases of an auction that is over, frees the holds of those that lost, and after the minute in which a late opening
// may still save its hold posts those of bids that stayed sealed. It says when to look again; zero: it is closed. The stall's mu is held.
func (h *House) conclude(ctx context.Context, s *stall) (time.Time, error) {
	if s.kept.Head.Closed {
		return time.Time{}, nil
	}
	r, err := auction.Verify(s.m.t)
	if err != nil {
		return time.Time{}, fmt.Errorf("clear auction %s: %w", s.id.Short(), err)
	}
	aborted := len(s.m.t.Aborts) > 0
	if !s.kept.Head.Sold && !aborted {
		if err := h.sellAll(ctx, s, r); err != nil {
			return time.Time{}, err
		}
		s.kept.Head.Sold = true
		if err := h.release(ctx, s, nil, lost(r, s.m.t)); err != nil {
			s.kept.Head.Sold = false
			return time.Time{}, err
		}
	}
	if closes := s.m.times.Awarded.Add(auction.LateWithin); !aborted && time.Now().Before(closes) {
		return closes, nil
	}
	var post []Posted
	due := map[uint32]bool{}
	for _, d := range r.Dues.Posted {
		due[d.Leaf] = true
		post = append(post, Posted{Commit: identity.Hash(s.m.t.Leaves[d.Leaf]), Amount: d.Amount})
	}
	var void []wire.Hash
	for i, raw := range s.m.t.Leaves {
		if !due[uint32(i)] {
			void = append(void, identity.Hash(raw))
		}
	}
	if err := h.release(ctx, s, post, void); err != nil {
		return time.Time{}, err
	}
	s.kept.Head.Closed = true
	if err := h.turn(ctx, s, nil, nil); err != nil {
		s.kept.Head.Closed = false
		return time.Time{}, err
	}
	h.log.Info("auction closed", "auction", s.id.Short(), "commits", r.Counts.Leaves, "winners", len(r.Price), "holds_posted", len(post))
	return time.Time{}, nil
}

// lost are the holds of opened bids that did not win; those of winners ended with their lease, or had none.
func lost(r auction.Report, t auction.Transcript) (void []wire.Hash) {
	for _, b := range r.Bids {
		if b.Won || b.Opened && b.Reason.Code != reason.RevealOver || b.Reason.Code == reason.BidReplaced {
			void = append(void, identity.Hash(t.Leaves[b.Leaf]))
		}
	}
	return void
}

// release ends holds, so many at a time as one transaction takes.
func (h *House) release(ctx context.Context, s *stall, post []Posted, void []wire.Hash) error {
	for {
		p, v := post[:min(len(post), releaseMax)], void[:min(len(void), releaseMax)]
		if err := h.turn(ctx, s, p, v); err != nil {
			return err
		}
		post, void = post[len(p):], void[len(v):]
		if len(post)+len(void) == 0 {
			return nil
		}
	}
}

// sellAll makes a lease for each winner. One that can't have one (its voucher is no opening voucher, its credit is gone) is noted with the
// reason, and does not keep the others from theirs.
func (h *House) sellAll(ctx context.Context, s *stall, r auction.Report) error {
	for _, win := range r.Price {
		w, err := s.won(r, win)
		if err == nil {
			err = h.book.Sell(ctx, w)
		}
		why, refused := reason.Of(err)
		switch {
		case err != nil && !refused:
			return fmt.Errorf("sell to leaf %d of auction %s: %w", win.Leaf, s.id.Short(), err)
		case refused:
			h.log.Warn("a winner gets no lease", "auction", s.id.Short(), "leaf", win.Leaf, "why", err)
			if s.kept.Head.Unsold == nil {
				s.kept.Head.Unsold = map[uint32]string{}
			}
			s.kept.Head.Unsold[win.Leaf] = string(why.Code)
		}
	}
	return nil
}

// won puts together what a winner's lease is made of; mu is held.
func (s *stall) won(r auction.Report, win auction.Winner) (Won, error) {
	at, found := slices.BinarySearchFunc(s.kept.Shown, win.Leaf, func(k KeptShown, leaf uint32) int { return int(k.Leaf) - int(leaf) })
	if !found || s.kept.Shown[at].Needs == nil {
		return Won{}, reason.Errorf(reason.BidVoid, "its opening came without voucher and needs")
	}
	shown := s.kept.Shown[at]
	opening := s.m.t.Opening(shown.Shown)
	c, err := auction.ReadCommit(opening.Commit)
	if err != nil {
		return Won{}, err
	}
	w := Won{
		Open: r.Open, Opening: opening, Commit: c, Bid: *r.Bids[win.Leaf].Bid, Win: win.Win, Lease: win.Lease, Voucher: shown.Voucher,
		Needs: *shown.Needs, Delegation: s.kept.Leaves[win.Leaf].Delegation, Discount: auction.Due{Leaf: win.Leaf},
	}
	for _, d := range r.Dues.Discounts {
		if d.Leaf == win.Leaf {
			w.Discount = d
		}
	}
	return w, nil
}
