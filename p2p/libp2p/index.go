package libp2p

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/ipfs/go-cid"
	dht "github.com/libp2p/go-libp2p-kad-dht"
	pb "github.com/libp2p/go-libp2p-kad-dht/pb"
	"github.com/libp2p/go-libp2p-kad-dht/records"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	rcmgr "github.com/libp2p/go-libp2p/p2p/host/resource-manager"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"
	"github.com/multiformats/go-multihash"
	"golang.org/x/time/rate"

	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Bounds of the index (spec: p2p, section 5).
const (
	wordKept     = 75 * time.Minute // two and a half times what they are renewed in
	maxFound     = 2 * maxWords
	wordSweep    = 15 * time.Minute
	wordAddrs    = 8   // of one machine; an offer holds three
	orderedAddrs = 64  // of which these are chosen: a message may hold thousands, and to order them takes long
	wordBytes    = 320 // of these addresses together, where an IPv4 address takes 10 and one over a relay 55
	maxWords     = 256 // 98 kB in an answer; together with all addresses of 20 peers it fits maxTold
	wordsPerNet  = 16  // of them, from one /24 of IPv4 or /48 of IPv6, which is what one customer gets
	indexRate    = 10  // questions a second of one peer; a lookup asks each peer one or two
	indexBurst   = 40
	indexAskers  = 1024 // whose rate is remembered
	indexStreams = 1024 // at once, each of which may take in a message of maxAsk bytes: all that a relay serves may ask again after its restart
	indexAsks    = 256  // streams to others
	lookupChecks = 16   // peers at once that came by themselves and are tried for the routing table
	indexTable   = 30 * time.Minute
	tablePerNet  = 16 // peers of one /16 in the routing table, and a quarter of it at one distance
)

// index is this machine in the network's DHT: it has one key, that of the topic of offers, and machines leave word under it. Public machines
// and relays keep what others say, the rest only asks. Safe for concurrent use.
type index struct {
	*dht.IpfsDHT
	key      cid.Cid
	loopback bool
	rates    *lru.Cache[peer.ID, *rate.Limiter]

	mu    sync.Mutex
	words map[peer.ID]word // guarded by mu; at most maxWords
}

// word is that a machine has left word, and from where.
type word struct {
	from  netip.Prefix
	until time.Time
}

// kadProtocol is the DHT's protocol on a network; [purpose] knows it.
func kadProtocol(name string) protocol.ID { return protocol.ID("/gpufair/" + name + "/kad/1.0.0") }

// indexKey is a topic's key in the DHT.
func indexKey(topic string) (cid.Cid, error) {
	sum := wire.Sum("gpufair/index/1", []byte(topic))
	h, err := multihash.Encode(sum[:], multihash.SHA2_256)
	return cid.NewCidV1(cid.Raw, h), err
}

func newIndex(h host.Host, c Config) (*index, error) {
	key, err := indexKey(p2p.OffersTopic(c.Network, "any", "any"))
	if err != nil {
		return nil, err
	}
	rates, err := lru.New[peer.ID, *rate.Limiter](indexAskers)
	if err != nil {
		return nil, err
	}
	x := &index{key: key, loopback: c.Loopback, rates: rates, words: map[peer.ID]word{}}
	opts := []dht.Option{
		dht.V1ProtocolOverride(kadProtocol(c.Network)), dht.ProtocolPrefix(protocol.ID("/gpufair/" + c.Network)), dht.Mode(dht.ModeAuto), dht.DisableValues(),
		dht.RoutingTableRefreshPeriod(indexTable), dht.OnRequestHook(x.judge), dht.LookupCheckConcurrency(lookupChecks), dht.AddressFilter(few),
		dht.ProviderManagerOpts(records.ProvideValidity(wordKept), records.ProviderAddrTTL(wordKept), records.CleanupInterval(wordSweep)),
	}
	if c.Index == KeepIndex || c.Relay != nil {
		opts = append(opts, dht.Mode(dht.ModeServer))
	}
	if !c.Loopback {
		opts = append(opts, dht.RoutingTablePeerDiversityFilter(dht.NewRTPeerDiversityFilter(h, tablePerNet/4, tablePerNet)))
	}
	if x.IpfsDHT, err = dht.New(small{h}, opts...); err != nil {
		return nil, fmt.Errorf("index: %w", err)
	}
	return x, nil
}

// limitIndex bounds the streams that others have to the DHT here.
func limitIndex(partial *rcmgr.PartialLimitConfig, name string) {
	if partial.Protocol == nil {
		partial.Protocol = map[protocol.ID]rcmgr.ResourceLimits{}
	}
	partial.Protocol[kadProtocol(name)] = rcmgr.ResourceLimits{Streams: indexStreams + indexAsks, StreamsInbound: indexStreams, StreamsOutbound: indexAsks}
	if partial.ProtocolPeer == nil {
		partial.ProtocolPeer = map[protocol.ID]rcmgr.ResourceLimits{}
	}
	partial.ProtocolPeer[kadProtocol(name)] = rcmgr.ResourceLimits{Streams: 16, StreamsInbound: 4, StreamsOutbound: 16}
}

// refused is a type of message that the DHT has no answer to: it resets the stream.
const refused pb.Message_MessageType = -1

// judge sees each question before the DHT does. What is over a peer's rate, names another key or is not for this index gets no answer.
func (x *index) judge(_ context.Context, s network.Stream, req *pb.Message) {
	from := s.Conn().RemotePeer()
	req.CloserPeers, req.Record = nil, nil // no question holds any; a slow reader of the answer would keep them in memory
	if req.GetType() != pb.Message_ADD_PROVIDER {
		req.ProviderPeers = nil
	}
	if x.allow(from, req, time.Now()) && (req.GetType() != pb.Message_ADD_PROVIDER || x.keep(s.Conn(), req, time.Now())) {
		return
	}
	req.Type = refused
}

// allow is the part of judge that knows no address.
func (x *index) allow(from peer.ID, req *pb.Message, now time.Time) bool {
	x.mu.Lock()
	limit, ok := x.rates.Get(from)
	if !ok {
		limit = rate.NewLimiter(indexRate, indexBurst)
		x.rates.Add(from, limit)
	}
	x.mu.Unlock()
	if !limit.AllowN(now, 1) {
		return false
	}
	switch req.GetType() {
	case pb.Message_PING, pb.Message_FIND_NODE:
		return true
	case pb.Message_ADD_PROVIDER, pb.Message_GET_PROVIDERS:
		return string(req.GetKey()) == string(x.key.Hash())
	}
	return false
}

// keep takes of a word what a peer says of itself and says whether there is room for it; the DHT cuts its addresses by [few].
func (x *index) keep(c network.Conn, req *pb.Message, now time.Time) bool {
	from := c.RemotePeer()
	req.ProviderPeers = slices.DeleteFunc(req.ProviderPeers, func(p *pb.Message_Peer) bool { return string(p.GetId()) != string(from) })
	if len(req.ProviderPeers) == 0 {
		return false
	}
	req.ProviderPeers = slices.Clone(req.ProviderPeers[:1])
	ip, err := ipOf(c.RemoteMultiaddr())
	if err != nil {
		return false
	}
	return x.room(from, netOf(ip), now)
}

// netOf is the network that an address counts for.
func netOf(ip netip.Addr) netip.Prefix {
	bits := 24
	if ip.Is6() {
		bits = 48
	}
	return netip.PrefixFrom(ip, bits).Masked()
}

// few are the addresses of a machine that the index keeps and tells: the most useful of each kind, as [inOrder] has them, and none of loopback
// beside others.
func few(addrs []ma.Multiaddr) []ma.Multiaddr {
	outside := slices.DeleteFunc(slices.Clone(addrs[:min(len(addrs), orderedAddrs)]), manet.IsIPLoopback)
	if len(outside) == 0 {
		outside = addrs[:min(len(addrs), orderedAddrs)]
	}
	var out []ma.Multiaddr
	left := wordBytes
	if len(outside) > wordAddrs { // otherwise there is nothing to choose, and an answer has hundreds of such lists
		outside = inOrder(outside)
	}
	for _, a := range outside {
		if size := len(a.Bytes()); size <= left && len(out) < wordAddrs {
			out, left = append(out, a), left-size
		}
	}
	return out
}

// room takes a word in unless all that may be kept, or what may come from one network, are there already. Words that were not renewed make
// room.
func (x *index) room(id peer.ID, from netip.Prefix, now time.Time) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	near := 0
	for other, w := range x.words {
		switch {
		case !now.Before(w.until):
			delete(x.words, other)
		case other != id && w.from == from:
			near++
		}
	}
	_, renewed := x.words[id]
	if !renewed && len(x.words) >= maxWords || near >= wordsPerNet && !x.loopback {
		return false
	}
	x.words[id] = word{from, now.Add(wordKept)}
	return true
}

// LeaveWord fulfils [p2p.Index].
func (n *Network) LeaveWord(ctx context.Context) error {
	if n.index == nil {
		return fmt.Errorf("leave word in the index: %w: it is off", p2p.ErrUnsupported)
	}
	err := n.index.Provide(ctx, n.index.key, true)
	if n.index.RoutingTable().Size() == 0 { // it loses peers that don't answer, of which Provide says nothing
		return fmt.Errorf("leave word in the index: %w: nobody who keeps it answered", p2p.ErrUnreachable)
	}
	if err != nil {
		return fmt.Errorf("leave word in the index: %w", err)
	}
	return nil
}

// FindWords fulfils [p2p.Index]. It hears all that answer, for one who lies and answers first would hide the others, and takes any of them.
func (n *Network) FindWords(ctx context.Context, limit int) []p2p.PeerAddr {
	if n.index == nil || limit <= 0 {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the lookup where it goes on
	var found sample
	for infos := n.index.FindProvidersAsync(ctx, n.index.key, 0); ; {
		select {
		case info, more := <-infos:
			if !more {
				return found.some(limit)
			}
			id, err := identity.PeerFromLibp2p(string(info.ID))
			if err != nil || id == n.self {
				continue
			}
			addrs := texts(inOrder(few(info.Addrs)))
			if len(addrs) == 0 {
				addrs = n.KnownAddrs(id)
			}
			found.add(p2p.PeerAddr{Peer: id, Addrs: addrs[:min(len(addrs), wordAddrs)]})
		case <-ctx.Done():
			return found.some(limit)
		}
	}
}

// sample is a part of what was found, at most maxFound, in which each is with the same chance.
type sample struct {
	seen int
	kept []p2p.PeerAddr
}

func (s *sample) add(to p2p.PeerAddr) {
	if i := slices.IndexFunc(s.kept, func(k p2p.PeerAddr) bool { return k.Peer == to.Peer }); i >= 0 { // with addresses now
		s.kept[i] = to
		return
	}
	s.seen++
	if len(s.kept) < maxFound {
		s.kept = append(s.kept, to)
	} else if i := rand.IntN(s.seen); i < maxFound {
		s.kept[i] = to
	}
}

// some are limit of them, in any order.
func (s *sample) some(limit int) []p2p.PeerAddr {
	rand.Shuffle(len(s.kept), func(i, j int) { s.kept[i], s.kept[j] = s.kept[j], s.kept[i] })
	return s.kept[:min(len(s.kept), limit)]
}
