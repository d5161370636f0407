package libp2p

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
)

// runLocal runs a network on loopback until the test ends or stop is called.
func runLocal(t *testing.T) (n *Network, stop func()) {
	t.Helper()
	_, _, dev, err := identity.Generate()
	if err != nil {
		t.Fatal(err)
	}
	if n, err = New(dev, Local("t"), nil, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	stop = func() {
		cancel()
		<-n.ctx.Done()
	}
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return n, stop
}

// patience is how long a test waits for what must come; only a failure takes so long.
const patience = 2 * time.Minute

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); !ok(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("%s: not in %v", what, patience)
		}
	}
}

// TestLostPeerIsDialled looks inside, since gossipsub by chance dials a lost peer a few times too.
func TestLostPeerIsDialled(t *testing.T) {
	a, _ := runLocal(t)
	b, stop := runLocal(t)
	a.Handle("/x", p2p.Limits{}, p2p.Answer(64, func(context.Context, identity.PeerID, int) (int, error) { return 1, nil }))
	if err := a.Keep(p2p.PeerAddr{Peer: b.self, Addrs: b.Addrs()}); err != nil {
		t.Fatal(err)
	}
	state := func() (dialing bool, conns int) {
		a.keeper.mu.Lock()
		defer a.keeper.mu.Unlock()
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.keeper.peers[b.self].dialing, len(a.conns)
	}
	until(t, "the kept peer", func() bool { d, _ := state(); return !d && a.isConnected(b.self) && b.isConnected(a.self) })
	var one int
	if err := p2p.Call(t.Context(), b, a.self, "/x", 1, &one, 64); err != nil {
		t.Fatal(err)
	}
	if _, conns := state(); conns != 1 {
		t.Errorf("%d connections with handlers are known, want 1", conns)
	}
	stop()
	until(t, "a dial of the lost peer", func() bool { d, _ := state(); return d })
	if _, conns := state(); conns != 0 {
		t.Errorf("%d lost connections are still known", conns)
	}
}

func TestProtect(t *testing.T) {
	a, _ := runLocal(t)
	b, _ := runLocal(t)
	a.Protect(b.self, "one")
	a.Protect(b.self, "two")
	a.Unprotect(b.self, "one")
	if !a.isProtected(b.self) || !a.host.ConnManager().IsProtected(peer.ID(b.self.Libp2p()), "two") {
		t.Error("a peer with a tag left may be trimmed")
	}
	a.Unprotect(b.self, "two")
	if a.isProtected(b.self) || a.host.ConnManager().IsProtected(peer.ID(b.self.Libp2p()), "") {
		t.Error("a peer without a tag may not be trimmed")
	}
}

// TestNeighbour meets what mDNS would find: one of our network, and one that is not.
func TestNeighbour(t *testing.T) {
	a, _ := runLocal(t)
	b, _ := runLocal(t)
	f := &neighbours{n: a, ctx: t.Context(), slot: make(chan struct{}, mdnsDials), others: map[peer.ID]struct{}{}}
	info, err := addrInfo(p2p.PeerAddr{Peer: b.self, Addrs: b.Addrs()})
	if err != nil {
		t.Fatal(err)
	}
	f.HandlePeerFound(info)
	if !a.isConnected(b.self) || f.known(info.ID) {
		t.Error("a neighbour of our network was not met")
	}
	c, _ := runLocal(t)
	if info, err = addrInfo(p2p.PeerAddr{Peer: c.self, Addrs: c.Addrs()}); err != nil {
		t.Fatal(err)
	}
	f.remember(info.ID)
	f.HandlePeerFound(info)
	if a.isConnected(c.self) {
		t.Error("a neighbour remembered to be of another network was dialled")
	}
}

// TestDialsQUICAlone: at a near address TCP waits until QUIC has had its time, unless TCP is all there is.
func TestDialsQUICAlone(t *testing.T) {
	quic, tcp := ma.StringCast("/ip4/127.0.0.1/udp/4701/quic-v1"), ma.StringCast("/ip4/127.0.0.1/tcp/4701")
	for _, c := range []struct {
		addrs []ma.Multiaddr
		want  []network.AddrDelay
	}{
		{[]ma.Multiaddr{tcp, quic}, []network.AddrDelay{{Addr: quic}, {Addr: tcp, Delay: tcpAfter}}},
		{[]ma.Multiaddr{tcp}, []network.AddrDelay{{Addr: tcp}}},
	} {
		if got := rank(c.addrs); fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%v are dialled as %v, want %v", c.addrs, got, c.want)
		}
	}
}
