package negotiate

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/auction"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
)

// answer serves a peer's question about an auction of this house; mine is false for one of others, and where only the floor knows.
func (h *House) answer(ctx context.Context, from identity.PeerID, ask floorAsk) (a floorAnswer, mine bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, sellWithin)
	defer cancel()
	switch ask.Want {
	case wantOpen:
		a, err = h.called(ctx, from, ask)
		return a, true, err
	case wantLease:
		a, err = h.lease(ctx, ask)
		return a, true, err
	case wantTranscript:
		return h.part(ctx, from, ask)
	case wantCommit:
		a, err = h.commit(ctx, ask)
		return a, true, err
	}
	s := h.stall(ask.Auction)
	if s == nil {
		return floorAnswer{}, false, nil
	}
	switch ask.Want {
	case wantSeal:
		a, err = s.inclusion(ask)
	case wantOpening:
		a, err = h.opening(ctx, s, ask)
	case wantDecline:
		err = h.decline(ctx, s, ask)
	default:
		err = p2p.Errorf(p2p.KindBadRequest, "nobody asks for %d", ask.Want)
	}
	return a, true, err
}

// called gives the auction of a lot that takes commits now, opening one where the owner sells so.
func (h *House) called(ctx context.Context, from identity.PeerID, ask floorAsk) (floorAnswer, error) {
	d, err := identity.OpenDelegation(ask.Delegation)
	if err != nil || d.Device != from || d.Powers&identity.PowerTrade == 0 {
		return floorAnswer{}, reason.Errorf(reason.DelegationPowers, "whoever asks for an auction shows that it may trade for its account")
	}
	id, err := h.book.Called(ctx, d.Account, ask.Hash, ask.Lot)
	if err != nil {
		return floorAnswer{}, err
	}
	s := h.stall(id)
	if s == nil {
		return floorAnswer{}, reason.Errorf(reason.AuctionUnknown, "auction %s is over", id.Short())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return floorAnswer{
		Record: s.m.t.Open, Delegation: h.dev.Delegation(), Elapsed: uint64(max(0, time.Since(s.m.times.Opened).Milliseconds())),
	}, nil
}

// commit takes a commit that came by stream or gossip and gives the receipt: it is in the log, and its hold stands.
func (h *House) commit(ctx context.Context, ask floorAsk) (floorAnswer, error) {
	s := h.stall(ask.Auction)
	if s == nil {
		return floorAnswer{}, reason.Errorf(reason.AuctionUnknown, "auction %s takes no commits here", ask.Auction.Short())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := h.heal(ctx, s); err != nil {
		return floorAnswer{}, err
	}
	hash, now := identity.Hash(ask.Record), time.Now()
	c, err := s.m.Check(ask.Record, ask.Delegation, now)
	if reason.Is(err, reason.Duplicate) {
		raw, err := s.m.Receipt(hash)
		return floorAnswer{Record: raw}, err
	}
	if err != nil {
		return floorAnswer{}, err
	}
	kept := KeptLeaf{Commit: ask.Record, Delegation: ask.Delegation}
	taken := TakenCommit{Auction: s.id, Open: s.m.open, Leaf: uint32(len(s.m.t.Leaves)), Commit: c, Hash: hash, Kept: kept}
	if n, ok := s.m.newest[c.Account]; ok {
		was := identity.Hash(s.m.t.Leaves[n.leaf])
		taken.Replaced = &was
	}
	if err := h.book.Take(ctx, taken); err != nil {
		return floorAnswer{}, fmt.Errorf("commit to auction %s: %w", s.id.Short(), err)
	}
	raw, _, _, err := s.m.Admit(ask.Record, ask.Delegation, now)
	if err != nil { // it is stored
		s.failed = true
		return floorAnswer{}, err
	}
	s.kept.Leaves = append(s.kept.Leaves, kept)
	return floorAnswer{Record: raw}, nil
}

// inclusion gives the Seal and the proof of a commit under it.
func (s *stall) inclusion(ask floorAsk) (floorAnswer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.m.t.Seals) == 0 {
		return floorAnswer{}, p2p.Errorf(p2p.KindUnavailable, "it is not sealed")
	}
	seal, leaf, path, err := s.m.Inclusion(ask.Hash)
	if err != nil { // whoever has no commit in it may see the Seal
		return floorAnswer{Record: s.m.t.Seals[0]}, nil
	}
	return floorAnswer{Record: seal, Leaf: leaf, Path: path, Proven: true}, nil
}

// opening takes what a commit hid, with the voucher and the needs that its bid names, and gives the receipt.
func (h *House) opening(ctx context.Context, s *stall, ask floorAsk) (floorAnswer, error) {
	o, _, err := auction.DecodeOpening(ask.Record)
	if err != nil {
		return floorAnswer{}, reason.Errorf(reason.BidVoid, "%v", err)
	}
	kept := KeptShown{}
	if b, err := auction.DecodeBid(o.Bid); err == nil {
		if kept, err = beside(b, ask); err != nil {
			return floorAnswer{}, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := h.heal(ctx, s); err != nil {
		return floorAnswer{}, err
	}
	was := len(s.m.t.Shown)
	raw, refused := s.m.Opening(ask.Record, time.Now())
	if len(s.m.t.Shown) > was {
		leaf := s.m.leaves[identity.Hash(o.Commit)] // a nonce may be another bidder's, too
		at := slices.IndexFunc(s.m.t.Shown, func(x auction.Shown) bool { return x.Leaf == leaf })
		kept.Shown = s.m.t.Shown[at]
		if err := h.book.Show(ctx, s.id, kept); err != nil {
			s.failed = true
			return floorAnswer{}, fmt.Errorf("opening in auction %s: %w", s.id.Short(), err)
		}
		s.kept.Shown = slices.Insert(s.kept.Shown, at, kept)
		h.uncache(s.id)
		s.kick()
	}
	return floorAnswer{Record: raw}, refused
}

// beside checks the voucher and needs that came with the opening of b.
func beside(b auction.Bid, ask floorAsk) (KeptShown, error) {
	if ask.Needs == nil || len(ask.Voucher) > MaxVoucher || identity.Hash(ask.Voucher) != b.Voucher {
		return KeptShown{}, p2p.Errorf(p2p.KindBadRequest, "the bid names another opening voucher or other needs than stand beside it")
	}
	if err := ask.Needs.Validate(); err != nil {
		return KeptShown{}, p2p.Errorf(p2p.KindBadRequest, "%v", err)
	}
	if hash, err := ask.Needs.Hash(); err != nil || hash != b.Needs {
		return KeptShown{}, p2p.Errorf(p2p.KindBadRequest, "the bid names other needs than stand beside it")
	}
	return KeptShown{Voucher: ask.Voucher, Needs: ask.Needs}, nil
}

func (h *House) decline(ctx context.Context, s *stall, ask floorAsk) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := h.heal(ctx, s); err != nil {
		return err
	}
	if err := s.m.Decline(ask.Record, ask.Delegation, time.Now()); err != nil {
		return err
	}
	known := slices.ContainsFunc(s.kept.Head.Delegations, func(d []byte) bool { return string(d) == string(ask.Delegation) })
	if !known && len(s.kept.Head.Delegations) <= auction.MaxK {
		s.kept.Head.Delegations = append(s.kept.Head.Delegations, ask.Delegation)
	}
	return h.turn(ctx, s, nil, nil)
}

// lease gives the lease that a win made.
func (h *House) lease(ctx context.Context, ask floorAsk) (floorAnswer, error) {
	raw, err := h.book.Sold(ctx, market.LeaseID(ask.Hash))
	if err != nil {
		return floorAnswer{}, err
	}
	if raw != nil {
		return floorAnswer{Record: raw, Delegation: h.dev.Delegation()}, nil
	}
	k, ok, err := h.kept(ctx, ask.Auction)
	switch {
	case err != nil:
		return floorAnswer{}, err
	case !ok:
		return floorAnswer{}, reason.Errorf(reason.AuctionUnknown, "auction %s is not held here", ask.Auction.Short())
	case !k.Head.Sold && len(k.Head.Aborts) == 0:
		return floorAnswer{}, p2p.Errorf(p2p.KindUnavailable, "the leases are not made yet")
	}
	for _, s := range k.Shown {
		o := auction.Opening{Commit: k.Leaves[s.Leaf].Commit, Bid: s.Bid, Nonce: s.Nonce}
		if c, err := auction.ReadCommit(o.Commit); err == nil && o.Lease(ask.Auction, c.Account) == market.LeaseID(ask.Hash) && k.Head.Unsold[s.Leaf] != "" {
			return floorAnswer{}, reason.Errorf(reason.Code(k.Head.Unsold[s.Leaf]), "the bid won and can have no lease")
		}
	}
	return floorAnswer{}, p2p.Errorf(p2p.KindNotFound, "the auction made no such lease")
}

// kept is an auction as it is stored, whether it is closed or not.
func (h *House) kept(ctx context.Context, id auction.ID) (KeptAuction, bool, error) {
	if s := h.stall(id); s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		k := s.kept
		k.Leaves, k.Shown = k.Leaves[:len(k.Leaves):len(k.Leaves)], slices.Clone(k.Shown)
		return k, true, nil
	}
	return h.book.Auction(ctx, id)
}

// part gives a part of the transcript to who took part: losing bids are for nobody else (spec: market, Three).
func (h *House) part(ctx context.Context, from identity.PeerID, ask floorAsk) (floorAnswer, bool, error) {
	f, ok, err := h.file(ctx, ask.Auction, &from)
	switch {
	case err != nil || !ok:
		return floorAnswer{}, ok || err != nil, err
	case f.raw == nil:
		return floorAnswer{}, true, p2p.Errorf(p2p.KindUnavailable, "auction %s is not over", ask.Auction.Short())
	case int64(ask.From) >= int64(len(f.raw)):
		return floorAnswer{}, true, p2p.Errorf(p2p.KindBadRequest, "the transcript has %d bytes", len(f.raw))
	}
	rest := f.raw[ask.From:]
	return floorAnswer{Part: rest[:min(len(rest), partSize)], Size: uint32(len(f.raw))}, true, nil
}

// file gives the transcript of an auction whose result stands; without raw: it is not over; false: it is not of this house. to is the
// device that it is for, refused before any work if it did not take part; nil: the owner.
func (h *House) file(ctx context.Context, id auction.ID, to *identity.PeerID) (file, bool, error) {
	f, ok := h.cached(id)
	if ok {
		return f, true, f.allows(to)
	}
	k, ok, err := h.kept(ctx, id)
	if err != nil || !ok {
		return file{}, false, err
	}
	f = file{id: id, took: map[identity.PeerID]bool{}}
	if !k.Head.Sold && len(k.Head.Aborts) == 0 {
		return f, true, nil
	}
	for _, l := range k.Leaves {
		if c, err := identity.PeekAdvert[auction.Commit](auction.DomainCommit, l.Commit); err == nil { // it was checked before it was stored
			f.took[c.Device] = true
		}
	}
	if err := f.allows(to); err != nil {
		return file{}, true, err
	}
	if f.raw, err = k.Transcript().Encode(); err != nil {
		return file{}, true, err
	}
	h.cache(f, k)
	return f, true, nil
}

// cache keeps the transcript of k ready to send, unless k has changed meanwhile: a late opening comes into it.
func (h *House) cache(f file, k KeptAuction) {
	if s := h.stall(f.id); s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.kept.Shown) != len(k.Shown) {
			return
		}
	} else if !k.Head.Closed {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.files = append(h.files, f)
	if n := len(h.files) - filesKept; n > 0 {
		h.files = slices.Delete(h.files, 0, n)
	}
}

// uncache drops the transcript of an auction that has changed; the stall's mu is held.
func (h *House) uncache(id auction.ID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.files = slices.DeleteFunc(h.files, func(f file) bool { return f.id == id })
}

// cached is the transcript of an auction, if it is ready to send.
func (h *House) cached(id auction.ID) (file, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	at := slices.IndexFunc(h.files, func(f file) bool { return f.id == id })
	if at < 0 {
		return file{}, false
	}
	return h.files[at], true
}

func (f file) allows(to *identity.PeerID) error {
	if to != nil && !f.took[*to] {
		return p2p.Errorf(p2p.KindForbidden, "losing bids are shown to who took part: ask a participant for the file")
	}
	return nil
}

// Transcript is the file of an auction of this house whose result stands. The error is a [reason.Error] if there is none.
func (h *House) Transcript(ctx context.Context, id auction.ID) ([]byte, error) {
	f, ok, err := h.file(ctx, id, nil)
	switch {
	case err != nil:
		return nil, err
	case !ok:
		return nil, reason.Errorf(reason.AuctionUnknown, "auction %s is not held here", id.Short())
	case f.raw == nil:
		return nil, p2p.Errorf(p2p.KindUnavailable, "auction %s is not over", id.Short())
	}
	return f.raw, nil
}
