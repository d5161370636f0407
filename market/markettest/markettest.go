// Package markettest makes valid records for the tests of those who handle them: an offer, its heartbeats, an accept, a lease. It
// knows what is valid, and nothing of what a test is about.
package markettest

import (
	"testing"
	"time"

	"github.com/gpufair/gpufair/benchmark"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Device makes an account with one device, all powers.
func Device(tb testing.TB) *identity.Device {
	tb.Helper()
	_, _, dev, err := identity.Generate()
	if err != nil {
		tb.Fatal(err)
	}
	return dev
}

// Hash is a hash that is not zero, another one for each name.
func Hash(name string) wire.Hash { return wire.Sum("gpufair/test", []byte(name)) }

// Lots of [Offer].
const (
	GPULot uint8 = 1 // four RTX 4090, two of them free
	CPULot uint8 = 2 // one device of eight cores, free
)

// Offer is a valid offer of dev, issued at now with sequence seq.
func Offer(dev *identity.Device, seq uint64, now time.Time) market.Offer {
	slot := func(name string, free bool) market.Slot {
		return market.Slot{Device: Hash(dev.Peer().String() + name), Free: free}
	}
	return market.Offer{
		Header: dev.Header(market.Version), Delegation: dev.DelegationHash(), Seq: seq, IssuedAt: now.UnixMilli(), TTL: 3600, Heartbeat: 15,
		Region: "eu-west", Unit: money.Credit,
		Lots: []market.Lot{
			{
				ID: GPULot, Kind: market.KindGPU, Model: "NVIDIA GeForce RTX 4090",
				Slots: []market.Slot{slot("a", true), slot("b", false), slot("c", true), slot("d", false)},
				Cores: 4, MemoryMiB: 16 << 10, DiskMiB: 100 << 10, VRAMMiB: 24564, Driver: "550.54.14",
				Price: 420_000, MinTerm: 300, MaxTerm: 86400, Passport: Hash("passport"),
				Figures: []benchmark.Figure{
					{ID: benchmark.FigureFP32Matmul, Value: 80_000_000}, {ID: benchmark.FigureMemCopy, Value: 950_000},
				},
			},
			{
				ID: CPULot, Kind: market.KindCPU, Model: "AMD Ryzen 7 5800X 8-Core Processor", Slots: []market.Slot{slot("cpu", true)},
				Cores: 8, MemoryMiB: 16 << 10, DiskMiB: 50 << 10, Price: 50_000, MinTerm: 60, MaxTerm: 3600, Passport: Hash("cpu passport"),
				Figures: []benchmark.Figure{{ID: benchmark.FigureFP32Matmul, Value: 512_300, Kernel: benchmark.KernelOpenBLAS}},
			},
		},
		Terms: market.Terms{
			Sandbox: "runc", Egress: "none", Notice: 60, Reclaim: 60, Settlement: []string{"manual"}, DueDays: 30, Use: Hash("use terms"),
			OS: "linux", Arch: "amd64",
		},
		Credit: market.Credit{Stranger: 210_000, StrangersTotal: 1_680_000, KnownPercent: 50, KnownCap: 100_000_000},
		Addrs:  []string{"/ip4/192.0.2.7/udp/4701/quic-v1"},
	}
}

// Seal signs a record of dev.
func Seal(tb testing.TB, dev *identity.Device, d identity.Domain, body identity.Body) []byte {
	tb.Helper()
	raw, err := dev.Seal(d, body)
	if err != nil {
		tb.Fatal(err)
	}
	return raw
}

// Sealed signs an offer of dev and opens it again.
func Sealed(tb testing.TB, dev *identity.Device, o market.Offer) market.SealedOffer {
	tb.Helper()
	s, err := market.OpenSealedOffer(Seal(tb, dev, market.DomainOffer, o), dev.Delegation())
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

// Beat signs a heartbeat of dev for o.
func Beat(tb testing.TB, dev *identity.Device, o market.SealedOffer, seq, free uint64, now time.Time) (market.Heartbeat, []byte) {
	tb.Helper()
	h := market.Heartbeat{Header: dev.Header(market.Version), Seq: seq, IssuedAt: now.UnixMilli(), Offer: o.Prefix(), Free: free}
	return h, Seal(tb, dev, market.DomainHeartbeat, h)
}

// Accept is a valid accept of dev for one device of a lot of o.
func Accept(dev *identity.Device, o market.SealedOffer, lot uint8) market.Accept {
	l, _ := o.Lot(lot)
	return market.Accept{
		Header: dev.Header(market.Version), Delegation: dev.DelegationHash(), Offer: o.Hash, Provider: o.Account, Lot: lot, Quantity: 1,
		Rate: l.Price, Unit: o.Unit, Term: l.MinTerm * 2, Nonce: Hash("nonce"), Needs: Hash("needs"), Use: o.Terms.Use, Voucher: Hash("voucher"),
	}
}

// Lease is a valid lease of dev for a, whose envelope is raw, with the lot's first devices at the given generation.
func Lease(tb testing.TB, dev *identity.Device, o market.SealedOffer, a market.Accept, raw []byte, generation uint64) market.Lease {
	tb.Helper()
	l, _ := o.Lot(a.Lot)
	hold, err := market.Hold(a.Rate, a.Quantity, l.MinTerm)
	if err != nil {
		tb.Fatal(err)
	}
	lease := market.Lease{
		Header: dev.Header(market.Version), Delegation: dev.DelegationHash(), ID: a.ID(), Accept: raw, Hold: hold, Credit: 1_000_000,
		ReadyIn: 30, PrepareIn: 600,
	}
	for i := range a.Quantity {
		lease.Slots = append(lease.Slots, market.SlotGeneration{Device: l.Slots[i].Device, Generation: generation})
	}
	return lease
}
