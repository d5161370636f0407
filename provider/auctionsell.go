package provider

import (
	"context"
	"fmt"

	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/auction"
	"github.com/gpufair/gpufair/market/negotiate"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/p2p/identity"
)

// Sell fulfils [negotiate.AuctionBook]: the win's slots, the end of its bid's hold, its lane and its lease are one transaction, as in a sale at
// the price. The owner's pause comes before: it aborted the auction, or ends the lease.
func (b auctionBook) Sell(ctx context.Context, w negotiate.Won) error {
	a := b.a
	a.selling.Lock()
	defer a.selling.Unlock()
	if raw, err := a.Sold(ctx, w.Lease); err != nil || raw != nil {
		return err
	}
	s, err := a.wonSale(ctx, w)
	if err != nil {
		return err
	}
	if err := a.notRevoked(s.Delegation); err != nil {
		return err
	}
	claim, err := a.capacity.RequestUsed(s.ID, devicesOf(s.Lot), int(w.Win.Quantity), usedBy(w.Open.Nonce))
	if err != nil {
		return a.whyTaken(devicesOf(s.Lot), err)
	}
	slots := claim.Secure()
	rec, generations, err := a.newRecord(s, slots)
	rec.Discount = w.Discount.Amount
	if err == nil {
		rec.Auction, err = a.openOf(ctx, s.Accept)
	}
	if err == nil {
		err = a.books.Update(ctx, func(tx *books.Tx) error {
			if err := tx.VoidHold(identity.Hash(w.Opening.Commit)); err != nil { // the lane's own takes its place
				return err
			}
			room, _, err := tx.Room(s.Accept.Account, s.Accept.Unit)
			if err != nil {
				return err
			}
			lease, err := auction.Lease(a.dev, w.Open, w.Opening, w.Win, generations, min(room, money.Max))
			if err != nil {
				return err
			}
			return a.saleTx(tx, s, &rec, lease, slots)
		})
	}
	if err != nil {
		claim.Withdraw()
		return err
	}
	claim.Commit()
	_, err = a.sold(ctx, s, rec)
	return err
}

// openOf is the sealed Open that an order of an auction stands for.
func (a *Agent) openOf(ctx context.Context, accept market.Accept) (open []byte, err error) {
	err = a.books.View(ctx, func(r *books.Reader) error {
		rec, _, err := kv.Load[auctionRecord](r.Of(kv.Provider), auctionKey(keyAuction, auction.ID(accept.Offer)))
		open = rec.Head.Open
		return err
	})
	return open, err
}

// wonSale judges what a win needs besides the rules of the auction.
func (a *Agent) wonSale(ctx context.Context, w negotiate.Won) (negotiate.Sale, error) {
	var rec auctionRecord
	err := a.books.View(ctx, func(r *books.Reader) (err error) {
		rec, _, err = kv.Load[auctionRecord](r.Of(kv.Provider), auctionKey(keyAuction, w.Commit.Auction))
		return err
	})
	if err != nil {
		return negotiate.Sale{}, err
	}
	o, err := market.OpenSealedOffer(rec.Offer, a.dev.Delegation())
	if err != nil {
		return negotiate.Sale{}, fmt.Errorf("offer of auction %s: %w", w.Commit.Auction.Short(), err)
	}
	lot, _ := o.Lot(w.Open.Lot) // it was there when the auction was opened
	s, err := wonOrder(w, o, lot)
	switch {
	case err != nil:
		return negotiate.Sale{}, err
	case w.Bid.Use != o.Terms.Use:
		return negotiate.Sale{}, reason.Errorf(reason.TermsChanged, "the bid names terms %s, the offer %s", w.Bid.Use.Short(), o.Terms.Use.Short())
	}
	return s, w.Needs.Fit(lot, w.Win.Quantity)
}
