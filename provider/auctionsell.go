package provider

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/history"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/auction"
	"github.com/gpufair/gpufair/market/negotiate"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// theirs are the errors of the books about what a winner signed: its opening voucher, the head in it, its delegation. Another try ends the
// same.
var theirs = []error{
	voucher.ErrSigner, voucher.ErrLane, voucher.ErrOpening, voucher.ErrOrder, voucher.ErrCap, voucher.ErrEquivocation, history.ErrCheckpoint,
	ledger.ErrChannel, money.ErrUnit, money.ErrOverflow, identity.ErrSignature, identity.ErrSigner, identity.ErrVersion, identity.ErrPower,
	wire.ErrFormat, wire.ErrTooLarge, books.ErrEpoch, books.ErrConflict,
}

// winReason makes a refusal of the winner's records a [reason.Error], so that it costs the winner its lease and not the auction its end.
func winReason(err error) error {
	if err == nil || isReason(err) || errors.Is(err, books.ErrCorrupt) {
		return err
	}
	if slices.ContainsFunc(theirs, func(t error) bool { return errors.Is(err, t) }) {
		return fmt.Errorf("%w: %w", reason.Errorf(reason.LaneMismatch, ""), err) // the books keep a proof by the error itself
	}
	return err
}

// Sell fulfils [negotiate.AuctionBook]: the win's slots, the end of its bid's hold, its lane and its lease are one transaction, as in a sale at
// the price. The owner's pause comes before: it aborted the auction, refuses here, or ends the lease.
func (b auctionBook) Sell(ctx context.Context, w negotiate.Won) error {
	a := b.a
	a.selling.Lock()
	defer a.selling.Unlock()
	if raw, err := a.Sold(ctx, w.Lease); err != nil || raw != nil {
		return err
	}
	if a.paused() { // an awarded auction can't be aborted
		return reason.Errorf(reason.OwnerPaused, "")
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
			return winReason(a.saleTx(tx, s, &rec, lease, slots))
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

func (a *Agent) paused() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.pause.active(time.Now())
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
	own, err := market.OpenOffer(rec.Offer) // by the delegation that the device had then
	if err != nil {
		return negotiate.Sale{}, fmt.Errorf("offer of auction %s: %w", w.Commit.Auction.Short(), err)
	}
	o := market.SealedOffer{Offer: own, Raw: rec.Offer, Hash: identity.Hash(rec.Offer)}
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
