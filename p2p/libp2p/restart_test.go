package libp2p_test

import (
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/libp2p"
	"github.com/gpufair/gpufair/p2p/p2ptest"
)

const restartTopic = "/gpufair/t/offers/1/any/any"

func join(t *testing.T, n *libp2p.Network) p2p.Topic {
	t.Helper()
	topic, err := n.Join(restartTopic, 512, nil)
	if err != nil {
		t.Fatal(err)
	}
	return topic
}

// heard waits for a message at a topic.
func heard(t *testing.T, at p2p.Topic, want string) {
	t.Helper()
	for {
		got, _, err := at.Next(within(t))
		if err != nil {
			t.Fatalf("waiting for %q: %v", want, err)
		}
		if string(got) == want {
			return
		}
	}
}

// TestGossipOutlivesAnOlderConnection: a peer comes back, under the same key, while its former connection is still up, and only then
// the former one ends, by which gossipsub forgets what the peer said on the newer one.
func TestGossipOutlivesAnOlderConnection(t *testing.T) {
	a, _ := start(t, p2ptest.Device(t), libp2p.Local("t"), nil)
	atA := join(t, a)
	devB := p2ptest.Device(t)
	before, stop := start(t, devB, libp2p.Local("t"), nil)
	atBefore := join(t, before)
	if err := before.Connect(within(t), at(a)); err != nil {
		t.Fatal(err)
	}
	until(t, "both to be members", func() bool {
		return slices.Contains(atA.Peers(), devB.Peer()) && slices.Contains(atBefore.Peers(), a.Self())
	})
	after, _ := start(t, devB, libp2p.Local("t"), nil)
	atAfter := join(t, after)
	if err := after.Connect(within(t), at(a)); err != nil {
		t.Fatal(err)
	}
	// Gossipsub has read what b says on its new connection once it has read a later subscription there.
	mark := "/gpufair/t/mark"
	seen, err := a.Join(mark, 512, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := after.Join(mark, 512, nil); err != nil {
		t.Fatal(err)
	}
	until(t, "a to read b's new stream", func() bool { return slices.Contains(seen.Peers(), devB.Peer()) })
	stop()
	until(t, "b to know a", func() bool { return slices.Contains(atAfter.Peers(), a.Self()) })
	until(t, "a to know b", func() bool { return slices.Contains(atA.Peers(), devB.Peer()) })
	if err := atA.Publish(t.Context(), []byte("to b")); err != nil {
		t.Fatal(err)
	}
	heard(t, atAfter, "to b")
	if err := atAfter.Publish(t.Context(), []byte("to a")); err != nil {
		t.Fatal(err)
	}
	heard(t, atA, "to a")
}

// line is a UDP path to a port of loopback that may be cut without a word to either end.
type line struct {
	front net.PacketConn // where the caller sends to
	back  net.Conn       // to the port
	cut   atomic.Bool
}

// newLine carries one caller's packets until the test ends.
func newLine(t *testing.T, to string) *line {
	t.Helper()
	front, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	back, err := net.Dial("udp", to)
	if err != nil {
		t.Fatal(err)
	}
	l := &line{front: front, back: back}
	var both sync.WaitGroup
	var caller atomic.Value // net.Addr
	both.Go(func() {
		for b := make([]byte, 64<<10); ; {
			n, from, err := front.ReadFrom(b)
			if err != nil {
				return
			}
			if caller.Store(from); !l.cut.Load() {
				_, _ = back.Write(b[:n])
			}
		}
	})
	both.Go(func() {
		for b := make([]byte, 64<<10); ; {
			n, err := back.Read(b)
			if err != nil {
				return
			}
			if !l.cut.Load() {
				_, _ = front.WriteTo(b[:n], caller.Load().(net.Addr))
			}
		}
	})
	t.Cleanup(func() {
		front.Close()
		back.Close()
		both.Wait()
	})
	return l
}

// TestADeadOlderConnectionIsClosed: a peer comes back by another way while nothing says that the former one is dead.
func TestADeadOlderConnectionIsClosed(t *testing.T) {
	a, _ := start(t, p2ptest.Device(t), libp2p.Local("t"), nil)
	atA := join(t, a)
	devB := p2ptest.Device(t)
	before, _ := start(t, devB, libp2p.Local("t"), nil)
	l := newLine(t, listens(a)[0])
	port := l.front.LocalAddr().(*net.UDPAddr).Port
	via := p2p.PeerAddr{Peer: a.Self(), Addrs: []string{fmt.Sprintf("/ip4/127.0.0.1/udp/%d/quic-v1", port)}}
	if err := before.Connect(within(t), via); err != nil {
		t.Fatal(err)
	}
	atBefore := join(t, before)
	until(t, "both to be members", func() bool {
		return slices.Contains(atA.Peers(), devB.Peer()) && slices.Contains(atBefore.Peers(), a.Self())
	})
	l.cut.Store(true)
	after, _ := start(t, devB, libp2p.Local("t"), nil)
	atAfter := join(t, after)
	began := time.Now()
	if err := after.Connect(within(t), at(a)); err != nil {
		t.Fatal(err)
	}
	until(t, "both to be members again", func() bool {
		return slices.Contains(atA.Peers(), devB.Peer()) && slices.Contains(atAfter.Peers(), a.Self())
	})
	if took := time.Since(began); took > 25*time.Second { // a dead connection ends by itself after 30 s
		t.Errorf("members again only after %v", took)
	}
}
