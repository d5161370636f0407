package p2p

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/gpufair/gpufair/p2p/identity"
)

// What a protocol gets that names no limits of its own: no default is infinite.
const (
	DefaultStreams     = 256             // a question takes milliseconds, so this is thousands a second
	DefaultPeerStreams = 16              // one peer asks few things at once
	DefaultIdle        = 2 * time.Minute // longer than any answer of ours takes
)

// OpenerIdle ends a stream that this side opened after so long without a byte in either direction; long-lived conversations send a
// keepalive well within it.
const OpenerIdle = 10 * time.Minute

// WithDefaults fills what is zero or negative.
func (l Limits) WithDefaults() Limits {
	if l.Streams <= 0 {
		l.Streams = DefaultStreams
	}
	if l.PeerStreams <= 0 {
		l.PeerStreams = min(DefaultPeerStreams, l.Streams)
	}
	if l.Idle <= 0 {
		l.Idle = DefaultIdle
	}
	return l
}

// Service is a protocol as a [Network] serves it: a handler and the limits that it enforces. Safe for concurrent use.
type Service struct {
	Limits Limits
	h      Handler

	mu    sync.Mutex
	total int                     // guarded by mu
	peers map[identity.PeerID]int // guarded by mu; holds no zeros
}

// NewService serves h within limits.
func NewService(limits Limits, h Handler) *Service {
	return &Service{Limits: limits.WithDefaults(), h: h, peers: map[identity.PeerID]int{}}
}

// Admit takes a slot for a stream of peer. Without one the network resets the stream with [KindBusy]; else it calls release once at
// the stream's end.
func (s *Service) Admit(peer identity.PeerID) (release func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.total >= s.Limits.Streams || s.peers[peer] >= s.Limits.PeerStreams {
		return nil, false
	}
	s.total++
	s.peers[peer]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.total--
		if s.peers[peer]--; s.peers[peer] == 0 {
			delete(s.peers, peer)
		}
	}, true
}

// Serve runs the handler on an admitted stream and ends the stream by [Finish]. A panic in the handler costs that stream alone.
func (s *Service) Serve(ctx context.Context, st Stream, log *slog.Logger) {
	if err := Finish(st, s.guarded(ctx, st)); err != nil {
		log.Warn("stream ended with an error of ours", "protocol", st.Protocol(), "peer", st.Peer(), "err", err)
	}
}

func (s *Service) guarded(ctx context.Context, st Stream) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("handler panicked: %v\n%s", r, debug.Stack())
		}
	}()
	return s.h(ctx, st)
}

// Judge asks v about a message of at most maxSize bytes; what is bigger is rejected unread, and a panic of v is logged and ignores
// the message.
func Judge(ctx context.Context, v Validator, maxSize int, from identity.PeerID, data []byte, log *slog.Logger) (verdict Verdict) {
	if len(data) > maxSize {
		return Reject
	}
	if v == nil {
		return Accept
	}
	defer func() {
		if r := recover(); r != nil {
			log.Error("validator panicked", "peer", from, "err", r, "stack", string(debug.Stack()))
			verdict = Ignore
		}
	}()
	return v(ctx, from, data)
}
