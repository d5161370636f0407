package provider

import (
	"context"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/proof"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/p2p/identity"
)

// Records gives what both sides signed about a lease, for a proof of its lane: the offer, the accept, the lease, the renter's
// acknowledgement and release, and the end. Nothing for a lane that is no lease of this owner. Beats are not among them: nobody signs
// those, and what they claimed is in the vouchers.
func (a *Agent) Records(ctx context.Context, lane ledger.Lane) ([]proof.Attachment, error) {
	var rec record
	err := a.books.View(ctx, func(r *books.Reader) (err error) {
		rec, _, err = kv.Load[record](r.Of(kv.Provider), leaseKey(market.LeaseID(lane)))
		return err
	})
	if err != nil {
		return nil, err
	}
	accept := rec.Accept
	if len(rec.Auction) > 0 { // an opening is no envelope; the lease has it inside
		accept = nil
	}
	return proof.Attach([]proof.Attachment{
		attached(market.DomainOffer, rec.Offer), attached(market.DomainAccept, accept), attached(market.DomainLease, rec.Lease),
		attached(market.DomainReady, rec.ReadySigned), attached(market.DomainRelease, rec.Released), attached(market.DomainEnd, rec.End),
	}), nil
}

func attached(d identity.Domain, raw []byte) proof.Attachment {
	return proof.Attachment{Name: string(d), Data: raw}
}
