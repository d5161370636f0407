package libp2p

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	pb "github.com/libp2p/go-libp2p-kad-dht/pb"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	rcmgr "github.com/libp2p/go-libp2p/p2p/host/resource-manager"

	lru "github.com/hashicorp/golang-lru/v2"
	ma "github.com/multiformats/go-multiaddr"
	"golang.org/x/time/rate"

	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
)

// bare is an index without a DHT: what judges strangers' questions.
func bare(t *testing.T) *index {
	t.Helper()
	key, err := indexKey(p2p.OffersTopic("t", "any", "any"))
	if err != nil {
		t.Fatal(err)
	}
	rates, err := lru.New[peer.ID, *rate.Limiter](indexAskers)
	if err != nil {
		t.Fatal(err)
	}
	return &index{key: key, rates: rates, words: map[peer.ID]word{}}
}

// TestIndexRoom bounds the words that are kept, in all and of one network, and frees those that were not renewed.
func TestIndexRoom(t *testing.T) {
	x, now := bare(t), time.Now()
	net := func(i int) netip.Prefix { return netip.MustParsePrefix(fmt.Sprint("44.0.", i, ".0/24")) }
	id := func(i int) peer.ID { return peer.ID(fmt.Sprint("peer", i)) }
	n := 0
	for i := range 2 * maxWords {
		if x.room(id(i), net(i/wordsPerNet), now) {
			n++
		}
	}
	if n != maxWords || len(x.words) != maxWords {
		t.Errorf("%d words taken, %d kept", n, len(x.words))
	}
	if !x.room(id(0), net(0), now.Add(time.Minute)) {
		t.Error("a word can't be renewed when all are taken")
	}
	if !x.room(id(maxWords), net(0), now.Add(wordKept)) || len(x.words) != 2 {
		t.Errorf("an hour later: %d words", len(x.words))
	}
	x = bare(t)
	for i := range 2 * wordsPerNet {
		if took := x.room(id(i), net(0), now); took != (i < wordsPerNet) {
			t.Errorf("word %d of one network: %v", i, took)
		}
	}
}

// TestIndexAllows answers for its own key alone, and no peer more often than its rate.
func TestIndexAllows(t *testing.T) {
	x, now := bare(t), time.Now()
	own, other := []byte(x.key.Hash()), []byte("another key")
	for _, c := range []struct {
		kind pb.Message_MessageType
		key  []byte
		want bool
	}{
		{pb.Message_PING, nil, true},
		{pb.Message_FIND_NODE, other, true},
		{pb.Message_ADD_PROVIDER, own, true},
		{pb.Message_GET_PROVIDERS, own, true},
		{pb.Message_ADD_PROVIDER, other, false},
		{pb.Message_GET_PROVIDERS, other, false},
		{pb.Message_PUT_VALUE, own, false},
		{pb.Message_GET_VALUE, own, false},
		{refused, own, false},
	} {
		if got := x.allow("a", &pb.Message{Type: c.kind, Key: c.key}, now); got != c.want {
			t.Errorf("%v of %q: %v", c.kind, c.key, got)
		}
	}
	n := 0
	for range 1000 {
		if x.allow("flood", &pb.Message{Type: pb.Message_PING}, now) {
			n++
		}
	}
	if n != indexBurst {
		t.Errorf("%d of 1,000 questions at once were answered", n)
	}
	for i := range 2 * indexAskers {
		x.allow(peer.ID(fmt.Sprint(i)), &pb.Message{Type: pb.Message_PING}, now)
	}
	if x.rates.Len() > indexAskers {
		t.Errorf("%d peers are remembered", x.rates.Len())
	}
}

// TestIndexKeepsOwnWordOnly takes of what a peer says what it says of itself.
func TestIndexKeepsOwnWordOnly(t *testing.T) {
	x := bare(t)
	var addrs [][]byte
	for range 100 {
		addrs = append(addrs, ma.StringCast("/ip4/44.1.0.2/udp/4701/quic-v1").Bytes())
	}
	self := &pb.Message_Peer{Id: []byte(oneConn{}.RemotePeer()), Addrs: addrs}
	req := &pb.Message{Type: pb.Message_ADD_PROVIDER, ProviderPeers: []*pb.Message_Peer{{Id: []byte("victim"), Addrs: addrs}, self, self}}
	if !x.keep(oneConn{}, req, time.Now()) || len(req.ProviderPeers) != 1 || req.ProviderPeers[0] != self {
		t.Errorf("kept: %v", req.ProviderPeers)
	}
	req.ProviderPeers = []*pb.Message_Peer{{Id: []byte("victim"), Addrs: addrs}}
	if x.keep(oneConn{}, req, time.Now()) || len(x.words) != 1 {
		t.Errorf("word of another: %v", x.words)
	}
}

// TestIndexFewAddresses keeps a public address and one over a relay, however many of containers come first, and few bytes.
func TestIndexFewAddresses(t *testing.T) {
	var addrs []ma.Multiaddr
	add := func(text string) ma.Multiaddr {
		addrs = append(addrs, ma.StringCast(text))
		return addrs[len(addrs)-1]
	}
	loopback := add("/ip4/127.0.0.1/tcp/4701")
	if got := few(addrs); len(got) != 1 {
		t.Errorf("loopback alone: %v", got)
	}
	for i := range 20 {
		add(fmt.Sprintf("/ip4/172.17.0.%d/tcp/4701", i))
	}
	public := add("/ip4/45.1.0.2/udp/4701/quic-v1")
	relayed := add("/ip4/44.1.0.2/udp/4701/quic-v1/p2p/12D3KooWRKPiH6zvnejzovLUhimmpPHAxTUKQHufVXzjvJ8cFucH/p2p-circuit")
	long := add("/dns/" + strings.Repeat("a", wordBytes) + "/tcp/4701")
	got := few(addrs)
	has := func(a ma.Multiaddr) bool { return slices.ContainsFunc(got, a.Equal) }
	if len(got) != wordAddrs || !has(public) || !has(relayed) || has(loopback) || has(long) {
		t.Errorf("of %d addresses: %v", len(addrs), got)
	}
	for i := range 60 {
		add(fmt.Sprintf("/ip6/2a00::%x/tcp/4701/p2p/12D3KooWRKPiH6zvnejzovLUhimmpPHAxTUKQHufVXzjvJ8cFucH/p2p-circuit", i))
	}
	size := 0
	for _, a := range few(addrs[len(addrs)-60:]) {
		size += len(a.Bytes())
	}
	if size == 0 || size > wordBytes {
		t.Errorf("%d bytes of addresses", size)
	}
}

// TestIndexNetworks: one customer's /48 is one network.
func TestIndexNetworks(t *testing.T) {
	for a, want := range map[string]string{"44.1.2.3": "44.1.2.0/24", "2a00:1:2:3456::1": "2a00:1:2::/48"} {
		if got := netOf(netip.MustParseAddr(a)).String(); got != want {
			t.Errorf("%s counts for %s", a, got)
		}
	}
}

// TestIndexSample: those that come last are found as well, whatever came first, and memory is bounded.
func TestIndexSample(t *testing.T) {
	var s sample
	for i := range 20 * maxFound {
		var id identity.PeerID
		binary.LittleEndian.PutUint32(id[:], uint32(i))
		s.add(p2p.PeerAddr{Peer: id})
	}
	if len(s.kept) != maxFound || !slices.ContainsFunc(s.kept, func(k p2p.PeerAddr) bool { return binary.LittleEndian.Uint32(k.Peer[:]) > 10*maxFound }) {
		t.Errorf("%d kept, none of the later half", len(s.kept))
	}
	if n := len(s.some(7)); n != 7 {
		t.Errorf("%d of 7", n)
	}
}

// TestIndexLimits: the DHT's limits are there beside a relay's.
func TestIndexLimits(t *testing.T) {
	relay := DefaultRelay()
	for _, r := range []*RelayConfig{nil, &relay} {
		var partial rcmgr.PartialLimitConfig
		if r != nil {
			r.limit(&partial)
		}
		relays := len(partial.Protocol)
		limitIndex(&partial, "t")
		if got := partial.Protocol[protocol.ID("/gpufair/t/kad/1.0.0")]; int(got.StreamsInbound) < 4*DefaultRelay().Slots || got.StreamsOutbound != indexAsks || len(partial.Protocol) != relays+1 {
			t.Errorf("%+v", partial.Protocol)
		}
	}
}
