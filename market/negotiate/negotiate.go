// Package negotiate is how a lease comes about: the messages and both halves of each conversation. Buy-now: an Accept with the opening
// voucher beside it, one durable transaction of the seller, a signed Lease or a typed refusal. Sealed auctions: [Auctioneer] and
// [Bidder]; spot: [SpotDesk]; machines that take records and a time and say what to sign, store and send. [House] and [Floor] hold sealed
// auctions over the network with them. It checks every record that a stranger sends
// and refuses to know stores, ledgers and containers: the agents fulfil the small interfaces it declares.
package negotiate

import (
	"errors"

	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
)

// Refusal is err as the peer may see it: a [reason.Error] in it becomes a [p2p.Error] of [p2p.KindRefused] with the code, a device
// beyond its powers the reason for that. Every handler that refuses by reason ends with it; other errors pass through.
func Refusal(err error) error {
	var wired *p2p.Error
	if err == nil || errors.As(err, &wired) {
		return err
	}
	r, ok := reason.Of(err)
	if !ok && errors.Is(err, identity.ErrPower) {
		r, ok = reason.New(reason.DelegationPowers, "%v", err), true
	}
	if !ok {
		return err
	}
	r = r.Clean()
	return &p2p.Error{Kind: p2p.KindRefused, Code: string(r.Code), Detail: r.Detail}
}

// Typed is a peer's answer as this side's error: a refusal with a code becomes a [reason.Error], cleaned for showing. Other errors
// pass through.
func Typed(err error) error {
	var wired *p2p.Error
	if !errors.As(err, &wired) || wired.Kind != p2p.KindRefused || wired.Code == "" {
		return err
	}
	return reason.Err(reason.Reason{Code: reason.Code(wired.Code), Detail: wired.Detail}.Clean())
}
