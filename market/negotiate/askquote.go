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
)

// leaveWithin bounds the word that a quote is not wanted: without it the quote lapses.
const leaveWithin = 5 * time.Second

// Quoted is a provider's checked quote.
type Quoted struct {
	Quote market.Quote
	Raw   []byte
}

// AskQuote asks the provider of an offer for a firm price and checks what comes back: its signature, the provider's power, and that it
// answers this demand of this account at no more than the demand's highest price. The error is a [reason.Error] if the provider refuses,
// quotes something else or does not answer before ctx ends, and wraps [p2p.ErrUnsupported] if it gives no quotes.
func AskQuote(ctx context.Context, n p2p.Network, network string, dev *identity.Device, o market.SealedOffer, d Demand) (Quoted, error) {
	if len(o.Addrs) > 0 {
		_ = n.Connect(ctx, p2p.PeerAddr{Peer: o.Device, Addrs: o.Addrs}) // the provider may be one that we never met; where this fails the call says so
	}
	d.Offer = o.Hash
	var got quoteAnswer
	err := p2p.Call(ctx, n, o.Device, p2p.ProtocolID(network, work.ProtoQuote), quoteAsk{Delegation: dev.Delegation(), Demand: &d}, &got, maxDemand)
	if err != nil {
		return Quoted{}, unquoted(ctx, err)
	}
	q, err := market.OpenQuote(got.Quote)
	if err != nil {
		return Quoted{}, reason.Errorf(reason.QuoteDiffers, "%v", err)
	}
	if _, err := market.OpenDelegation(got.Delegation, q.Delegation, q.Header, identity.PowerProvide); err != nil {
		return Quoted{}, reason.Errorf(reason.QuoteDiffers, "%v", err)
	}
	needs, err := d.Needs.Hash()
	if err != nil {
		return Quoted{}, err
	}
	switch {
	case !q.Under(o):
		err = reason.Errorf(reason.QuoteDiffers, "it is under another offer")
	case q.Demand != d.Nonce || q.Renter != dev.Account():
		err = reason.Errorf(reason.QuoteDiffers, "it answers another demand")
	case q.Lot != d.Lot || q.Quantity != d.Quantity || q.Needs != needs || q.Term < d.Term:
		err = reason.Errorf(reason.QuoteDiffers, "it is for another lot, number of devices, term or job")
	case q.Rate > d.Most:
		err = reason.Errorf(reason.QuoteDiffers, "it quotes %v, and %v was the most", q.Rate, d.Most)
	}
	return Quoted{Quote: q, Raw: got.Quote}, err
}

// unquoted is why there is no quote.
func unquoted(ctx context.Context, err error) error {
	err = Typed(err)
	if _, ok := reason.Of(err); ok || errors.Is(err, p2p.ErrUnsupported) {
		return err
	}
	if ctx.Err() != nil {
		return reason.Errorf(reason.QuoteSilent, "")
	}
	return fmt.Errorf("%w: %w", reason.Errorf(reason.QuoteSilent, "%v", err), err)
}

// LeaveQuote tells a provider that a quote is not wanted, so that its devices are free at once. It need not arrive.
func LeaveQuote(ctx context.Context, n p2p.Network, network string, dev *identity.Device, q Quoted) error {
	ctx, cancel := context.WithTimeout(ctx, leaveWithin)
	defer cancel()
	hash := identity.Hash(q.Raw)
	return p2p.Call(ctx, n, q.Quote.Device, p2p.ProtocolID(network, work.ProtoQuote), quoteAsk{Delegation: dev.Delegation(), Leave: &hash}, &quoteAnswer{}, maxDemand)
}
