// Package tunnel is the frames of what flows from a running job and into it: logs now, terminals and forwarded ports later. It owns
// how they look on a stream and how they resume, and refuses to know leases and containers.
package tunnel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Stream is where a job wrote.
type Stream uint8

// The streams.
const (
	Out Stream = 1
	Err Stream = 2
)

// Limits of the frames.
const (
	MaxChunk  = 32 << 10               // bytes of one [Chunk]'s data
	chunkCost = 64                     // bytes, at most, of a chunk without its data
	bundle    = 64 << 10               // bytes of data after which a frame is sent although more is there
	maxFrame  = 2 * (bundle + 8<<10)   // bytes of a frame: a bundle and its last chunk, with what the chunks themselves cost
	maxChunks = bundle / chunkCost     // of one frame: so that many short lines keep within maxFrame
	maxAsk    = 256                    // bytes of the request
	keepalive = 30 * time.Second       // between frames without output
	silence   = 3*keepalive + 1e9      // after which the client gives the provider up and starts again
	writeTime = time.Minute            // for one frame to a slow reader; then it may come back
	waitMin   = 500 * time.Millisecond // before the client's first new attempt
	waitMax   = 15 * time.Second       // between later ones
)

// Chunk is what a job wrote at one time to one stream.
type Chunk struct {
	Offset uint64 `cbor:"1,keyasint"` // bytes of data of both streams before this; a jump says that older output was dropped
	Time   int64  `cbor:"2,keyasint"` // Unix nanoseconds, by the provider's clock
	Stream Stream `cbor:"3,keyasint"`
	Data   []byte `cbor:"4,keyasint"` // at most [MaxChunk] bytes
}

// End is the offset of the chunk after c.
func (c Chunk) End() uint64 { return c.Offset + uint64(len(c.Data)) }

// check holds c against the limits and against the offset that the reader is at.
func (c Chunk) check(offset uint64) error {
	if len(c.Data) == 0 || len(c.Data) > MaxChunk || c.Offset < offset || c.End() < c.Offset || c.Stream != Out && c.Stream != Err {
		return fmt.Errorf("%w: %d bytes of stream %d at %d, read up to %d", wire.ErrFormat, len(c.Data), c.Stream, c.Offset, offset)
	}
	return nil
}

// LogSource is one job's output. Safe for concurrent use.
type LogSource interface {
	// Next gives the output at offset, cut so that it starts there, or the first after it if that was dropped. With wait it waits for
	// output to come; it gives io.EOF where the log is complete or, without wait, where there is no more yet.
	Next(ctx context.Context, offset uint64, wait bool) (Chunk, error)
}

// LogOpener finds the log of a lease (opaque here) for a peer; its errors reach the peer if they are *p2p.Error. A source that is an
// io.Closer is closed when its stream is over.
type LogOpener func(ctx context.Context, peer identity.PeerID, lease wire.Hash) (LogSource, error)

// logAsk is the client's only frame. The server answers with an empty reply or an error, and then with [logFrame]s.
type logAsk struct {
	Lease  wire.Hash `cbor:"1,keyasint"`
	Offset uint64    `cbor:"2,keyasint"`
	Follow bool      `cbor:"3,keyasint"`
}

// logFrame is some output, a sign of life (empty), or the end.
type logFrame struct {
	Chunks []Chunk `cbor:"1,keyasint,omitempty"`
	End    bool    `cbor:"2,keyasint,omitempty"`
}

// logOpen is the yes to a [logAsk].
type logOpen struct{}

// LogLimits is what the protocol may cost a server. A follower of a silent job sees a frame every 30 s, so its stream is never idle.
func LogLimits() p2p.Limits { return p2p.Limits{Streams: 128, PeerStreams: 16, Idle: 2 * silence} }

// ServeLogs is the handler of the protocol.
func ServeLogs(open LogOpener) p2p.Handler {
	return func(ctx context.Context, s p2p.Stream) error {
		if err := s.SetDeadline(time.Now().Add(writeTime)); err != nil {
			return fmt.Errorf("serve log: %w", err)
		}
		var ask logAsk
		if err := wire.ReadFrame(s, &ask, maxAsk); err != nil {
			return p2p.Respond(s, nil, err, maxAsk)
		}
		src, err := open(ctx, s.Peer(), ask.Lease)
		if c, ok := src.(io.Closer); ok {
			defer c.Close()
		}
		if err := p2p.Respond(s, logOpen{}, err, maxAsk); err != nil {
			return err
		}
		for offset := ask.Offset; ; {
			f, err := nextFrame(ctx, src, offset, ask.Follow)
			if err != nil {
				return fmt.Errorf("serve log: %w", err)
			}
			if n := len(f.Chunks); n > 0 {
				offset = f.Chunks[n-1].End()
			}
			if err := s.SetDeadline(time.Now().Add(writeTime)); err != nil {
				return fmt.Errorf("serve log: %w", err)
			}
			if err := wire.WriteFrame(s, f, maxFrame); err != nil || f.End {
				return err
			}
		}
	}
}

// nextFrame gathers what is there at offset; if nothing is, it waits for output as long as a sign of life may take.
func nextFrame(ctx context.Context, src LogSource, offset uint64, follow bool) (logFrame, error) {
	var f logFrame
	size := 0
	for size < bundle && len(f.Chunks) < maxChunks {
		c, err := src.Next(ctx, offset, false)
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = c.check(offset)
		}
		if err != nil {
			return f, err
		}
		f.Chunks = append(f.Chunks, c)
		offset = c.End()
		size += len(c.Data)
	}
	if len(f.Chunks) > 0 {
		return f, nil
	}
	if !follow {
		return logFrame{End: true}, nil
	}
	waitCtx, cancel := context.WithTimeout(ctx, keepalive)
	defer cancel()
	c, err := src.Next(waitCtx, offset, true)
	switch {
	case errors.Is(err, io.EOF):
		return logFrame{End: true}, nil
	case err != nil && waitCtx.Err() != nil && ctx.Err() == nil:
		return logFrame{}, nil
	case err != nil:
		return f, err
	}
	return logFrame{Chunks: []Chunk{c}}, c.check(offset)
}

// LogClient reads one job's output from its provider.
type LogClient struct {
	Network  p2p.Network
	Protocol p2p.Protocol
	Peer     identity.PeerID
	Lease    wire.Hash
}

// errReader is an error of the reader's own function, which no new attempt heals.
type errReader struct{ error }

func (e errReader) Unwrap() error { return e.error }

// Read gives f the output from offset on, in one attempt over one stream, and then the offset to go on from. Without follow it ends
// at what is there now, with follow when the log is complete; nil says that it was read to that end. An error of f ends it.
func (c LogClient) Read(ctx context.Context, offset uint64, follow bool, f func(Chunk) error) (uint64, error) {
	s, err := c.Network.Open(ctx, c.Peer, c.Protocol)
	if err != nil {
		return offset, fmt.Errorf("read log: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { s.Reset(p2p.KindTimeout) })
	defer stop()
	offset, err = c.read(s, offset, follow, f)
	p2p.Finish(s, err) // what this side's log should hold is in err
	if err != nil && ctx.Err() != nil {
		err = errors.Join(context.Cause(ctx), err)
	}
	if err != nil {
		return offset, fmt.Errorf("read log: %w", err)
	}
	return offset, nil
}

func (c LogClient) read(s p2p.Stream, offset uint64, follow bool, f func(Chunk) error) (uint64, error) {
	if err := s.SetDeadline(time.Now().Add(silence)); err != nil {
		return offset, err
	}
	if err := p2p.Send(s, logAsk{Lease: c.Lease, Offset: offset, Follow: follow}, maxAsk); err != nil {
		return offset, err
	}
	if err := p2p.Receive(s, &logOpen{}, maxAsk); err != nil {
		return offset, err
	}
	for {
		var frame logFrame
		if err := wire.ReadFrame(s, &frame, maxFrame); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF // the end has a frame of its own
			}
			return offset, err
		}
		for _, k := range frame.Chunks {
			if err := k.check(offset); err != nil {
				return offset, err
			}
			if err := f(k); err != nil {
				return offset, errReader{err}
			}
			offset = k.End()
		}
		if frame.End {
			return offset, nil
		}
		if err := s.SetDeadline(time.Now().Add(silence)); err != nil {
			return offset, err
		}
	}
}

// Follow is Read with follow that starts again after each broken line, at the offset where it was, until the log is complete, f
// fails, the peer refuses, or ctx ends.
func (c LogClient) Follow(ctx context.Context, offset uint64, f func(Chunk) error) (uint64, error) {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval = waitMin, waitMax
	for {
		next, err := c.Read(ctx, offset, true, f)
		if err == nil || final(err) || ctx.Err() != nil {
			return next, err
		}
		if next > offset {
			b.Reset()
		}
		offset = next
		timer := time.NewTimer(b.NextBackOff())
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return offset, errors.Join(context.Cause(ctx), err)
		}
	}
}

// final says whether another attempt would meet the same error.
func final(err error) bool {
	var own errReader
	if errors.As(err, &own) {
		return true
	}
	switch p2p.KindOf(err) {
	case p2p.KindRefused, p2p.KindNotFound, p2p.KindForbidden, p2p.KindVersion:
		return true
	case p2p.KindBadRequest:
		return !errors.Is(err, io.ErrUnexpectedEOF) // which is how a line breaks
	}
	return errors.Is(err, p2p.ErrUnsupported)
}
