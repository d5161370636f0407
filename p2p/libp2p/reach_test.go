package libp2p

import (
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/event"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"github.com/gpufair/gpufair/p2p"
)

// TestJudge reduces AutoNAT's second version to its first.
func TestJudge(t *testing.T) {
	for _, c := range []struct {
		public, refused, untested int
		want                      network.Reachability
	}{
		{0, 0, 0, network.ReachabilityUnknown},
		{0, 0, 2, network.ReachabilityUnknown},
		{0, 1, 1, network.ReachabilityUnknown}, // the other one may be open
		{0, 2, 0, network.ReachabilityPrivate},
		{1, 0, 0, network.ReachabilityPublic},
		{1, 3, 1, network.ReachabilityPublic},
	} {
		if got := judge(c.public, c.refused, c.untested); got != c.want {
			t.Errorf("%d public, %d refused, %d untested: %v, want %v", c.public, c.refused, c.untested, got, c.want)
		}
	}
}

// TestNote tells the rest of libp2p of a change, and of nothing else.
func TestNote(t *testing.T) {
	addr := ma.StringCast("/ip4/44.1.0.2/udp/4701/quic-v1")
	r := newReach(Config{}, nil)
	for i, c := range []struct {
		e     event.EvtHostReachableAddrsChanged
		state network.Reachability
		news  bool
	}{
		{event.EvtHostReachableAddrsChanged{Unknown: []ma.Multiaddr{addr}}, network.ReachabilityUnknown, false},
		{event.EvtHostReachableAddrsChanged{Reachable: []ma.Multiaddr{addr}}, network.ReachabilityPublic, true},
		{event.EvtHostReachableAddrsChanged{Reachable: []ma.Multiaddr{addr, addr}}, network.ReachabilityPublic, false},
		{event.EvtHostReachableAddrsChanged{Unreachable: []ma.Multiaddr{addr}}, network.ReachabilityPrivate, true},
	} {
		if state, news := r.note(c.e); state != c.state || news != c.news {
			t.Errorf("event %d: %v, news %v; want %v, %v", i, state, news, c.state, c.news)
		}
	}
	before := r.changed
	r.note(event.EvtLocalAddressesUpdated{})
	select {
	case <-before:
	default:
		t.Error("nobody is told that the addresses changed")
	}
}

// TestInOrder has the kinds of address in turns, since an offer holds only the first three.
func TestInOrder(t *testing.T) {
	const relay = "/p2p/12D3KooWRKPiH6zvnejzovLUhimmpPHAxTUKQHufVXzjvJ8cFucH/p2p-circuit"
	var addrs []ma.Multiaddr
	for _, a := range []string{
		"/ip4/192.168.7.2/tcp/1", "/ip4/192.168.7.2/udp/1/quic-v1", "/ip6/2001:4860::1/udp/1/quic-v1", "/ip4/44.1.0.2/tcp/1" + relay,
		"/ip4/44.1.0.2/udp/1/quic-v1" + relay, "/ip4/45.1.0.2/udp/1/quic-v1", "/ip4/45.1.0.2/tcp/1",
	} {
		addrs = append(addrs, ma.StringCast(a))
	}
	want := []string{
		"/ip4/45.1.0.2/udp/1/quic-v1", "/ip4/44.1.0.2/udp/1/quic-v1" + relay, "/ip4/192.168.7.2/udp/1/quic-v1",
		"/ip6/2001:4860::1/udp/1/quic-v1", "/ip4/44.1.0.2/tcp/1" + relay, "/ip4/192.168.7.2/tcp/1", "/ip4/45.1.0.2/tcp/1",
	}
	if got := texts(inOrder(addrs)); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestShared finds a carrier's router by the address that the own one has outside.
func TestShared(t *testing.T) {
	addrs := func(all ...string) (out []ma.Multiaddr) {
		for _, a := range all {
			out = append(out, ma.StringCast("/ip4/"+a+"/udp/4701/quic-v1"))
		}
		return out
	}
	for _, c := range []struct {
		all, interfaces []ma.Multiaddr
		want            string
	}{
		{addrs("192.168.1.2", "45.1.0.2"), addrs("192.168.1.2"), ""},
		{addrs("192.168.1.2", "100.72.0.9"), addrs("192.168.1.2"), "100.72.0.9"},
		{addrs("192.168.1.2", "10.9.0.9"), addrs("192.168.1.2"), "10.9.0.9"},
		{addrs("100.64.3.4"), addrs("100.64.3.4"), "100.64.3.4"},
	} {
		if got := shared(c.all, c.interfaces); got != c.want {
			t.Errorf("%v on %v: %q, want %q", c.all, c.interfaces, got, c.want)
		}
	}
}

// TestNATKinds needs two peers at different addresses to tell.
func TestNATKinds(t *testing.T) {
	saw := func(by, as string) sightings {
		return sightings{"quic": {ma.StringCast("/ip4/" + as + "/udp/4701/quic-v1"), netip.MustParseAddr(by)}}
	}
	for want, seen := range map[string]map[peer.ID]sightings{
		"":          {"a": saw("44.1.0.2", "45.0.0.1"), "b": saw("44.1.0.2", "45.0.0.2")}, // one address: one peer's word
		"cone":      {"a": saw("44.1.0.2", "45.0.0.1"), "b": saw("44.2.0.2", "45.0.0.1")},
		"symmetric": {"a": saw("44.1.0.2", "45.0.0.1"), "b": saw("44.2.0.2", "45.0.0.2")},
	} {
		if got := natKinds(seen)["udp"]; got != want {
			t.Errorf("%v: %q, want %q", seen, got, want)
		}
	}
}

// TestTraffic counts by purpose, for peers that are connected and no others.
func TestTraffic(t *testing.T) {
	count, err := newTraffic(nil)
	if err != nil {
		t.Fatal(err)
	}
	count.up("a")
	count.LogSentMessageStream(10, "/gpufair/main/blob/1.0.0", "a")
	count.LogRecvMessageStream(5, "/gpufair/main/blob/1.0.0", "a")
	count.LogRecvMessageStream(1, "/meshsub/1.3.0", "a")
	count.LogRecvMessageStream(2, "/ipfs/ping/1.0.0", "a")
	count.LogSentMessageStream(7, "/gpufair/main/blob/1.0.0", "stranger")
	want := []p2p.Traffic{{Purpose: "blob", Sent: 10, Received: 5}, {Purpose: "network", Received: 2}, {Purpose: "gossip", Received: 1}}
	if got := count.of("a"); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	count.down("a")
	if len(count.peers) != 0 || count.of("stranger") != nil {
		t.Errorf("peers that are gone take memory: %v", count.peers)
	}
}

// TestRelayRate holds all circuits together to one rate, once the tenth of a second that may go at once is used up.
func TestRelayRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const perSecond, circuits = 1 << 20, 4
		m := newMeter(t.Context(), perSecond)
		start := time.Now()
		var all sync.WaitGroup
		for range circuits {
			all.Go(func() {
				for sent := 0; sent < perSecond; sent += relayBuffer {
					m.BytesTransferred(relayBuffer)
				}
			})
		}
		all.Wait()
		if took := time.Since(start); took < circuits*time.Second-100*time.Millisecond || took > circuits*time.Second {
			t.Errorf("%d MiB at 1 MiB/s took %v", circuits, took)
		}
		if m.bytes.Load() != circuits*perSecond {
			t.Errorf("%d bytes were counted", m.bytes.Load())
		}
	})
}

func TestRelayConfig(t *testing.T) {
	if err := DefaultRelay().Validate(); err != nil {
		t.Error(err)
	}
	for what, change := range map[string]func(*RelayConfig){
		"no slots":            func(r *RelayConfig) { r.Slots = 0 },
		"too many slots":      func(r *RelayConfig) { r.Slots = maxSlots + 1 },
		"slots of an address": func(r *RelayConfig) { r.SlotsPerIP = r.Slots + 1 },
		"circuits":            func(r *RelayConfig) { r.Circuits = maxCircuits + 1 },
		"circuits of a peer":  func(r *RelayConfig) { r.CircuitsPerPeer = r.Circuits + 1 },
		"bytes":               func(r *RelayConfig) { r.CircuitBytes = 1000 },
		"time":                func(r *RelayConfig) { r.CircuitTime = time.Second },
		"rate":                func(r *RelayConfig) { r.Rate = 0 },
	} {
		r := DefaultRelay()
		change(&r)
		if r.Validate() == nil {
			t.Errorf("%s: %+v is taken", what, r)
		}
	}
}
