package renter

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market/book"
	"github.com/gpufair/gpufair/market/negotiate"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/wire"
	"github.com/gpufair/gpufair/renter/control/api"
)

const (
	askedOffers = 8               // lots that one run asks for a quote
	quoteWithin = 3 * time.Second // for all of them, at once: a lease is to be had in 5
)

// lotKey names a lot of an offer.
type lotKey struct {
	offer wire.Hash
	lot   uint8
}

func keyOf(f book.Found) lotKey { return lotKey{f.Entry.Hash, f.Lot.ID} }

// asked is what became of one demand.
type asked struct {
	found book.Found
	quote *negotiate.Quoted // nil: the provider gives no quotes, and its offer's price counts
	err   error
}

// readPrice reads the highest price of a request, and whether it is to be asked for.
func (p *planned) readPrice(req api.RunRequest) (err error) {
	switch {
	case req.MaxPrice == "":
		return nil
	case req.Bid != "":
		return refuse("a highest price and a bid exclude each other: a bid is the price")
	}
	if p.most, err = money.ParseRate(req.MaxPrice); err != nil || p.most == 0 {
		return refuse("max price %q: want a price above 0 per device-hour, such as 0.35", req.MaxPrice)
	}
	p.asks = !req.Buy
	return nil
}

// within leaves out the offers that cost more than the request's highest price, where no quotes are asked for.
func (p *planned) within(offers []book.Found) ([]book.Found, error) {
	if p.most == 0 || p.asks {
		return offers, nil
	}
	least := offers[0].Lot.Price
	offers = slices.DeleteFunc(offers, func(f book.Found) bool {
		least = min(least, f.Lot.Price)
		return f.Lot.Price > p.most
	})
	if len(offers) == 0 {
		return nil, reason.Errorf(reason.PriceBelow, "the cheapest that matches is %v, and %v is the most", least, p.most)
	}
	return offers, nil
}

// quotes asks the planned offers for a firm price, all at once, and leaves those that quoted one: the cheapest first, and of equal ones in the
// order of the plan. It tells send each answer. The error is a [reason.Error] if nobody quoted.
func (a *Agent) quotes(ctx context.Context, p *planned, send func(api.RunEvent) error) error {
	asking, cancel := context.WithTimeout(ctx, quoteWithin)
	defer cancel()
	answers := make([]asked, len(p.offers))
	var all sync.WaitGroup
	for i, f := range p.offers {
		all.Go(func() { answers[i] = a.askQuote(asking, p, f) })
	}
	all.Wait()
	if ctx.Err() != nil {
		a.leave(quotesOf(answers)...)
		return ctx.Err()
	}
	p.offers, p.quoted = nil, map[lotKey]negotiate.Quoted{}
	for _, w := range answers {
		if w.err == nil {
			p.offers = append(p.offers, w.found)
		}
		if w.quote != nil {
			p.quoted[keyOf(w.found)] = *w.quote
		}
		if err := send(a.viewQuote(w)); err != nil {
			a.leave(quotesOf(answers)...)
			return err
		}
	}
	slices.SortStableFunc(p.offers, func(x, y book.Found) int { return cmp.Compare(x.Lot.Price, y.Lot.Price) })
	if len(p.offers) == 0 {
		return reason.Errorf(reason.NoQuote, "%s asked for %v an hour at most; %s says: %s", count(len(answers), "offer"), p.most,
			a.viewOffer(answers[0].found).ID, whyNot(answers[0].err))
	}
	return nil
}

// askQuote asks for the price of one lot; of what is found the price is the quote's.
func (a *Agent) askQuote(ctx context.Context, p *planned, f book.Found) asked {
	w := asked{found: f}
	f.Lot.Price = min(f.Lot.Price, p.most)
	term, err := p.term(f.Lot)
	if err != nil {
		w.err = reason.Errorf(reason.TermOutOfRange, "%v", err)
		return w
	}
	d := negotiate.Demand{Lot: f.Lot.ID, Quantity: p.needs.Devices, Most: p.most, Unit: f.Entry.Unit, Term: term, Needs: p.needs}
	if _, err := rand.Read(d.Nonce[:]); err != nil {
		w.err = fmt.Errorf("nonce: %w", err)
		return w
	}
	q, err := negotiate.AskQuote(ctx, a.Network, a.conf.Network, a.Device, f.Entry.SealedOffer, d)
	switch {
	case err == nil:
		w.quote, w.found.Lot.Price = &q, q.Quote.Rate
	case errors.Is(err, p2p.ErrUnsupported) && w.found.Lot.Price > p.most:
		w.err = reason.Errorf(reason.PriceBelow, "it gives no quotes; its price is %v, and %v the most", w.found.Lot.Price, p.most)
	case errors.Is(err, p2p.ErrUnsupported): // its offer's price is as firm
	default:
		w.err = err
	}
	return w
}

// viewQuote is an answer for people.
func (a *Agent) viewQuote(w asked) api.RunEvent {
	o := a.viewOffer(w.found)
	v := api.Quote{Offer: o.ID, Provider: o.Provider, Model: o.Model, Unit: o.Unit}
	if w.err == nil {
		v.Price, v.Firm = w.found.Lot.Price.String(), w.quote != nil
	} else {
		why := whyNot(w.err)
		v.Code, v.Detail = string(why.Code), why.String()
	}
	return api.RunEvent{Step: api.StepQuote, Quote: &v}
}

// whyNot is why there is no quote; what carries no reason kept the provider from answering.
func whyNot(err error) reason.Reason {
	why, ok := reason.Of(err)
	if !ok {
		why = reason.New(reason.QuoteSilent, "%v", err)
	}
	return why.Clean()
}

func quotesOf(list []asked) (out []negotiate.Quoted) {
	for _, w := range list {
		if w.quote != nil {
			out = append(out, *w.quote)
		}
	}
	return out
}

// leave tells providers that their quotes are not wanted, beside everything else.
func (a *Agent) leave(list ...negotiate.Quoted) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.stopped { // they lapse
		return
	}
	for _, q := range list {
		a.running.Go(func() {
			if err := negotiate.LeaveQuote(a.ctx, a.Network, a.conf.Network, a.Device, q); err != nil {
				a.Log.Debug("quote not left; it lapses", "provider", q.Quote.Account.Short(), "err", err)
			}
		})
	}
}

// leaveOthers leaves the quotes besides that of the lot that was bought, once its lease is here.
func (p *planned) leaveOthers(a *Agent, bought lotKey) {
	var rest []negotiate.Quoted
	for k, q := range p.quoted {
		if k != bought {
			rest = append(rest, q)
		}
	}
	p.quoted = nil
	a.leave(rest...)
}

// quoteOf is the quote that an order for a lot is under; nil: at the offer's price.
func (p *planned) quoteOf(f book.Found) *negotiate.Quoted {
	q, ok := p.quoted[keyOf(f)]
	if !ok {
		return nil
	}
	return &q
}
