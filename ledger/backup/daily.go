package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/gpufair/gpufair/ledger/disk"
	"github.com/gpufair/gpufair/p2p/identity"
)

// Daily makes a backup a day in a folder.
type Daily struct {
	Dir    string // on another disk than the ledger, if it is to help when that one dies
	Keep   int    // so many; older ones are removed
	Device identity.PeerID
	Write  func(ctx context.Context, w io.Writer) error // of a backup
	Log    *slog.Logger
}

const (
	day        = 24 * time.Hour
	dailyAgain = 10 * time.Minute // after one that failed
	nameTime   = "2006-01-02"
	extension  = ".backup"
)

// prefix is what the names of one ledger's daily backups start with.
func (d Daily) prefix() string { return "gpufair-" + d.Device.Short() + "-" }

// Run makes a backup whenever the newest is a day old, until ctx ends.
func (d Daily) Run(ctx context.Context) error {
	for {
		wait, err := d.Make(ctx, time.Now())
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, ErrEmpty):
			wait = day
		case err != nil:
			d.Log.Error("daily backup not made; trying again", "dir", d.Dir, "err", err)
			wait = dailyAgain
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

// Make makes the backup of the day of now, if it is not there, and removes the oldest beyond Keep. It says how long to wait for the next.
func (d Daily) Make(ctx context.Context, now time.Time) (wait time.Duration, err error) {
	now = now.UTC()
	next := now.Truncate(day).Add(day).Sub(now)
	path := filepath.Join(d.Dir, d.prefix()+now.Format(nameTime)+extension)
	if _, err := os.Stat(path); err == nil {
		return next, nil
	}
	if err := os.MkdirAll(d.Dir, 0o700); err != nil {
		return 0, fmt.Errorf("daily backup: %w", err)
	}
	if err := d.tidy(); err != nil {
		return 0, err
	}
	list, err := d.list()
	if err != nil {
		return 0, err
	}
	h, err := Save(ctx, path, false, func(w io.Writer) error { return d.Write(ctx, w) })
	if err != nil {
		return 0, err
	}
	if h.Size == 0 {
		return 0, errors.Join(ErrEmpty, remove(path))
	}
	d.Log.Info("daily backup made", "file", path, "entries", h.Size)
	return next, d.prune(append(list, path), h)
}

// tidy removes what a daily backup that a crash cut short left: nobody else writes this ledger's.
func (d Daily) tidy() error {
	left, err := d.find(disk.Temporary(d.prefix() + "*" + extension))
	for _, path := range left {
		err = errors.Join(err, remove(path))
	}
	return err
}

// list gives the daily backups of this ledger, oldest first.
func (d Daily) list() ([]string, error) { return d.find(d.prefix() + "*" + extension) }

// find gives the files in the folder whose names match a pattern, sorted.
func (d Daily) find(pattern string) ([]string, error) {
	all, err := os.ReadDir(d.Dir)
	if err != nil {
		return nil, fmt.Errorf("daily backup: %w", err)
	}
	var out []string
	for _, e := range all {
		if ok, err := filepath.Match(pattern, e.Name()); err != nil {
			return nil, fmt.Errorf("daily backup: %w", err)
		} else if ok {
			out = append(out, filepath.Join(d.Dir, e.Name()))
		}
	}
	slices.Sort(out)
	return out, nil
}

// prune removes the oldest beyond Keep, but none that knows more than the newest: a ledger that was restored to an old state must not push
// out the backups that have what it lost.
func (d Daily) prune(list []string, newest Header) error {
	var errs []error
	for _, path := range list[:max(len(list)-d.Keep, 0)] {
		f, err := disk.OpenFile(path)
		if errors.Is(err, disk.ErrNotFile) {
			continue // none that was made here
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		old, err := ReadHeader(f)
		if f.Close(); err != nil || newest.Less(old) {
			continue // not ours to judge, or worth more than its age
		}
		errs = append(errs, remove(path))
	}
	return errors.Join(errs...)
}
