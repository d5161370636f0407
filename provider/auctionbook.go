package provider

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/auction"
	"github.com/gpufair/gpufair/market/negotiate"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// auctionBook is the agent's store as its auctions see it: an auction's state and its holds change in one transaction.
type auctionBook struct{ a *Agent }

var _ negotiate.AuctionBook = auctionBook{}

// auctionRecord is an auction as the store keeps it; its commits and openings lie beside it, one a key.
type auctionRecord struct {
	Head    negotiate.AuctionHead `cbor:"1,keyasint"`
	Offer   []byte                `cbor:"2,keyasint"` // sealed, in which the lot stands
	Devices []wire.Hash           `cbor:"3,keyasint"` // of the lot
}

type leafRecord struct {
	Commit     []byte `cbor:"1,keyasint"`
	Delegation []byte `cbor:"2,keyasint"`
}

type shownRecord struct {
	Leaf    uint32      `cbor:"1,keyasint"`
	Bid     []byte      `cbor:"2,keyasint"`
	Nonce   wire.Hash   `cbor:"3,keyasint"`
	Voucher []byte      `cbor:"4,keyasint,omitempty"`
	Needs   *work.Needs `cbor:"5,keyasint,omitempty"`
}

// keptAuctions is how many closed auctions keep their transcript for who took part.
const keptAuctions = 64

// pruneKeys is how many keys of a forgotten auction go in one transaction.
const pruneKeys = 1000

func auctionKey(prefix string, id auction.ID) []byte { return append([]byte(prefix), id[:]...) }

func leafKey(prefix string, id auction.ID, leaf uint32) []byte {
	return binary.BigEndian.AppendUint32(auctionKey(prefix, id), leaf)
}

// auctionHeads are all stored auctions without their bids.
func (a *Agent) auctionHeads(ctx context.Context) (out []auctionRecord, err error) {
	err = a.books.View(ctx, func(r *books.Reader) (err error) {
		out, err = kv.All[auctionRecord](r.Of(kv.Provider), keyAuction)
		return err
	})
	return out, err
}

// Auctions fulfils [negotiate.AuctionBook].
func (b auctionBook) Auctions(ctx context.Context) (out []negotiate.KeptAuction, err error) {
	heads, err := b.a.auctionHeads(ctx)
	if err != nil {
		return nil, err
	}
	for _, h := range heads {
		if h.Head.Closed {
			continue
		}
		k, _, err := b.Auction(ctx, auction.IDOf(h.Head.Open))
		if err != nil {
			return nil, err
		}
		out = append(out, k)
	}
	return out, nil
}

// Auction fulfils [negotiate.AuctionBook].
func (b auctionBook) Auction(ctx context.Context, id auction.ID) (k negotiate.KeptAuction, ok bool, err error) {
	err = b.a.books.View(ctx, func(r *books.Reader) error {
		tx := r.Of(kv.Provider)
		var rec auctionRecord
		if rec, ok, err = kv.Load[auctionRecord](tx, auctionKey(keyAuction, id)); err != nil || !ok {
			return err
		}
		k.Head = rec.Head
		leaves, err := kv.All[leafRecord](tx, string(auctionKey(keyLeaf, id)))
		if err != nil {
			return err
		}
		for _, l := range leaves {
			k.Leaves = append(k.Leaves, negotiate.KeptLeaf{Commit: l.Commit, Delegation: l.Delegation})
		}
		shown, err := kv.All[shownRecord](tx, string(auctionKey(keyShown, id)))
		for _, s := range shown {
			k.Shown = append(k.Shown, negotiate.KeptShown{
				Shown: auction.Shown{Leaf: s.Leaf, Bid: s.Bid, Nonce: s.Nonce}, Voucher: s.Voucher, Needs: s.Needs,
			})
		}
		return err
	})
	return k, ok, err
}

// Turn fulfils [negotiate.AuctionBook].
func (b auctionBook) Turn(ctx context.Context, id auction.ID, head negotiate.AuctionHead, post []negotiate.Posted, void []wire.Hash) error {
	b.a.mu.Lock()
	coming := b.a.auctions.coming
	b.a.mu.Unlock()
	first := false
	err := b.a.books.Update(ctx, func(tx *books.Tx) error {
		own := tx.Of(kv.Provider)
		rec, stored, err := kv.Load[auctionRecord](own, auctionKey(keyAuction, id))
		if err != nil {
			return err
		}
		if first = !stored && coming != nil; first {
			rec = coming.record
		}
		rec.Head = head
		for _, p := range post {
			if err := tx.PostHold(p.Commit, p.Amount); err != nil {
				return err
			}
		}
		for _, hold := range void {
			if err := tx.VoidHold(hold); err != nil {
				return err
			}
		}
		return kv.Save(own, auctionKey(keyAuction, id), rec)
	})
	if err != nil {
		return err
	}
	if first {
		b.a.mu.Lock()
		b.a.auctions.held[id] = coming.held
		b.a.mu.Unlock()
	}
	if head.Sold || len(head.Aborts) > 0 {
		b.a.releaseAuction(id)
	}
	if head.Closed {
		if err := b.a.pruneAuctions(ctx); err != nil {
			b.a.log.Warn("old auctions not forgotten", "err", err)
		}
	}
	b.a.changed()
	return nil
}

// Take fulfils [negotiate.AuctionBook]: the commit and its hold are one transaction.
func (b auctionBook) Take(ctx context.Context, c negotiate.TakenCommit) error {
	account := c.Commit.Account
	if err := b.a.mayServe(account, nil, b.a.config().Use()); err != nil {
		return err
	}
	d, err := identity.OpenDelegation(c.Kept.Delegation)
	if err != nil {
		return err
	}
	if err := b.a.notRevoked(d); err != nil {
		return err
	}
	channel := ledger.Channel{Renter: account, Provider: b.a.dev.Account(), Unit: c.Open.Unit}
	err = b.a.books.Update(ctx, func(tx *books.Tx) error {
		if c.Replaced != nil {
			if err := tx.VoidHold(*c.Replaced); err != nil {
				return err
			}
		}
		if err := tx.Hold(c.Hash, channel, max(c.Commit.Hold, 1)); err != nil { // a bid of nothing is sealed as any other
			return creditReason(err)
		}
		return kv.Save(tx.Of(kv.Provider), leafKey(keyLeaf, c.Auction, c.Leaf), leafRecord{Commit: c.Kept.Commit, Delegation: c.Kept.Delegation})
	})
	if err == nil {
		b.a.changed()
	}
	return err
}

// Show fulfils [negotiate.AuctionBook].
func (b auctionBook) Show(ctx context.Context, id auction.ID, s negotiate.KeptShown) error {
	return b.a.books.Update(ctx, func(tx *books.Tx) error {
		return kv.Save(tx.Of(kv.Provider), leafKey(keyShown, id, s.Leaf), shownRecord{
			Leaf: s.Leaf, Bid: s.Bid, Nonce: s.Nonce, Voucher: s.Voucher, Needs: s.Needs,
		})
	})
}

// Sold fulfils [negotiate.AuctionBook].
func (b auctionBook) Sold(ctx context.Context, id market.LeaseID) ([]byte, error) {
	return b.a.Sold(ctx, id)
}

// pruneAuctions forgets the bids of closed auctions but the newest.
func (a *Agent) pruneAuctions(ctx context.Context) error {
	heads, err := a.auctionHeads(ctx)
	if err != nil {
		return err
	}
	heads = slices.DeleteFunc(heads, func(h auctionRecord) bool { return !h.Head.Closed })
	slices.SortFunc(heads, func(x, y auctionRecord) int { return int(x.Head.Opened/1000) - int(y.Head.Opened/1000) })
	for _, h := range heads[:max(len(heads)-keptAuctions, 0)] {
		if err := a.forgetAuction(ctx, auction.IDOf(h.Head.Open)); err != nil {
			return err
		}
	}
	return nil
}

func (a *Agent) forgetAuction(ctx context.Context, id auction.ID) error {
	for _, prefix := range []string{keyShown, keyLeaf, keyAuction} {
		for more := true; more; {
			err := a.books.Update(ctx, func(tx *books.Tx) error {
				own, n := tx.Of(kv.Provider), 0
				more = false
				for p, err := range own.Iterate(auctionKey(prefix, id), nil) {
					if err != nil {
						return err
					}
					if n++; n > pruneKeys {
						more = true
						break
					}
					if err := own.Delete(p.Key); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				return fmt.Errorf("forget auction %s: %w", id.Short(), err)
			}
		}
	}
	return nil
}

// wonOrder is a win as the sale that makes its lease: what buying and winning have in common.
func wonOrder(w negotiate.Won, o market.SealedOffer, lot market.Lot) (negotiate.Sale, error) {
	accept, err := auction.AcceptOf(w.Open, w.Opening, w.Win.Pay)
	if err != nil {
		return negotiate.Sale{}, err
	}
	raw, err := w.Opening.Encode()
	if err != nil {
		return negotiate.Sale{}, err
	}
	d, err := identity.OpenDelegation(w.Delegation)
	return negotiate.Sale{
		ID: w.Lease, Accept: accept, AcceptRaw: raw, VoucherRaw: w.Voucher, DelegationRaw: w.Delegation, Delegation: d, Needs: w.Needs, Offer: o, Lot: lot,
		Peer: w.Commit.Device,
	}, err
}
