package jobnet

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// Bounds of what is kept of flows. The log is the owner's, for the day that somebody asks who it was.
const (
	keepFlows   = 30 * 24 * time.Hour
	maxFlowFile = 8 << 20 // bytes of one of a lease's two files: some 60,000 flows each
	maxFlows    = 1 << 30 // bytes of all leases' files
	flushEvery  = 5 * time.Second
)

// flowLog is one lease's log of connections that were let out, a line when one is opened and one when it is over; one that is open at the
// job's end has no second:
//
//	2026-11-30T19:20:00.123Z open tcp 198.51.100.7:443
//	2026-11-30T19:20:01.357Z close tcp 198.51.100.7:443 after 1.234s out 517 in 20480
//
// It is two files of which the older is emptied when the newer is full. It may be used by several goroutines at once.
type flowLog struct {
	mu    sync.Mutex
	files [2]*os.File // guarded by mu, as all below; the second is written
	size  int64       // of the second
	w     *bufio.Writer
	timer *time.Timer
	err   error // the first that writing met: nothing is written after it
}

func openFlowLog(older, newer *os.File) (*flowLog, error) {
	st, err := newer.Stat()
	if err != nil {
		return nil, fmt.Errorf("flow log: %w", err)
	}
	return &flowLog{files: [2]*os.File{older, newer}, size: st.Size(), w: bufio.NewWriterSize(newer, 32<<10)}, nil
}

// opened notes a flow that is let out.
func (l *flowLog) opened(network string, to netip.AddrPort) {
	l.add("open %s %s", network, to)
}

// closed notes that it is over.
func (l *flowLog) closed(network string, to netip.AddrPort, began time.Time, sent, got uint64) {
	l.add("close %s %s after %s out %d in %d", network, to, time.Since(began).Round(time.Millisecond), sent, got)
}

func (l *flowLog) add(format string, args ...any) {
	line := time.Now().UTC().Format("2006-01-02T15:04:05.000Z ") + fmt.Sprintf(format, args...) + "\n"
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.size+int64(len(line)) > maxFlowFile {
		l.turn()
	}
	if l.err != nil {
		return
	}
	_, l.err = l.w.WriteString(line)
	l.size += int64(len(line))
	if l.timer == nil {
		l.timer = time.AfterFunc(flushEvery, func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.timer = nil
			l.flush()
		})
	}
}

// turn empties the older file and writes there; l.mu is held.
func (l *flowLog) turn() {
	l.flush()
	l.files[0], l.files[1] = l.files[1], l.files[0]
	if l.err == nil {
		l.err = l.files[1].Truncate(0)
	}
	l.size = 0
	l.w.Reset(l.files[1])
}

func (l *flowLog) flush() {
	if l.err == nil {
		l.err = l.w.Flush()
	}
}

// failed reports whether the log can't be written any more. It may come up to flushEvery late.
func (l *flowLog) failed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err != nil
}

// close writes what is still held.
func (l *flowLog) close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flush()
	if l.err != nil {
		return fmt.Errorf("flow log: %w", l.err)
	}
	return nil
}

// openFlowFiles opens a lease's two files, first the one that was written longer ago.
func openFlowFiles(dir, id string) (older, newer *os.File, err error) {
	var files [2]*os.File
	var at [2]time.Time
	for i := range files {
		var st fs.FileInfo
		files[i], err = os.OpenFile(filepath.Join(dir, fmt.Sprintf("%s.%d.log", id, i)), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
		if err == nil {
			st, err = files[i].Stat()
		}
		if err != nil {
			files[0].Close() // of nil: an error, no more
			files[1].Close()
			return nil, nil, err
		}
		at[i] = st.ModTime()
	}
	if at[0].After(at[1]) {
		files[0], files[1] = files[1], files[0]
	}
	return files[0], files[1], nil
}

// prune removes files of flows that are older than is kept, and the oldest beyond the bound of all. Several may do it at once.
func prune(dir string, now time.Time, most int64) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	type file struct {
		path string
		size int64
		at   time.Time
	}
	var files []file
	for _, e := range entries {
		st, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		files = append(files, file{filepath.Join(dir, e.Name()), st.Size(), st.ModTime()})
	}
	slices.SortFunc(files, func(a, b file) int { return cmp.Or(b.at.Compare(a.at), cmp.Compare(a.path, b.path)) }) // newest first
	var errs []error
	for _, f := range files {
		most -= f.size
		if now.Sub(f.at) > keepFlows || most < 0 {
			if err := os.Remove(f.path); !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}
