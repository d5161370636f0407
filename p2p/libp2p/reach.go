package libp2p

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	golibp2p "github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/config"
	"github.com/libp2p/go-libp2p/core/event"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/host/autorelay"
	"github.com/libp2p/go-libp2p/p2p/host/eventbus"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/proto"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"

	"github.com/gpufair/gpufair/p2p"
)

const (
	relaysWanted = 2                // reservations kept, so that one relay may go
	relayBackoff = time.Minute      // before a relay that had no room is asked again; libp2p's own hour would strand a small network
	relayEvery   = 30 * time.Second // between two looks for relays
	punchDial    = 5 * time.Second  // for one attempt at a direct connection: some round trips around the world
	punchWait    = 3 * time.Second  // what a new conversation waits for a punch before it goes over the relay
	relayedKept  = time.Minute      // an unused relayed connection beside a direct one
)

// Reachability is what this machine knows of how others reach it.
type Reachability struct {
	// State is "public" if peers could dial one of the addresses, "private" if they could dial none, "unknown" before they have tried.
	State   string
	Public  []string // addresses that peers could dial
	Refused []string // addresses that they could not
	// NAT says what the router does with each of "tcp" and "udp": "cone" (holes can be punched) or "symmetric" (they can not). What
	// is not known is missing: it takes two peers outside to tell.
	NAT    map[string]string
	Relays []string // addresses over relays that hold a slot for this machine
	// Shared is an address that shows that the provider's router stands before the own one (CGNAT), or "".
	Shared string
	Relay  bool // this machine is a relay itself
}

// reach watches how others reach this host. It is made before the host, whose options need it. Safe for concurrent use.
type reach struct {
	config Config
	log    *slog.Logger
	host   host.Host     // set before ready is closed
	ready  chan struct{} // closed once host is set
	met    chan struct{} // capacity 1: a relay was met, or lost

	mu      sync.Mutex
	state   network.Reachability  // guarded by mu
	public  []ma.Multiaddr        // guarded by mu
	refused []ma.Multiaddr        // guarded by mu
	relays  []ma.Multiaddr        // guarded by mu
	seen    map[peer.ID]sightings // guarded by mu; of connected peers
	puncher puncher               // guarded by mu; nil until somebody outside has seen this host
	closed  bool                  // guarded by mu
	trying  map[peer.ID]struct{}  // guarded by mu; towards whom a punch is under way
	punched map[peer.ID]struct{}  // guarded by mu; of connected peers
	changed chan struct{}         // guarded by mu; closed and replaced when addresses change
}

func newReach(c Config, log *slog.Logger) *reach {
	return &reach{
		config: c, log: log,
		ready: make(chan struct{}), met: make(chan struct{}, 1), seen: map[peer.ID]sightings{},
		trying: map[peer.ID]struct{}{}, punched: map[peer.ID]struct{}{}, changed: make(chan struct{}),
	}
}

// options make a host find out how it is reached and improve on it. A relay knows: its operator says so.
func (r *reach) options() []golibp2p.Option {
	c := r.config
	if c.Loopback {
		return []golibp2p.Option{golibp2p.DisableRelay()}
	}
	opts := []golibp2p.Option{golibp2p.EnableRelay(), golibp2p.EnableAutoNATv2()}
	if c.UPnP {
		opts = append(opts, golibp2p.NATPortMap())
	}
	if c.Relay != nil {
		// A quiet server takes UDP for blocked until something has come through, and would tell all who ask that they are not reachable
		// (spec: p2p, 3.6).
		return append(opts, reachability(network.ReachabilityPublic), golibp2p.UDPBlackHoleSuccessCounter(nil), golibp2p.IPv6BlackHoleSuccessCounter(nil))
	}
	return append(opts, reachability(network.ReachabilityUnknown), golibp2p.EnableAutoRelayWithPeerSource(
		r.candidates, autorelay.WithBootDelay(0), autorelay.WithMinCandidates(1), autorelay.WithNumRelays(relaysWanted),
		autorelay.WithBackoff(relayBackoff), autorelay.WithMinInterval(relayEvery)))
}

// reachability sets what AutoNAT's first version says, which then asks nobody: the second does, and [reach.judge] says it after that.
func reachability(r network.Reachability) golibp2p.Option {
	return func(c *config.Config) error {
		c.AutoNATConfig.ForceReachability = &r
		return nil
	}
}

// gone forgets a peer that is not connected any more.
func (r *reach) gone(id peer.ID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.punched, id)
	delete(r.seen, id)
}

// of says how a connection came about.
func (r *reach) of(c network.Conn) p2p.Reach {
	if isRelayed(c) {
		return p2p.Relayed
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.punched[c.RemotePeer()]; ok {
		return p2p.Punched
	}
	return p2p.Direct
}

func isRelayed(c network.Conn) bool { return isCircuit(c.RemoteMultiaddr()) }

func isCircuit(a ma.Multiaddr) bool {
	_, err := a.ValueForProtocol(ma.P_CIRCUIT)
	return err == nil
}

// candidates gives libp2p the relays that this host is connected to and holds no slot of. While there is none it waits: a relay that is met
// later is asked at once.
func (r *reach) candidates(ctx context.Context, limit int) <-chan peer.AddrInfo {
	out := make(chan peer.AddrInfo)
	go func() {
		defer close(out)
		select {
		case <-ctx.Done():
			return
		case <-r.ready:
		}
		for {
			found := r.unused()
			for _, info := range found[:min(len(found), limit)] {
				select {
				case <-ctx.Done():
					return
				case out <- info:
				}
			}
			if len(found) > 0 {
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-r.met:
			}
		}
	}()
	return out
}

// unused are the relays that this host is connected to and holds no slot of.
func (r *reach) unused() (found []peer.AddrInfo) {
	r.mu.Lock()
	held := map[string]bool{}
	for _, a := range r.relays {
		if id, err := a.ValueForProtocol(ma.P_P2P); err == nil {
			held[id] = true
		}
	}
	r.mu.Unlock()
	if len(held) >= relaysWanted {
		return nil
	}
	for _, id := range r.host.Network().Peers() {
		if !held[id.String()] && r.isRelay(id) {
			found = append(found, peer.AddrInfo{ID: id, Addrs: r.host.Peerstore().Addrs(id)})
		}
	}
	return found
}

// isRelay says whether a peer relays for others and is itself reached without one.
func (r *reach) isRelay(id peer.ID) bool {
	speaks, err := r.host.Peerstore().SupportsProtocols(id, proto.ProtoIDv2Hop)
	return err == nil && len(speaks) > 0 && !slices.ContainsFunc(r.host.Network().ConnsToPeer(id), isRelayed)
}

func (r *reach) poke() {
	select {
	case r.met <- struct{}{}:
	default:
	}
}

// watch keeps up with what libp2p finds out, until ctx ends.
func (r *reach) watch(ctx context.Context) error {
	sub, err := r.host.EventBus().Subscribe([]any{
		new(event.EvtHostReachableAddrsChanged), new(event.EvtAutoRelayAddrsUpdated), new(event.EvtLocalAddressesUpdated),
		new(event.EvtPeerIdentificationCompleted), new(event.EvtPeerProtocolsUpdated),
	}, eventbus.BufSize(256))
	if err != nil {
		return fmt.Errorf("watch addresses: %w", err)
	}
	defer sub.Close()
	verdict, err := r.host.EventBus().Emitter(new(event.EvtLocalReachabilityChanged), eventbus.Stateful)
	if err != nil {
		return fmt.Errorf("watch addresses: %w", err)
	}
	defer verdict.Close()
	for {
		select {
		case <-ctx.Done():
			return nil
		case e, ok := <-sub.Out():
			if !ok {
				return nil
			}
			if state, news := r.note(e); news {
				if err := verdict.Emit(event.EvtLocalReachabilityChanged{Reachability: state}); err != nil {
					return fmt.Errorf("watch addresses: %w", err)
				}
			}
			if err := r.tryPunching(e); err != nil {
				return err
			}
		}
	}
}

// note takes one event in. It says whether the host's reachability is another than before, so that those parts of libp2p learn it that
// listen to AutoNAT's first version only: the search for relays and the DHT (spec: p2p, 3.4).
func (r *reach) note(e any) (state network.Reachability, news bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch e := e.(type) {
	case event.EvtHostReachableAddrsChanged:
		r.public, r.refused = e.Reachable, e.Unreachable
		was := r.state
		r.state = judge(len(e.Reachable), len(e.Unreachable), len(e.Unknown))
		return r.state, was != r.state
	case event.EvtAutoRelayAddrsUpdated:
		r.relays = e.RelayAddrs
		r.poke()
	case event.EvtPeerIdentificationCompleted:
		if r.isRelay(e.Peer) {
			r.poke()
		}
		r.sight(e)
	case event.EvtLocalAddressesUpdated:
		close(r.changed)
		r.changed = make(chan struct{})
	}
	return r.state, false
}

// judge reduces AutoNAT's verdicts on single addresses to one on the host: one address that can be dialled is enough to be public, and
// only if all are known not to be it is private.
func judge(public, refused, untested int) network.Reachability {
	switch {
	case public > 0:
		return network.ReachabilityPublic
	case refused > 0 && untested == 0:
		return network.ReachabilityPrivate
	}
	return network.ReachabilityUnknown
}

// Reachability says how others reach this machine, as far as that is known.
func (n *Network) Reachability() Reachability {
	r := n.reach
	r.mu.Lock()
	out := Reachability{
		State: strings.ToLower(r.state.String()), Public: texts(r.public), Refused: texts(r.refused), Relays: texts(r.relays),
		NAT: natKinds(r.seen), Relay: n.meter != nil,
	}
	if out.Relay {
		out.State = strings.ToLower(network.ReachabilityPublic.String())
	}
	r.mu.Unlock()
	if h, ok := n.host.(interface{ AllAddrs() []ma.Multiaddr }); ok {
		interfaces, err := manet.InterfaceMultiaddrs()
		if err == nil {
			out.Shared = shared(h.AllAddrs(), interfaces)
		}
	}
	return out
}

// carrierNAT is what providers use between their router and their customers' (RFC 6598).
var carrierNAT = netip.MustParsePrefix("100.64.0.0/10")

// shared is the address that shows a second router outside: one of carrierNAT, on an interface or given by the own router for its outside,
// or a private one for the outside.
func shared(all, interfaces []ma.Multiaddr) string {
	own := map[netip.Addr]bool{}
	for _, a := range interfaces {
		if ip, err := ipOf(a); err == nil {
			own[ip] = true
			if carrierNAT.Contains(ip) {
				return ip.String()
			}
		}
	}
	for _, a := range all {
		if ip, err := ipOf(a); err == nil && ip.Is4() && !own[ip] && (ip.IsPrivate() || carrierNAT.Contains(ip)) {
			return ip.String()
		}
	}
	return ""
}

func ipOf(a ma.Multiaddr) (netip.Addr, error) {
	ip, err := manet.ToIP(a)
	if err != nil {
		return netip.Addr{}, err
	}
	out, ok := netip.AddrFromSlice(ip)
	if !ok {
		return netip.Addr{}, fmt.Errorf("address %s holds no IP", a)
	}
	return out.Unmap(), nil
}

// AddrsChanged fulfils [p2p.Network].
func (n *Network) AddrsChanged() <-chan struct{} {
	n.reach.mu.Lock()
	defer n.reach.mu.Unlock()
	return n.reach.changed
}

// inOrder sorts addresses so that the first few, which is all that an offer may hold, are of different kinds: a public one, one over a
// relay, one of the local network; QUIC before TCP, IPv4 before IPv6.
func inOrder(addrs []ma.Multiaddr) []ma.Multiaddr {
	taken := map[string]int{} // how many of a kind came before
	rank := make(map[string]int, len(addrs))
	out := slices.Clone(addrs)
	slices.SortStableFunc(out, func(a, b ma.Multiaddr) int { return kind(a) - kind(b) })
	for _, a := range out {
		k := strings.Join([]string{fmt.Sprint(isCircuit(a)), fmt.Sprint(manet.IsPublicAddr(a))}, " ")
		rank[a.String()] = taken[k]
		taken[k]++
	}
	slices.SortStableFunc(out, func(a, b ma.Multiaddr) int { return rank[a.String()] - rank[b.String()] })
	return out
}

// kind orders addresses of different kinds.
func kind(a ma.Multiaddr) int {
	k := 0
	switch {
	case isCircuit(a):
		k = 8
	case !manet.IsPublicAddr(a):
		k = 16
	}
	if transport(a.String()) != "quic" {
		k += 2
	}
	if _, err := a.ValueForProtocol(ma.P_IP6); err == nil {
		k++
	}
	return k
}

// onlyRelayed is the newest connection to a peer if all go over relays; false if there is a direct one or none.
func (n *Network) onlyRelayed(id peer.ID) (newest network.Conn, yes bool) {
	for _, c := range n.host.Network().ConnsToPeer(id) {
		if !isRelayed(c) {
			return nil, false
		}
		if newest == nil || c.Stat().Opened.After(newest.Stat().Opened) {
			newest = c
		}
	}
	return newest, newest != nil
}

// dropRelayed closes connections over relays that nothing uses, to a peer that is directly connected too.
func (n *Network) dropRelayed(id peer.ID) {
	if _, yes := n.onlyRelayed(id); yes {
		return
	}
	for _, c := range n.host.Network().ConnsToPeer(id) {
		if isRelayed(c) && time.Since(c.Stat().Opened) > relayedKept && len(c.GetStreams()) == 0 {
			_ = c.Close()
		}
	}
}

// best is the connection that libp2p would open a stream on: a direct one before one over a relay, then the newest. It is nil if there is
// none.
func (n *Network) best(id peer.ID) (best network.Conn) {
	for _, c := range n.host.Network().ConnsToPeer(id) {
		if c.IsClosed() {
			continue
		}
		if best == nil || isRelayed(best) && !isRelayed(c) || isRelayed(best) == isRelayed(c) && c.Stat().Opened.After(best.Stat().Opened) {
			best = c
		}
	}
	return best
}
