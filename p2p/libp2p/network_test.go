package libp2p_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	golibp2p "github.com/libp2p/go-libp2p"
	pubsub "github.com/libp2p/go-libp2p-pubsub"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/libp2p"
	"github.com/gpufair/gpufair/p2p/p2ptest"
)

func TestMain(m *testing.M) {
	if home := os.Getenv(childHome); home != "" {
		child(home)
	}
	if home := os.Getenv(natHome); home != "" {
		if err := runNATNode(home); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// sockets is real libp2p over loopback.
type sockets struct {
	mu     sync.Mutex
	listen map[identity.PeerID][]string // guarded by mu; where a device was, so that it comes up there again
}

func (s *sockets) Start(t *testing.T, dev *identity.Device, keep ...p2p.PeerAddr) p2ptest.Machine {
	t.Helper()
	c := libp2p.Local(p2ptest.NetworkName)
	c.Peers = keep
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listen[dev.Peer()] == nil {
		s.listen[dev.Peer()] = []string{p2ptest.Loopback(t)}
	}
	c.Listen = s.listen[dev.Peer()]
	n, stop := start(t, dev, c, nil)
	return p2ptest.Machine{Network: n, Stop: stop}
}

// listens reads back ip:port from the addresses of a network.
func listens(n *libp2p.Network) []string {
	var out []string
	for _, a := range n.Addrs() {
		if part := strings.Split(a, "/"); part[3] == "tcp" {
			out = append(out, part[2]+":"+part[4])
		}
	}
	return out
}

func testLog(t *testing.T) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// start runs a network until the test ends or stop is called.
func start(t *testing.T, dev *identity.Device, c libp2p.Config, persist p2p.Persist) (*libp2p.Network, func()) {
	t.Helper()
	n, err := libp2p.New(dev, c, persist, testLog(t))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	t.Cleanup(stop)
	return n, stop
}

func TestConformance(t *testing.T) {
	p2ptest.Conformance(t, func(t *testing.T) p2ptest.Fabric { return &sockets{listen: map[identity.PeerID][]string{}} })
}

// tcpOnly hides the QUIC addresses, so that every connection is Noise over TCP.
type tcpOnly struct{ p2p.Network }

func (n tcpOnly) Addrs() []string {
	return slices.DeleteFunc(n.Network.Addrs(), func(a string) bool { return !strings.Contains(a, "/tcp/") })
}

type overTCP struct{ *sockets }

func (s overTCP) Start(t *testing.T, dev *identity.Device, keep ...p2p.PeerAddr) p2ptest.Machine {
	t.Helper()
	m := s.sockets.Start(t, dev, keep...)
	return p2ptest.Machine{Network: tcpOnly{m.Network}, Stop: m.Stop}
}

func TestConformanceOverTCP(t *testing.T) {
	p2ptest.Conformance(t, func(t *testing.T) p2ptest.Fabric { return overTCP{&sockets{listen: map[identity.PeerID][]string{}}} })
}

// patience is how long a test waits for what must come; only a failure takes so long.
const patience = 2 * time.Minute

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// until waits for a condition, or fails the test.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for ctx := within(t); !ok(); {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s: not in %v", what, patience)
		}
	}
}

func at(n *libp2p.Network) p2p.PeerAddr { return p2p.PeerAddr{Peer: n.Self(), Addrs: n.Addrs()} }

func connected(n *libp2p.Network, id identity.PeerID) bool {
	return slices.ContainsFunc(n.Peers(), func(p p2p.PeerInfo) bool { return p.Peer == id })
}

func TestListensOnOnePort(t *testing.T) {
	n, _ := start(t, p2ptest.Device(t), libp2p.Local("t"), nil)
	addrs := n.Addrs()
	if len(addrs) != 2 {
		t.Fatalf("listens on %v, want QUIC and TCP", addrs)
	}
	quic, tcp := strings.Split(addrs[0], "/"), strings.Split(addrs[1], "/")
	if quic[5] != "quic-v1" || tcp[3] != "tcp" || quic[4] != tcp[4] || quic[4] == "0" {
		t.Errorf("listens on %v, want QUIC first, and TCP on the same port", addrs)
	}
}

func TestBusyPort(t *testing.T) {
	n, _ := start(t, p2ptest.Device(t), libp2p.Local("t"), nil)
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	for what, where := range map[string]string{
		"another daemon": listens(n)[0], "a TCP server": tcp.Addr().String(), "a UDP server": udp.LocalAddr().String(),
	} {
		c := libp2p.Local("t")
		c.Listen = []string{where}
		_, err := libp2p.New(p2ptest.Device(t), c, nil, testLog(t))
		if err == nil || !strings.Contains(err.Error(), where) || !strings.Contains(err.Error(), "set another port") {
			t.Errorf("port of %s: %v", what, err)
		}
	}
}

// memory is a Persist.
type memory struct {
	mu sync.Mutex
	m  map[string][]byte // guarded by mu
}

func (m *memory) Load(_ context.Context, key string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.m[key], nil
}

func (m *memory) Store(_ context.Context, key string, value []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.m[key] = bytes.Clone(value)
	return nil
}

func TestGoodPeersSurviveRestart(t *testing.T) {
	devA, store := p2ptest.Device(t), &memory{m: map[string][]byte{}}
	a, stop := start(t, devA, libp2p.Local("t"), store)
	b, _ := start(t, p2ptest.Device(t), libp2p.Local("t"), nil)
	if err := a.Connect(within(t), at(b)); err != nil {
		t.Fatal(err)
	}
	until(t, "a saved peer", func() bool { raw, _ := store.Load(t.Context(), "peers"); return raw != nil })
	stop()
	until(t, "b to notice", func() bool { return len(b.Peers()) == 0 })
	a, _ = start(t, devA, libp2p.Local("t"), store)
	until(t, "the saved peer to be connected again", func() bool { return connected(a, b.Self()) })
}

func TestBadSavedPeers(t *testing.T) {
	store := &memory{m: map[string][]byte{"peers": []byte("\xff\xffnot ours")}}
	a, _ := start(t, p2ptest.Device(t), libp2p.Local("t"), store)
	b, _ := start(t, p2ptest.Device(t), libp2p.Local("t"), nil)
	if err := a.Connect(within(t), at(b)); err != nil {
		t.Fatal(err)
	}
}

func TestStaticPeerThatComesLater(t *testing.T) {
	devB := p2ptest.Device(t)
	there := libp2p.Local("t")
	there.Listen = []string{p2ptest.Loopback(t)}
	b, stop := start(t, devB, there, nil)
	where := at(b)
	stop()
	c := libp2p.Local("t")
	c.Peers = []p2p.PeerAddr{where}
	a, _ := start(t, p2ptest.Device(t), c, nil)
	b, _ = start(t, devB, there, nil)
	until(t, "the static peer to be connected", func() bool { return connected(a, b.Self()) })
}

func TestKeep(t *testing.T) {
	a, _ := start(t, p2ptest.Device(t), libp2p.Local("t"), nil)
	b, _ := start(t, p2ptest.Device(t), libp2p.Local("t"), nil)
	if err := a.Keep(at(b)); err != nil {
		t.Fatal(err)
	}
	until(t, "the kept peer to be connected", func() bool { return connected(a, b.Self()) })
	until(t, "a round trip", func() bool { return a.Peers()[0].RTT > 0 })
}

func TestOtherNetwork(t *testing.T) {
	a, _ := start(t, p2ptest.Device(t), libp2p.Local("one"), nil)
	b, _ := start(t, p2ptest.Device(t), libp2p.Local("two"), nil)
	err := a.Connect(within(t), at(b))
	if !errors.Is(err, p2p.ErrUnreachable) || !strings.Contains(err.Error(), "network") {
		t.Errorf("got %v, want ErrUnreachable that speaks of the network", err)
	}
	until(t, "both to let go", func() bool { return len(a.Peers()) == 0 && len(b.Peers()) == 0 })
}

func TestLoopbackStaysAtHome(t *testing.T) {
	a, _ := start(t, p2ptest.Device(t), libp2p.Local("t"), nil)
	err := a.Connect(within(t), p2p.PeerAddr{Peer: p2ptest.Device(t).Peer(), Addrs: []string{"/ip4/192.0.2.1/tcp/4701"}})
	if !errors.Is(err, p2p.ErrUnreachable) || !strings.Contains(err.Error(), "gater disallows") {
		t.Errorf("a dial off loopback gave %v, want a refusal before any dial", err)
	}
}

// stranger is a bare libp2p host that calls itself of our network.
func stranger(t *testing.T, keyType int) host.Host {
	t.Helper()
	key, _, err := crypto.GenerateKeyPairWithReader(keyType, 2048, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	h, err := golibp2p.New(golibp2p.Identity(key), golibp2p.ListenAddrStrings("/ip4/127.0.0.1/tcp/0"), golibp2p.PrometheusRegisterer(prometheus.NewRegistry()),
		golibp2p.DisableRelay(), golibp2p.ProtocolVersion("gpufair/t"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	return h
}

func info(t *testing.T, n *libp2p.Network) peer.AddrInfo {
	t.Helper()
	for _, a := range n.Addrs() {
		if strings.Contains(a, "/tcp/") {
			i, err := peer.AddrInfoFromString(a + "/p2p/" + n.Self().String())
			if err != nil {
				t.Fatal(err)
			}
			return *i
		}
	}
	t.Fatal("no TCP address")
	return peer.AddrInfo{}
}

func TestOtherKeysAreRefused(t *testing.T) {
	n, _ := start(t, p2ptest.Device(t), libp2p.Local("t"), nil)
	good := stranger(t, crypto.Ed25519)
	if err := good.Connect(within(t), info(t, n)); err != nil {
		t.Fatalf("a peer with an Ed25519 key: %v", err)
	}
	for name, keyType := range map[string]int{"RSA": crypto.RSA, "Secp256k1": crypto.Secp256k1, "ECDSA": crypto.ECDSA} {
		h := stranger(t, keyType)
		err := h.Connect(within(t), info(t, n))
		if err == nil {
			_, err = h.NewStream(within(t), info(t, n).ID, "/ipfs/ping/1.0.0")
		}
		if err == nil {
			t.Errorf("a peer with a key of kind %s was let in", name)
		}
	}
	if got := len(n.Peers()); got != 1 {
		t.Errorf("%d peers, want the one with the right key", got)
	}
}

// TestHostileGossip has a bare gossipsub peer send what ours must not pass on: oversized messages, signed ones, and raw junk.
func TestHostileGossip(t *testing.T) {
	n, _ := start(t, p2ptest.Device(t), libp2p.Local("t"), nil)
	name := p2p.OffersTopic("t", "any", "any")
	topic, err := n.Join(name, 512, func(context.Context, identity.PeerID, []byte) p2p.Verdict { return p2p.Accept })
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.Join(p2p.OffersTopic("other", "any", "any"), 512, nil); err == nil {
		t.Error("a topic of another network was joined")
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for _, policy := range []pubsub.MessageSignaturePolicy{pubsub.StrictNoSign, pubsub.StrictSign} {
		h := stranger(t, crypto.Ed25519)
		opts := []pubsub.Option{pubsub.WithMessageSignaturePolicy(policy), pubsub.WithFloodPublish(true)}
		if policy == pubsub.StrictNoSign {
			opts = append(opts, pubsub.WithNoAuthor())
		}
		ps, err := pubsub.NewGossipSub(ctx, h, opts...)
		if err != nil {
			t.Fatal(err)
		}
		their, err := ps.Join(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := h.Connect(within(t), info(t, n)); err != nil {
			t.Fatal(err)
		}
		until(t, "the stranger to see our subscription", func() bool { return len(their.ListPeers()) == 1 })
		for _, size := range []int{513, 5000, 60_000} {
			if err := their.Publish(ctx, make([]byte, size)); err != nil {
				t.Fatal(err)
			}
		}
		if policy == pubsub.StrictSign {
			if err := their.Publish(ctx, []byte("signed")); err != nil {
				t.Fatal(err)
			}
			s, err := h.NewStream(within(t), info(t, n).ID, "/meshsub/1.1.0")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.Write([]byte("\x05\xff\xff\xff\xff\xff\xff\xff\xff\xff")); err != nil {
				t.Log(err) // it may be cut off by then
			}
		}
	}
	good, _ := start(t, p2ptest.Device(t), libp2p.Local("t"), nil)
	theirs, err := good.Join(name, 512, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := good.Connect(within(t), at(n)); err != nil {
		t.Fatal(err)
	}
	until(t, "a member", func() bool { return slices.Contains(theirs.Peers(), n.Self()) })
	if err := theirs.Publish(ctx, []byte("good")); err != nil {
		t.Fatal(err)
	}
	if got, _, err := topic.Next(within(t)); err != nil || string(got) != "good" {
		t.Errorf("got %.20q of %d bytes, %v; want only the good message", got, len(got), err)
	}
}

func TestMetricsStayPrivate(t *testing.T) {
	reg := prometheus.NewRegistry()
	c := libp2p.Local("t")
	c.Metrics = reg
	a, _ := start(t, p2ptest.Device(t), c, nil)
	b, _ := start(t, p2ptest.Device(t), libp2p.Local("t"), nil)
	if err := a.Connect(within(t), at(b)); err != nil {
		t.Fatal(err)
	}
	got, err := reg.Gather()
	if err != nil || len(got) == 0 {
		t.Errorf("%d metrics in the registry that was passed, %v", len(got), err)
	}
	all, err := prometheus.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		if strings.HasPrefix(m.GetName(), "libp2p") {
			t.Errorf("%s is in the default registry", m.GetName())
		}
	}
}

func TestCloseWithoutRun(t *testing.T) {
	n, err := libp2p.New(p2ptest.Device(t), libp2p.Local("t"), nil, testLog(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
}
