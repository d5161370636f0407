package market_test

import (
	"math/big"
	"testing"

	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/markettest"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// wantHold is rate x devices x seconds / 3600 in big integers: the independent check of Hold.
func wantHold(rate, devices, seconds uint64) uint64 {
	v := new(big.Int).SetUint64(rate)
	v.Mul(v, new(big.Int).SetUint64(devices))
	v.Mul(v, new(big.Int).SetUint64(seconds))
	return v.Div(v, big.NewInt(3600)).Uint64()
}

// FuzzOpen: no bytes of a stranger panic a decoder, and what opens is valid and keeps its size.
func FuzzOpen(f *testing.F) {
	dev := markettest.Device(f)
	o := markettest.Sealed(f, dev, markettest.Offer(dev, 1, now))
	_, beat := markettest.Beat(f, dev, o, 2, 3, now)
	a := markettest.Accept(dev, o, markettest.GPULot)
	raw := markettest.Seal(f, dev, market.DomainAccept, a)
	f.Add(o.Raw)
	f.Add(beat)
	f.Add(raw)
	f.Add(markettest.Seal(f, dev, market.DomainLease, markettest.Lease(f, dev, o, a, raw, 1)))
	f.Fuzz(func(t *testing.T, b []byte) {
		if o, err := market.OpenOffer(b); err == nil {
			if err := o.Validate(); err != nil || len(b) > market.MaxOffer {
				t.Fatal(err)
			}
		}
		if h, err := market.OpenHeartbeat(b); err == nil && h.Seq == 0 {
			t.Fatal("a heartbeat with sequence 0")
		}
		if l, err := market.OpenLease(b); err == nil {
			if err := l.Validate(); err != nil {
				t.Fatal(err)
			}
		}
		_, _ = market.OpenTombstone(b)
		_, _ = market.OpenAccept(b)
		_, _ = market.OpenReady(b)
		_, _ = market.OpenRelease(b)
		_, _ = market.OpenEnd(b)
	})
}

// FuzzSignedBody: bytes under a good signature reach the decoders and the limits, as a stranger with a key of his own can make them.
func FuzzSignedBody(f *testing.F) {
	dev := markettest.Device(f)
	offer, err := wire.Marshal(markettest.Offer(dev, 1, now))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(offer)
	f.Fuzz(func(t *testing.T, b []byte) {
		var o market.Offer
		if wire.Unmarshal(b, &o) != nil || o.Validate() != nil {
			return
		}
		bits := o.FreeBits()
		if o.WithFree(bits).FreeBits() != bits {
			t.Fatal("free bits changed")
		}
		o.Header = identity.Header{Version: market.Version, Account: dev.Account(), Device: dev.Peer()}
		raw := markettest.Seal(t, dev, market.DomainOffer, o)
		if _, err := market.OpenOffer(raw); err != nil && len(raw) <= market.MaxOffer {
			t.Fatalf("a valid offer does not open: %v", err)
		}
	})
}
