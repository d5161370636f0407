package negotiate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Times of a purchase.
const (
	tryWithin  = 10 * time.Second // for one question and answer
	firstPause = 250 * time.Millisecond
	tries      = 5 // about 4 s of pauses: a connection that is not back by then needs another provider
)

// ErrOutcome says that an Accept was sent and no answer came: the provider may have sold. Buying again with the same [Purchase] settles
// it; without a Ready the provider withdraws the lease unpaid after work.ReadyIn seconds.
var ErrOutcome = errors.New("no answer to the order: it may have been sold")

// Order is what a renter wants of an offer.
type Order struct {
	Lot      uint8
	Quantity uint32     // devices
	Term     uint32     // seconds, at most
	Needs    work.Needs // Devices is Quantity
	Nonce    wire.Hash  // 32 random bytes; the caller's, since it must be stored before anything is sent. A quote has its own
	Quote    *Quoted    // that the order is under; nil: at the offer's price
}

// Purchase is an order signed and ready to send. Store it durably before [Buy]: after a crash or a lost answer the same bytes get the
// same lease.
type Purchase struct {
	ID         market.LeaseID
	Offer      market.SealedOffer
	Accept     market.Accept
	AcceptRaw  []byte
	VoucherRaw []byte
	Needs      work.Needs
	QuoteRaw   []byte // sealed; none: at the offer's price
}

// Prepare makes and signs the Accept of an order at the offer's price or under a quote, with the opening voucher that voucher makes for the lease's id.
// The offer's use terms count as accepted: show them before. The error is a [reason.Error] if the offer cannot serve the order.
func Prepare(
	dev *identity.Device, o market.SealedOffer, w Order, now time.Time, voucher func(market.LeaseID) ([]byte, error),
) (Purchase, error) {
	if err := w.Needs.Validate(); err != nil {
		return Purchase{}, err
	}
	needs, err := w.Needs.Hash()
	if err != nil {
		return Purchase{}, err
	}
	lot, ok := o.Lot(w.Lot)
	if !ok {
		return Purchase{}, reason.Errorf(reason.OfferUnknown, "it has no lot %d", w.Lot)
	}
	a := market.Accept{
		Header: dev.Header(market.Version), Delegation: dev.DelegationHash(), Offer: o.Hash, Provider: o.Account, Lot: w.Lot,
		Quantity: w.Quantity, Rate: lot.Price, Unit: o.Unit, Term: w.Term, Nonce: w.Nonce, Needs: needs, Use: o.Terms.Use,
	}
	var quote []byte
	if w.Quote != nil {
		quote, a.Rate, a.Nonce = w.Quote.Raw, w.Quote.Quote.Rate, identity.Hash(w.Quote.Raw)
		err = market.CheckQuoted(o, w.Quote.Quote, quote, a)
	} else {
		err = market.CheckAccept(o, a, now)
	}
	if err != nil {
		return Purchase{}, err
	}
	if err := w.Needs.Fit(lot, w.Quantity); err != nil {
		return Purchase{}, err
	}
	v, err := voucher(a.ID())
	if err != nil {
		return Purchase{}, fmt.Errorf("opening voucher of lease %s: %w", a.ID().Short(), err)
	}
	a.Voucher = identity.Hash(v)
	if err := a.Validate(); err != nil {
		return Purchase{}, err
	}
	raw, err := dev.Seal(market.DomainAccept, a)
	if err != nil {
		return Purchase{}, err
	}
	return Purchase{ID: a.ID(), Offer: o, Accept: a, AcceptRaw: raw, VoucherRaw: v, Needs: w.Needs, QuoteRaw: quote}, nil
}

// Deal is a purchase that the provider signed.
type Deal struct {
	Purchase
	Lease         market.Lease
	LeaseRaw      []byte
	DelegationRaw []byte // the provider's
}

// Buy sends a purchase to the provider's device and checks the lease that comes back: its signature, everything that
// [market.CheckLease] looks at, and the provider's delegation. While answers are lost it sends the same bytes again, at most five times.
// The error is a [reason.Error] if the provider refused or signed something else, wraps [p2p.ErrUnreachable] or [p2p.ErrUnsupported]
// if nothing was ever sent, and [ErrOutcome] if it cannot be known whether the provider sold.
func Buy(ctx context.Context, n p2p.Network, network string, dev *identity.Device, p Purchase) (Deal, error) {
	order := work.Order{Accept: p.AcceptRaw, Voucher: p.VoucherRaw, Delegation: dev.Delegation(), Needs: p.Needs, Quote: p.QuoteRaw}
	protocol := p2p.ProtocolID(network, work.ProtoTrade)
	provider := p2p.PeerAddr{Peer: p.Offer.Device, Addrs: p.Offer.Addrs}
	sent := false
	var err error
	for try, pause := 1, firstPause; ; try, pause = try+1, pause*2 {
		var sold work.Sold
		err = ask(ctx, n, provider, protocol, order, &sold)
		if err == nil {
			return p.check(sold)
		}
		if final(err) {
			return Deal{}, fmt.Errorf("buy lease %s: %w", p.ID.Short(), Typed(err))
		}
		sent = sent || !unsent(err)
		if try == tries || !sleep(ctx, pause) {
			break
		}
	}
	if sent {
		return Deal{}, fmt.Errorf("buy lease %s: %w: %w", p.ID.Short(), ErrOutcome, err)
	}
	return Deal{}, fmt.Errorf("buy lease %s: %w", p.ID.Short(), err)
}

func ask(ctx context.Context, n p2p.Network, to p2p.PeerAddr, protocol p2p.Protocol, o work.Order, sold *work.Sold) error {
	ctx, cancel := context.WithTimeout(ctx, tryWithin)
	defer cancel()
	if len(to.Addrs) > 0 {
		_ = n.Connect(ctx, to) // the provider may be one that we never met; where this fails the call says so
	}
	return p2p.Call(ctx, n, to.Peer, protocol, o, sold, work.MaxMessage)
}

// final reports whether the provider understood the order and did not sell, so that asking again is useless.
func final(err error) bool {
	var wired *p2p.Error
	if !errors.As(err, &wired) {
		return false
	}
	switch wired.Kind {
	case p2p.KindRefused, p2p.KindBadRequest, p2p.KindForbidden, p2p.KindVersion, p2p.KindConflict, p2p.KindNotFound:
		return true
	}
	return false // busy, internal, lost or late: the order may stand
}

// unsent reports whether the order certainly did not reach the provider's handler.
func unsent(err error) bool {
	return errors.Is(err, p2p.ErrUnreachable) || errors.Is(err, p2p.ErrUnsupported) || p2p.KindOf(err) == p2p.KindBusy
}

// check judges what the provider sold.
func (p Purchase) check(sold work.Sold) (Deal, error) {
	bad := func(err error) error {
		if _, ok := reason.Of(err); !ok {
			err = reason.Errorf(reason.LeaseInvalid, "%v", err)
		}
		return fmt.Errorf("buy lease %s: %w", p.ID.Short(), err)
	}
	l, err := market.OpenLease(sold.Lease)
	if err != nil {
		return Deal{}, bad(err)
	}
	if err := market.CheckLease(p.Offer, p.AcceptRaw, l); err != nil {
		return Deal{}, bad(err)
	}
	if _, err := market.OpenDelegation(sold.Delegation, l.Delegation, l.Header, identity.PowerProvide); err != nil {
		return Deal{}, bad(err)
	}
	return Deal{Purchase: p, Lease: l, LeaseRaw: sold.Lease, DelegationRaw: sold.Delegation}, nil
}

// sleep waits for d; false if ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
