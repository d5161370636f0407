package market_test

import (
	"errors"
	"testing"
	"time"

	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/markettest"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// An accept is for what was quoted, in every figure, or it is refused.
func TestCheckQuoted(t *testing.T) {
	provider, renter := markettest.Device(t), markettest.Device(t)
	o := markettest.Sealed(t, provider, markettest.Offer(provider, 1, time.Now()))
	good := markettest.Accept(renter, o, markettest.GPULot)
	quote := market.Quote{
		Header: provider.Header(market.Version), Delegation: provider.DelegationHash(), Demand: markettest.Hash("demand"), Renter: renter.Account(),
		Offer: o.Hash, Lot: good.Lot, Quantity: 1, Rate: good.Rate / 2, Unit: o.Unit, Term: good.Term, Needs: good.Needs, Use: o.Terms.Use,
		IssuedAt: time.Now().UnixMilli(), Valid: 20, Nonce: markettest.Hash("nonce"),
	}
	raw := markettest.Seal(t, provider, market.DomainQuote, quote)
	good.Rate, good.Nonce = quote.Rate, identity.Hash(raw)
	if err := market.CheckAccept(o, good, time.Now()); !reason.Is(err, reason.PriceBelow) {
		t.Fatal("the price of the quote is the offer's: the test shows nothing", err)
	}
	for name, tt := range map[string]struct {
		quote func(*market.Quote)
		order func(*market.Accept)
		want  reason.Code
	}{
		"good":             {},
		"shorter":          {order: func(a *market.Accept) { a.Term-- }},
		"longer":           {order: func(a *market.Accept) { a.Term++ }, want: reason.QuoteDiffers},
		"cheaper":          {order: func(a *market.Accept) { a.Rate-- }, want: reason.QuoteDiffers},
		"dearer":           {order: func(a *market.Accept) { a.Rate++ }, want: reason.QuoteDiffers},
		"more devices":     {order: func(a *market.Accept) { a.Quantity++ }, want: reason.QuoteDiffers},
		"other job":        {order: func(a *market.Accept) { a.Needs = markettest.Hash("x") }, want: reason.QuoteDiffers},
		"other quote":      {order: func(a *market.Accept) { a.Nonce = markettest.Hash("x") }, want: reason.QuoteDiffers},
		"other renter":     {order: func(a *market.Accept) { a.Account = provider.Account() }, want: reason.QuoteDiffers},
		"other terms":      {order: func(a *market.Accept) { a.Use = markettest.Hash("x") }, want: reason.TermsChanged},
		"other offer":      {order: func(a *market.Accept) { a.Offer = markettest.Hash("x") }, want: reason.OfferUnknown},
		"of another":       {quote: func(q *market.Quote) { q.Account = renter.Account() }, want: reason.QuoteDiffers},
		"under another":    {quote: func(q *market.Quote) { q.Offer = markettest.Hash("x") }, want: reason.QuoteDiffers},
		"of other terms":   {quote: func(q *market.Quote) { q.Use = markettest.Hash("x") }, want: reason.QuoteDiffers},
		"of other devices": {quote: func(q *market.Quote) { q.Device = renter.Peer() }, want: reason.QuoteDiffers},
	} {
		q, a := quote, good
		if tt.quote != nil {
			tt.quote(&q)
		}
		if tt.order != nil {
			tt.order(&a)
		}
		err := market.CheckQuoted(o, q, raw, a)
		if why, _ := reason.Of(err); why.Code != tt.want || (err == nil) != (tt.want == "") {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
}

func TestQuoteLimits(t *testing.T) {
	provider := markettest.Device(t)
	good := market.Quote{
		Header: provider.Header(market.Version), Delegation: provider.DelegationHash(), Demand: markettest.Hash("demand"), Renter: provider.Account(),
		Offer: markettest.Hash("offer"), Quantity: 1, Unit: "CREDIT", Term: 1, Needs: markettest.Hash("needs"), IssuedAt: 1, Valid: 20, Nonce: markettest.Hash("nonce"),
	}
	if _, err := market.OpenQuote(markettest.Seal(t, provider, market.DomainQuote, good)); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*market.Quote){
		"no delegation": func(q *market.Quote) { q.Delegation = wire.Hash{} },
		"no demand":     func(q *market.Quote) { q.Demand = wire.Hash{} },
		"no nonce":      func(q *market.Quote) { q.Nonce = wire.Hash{} },
		"no devices":    func(q *market.Quote) { q.Quantity = 0 },
		"rate":          func(q *market.Quote) { q.Rate = market.MaxRate + 1 },
		"term":          func(q *market.Quote) { q.Term = market.MaxTerm + 1 },
		"too short":     func(q *market.Quote) { q.Valid = market.MinQuoteValid - 1 },
		"too long":      func(q *market.Quote) { q.Valid = market.MaxQuoteValid + 1 },
		"no time":       func(q *market.Quote) { q.IssuedAt = 0 },
		"unit":          func(q *market.Quote) { q.Unit = "" },
	} {
		q := good
		spoil(&q)
		if _, err := market.OpenQuote(markettest.Seal(t, provider, market.DomainQuote, q)); !errors.Is(err, market.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
