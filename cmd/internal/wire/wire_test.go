package wire

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/statement"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/local"
)

func settings(t *testing.T) Config {
	t.Helper()
	dir, err := os.MkdirTemp("", "gfw") // short: a socket's path may have 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	dirs, err := cli.HomeDirs(dir)
	if err != nil {
		t.Fatal(err)
	}
	return Config{
		Program: "gpufaird", Title: "test", Dirs: dirs, Network: NetConfig{Network: "trial", Listen: []string{"127.0.0.1:0"}, MDNS: true},
		Unit: money.Credit, Role: ledger.AsProvider, Log: slog.New(slog.DiscardHandler),
	}
}

func nobody(context.Context, identity.AccountID) (identity.PeerID, error) {
	return identity.PeerID{}, errors.New("nobody was dealt with")
}

// running opens and runs a daemon without an agent until the test's end.
func running(t *testing.T, c Config) (*Base, *local.Client) {
	t.Helper()
	b, err := Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	b.Register(Agent{PeerOf: nobody, Checks: func(context.Context) []local.Check { return []local.Check{Check("agent", "mine")} }})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- b.Run(ctx, Part{Name: "agent", Run: func(ctx context.Context) error { <-ctx.Done(); return nil }})
	}()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-done, b.Close(), b.Close()); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(b.Socket); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("socket after the end: %v", err)
		}
	})
	return b, local.NewClient(b.Socket)
}

// becomes waits until what happens over sockets is so. The test's own context ends only after the test, so it can't bound a wait.
func becomes(t *testing.T, what string, so func() bool) {
	t.Helper()
	end := time.After(time.Minute) // long after it: what is late fails by name and not by the limit of the whole package
	for !so() {
		select {
		case <-end:
			t.Fatalf("%s: never", what)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// TestTwoMeet lets two daemons join by an invite and find each other in all that both tell.
func TestTwoMeet(t *testing.T) {
	known := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, known) }) // after both have ended
	host, at := running(t, settings(t))
	guest, by := running(t, settings(t))
	var inv local.Invite
	if err := at.Post(t.Context(), "/invite", local.InviteRequest{Credit: "2.5"}, &inv); err != nil {
		t.Fatal(err)
	}
	var joined local.Joined
	if err := by.Post(t.Context(), "/join", inv, &joined); err != nil {
		t.Fatal(err)
	}
	if joined.Account != host.Device.Account().String() || joined.Network != "trial" {
		t.Errorf("joined %+v", joined)
	}
	var peers local.Peers
	if err := by.Get(t.Context(), "/peers", &peers); err != nil || len(peers.Peers) != 1 || peers.Peers[0].Account != joined.Account {
		t.Errorf("the guest's peers: %v %+v", err, peers)
	}
	if err := at.Get(t.Context(), "/peers", &peers); err != nil || len(peers.Peers) != 1 || peers.Peers[0].Peer != guest.Device.Peer().String() {
		t.Errorf("the host's peers: %v %+v", err, peers)
	}
	var id local.Identity
	if err := at.Get(t.Context(), "/identity", &id); err != nil || id.Account != joined.Account || len(id.Addrs) == 0 || id.Powers != "trade|pay|provide" {
		t.Errorf("identity: %v %+v", err, id)
	}
	var checks local.Checks
	if err := at.Get(t.Context(), "/doctor", &checks); err != nil {
		t.Error(err)
	}
	found := map[string]string{}
	for _, c := range checks.Checks {
		found[c.Name] = c.Level
	}
	for _, name := range []string{"identity", "ledger", "peers", "agent"} {
		if found[name] != LevelOK {
			t.Errorf("doctor on %s: %q; all: %+v", name, found[name], checks)
		}
	}
	var book statement.Ledger
	if err := at.Get(t.Context(), "/ledger", &book); err != nil || book.Account != joined.Account {
		t.Errorf("ledger: %v %+v", err, book)
	}
}

// TestJoinRefused is every invite that must not be followed.
func TestJoinRefused(t *testing.T) {
	_, at := running(t, settings(t))
	other := settings(t)
	other.Network.Network = "elsewhere"
	_, far := running(t, other)
	invite := func(c *local.Client) string {
		var inv local.Invite
		if err := c.Post(t.Context(), "/invite", local.InviteRequest{}, &inv); err != nil {
			t.Fatal(err)
		}
		return inv.Invite
	}
	gone := settings(t)
	b, err := Open(t.Context(), gone)
	if err != nil {
		t.Fatal(err)
	}
	away, err := meeting{b: b}.Invite(t.Context(), local.InviteRequest{})
	if err := errors.Join(err, b.Close()); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ text, why string }{
		"own":     {invite(at), "this daemon's own"},
		"network": {invite(far), `for the network "elsewhere"`},
		"broken":  {"gpufair-invite:abc", "not a valid invite"},
		"gone":    {away.Invite, "unreachable"},
	} {
		var e *local.Error
		err := at.Post(t.Context(), "/join", local.Invite{Invite: c.text}, nil)
		if !errors.As(err, &e) || !strings.Contains(e.Detail, c.why) || e.Next == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
	var e *local.Error
	if err := at.Post(t.Context(), "/invite", local.InviteRequest{Credit: "much"}, nil); !errors.As(err, &e) {
		t.Errorf("an invite with credit %q: %v", "much", err)
	}
}

// TestSecondRefused opens twice what one process may have, and finds nothing left of the failed try.
func TestSecondRefused(t *testing.T) {
	first := settings(t)
	b, _ := running(t, first)
	for name, change := range map[string]func(*Config){
		"another gpufaird uses": func(*Config) {},
		"another process listens there": func(c *Config) {
			*c = settings(t)
			c.Socket = b.Socket
		},
		"is taken by another program": func(c *Config) {
			*c = settings(t)
			addr := b.Network.Addrs()[1] // /ip4/127.0.0.1/tcp/PORT
			c.Network.Listen = []string{"127.0.0.1:" + addr[strings.LastIndexByte(addr, '/')+1:]}
		},
	} {
		c := first
		change(&c)
		_, err := Open(t.Context(), c)
		var e *cli.Error
		if !errors.As(err, &e) || e.Code != cli.ExitSystem || e.Next == "" || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestPersist keeps the network's bytes over a restart.
func TestPersist(t *testing.T) {
	c := settings(t)
	for _, want := range []string{"", "kept"} {
		b, err := Open(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		p := persist{b.Store}
		got, err := p.Load(t.Context(), "test")
		if err != nil || string(got) != want {
			t.Errorf("loaded %q, %v; want %q", got, err, want)
		}
		if err := errors.Join(p.Store(t.Context(), "test", []byte("kept")), b.Close()); err != nil {
			t.Error(err)
		}
	}
}

func TestNetConfig(t *testing.T) {
	if err := DefaultNet().Validate(); err != nil {
		t.Errorf("the default: %v", err)
	}
	for name, c := range map[string]NetConfig{
		"network": {Network: "No Name", Listen: []string{"127.0.0.1:0"}},
		"listen":  {Network: "a"},
		"peers":   {Network: "a", Listen: []string{"127.0.0.1:0"}, Peers: []string{"/ip4/192.0.2.7/udp/1/quic-v1"}},
	} {
		var k *cli.KeyError
		if err := c.Validate(); !errors.As(err, &k) || k.Key != name {
			t.Errorf("%s: %v", name, err)
		}
	}
	for listen, loopback := range map[string]bool{"127.0.0.1:0": true, "[::1]:0": true, "0.0.0.0:0": false, "192.0.2.7:4701": false} {
		conf, err := NetConfig{Network: "a", Listen: []string{listen}, MDNS: true}.libp2p("gpufaird")
		if err != nil || conf.Loopback != loopback || conf.MDNS == loopback {
			t.Errorf("%s: loopback %v, mdns %v, %v", listen, conf.Loopback, conf.MDNS, err)
		}
	}
}

func TestStaticChecks(t *testing.T) {
	state := t.TempDir()
	level := func() string { return StaticChecks(filepath.Join(state, "deep"))[0].Level }
	if got := level(); got != LevelNote {
		t.Errorf("no identity: %s", got)
	}
	dir := IdentityDir(filepath.Join(state, "deep"))
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, _, err := identity.LoadOrCreate(dir, time.Now()); err != nil {
		t.Fatal(err)
	}
	if got := level(); got != LevelOK {
		t.Errorf("a sound identity: %s", got)
	}
	if err := os.Chmod(filepath.Join(dir, "account.key"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := level(); got != LevelFail {
		t.Errorf("keys that others can read: %s", got)
	}
}
