package p2p

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Kind is what a peer thinks went wrong, from a closed list that both sides know. Kinds are never renumbered.
type Kind uint32

// The kinds. KindOK is no error.
const (
	KindOK          Kind = 0
	KindInternal    Kind = 1 // the peer's own fault; its log has more
	KindBadRequest  Kind = 2 // malformed, oversized or out of order
	KindRefused     Kind = 3 // understood and refused; Code says why
	KindNotFound    Kind = 4 // no such lease, blob or record
	KindBusy        Kind = 5 // too many requests; later is fine
	KindForbidden   Kind = 6 // not for this account or device
	KindVersion     Kind = 7 // a record of another version
	KindTimeout     Kind = 8 // the peer waited too long
	KindConflict    Kind = 9 // another state than the request assumed
	KindUnavailable Kind = 10
)

var kindNames = map[Kind]string{
	KindOK: "ok", KindInternal: "internal error", KindBadRequest: "bad request", KindRefused: "refused", KindNotFound: "not found",
	KindBusy: "busy", KindForbidden: "forbidden", KindVersion: "version mismatch", KindTimeout: "timeout", KindConflict: "conflict",
	KindUnavailable: "unavailable",
}

// String is the kind's name.
func (k Kind) String() string {
	if s, ok := kindNames[k]; ok {
		return s
	}
	return fmt.Sprintf("kind %d", uint32(k))
}

// Error is an error that crosses the wire.
type Error struct {
	Kind   Kind   `cbor:"1,keyasint"`
	Code   string `cbor:"2,keyasint,omitempty"` // of market/reason, for KindRefused
	Detail string `cbor:"3,keyasint,omitempty"` // for people; at most 512 bytes
}

// Error is the detail, or the kind's name if there is none.
func (e *Error) Error() string {
	if e.Detail == "" {
		return e.Kind.String()
	}
	return e.Detail
}

// Errorf makes an error of kind for the peer.
func Errorf(kind Kind, format string, args ...any) *Error {
	return &Error{Kind: kind, Detail: fmt.Sprintf(format, args...)}
}

// KindOf is the kind that err carries across the wire: of the [*Error] in it, or what our own errors mean.
func KindOf(err error) Kind {
	var e *Error
	switch {
	case err == nil:
		return KindOK
	case errors.As(err, &e):
		return e.Kind
	case errors.Is(err, wire.ErrFormat), errors.Is(err, wire.ErrTooLarge), errors.Is(err, identity.ErrSignature),
		errors.Is(err, identity.ErrSigner), errors.Is(err, io.ErrUnexpectedEOF):
		return KindBadRequest
	case errors.Is(err, identity.ErrVersion):
		return KindVersion
	case errors.Is(err, identity.ErrPower):
		return KindForbidden
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return KindTimeout
	case errors.Is(err, context.Canceled): // of a handler: the peer, its connection or this network went away; no fault of the program
		return KindUnavailable
	default:
		return KindInternal
	}
}

const (
	maxDetail = 512
	maxCode   = 64 // the longest reason has under 40 letters
)

// toWire is what the peer may see of err: an [*Error] as it is, our own errors by kind and text, an internal one without its text.
func toWire(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return &Error{Kind: e.Kind, Code: clip(e.Code, maxCode), Detail: clip(e.Detail, maxDetail)}
	}
	k := KindOf(err)
	if k == KindInternal {
		return &Error{Kind: k, Detail: "the peer met an internal error; its owner's log says more"}
	}
	return &Error{Kind: k, Detail: clip(err.Error(), maxDetail)}
}

// clip cuts s to n bytes of valid UTF-8, the only text that CBOR takes.
func clip(s string, n int) string { return strings.ToValidUTF8(s[:min(len(s), n)], "") }

// reply is the first frame of every answer: an error, or a body.
type reply struct {
	Err  *Error `cbor:"1,keyasint,omitempty"`
	Body []byte `cbor:"2,keyasint,omitempty"`
}

// Call asks peer one question and reads one answer, each at most limit bytes of CBOR, and closes the stream. Without a deadline in
// ctx it takes 30 s at most. A refusal of the peer comes back as its [*Error].
func Call(ctx context.Context, n Network, peer identity.PeerID, protocol Protocol, ask, answer any, limit int) error {
	s, err := n.Open(ctx, peer, protocol)
	if err != nil {
		return err
	}
	defer s.Close()
	stop := context.AfterFunc(ctx, func() { s.Reset(KindTimeout) })
	defer stop()
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(30 * time.Second)
	}
	if err := s.SetDeadline(deadline); err != nil {
		return fmt.Errorf("call %s: %w", protocol, err)
	}
	if err := Send(s, ask, limit); err != nil {
		return fmt.Errorf("call %s: %w", protocol, err)
	}
	if err := Receive(s, answer, limit); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("call %s: %w", protocol, context.Cause(ctx))
		}
		return fmt.Errorf("call %s: %w", protocol, err)
	}
	return nil
}

// Send writes v as a frame of at most limit bytes.
func Send(s Stream, v any, limit int) error { return wire.WriteFrame(s, v, limit) }

// replySlack is what a reply's own framing adds to its body.
const replySlack = 64 + maxCode + 2*maxDetail

// answered is a handler's error that the peer was already told.
type answered struct{ error }

func (a answered) Unwrap() error { return a.error }

// Finish ends a stream after its handler: with a close if all went well or the peer was told what did not, else with a reset of the
// error's kind. Every [Network] calls it. It gives back the error if it is one that this side's log should hold, which a peer's
// own mistake is not.
func Finish(s Stream, err error) error {
	var a answered
	told := errors.As(err, &a)
	if err == io.EOF || a.error == io.EOF { // bare: the peer left without a word, which anyone can do all day; an EOF of ours is wrapped
		err = nil
	}
	if err == nil || told {
		s.Close() // the stream is over: a failing close changes nothing
	} else {
		s.Reset(KindOf(err))
	}
	if KindOf(err) == KindInternal {
		return err
	}
	return nil
}

// Respond writes the answer to a request: v, or err in its place. After err was sent it comes back wrapped, so that a handler can
// end with it and the stream is still closed in order.
func Respond(s Stream, v any, err error, limit int) error {
	if err != nil {
		if sendErr := wire.WriteFrame(s, reply{Err: toWire(err)}, replySlack); sendErr != nil {
			return errors.Join(err, sendErr)
		}
		return answered{err}
	}
	body, err := wire.Marshal(v)
	if err != nil {
		return err
	}
	return wire.WriteFrame(s, reply{Body: body}, limit+replySlack)
}

// Receive reads what [Respond] wrote: the answer into v, or the peer's [*Error].
func Receive(s Stream, v any, limit int) error {
	var r reply
	if err := wire.ReadFrame(s, &r, limit+replySlack); err != nil {
		return err
	}
	if r.Err != nil {
		return r.Err
	}
	return wire.UnmarshalStrict(r.Body, v)
}

// Answer makes a handler of a function from one request to one answer, each at most limit bytes. A refusal is the peer's to know
// and no fault of the stream: it is sent as the answer.
func Answer[Req, Resp any](limit int, f func(ctx context.Context, from identity.PeerID, ask Req) (Resp, error)) Handler {
	return func(ctx context.Context, s Stream) error {
		var ask Req
		if err := s.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
			return fmt.Errorf("answer: %w", err)
		}
		if err := wire.ReadFrame(s, &ask, limit); err != nil {
			return Respond(s, nil, err, limit)
		}
		answer, err := f(ctx, s.Peer(), ask)
		return Respond(s, answer, err, limit)
	}
}
