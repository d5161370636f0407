// Package access is the job's side of what its renter reaches it by; first its output. It owns the format of the log on disk: the writer
// that runs beside each job, and the reader that provider and tunnel follow. It knows no network and no runtime.
package access

import (
	"context"
	"time"
)

// Stream says where a record came from.
type Stream uint8

// The streams. They are never renumbered: they are on disk and on the wire.
const (
	Stdout Stream = 1
	Stderr Stream = 2
	End    Stream = 3 // last record of a log: the job closed its output
)

// Record is one piece of output, as it was read from the job: not necessarily a line.
type Record struct {
	Time   time.Time // when it was read, by the provider's clock
	Stream Stream
	Data   []byte
	Offset uint64 // of the record in the log
	Next   uint64 // offset of the record after it: what to ask for after a break
}

// Reader reads a log from an offset on. It is for one goroutine.
type Reader struct{}

// Open opens the log in folder dir at an offset that is 0 or a Record's Next. If the oldest output was dropped beyond that offset, reading starts at the oldest
// record there is: the first Record's Offset shows the gap. A log whose folder is not there yet is empty.
func Open(dir string, offset uint64) (*Reader, error) { return nil, nil }

// Next gives the next record, or io.EOF if there is none now; a later call may have one. After the [End] record it is always io.EOF.
func (r *Reader) Next() (Record, error) { return Record{}, nil }

// Follow waits for the next record. It is io.EOF after [End], or once ended is closed (the caller knows that the job is over, in case the
// writer was killed) and all is read.
func (r *Reader) Follow(ctx context.Context, ended <-chan struct{}) (Record, error) {
	return Record{}, nil
}

// Close closes the log.
func (r *Reader) Close() error { return nil }

// Size is the offset behind the last complete record of the log in dir: all bytes ever written, dropped ones too.
func Size(dir string) (uint64, error) { return 0, nil }

// Writer appends to a log. It may be used by several goroutines at once.
type Writer struct{}

// Create opens the log in folder dir for appending, making it if need be. Over maxBytes the oldest output is dropped, an eighth of it at a time.
func Create(dir string, maxBytes int64) (*Writer, error) { return nil, nil }

// Write appends one record.
func (w *Writer) Write(now time.Time, s Stream, data []byte) error { return nil }

// Close writes the [End] record and closes the log.
func (w *Writer) Close(now time.Time) error { return nil }
