package provider

import (
	"slices"
	"testing"

	"github.com/gpufair/gpufair/market"
)

// An address over a relay and IPv6 can be longer than an offer may hold: the offer goes out with the others.
func TestOfferAddrs(t *testing.T) {
	const relayed = "/udp/47010/quic-v1/p2p/12D3KooWRKPiH6zvnejzovLUhimmpPHAxTUKQHufVXzjvJ8cFucH/p2p-circuit"
	addrs := []string{
		"/ip6/2001:db8:1111:2222:3333:4444:5555:6666" + relayed, "/ip4/192.0.2.7/udp/4701/quic-v1", "/ip4/192.0.2.7" + relayed,
		"/ip4/192.0.2.7/tcp/4701", "/ip4/192.0.2.8/tcp/4701",
	}
	a := &Agent{conf: Config{Addrs: addrs}}
	if len(addrs[0]) <= market.MaxAddr {
		t.Fatal("the address is not too long")
	}
	if got := a.offerAddrs(); !slices.Equal(got, addrs[1:1+market.MaxAddrs]) {
		t.Errorf("%q", got)
	}
}
