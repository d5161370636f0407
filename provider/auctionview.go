package provider

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpufair/gpufair/market/auction"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/provider/control/api"
)

// shownBids is how many bids of one auction a list shows; the transcript has all.
const shownBids = 100

// Auctions lists the owner's auctions with the bids in them, newest first.
func (a *Agent) Auctions(ctx context.Context) ([]api.Auction, error) {
	heads, err := a.auctionHeads(ctx)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(heads, func(x, y auctionRecord) int { return int(y.Head.Opened/1000) - int(x.Head.Opened/1000) })
	out := []api.Auction{}
	for _, h := range heads {
		v, err := a.viewAuction(ctx, h)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, nil
}

func (a *Agent) viewAuction(ctx context.Context, h auctionRecord) (api.Auction, error) {
	id := auction.IDOf(h.Head.Open)
	o, err := auction.ReadOpen(h.Head.Open)
	if err != nil {
		return api.Auction{}, fmt.Errorf("stored auction %s: %w", id.Short(), err)
	}
	opened := time.UnixMilli(h.Head.Opened)
	v := api.Auction{
		ID: id.String(), State: api.AuctionCommitting, Lot: int(o.Lot), Devices: int(o.K), Unit: string(o.Unit), Reserve: o.Reserve.String(),
		Rule: string(o.Mode), OpenedAt: opened, SealsAt: opened.Add(o.SealAfter()), Bids: []api.Bid{},
	}
	switch {
	case len(h.Head.Aborts) > 0:
		v.State = api.AuctionAborted
	case h.Head.Closed:
		v.State = api.AuctionClosed
	case len(h.Head.Awards) > 0:
		v.State = api.AuctionAwarded
	case len(h.Head.Seals) > 0:
		v.State = api.AuctionRevealing
	}
	k, ok, err := auctionBook{a}.Auction(ctx, id)
	if err != nil || !ok {
		return v, err
	}
	r, err := auction.Verify(k.Transcript())
	if err != nil {
		return v, fmt.Errorf("auction %s: %w", id.Short(), err)
	}
	awarded := len(h.Head.Awards) > 0
	for _, s := range r.Bids {
		if s.Reason.Code == reason.BidReplaced || len(v.Bids) == shownBids {
			continue
		}
		v.Bids = append(v.Bids, viewBid(r, s, awarded))
	}
	return v, nil
}

func viewBid(r auction.Report, s auction.Standing, awarded bool) api.Bid {
	b := api.Bid{Account: s.Account.String(), State: api.BidSealed, Held: s.Hold.String()}
	if s.Bid == nil {
		return b
	}
	best := s.Bid.Options[len(s.Bid.Options)-1]
	b.State, b.Devices, b.Price = api.BidShown, int(best.Quantity), best.Rate.String()
	for _, w := range r.Price {
		if awarded && w.Leaf == s.Leaf {
			b.State, b.Devices, b.Price, b.Pays, b.Lease = api.BidWon, int(w.Quantity), w.Rate.String(), w.Pay.String(), w.Lease.String()
		}
	}
	return b
}

// AuctionFile is the transcript of an auction by its id or an unambiguous start of it. The error is [ErrNotFound] if there is none, and
// [ErrAmbiguous] if there are several.
func (a *Agent) AuctionFile(ctx context.Context, id string) ([]byte, error) {
	heads, err := a.auctionHeads(ctx)
	if err != nil {
		return nil, err
	}
	heads = slices.DeleteFunc(heads, func(h auctionRecord) bool {
		return id == "" || !strings.HasPrefix(auction.IDOf(h.Head.Open).String(), strings.ToLower(id))
	})
	switch {
	case len(heads) == 0:
		return nil, fmt.Errorf("auction %q: %w", id, ErrNotFound)
	case len(heads) > 1:
		return nil, fmt.Errorf("auction %q: %w", id, ErrAmbiguous)
	}
	return a.auctions.house.Transcript(ctx, auction.IDOf(heads[0].Head.Open))
}
