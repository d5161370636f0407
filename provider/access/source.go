package access

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
	"time"

	"github.com/gpufair/gpufair/p2p/tunnel"
)

// pollEvery is how soon output is seen by who waits for it: below what a person notices.
const pollEvery = 40 * time.Millisecond

// Source reads a log. It fulfils [tunnel.LogSource] and is fastest when each reader has its own and reads on from where it was.
type Source struct {
	dir   string
	ended <-chan struct{}

	mu   sync.Mutex
	f    *os.File // guarded by mu, as is all below: where the last call left off
	seg  segment
	pos  int64  // in f
	next uint64 // offset of the record at pos
	buf  []byte
	end  uint64 // offset of the end of the log, once seen
	done bool   // the end was seen
}

var _ tunnel.LogSource = (*Source)(nil)

// Open gives the log in folder dir, which need not be there yet. The caller closes ended when the job is over, so that a log whose writer was
// killed ends too; nil says that only the writer ends it. [Source.Close] frees it.
func Open(dir string, ended <-chan struct{}) *Source {
	return &Source{dir: dir, ended: ended, buf: make([]byte, headerLen+MaxRecord)}
}

// Close closes the log.
func (s *Source) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leave()
	return nil
}

// Next implements [tunnel.LogSource].
func (s *Source) Next(ctx context.Context, offset uint64, wait bool) (tunnel.Chunk, error) {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		ended := s.hasEnded() // before the look, so that nothing written before the end is missed
		c, err := s.look(offset)
		if err == nil || !errors.Is(err, io.EOF) {
			return c, err
		}
		s.mu.Lock()
		complete := s.done && offset >= s.end
		s.mu.Unlock()
		if complete || ended || !wait {
			return tunnel.Chunk{}, io.EOF
		}
		select {
		case <-ctx.Done():
			return tunnel.Chunk{}, ctx.Err()
		case <-s.ended:
		case <-tick.C:
		}
	}
}

func (s *Source) hasEnded() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}

// look gives the first output at or after offset that is there now, else io.EOF.
func (s *Source) look(offset uint64) (tunnel.Chunk, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.f == nil || offset < s.next {
		if err := s.seek(offset); err != nil {
			return tunnel.Chunk{}, err
		}
	}
	for {
		r, err := s.read()
		if errors.Is(err, io.EOF) {
			err = s.advance()
			if err == nil {
				continue
			}
		}
		if err != nil {
			return tunnel.Chunk{}, err
		}
		if r.stream == end {
			s.done, s.end = true, r.offset
			return tunnel.Chunk{}, io.EOF
		}
		if r.end() <= offset {
			continue
		}
		cut := uint64(0)
		if offset > r.offset {
			cut = offset - r.offset
		}
		return tunnel.Chunk{
			Offset: r.offset + cut, Time: r.time, Stream: tunnel.Stream(r.stream), Data: append([]byte(nil), r.data[cut:]...),
		}, nil
	}
}

// seek opens the segment that holds offset, or the oldest one if that was dropped. s.mu is held.
func (s *Source) seek(offset uint64) error {
	segs, err := segments(s.dir)
	if err != nil {
		return err
	}
	if len(segs) == 0 {
		return io.EOF
	}
	at := segs[0]
	for _, g := range segs[1:] {
		if g.start <= offset {
			at = g
		}
	}
	return s.enter(at)
}

// advance goes to the segment after the current one; io.EOF if there is none yet. s.mu is held.
func (s *Source) advance() error {
	segs, err := segments(s.dir)
	if err != nil {
		return err
	}
	for _, g := range segs {
		if g.start > s.seg.start {
			// The writer rolls only after its last record is whole: what was written between our read and the roll is read first.
			if _, n, err := s.peek(); err == nil && n > 0 {
				return nil
			}
			return s.enter(g)
		}
	}
	return io.EOF
}

func (s *Source) enter(g segment) error {
	f, err := os.Open(g.path)
	if errors.Is(err, fs.ErrNotExist) {
		return io.EOF // dropped just now; the next look finds the oldest one left
	}
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	s.leave()
	s.f, s.seg, s.pos, s.next = f, g, 0, g.start
	return nil
}

func (s *Source) leave() {
	if s.f != nil {
		s.f.Close() // opened for reading: nothing to lose
		s.f = nil
	}
}

// peek parses the record at the current position without taking it. s.mu is held.
func (s *Source) peek() (record, int, error) {
	n, err := s.f.ReadAt(s.buf, s.pos)
	if err != nil && !errors.Is(err, io.EOF) {
		return record{}, 0, fmt.Errorf("read log: %w", err)
	}
	return parseRecord(s.buf[:n])
}

// read takes the next record of the current segment; io.EOF if there is no whole one. s.mu is held.
func (s *Source) read() (record, error) {
	r, n, err := s.peek()
	if errors.Is(err, errBroken) || (err == nil && n == 0) {
		return record{}, io.EOF // not whole yet, or never: what follows lies in the next segment
	}
	if err != nil {
		return record{}, err
	}
	s.pos += int64(n)
	s.next = r.end()
	return r, nil
}

// Size is how many bytes of output the log in dir has had in all, dropped ones too.
func Size(dir string) (uint64, error) {
	segs, err := segments(dir)
	if err != nil || len(segs) == 0 {
		return 0, err
	}
	last := segs[len(segs)-1]
	_, offset, err := scan(last.path, last.start)
	return offset, err
}
