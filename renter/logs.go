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

// keepLog holds the job's output on this machine as it is made, from where an earlier process left off, until it is complete.
func (j *job) keepLog(ctx context.Context) {
	if err := j.wait(ctx, func() bool { s := j.record(); return s.Started != 0 || s.State == work.Ended || j.ending() }); err != nil {
		return
	}
	if j.record().Started == 0 {
		return // it never ran: there is no output
	}
	file, offset, err := openLog(j.a.logPath(j.id))
	if err != nil {
		j.log.Error("output not kept", "err", err)
		return
	}
	defer file.Close()
	client := tunnel.LogClient{Network: j.a.Network, Protocol: j.a.protocol(work.ProtoLogs), Peer: j.offer.Device, Lease: wire.Hash(j.id)}
	_, err = client.Follow(ctx, offset, func(c tunnel.Chunk) error {
		if err := wire.WriteFrame(file, c, maxFrame); err != nil {
			return err
		}
		j.mu.Lock()
		j.rec.LogOffset = c.End()
		close(j.logNews)
		j.logNews = make(chan struct{})
		j.mu.Unlock()
		return nil
	})
	if err != nil && ctx.Err() == nil {
		j.log.Warn("output is not complete", "err", err)
	}
	j.mu.Lock()
	j.logDone = true
	close(j.logNews) // wakes who follows a job that wrote nothing more
	j.logNews = make(chan struct{})
	j.mu.Unlock()
	j.changed()
}

// maxFrame bounds a frame of a log file: a chunk and its head.
const maxFrame = tunnel.MaxChunk + 256

// openLog opens a job's log for appending and finds where it ends; a frame that a crash cut is dropped.
func openLog(path string) (*os.File, uint64, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, 0, fmt.Errorf("open log: %w", err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, 0, fmt.Errorf("open log: %w", err)
	}
	var offset uint64
	var whole int64
	for {
		var c tunnel.Chunk
		if err := wire.ReadFrame(f, &c, maxFrame); err != nil {
			break // the end, or a frame that was cut
		}
		offset = c.End()
		if whole, err = f.Seek(0, io.SeekCurrent); err != nil {
			f.Close()
			return nil, 0, fmt.Errorf("open log: %w", err)
		}
	}
	if err := f.Truncate(whole); err != nil {
		f.Close()
		return nil, 0, fmt.Errorf("open log: %w", err)
	}
	if _, err := f.Seek(whole, io.SeekStart); err != nil {
		f.Close()
		return nil, 0, fmt.Errorf("open log: %w", err)
	}
	return f, offset, nil
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
