package renter

import (
	"context"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/proof"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/p2p/identity"
)

// Records gives what both sides signed about a job's lease, for a proof of its lane: the offer, the accept, the lease, this side's release
// and the provider's end. Nothing for a lane that is no job of this renter.
func (a *Agent) Records(ctx context.Context, lane ledger.Lane) ([]proof.Attachment, error) {
	rec, _, err := a.load(ctx, market.LeaseID(lane))
	if err != nil {
		return nil, err
	}
	return proof.Attach([]proof.Attachment{
		attached(market.DomainOffer, rec.Offer), attached(market.DomainAccept, rec.Accept), attached(market.DomainLease, rec.Lease),
		attached(market.DomainRelease, rec.Release), attached(market.DomainEnd, rec.End),
	}), nil
}

func attached(d identity.Domain, raw []byte) proof.Attachment {
	return proof.Attachment{Name: string(d), Data: raw}
}
