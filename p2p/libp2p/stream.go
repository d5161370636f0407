package libp2p

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/protocol"
	msmux "github.com/multiformats/go-multistream"

	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
)

// resetBase is where our reset codes start: "gf" in the upper half, a [p2p.Kind] in the lower. libp2p keeps 0x1000 to 0x1fff.
const resetBase network.StreamErrorCode = 0x67660000

// chunk is how much of one write counts as progress: a large write on a slow line must not look idle.
const chunk = 64 << 10

// stream is a libp2p stream in our words. It watches its own idleness with one timer, so that reads and writes cost only an atomic
// store more than libp2p's own.
type stream struct {
	s     network.Stream
	peer  identity.PeerID
	proto p2p.Protocol
	idle  time.Duration
	start time.Time
	last  atomic.Int64 // nanoseconds after start of the last progress
	ended atomic.Pointer[p2p.Error]

	mu    sync.Mutex
	timer *time.Timer // guarded by mu; nil once the stream is over
}

func newStream(s network.Stream, peer identity.PeerID, proto p2p.Protocol, idle time.Duration) *stream {
	st := &stream{s: s, peer: peer, proto: proto, idle: idle, start: time.Now()}
	st.mu.Lock()
	st.timer = time.AfterFunc(idle, st.checkIdle)
	st.mu.Unlock()
	return st
}

func (st *stream) checkIdle() {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.timer == nil {
		return
	}
	if rest := st.idle - (time.Since(st.start) - time.Duration(st.last.Load())); rest > 0 {
		st.timer.Reset(rest)
		return
	}
	st.timer = nil
	st.ended.CompareAndSwap(nil, p2p.Errorf(p2p.KindTimeout, "nothing was said for %v", st.idle))
	st.s.ResetWithError(resetBase + network.StreamErrorCode(p2p.KindTimeout))
}

// over stops the idle timer.
func (st *stream) over() {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.timer != nil {
		st.timer.Stop()
		st.timer = nil
	}
}

func (st *stream) touch() { st.last.Store(int64(time.Since(st.start))) }

// Read fulfils [p2p.Stream].
func (st *stream) Read(p []byte) (int, error) {
	n, err := st.s.Read(p)
	if n > 0 {
		st.touch()
	}
	return n, st.translate(err)
}

// Write fulfils [p2p.Stream].
func (st *stream) Write(p []byte) (int, error) {
	var done int
	for {
		n, err := st.s.Write(p[done:min(len(p), done+chunk)])
		done += n
		if n > 0 {
			st.touch()
		}
		if err != nil || done >= len(p) {
			return done, st.translate(err)
		}
	}
}

// CloseWrite fulfils [p2p.Stream].
func (st *stream) CloseWrite() error { return st.translate(st.s.CloseWrite()) }

// Close fulfils [p2p.Stream].
func (st *stream) Close() error {
	st.over()
	return st.translate(st.s.Close())
}

// Reset fulfils [p2p.Stream].
func (st *stream) Reset(kind p2p.Kind) error {
	st.over()
	st.ended.CompareAndSwap(nil, p2p.Errorf(kind, "this side ended the stream: %s", kind))
	return st.s.ResetWithError(resetBase + network.StreamErrorCode(kind))
}

// SetDeadline fulfils [p2p.Stream].
func (st *stream) SetDeadline(t time.Time) error { return st.translate(st.s.SetDeadline(t)) }

// Peer fulfils [p2p.Stream].
func (st *stream) Peer() identity.PeerID { return st.peer }

// Protocol fulfils [p2p.Stream].
func (st *stream) Protocol() p2p.Protocol { return st.proto }

// translate puts an error of libp2p into our words. io.EOF stays what it is.
func (st *stream) translate(err error) error {
	if err == nil || err == io.EOF { //nolint:errorlint // readers compare with ==
		return err
	}
	if e := st.ended.Load(); e != nil {
		return e
	}
	var (
		reset       *network.StreamError
		lost        *network.ConnError
		timeout     net.Error
		unsupported msmux.ErrNotSupported[protocol.ID]
	)
	switch {
	case errors.As(err, &unsupported):
		return fmt.Errorf("%s: %w", st.proto, p2p.ErrUnsupported)
	case errors.As(err, &reset):
		return resetError(reset)
	case errors.As(err, &lost), errors.Is(err, network.ErrReset):
		return p2p.Errorf(p2p.KindUnavailable, "the connection to %s was lost", st.peer.Short())
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Errorf("stream %s: %w", st.proto, os.ErrDeadlineExceeded)
	}
	return err
}

// resetError is what a reset means: one of our kinds, or one of libp2p's own codes.
func resetError(e *network.StreamError) error {
	if kind := e.ErrorCode - resetBase; e.ErrorCode >= resetBase && kind <= 0xffff {
		return p2p.Errorf(p2p.Kind(kind), "the peer ended the stream: %s", p2p.Kind(kind))
	}
	switch e.ErrorCode {
	case network.StreamProtocolNegotiationFailed:
		return p2p.ErrUnsupported
	case network.StreamResourceLimitExceeded, network.StreamRateLimited:
		return p2p.Errorf(p2p.KindBusy, "the peer has no room for another stream now; try again later")
	}
	return p2p.Errorf(p2p.KindUnavailable, "the peer closed the stream")
}
