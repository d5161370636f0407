// Package tunnel is the frames of what flows from a running job and into it: logs now, terminals and forwarded ports later. It owns
// how they look on a stream and how they resume, and refuses to know leases and containers.
package tunnel

import (
	"context"
	"errors"
	"io"
	"time"

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

// MaxChunk is the most bytes of one [Chunk]'s data.
const MaxChunk = 32 << 10

// Chunk is what a job wrote at one time to one stream.
type Chunk struct {
	Offset uint64 `cbor:"1,keyasint"` // bytes of data of both streams before this; a jump says that older output was dropped
	Time   int64  `cbor:"2,keyasint"` // Unix nanoseconds, by the provider's clock
	Stream Stream `cbor:"3,keyasint"`
	Data   []byte `cbor:"4,keyasint"` // at most [MaxChunk] bytes
}

// End is the offset of the chunk after c.
func (c Chunk) End() uint64 { return c.Offset + uint64(len(c.Data)) }

// WriteChunk appends c to a file or stream as one frame.
func WriteChunk(w io.Writer, c Chunk) error { return errors.New("not built yet") }

// ReadChunk reads what [WriteChunk] wrote; io.EOF at the clean end.
func ReadChunk(r io.Reader) (Chunk, error) { return Chunk{}, errors.New("not built yet") }

// LogSource is one job's output. Safe for concurrent use.
type LogSource interface {
	// Next gives the output at offset, cut so that it starts there, or the first after it if that was dropped. With wait it waits for
	// output to come; it gives io.EOF where the log is complete or, without wait, where there is no more yet.
	Next(ctx context.Context, offset uint64, wait bool) (Chunk, error)
}

// LogOpener finds the log of a lease (opaque here) for a peer; its errors reach the peer if they are *p2p.Error.
type LogOpener func(ctx context.Context, peer identity.PeerID, lease wire.Hash) (LogSource, error)

// LogLimits is what the protocol may cost a server.
func LogLimits() p2p.Limits { return p2p.Limits{Streams: 128, PeerStreams: 16, Idle: 10 * time.Minute} }

// ServeLogs is the handler of the protocol.
func ServeLogs(open LogOpener) p2p.Handler {
	return func(ctx context.Context, s p2p.Stream) error { return errors.New("not built yet") }
}

// LogClient reads one job's output from its provider.
type LogClient struct {
	Network  p2p.Network
	Protocol p2p.Protocol
	Peer     identity.PeerID
	Lease    wire.Hash
}

// Read gives f the output from offset on, in one attempt over one stream, and then the offset to go on from. Without follow it ends
// at what is there now, with follow when the log is complete; nil says that it was read to that end. An error of f ends it.
func (c LogClient) Read(ctx context.Context, offset uint64, follow bool, f func(Chunk) error) (uint64, error) {
	return offset, errors.New("not built yet")
}

// Follow is Read with follow that starts again after each broken line, at the offset where it was, until the log is complete, f
// fails, the peer refuses, or ctx ends.
func (c LogClient) Follow(ctx context.Context, offset uint64, f func(Chunk) error) (uint64, error) {
	return offset, errors.New("not built yet")
}
