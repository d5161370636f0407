package soak

import (
	"bufio"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/money"
)

// What the test binary, started again, is told by its environment.
const (
	childRole   = "GPUFAIR_TEST_SOAK_ROLE"
	childKeys   = "GPUFAIR_TEST_SOAK_KEYS"
	childData   = "GPUFAIR_TEST_SOAK_DATA"
	childSocket = "GPUFAIR_TEST_SOAK_SOCKET"
)

// workers is how many lanes a renter ticks at once.
const workers = 4

// child is a process that uses its ledger until it is killed. It prints a line for each thing that is durable.
func child(role string) error {
	ctx := context.Background()
	if role == "judge" {
		return judge(ctx, os.Stdin, os.Stdout)
	}
	p, err := open(ctx, place{keys: os.Getenv(childKeys), data: os.Getenv(childData)})
	if err != nil {
		return err
	}
	var mu sync.Mutex
	say := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Printf(format+"\n", args...)
	}
	say("open")
	if role == "provider" {
		return provide(ctx, p, os.Getenv(childSocket), say)
	}
	return rent(ctx, p, os.Getenv(childSocket), say)
}

// provide answers renters until it is killed.
func provide(ctx context.Context, p *party, socket string, say said) error {
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer conn.Close()
			in, out := gob.NewDecoder(conn), gob.NewEncoder(conn)
			for {
				var q request
				if in.Decode(&q) != nil || out.Encode(answer(ctx, p, q, say)) != nil {
					return
				}
			}
		}()
	}
}

var errRefused = errors.New("refused")

// dial gives a way to ask the provider that connects again when that was killed.
func dial(socket string) call {
	var conn net.Conn
	var in *gob.Decoder
	var out *gob.Encoder
	try := func(q request) (a reply, err error) {
		if conn == nil {
			if conn, err = net.Dial("unix", socket); err != nil {
				conn = nil
				return a, err
			}
			in, out = gob.NewDecoder(conn), gob.NewEncoder(conn)
		}
		if err = out.Encode(q); err == nil {
			err = in.Decode(&a)
		}
		if err != nil {
			conn.Close()
			conn = nil
		}
		return a, err
	}
	return func(q request) (reply, error) {
		for {
			a, err := try(q)
			if err != nil {
				time.Sleep(2 * time.Millisecond) // the parent starts the provider again
				continue
			}
			if a.Err != "" {
				return a, fmt.Errorf("%w: %s", errRefused, a.Err)
			}
			return a, nil
		}
	}
}

// rent ticks lanes until it is killed: it takes up what an earlier life left, then opens one lane after the other.
func rent(ctx context.Context, p *party, socket string, say said) error {
	peer, err := hello(ctx, p, dial(socket))
	if err != nil {
		return err
	}
	left, most := make([][]ledger.Lane, workers), make([]uint32, workers)
	err = p.View(ctx, func(r *books.Reader) error {
		return r.EachLane(func(l books.Lane) error {
			w, n := l.Lane[1], uint32(l.Lane[2])<<16|uint32(l.Lane[3])<<8|uint32(l.Lane[4])
			most[w] = max(most[w], n+1)
			if !l.Closed() {
				left[w] = append(left[w], l.Lane)
			}
			return nil
		})
	})
	if err != nil {
		return err
	}
	failed := make(chan error, workers)
	for w := range workers {
		go func() { failed <- work(ctx, renter{p, peer, dial(socket), say}, byte(w), left[w], most[w]) }()
	}
	return <-failed
}

func work(ctx context.Context, r renter, w byte, left []ledger.Lane, next uint32) error {
	for {
		if len(left) == 0 {
			left = []ledger.Lane{{1, w, byte(next >> 16), byte(next >> 8), byte(next)}}
			next++
		}
		err := live(ctx, r, left[0])
		if err == nil && w == 0 {
			amount := money.Micro(1 + next*7919%20_000) // the same again, if one side had no room for it
			err = r.pay(ctx, amount, fmt.Sprintf("invoice %d of %d", next, os.Getpid()))
			if errors.Is(err, errRefused) { // while the lanes that it lists differ: it is brought again
				err = nil
			}
		}
		if noRoom(err) {
			r.say("full")
			time.Sleep(5 * time.Millisecond) // somebody may make room
			continue
		}
		if err != nil {
			return err
		}
		left = left[1:]
	}
}

// noRoom says that one of the sides does not write now, for want of room, and said so.
func noRoom(err error) bool {
	return err != nil && strings.Contains(err.Error(), kv.ErrReadOnly.Error()) && strings.Contains(err.Error(), "free some space")
}

// live takes a lane up where it stands, ticks it and ends it.
func live(ctx context.Context, r renter, id ledger.Lane) error {
	l, err := r.resume(ctx, id)
	if err != nil || l.Closed() {
		return err
	}
	for range 1 + rand.IntN(8) {
		if err := r.tick(ctx, id, money.Micro(1+rand.IntN(900))); err != nil {
			return err
		}
	}
	return r.end(ctx, id)
}

// process is a running child.
type process struct {
	cmd     *exec.Cmd
	drained chan struct{} // closed when all that it said was noted
	stderr  strings.Builder
}

func start(t *testing.T, role string, p place, socket string, to *promised) *process {
	t.Helper()
	c := &process{cmd: exec.Command(os.Args[0]), drained: make(chan struct{})}
	c.cmd.Env = append(os.Environ(), childRole+"="+role, childKeys+"="+p.keys, childData+"="+p.data, childSocket+"="+socket)
	c.cmd.Stderr = &c.stderr
	out, err := c.cmd.StdoutPipe()
	must(t, err)
	must(t, c.cmd.Start())
	t.Cleanup(func() { // of a test that failed: nothing must keep a mount busy
		_ = c.cmd.Process.Kill()
		<-c.drained
	})
	go func() {
		defer close(c.drained)
		lines := bufio.NewReader(out)
		for {
			line, err := lines.ReadString('\n')
			if err != nil { // a line that was cut is none: the process was killed in the middle of it
				if !errors.Is(err, io.EOF) {
					to.note(err.Error())
				}
				break
			}
			to.note(strings.TrimSuffix(line, "\n"))
		}
		to.mu.Lock()
		to.changed.Broadcast()
		to.mu.Unlock()
	}()
	return c
}

// alive fails the test if the child ended by itself.
func (c *process) alive(t *testing.T) {
	t.Helper()
	select {
	case <-c.drained:
		_ = c.cmd.Wait()
		t.Fatalf("a process ended by itself: %v\n%s", c.cmd.ProcessState, c.stderr.String())
	default:
	}
}

// kill ends the child as SIGKILL does, and fails the test if it had ended by itself.
func (c *process) kill(t *testing.T) {
	t.Helper()
	c.alive(t)
	must(t, c.cmd.Process.Kill())
	<-c.drained
	_ = c.cmd.Wait() // it was killed
	if s := c.stderr.String(); s != "" {
		t.Fatalf("a process failed before it was killed: %s", s)
	}
}
