package libp2p_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/libp2p"
	"github.com/gpufair/gpufair/p2p/p2ptest"
)

// What a child process is told: the folder of its identity and saved peers, where to listen, and whom to dial, if anyone.
const (
	childHome   = "GPUFAIR_TEST_HOME"
	childListen = "GPUFAIR_TEST_LISTEN"
	childDial   = "GPUFAIR_TEST_DIAL"
)

// folder is a Persist that says on standard output when it has stored something.
type folder string

func (f folder) Load(_ context.Context, key string) ([]byte, error) {
	b, err := os.ReadFile(filepath.Join(string(f), key))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return b, err
}

func (f folder) Store(_ context.Context, key string, value []byte) error {
	err := os.WriteFile(filepath.Join(string(f), key), value, 0o600)
	fmt.Println("saved")
	return err
}

// child is a machine in a process of its own, which calls out its process id, until it is killed or its parent ends.
func child(home string) {
	err := runChild(home)
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func runChild(home string) error {
	dev, _, err := identity.LoadOrCreate(filepath.Join(home, "identity"), time.Now())
	if err != nil {
		return err
	}
	c := libp2p.Local("t")
	c.Listen = []string{os.Getenv(childListen)}
	n, err := libp2p.New(dev, c, folder(home), slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})))
	if err != nil {
		return err
	}
	topic, err := n.Join(restartTopic, 512, nil)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // the parent's end, however it comes
		cancel()
	}()
	go func() { _ = n.Run(ctx) }()
	if to := os.Getenv(childDial); to != "" {
		where, err := libp2p.ParsePeerAddr(to)
		if err != nil {
			return err
		}
		if err := n.Connect(ctx, where); err != nil {
			return err
		}
	}
	fmt.Println(n.Self(), strings.Join(n.Addrs(), ","))
	go func() { // a member that only listens is heard of no less
		for {
			if _, _, err := topic.Next(ctx); err != nil {
				return
			}
		}
	}()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for i := 0; ctx.Err() == nil; i++ {
		_ = topic.Publish(ctx, fmt.Appendf(nil, "%d: here is %d", i, os.Getpid()))
		<-tick.C
	}
	return ctx.Err()
}

// process is a running child.
type process struct {
	cmd   *exec.Cmd
	lines *bufio.Scanner
	saved bool
	at    p2p.PeerAddr
}

func spawn(t *testing.T, home, listen, dial string) *process {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childHome+"="+home, childListen+"="+listen, childDial+"="+dial)
	cmd.Stderr = t.Output()
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{cmd: cmd, lines: bufio.NewScanner(out)}
	t.Cleanup(p.kill)
	words := strings.Fields(p.line(t))
	if len(words) == 1 { // it may have met someone before it told its name
		words, p.saved = strings.Fields(p.line(t)), true
	}
	if len(words) != 2 {
		t.Fatalf("the child says %q", words)
	}
	id, err := identity.ParsePeer(words[0])
	if err != nil {
		t.Fatal(err)
	}
	p.at = p2p.PeerAddr{Peer: id, Addrs: strings.Split(words[1], ",")}
	return p
}

func (p *process) line(t *testing.T) string {
	t.Helper()
	if !p.lines.Scan() {
		t.Fatalf("the child has ended: %v", p.lines.Err())
	}
	return p.lines.Text()
}

// kill is SIGKILL: nobody is told.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// TestAKilledPeerIsMetAgain kills a machine that is idle and starts it again with the same key and port. Nobody tells it whom to dial.
func TestAKilledPeerIsMetAgain(t *testing.T) {
	for name, childDials := range map[string]bool{"it had dialled": true, "it was dialled": false} {
		t.Run(name, func(t *testing.T) {
			a, _ := start(t, p2ptest.Device(t), libp2p.Local("t"), &memory{m: map[string][]byte{}})
			topic := join(t, a)
			home, dial := t.TempDir(), ""
			if childDials {
				dial = a.Addrs()[0] + "/p2p/" + a.Self().String()
			}
			listen := p2ptest.Loopback(t)
			b := spawn(t, home, listen, dial)
			if !childDials {
				if err := a.Connect(within(t), b.at); err != nil {
					t.Fatal(err)
				}
			}
			for !b.saved {
				b.saved = b.line(t) == "saved"
			}
			called(t, topic, b)
			b.kill()
			began := time.Now()
			again := spawn(t, home, listen, "")
			called(t, topic, again)
			if took := time.Since(began); took > 25*time.Second { // a dead connection ends by itself after 30 s
				t.Errorf("gossip flowed again only after %v", took)
			}
			t.Logf("gossip flowed again after %v", time.Since(began))
			until(t, "a to know b as a member", func() bool { return slices.Contains(topic.Peers(), b.at.Peer) })
		})
	}
}

// called waits until p is heard at topic. Nothing is sent there: what a sends to the dead one would wake a to its death.
func called(t *testing.T, topic p2p.Topic, p *process) {
	t.Helper()
	ctx := within(t)
	for want := fmt.Sprintf("here is %d", p.cmd.Process.Pid); ; {
		got, _, err := topic.Next(ctx)
		if err != nil {
			t.Fatalf("waiting for %q: %v", want, err)
		}
		if strings.HasSuffix(string(got), want) {
			return
		}
	}
}
