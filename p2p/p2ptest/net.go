// Package p2ptest is a network in memory with faults on demand, and the conformance suite that it and the libp2p network pass. It
// owns what a test may do to a network, and refuses to know sockets: all of it runs inside a testing/synctest bubble.
package p2ptest

import (
	"testing"
	"time"

	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
)

// Net joins nodes of one test. Safe for concurrent use.
type Net struct{}

// Node is one machine on a [Net]; it fulfils [p2p.Network].
type Node struct{ p2p.Network }

// Faults is what goes wrong between two nodes, in both directions.
type Faults struct {
	Latency   time.Duration // of each write, each gossip message, and (twice) of opening a stream
	CutAfter  int           // bytes that a stream carries before its connection is lost; 0 is no limit
	Drop      float64       // share of gossip messages that are lost, 0 to 1
	Duplicate float64       // share of gossip messages that arrive twice
	Reorder   time.Duration // each gossip message waits up to so much longer
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
func NewNet(tb testing.TB) *Net { return &Net{} }

// Join adds dev's machine. Nobody is connected to it yet: see Connect and [Net.Mesh]. A device that left may join again: peers that
// Keep it reconnect.
func (n *Net) Join(dev *identity.Device) *Node { return nil }

// Mesh connects every node with every other.
func (n *Net) Mesh() {}

// Faults sets what goes wrong between a and b from now on.
func (n *Net) Faults(a, b identity.PeerID, f Faults) {}

// Partition cuts the connection between a and b and lets no new one come up until Heal.
func (n *Net) Partition(a, b identity.PeerID) {}

// Heal ends a partition; kept peers reconnect.
func (n *Net) Heal(a, b identity.PeerID) {}

// Disconnect cuts the connection between a and b once.
func (n *Net) Disconnect(a, b identity.PeerID) {}

// Keep reconnects to a peer whenever it is lost and can be reached.
func (n *Node) Keep(to p2p.PeerAddr) error { return nil }

// Close takes the node off the network, as a killed process would be.
func (n *Node) Close() {}
