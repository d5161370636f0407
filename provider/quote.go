package provider

import (
	"context"
	"fmt"

	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/negotiate"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// quoteBook is the agent as its quotes see it: the owner's price, the devices, and the store.
type quoteBook struct{ a *Agent }

var _ negotiate.QuoteBook = quoteBook{}

// quoteRecord is a quote as the store keeps it while it stands.
type quoteRecord struct {
	Quote      []byte `cbor:"1,keyasint"` // sealed
	Offer      []byte `cbor:"2,keyasint"` // sealed, that it is under
	OfferProof []byte `cbor:"3,keyasint"` // its delegation
}

// openQuotes makes the quoter and the seller of the agent's device.
func (a *Agent) openQuotes(offers negotiate.Offers) (err error) {
	if a.quoter, err = negotiate.NewQuoter(a.dev, offers, quoteBook{a}); err != nil {
		return err
	}
	a.seller, err = negotiate.NewSeller(a.dev, offers, a, a.quoter)
	return err
}

// quotedTo is why a device is kept back while a quote stands.
func quotedTo(quote wire.Hash) string { return "held for a quote (" + quote.Short() + ")" }

// useOf is by whom the devices of a sale may be occupied.
func useOf(s negotiate.Sale) string {
	if s.Quote.IsZero() {
		return ""
	}
	return quotedTo(s.Quote)
}

// Price fulfils [negotiate.QuoteBook]: what the owner asks now, or as much less as the renter pays down to the owner's floor.
func (b quoteBook) Price(ctx context.Context, d negotiate.Demanded) (money.Rate, error) {
	a := b.a
	devices := devicesOf(d.Lot)
	if err := a.notRevoked(d.Delegation); err != nil {
		return 0, err
	}
	a.lookAtDisk(ctx)
	if err := a.mayServe(d.Delegation.Account, devices, d.Offer.Terms.Use); err != nil {
		return 0, err
	}
	lot, _ := a.config().lot(devices[0]) // mayServe found it
	rate := lot.quote(d.Most)
	hold, err := market.Hold(rate, d.Quantity, d.Lot.MinTerm)
	if err != nil {
		return 0, err
	}
	return rate, a.books.View(ctx, func(r *books.Reader) error {
		return creditReason(r.CheckCredit(d.Delegation.Account, d.Unit, hold))
	})
}

// quote is what the owner asks of a renter that pays at most so much.
func (l Lot) quote(most money.Rate) money.Rate {
	if l.Floor == 0 {
		return l.Price
	}
	return min(l.Price, max(l.Floor, most))
}

// Hold fulfils [negotiate.QuoteBook].
func (b quoteBook) Hold(ctx context.Context, q negotiate.KeptQuote) error {
	if err := b.HoldAgain(q); err != nil {
		return err
	}
	hash := identity.Hash(q.Raw)
	err := b.a.books.Update(ctx, func(tx *books.Tx) error {
		return kv.Save(tx.Of(kv.Provider), deviceKey(keyQuote, hash), quoteRecord{Quote: q.Raw, Offer: q.Offer.Raw, OfferProof: q.Offer.DelegationRaw})
	})
	if err != nil {
		b.release(hash)
	}
	return err
}

// HoldAgain fulfils [negotiate.QuoteBook].
func (b quoteBook) HoldAgain(q negotiate.KeptQuote) error {
	lot, _ := q.Offer.Lot(q.Quote.Lot) // the offer is our own
	hash := identity.Hash(q.Raw)
	held := heldLot{devices: devicesOf(lot)}
	var why error
	for _, d := range held.devices {
		if len(held.release) == int(q.Quote.Quantity) {
			break
		}
		release, err := b.a.capacity.Occupy(d, quotedTo(hash))
		if err != nil {
			why = err
			continue
		}
		held.release = append(held.release, release)
	}
	if len(held.release) < int(q.Quote.Quantity) {
		held.free()
		return b.a.whyTaken(held.devices, why)
	}
	b.a.mu.Lock()
	b.a.quoted[hash] = held
	b.a.mu.Unlock()
	return nil
}

// release ends a quote's hold on its devices: they are leased, or free.
func (b quoteBook) release(quote wire.Hash) {
	b.a.mu.Lock()
	held := b.a.quoted[quote]
	delete(b.a.quoted, quote)
	b.a.mu.Unlock()
	held.free()
}

// Free fulfils [negotiate.QuoteBook].
func (b quoteBook) Free(ctx context.Context, quote wire.Hash) error {
	b.release(quote)
	return b.a.books.Update(ctx, func(tx *books.Tx) error { return forgetQuote(tx, quote) })
}

func forgetQuote(tx *books.Tx, quote wire.Hash) error {
	return tx.Of(kv.Provider).Delete(deviceKey(keyQuote, quote))
}

// Quotes fulfils [negotiate.QuoteBook].
func (b quoteBook) Quotes(ctx context.Context) (out []negotiate.KeptQuote, err error) {
	var stored []quoteRecord
	err = b.a.books.View(ctx, func(r *books.Reader) (err error) {
		stored, err = kv.All[quoteRecord](r.Of(kv.Provider), keyQuote)
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, rec := range stored {
		k := negotiate.KeptQuote{Raw: rec.Quote}
		if k.Quote, err = market.OpenQuote(rec.Quote); err != nil {
			return nil, fmt.Errorf("stored quote: %w", err)
		}
		if k.Offer, err = market.OpenSealedOffer(rec.Offer, rec.OfferProof); err != nil {
			return nil, fmt.Errorf("offer of a stored quote: %w", err)
		}
		out = append(out, k)
	}
	return out, nil
}
