// Package p2ptest is a network in memory with faults on demand, and the conformance suite that it and the libp2p network pass. It
// owns what a test may do to a network, and refuses to know sockets: all of it runs inside a testing/synctest bubble.
//
//	net := p2ptest.NewNet(t)
//	owner, renter := net.Join(p2ptest.Device(t)), net.Join(p2ptest.Device(t))
//	net.Mesh()
package p2ptest

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/gpufair/gpufair/p2p/identity"
)

// Faults is what goes wrong between two nodes, in both directions.
type Faults struct {
	Latency   time.Duration // of each write and each gossip message, and twice that of a dial or of opening a stream; an hour is a stalled line
	CutAfter  int           // bytes of streams after which the connection is lost, once; 0 is never
	Drop      float64       // share of gossip messages that are lost, 0 to 1
	Duplicate float64       // share of gossip messages that arrive twice
	Reorder   time.Duration // each gossip message waits up to so much longer
}

// Net joins nodes of one test. Safe for concurrent use.
type Net struct {
	tb  testing.TB
	log *slog.Logger

	mu     sync.Mutex
	nodes  map[identity.PeerID]*Node  // guarded by mu; those that are up
	addrs  map[identity.PeerID]string // guarded by mu; of all that ever joined
	links  map[pairID]*link           // guarded by mu
	parted map[pairID]bool            // guarded by mu
	faults map[pairID]Faults          // guarded by mu
	rand   *rand.Rand                 // guarded by mu; always the same numbers, so that a failure can be had again
}

// pairID names two nodes, the smaller first.
type pairID [2]identity.PeerID

func pairOf(a, b identity.PeerID) pairID {
	if bytes.Compare(a[:], b[:]) > 0 {
		a, b = b, a
	}
	return pairID{a, b}
}

// Device makes an account with one device, all powers.
func Device(tb testing.TB) *identity.Device {
	tb.Helper()
	_, _, dev, err := identity.Generate()
	if err != nil {
		tb.Fatal(err)
	}
	return dev
}

// NewNet makes an empty network that ends with the test.
func NewNet(tb testing.TB) *Net {
	n := &Net{
		tb: tb, log: slog.New(slog.NewTextHandler(tb.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})),
		nodes: map[identity.PeerID]*Node{}, addrs: map[identity.PeerID]string{}, links: map[pairID]*link{},
		parted: map[pairID]bool{}, faults: map[pairID]Faults{}, rand: rand.New(rand.NewPCG(1, 2)),
	}
	tb.Cleanup(func() {
		for _, node := range n.all() {
			node.Close()
		}
	})
	return n
}

func (n *Net) all() []*Node {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out []*Node
	for _, node := range n.nodes {
		out = append(out, node)
	}
	return out
}

// Join adds dev's machine. Nobody is connected to it yet: see [Node.Connect] and [Net.Mesh]. A device that left may join again, at
// the same address: peers that Keep it reconnect.
func (n *Net) Join(dev *identity.Device) *Node {
	n.tb.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	id := dev.Peer()
	if n.nodes[id] != nil {
		n.tb.Fatalf("device %s is on the network already: close its node first", id.Short())
	}
	if n.addrs[id] == "" {
		i := len(n.addrs) + 1
		n.addrs[id] = fmt.Sprintf("/ip4/10.0.%d.%d/udp/4701/quic-v1", i>>8, i&255)
	}
	node := newNode(n, id, n.addrs[id])
	n.nodes[id] = node
	return node
}

// Mesh connects every node with every other, unless a partition is between them.
func (n *Net) Mesh() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for a := range n.nodes {
		for b := range n.nodes {
			if bytes.Compare(a[:], b[:]) < 0 && !n.parted[pairOf(a, b)] {
				n.connect(a, b)
			}
		}
	}
}

// connect links two nodes that are up, unless they are linked. n.mu is held.
func (n *Net) connect(from, to identity.PeerID) {
	id := pairOf(from, to)
	if n.links[id] != nil {
		return
	}
	l := &link{net: n, id: id, dialler: from, since: time.Now(), streams: map[*stream]struct{}{}}
	l.ctx, l.cancel = context.WithCancel(context.Background()) // ends with the connection
	n.links[id] = l
	n.nodes[from].watchers.Set(to, true)
	n.nodes[to].watchers.Set(from, true)
}

// Faults sets what goes wrong between a and b from now on.
func (n *Net) Faults(a, b identity.PeerID, f Faults) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.faults[pairOf(a, b)] = f
	if l := n.links[pairOf(a, b)]; l != nil {
		l.restart()
	}
}

// Partition cuts the connection between a and b and lets no new one come up until Heal.
func (n *Net) Partition(a, b identity.PeerID) {
	n.mu.Lock()
	n.parted[pairOf(a, b)] = true
	n.mu.Unlock()
	n.Disconnect(a, b)
}

// Heal ends a partition; kept peers reconnect.
func (n *Net) Heal(a, b identity.PeerID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.parted, pairOf(a, b))
}

// Disconnect cuts the connection between a and b once.
func (n *Net) Disconnect(a, b identity.PeerID) {
	n.mu.Lock()
	l := n.links[pairOf(a, b)]
	n.mu.Unlock()
	if l != nil {
		l.cut()
	}
}

func (n *Net) faultsOf(id pairID) Faults {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.faults[id]
}

// link is a connection of two nodes.
type link struct {
	net     *Net
	id      pairID
	dialler identity.PeerID
	since   time.Time
	ctx     context.Context
	cancel  context.CancelFunc

	mu      sync.Mutex
	streams map[*stream]struct{} // guarded by mu; each end by itself
	carried int                  // guarded by mu; bytes since the faults were set
}

func (l *link) faults() Faults { return l.net.faultsOf(l.id) }

func (l *link) restart() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.carried = 0
}

// spend counts n bytes and gives how many of them still pass before a cut after limit bytes.
func (l *link) spend(n, limit int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if limit > 0 {
		n = min(n, max(0, limit-l.carried))
	}
	l.carried += n
	return n
}

func (l *link) add(streams ...*stream) {
	l.mu.Lock()
	for _, s := range streams {
		l.streams[s] = struct{}{}
	}
	l.mu.Unlock()
	if l.ctx.Err() != nil { // it was cut meanwhile
		l.drop()
	}
}

func (l *link) forget(s *stream) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.streams, s)
}

// drop loses all streams.
func (l *link) drop() {
	l.mu.Lock()
	var all []*stream
	for s := range l.streams {
		all = append(all, s)
	}
	clear(l.streams)
	l.mu.Unlock()
	for _, s := range all {
		s.lost()
	}
}

// cut ends the connection on both sides.
func (l *link) cut() {
	n := l.net
	n.mu.Lock()
	if n.links[l.id] == l {
		delete(n.links, l.id)
		for i, id := range l.id {
			if node := n.nodes[id]; node != nil {
				other := l.id[1-i]
				node.watchers.Set(other, false)
				node.lost(other)
			}
		}
	}
	n.mu.Unlock()
	l.cancel()
	l.drop()
}
