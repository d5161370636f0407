package negotiate

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Limits of quotes.
const (
	maxQuotes  = 3                // of one account at one provider that hold devices at once (spec: market, Request for quotes)
	quoteValid = 20               // seconds
	maxDemand  = 8 << 10          // bytes of a question or answer
	quoteIdle  = 10 * time.Second // a quote is one durable write
)

// Demand asks one provider for a firm price.
type Demand struct {
	Nonce    wire.Hash  `cbor:"1,keyasint"` // random: the same demand again gets the same quote
	Offer    wire.Hash  `cbor:"2,keyasint"`
	Lot      uint8      `cbor:"3,keyasint"`
	Quantity uint32     `cbor:"4,keyasint"` // devices
	Most     money.Rate `cbor:"5,keyasint"` // per device-hour; who can't serve it for that says so
	Unit     money.Unit `cbor:"6,keyasint"` // of Most
	Term     uint32     `cbor:"7,keyasint"` // seconds, at most
	Needs    work.Needs `cbor:"8,keyasint"` // Devices is Quantity
}

// quoteAsk is a question on work.ProtoQuote: a demand, or the hash of a quote that is not wanted.
type quoteAsk struct {
	Delegation []byte     `cbor:"1,keyasint"`
	Demand     *Demand    `cbor:"2,keyasint,omitempty"`
	Leave      *wire.Hash `cbor:"3,keyasint,omitempty"`
}

// quoteAnswer is the quote for a demand; nothing for one that is left.
type quoteAnswer struct {
	Quote      []byte `cbor:"1,keyasint,omitempty"` // sealed
	Delegation []byte `cbor:"2,keyasint,omitempty"` // the provider's
}

// KeptQuote is a quote that stands, with the offer that it is under.
type KeptQuote struct {
	Quote market.Quote
	Raw   []byte
	Offer market.SealedOffer
}

// hash names the quote.
func (k KeptQuote) hash() wire.Hash { return identity.Hash(k.Raw) }

// Demanded is a demand that fits its lot, of a device that may trade for its account.
type Demanded struct {
	Demand
	Delegation identity.Delegation
	Offer      market.SealedOffer
	Lot        market.Lot
}

// QuoteBook is what the provider's agent does for quotes. Safe for concurrent use.
type QuoteBook interface {
	// Price is what the owner wants for a demand now, at most what it offers. A refusal is a [reason.Error].
	Price(ctx context.Context, d Demanded) (money.Rate, error)
	// Hold keeps the quote's devices from others and stores the quote, durably, before it is sent; or refuses and holds nothing.
	Hold(ctx context.Context, q KeptQuote) error
	// Free ends what Hold began. A quote that was sold was forgotten in the transaction of the sale.
	Free(ctx context.Context, quote wire.Hash) error
	// Quotes are the stored ones, after a start.
	Quotes(ctx context.Context) ([]KeptQuote, error)
	// HoldAgain keeps the devices of a stored quote from others once more.
	HoldAgain(q KeptQuote) error
}

// quoteState is where a quote stands; it leaves the table when it is sold, left or lapsed.
type quoteState uint8

const (
	quoteHeld quoteState = iota // may be accepted
	quoteSale                   // an accept is being sold: it does not lapse meanwhile
)

// held is a quote that stands.
type held struct {
	KeptQuote
	until time.Time // by this process's clock
	state quoteState
}

// Quoter answers demands, and holds what it quoted until it is accepted, left or lapsed. Safe for concurrent use.
type Quoter struct {
	dev    *identity.Device
	offers Offers
	book   QuoteBook

	asking sync.Mutex // one demand at a time: the limit of an account is one's own

	mu   sync.Mutex
	held map[wire.Hash]*held // guarded by mu
	news chan struct{}       // guarded by mu; closed at each change
}

// NewQuoter makes the quoter of a provider's device.
func NewQuoter(dev *identity.Device, offers Offers, book QuoteBook) (*Quoter, error) {
	if dev == nil || offers == nil || book == nil {
		return nil, errors.New("negotiate: a quoter needs a device, offers and a book")
	}
	return &Quoter{dev: dev, offers: offers, book: book, held: map[wire.Hash]*held{}, news: make(chan struct{})}, nil
}

// QuoteLimits is what the protocol may cost.
func QuoteLimits() p2p.Limits { return p2p.Limits{Streams: 64, PeerStreams: 4, Idle: quoteIdle} }

// Handler serves work.ProtoQuote; give it to p2p.Network.Handle with [QuoteLimits].
func (q *Quoter) Handler() p2p.Handler {
	return p2p.Answer(maxDemand, func(ctx context.Context, from identity.PeerID, ask quoteAsk) (quoteAnswer, error) {
		a, err := q.answer(ctx, from, ask, time.Now())
		return a, Refusal(err)
	})
}

// Resume takes stored quotes up again that still stand at now. Call it once, before anything is sold.
func (q *Quoter) Resume(ctx context.Context, now time.Time) error {
	stored, err := q.book.Quotes(ctx)
	if err != nil {
		return fmt.Errorf("stored quotes: %w", err)
	}
	for _, k := range stored {
		left := time.UnixMilli(k.Quote.IssuedAt).Add(k.Quote.Lasts()).Sub(now)
		if left > 0 && q.book.HoldAgain(k) == nil {
			q.mu.Lock()
			q.held[k.hash()] = &held{KeptQuote: k, until: now.Add(min(left, k.Quote.Lasts()))} // a clock that was set back gives no more
			q.mu.Unlock()
			continue
		}
		if err := q.book.Free(ctx, k.hash()); err != nil {
			return fmt.Errorf("stored quote %s: %w", k.hash().Short(), err)
		}
	}
	return nil
}

// Run frees what lapses, until ctx ends. What stands then is for the next process.
func (q *Quoter) Run(ctx context.Context) error {
	for {
		q.mu.Lock()
		news := q.news
		q.mu.Unlock()
		next := q.lapse(ctx, time.Now())
		timer := time.NewTimer(next)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-news:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// lapse frees the quotes whose time is over at now, and says when to look again.
func (q *Quoter) lapse(ctx context.Context, now time.Time) time.Duration {
	q.mu.Lock()
	var over []wire.Hash
	next := time.Minute
	for hash, h := range q.held {
		switch left := h.until.Sub(now); {
		case h.state == quoteSale: // its end is news
		case left <= 0:
			delete(q.held, hash)
			over = append(over, hash)
		default:
			next = min(next, left)
		}
	}
	q.mu.Unlock()
	for _, hash := range over {
		_ = q.book.Free(ctx, hash) // what the store keeps of it, the next start drops
	}
	return next
}

func (q *Quoter) changed() {
	close(q.news)
	q.news = make(chan struct{})
}

// answer judges a question of peer at now. The error is a [reason.Error], or of p2p for a peer that does not keep to the protocol.
func (q *Quoter) answer(ctx context.Context, peer identity.PeerID, ask quoteAsk, now time.Time) (quoteAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, sellWithin)
	defer cancel()
	d, err := identity.OpenDelegation(ask.Delegation)
	if err != nil || d.Device != peer || d.Powers&identity.PowerTrade == 0 {
		return quoteAnswer{}, reason.Errorf(reason.DelegationPowers, "whoever asks for a quote shows that it may trade for its account")
	}
	switch {
	case ask.Leave != nil:
		return quoteAnswer{}, q.leave(ctx, d.Account, *ask.Leave)
	case ask.Demand == nil:
		return quoteAnswer{}, p2p.Errorf(p2p.KindBadRequest, "neither a demand nor a quote to be left")
	}
	q.asking.Lock()
	defer q.asking.Unlock()
	raw, err := q.quote(ctx, d, *ask.Demand, now)
	if err != nil {
		return quoteAnswer{}, err
	}
	return quoteAnswer{Quote: raw, Delegation: q.dev.Delegation()}, nil
}

// leave frees a quote that its renter does not want. One that is gone, or being sold, is left as it is.
func (q *Quoter) leave(ctx context.Context, account identity.AccountID, hash wire.Hash) error {
	q.mu.Lock()
	h := q.held[hash]
	if h == nil || h.Quote.Renter != account || h.state != quoteHeld {
		q.mu.Unlock()
		return nil
	}
	delete(q.held, hash)
	q.changed()
	q.mu.Unlock()
	return q.book.Free(ctx, hash)
}

// quote gives the sealed quote for a demand, the one of before if it was asked before. One at a time.
func (q *Quoter) quote(ctx context.Context, by identity.Delegation, d Demand, now time.Time) ([]byte, error) {
	q.lapse(ctx, now)
	q.mu.Lock()
	n := 0
	for _, h := range q.held {
		if h.Quote.Renter != by.Account {
			continue
		}
		if h.Quote.Demand == d.Nonce {
			q.mu.Unlock()
			return h.Raw, nil
		}
		n++
	}
	q.mu.Unlock()
	if n >= maxQuotes {
		return nil, reason.Errorf(reason.QuoteLimit, "%d", n)
	}
	full, err := q.judge(by, d, now)
	if err != nil {
		return nil, err
	}
	rate, err := q.book.Price(ctx, full)
	if err != nil {
		return nil, err
	}
	if rate > d.Most {
		return nil, reason.Errorf(reason.QuoteFloor, "floor %v, %v asked for", rate, d.Most)
	}
	kept, err := q.seal(full, rate, now)
	if err != nil {
		return nil, err
	}
	if err := q.book.Hold(ctx, kept); err != nil {
		return nil, err
	}
	q.mu.Lock()
	q.held[kept.hash()] = &held{KeptQuote: kept, until: now.Add(kept.Quote.Lasts())}
	q.changed()
	q.mu.Unlock()
	return kept.Raw, nil
}

// judge checks a demand against the offer that it is under.
func (q *Quoter) judge(by identity.Delegation, d Demand, now time.Time) (Demanded, error) {
	full := Demanded{Demand: d, Delegation: by}
	switch err := d.Needs.Validate(); {
	case err != nil:
		return full, p2p.Errorf(p2p.KindBadRequest, "%v", err)
	case d.Nonce.IsZero() || d.Needs.Devices != d.Quantity:
		return full, p2p.Errorf(p2p.KindBadRequest, "a demand needs a nonce, and as many devices as its job needs")
	}
	var ok bool
	if full.Offer, ok = q.offers.Own(d.Offer); !ok {
		return full, reason.Errorf(reason.OfferUnknown, "offer %s", d.Offer.Short())
	}
	if full.Lot, ok = full.Offer.Lot(d.Lot); !ok {
		return full, reason.Errorf(reason.OfferUnknown, "it has no lot %d", d.Lot)
	}
	// An accept of the demand at any price would have to pass.
	err := market.CheckAccept(full.Offer, market.Accept{
		Offer: d.Offer, Provider: full.Offer.Account, Lot: d.Lot, Quantity: d.Quantity, Rate: market.MaxRate, Unit: d.Unit, Term: d.Term,
		Use: full.Offer.Terms.Use,
	}, now)
	if err != nil {
		return full, err
	}
	return full, d.Needs.Fit(full.Lot, d.Quantity)
}

// seal signs the quote for a demand.
func (q *Quoter) seal(d Demanded, rate money.Rate, now time.Time) (KeptQuote, error) {
	needs, err := d.Needs.Hash()
	if err != nil {
		return KeptQuote{}, err
	}
	k := KeptQuote{Offer: d.Offer, Quote: market.Quote{
		Header: q.dev.Header(market.Version), Delegation: q.dev.DelegationHash(), Demand: d.Nonce, Renter: d.Delegation.Account, Offer: d.Offer.Hash,
		Lot: d.Lot.ID, Quantity: d.Quantity, Rate: rate, Unit: d.Unit, Term: d.Term, Needs: needs, Use: d.Offer.Terms.Use,
		IssuedAt: now.UnixMilli(), Valid: quoteValid,
	}}
	rand.Read(k.Quote.Nonce[:]) // never fails
	if err := k.Quote.Validate(); err != nil {
		return KeptQuote{}, err
	}
	k.Raw, err = q.dev.Seal(market.DomainQuote, k.Quote)
	return k, err
}

// take begins the sale of a quote that stands; done ends it, and frees the devices if it was sold.
func (q *Quoter) take(ctx context.Context, raw []byte) (k KeptQuote, done func(sold bool), err error) {
	hash := identity.Hash(raw)
	q.lapse(ctx, time.Now())
	q.mu.Lock()
	defer q.mu.Unlock()
	h := q.held[hash]
	switch {
	case h == nil:
		return k, nil, reason.Errorf(reason.QuoteLapsed, "quote %s", hash.Short())
	case h.state == quoteSale:
		return k, nil, p2p.Errorf(p2p.KindUnavailable, "quote %s is being sold: ask again for the lease", hash.Short())
	}
	h.state = quoteSale
	return h.KeptQuote, func(sold bool) {
		q.mu.Lock()
		h.state = quoteHeld
		if sold {
			delete(q.held, hash)
		}
		q.changed()
		q.mu.Unlock()
		if sold {
			_ = q.book.Free(context.WithoutCancel(ctx), hash) // the sale has forgotten it; the devices are the lease's
		}
	}, nil
}
