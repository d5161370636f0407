package p2ptest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/p2ptest"
)

const echoProto p2p.Protocol = "/gpufair/t/echo/1.0.0"

func echo(_ context.Context, s p2p.Stream) error {
	_, err := io.Copy(s, s)
	return err
}

// inBubble runs a test of two connected nodes in virtual time.
func inBubble(t *testing.T, test func(t *testing.T, net *p2ptest.Net, a, b *p2ptest.Node)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		net := p2ptest.NewNet(t)
		a, b := net.Join(p2ptest.Device(t)), net.Join(p2ptest.Device(t))
		b.Handle(echoProto, p2p.Limits{}, echo)
		net.Mesh()
		test(t, net, a, b)
	})
}

func open(t *testing.T, from, to *p2ptest.Node) p2p.Stream {
	t.Helper()
	s, err := from.Open(t.Context(), to.Self(), echoProto)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func TestLatency(t *testing.T) {
	inBubble(t, func(t *testing.T, net *p2ptest.Net, a, b *p2ptest.Node) {
		net.Faults(a.Self(), b.Self(), p2ptest.Faults{Latency: 40 * time.Millisecond})
		began := time.Now()
		s := open(t, a, b)
		if got := time.Since(began); got != 80*time.Millisecond {
			t.Errorf("opened in %v, want one round trip of 80 ms", got)
		}
		began = time.Now()
		if _, err := s.Write([]byte("hi")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(s, make([]byte, 2)); err != nil {
			t.Fatal(err)
		}
		if got := time.Since(began); got != 80*time.Millisecond {
			t.Errorf("echo in %v, want 80 ms", got)
		}
		if rtt := a.Peers()[0].RTT; rtt != 80*time.Millisecond {
			t.Errorf("RTT %v", rtt)
		}
	})
}

func TestStalledLine(t *testing.T) {
	inBubble(t, func(t *testing.T, net *p2ptest.Net, a, b *p2ptest.Node) {
		s := open(t, a, b)
		net.Faults(a.Self(), b.Self(), p2ptest.Faults{Latency: time.Hour})
		if _, err := s.Write([]byte("hi")); err != nil {
			t.Fatal(err)
		}
		_, err := s.Read(make([]byte, 1))
		if p2p.KindOf(err) != p2p.KindTimeout { // b's idle limit
			t.Errorf("read over a stalled line: %v", err)
		}
	})
}

func TestCutAfter(t *testing.T) {
	inBubble(t, func(t *testing.T, net *p2ptest.Net, a, b *p2ptest.Node) {
		down := make(chan identity.PeerID, 1)
		a.Watch(t.Context(), func(peer identity.PeerID, up bool) {
			if !up {
				down <- peer
			}
		})
		net.Faults(a.Self(), b.Self(), p2ptest.Faults{CutAfter: 100})
		s := open(t, a, b)
		n, err := s.Write(make([]byte, 101))
		if n != 100 || p2p.KindOf(err) != p2p.KindUnavailable {
			t.Errorf("wrote %d bytes, %v; want 100 and a lost connection", n, err)
		}
		if <-down != b.Self() || len(a.Peers()) != 0 {
			t.Error("the connection is still there")
		}
	})
}

func TestPartitionAndHeal(t *testing.T) {
	inBubble(t, func(t *testing.T, net *p2ptest.Net, a, b *p2ptest.Node) {
		if err := a.Keep(b.PeerAddr()); err != nil {
			t.Fatal(err)
		}
		s := open(t, a, b)
		net.Partition(a.Self(), b.Self())
		if _, err := s.Read(make([]byte, 1)); p2p.KindOf(err) != p2p.KindUnavailable {
			t.Errorf("read after a partition: %v", err)
		}
		if err := a.Connect(t.Context(), b.PeerAddr()); !errors.Is(err, p2p.ErrUnreachable) {
			t.Errorf("connect through a partition: %v", err)
		}
		time.Sleep(time.Hour) // virtual
		if len(a.Peers()) != 0 {
			t.Error("connected through a partition")
		}
		net.Heal(a.Self(), b.Self())
		time.Sleep(31 * time.Second) // the longest pause between dials
		if len(a.Peers()) != 1 {
			t.Error("a kept peer did not reconnect after the partition")
		}
		net.Disconnect(a.Self(), b.Self())
		time.Sleep(time.Second)
		if len(a.Peers()) != 1 {
			t.Error("a kept peer did not reconnect after a lost connection")
		}
	})
}

// TestIdleIsRenewed keeps a stream busy for longer than its limit.
func TestIdleIsRenewed(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *p2ptest.Net, a, b *p2ptest.Node) {
		b.Handle(echoProto, p2p.Limits{Idle: time.Minute}, echo)
		s := open(t, a, b)
		for range 10 {
			time.Sleep(50 * time.Second)
			if _, err := s.Write([]byte{1}); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Read(make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(61 * time.Second)
		if _, err := s.Read(make([]byte, 1)); p2p.KindOf(err) != p2p.KindTimeout {
			t.Errorf("after a minute of silence: %v", err)
		}
	})
}

func TestGossipFaults(t *testing.T) {
	const sent = 400
	for name, c := range map[string]struct {
		faults   p2ptest.Faults
		min, max int
		ordered  bool
	}{
		"none":      {p2ptest.Faults{}, sent, sent, true},
		"drop half": {p2ptest.Faults{Drop: 0.5}, sent / 3, sent * 2 / 3, true},
		"drop all":  {p2ptest.Faults{Drop: 1}, 0, 0, true},
		"duplicate": {p2ptest.Faults{Duplicate: 1}, sent, sent, true}, // a repeat is seen and dropped
		"reorder":   {p2ptest.Faults{Reorder: time.Second}, sent, sent, false},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, net *p2ptest.Net, a, b *p2ptest.Node) {
				net.Faults(a.Self(), b.Self(), c.faults)
				got := spread(t, a, b, sent)
				if len(got) < c.min || len(got) > c.max {
					t.Errorf("%d of %d arrived, want %d to %d", len(got), sent, c.min, c.max)
				}
				if slices.IsSorted(got) != c.ordered {
					t.Errorf("in order: %v", !c.ordered)
				}
			})
		})
	}
}

// spread publishes n messages at a and gives those that arrive at b.
func spread(t *testing.T, a, b *p2ptest.Node, n int) (got []string) {
	t.Helper()
	ta, err := a.Join("/gpufair/t/offers/1/any/any", 64, nil)
	if err != nil {
		t.Fatal(err)
	}
	tb, err := b.Join("/gpufair/t/offers/1/any/any", 64, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			data, _, err := tb.Next(ctx)
			if err != nil {
				return
			}
			got = append(got, string(data))
		}
	}()
	for i := range n {
		if err := ta.Publish(t.Context(), fmt.Appendf(nil, "%04d", i)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
	}
	<-done
	return got
}
