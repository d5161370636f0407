package tunnel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/p2ptest"
	"github.com/gpufair/gpufair/p2p/wire"
)

const proto p2p.Protocol = "/gpufair/test/logs/1.0.0"

// memoryLog is a log that grows.
type memoryLog struct {
	mu     sync.Mutex
	chunks []Chunk       // guarded by mu
	over   bool          // guarded by mu
	grown  chan struct{} // guarded by mu; closed when something changed
}

func newLog() *memoryLog { return &memoryLog{grown: make(chan struct{})} }

func (l *memoryLog) change(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
	close(l.grown)
	l.grown = make(chan struct{})
}

func (l *memoryLog) write(s Stream, text string) {
	l.change(func() {
		c := Chunk{Time: time.Now().UnixNano(), Stream: s, Data: []byte(text)}
		if n := len(l.chunks); n > 0 {
			c.Offset = l.chunks[n-1].End()
		}
		l.chunks = append(l.chunks, c)
	})
}

func (l *memoryLog) end() { l.change(func() { l.over = true }) }

func (l *memoryLog) look(offset uint64) (c Chunk, ok, over bool, grown chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.chunks {
		if c.End() > offset {
			if c.Offset < offset {
				c.Data = c.Data[offset-c.Offset:]
				c.Offset = offset
			}
			return c, true, l.over, nil
		}
	}
	return Chunk{}, false, l.over, l.grown
}

func (l *memoryLog) Next(ctx context.Context, offset uint64, wait bool) (Chunk, error) {
	for {
		c, ok, over, grown := l.look(offset)
		switch {
		case ok:
			return c, nil
		case over || !wait:
			return Chunk{}, io.EOF
		}
		select {
		case <-grown:
		case <-ctx.Done():
			return Chunk{}, ctx.Err()
		}
	}
}

// world is a provider with one log and a renter.
type world struct {
	net    *p2ptest.Net
	a, b   *p2ptest.Node
	client LogClient
	log    *memoryLog
}

var lease = wire.Sum("some lease")

func run(t *testing.T, f func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		net := p2ptest.NewNet(t)
		w := &world{net: net, a: net.Join(p2ptest.Device(t)), b: net.Join(p2ptest.Device(t)), log: newLog()}
		net.Mesh()
		w.b.Handle(proto, LogLimits(), ServeLogs(func(_ context.Context, peer identity.PeerID, h wire.Hash) (LogSource, error) {
			if peer != w.a.Self() || h != lease {
				return nil, p2p.Errorf(p2p.KindForbidden, "not your lease")
			}
			return w.log, nil
		}))
		w.client = LogClient{Network: w.a, Protocol: proto, Peer: w.b.Self(), Lease: lease}
		f(t, w)
	})
}

// sink gathers what a reader is given and checks that nothing is missing or twice.
type sink struct {
	text bytes.Buffer
	err  string
	at   uint64
}

func (s *sink) add(t *testing.T) func(Chunk) error {
	return func(c Chunk) error {
		if c.Offset != s.at {
			t.Errorf("a chunk at %d, read up to %d", c.Offset, s.at)
		}
		s.at = c.End()
		s.text.Write(c.Data)
		if c.Stream == Err {
			s.err += string(c.Data)
		}
		return nil
	}
}

func TestReadWhatIsThere(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		w.log.write(Out, "one\n")
		w.log.write(Err, "two\n")
		var s sink
		next, err := w.client.Read(t.Context(), 0, false, s.add(t))
		if err != nil || next != 8 || s.text.String() != "one\ntwo\n" || s.err != "two\n" {
			t.Errorf("%q up to %d: %v", s.text.String(), next, err)
		}
		s = sink{at: 6}
		next, err = w.client.Read(t.Context(), 6, false, s.add(t))
		if err != nil || next != 8 || s.text.String() != "o\n" {
			t.Errorf("%q up to %d: %v", s.text.String(), next, err)
		}
		if next, err = w.client.Read(t.Context(), 8, false, s.add(t)); err != nil || next != 8 {
			t.Error(next, err)
		}
	})
}

func TestFollowUntilTheEnd(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		var s sink
		done := make(chan error, 1)
		go func() {
			_, err := w.client.Read(t.Context(), 0, true, s.add(t))
			done <- err
		}()
		start := time.Now()
		for i := range 3 {
			time.Sleep(20 * time.Minute) // a silent job is followed all the same
			w.log.write(Out, fmt.Sprintln("line", i))
		}
		synctest.Wait()
		if s.text.String() != "line 0\nline 1\nline 2\n" {
			t.Errorf("%q", s.text.String())
		}
		w.log.end()
		if err := <-done; err != nil || time.Since(start) != time.Hour {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
}

// A broken line costs nothing: each byte comes once, in order.
func TestFollowResumes(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		if err := w.a.Keep(w.b.PeerAddr()); err != nil {
			t.Fatal(err)
		}
		var s sink
		done := make(chan error, 1)
		go func() {
			_, err := w.client.Follow(t.Context(), 0, s.add(t))
			done <- err
		}()
		var want strings.Builder
		for i := range 20 {
			line := strings.Repeat(fmt.Sprint(i), 5000) + "\n"
			w.log.write(Out, line)
			want.WriteString(line)
			if i%3 == 0 {
				synctest.Wait()
				w.net.Disconnect(w.a.Self(), w.b.Self())
			}
			if i == 10 {
				w.net.Partition(w.a.Self(), w.b.Self())
				time.Sleep(10 * time.Minute)
				w.net.Heal(w.a.Self(), w.b.Self())
			}
		}
		w.log.end()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if s.text.String() != want.String() {
			t.Errorf("%d bytes, want %d", s.text.Len(), want.Len())
		}
	})
}

func TestManyShortLinesTravelInBundles(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		for range 5000 {
			w.log.write(Out, "x\n")
		}
		for range 5 {
			w.log.write(Err, strings.Repeat("y", MaxChunk))
		}
		w.log.end()
		var s sink
		w.net.Faults(w.a.Self(), w.b.Self(), p2ptest.Faults{Latency: 100 * time.Millisecond})
		start := time.Now()
		if _, err := w.client.Read(t.Context(), 0, true, s.add(t)); err != nil || s.at != 10_000+5*MaxChunk {
			t.Error(s.at, err)
		}
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("it took %v: lines travel one by one", took)
		}
	})
}

func TestRefusals(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		other := w.client
		other.Lease = wire.Hash{1}
		if _, err := other.Follow(t.Context(), 0, nil); p2p.KindOf(err) != p2p.KindForbidden {
			t.Error(err)
		}
		other = w.client
		other.Protocol = "/gpufair/test/none/1.0.0"
		if _, err := other.Follow(t.Context(), 0, nil); !errors.Is(err, p2p.ErrUnsupported) {
			t.Error(err)
		}
		full := errors.New("disk full")
		w.log.write(Out, "x")
		if next, err := w.client.Follow(t.Context(), 0, func(Chunk) error { return full }); !errors.Is(err, full) || next != 0 {
			t.Error(next, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if next, err := w.client.Follow(ctx, 0, func(Chunk) error { return nil }); !errors.Is(err, context.DeadlineExceeded) || next != 1 {
			t.Error(next, err)
		}
	})
}

func TestHostileProvider(t *testing.T) {
	for name, chunks := range map[string][]Chunk{
		"going back":     {{Offset: 10, Stream: Out, Data: []byte("x")}, {Offset: 5, Stream: Out, Data: []byte("x")}},
		"unknown stream": {{Stream: 3, Data: []byte("x")}},
		"too large":      {{Stream: Out, Data: make([]byte, MaxChunk+1)}},
		"empty":          {{Stream: Out}},
		"overflow":       {{Offset: math.MaxUint64, Stream: Out, Data: []byte("xx")}},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(t *testing.T, w *world) {
				w.b.Handle(proto, LogLimits(), func(_ context.Context, s p2p.Stream) error {
					if err := wire.ReadFrame(s, &logAsk{}, maxAsk); err != nil {
						return err
					}
					return errors.Join(p2p.Respond(s, logOpen{}, nil, maxAsk), wire.WriteFrame(s, logFrame{Chunks: chunks, End: true}, maxFrame))
				})
				_, err := w.client.Read(t.Context(), 0, true, func(Chunk) error { return nil })
				if !errors.Is(err, wire.ErrFormat) {
					t.Error(err)
				}
			})
		})
	}
}

func TestGarbageIsABadRequest(t *testing.T) {
	for name, sent := range map[string][]byte{
		"no CBOR": {0, 0, 0, 3, 'G', 'E', 'T'}, "oversized": {0, 0, 2, 0}, "cut": {0, 0, 0, 9, 1}, "nothing": {},
	} {
		run(t, func(t *testing.T, w *world) {
			s, err := w.a.Open(t.Context(), w.b.Self(), proto)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.Write(sent); err != nil {
				t.Fatal(err)
			}
			s.CloseWrite()
			if err := p2p.Receive(s, &logOpen{}, maxAsk); p2p.KindOf(err) != p2p.KindBadRequest && name != "nothing" {
				t.Errorf("%s: %v (%v)", name, err, p2p.KindOf(err))
			}
		})
	}
}

// A provider that is gone without a word is given up soon, and then asked again.
func TestSilentProviderIsGivenUp(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		w.b.Handle(proto, LogLimits(), func(ctx context.Context, s p2p.Stream) error {
			<-ctx.Done()
			return nil
		})
		start := time.Now()
		_, err := w.client.Read(t.Context(), 0, true, nil)
		if took := time.Since(start); err == nil || took > 2*time.Minute || final(err) {
			t.Errorf("%v after %v", err, took)
		}
	})
}
