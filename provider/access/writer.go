package access

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// segmentsPerLog is how finely the oldest output is dropped: an eighth of a log's cap at a time.
const segmentsPerLog = 8

// Writer appends to a log. It may be used by several goroutines at once.
type Writer struct {
	dir string
	max int64

	mu     sync.Mutex
	f      *os.File // guarded by mu, as is all below; the newest segment
	segs   []segment
	total  int64  // bytes of all segments
	offset uint64 // of the next record
	buf    []byte
}

// Create opens the log in folder dir for appending, making it if need be. Over maxBytes the oldest output is dropped. A broken record at
// the end of an older writer's log is cut off.
func Create(dir string, maxBytes int64) (*Writer, error) {
	if maxBytes < MinLog {
		return nil, fmt.Errorf("create log %s: cap of %d bytes is below %d", dir, maxBytes, MinLog)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create log: %w", err)
	}
	segs, err := segments(dir)
	if err != nil {
		return nil, err
	}
	w := &Writer{dir: dir, max: maxBytes, segs: segs}
	for _, s := range segs {
		w.total += s.size
	}
	if len(segs) == 0 {
		return w, w.roll()
	}
	return w, w.reopen()
}

// reopen opens the newest segment and cuts off what was not written whole.
func (w *Writer) reopen() error {
	last := &w.segs[len(w.segs)-1]
	good, offset, err := scan(last.path, last.start)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(last.path, os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("reopen log: %w", err)
	}
	if err := f.Truncate(good); err != nil {
		return fmt.Errorf("reopen log: %w", err)
	}
	w.total -= last.size - good
	last.size, w.f, w.offset = good, f, offset
	return nil
}

// scan reads a segment up to its first broken record: where that lies in the file, and the offset there.
func scan(path string, start uint64) (int64, uint64, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, 0, fmt.Errorf("scan log: %w", err)
	}
	good, offset := 0, start
	for {
		r, n, err := parseRecord(b[good:])
		if err != nil || n == 0 {
			return int64(good), offset, nil
		}
		good, offset = good+n, r.end()
	}
}

// roll starts a new segment at the current offset. w.mu is held, or w is new.
func (w *Writer) roll() error {
	path := segmentPath(w.dir, w.offset)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("roll log: %w", err)
	}
	if w.f != nil {
		w.f.Close() // all of it was written: there is no buffer to lose
	}
	w.f = f
	w.segs = append(w.segs, segment{path: path, start: w.offset})
	return nil
}

// Write appends output, read at now, in as many records as it takes. After an error the output counts as dropped: readers see a gap,
// and later output can still be written.
func (w *Writer) Write(now time.Time, s Stream, data []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(data) > 0 {
		n := min(len(data), MaxRecord)
		err := w.append(record{stream: s, time: now.UnixNano(), offset: w.offset, data: data[:n]})
		w.offset += uint64(n)
		if err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}

// append writes one record in one call to the system. w.mu is held.
func (w *Writer) append(r record) error {
	w.buf = appendRecord(w.buf[:0], r)
	n := int64(len(w.buf))
	if cur := w.segs[len(w.segs)-1].size; cur > 0 && cur+n > w.max/segmentsPerLog {
		if err := w.roll(); err != nil {
			return err
		}
	}
	for len(w.segs) > 1 && w.total+n > w.max {
		if err := os.Remove(w.segs[0].path); err != nil && !os.IsNotExist(err) {
			return fmt.Errorf("drop oldest output: %w", err)
		}
		w.total -= w.segs[0].size
		w.segs = w.segs[1:]
	}
	cur := &w.segs[len(w.segs)-1]
	if _, err := w.f.Write(w.buf); err != nil {
		_ = w.f.Truncate(cur.size) // half a record would hide all after it
		return fmt.Errorf("write log: %w", err)
	}
	cur.size += n
	w.total += n
	return nil
}

// Close marks the log as complete, at now, and closes it.
func (w *Writer) Close(now time.Time) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	err := w.append(record{stream: end, time: now.UnixNano(), offset: w.offset})
	if cerr := w.f.Close(); err == nil {
		err = cerr
	}
	return err
}

// Copy appends what r gives to stream s until it ends. It goes on reading after a failed write, so that a job is never held up by its log,
// and returns the first such error.
func (w *Writer) Copy(s Stream, r io.Reader) error {
	var first error
	buf := make([]byte, MaxRecord)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			if werr := w.Write(time.Now(), s, buf[:n]); werr != nil && first == nil {
				first = werr
			}
		}
		if err != nil {
			return first // the end of a pipe; a broken one is the end too
		}
	}
}
