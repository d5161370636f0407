package libp2p

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"testing"
	"time"

	golibp2p "github.com/libp2p/go-libp2p"
	pb "github.com/libp2p/go-libp2p-kad-dht/pb"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	"github.com/gpufair/gpufair/p2p"
)

// hostAlone is a host on loopback that nothing of this package runs on.
func hostAlone(t *testing.T) host.Host {
	t.Helper()
	h, err := golibp2p.New(golibp2p.ListenAddrStrings("/ip4/127.0.0.1/tcp/0"), golibp2p.PrometheusRegisterer(prometheus.NewRegistry()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Close() })
	return h
}

// indexAlone is an index that others may ask.
func indexAlone(t *testing.T) *index {
	t.Helper()
	x, err := newIndex(hostAlone(t), Config{Network: "t", Loopback: true, Index: KeepIndex})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = x.Close() })
	return x
}

// meet connects a to b.
func meet(t *testing.T, a, b host.Host) {
	t.Helper()
	if err := a.Connect(t.Context(), peer.AddrInfo{ID: b.ID(), Addrs: b.Addrs()}); err != nil {
		t.Fatal(err)
	}
}

// pinged is a PING of so many bytes, with its length before it. Its answer is as long.
func pinged(t *testing.T, size int) []byte {
	t.Helper()
	for pad := size; pad > 0; pad-- {
		m, err := proto.Marshal(&pb.Message{Type: pb.Message_PING, Key: make([]byte, pad)})
		if err != nil {
			t.Fatal(err)
		}
		if len(m) == size {
			return append(binary.AppendUvarint(nil, uint64(size)), m...)
		}
	}
	t.Fatalf("no message of %d bytes", size)
	return nil
}

// TestIndexRefusesLongQuestions: what is longer than a question may be is reset before the DHT makes a message of it.
func TestIndexRefusesLongQuestions(t *testing.T) {
	x, asker := indexAlone(t), hostAlone(t)
	meet(t, asker, x.Host())
	for _, c := range []struct {
		name  string
		frame []byte
		want  bool
	}{
		{"short", pinged(t, 100), true},
		{"two", append(pinged(t, 100), pinged(t, 200)...), true},
		{"the longest", pinged(t, maxAsk), true},
		{"too long", pinged(t, maxAsk+1), false},
		{"a length of 4 MiB", binary.AppendUvarint(nil, 4<<20), false},
		{"a length without end", []byte{0x80, 0x80, 0x80, 0x80, 0x80}, false},
	} {
		s, err := asker.NewStream(t.Context(), x.Host().ID(), kadProtocol("t"))
		if err != nil {
			t.Fatal(err)
		}
		_ = s.SetDeadline(time.Now().Add(patience))
		_, _ = s.Write(c.frame)
		r := bufio.NewReader(s)
		size, err := binary.ReadUvarint(r)
		if err == nil {
			_, err = io.CopyN(io.Discard, r, int64(size))
		}
		if (err == nil) != c.want {
			t.Errorf("%s: an answer of %d bytes, %v", c.name, size, err)
		}
		_ = s.Reset()
	}
}

// TestIndexRefusesLongAnswers: an answer that is too long is none.
func TestIndexRefusesLongAnswers(t *testing.T) {
	x := indexAlone(t)
	for _, c := range []struct {
		size int
		want bool
	}{{100, true}, {maxTold, true}, {maxTold + 1, false}} {
		other, answer := hostAlone(t), pinged(t, c.size)
		other.SetStreamHandler(kadProtocol("t"), func(s network.Stream) {
			r := bufio.NewReader(s)
			for {
				size, err := binary.ReadUvarint(r)
				if err != nil {
					return
				}
				if _, err := io.CopyN(io.Discard, r, int64(size)); err != nil {
					return
				}
				_, _ = s.Write(answer)
			}
		})
		meet(t, x.Host(), other)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		if err := x.Ping(ctx, other.ID()); (err == nil) != c.want {
			t.Errorf("an answer of %d bytes: %v", c.size, err)
		}
		cancel()
	}
}

// TestIndexKeepsNobodyConnected: no peer's connection is protected for being in the routing table.
func TestIndexKeepsNobodyConnected(t *testing.T) {
	x, other := indexAlone(t), indexAlone(t)
	meet(t, x.Host(), other.Host())
	for end := time.Now().Add(patience); x.RoutingTable().Size() == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the peer is not in the routing table")
		}
	}
	h := x.Host().(small).Host
	if h.ConnManager().IsProtected(other.Host().ID(), "") {
		t.Error("the peer is protected")
	}
}

// TestIndexWordNobodyTook: word that reached nobody is not left.
func TestIndexWordNobodyTook(t *testing.T) {
	x, other := indexAlone(t), indexAlone(t)
	meet(t, x.Host(), other.Host())
	for end := time.Now().Add(patience); x.RoutingTable().Size() == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the peer is not in the routing table")
		}
	}
	n := &Network{index: x}
	if err := n.LeaveWord(t.Context()); err != nil {
		t.Fatal(err)
	}
	other.Host().(small).Host.SetStreamHandler(kadProtocol("t"), func(s network.Stream) { _ = s.Reset() })
	if err := other.Close(); err != nil { // ends the streams that are open
		t.Fatal(err)
	}
	x.Host().(small).Host.Network().ClosePeer(other.Host().ID())
	meet(t, x.Host(), other.Host())
	if err := n.LeaveWord(t.Context()); !errors.Is(err, p2p.ErrUnreachable) {
		t.Errorf("nobody took it: %v", err)
	}
}
