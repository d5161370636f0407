package terms

import (
	"errors"
	"fmt"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/proof"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/p2p/identity"
)

// ErrOther says that a record is not about the lease, or not by its provider.
var ErrOther = errors.New("not a record of this lease")

// Given are the records that go back with a lane to a side that lost it: the offer, the lease and its end, which the provider signed. The
// lease holds the renter's accept.
func Given(all []proof.Attachment) (out []proof.Attachment) {
	for _, a := range all {
		switch identity.Domain(a.Name) {
		case market.DomainOffer, market.DomainLease, market.DomainEnd:
			out = append(out, a)
		}
	}
	return out
}

// Read gives what such records say of a lane for the ledger. Their signatures are checked, and that they are about this lane of this channel
// and name each other; whether the provider's account let their devices sign is for the books, which have the delegations.
func Read(lane ledger.Lane, channel ledger.Channel, records []proof.Attachment) (*books.Terms, error) {
	var offer *market.SealedOffer
	var accept *market.Accept
	out := &books.Terms{}
	for _, a := range Given(records) {
		var err error
		switch identity.Domain(a.Name) {
		case market.DomainOffer:
			var o market.Offer
			o, err = market.OpenOffer(a.Data)
			offer = &market.SealedOffer{Offer: o, Hash: identity.Hash(a.Data), Raw: a.Data}
			out.Signed = append(out.Signed, books.Signature{Header: o.Header, Delegation: o.Delegation})
		case market.DomainLease:
			accept, err = readLease(lane, channel, a.Data, out)
		case market.DomainEnd:
			var e market.End
			e, err = market.OpenEnd(a.Data)
			if err == nil && (ledger.Lane(e.Lease) != lane || e.Account != channel.Provider) {
				err = fmt.Errorf("end of lease %s by account %s: %w", e.Lease.Short(), e.Account.Short(), ErrOther)
			}
			out.Charge = &e.Charge
			out.Signed = append(out.Signed, books.Signature{Header: e.Header, Delegation: e.Delegation})
		}
		if err != nil {
			return nil, err
		}
	}
	if offer == nil {
		return out, nil
	}
	if accept == nil || accept.Offer != offer.Hash || offer.Account != channel.Provider {
		return nil, fmt.Errorf("offer %s: %w", offer.Hash.Short(), ErrOther)
	}
	out.DueDays = offer.Terms.DueDays
	return out, nil
}

// readLease reads a lease and the accept in it.
func readLease(lane ledger.Lane, channel ledger.Channel, raw []byte, out *books.Terms) (*market.Accept, error) {
	l, err := market.OpenLease(raw)
	if err != nil {
		return nil, err
	}
	a, err := market.OpenAccept(l.Accept)
	if err != nil {
		return nil, err
	}
	if ledger.Lane(a.ID()) != lane || l.ID != a.ID() || a.Account != channel.Renter || a.Provider != channel.Provider || a.Unit != channel.Unit ||
		l.Account != channel.Provider {
		return nil, fmt.Errorf("lease %s: %w", l.ID.Short(), ErrOther)
	}
	out.Hold = l.Hold
	out.Signed = append(out.Signed, books.Signature{Header: l.Header, Delegation: l.Delegation})
	return &a, nil
}
