package market_test

import (
	"testing"

	"github.com/gpufair/gpufair/benchmark"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/identity/identitytest"
	"github.com/gpufair/gpufair/p2p/wire"
)

const vectorTime = 1_796_029_200_000 // 2026-11-30 09:00 UTC in Unix milliseconds

func vectorHash(name string) wire.Hash { return wire.Sum("gpufair/test", []byte(name)) }

// vectorOffer is written out here, apart from the offers that other tests use: it must never change.
func vectorOffer(dev *identity.Device) market.Offer {
	return market.Offer{
		Header: dev.Header(1), Delegation: dev.DelegationHash(), Seq: 7, IssuedAt: vectorTime, TTL: 3600, Heartbeat: 15, Region: "eu-west",
		Unit: money.Credit,
		Lots: []market.Lot{{
			ID: 1, Kind: market.KindGPU, Model: "NVIDIA GeForce RTX 4090",
			Slots: []market.Slot{{Device: vectorHash("a"), Free: true}, {Device: vectorHash("b")}},
			Cores: 4, MemoryMiB: 16384, DiskMiB: 102400, VRAMMiB: 24564, Driver: "550.54.14", Price: 420_000, MinTerm: 300, MaxTerm: 86400,
			Passport: vectorHash("passport"), Figures: []benchmark.Figure{{ID: benchmark.FigureFP32Matmul, Value: 80_000_000}},
		}},
		Terms: market.Terms{
			Sandbox: "runc", Egress: "none", Notice: 60, Reclaim: 60, Settlement: []string{"manual"}, DueDays: 30, Use: vectorHash("use terms"),
			OS: "linux", Arch: "amd64",
		},
		Credit: market.Credit{Stranger: 210_000, StrangersTotal: 1_680_000, KnownPercent: 50, KnownCap: 100_000_000},
		Addrs:  []string{"/ip4/192.0.2.7/udp/4701/quic-v1"},
	}
}

// The exact bytes of one record of each kind, for other programs and for our own later ones.
func TestVectors(t *testing.T) {
	provider, renter := identitytest.Provider(t).Device, identitytest.Renter(t).Device
	var list []identitytest.Vector
	sign := func(name string, dev *identity.Device, d identity.Domain, body identity.Body) []byte {
		v, raw := identitytest.Signed(t, name, dev, d, body)
		list = append(list, v)
		return raw
	}
	o, err := market.OpenSealedOffer(sign("offer", provider, market.DomainOffer, vectorOffer(provider)), provider.Delegation())
	if err != nil {
		t.Fatal(err)
	}
	beat := sign("heartbeat", provider, market.DomainHeartbeat, market.Heartbeat{
		Header: provider.Header(1), Seq: 8, IssuedAt: vectorTime, Offer: o.Prefix(), Free: 0b01,
	})
	gone := sign("tombstone", provider, market.DomainTombstone, market.Tombstone{Header: provider.Header(1), Seq: 8, IssuedAt: vectorTime})
	accept := market.Accept{
		Header: renter.Header(1), Delegation: renter.DelegationHash(), Offer: o.Hash, Provider: o.Account, Lot: 1, Quantity: 1, Rate: 420_000,
		Unit: money.Credit, Term: 600, Nonce: vectorHash("nonce"), Needs: vectorHash("needs"), Use: o.Terms.Use, Voucher: vectorHash("voucher"),
	}
	acceptRaw := sign("accept", renter, market.DomainAccept, accept)
	slots := []market.SlotGeneration{{Device: vectorHash("a"), Generation: 3}}
	lease := sign("lease", provider, market.DomainLease, market.Lease{
		Header: provider.Header(1), Delegation: provider.DelegationHash(), ID: accept.ID(), Accept: acceptRaw, Slots: slots, Hold: 35_000,
		Credit: 210_000, ReadyIn: 30, PrepareIn: 600,
	})
	ready := sign("ready", renter, market.DomainReady, market.Ready{
		Header: renter.Header(1), Delegation: renter.DelegationHash(), Lease: accept.ID(), Hash: identity.Hash(lease),
	})
	release := sign("release", renter, market.DomainRelease, market.Release{
		Header: renter.Header(1), Delegation: renter.DelegationHash(), Lease: accept.ID(), Beat: 42, Charge: 9_800,
		Reason: reason.Reason{Code: reason.StoppedRenter},
	})
	end := sign("end", provider, market.DomainEnd, market.End{
		Header: provider.Header(1), Delegation: provider.DelegationHash(), Lease: accept.ID(), Slots: slots,
		Reason: reason.Reason{Code: reason.Completed}, Charge: 9_800, Billable: 84_000, Exit: &market.Exit{}, Wiped: true,
	})
	quote := sign("quote", provider, market.DomainQuote, market.Quote{
		Header: provider.Header(1), Delegation: provider.DelegationHash(), Demand: vectorHash("demand"), Renter: renter.Account(), Offer: o.Hash, Lot: 1,
		Quantity: 1, Rate: 380_000, Unit: money.Credit, Term: 600, Needs: vectorHash("needs"), Use: o.Terms.Use, IssuedAt: vectorTime, Valid: 20,
		Nonce: vectorHash("quote nonce"),
	})
	for name, err := range map[string]error{
		"quote":     second(market.OpenQuote(quote)),
		"heartbeat": second(market.OpenHeartbeat(beat)), "tombstone": second(market.OpenTombstone(gone)),
		"accept": second(market.OpenAccept(acceptRaw)), "lease": second(market.OpenLease(lease)), "ready": second(market.OpenReady(ready)),
		"release": second(market.OpenRelease(release)), "end": second(market.OpenEnd(end)),
	} {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	identitytest.Check(t, "testdata/vectors.json", list)
}

func second[T any](_ T, err error) error { return err }
