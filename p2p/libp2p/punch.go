package libp2p

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/libp2p/go-libp2p/core/event"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/protocol/holepunch"
	"github.com/libp2p/go-libp2p/p2p/protocol/identify"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"
)

// sightings are this host's addresses as one peer sees them, by transport.
type sightings map[string]sighting

type sighting struct {
	addr ma.Multiaddr
	by   netip.Addr // as [observer] has it
}

// puncher is libp2p's service of hole punches.
type puncher interface {
	DirectConnect(peer.ID) error // returns once there is a direct connection, or there will be none
	Close() error
}

// maxSeen bounds the addresses that are offered for a hole punch, those that most have seen first: behind a symmetric router each peer sees
// another, and a peer may say what it likes.
const maxSeen = 8

// sight notes what a peer says of this host's address, if it came by the port that this host listens on. A peer that is gone by now is not
// noted: [reach.gone] may have forgotten it already. r.mu is held.
func (r *reach) sight(e event.EvtPeerIdentificationCompleted) {
	if e.Conn.IsClosed() || e.ObservedAddr == nil || isRelayed(e.Conn) || !manet.IsPublicAddr(e.ObservedAddr) || !r.listens(e.Conn.LocalMultiaddr()) {
		return
	}
	by, err := ipOf(e.Conn.RemoteMultiaddr())
	if err != nil {
		return
	}
	if r.seen[e.Peer] == nil {
		r.seen[e.Peer] = sightings{}
	}
	r.seen[e.Peer][transport(e.ObservedAddr.String())] = sighting{e.ObservedAddr, observer(by)}
}

// observer is what counts as one of those that see this host: an address of IPv4, or of IPv6 the 56 bits that one customer gets, as in
// libp2p's own count.
func observer(by netip.Addr) netip.Addr {
	if by.Is4() {
		return by
	}
	return netip.PrefixFrom(by, 56).Masked().Addr()
}

// listens says whether a connection's local end is a port that this host listens on.
func (r *reach) listens(local ma.Multiaddr) bool {
	end := portOf(local)
	return end != "" && slices.ContainsFunc(r.host.Network().ListenAddresses(), func(a ma.Multiaddr) bool { return portOf(a) == end })
}

func portOf(a ma.Multiaddr) string {
	for _, code := range []int{ma.P_UDP, ma.P_TCP} {
		if port, err := a.ValueForProtocol(code); err == nil {
			return fmt.Sprint(code, "/", port)
		}
	}
	return ""
}

// natKinds says what the router does by transport, "tcp" and "udp", where two peers of different addresses have seen this host.
func natKinds(seen map[peer.ID]sightings) map[string]string {
	out := map[string]string{}
	for transport, name := range map[string]string{"tcp": "tcp", "quic": "udp"} {
		by, as := map[netip.Addr]bool{}, map[string]bool{}
		for _, s := range seen {
			if one, ok := s[transport]; ok {
				by[one.by], as[one.addr.String()] = true, true
			}
		}
		switch {
		case len(by) < 2:
		case len(as) == 1:
			out[name] = "cone"
		default:
			out[name] = "symmetric"
		}
	}
	return out
}

// outside are the addresses at which a hole can be punched: those that peers have seen and those that this host knows.
func (r *reach) outside() []ma.Multiaddr {
	r.mu.Lock()
	out := mostSeen(r.seen)
	r.mu.Unlock()
	out = out[:min(len(out), maxSeen)]
	if h, ok := r.host.(interface{ AllAddrs() []ma.Multiaddr }); ok {
		out = append(out, h.AllAddrs()...)
	}
	return slices.DeleteFunc(ma.Unique(out), func(a ma.Multiaddr) bool { return !manet.IsPublicAddr(a) })
}

// mostSeen are the addresses that peers have seen, each once: first what peers at most different addresses agree on.
func mostSeen(seen map[peer.ID]sightings) []ma.Multiaddr {
	by := map[string]map[netip.Addr]bool{}
	var out []ma.Multiaddr
	for _, s := range seen {
		for _, one := range s {
			text := one.addr.String()
			if by[text] == nil {
				by[text] = map[netip.Addr]bool{}
				out = append(out, one.addr)
			}
			by[text][one.by] = true
		}
	}
	slices.SortFunc(out, func(a, b ma.Multiaddr) int {
		x, y := a.String(), b.String()
		return cmp.Or(len(by[y])-len(by[x]), strings.Compare(x, y))
	})
	return out
}

// startPunching makes libp2p's service once a peer has seen this host from outside: before that it would only look for an address every
// few seconds, and peers that meet this host would find it unable, for good.
func (r *reach) startPunching() error {
	c := r.config
	h, ok := r.host.(interface {
		host.Host
		IDService() identify.IDService
	})
	if !ok || c.Loopback || c.Relay != nil || len(r.outside()) == 0 {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.puncher != nil || r.closed {
		return nil
	}
	tracer := holepunch.WithTracer(r)
	if c.Metrics != nil {
		tracer = holepunch.WithMetricsAndEventTracer(holepunch.NewMetricsTracer(holepunch.WithRegisterer(c.Metrics)), r)
	}
	service, err := holepunch.NewService(h, h.IDService(), r.outside, holepunch.DirectDialTimeout(punchDial), tracer)
	if err != nil {
		return fmt.Errorf("hole punching: %w", err)
	}
	r.puncher = service
	for _, id := range r.host.Network().Peers() {
		r.punch(id)
	}
	return nil
}

// stopPunching ends the service; it waits for what the service does.
func (r *reach) stopPunching() error {
	r.mu.Lock()
	service := r.puncher
	r.puncher, r.closed = nil, true
	r.mu.Unlock()
	if service == nil {
		return nil
	}
	return service.Close()
}

// tryPunching starts to punch once this host knows itself from outside, and tries again with a peer that could not punch when it was met
// and now can.
func (r *reach) tryPunching(e any) error {
	switch e := e.(type) {
	case event.EvtPeerIdentificationCompleted:
		return r.startPunching()
	case event.EvtPeerProtocolsUpdated:
		if slices.Contains(e.Added, holepunch.Protocol) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.punch(e.Peer)
		}
	}
	return nil
}

// punch starts a punch towards a peer that has come over a relay and has no other connection; who came is waited for by the other side,
// so that one side starts. A peer that says over and over that it can punch now has one at a time. r.mu is held.
func (r *reach) punch(id peer.ID) {
	came := false
	for _, c := range r.host.Network().ConnsToPeer(id) {
		if !isRelayed(c) {
			return
		}
		came = came || c.Stat().Direction == network.DirInbound
	}
	service := r.puncher
	if _, busy := r.trying[id]; busy || !came || service == nil {
		return
	}
	r.trying[id] = struct{}{}
	go func() { // ends with the service
		if err := service.DirectConnect(id); err != nil && !errors.Is(err, holepunch.ErrHolePunchActive) {
			r.log.Debug("no direct connection", "peer", id, "err", err)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.trying, id)
	}()
}

// Trace fulfils libp2p's tracer of hole punches: it notes who was reached by one and is still there.
func (r *reach) Trace(e *holepunch.Event) {
	if end, ok := e.Evt.(*holepunch.EndHolePunchEvt); ok && end.Success {
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(r.host.Network().ConnsToPeer(e.Remote)) > 0 {
			r.punched[e.Remote] = struct{}{}
		}
	}
}
