package renter

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p/tunnel"
	"github.com/gpufair/gpufair/p2p/wire"
	"github.com/gpufair/gpufair/renter/control/api"
)

func (a *Agent) jobDir(id market.LeaseID) string {
	return filepath.Join(a.conf.Dir, "jobs", id.String())
}

func (a *Agent) logPath(id market.LeaseID) string { return filepath.Join(a.jobDir(id), "log") }

// maxLog is the most of one job's output that is kept, in bytes with the frames around it: what a provider sends must not fill this disk.
const maxLog = 256 << 20

// errLogFull ends the keeping of output.
var errLogFull = errors.New("there is more output than is kept of a job")

// keepLog holds the job's output on this machine as it is made, from where an earlier process left off, until it is complete.
func (j *job) keepLog(ctx context.Context) {
	defer j.endLog()
	if err := j.wait(ctx, func() bool { s := j.record(); return s.Started != 0 || s.State == work.Ended || j.ending() }); err != nil {
		return
	}
	if j.record().Started == 0 {
		return // it never ran: there is no output
	}
	f, err := openLog(j.a.logPath(j.id))
	if err != nil {
		j.log.Error("output not kept", "err", err)
		return
	}
	defer f.Close()
	client := tunnel.LogClient{Network: j.a.Network, Protocol: j.a.protocol(work.ProtoLogs), Peer: j.offer.Device, Lease: wire.Hash(j.id)}
	_, err = client.Follow(ctx, f.offset, func(c tunnel.Chunk) error {
		if err := f.append(c, time.Now()); err != nil {
			return err
		}
		j.mu.Lock()
		j.live.log = f.offset
		close(j.logNews)
		j.logNews = make(chan struct{})
		j.mu.Unlock()
		return nil
	})
	if err != nil && ctx.Err() == nil {
		j.log.Warn("output is not complete", "err", err)
	}
}

// endLog wakes who follows the output: nothing more comes.
func (j *job) endLog() {
	j.mu.Lock()
	j.logDone = true
	close(j.logNews)
	j.logNews = make(chan struct{})
	j.mu.Unlock()
	j.changed()
}

// logFile is a job's output on this machine, open for more.
type logFile struct {
	*os.File
	offset uint64 // of the job's output: what comes next
	size   int64  // of the file
	last   int64  // time of the newest piece, Unix nanoseconds
	full   bool
}

// append keeps a piece of output. Its time is the provider's, held to be later than the piece before and not in the future of this
// machine's clock, so that a reader may go on after the time of the last piece it saw. A file that is full ends with a note.
func (f *logFile) append(c tunnel.Chunk, now time.Time) error {
	if f.full {
		return errLogFull
	}
	if f.size > maxLog {
		note := fmt.Sprintf("\n[gpufair: more output than the %d MiB that are kept of a job; the rest is not here]\n", maxLog>>20)
		c, f.full = tunnel.Chunk{Offset: c.Offset, Time: c.Time, Stream: tunnel.Err, Data: []byte(note)}, true
	}
	c.Time = max(min(c.Time, now.UnixNano()), f.last+1)
	if err := wire.WriteFrame(f.File, c, maxFrame); err != nil {
		return err
	}
	size, err := f.Seek(0, io.SeekCurrent)
	if err != nil {
		return fmt.Errorf("keep log: %w", err)
	}
	f.size, f.last, f.offset = size, c.Time, c.End()
	if f.full {
		return errLogFull
	}
	return nil
}

// maxFrame bounds a frame of a log file: a chunk and its head.
const maxFrame = tunnel.MaxChunk + 256

// openLog opens a job's log for appending and finds where it ends; a frame that a crash cut is dropped.
func openLog(path string) (*logFile, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	f := &logFile{File: file}
	if err := f.findEnd(); err != nil {
		file.Close()
		return nil, fmt.Errorf("open log: %w", err)
	}
	return f, nil
}

func (f *logFile) findEnd() error {
	for {
		var c tunnel.Chunk
		if err := wire.ReadFrame(f.File, &c, maxFrame); err != nil {
			break // the end, or a frame that was cut
		}
		f.full = f.size > maxLog // then this piece was the note
		size, err := f.Seek(0, io.SeekCurrent)
		if err != nil {
			return err
		}
		f.offset, f.last, f.size = c.End(), max(c.Time, f.last), size
	}
	if err := f.Truncate(f.size); err != nil {
		return err
	}
	_, err := f.Seek(f.size, io.SeekStart)
	return err
}

// Logs gives f the output of a job that is held here; with follow also what comes, until the job is over.
func (a *Agent) Logs(ctx context.Context, id market.LeaseID, since time.Time, follow bool, f func(api.LogLine) error) error {
	file, err := os.Open(a.logPath(id))
	for errors.Is(err, os.ErrNotExist) {
		j := a.find(id)
		if !follow || j == nil {
			return nil // no output
		}
		if werr := j.wait(ctx, func() bool { s := j.record(); return s.LogOffset > 0 || s.Final }); werr != nil {
			return werr
		}
		if file, err = os.Open(a.logPath(id)); j.over() {
			break
		}
	}
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("log of job %s: %w", id.Short(), err)
	}
	defer file.Close()
	for {
		j, news, done := a.logState(id)
		if err := readLog(file, since, f); err != nil {
			return err
		}
		if !follow || j == nil || done {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-news:
		}
	}
}

// logState is the job, if it has not ended, what is closed at its next output, and whether its output is complete.
func (a *Agent) logState(id market.LeaseID) (*job, <-chan struct{}, bool) {
	j := a.find(id)
	if j == nil {
		return nil, nil, true
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.logDone {
		return j, j.news, true
	}
	return j, j.logNews, j.rec.Final
}

// readLog gives f what is whole in the file from its position on.
func readLog(file *os.File, since time.Time, f func(api.LogLine) error) error {
	for {
		at, err := file.Seek(0, io.SeekCurrent)
		if err != nil {
			return fmt.Errorf("read log: %w", err)
		}
		var c tunnel.Chunk
		if err := wire.ReadFrame(file, &c, maxFrame); err != nil { // the end for now, or a frame that is being written
			_, err := file.Seek(at, io.SeekStart)
			return err
		}
		line := api.LogLine{Time: time.Unix(0, c.Time), Stream: "out", Data: c.Data}
		if c.Stream == tunnel.Err {
			line.Stream = "err"
		}
		if line.Time.Before(since) {
			continue
		}
		if err := f(line); err != nil {
			return err
		}
	}
}
