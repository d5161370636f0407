package p2ptest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
)

// Node is one machine on a [Net]; it fulfils [p2p.Network].
type Node struct {
	net      *Net
	self     identity.PeerID
	addr     string
	watchers p2p.Watchers
	ctx      context.Context
	cancel   context.CancelFunc
	running  sync.WaitGroup // handlers, dials, gossip
	gossip   *gossip

	mu        sync.Mutex
	services  map[p2p.Protocol]*p2p.Service           // guarded by mu
	book      map[identity.PeerID][]string            // guarded by mu; addresses
	kept      map[identity.PeerID]bool                // guarded by mu; true while it is dialled
	protected map[identity.PeerID]map[string]struct{} // guarded by mu
}

var _ p2p.Network = (*Node)(nil)

func newNode(net *Net, id identity.PeerID, addr string) *Node {
	n := &Node{
		net: net, self: id, addr: addr, services: map[p2p.Protocol]*p2p.Service{}, book: map[identity.PeerID][]string{},
		kept: map[identity.PeerID]bool{}, protected: map[identity.PeerID]map[string]struct{}{},
	}
	n.ctx, n.cancel = context.WithCancel(context.Background()) // the node's life; Close ends it
	n.gossip = newGossip(n)
	n.running.Go(func() { n.gossip.run(n.ctx) })
	return n
}

// Close takes the node off the network, as a killed process would be, and waits for its handlers.
func (n *Node) Close() {
	n.net.mu.Lock()
	if n.net.nodes[n.self] == n {
		delete(n.net.nodes, n.self)
	}
	var links []*link
	for id, l := range n.net.links {
		if slices.Contains(id[:], n.self) && n.ctx.Err() == nil {
			links = append(links, l)
		}
	}
	n.cancel()
	n.net.mu.Unlock()
	for _, l := range links {
		l.cut()
	}
	n.running.Wait()
}

// Self fulfils [p2p.Network].
func (n *Node) Self() identity.PeerID { return n.self }

// Addrs fulfils [p2p.Network].
func (n *Node) Addrs() []string { return []string{n.addr} }

// AddrsChanged fulfils [p2p.Network]: a node stays where it is.
func (n *Node) AddrsChanged() <-chan struct{} { return nil }

// PeerAddr is where this node is, for Connect and Keep of others.
func (n *Node) PeerAddr() p2p.PeerAddr { return p2p.PeerAddr{Peer: n.self, Addrs: n.Addrs()} }

// Handle fulfils [p2p.Network].
func (n *Node) Handle(proto p2p.Protocol, limits p2p.Limits, h p2p.Handler) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.services[proto] = p2p.NewService(limits, h)
}

func (n *Node) service(proto p2p.Protocol) *p2p.Service {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.services[proto]
}

// Connect fulfils [p2p.Finder].
func (n *Node) Connect(ctx context.Context, to p2p.PeerAddr) error {
	n.mu.Lock()
	if len(to.Addrs) > 0 {
		n.book[to.Peer] = slices.Clone(to.Addrs)
	}
	addrs := n.book[to.Peer]
	n.mu.Unlock()
	id := pairOf(n.self, to.Peer)
	if n.linkTo(to.Peer) != nil {
		return nil
	}
	if err := sleep(ctx, 2*n.net.faultsOf(id).Latency); err != nil {
		return fmt.Errorf("connect to %s: %w: %w", to.Peer.Short(), p2p.ErrUnreachable, err)
	}
	n.net.mu.Lock()
	defer n.net.mu.Unlock()
	why := ""
	switch {
	case n.net.links[id] != nil:
		return nil
	case n.ctx.Err() != nil:
		why = "this machine is closed"
	case to.Peer == n.self:
		why = "that is this machine itself"
	case len(addrs) == 0:
		why = "no address of it is known; ask its owner for an invite"
	case n.net.nodes[to.Peer] == nil || n.net.parted[id] || !slices.Contains(addrs, n.net.addrs[to.Peer]):
		why = "no answer from " + strings.Join(addrs, ", ")
	}
	if why != "" {
		return fmt.Errorf("connect to %s: %w: %s", to.Peer.Short(), p2p.ErrUnreachable, why)
	}
	n.net.connect(n.self, to.Peer)
	return nil
}

// sleep waits for d, or for the end of ctx, which is the error.
func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 || ctx.Err() != nil {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Keep reconnects to a peer whenever it is lost and can be reached, with pauses of 50 ms to 30 s.
func (n *Node) Keep(to p2p.PeerAddr) error {
	n.mu.Lock()
	n.book[to.Peer] = slices.Clone(to.Addrs)
	n.kept[to.Peer] = false
	n.mu.Unlock()
	n.lost(to.Peer)
	return nil
}

// lost starts to dial a kept peer.
func (n *Node) lost(id identity.PeerID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if dialling, kept := n.kept[id]; !kept || dialling || n.ctx.Err() != nil {
		return
	}
	n.kept[id] = true
	n.running.Go(func() {
		wait := 50 * time.Millisecond
		for sleep(n.ctx, wait) == nil {
			wait = min(2*wait, 30*time.Second)
			if n.Connect(n.ctx, p2p.PeerAddr{Peer: id}) == nil && n.rest(id) {
				return
			}
		}
	})
}

// rest ends the dialling of a kept peer, unless it was lost again since.
func (n *Node) rest(id identity.PeerID) bool {
	n.net.mu.Lock() // so that no cut comes between the look and the note
	defer n.net.mu.Unlock()
	n.mu.Lock()
	defer n.mu.Unlock()
	up := n.net.links[pairOf(n.self, id)] != nil
	n.kept[id] = !up
	return up
}

// Peers fulfils [p2p.Finder].
func (n *Node) Peers() []p2p.PeerInfo {
	n.net.mu.Lock()
	defer n.net.mu.Unlock()
	var out []p2p.PeerInfo
	for id, l := range n.net.links {
		if !slices.Contains(id[:], n.self) {
			continue
		}
		other := id.other(n.self)
		out = append(out, p2p.PeerInfo{
			Peer: other, Addr: n.net.addrs[other], Transport: "quic", Reach: p2p.Direct, Inbound: l.dialler != n.self, Since: l.since,
			RTT: 2 * n.net.faults[id].Latency, Agent: "p2ptest",
		})
	}
	slices.SortFunc(out, func(a, b p2p.PeerInfo) int { return strings.Compare(a.Peer.String(), b.Peer.String()) })
	return out
}

func (p pairID) other(one identity.PeerID) identity.PeerID {
	if p[0] == one {
		return p[1]
	}
	return p[0]
}

// Open fulfils [p2p.Network].
func (n *Node) Open(ctx context.Context, to identity.PeerID, proto p2p.Protocol) (p2p.Stream, error) {
	l, err := n.reach(ctx, to)
	if err != nil {
		return nil, fmt.Errorf("open %s to %s: %w", proto, to.Short(), err)
	}
	if err := sleep(ctx, 2*l.faults().Latency); err != nil {
		return nil, fmt.Errorf("open %s to %s: %w: no answer in time: %w", proto, to.Short(), p2p.ErrUnreachable, err)
	}
	n.net.mu.Lock()
	peer := n.net.nodes[to]
	alive := n.net.links[l.id] == l && peer != nil
	n.net.mu.Unlock()
	if !alive {
		return nil, fmt.Errorf("open %s to %s: %w: the connection was lost", proto, to.Short(), p2p.ErrUnreachable)
	}
	service := peer.service(proto)
	if service == nil {
		return nil, fmt.Errorf("open %s to %s: %w", proto, to.Short(), p2p.ErrUnsupported)
	}
	mine, theirs := pair(l, n.self, to, proto, service.Limits.Idle)
	l.add(mine, theirs)
	release, ok := service.Admit(n.self)
	if !ok {
		theirs.Reset(p2p.KindBusy)
		return mine, nil
	}
	if !peer.serve(func() {
		defer release()
		service.Serve(l.ctx, theirs, n.net.log)
	}) {
		release()
		theirs.lost()
	}
	return mine, nil
}

// serve runs f unless the node is closed.
func (n *Node) serve(f func()) bool {
	n.net.mu.Lock() // Close takes it before it waits
	defer n.net.mu.Unlock()
	if n.ctx.Err() != nil {
		return false
	}
	n.running.Go(f)
	return true
}

// reach gives the link to a peer, dialling it if its address is known.
func (n *Node) reach(ctx context.Context, to identity.PeerID) (*link, error) {
	if err := n.Connect(ctx, p2p.PeerAddr{Peer: to}); err != nil {
		return nil, err
	}
	if l := n.linkTo(to); l != nil {
		return l, nil
	}
	return nil, fmt.Errorf("%w: the connection was lost", p2p.ErrUnreachable)
}

func (n *Node) linkTo(to identity.PeerID) *link {
	n.net.mu.Lock()
	defer n.net.mu.Unlock()
	return n.net.links[pairOf(n.self, to)]
}

// Protect fulfils [p2p.Network]; nothing is ever trimmed here, see IsProtected.
func (n *Node) Protect(peer identity.PeerID, tag string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.protected[peer] == nil {
		n.protected[peer] = map[string]struct{}{}
	}
	n.protected[peer][tag] = struct{}{}
}

// Unprotect fulfils [p2p.Network].
func (n *Node) Unprotect(peer identity.PeerID, tag string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.protected[peer], tag)
}

// IsProtected reports whether any tag protects peer.
func (n *Node) IsProtected(peer identity.PeerID) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.protected[peer]) > 0
}

// Watch fulfils [p2p.Network].
func (n *Node) Watch(ctx context.Context, f func(peer identity.PeerID, up bool)) {
	n.watchers.Watch(ctx, f)
}
