package negotiate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// sellWithin bounds one sale: a durable commit takes milliseconds, so a store that is slower than this is broken.
const sellWithin = 20 * time.Second

// MaxVoucher is the largest opening voucher that a seller reads, in bytes.
const MaxVoucher = 2 << 10

// Offers finds the offers that this provider stands by; announce.Publisher fulfils it. Safe for concurrent use.
type Offers interface {
	Own(hash wire.Hash) (market.SealedOffer, bool)
}

// Sale is one checked order: the Accept is signed by a device with the power to trade that is the peer itself, it fits the offer and
// its needs fit the lot, and the opening voucher is the one it names. The voucher's meaning, the account's credit, whether the
// owner serves it and what is free are for the one who sells.
type Sale struct {
	ID            market.LeaseID
	Accept        market.Accept
	AcceptRaw     []byte
	VoucherRaw    []byte
	DelegationRaw []byte
	Delegation    identity.Delegation // of the renter's device
	Needs         work.Needs
	Offer         market.SealedOffer
	Lot           market.Lot
	Peer          identity.PeerID
	Quote         wire.Hash // that it is under, whose devices are held for it; zero: at the offer's price
}

// Sales is what the provider's agent does in its store. Safe for concurrent use.
type Sales interface {
	// Sold gives the sealed lease of that id if there is one, ended or not; nil if there is none.
	Sold(ctx context.Context, id market.LeaseID) (leaseRaw []byte, err error)
	// Sell takes the slots, holds the credit, signs the lease and writes all of it in one durable transaction before it returns the
	// sealed lease. The first Accept in its log wins: the same Accept again, at the same time too, gets the same bytes. A refusal is
	// a [reason.Error].
	Sell(ctx context.Context, s Sale) (leaseRaw []byte, err error)
}

// Seller answers orders. Safe for concurrent use.
type Seller struct {
	dev    *identity.Device
	offers Offers
	sales  Sales
	quotes *Quoter
}

// NewSeller makes the seller of a provider's device; without a quoter it sells at the offer's price alone.
func NewSeller(dev *identity.Device, offers Offers, sales Sales, quotes *Quoter) (*Seller, error) {
	if dev == nil || offers == nil || sales == nil {
		return nil, errors.New("negotiate: a seller needs a device, offers and sales")
	}
	return &Seller{dev: dev, offers: offers, sales: sales, quotes: quotes}, nil
}

// Limits is what the protocol may cost: an order is one question and one durable write.
func Limits() p2p.Limits { return p2p.Limits{Streams: 64, PeerStreams: 4, Idle: 30 * time.Second} }

// Handler serves work.ProtoTrade; give it to p2p.Network.Handle with [Limits].
func (s *Seller) Handler() p2p.Handler {
	return p2p.Answer(work.MaxMessage, func(ctx context.Context, from identity.PeerID, o work.Order) (work.Sold, error) {
		lease, err := s.Answer(ctx, from, o, time.Now())
		if err != nil {
			return work.Sold{}, Refusal(err)
		}
		return work.Sold{Lease: lease, Delegation: s.dev.Delegation()}, nil
	})
}

// Answer judges an order of peer at now and sells, or says why not: a [reason.Error] for what a person can act on, a [p2p.Error] or an
// error of wire and identity for a peer that does not keep to the protocol.
func (s *Seller) Answer(ctx context.Context, peer identity.PeerID, o work.Order, now time.Time) (leaseRaw []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, sellWithin)
	defer cancel()
	sale, err := openOrder(peer, o)
	if err != nil {
		return nil, err
	}
	if leaseRaw, err = s.repeat(ctx, sale); err != nil || leaseRaw != nil {
		return leaseRaw, err
	}
	if len(o.Quote) > 0 {
		return s.sellQuoted(ctx, sale, o.Quote)
	}
	var ok bool
	if sale.Offer, ok = s.offers.Own(sale.Accept.Offer); !ok {
		return nil, reason.Errorf(reason.OfferUnknown, "offer %s", sale.Accept.Offer.Short())
	}
	if err := market.CheckAccept(sale.Offer, sale.Accept, now); err != nil {
		return nil, err
	}
	return s.sell(ctx, sale)
}

// sellQuoted sells what a quote holds; the quote is used up if it is sold, and stands as before if not.
func (s *Seller) sellQuoted(ctx context.Context, sale Sale, raw []byte) ([]byte, error) {
	if s.quotes == nil {
		return nil, reason.Errorf(reason.QuoteLapsed, "quote %s", identity.Hash(raw).Short())
	}
	kept, done, err := s.quotes.take(ctx, raw)
	if err != nil {
		return nil, err
	}
	var lease []byte
	defer func() { done(lease != nil) }()
	sale.Offer, sale.Quote = kept.Offer, identity.Hash(raw)
	if err := market.CheckQuoted(kept.Offer, kept.Quote, raw, sale.Accept); err != nil {
		return nil, err
	}
	lease, err = s.sell(ctx, sale)
	return lease, err
}

// sell judges the needs of a sale whose terms were judged, and sells it.
func (s *Seller) sell(ctx context.Context, sale Sale) ([]byte, error) {
	sale.Lot, _ = sale.Offer.Lot(sale.Accept.Lot) // its terms are judged: it is there
	if err := sale.Needs.Fit(sale.Lot, sale.Accept.Quantity); err != nil {
		return nil, err
	}
	leaseRaw, err := s.sales.Sell(ctx, sale)
	if err != nil {
		return nil, fmt.Errorf("sell lease %s: %w", sale.ID.Short(), err)
	}
	return leaseRaw, nil
}

// openOrder checks everything about an order that needs no offer and no store.
func openOrder(peer identity.PeerID, o work.Order) (Sale, error) {
	a, err := market.OpenAccept(o.Accept)
	if errors.Is(err, market.ErrInvalid) {
		return Sale{}, p2p.Errorf(p2p.KindBadRequest, "%v", err)
	}
	if err != nil {
		return Sale{}, err
	}
	if a.Device != peer {
		return Sale{}, p2p.Errorf(p2p.KindForbidden, "the accept is signed by device %s, the connection is of %s", a.Device.Short(), peer.Short())
	}
	d, err := market.OpenDelegation(o.Delegation, a.Delegation, a.Header, identity.PowerTrade)
	if err != nil {
		return Sale{}, err
	}
	if err := o.Needs.Validate(); err != nil {
		return Sale{}, p2p.Errorf(p2p.KindBadRequest, "%v", err)
	}
	needs, err := o.Needs.Hash()
	switch {
	case err != nil:
		return Sale{}, err
	case needs != a.Needs:
		return Sale{}, p2p.Errorf(p2p.KindBadRequest, "the accept names other needs than the order has")
	case len(o.Voucher) > MaxVoucher:
		return Sale{}, p2p.Errorf(p2p.KindBadRequest, "opening voucher of %d bytes, want at most %d", len(o.Voucher), MaxVoucher)
	case identity.Hash(o.Voucher) != a.Voucher:
		return Sale{}, p2p.Errorf(p2p.KindBadRequest, "the accept names another opening voucher than the order has")
	}
	return Sale{
		ID: a.ID(), Accept: a, AcceptRaw: o.Accept, VoucherRaw: o.Voucher, DelegationRaw: o.Delegation, Delegation: d,
		Needs: o.Needs, Peer: peer,
	}, nil
}

// repeat gives the lease that this very Accept got before, though the offer may be gone by now. Another Accept with the same id is a
// mistake of the renter.
func (s *Seller) repeat(ctx context.Context, sale Sale) ([]byte, error) {
	raw, err := s.sales.Sold(ctx, sale.ID)
	if err != nil {
		return nil, fmt.Errorf("look up lease %s: %w", sale.ID.Short(), err)
	}
	if raw == nil {
		return nil, nil
	}
	l, err := market.OpenLease(raw)
	if err != nil {
		return nil, fmt.Errorf("own lease %s: %w", sale.ID.Short(), err)
	}
	if !bytes.Equal(l.Accept, sale.AcceptRaw) {
		return nil, p2p.Errorf(p2p.KindConflict, "lease %s was sold for another accept with the same nonce", sale.ID.Short())
	}
	return raw, nil
}

// Lease fills a lease for a sale, to be sealed by dev under market.DomainLease inside the one transaction: slots, generations and
// credit are of the provider's store.
func Lease(dev *identity.Device, sale Sale, slots []market.SlotGeneration, credit money.Micro) (market.Lease, error) {
	hold, err := market.Hold(sale.Accept.Rate, sale.Accept.Quantity, sale.Lot.MinTerm)
	if err != nil {
		return market.Lease{}, fmt.Errorf("hold for lease %s: %w", sale.ID.Short(), err)
	}
	l := market.Lease{
		Header: dev.Header(market.Version), Delegation: dev.DelegationHash(), ID: sale.ID, Accept: sale.AcceptRaw, Slots: slots,
		Hold: hold, Credit: credit, ReadyIn: work.ReadyIn, PrepareIn: work.PrepareIn,
	}
	if err := l.Validate(); err != nil {
		return market.Lease{}, err
	}
	return l, nil
}
