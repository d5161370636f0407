package market_test

import (
	"testing"
	"time"

	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/markettest"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/p2p/identity/identitytest"
)

// The exact bytes of one record of each kind, for other programs and for our own later ones.
func TestVectors(t *testing.T) {
	now := time.Date(2026, 11, 30, 9, 0, 0, 0, time.UTC)
	provider, renter := identitytest.Provider(t).Device, identitytest.Renter(t).Device
	var list []identitytest.Vector
	add := func(v identitytest.Vector, raw []byte) []byte {
		list = append(list, v)
		return raw
	}
	o := markettest.Offer(provider, 7, now)
	offer, err := market.OpenSealedOffer(add(identitytest.Signed(t, "offer", provider, market.DomainOffer, o)), provider.Delegation())
	if err != nil {
		t.Fatal(err)
	}
	beat, _ := markettest.Beat(t, provider, offer, 8, 0b10101, now)
	add(identitytest.Signed(t, "heartbeat", provider, market.DomainHeartbeat, beat))
	add(identitytest.Signed(t, "tombstone", provider, market.DomainTombstone, market.Tombstone{
		Header: provider.Header(market.Version), Seq: 8, IssuedAt: now.UnixMilli(),
	}))
	accept := markettest.Accept(renter, offer, markettest.CPULot)
	raw := add(identitytest.Signed(t, "accept", renter, market.DomainAccept, accept))
	lease := markettest.Lease(t, provider, offer, accept, raw, 3)
	leaseRaw := add(identitytest.Signed(t, "lease", provider, market.DomainLease, lease))
	ready := market.NewReady(renter, lease.ID, leaseRaw)
	add(identitytest.Signed(t, "ready", renter, market.DomainReady, ready))
	add(identitytest.Signed(t, "release", renter, market.DomainRelease, market.Release{
		Header: renter.Header(market.Version), Delegation: renter.DelegationHash(), Lease: lease.ID, Beat: 42, Charge: 1_166,
		Reason: reason.Reason{Code: reason.StoppedRenter},
	}))
	add(identitytest.Signed(t, "end", provider, market.DomainEnd, market.End{
		Header: provider.Header(market.Version), Delegation: provider.DelegationHash(), Lease: lease.ID, Slots: lease.Slots,
		Reason: reason.Reason{Code: reason.Completed}, Charge: 1_166, Billable: 84_000, Exit: &market.Exit{Code: 0}, Wiped: true,
	}))
	identitytest.Check(t, "testdata/vectors.json", list)
}
