package announce

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpufair/gpufair/p2p/p2ptest"
	"github.com/gpufair/gpufair/p2p/wire"
)

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
