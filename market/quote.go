package market

import (
	"time"

	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// DomainQuote is that of quotes.
const DomainQuote identity.Domain = "gpufair/quote/1"

// MaxQuote is the most bytes of a sealed quote.
const MaxQuote = 1 << 10

// Seconds that a quote stands: long enough to hear all who were asked and to order, and too short to keep devices from others.
const (
	MinQuoteValid = 10
	MaxQuoteValid = 30
)

// Quote is a provider's firm price for one account and one set of needs. Its devices are held while it stands. An Accept under it has the
// hash of the quote's envelope for its nonce, so a quote makes one lease at most, however often it is accepted.
type Quote struct {
	identity.Header
	Delegation wire.Hash          `cbor:"4,keyasint"`
	Demand     wire.Hash          `cbor:"5,keyasint"` // nonce of the demand that it answers
	Renter     identity.AccountID `cbor:"6,keyasint"` // whom it is for
	Offer      wire.Hash          `cbor:"7,keyasint"`
	Lot        uint8              `cbor:"8,keyasint"`
	Quantity   uint32             `cbor:"9,keyasint"` // devices
	Rate       money.Rate         `cbor:"10,keyasint"`
	Unit       money.Unit         `cbor:"11,keyasint"`
	Term       uint32             `cbor:"12,keyasint"` // seconds, at most
	Needs      wire.Hash          `cbor:"13,keyasint"` // of the job's needs (work.Needs)
	Use        wire.Hash          `cbor:"14,keyasint"` // of the owner's use terms
	IssuedAt   int64              `cbor:"15,keyasint"` // Unix milliseconds by the provider's clock, for itself after a restart
	Valid      uint32             `cbor:"16,keyasint"` // seconds from when it was made; each side times them by its own clock
	Nonce      wire.Hash          `cbor:"17,keyasint"` // random
}

// Validate checks the limits of a quote, whatever offer it is under.
func (q Quote) Validate() error {
	const what = "quote"
	switch {
	case q.Delegation.IsZero() || q.Demand.IsZero() || q.Renter.IsZero() || q.Offer.IsZero() || q.Needs.IsZero() || q.Nonce.IsZero():
		return invalid(what, "delegation, demand, renter, offer, needs and nonce must all be there")
	case q.Quantity == 0 || q.Quantity > MaxSlots:
		return invalid(what, "%d devices, want 1 to %d", q.Quantity, MaxSlots)
	case q.Rate > MaxRate:
		return invalid(what, "rate %v, want at most %v", q.Rate, MaxRate)
	case q.Term == 0 || q.Term > MaxTerm:
		return invalid(what, "term of %d s, want 1 to %d", q.Term, MaxTerm)
	case q.IssuedAt <= 0:
		return invalid(what, "issue time %d", q.IssuedAt)
	case q.Valid < MinQuoteValid || q.Valid > MaxQuoteValid:
		return invalid(what, "valid for %d s, want %d to %d", q.Valid, MinQuoteValid, MaxQuoteValid)
	}
	if err := q.Unit.Validate(); err != nil {
		return invalid(what, "%v", err)
	}
	return nil
}

// OpenQuote checks size, signature and limits of a sealed quote. Whether the device may provide is for its delegation.
func OpenQuote(raw []byte) (Quote, error) { return openMoney[Quote](DomainQuote, raw, MaxQuote) }

// Lasts is how long the quote stands from when it was made.
func (q Quote) Lasts() time.Duration { return time.Duration(q.Valid) * time.Second }

// Under reports whether the quote is one of the offer's own provider, under that offer.
func (q Quote) Under(o SealedOffer) bool {
	return q.Account == o.Account && q.Device == o.Device && q.Offer == o.Hash && q.Unit == o.Unit && q.Use == o.Terms.Use
}

// CheckQuoted judges an accept under a quote of the provider, whose envelope is quoteRaw, and the offer that it is under; whether the quote
// still stands is for who made it. The error is a [reason.Error].
func CheckQuoted(o SealedOffer, q Quote, quoteRaw []byte, a Accept) error {
	if err := checkTerms(o, a); err != nil {
		return err
	}
	bad := func(format string, args ...any) error { return reason.Errorf(reason.QuoteDiffers, format, args...) }
	switch {
	case !q.Under(o):
		return bad("the quote is under another offer")
	case a.Nonce != identity.Hash(quoteRaw):
		return bad("the accept names another quote")
	case a.Account != q.Renter:
		return bad("the quote is for account %s", q.Renter.Short())
	case a.Lot != q.Lot || a.Quantity != q.Quantity || a.Needs != q.Needs:
		return bad("the accept is for another lot, number of devices or job")
	case a.Rate != q.Rate:
		return bad("%v quoted, %v accepted", q.Rate, a.Rate)
	case a.Term > q.Term:
		return bad("%d s quoted, %d s accepted", q.Term, a.Term)
	}
	return nil
}
