package e2e

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/libp2p"
	"github.com/gpufair/gpufair/p2p/local"
)

// memory is a third party's store.
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
	m.m[key] = value
	return nil
}

// loudest is the largest message that a network lets itself be configured for: more than anybody takes of an offer.
const loudest = 64 << 10

// rowdy is a device of the network that speaks no sense.
func rowdy(t testing.TB) *libp2p.Network {
	t.Helper()
	_, _, dev, err := identity.Generate()
	if err != nil {
		t.Fatal(err)
	}
	conf := libp2p.Local("e2e")
	conf.MaxMessage = loudest
	n, err := libp2p.New(dev, conf, &memory{m: map[string][]byte{}}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- n.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ran; err != nil {
			t.Error(err)
		}
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

// frames are what a rowdy says, on every protocol.
func frames() map[string][]byte {
	noise := make([]byte, 256<<10)
	_, _ = rand.Read(noise) // never fails
	return map[string][]byte{
		"nothing":         nil,
		"noise":           noise,
		"zeros":           make([]byte, 256<<10),
		"an endless size": append(bytes.Repeat([]byte{0xff}, 16), noise...),
		"4 GiB to come":   append([]byte{0xff, 0xff, 0xff, 0xff}, noise[:1000]...),
		"a size, no more": {0, 0, 1, 0},
		"broken CBOR":     append([]byte{0, 0, 0, 9, 0xbf}, bytes.Repeat([]byte{0x9f}, 8)...),
		"deep CBOR":       append([]byte{0, 0, 0x40, 0}, bytes.Repeat([]byte{0x81}, 0x4000)...),
		"an empty map":    {0, 0, 0, 1, 0xa0},
		"a short size":    {1, 0xa0},
	}
}

// rounds of all frames on all protocols: enough for a leak of each frame to show in the memory.
const rounds = 8

// noise sends garbage and oversized frames on every protocol and the topic to both sides: they stay up, keep their memory, say little about
// it, and serve the next honest request.
func noise(p *pair) {
	p.t.Helper()
	n := rowdy(p.t)
	topic, err := n.Join(p2p.OffersTopic("e2e", "any", "any"), loudest, nil)
	if err != nil {
		p.t.Fatal(err)
	}
	defer topic.Leave()
	for _, side := range []struct {
		name string
		h    *home
		pid  func() int
		log  func() string
	}{
		{"owner", p.owner, func() int { return p.owner.running.cmd.Process.Pid }, func() string { return p.owner.running.err.String() }},
		{"renter", p.renter, func() int { return p.renter.agent().PID }, func() string { return readFile(p.t, filepath.Join(p.renter.dir, "state", "agent.log")) }},
	} {
		id := one[local.Identity](side.h.ok("identity", "show", "--json"))
		peer, err := identity.ParsePeer(id.Peer)
		if err != nil {
			p.t.Fatal(err)
		}
		pid, lines := side.pid(), strings.Count(side.log(), "\n")
		shout(p.t, n, peer, id.Addrs) // once before the memory is read: buffers that are kept are made
		before := residentMiB(p.t, pid)
		spoke := 0
		for range rounds {
			spoke += shout(p.t, n, peer, id.Addrs)
			for what, message := range frames() {
				if err := topic.Publish(p.t.Context(), message[:min(len(message), loudest-1<<10)]); err != nil {
					p.t.Errorf("publish %s: %v", what, err)
				}
			}
		}
		after, said := residentMiB(p.t, pid), strings.Count(side.log(), "\n")-lines
		p.t.Logf("%s: %d frames of noise, memory from %d to %d MiB, %d lines in the log", side.name, spoke, before, after, said)
		if spoke < rounds*len(frames()) {
			p.t.Errorf("%s: only %d frames were said: the test does not reach it", side.name, spoke)
		}
		if after > before+100 {
			p.t.Errorf("%s: memory grew from %d to %d MiB", side.name, before, after)
		}
		if said > 50 {
			p.t.Errorf("%s: %d lines in the log after %d frames of noise:\n%s", side.name, said, spoke, side.log())
		}
		if now := side.pid(); now != pid {
			p.t.Errorf("%s: process %d became %d", side.name, pid, now)
		}
	}
	r := p.renter.run("run", p.image, "--offer", p.sees(p.renter).ID, "--budget", "0.5", "--output", p.out("honest"), "--", "job", "exit", "3")
	if r.code != 3 {
		p.t.Errorf("an honest job after the noise: %d\n%s", r.code, r.err)
	}
}

func readFile(t testing.TB, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Error(err)
	}
	return string(b)
}

// residentMiB is how much memory a process has.
func residentMiB(t testing.TB, pid int) (mib int) {
	t.Helper()
	for line := range strings.Lines(readFile(t, fmt.Sprintf("/proc/%d/status", pid))) {
		var kib int
		if _, err := fmt.Sscanf(line, "VmRSS: %d kB", &kib); err == nil {
			return kib >> 10
		}
	}
	t.Errorf("process %d has no memory: it is gone", pid)
	return 0
}

// shout says all frames on all protocols; it returns how many were heard.
func shout(t testing.TB, n *libp2p.Network, peer identity.PeerID, addrs []string) (heard int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := n.Connect(ctx, p2p.PeerAddr{Peer: peer, Addrs: addrs}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		work.ProtoIdentity, work.ProtoOffers, work.ProtoProbe, work.ProtoPassport, work.ProtoTrade, work.ProtoJob, work.ProtoLane, work.ProtoLogs,
		work.ProtoBlob, work.ProtoSettle,
	} {
		for what, frame := range frames() {
			s, err := n.Open(ctx, peer, p2p.ProtocolID("e2e", name))
			if err != nil {
				continue // not spoken by this side, or refused for now: a limit of the other side
			}
			heard++
			_ = s.SetDeadline(time.Now().Add(5 * time.Second)) // the other side may stop at any point
			_, _ = s.Write(frame)
			_ = s.CloseWrite()
			if answer, err := io.ReadAll(io.LimitReader(s, 1<<20)); err == nil && len(answer) == 1<<20 {
				t.Errorf("%s: a MiB of answer to %s", name, what)
			}
			_ = s.Close()
		}
	}
	return heard
}
