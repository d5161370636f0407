// Package libp2p is the one libp2p network behind p2p's contract: host, transports, gossip, limits, mDNS, and the peers it keeps.
// It owns everything that libp2p is asked or told, and refuses to know what the conversations are about.
package libp2p

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	pubsub "github.com/libp2p/go-libp2p-pubsub"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/peerstore"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"
	msmux "github.com/multiformats/go-multistream"

	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
)

// Network is this machine among its peers; it fulfils [p2p.Network]. Safe for concurrent use.
type Network struct {
	config  Config
	self    identity.PeerID
	persist p2p.Persist // nil: nothing outlives the process
	log     *slog.Logger

	host     host.Host
	gossip   *pubsub.PubSub
	keeper   *keeper
	reach    *reach
	traffic  *traffic
	index    *index // nil: it takes no part in the DHT
	meter    *meter // nil: this machine is no relay
	watchers p2p.Watchers
	met      chan struct{} // capacity 1: a peer was identified

	ctx     context.Context // ends with the network; handlers and gossip live in it
	cancel  context.CancelFunc
	serving sync.WaitGroup // handlers
	closing sync.Once
	closed  error // of the host; written once under closing

	mu        sync.Mutex
	conns     map[network.Conn]*connCtx               // guarded by mu
	rtts      map[network.Conn]time.Duration          // guarded by mu; as last measured
	protected map[identity.PeerID]map[string]struct{} // guarded by mu
	topics    map[string]struct{}                     // guarded by mu
}

var (
	_ p2p.Network = (*Network)(nil)
	_ p2p.Index   = (*Network)(nil)
)

// connCtx ends with its connection.
type connCtx struct {
	ctx    context.Context
	cancel context.CancelFunc
}

// New binds the listeners of c, so that a busy port is an error here. persist may be nil: then nothing outlives the process. Call
// Run, or Close if it never comes to that.
func New(dev *identity.Device, c Config, persist p2p.Persist, log *slog.Logger) (*Network, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("network config: %w", err)
	}
	count, err := newTraffic(c.Metrics)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	found := newReach(c, log)
	h, err := newHost(dev, c, found, count)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background()) // the network's life; Run and Close end it
	n := &Network{
		config: c, self: dev.Peer(), persist: persist, log: log, host: h, ctx: ctx, cancel: cancel, met: make(chan struct{}, 1),
		reach: found, traffic: count,
		conns: map[network.Conn]*connCtx{}, rtts: map[network.Conn]time.Duration{}, protected: map[identity.PeerID]map[string]struct{}{}, topics: map[string]struct{}{},
	}
	n.keeper = newKeeper(n)
	if c.Index != NoIndex {
		if n.index, err = newIndex(h, c); err != nil {
			cancel()
			return nil, errors.Join(err, h.Close())
		}
	}
	if n.gossip, err = newGossip(ctx, h, c); err != nil {
		cancel()
		return nil, errors.Join(fmt.Errorf("gossip: %w", err), n.closeIndex(), h.Close())
	}
	if c.Relay != nil {
		if n.meter, err = serveRelay(ctx, h, *c.Relay, c.Metrics); err != nil {
			return nil, errors.Join(err, n.Close())
		}
	}
	h.Network().Notify(&network.NotifyBundle{ConnectedF: n.connected, DisconnectedF: n.disconnected})
	for _, to := range c.Peers {
		if err := n.Keep(to); err != nil {
			return nil, errors.Join(err, n.Close())
		}
	}
	return n, nil
}

// Run keeps the peers, mDNS and the saved list going until ctx ends, then closes the host. It returns nil on cancel.
func (n *Network) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var loops sync.WaitGroup
	loops.Go(func() { n.keeper.run(ctx) })
	loops.Go(func() { n.watchIdentity(ctx) })
	loops.Go(func() { n.pingLoop(ctx) })
	loops.Go(func() {
		if err := n.reach.watch(ctx); err != nil {
			n.log.Error("how others reach this machine will not be known", "err", err)
		}
	})
	if n.config.MDNS {
		loops.Go(func() { n.runMDNS(ctx) })
	}
	select {
	case <-ctx.Done():
	case <-n.ctx.Done(): // Close was called
	}
	cancel()
	loops.Wait()
	return n.Close()
}

// closePatience is how long handlers have to return once their streams are gone.
const closePatience = 10 * time.Second

// Close ends the network at once: connections, handlers, listeners. Run calls it.
func (n *Network) Close() error {
	n.closing.Do(func() {
		n.mu.Lock()
		n.cancel() // no handler starts from here on
		n.mu.Unlock()
		n.closed = errors.Join(n.reach.stopPunching(), n.closeIndex(), n.host.Close())
		done := make(chan struct{})
		go func() {
			n.serving.Wait()
			close(done)
		}()
		select {
		case <-done:
		case <-time.After(closePatience):
			n.log.Error("a stream handler does not end", "after", closePatience)
		}
	})
	return n.closed
}

func (n *Network) closeIndex() error {
	if n.index == nil {
		return nil
	}
	return n.index.Close()
}

// Self fulfils [p2p.Network].
func (n *Network) Self() identity.PeerID { return n.self }

// Addrs fulfils [p2p.Network]: public, relayed and local ones in turns, QUIC before TCP; loopback only if there is nothing else.
func (n *Network) Addrs() []string {
	addrs := n.host.Addrs()
	if others := slices.DeleteFunc(slices.Clone(addrs), manet.IsIPLoopback); len(others) > 0 {
		addrs = others
	}
	return texts(inOrder(addrs))
}

func transport(addr string) string {
	if strings.Contains(addr, "/quic-v1") {
		return "quic"
	}
	return "tcp"
}

// Handle fulfils [p2p.Network].
func (n *Network) Handle(proto p2p.Protocol, limits p2p.Limits, h p2p.Handler) {
	service := p2p.NewService(limits, h)
	n.host.SetStreamHandler(protocol.ID(proto), func(s network.Stream) {
		peerID, err := identity.PeerFromLibp2p(string(s.Conn().RemotePeer()))
		if err != nil {
			s.ResetWithError(network.StreamGated)
			return
		}
		release, ok := service.Admit(peerID)
		if !ok {
			s.ResetWithError(resetBase + network.StreamErrorCode(p2p.KindBusy))
			return
		}
		defer release()
		ctx, ok := n.begin(s.Conn())
		if !ok {
			s.ResetWithError(network.StreamShutdown)
			return
		}
		defer n.serving.Done()
		service.Serve(ctx, newStream(s, peerID, proto, service.Limits.Idle), n.log)
	})
}

// begin counts a handler in, unless the network is closed, and gives the context that ends with conn.
func (n *Network) begin(conn network.Conn) (context.Context, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ctx.Err() != nil {
		return nil, false
	}
	n.serving.Add(1)
	c := n.conns[conn]
	if c == nil {
		c = &connCtx{}
		c.ctx, c.cancel = context.WithCancel(n.ctx)
		if conn.IsClosed() { // its end was told already
			c.cancel()
			return c.ctx, true
		}
		n.conns[conn] = c
	}
	return c.ctx, true
}

func (n *Network) connected(_ network.Network, conn network.Conn) {
	if id, err := identity.PeerFromLibp2p(string(conn.RemotePeer())); err == nil {
		n.setState(id)
	}
	n.checkOlder(conn)
}

func (n *Network) disconnected(_ network.Network, conn network.Conn) {
	n.mu.Lock()
	if c := n.conns[conn]; c != nil {
		c.cancel()
		delete(n.conns, conn)
	}
	delete(n.rtts, conn)
	n.mu.Unlock()
	if id, err := identity.PeerFromLibp2p(string(conn.RemotePeer())); err == nil {
		n.setState(id)
	}
}

// setState tells the watchers and the keeper what is so now: notifications of two connections may arrive in any order.
func (n *Network) setState(id identity.PeerID) {
	n.keeper.mu.Lock()
	defer n.keeper.mu.Unlock()
	up := n.isConnected(id)
	n.watchers.Set(id, up)
	other := peer.ID(id.Libp2p())
	if up {
		n.traffic.up(other)
		return
	}
	n.traffic.down(other)
	n.reach.gone(other)
	n.keeper.lost(id)
}

func (n *Network) isConnected(id identity.PeerID) bool {
	return len(n.host.Network().ConnsToPeer(peer.ID(id.Libp2p()))) > 0
}

// Open fulfils [p2p.Network]. Without a deadline in ctx it takes 15 s at most.
func (n *Network) Open(ctx context.Context, to identity.PeerID, proto p2p.Protocol) (p2p.Stream, error) {
	const patience = 15 * time.Second // a dial, a handshake and an agreement on the protocol, each over a slow line
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	id := peer.ID(to.Libp2p())
	if !n.isConnected(to) {
		n.forgetBackoff(id)
	}
	s, err := n.newStream(ctx, id, protocol.ID(proto))
	if err != nil {
		return nil, fmt.Errorf("open %s to %s: %w", proto, to.Short(), openError(ctx, err))
	}
	return newStream(s, to, proto, p2p.OpenerIdle), nil
}

// overRelay lets what is done with ctx go over a relayed connection.
func overRelay(ctx context.Context) context.Context {
	return network.WithAllowLimitedConn(ctx, "gpufair")
}

// newStream opens a stream on a direct connection, if there is one or a hole is punched in good time, else over a relay.
func (n *Network) newStream(ctx context.Context, id peer.ID, proto protocol.ID) (network.Stream, error) {
	if err := n.host.Connect(overRelay(ctx), peer.AddrInfo{ID: id}); err != nil {
		return nil, err
	}
	if c, yes := n.onlyRelayed(id); yes {
		wait := punchWait - time.Since(c.Stat().Opened)
		if deadline, ok := ctx.Deadline(); ok {
			wait = min(wait, time.Until(deadline)/2)
		}
		if wait > 0 {
			patient, cancel := context.WithTimeout(ctx, wait)
			s, err := n.host.NewStream(network.WithNoDial(patient, "a punch is under way"), id, proto)
			cancel()
			if err == nil {
				return s, nil
			}
		}
	}
	return n.host.NewStream(overRelay(ctx), id, proto)
}

// openError puts why a stream could not be opened into our words.
func openError(ctx context.Context, err error) error {
	var (
		unsupported msmux.ErrNotSupported[protocol.ID]
		reset       *network.StreamError
	)
	switch {
	case errors.As(err, &unsupported):
		return p2p.ErrUnsupported
	case errors.Is(err, network.ErrResourceLimitExceeded):
		return p2p.Errorf(p2p.KindBusy, "this machine has too many streams open; try again in a moment")
	case ctx.Err() != nil:
		return fmt.Errorf("%w: no answer in time: %w", p2p.ErrUnreachable, context.Cause(ctx))
	case errors.As(err, &reset) && reset.Remote:
		return resetError(reset)
	}
	return fmt.Errorf("%w: %s", p2p.ErrUnreachable, dialText(err))
}

// dialText is the part of a dial error that helps a person: each address and what it said.
func dialText(err error) string {
	const shown = 4
	var dial *swarm.DialError
	if !errors.As(err, &dial) || len(dial.DialErrors) == 0 {
		if errors.Is(err, swarm.ErrNoAddresses) {
			return "no address of it is known; ask its owner for an invite"
		}
		return err.Error()
	}
	var parts []string
	for _, e := range dial.DialErrors[:min(len(dial.DialErrors), shown)] {
		cause := e.Cause.Error()
		if i := strings.LastIndex(cause, ": "); i >= 0 {
			cause = cause[i+2:]
		}
		parts = append(parts, fmt.Sprintf("%s: %s", e.Address, cause))
	}
	return strings.Join(parts, "; ")
}

// forgetBackoff lets the next dial happen: libp2p would refuse to dial a peer again for seconds after it failed, but our callers have
// their own patience, and a peer that restarts must be met at once.
func (n *Network) forgetBackoff(id peer.ID) {
	if s, ok := n.host.Network().(*swarm.Swarm); ok {
		s.Backoff().Clear(id)
	}
}

// Connect fulfils [p2p.Finder]. A peer of another network is [p2p.ErrUnreachable].
func (n *Network) Connect(ctx context.Context, to p2p.PeerAddr) error {
	info, err := addrInfo(to)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	if to.Peer == n.self {
		return fmt.Errorf("connect to %s: %w: that is this machine itself", to.Peer.Short(), p2p.ErrUnreachable)
	}
	n.host.Peerstore().AddAddrs(info.ID, info.Addrs, peerstore.AddressTTL)
	if n.isConnected(to.Peer) {
		return nil
	}
	n.forgetBackoff(info.ID)
	if err := n.host.Connect(overRelay(ctx), info); err != nil {
		return fmt.Errorf("connect to %s: %w", to.Peer.Short(), openError(ctx, err))
	}
	other, foreign := n.foreign(info.ID)
	switch {
	case foreign:
		n.host.Network().ClosePeer(info.ID)
		return fmt.Errorf("connect to %s: %w: it is on network %q, this machine on %q", to.Peer.Short(), p2p.ErrUnreachable, other, n.config.Network)
	case !n.isConnected(to.Peer):
		return fmt.Errorf("connect to %s: %w: it hung up; it may be on another network than %q", to.Peer.Short(), p2p.ErrUnreachable, n.config.Network)
	}
	return nil
}

// foreign tells the network of a peer that is identified and not of ours.
func (n *Network) foreign(id peer.ID) (other string, yes bool) {
	v, err := n.host.Peerstore().Get(id, "ProtocolVersion")
	if err != nil {
		return "", false // not identified yet
	}
	version, _ := v.(string)
	return strings.TrimPrefix(version, "gpufair/"), version != networkVersion(n.config.Network)
}

// Peers fulfils [p2p.Finder].
func (n *Network) Peers() []p2p.PeerInfo {
	var out []p2p.PeerInfo
	for _, id := range n.host.Network().Peers() {
		known, err := identity.PeerFromLibp2p(string(id))
		c := n.best(id)
		if err != nil || c == nil {
			continue
		}
		addr := c.RemoteMultiaddr().String()
		info := p2p.PeerInfo{
			Peer: known, Addr: addr, Transport: transport(addr), Reach: n.reach.of(c), Inbound: c.Stat().Direction == network.DirInbound,
			Since: c.Stat().Opened, RTT: n.rtt(c), Traffic: n.traffic.of(id),
		}
		if v, err := n.host.Peerstore().Get(id, "AgentVersion"); err == nil {
			info.Agent, _ = v.(string)
		}
		out = append(out, info)
	}
	slices.SortFunc(out, func(a, b p2p.PeerInfo) int { return strings.Compare(a.Peer.String(), b.Peer.String()) })
	return out
}

// KnownAddrs are the addresses at which a peer may be reached, as it or others have said.
func (n *Network) KnownAddrs(id identity.PeerID) []string {
	return texts(inOrder(n.host.Peerstore().Addrs(peer.ID(id.Libp2p()))))
}

// rtt is the round trip of a connection as last measured; 0 if it was not.
func (n *Network) rtt(c network.Conn) time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.rtts[c]
}

// Watch fulfils [p2p.Network].
func (n *Network) Watch(ctx context.Context, f func(peer identity.PeerID, up bool)) {
	n.watchers.Watch(ctx, f)
}

// Protect fulfils [p2p.Network].
func (n *Network) Protect(id identity.PeerID, tag string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.protected[id] == nil {
		n.protected[id] = map[string]struct{}{}
	}
	n.protected[id][tag] = struct{}{}
	n.host.ConnManager().Protect(peer.ID(id.Libp2p()), tag)
}

// Unprotect fulfils [p2p.Network].
func (n *Network) Unprotect(id identity.PeerID, tag string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.protected[id], tag)
	if len(n.protected[id]) == 0 {
		delete(n.protected, id)
	}
	n.host.ConnManager().Unprotect(peer.ID(id.Libp2p()), tag)
}

func (n *Network) isProtected(id identity.PeerID) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.protected[id]) > 0
}

func peerAddr(info peer.AddrInfo) (p2p.PeerAddr, error) {
	id, err := identity.PeerFromLibp2p(string(info.ID))
	if err != nil {
		return p2p.PeerAddr{}, err
	}
	to := p2p.PeerAddr{Peer: id, Addrs: texts(info.Addrs)}
	return to, nil
}

func texts(addrs []ma.Multiaddr) []string {
	var out []string
	for _, a := range addrs {
		out = append(out, a.String())
	}
	return out
}
