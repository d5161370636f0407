package renter

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/market"
)

// What of ended jobs is kept on this machine. The ledger keeps its own records of them for ever.
const (
	logsFor   = 30 * 24 * time.Hour // their output, by the time of its last line
	logsBytes = 1 << 30             // of all ended jobs' output; the oldest goes first
	jobsKept  = 2000                // records for `gpufair ps --all`; the oldest go first
	tidyEvery = 24 * time.Hour
)

// tidy drops what is too old, at the start and once a day.
func (a *Agent) tidy(ctx context.Context) error {
	for {
		if err := a.tidyOnce(ctx, time.Now()); err != nil && ctx.Err() == nil {
			a.Log.Warn("old jobs not tidied up", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(tidyEvery):
		}
	}
}

func (a *Agent) tidyOnce(ctx context.Context, now time.Time) error {
	records, err := a.records(ctx)
	if err != nil {
		return err
	}
	slices.SortFunc(records, func(x, y record) int { return int(y.Agreed - x.Agreed) })
	kept := map[string]record{}
	var errs []error
	for i, r := range records {
		if i < jobsKept || !r.Final || r.Deliver || r.Results == resultsKept {
			kept[r.ID.String()] = r
			continue
		}
		err := a.Books.Update(ctx, func(tx *books.Tx) error { return tx.Of(kv.Renter).Delete(jobKey(r.ID)) })
		errs = append(errs, err)
	}
	return errors.Join(append(errs, a.tidyResults(kept), a.tidyLogs(kept, now))...)
}

// live reports whether a folder's job is on its way: started after the records were read, perhaps.
func (a *Agent) live(name string) bool {
	var id market.LeaseID
	if id.UnmarshalText([]byte(name)) != nil {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.jobs[id] != nil
}

// tidyResults removes the stores that a crash between landing and dropping left.
func (a *Agent) tidyResults(kept map[string]record) error {
	dirs, err := os.ReadDir(filepath.Join(a.conf.Dir, "results"))
	errs := []error{err}
	for _, d := range dirs {
		r, ok := kept[d.Name()]
		if ok && (!r.Final || r.Results == resultsKept) || a.live(d.Name()) {
			continue
		}
		errs = append(errs, os.RemoveAll(filepath.Join(a.conf.Dir, "results", d.Name())))
	}
	return errors.Join(errs...)
}

// tidyLogs removes output that is old, or too much.
func (a *Agent) tidyLogs(kept map[string]record, now time.Time) error {
	type held struct {
		dir  string
		size int64
		last time.Time
		drop bool
	}
	dirs, err := os.ReadDir(filepath.Join(a.conf.Dir, "jobs"))
	errs := []error{err}
	var list []held
	for _, d := range dirs {
		r, ok := kept[d.Name()]
		if ok && !r.Final || a.live(d.Name()) {
			continue
		}
		h := held{dir: filepath.Join(a.conf.Dir, "jobs", d.Name()), drop: !ok}
		for _, name := range []string{"log", transcriptName} {
			if info, err := os.Stat(filepath.Join(h.dir, name)); err == nil {
				h.size += info.Size()
				if info.ModTime().After(h.last) {
					h.last = info.ModTime()
				}
			} else if !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
		}
		list = append(list, h)
	}
	slices.SortFunc(list, func(x, y held) int { return y.last.Compare(x.last) })
	var sum int64
	for _, h := range list {
		if sum += h.size; h.drop || sum > logsBytes || now.Sub(h.last) > logsFor {
			errs = append(errs, os.RemoveAll(h.dir))
		}
	}
	return errors.Join(errs...)
}
