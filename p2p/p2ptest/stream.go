package p2ptest

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
)

// window is how much one direction of a stream holds before its writer waits, as transports do.
const window = 256 << 10

// chunk is a write under way: it may be read from at on.
type chunk struct {
	data []byte
	at   time.Time
}

// half is one direction of a stream. All fields below mu are guarded by it.
type half struct {
	mu       sync.Mutex
	changed  sync.Cond
	chunks   []chunk
	size     int
	closed   bool      // the writer said that nothing more comes
	closedAt time.Time // when the reader may know
	readErr  error     // what ends reading at once
	writeErr error     // what ends writing at once
	readBy   time.Time
	writeBy  time.Time
	readAt   *time.Timer // wakes the reader
	writeAt  *time.Timer // wakes the writer
}

func newHalf() *half {
	h := &half{}
	h.changed.L = &h.mu
	return h
}

// wait lets others at the half until something changes, or t comes if it is not zero. h.mu is held.
func (h *half) wait(timer **time.Timer, t time.Time) {
	if *timer != nil {
		(*timer).Stop()
	}
	if !t.IsZero() {
		*timer = time.AfterFunc(time.Until(t), func() {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.changed.Broadcast()
		})
	}
	h.changed.Wait()
}

func (h *half) read(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(p) == 0 {
		return 0, h.readErr
	}
	for {
		now := time.Now()
		next := h.readBy
		switch {
		case h.readErr != nil:
			return 0, h.readErr
		case len(h.chunks) > 0 && !h.chunks[0].at.After(now):
			return h.take(p), nil
		case len(h.chunks) == 0 && h.closed && !h.closedAt.After(now):
			return 0, io.EOF
		case !h.readBy.IsZero() && !h.readBy.After(now):
			return 0, fmt.Errorf("read: %w", os.ErrDeadlineExceeded)
		case len(h.chunks) > 0 && (next.IsZero() || h.chunks[0].at.Before(next)):
			next = h.chunks[0].at
		case len(h.chunks) == 0 && h.closed && (next.IsZero() || h.closedAt.Before(next)):
			next = h.closedAt
		}
		h.wait(&h.readAt, next)
	}
}

func (h *half) take(p []byte) int {
	n := copy(p, h.chunks[0].data)
	h.chunks[0].data = h.chunks[0].data[n:]
	if len(h.chunks[0].data) == 0 {
		h.chunks = h.chunks[1:]
	}
	h.size -= n
	h.changed.Broadcast()
	return n
}

// write puts p into the stream, to be read from delay on.
func (h *half) write(p []byte, delay time.Duration) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	done := 0
	for {
		now := time.Now()
		switch {
		case h.writeErr != nil:
			return done, h.writeErr
		case h.closed:
			return done, fmt.Errorf("write: %w", io.ErrClosedPipe)
		case done == len(p):
			return done, nil
		case !h.writeBy.IsZero() && !h.writeBy.After(now):
			return done, fmt.Errorf("write: %w", os.ErrDeadlineExceeded)
		case h.size < window:
			n := min(len(p)-done, window-h.size)
			h.chunks = append(h.chunks, chunk{append([]byte(nil), p[done:done+n]...), now.Add(delay)})
			h.size += n
			done += n
			h.changed.Broadcast()
			continue
		}
		h.wait(&h.writeAt, h.writeBy)
	}
}

func (h *half) close(delay time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.closed {
		h.closed, h.closedAt = true, time.Now().Add(delay)
		h.changed.Broadcast()
	}
}

// fail ends reading with r and writing with w, if they are not nil and nothing ended them before.
func (h *half) fail(r, w error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.readErr == nil {
		h.readErr = r
	}
	if h.writeErr == nil {
		h.writeErr = w
	}
	h.changed.Broadcast()
}

func (h *half) deadlines(read, write *time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if read != nil {
		h.readBy = *read
	}
	if write != nil {
		h.writeBy = *write
	}
	h.changed.Broadcast()
}

// stream is one end of a conversation; it fulfils [p2p.Stream].
type stream struct {
	link  *link
	peer  identity.PeerID
	proto p2p.Protocol
	in    *half
	out   *half
	twin  *stream
	idle  time.Duration

	mu    sync.Mutex
	last  time.Time   // guarded by mu: of the last progress
	timer *time.Timer // guarded by mu; nil once the stream is over
}

// pair makes both ends of a stream over l from opener to server.
func pair(l *link, opener, server identity.PeerID, proto p2p.Protocol, serverIdle time.Duration) (*stream, *stream) {
	ab, ba := newHalf(), newHalf()
	a := &stream{link: l, peer: server, proto: proto, in: ba, out: ab, idle: p2p.OpenerIdle}
	b := &stream{link: l, peer: opener, proto: proto, in: ab, out: ba, idle: serverIdle}
	a.twin, b.twin = b, a
	for _, s := range []*stream{a, b} {
		s.mu.Lock()
		s.last = time.Now()
		s.timer = time.AfterFunc(s.idle, s.checkIdle)
		s.mu.Unlock()
	}
	return a, b
}

func (s *stream) checkIdle() {
	s.mu.Lock()
	if s.timer == nil {
		s.mu.Unlock()
		return
	}
	if rest := s.idle - time.Since(s.last); rest > 0 {
		s.timer.Reset(rest)
		s.mu.Unlock()
		return
	}
	s.timer = nil
	s.mu.Unlock()
	s.end(p2p.KindTimeout, p2p.Errorf(p2p.KindTimeout, "nothing was said for %v", s.idle))
}

func (s *stream) touch() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = time.Now()
}

func (s *stream) over() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.timer != nil {
		s.timer.Stop()
		s.timer = nil
	}
}

// end resets both ends: this one sees mine, the other one the kind.
func (s *stream) end(kind p2p.Kind, mine error) {
	s.over()
	theirs := p2p.Errorf(kind, "the peer ended the stream: %s", kind)
	s.out.fail(theirs, mine)
	s.in.fail(mine, theirs)
	s.link.forget(s)
}

// lost ends both ends as a lost connection does.
func (s *stream) lost() {
	s.over()
	s.twin.over()
	err := p2p.Errorf(p2p.KindUnavailable, "the connection was lost")
	s.out.fail(err, err)
	s.in.fail(err, err)
}

// Read fulfils [p2p.Stream].
func (s *stream) Read(p []byte) (int, error) {
	n, err := s.in.read(p)
	if n > 0 {
		s.touch()
	}
	return n, err
}

// Write fulfils [p2p.Stream].
func (s *stream) Write(p []byte) (int, error) {
	f := s.link.faults()
	allowed := s.link.spend(len(p), f.CutAfter)
	n, err := s.out.write(p[:allowed], f.Latency)
	if n > 0 {
		s.touch()
	}
	if allowed < len(p) && err == nil {
		s.link.cut()
		return n, p2p.Errorf(p2p.KindUnavailable, "the connection was lost")
	}
	return n, err
}

// CloseWrite fulfils [p2p.Stream].
func (s *stream) CloseWrite() error {
	s.out.close(s.link.faults().Latency)
	return nil
}

// Close fulfils [p2p.Stream].
func (s *stream) Close() error {
	s.over()
	s.out.close(s.link.faults().Latency)
	s.in.fail(fmt.Errorf("read: %w", io.ErrClosedPipe), p2p.Errorf(p2p.KindUnavailable, "the peer closed the stream"))
	s.link.forget(s)
	return nil
}

// Reset fulfils [p2p.Stream].
func (s *stream) Reset(kind p2p.Kind) error {
	s.end(kind, p2p.Errorf(kind, "this side ended the stream: %s", kind))
	return nil
}

// SetDeadline fulfils [p2p.Stream].
func (s *stream) SetDeadline(t time.Time) error {
	s.in.deadlines(&t, nil)
	s.out.deadlines(nil, &t)
	return nil
}

// Peer fulfils [p2p.Stream].
func (s *stream) Peer() identity.PeerID { return s.peer }

// Protocol fulfils [p2p.Stream].
func (s *stream) Protocol() p2p.Protocol { return s.proto }
