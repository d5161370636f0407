package libp2p

import (
	"errors"
	"strings"
	"testing"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/proto"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/relay"
	ma "github.com/multiformats/go-multiaddr"

	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
)

func TestConfigValidate(t *testing.T) {
	for _, good := range []Config{Default("main"), Local("a-1")} {
		if err := good.Validate(); err != nil {
			t.Error(err)
		}
	}
	for name, c := range map[string]struct {
		change func(*Config)
		want   string // in the error: the field, as the owner knows it
	}{
		"no network":         {func(c *Config) { c.Network = "" }, "network"},
		"bad network":        {func(c *Config) { c.Network = "Main/x" }, "network"},
		"nothing to listen":  {func(c *Config) { c.Listen = nil }, "listen"},
		"no port":            {func(c *Config) { c.Listen = []string{"0.0.0.0"} }, "0.0.0.0:4701"},
		"a host name":        {func(c *Config) { c.Listen = []string{"localhost:1"} }, "listen"},
		"loopback elsewhere": {func(c *Config) { c.Loopback, c.MDNS = true, false }, "127.0.0.1:4701"},
		"loopback and mdns":  {func(c *Config) { c.Loopback = true }, "mdns"},
		"no agent":           {func(c *Config) { c.Agent = "" }, "agent"},
		"marks crossed":      {func(c *Config) { c.LowConns = 100 }, "connections"},
		"no connections":     {func(c *Config) { c.ConnsPerIP = 0 }, "per address"},
		"no rate":            {func(c *Config) { c.ConnRate = 0 }, "per second"},
		"huge messages":      {func(c *Config) { c.MaxMessage = 1 << 20 }, "message"},
		"peer without id":    {func(c *Config) { c.Peers = []p2p.PeerAddr{{Addrs: []string{"/ip4/1.2.3.4/tcp/1"}}} }, "peers"},
		"peer elsewhere":     {func(c *Config) { c.Peers = []p2p.PeerAddr{{Peer: testPeer(t), Addrs: []string{"1.2.3.4:1"}}} }, "1.2.3.4:1"},
		"too many peers":     {func(c *Config) { c.Peers = make([]p2p.PeerAddr, 65) }, "peers"},
	} {
		config := Default("main")
		c.change(&config)
		if err := config.Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.want)
		}
	}
}

func testPeer(t *testing.T) identity.PeerID {
	t.Helper()
	_, _, dev, err := identity.Generate()
	if err != nil {
		t.Fatal(err)
	}
	return dev.Peer()
}

func TestParsePeerAddr(t *testing.T) {
	id := testPeer(t)
	got, err := ParsePeerAddr("/ip4/192.0.2.7/udp/4701/quic-v1/p2p/" + id.String())
	if err != nil || got.Peer != id || len(got.Addrs) != 1 || got.Addrs[0] != "/ip4/192.0.2.7/udp/4701/quic-v1" {
		t.Errorf("got %v, %v", got, err)
	}
	for _, bad := range []string{"", "192.0.2.7:4701", "/ip4/192.0.2.7/tcp/1", "/ip4/192.0.2.7/tcp/1/p2p/12D3KooWx"} {
		if _, err := ParsePeerAddr(bad); err == nil || !strings.Contains(err.Error(), "12D3KooW") {
			t.Errorf("%q: got %v, want an error that shows the form", bad, err)
		}
	}
}

// TestLimitsPerAddress opens connections from one address until it is refused, and many more from loopback.
func TestLimitsPerAddress(t *testing.T) {
	c := Default("main")
	c.ConnsPerIP = 20 // over libp2p's own 8
	limits, err := newLimits(c)
	if err != nil {
		t.Fatal(err)
	}
	defer limits.Close()
	count := func(addr string) (n int) {
		for ; n < 40; n++ {
			if _, err := limits.OpenConnection(network.DirInbound, false, ma.StringCast(addr)); err != nil {
				return n
			}
		}
		return n
	}
	if got := count("/ip4/44.0.0.1/udp/1/quic-v1"); got != 20 {
		t.Errorf("one address got %d connections, want 20", got)
	}
	if got := count("/ip4/127.0.0.1/udp/1/quic-v1"); got != 40 {
		t.Errorf("loopback got %d connections, want all 40", got)
	}
}

// TestRelayLimits opens the streams of as many circuits as a relay is set to carry: no other limit of libp2p's may come first.
func TestRelayLimits(t *testing.T) {
	c := Default("main")
	r := DefaultRelay()
	r.Circuits, r.CircuitsPerPeer = maxCircuits, maxCircuits/2
	c.Relay = &r
	limits, err := newLimits(c)
	if err != nil {
		t.Fatal(err)
	}
	defer limits.Close()
	open := func(id peer.ID, dir network.Direction, as protocol.ID) error {
		s, err := limits.OpenStream(id, dir)
		if err == nil {
			err = s.SetProtocol(as)
		}
		if err == nil {
			err = s.SetService(relay.ServiceName)
		}
		if err == nil {
			err = s.ReserveMemory(4<<10, network.ReservationPriorityAlways)
		}
		if err != nil && s != nil {
			s.Done()
		}
		return err
	}
	buffer := func() error {
		return limits.ViewService(relay.ServiceName, func(s network.ServiceScope) error {
			return s.ReserveMemory(2*relayBuffer, network.ReservationPriorityHigh)
		})
	}
	from, to := peer.ID(testPeer(t).Libp2p()), peer.ID(testPeer(t).Libp2p())
	for i := range r.Circuits {
		if i == r.CircuitsPerPeer { // that is all of one peer: the rest is of others
			from, to = peer.ID(testPeer(t).Libp2p()), peer.ID(testPeer(t).Libp2p())
		}
		if err := errors.Join(buffer(), open(from, network.DirInbound, proto.ProtoIDv2Hop), open(to, network.DirOutbound, proto.ProtoIDv2Stop)); err != nil {
			t.Fatalf("circuit %d of %d, %d of a peer: %v", i+1, r.Circuits, r.CircuitsPerPeer, err)
		}
	}
	n, past := 0, peer.ID(testPeer(t).Libp2p())
	for ; n <= relayRequests && open(past, network.DirOutbound, proto.ProtoIDv2Stop) == nil; n++ {
	}
	if n > 0 {
		t.Errorf("%d circuits more than there may be", n)
	}
}

func TestGate(t *testing.T) {
	home, away := ma.StringCast("/ip4/127.0.0.1/tcp/1"), ma.StringCast("/ip4/192.0.2.1/tcp/1")
	if g := (gate{loopback: true}); !g.InterceptAddrDial("", home) || g.InterceptAddrDial("", away) {
		t.Error("loopback only: dials go where they must not, or not where they may")
	}
	if g := (gate{}); !g.InterceptAddrDial("", away) {
		t.Error("a machine of the open network does not dial")
	}
}

func TestOwnTopics(t *testing.T) {
	own := ownTopics("/gpufair/main/")
	for topic, want := range map[string]bool{
		p2p.OffersTopic("main", "any", "any"): true, p2p.OffersTopic("mainx", "any", "any"): false, "": false,
		"/gpufair/main/" + strings.Repeat("x", 200): false,
	} {
		if own.CanSubscribe(topic) != want {
			t.Errorf("%.40q: %v", topic, !want)
		}
	}
}

// TestGoodPeersAreBounded shows strangers to the keeper until it must forget the oldest; peers of the config stay.
func TestGoodPeersAreBounded(t *testing.T) {
	k := newKeeper(&Network{})
	static := testPeer(t)
	k.peers[static] = &keptPeer{always: true}
	first := testPeer(t)
	k.good(first, []string{"/ip4/192.0.2.1/tcp/1"})
	for range maxGood {
		k.good(testPeer(t), make([]string, 2*maxGoodAddr))
	}
	if len(k.peers) != maxGood+1 || k.peers[static] == nil || k.peers[first] != nil {
		t.Errorf("%d peers kept, static %v, oldest %v", len(k.peers), k.peers[static] != nil, k.peers[first] != nil)
	}
	for id, p := range k.peers {
		if len(p.addrs) > maxGoodAddr {
			t.Errorf("%d addresses kept of %s", len(p.addrs), id.Short())
		}
	}
}

func TestNeighboursAreRememberedInBounds(t *testing.T) {
	f := &neighbours{others: map[peer.ID]struct{}{}}
	for range mdnsMemory + 1 {
		f.remember(peer.ID(testPeer(t).Libp2p()))
	}
	if len(f.others) > mdnsMemory {
		t.Errorf("%d neighbours remembered", len(f.others))
	}
}
