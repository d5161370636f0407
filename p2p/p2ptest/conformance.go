package p2ptest

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
)

// NetworkName is the network that [Conformance] runs on; a [Fabric] must serve it.
const NetworkName = "conformance"

// patience is how long a test waits for what must come; only a failure takes so long.
const patience = 2 * time.Minute

// Fabric starts machines of one kind of network, which can reach each other.
type Fabric interface {
	// Start brings dev's machine up, which dials the peers in keep for ever. A device that was stopped comes up at the same address.
	Start(t *testing.T, dev *identity.Device, keep ...p2p.PeerAddr) Machine
}

// Machine is a network that can be stopped, as a process that ends. Stop may be called twice; the fabric stops what is up at the end
// of the test.
type Machine struct {
	p2p.Network
	Stop func()
}

func (m Machine) at() p2p.PeerAddr { return p2p.PeerAddr{Peer: m.Self(), Addrs: m.Addrs()} }

// Conformance tests that a kind of network keeps the contract of [p2p.Network]. newFabric is called once for each test.
func Conformance(t *testing.T, newFabric func(t *testing.T) Fabric) {
	for name, test := range map[string]func(*testing.T, Fabric){
		"echo":                testEcho,
		"half close":          testHalfClose,
		"bulk":                testBulk,
		"reset kinds":         testResetKinds,
		"panic":               testPanic,
		"deadline":            testDeadline,
		"idle":                testIdle,
		"peer streams":        testPeerStreams,
		"all streams":         testAllStreams,
		"call and answer":     testCall,
		"call canceled":       testCallCanceled,
		"oversize":            testOversize,
		"garbage":             testGarbage,
		"handler context":     testHandlerContext,
		"unsupported":         testUnsupported,
		"unreachable":         testUnreachable,
		"impostor":            testImpostor,
		"watch":               testWatch,
		"peers and protect":   testPeers,
		"restart":             testRestart,
		"topic":               testTopic,
		"topic verdicts":      testTopicVerdicts,
		"topic own validator": testTopicOwn,
	} {
		t.Run(name, func(t *testing.T) {
			leaks := goleak.IgnoreCurrent()
			t.Cleanup(func() { goleak.VerifyNone(t, leaks) })
			test(t, newFabric(t))
		})
	}
}

// deadline gives a context that ends when the test has waited long enough.
func deadline(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// two starts two connected machines.
func two(t *testing.T, f Fabric) (a, b Machine) {
	t.Helper()
	a, b = f.Start(t, Device(t)), f.Start(t, Device(t))
	connect(t, a, b)
	return a, b
}

func connect(t *testing.T, a, b Machine) {
	t.Helper()
	if err := a.Connect(deadline(t), b.at()); err != nil {
		t.Fatal(err)
	}
}

func protocol(name string) p2p.Protocol { return p2p.ProtocolID(NetworkName, name) }

func open(t *testing.T, from, to Machine, proto p2p.Protocol) p2p.Stream {
	t.Helper()
	s, err := from.Open(deadline(t), to.Self(), proto)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	if err := s.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return s
}

// receive waits for a value, or fails the test.
func receive[T any](t *testing.T, ch <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(patience):
		t.Fatalf("%s: nothing in %v", what, patience)
	}
	panic("unreachable")
}

// wantKind reads from s until it ends, and checks with which kind.
func wantKind(t *testing.T, s p2p.Stream, kind p2p.Kind) {
	t.Helper()
	buf := make([]byte, 64)
	for {
		if _, err := s.Read(buf); err != nil {
			checkKind(t, err, kind)
			return
		}
	}
}

func checkKind(t *testing.T, err error, kind p2p.Kind) {
	t.Helper()
	var e *p2p.Error
	if !errors.As(err, &e) || e.Kind != kind {
		t.Fatalf("got %v (%T), want an error of kind %q", err, err, kind)
	}
}

func testUnsupported(t *testing.T, f Fabric) {
	a, b := two(t, f)
	_, err := a.Open(deadline(t), b.Self(), protocol("nobody-speaks-this"))
	if !errors.Is(err, p2p.ErrUnsupported) {
		t.Fatalf("got %v, want ErrUnsupported", err)
	}
}

func testUnreachable(t *testing.T, f Fabric) {
	a, b := f.Start(t, Device(t)), f.Start(t, Device(t))
	if _, err := a.Open(deadline(t), b.Self(), protocol("x")); !errors.Is(err, p2p.ErrUnreachable) {
		t.Errorf("open to a peer of unknown address: got %v, want ErrUnreachable", err)
	}
	gone := b.at()
	b.Stop()
	short, cancel := context.WithTimeout(t.Context(), time.Second) // UDP tells nobody that a port is closed
	defer cancel()
	if err := a.Connect(short, gone); !errors.Is(err, p2p.ErrUnreachable) {
		t.Errorf("connect to a stopped peer: got %v, want ErrUnreachable", err)
	}
	if _, err := a.Open(short, gone.Peer, protocol("x")); !errors.Is(err, p2p.ErrUnreachable) {
		t.Errorf("open to a stopped peer: got %v, want ErrUnreachable", err)
	}
	canceled, end := context.WithCancel(t.Context())
	end()
	if err := a.Connect(canceled, gone); err == nil {
		t.Error("connect with a context that ended: no error")
	}
	if err := a.Connect(deadline(t), a.at()); !errors.Is(err, p2p.ErrUnreachable) {
		t.Errorf("connect to itself: got %v, want ErrUnreachable", err)
	}
}

// testImpostor dials an address under the name of another device than lives there.
func testImpostor(t *testing.T, f Fabric) {
	a, b := f.Start(t, Device(t)), f.Start(t, Device(t))
	other := p2p.PeerAddr{Peer: Device(t).Peer(), Addrs: b.Addrs()}
	if err := a.Connect(deadline(t), other); !errors.Is(err, p2p.ErrUnreachable) {
		t.Fatalf("got %v, want ErrUnreachable", err)
	}
	if peers := a.Peers(); len(peers) != 0 {
		t.Fatalf("connected to %v", peers)
	}
}

type news struct {
	peer identity.PeerID
	up   bool
}

// watch collects what a machine's Watch says.
func watch(t *testing.T, m Machine) <-chan news {
	t.Helper()
	ch := make(chan news, 64)
	m.Watch(t.Context(), func(peer identity.PeerID, up bool) { ch <- news{peer, up} })
	return ch
}

func wantNews(t *testing.T, ch <-chan news, want ...news) {
	t.Helper()
	for _, w := range want {
		if got := receive(t, ch, "news of a peer"); got != w {
			t.Fatalf("got %s up=%v, want %s up=%v", got.peer.Short(), got.up, w.peer.Short(), w.up)
		}
	}
}

func testWatch(t *testing.T, f Fabric) {
	a, b := f.Start(t, Device(t)), f.Start(t, Device(t))
	seen, dialled := watch(t, a), watch(t, b)
	connect(t, a, b)
	wantNews(t, seen, news{b.Self(), true})
	wantNews(t, dialled, news{a.Self(), true})
	wantNews(t, watch(t, a), news{b.Self(), true}) // a late watcher hears who is there
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan news, 8)
	a.Watch(ctx, func(peer identity.PeerID, up bool) { over <- news{peer, up} })
	wantNews(t, over, news{b.Self(), true})
	cancel()
	b.Stop()
	wantNews(t, seen, news{b.Self(), false})
	if len(over) != 0 {
		t.Error("a watcher was told something after its context ended")
	}
}

func testPeers(t *testing.T, f Fabric) {
	a, b := two(t, f)
	before := time.Now()
	find := func(m Machine, id identity.PeerID) p2p.PeerInfo {
		i := slices.IndexFunc(m.Peers(), func(p p2p.PeerInfo) bool { return p.Peer == id })
		if i < 0 {
			t.Fatalf("%s is not among the peers", id.Short())
		}
		return m.Peers()[i]
	}
	out := find(a, b.Self())
	if out.Inbound || out.Addr == "" || out.Agent == "" || (out.Transport != "quic" && out.Transport != "tcp") || out.Since.After(before) {
		t.Errorf("the dialler sees %+v", out)
	}
	answer := p2p.Answer(64, func(context.Context, identity.PeerID, int) (int, error) { return 1, nil })
	a.Handle(protocol("hi"), p2p.Limits{}, answer)
	var one int
	if err := p2p.Call(deadline(t), b, a.Self(), protocol("hi"), 1, &one, 64); err != nil { // now b has taken note of a for sure
		t.Fatal(err)
	}
	if in := find(b, a.Self()); !in.Inbound {
		t.Errorf("the dialled sees %+v", in)
	}
	a.Protect(b.Self(), "job")
	a.Protect(b.Self(), "job")
	a.Unprotect(b.Self(), "job")
	a.Unprotect(b.Self(), "never")
	if self := a.Self(); self.IsZero() || len(a.Addrs()) == 0 {
		t.Errorf("self %s, addrs %v", self, a.Addrs())
	}
}

// testRestart stops and starts one side, then the other; the side that keeps the other reconnects both times.
func testRestart(t *testing.T, f Fabric) {
	devA, devB := Device(t), Device(t)
	b := f.Start(t, devB)
	where := b.at()
	met := watch(t, b)
	a := f.Start(t, devA, where)
	seen := watch(t, a)
	wantNews(t, seen, news{b.Self(), true})
	wantNews(t, met, news{a.Self(), true}) // over QUIC the dialler is connected first, and one that stops before has nobody to say goodbye to
	b.Stop()
	wantNews(t, seen, news{b.Self(), false})

	serve := func(m Machine) {
		m.Handle(protocol("double"), p2p.Limits{}, p2p.Answer(64, func(_ context.Context, _ identity.PeerID, n int) (int, error) { return 2 * n, nil }))
	}
	b = f.Start(t, devB)
	serve(b)
	if got := b.at(); !slices.Equal(got.Addrs, where.Addrs) {
		t.Fatalf("restarted at %v, was at %v", got.Addrs, where.Addrs)
	}
	wantNews(t, seen, news{b.Self(), true})
	a.Stop()
	a = f.Start(t, devA, where)
	wantNews(t, watch(t, a), news{b.Self(), true})
	var n int
	if err := p2p.Call(deadline(t), a, b.Self(), protocol("double"), 21, &n, 64); err != nil || n != 42 {
		t.Fatalf("call after both restarted: %d, %v", n, err)
	}
}
