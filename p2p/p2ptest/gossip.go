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
	"github.com/gpufair/gpufair/p2p/wire"
)

const (
	inboxSize = 1024            // messages on their way to one node; more are lost, as in any gossip
	readSize  = 256             // accepted messages that nobody read; more are lost
	seenTTL   = 5 * time.Minute // as long as the real network remembers a message
	seenMax   = 1 << 16
	maxSize   = 4 << 10 // the real network's default
)

// message is on its way to a node.
type message struct {
	topic string
	data  []byte
	from  identity.PeerID
	at    time.Time
}

// gossip floods each accepted message to all neighbours in its topic.
type gossip struct {
	n     *Node
	inbox chan message

	mu     sync.Mutex
	topics map[string]*topic       // guarded by mu
	seen   map[wire.Hash]time.Time // guarded by mu
}

func newGossip(n *Node) *gossip {
	return &gossip{n: n, inbox: make(chan message, inboxSize), topics: map[string]*topic{}, seen: map[wire.Hash]time.Time{}}
}

// run delivers what is due until ctx ends.
func (g *gossip) run(ctx context.Context) {
	var waiting []message // by time
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		if len(waiting) > 0 {
			timer.Reset(time.Until(waiting[0].at))
		}
		select {
		case <-ctx.Done():
			return
		case m := <-g.inbox:
			i, _ := slices.BinarySearchFunc(waiting, m.at, func(w message, at time.Time) int {
				if w.at.After(at) {
					return 1
				}
				return -1 // behind those of the same time
			})
			waiting = slices.Insert(waiting, i, m)
		case <-timer.C:
		}
		for len(waiting) > 0 && !waiting[0].at.After(time.Now()) {
			g.receive(ctx, waiting[0])
			waiting = waiting[1:]
		}
	}
}

func (g *gossip) topic(name string) *topic {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.topics[name]
}

// first reports whether a message was never seen, and remembers it.
func (g *gossip) first(topic string, data []byte) bool {
	id := wire.Sum(topic+"\x00", data)
	now := time.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.seen) >= seenMax {
		clear(g.seen)
	}
	if at, ok := g.seen[id]; ok && now.Sub(at) < seenTTL {
		return false
	}
	g.seen[id] = now
	return true
}

func (g *gossip) receive(ctx context.Context, m message) {
	t := g.topic(m.topic)
	if t == nil || !g.first(m.topic, m.data) {
		return
	}
	if p2p.Judge(ctx, t.validate, t.maxSize, m.from, m.data, g.n.net.log) == p2p.Accept {
		t.deliver(m)
		g.forward(m, m.from)
	}
}

// forward sends m to all neighbours in its topic but one.
func (g *gossip) forward(m message, but identity.PeerID) {
	m.from = g.n.self
	for _, peer := range g.members(m.topic) {
		if peer.self != but {
			g.send(peer, m)
		}
	}
}

func (g *gossip) send(to *Node, m message) {
	net := g.n.net
	net.mu.Lock()
	f := net.faults[pairOf(g.n.self, to.self)]
	copies := 1
	if net.rand.Float64() < f.Drop {
		copies = 0
	} else if net.rand.Float64() < f.Duplicate {
		copies = 2
	}
	delays := make([]time.Duration, copies)
	for i := range delays {
		delays[i] = f.Latency
		if f.Reorder > 0 {
			delays[i] += time.Duration(net.rand.Int64N(int64(f.Reorder)))
		}
	}
	net.mu.Unlock()
	for _, d := range delays {
		m.at = time.Now().Add(d)
		m.data = slices.Clone(m.data)
		select {
		case to.gossip.inbox <- m:
		default:
		}
	}
}

// members are the neighbours that joined a topic.
func (g *gossip) members(name string) []*Node {
	net := g.n.net
	net.mu.Lock()
	var near []*Node
	for id := range net.links {
		if node := net.nodes[id.other(g.n.self)]; slices.Contains(id[:], g.n.self) && node != nil {
			near = append(near, node)
		}
	}
	net.mu.Unlock()
	near = slices.DeleteFunc(near, func(n *Node) bool { return n.gossip.topic(name) == nil })
	slices.SortFunc(near, func(a, b *Node) int { return strings.Compare(a.addr, b.addr) })
	return near
}

// topic fulfils [p2p.Topic].
type topic struct {
	g        *gossip
	name     string
	maxSize  int
	validate p2p.Validator
	messages chan message
	left     chan struct{}
	leave    sync.Once
}

// Join fulfils [p2p.Publisher].
func (n *Node) Join(name string, size int, v p2p.Validator) (p2p.Topic, error) {
	if size < 1 || size > maxSize {
		return nil, fmt.Errorf("join topic %s: messages of %d bytes: want 1 to %d", name, size, maxSize)
	}
	g := n.gossip
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.topics[name] != nil {
		return nil, fmt.Errorf("join topic %s: it is joined already", name)
	}
	t := &topic{g: g, name: name, maxSize: size, validate: v, messages: make(chan message, readSize), left: make(chan struct{})}
	g.topics[name] = t
	return t, nil
}

func (t *topic) deliver(m message) {
	select {
	case t.messages <- m:
	default:
	}
}

// Publish fulfils [p2p.Topic].
func (t *topic) Publish(ctx context.Context, data []byte) error {
	if len(data) > t.maxSize {
		return fmt.Errorf("publish to %s: %d bytes: %w (limit %d)", t.name, len(data), wire.ErrTooLarge, t.maxSize)
	}
	self := t.g.n.self
	select {
	case <-t.left:
		return fmt.Errorf("publish to %s: the topic was left", t.name)
	case <-t.g.n.ctx.Done():
		return fmt.Errorf("publish to %s: this machine is closed", t.name)
	default:
	}
	if v := p2p.Judge(ctx, t.validate, t.maxSize, self, data, t.g.n.net.log); v != p2p.Accept {
		return fmt.Errorf("publish to %s: this side's own check does not accept the message", t.name)
	}
	m := message{topic: t.name, data: slices.Clone(data), from: self}
	if t.g.first(t.name, data) {
		t.deliver(m)
		t.g.forward(m, self)
	}
	return nil
}

// Next fulfils [p2p.Topic].
func (t *topic) Next(ctx context.Context) ([]byte, identity.PeerID, error) {
	err := fmt.Errorf("read topic %s: it was left", t.name)
	select {
	case m := <-t.messages:
		return m.data, m.from, nil
	case <-ctx.Done():
		err = fmt.Errorf("read topic %s: %w", t.name, context.Cause(ctx))
	case <-t.left:
	case <-t.g.n.ctx.Done():
	}
	return nil, identity.PeerID{}, err
}

// Peers fulfils [p2p.Topic].
func (t *topic) Peers() []identity.PeerID {
	var out []identity.PeerID
	for _, n := range t.g.members(t.name) {
		out = append(out, n.self)
	}
	return out
}

// Leave fulfils [p2p.Topic].
func (t *topic) Leave() error {
	t.leave.Do(func() {
		t.g.mu.Lock()
		defer t.g.mu.Unlock()
		delete(t.g.topics, t.name)
		close(t.left)
	})
	return nil
}
