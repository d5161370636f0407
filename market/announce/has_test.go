package announce

import (
	"context"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/markettest"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/p2ptest"
	"github.com/gpufair/gpufair/p2p/wire"
)

// TestHasBoundsAges asks peers that say any time they like.
func TestHasBoundsAges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := p2ptest.NewNet(t)
		dev := p2ptest.Device(t)
		o := markettest.Sealed(t, dev, offer(dev))
		liar, asker := net.Join(p2ptest.Device(t)), net.Join(p2ptest.Device(t))
		net.Mesh()
		said := int64(0)
		lie := func(context.Context, identity.PeerID, OffersAsk) (OffersAnswer, error) {
			return OffersAnswer{Now: said, Items: []Item{{Offer: o.Raw, Delegation: o.DelegationRaw}}}, nil
		}
		liar.Handle(p2p.ProtocolID("test", work.ProtoOffers), p2p.Limits{}, p2p.Answer(maxAnswer, lie))
		for now, want := range map[int64]time.Duration{
			math.MinInt64: 0, 0: 0, o.Issued().UnixMilli() + 1000: time.Second, math.MaxInt64: market.MaxTTL * time.Second,
		} {
			said = now
			if has, age, err := Has(t.Context(), asker, "test", liar.Self(), o.Hash); err != nil || !has || age != want {
				t.Errorf("at %d: %v, %v old, %v; want %v", now, has, age, err, want)
			}
		}
	})
}

// TestHas asks a peer as a newcomer does, who is no member of the market.
func TestHas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := p2ptest.NewNet(t)
		seller := newMachine(t, net, p2ptest.Device(t), &seqStore{})
		other := newMachine(t, net, p2ptest.Device(t), nil)
		newcomer := net.Join(p2ptest.Device(t))
		net.Mesh()
		synctest.Wait()
		if err := seller.pub.Set(offer(seller.dev)); err != nil {
			t.Fatal(err)
		}
		after(time.Minute) // an offer, and heartbeats after it
		cur, ok := seller.pub.Current()
		if !ok {
			t.Fatal("nothing was published")
		}
		has, age, err := Has(t.Context(), newcomer, "test", other.dev.Peer(), cur.Hash)
		if err != nil || !has || age < 0 || age > 45*time.Second {
			t.Errorf("the offer of a minute ago: %v, last heard of %v ago, %v", has, age, err)
		}
		if has, _, err := Has(t.Context(), newcomer, "test", other.dev.Peer(), wire.Sum("another")); err != nil || has {
			t.Errorf("an offer that nobody made: %v, %v", has, err)
		}
		if _, _, err := Has(t.Context(), newcomer, "test", newcomer.Self(), cur.Hash); err == nil {
			t.Error("a peer that has no book answered")
		}
	})
}
