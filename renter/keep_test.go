package renter

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/p2p/tunnel"
	"github.com/gpufair/gpufair/renter/control/api"
)

// Output is cut at maxLog with a note, its times rise whatever the provider says, and a frame that a crash cut is dropped.
func TestLogFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "job", "log")
	f, err := openLog(path)
	must(t, err)
	now := time.Unix(1_000_000, 0)
	for i, at := range []time.Duration{-time.Hour, 3 * time.Hour, -2 * time.Hour, 0} { // a provider's clock
		must(t, f.append(tunnel.Chunk{Offset: uint64(i), Time: now.Add(at).UnixNano(), Stream: tunnel.Out, Data: []byte("x")}, now))
	}
	whole := f.size
	if _, err := f.Write([]byte{1, 2}); err != nil {
		t.Fatal(err)
	}
	must(t, f.Close())
	f, err = openLog(path)
	must(t, err)
	if f.size != whole || f.offset != 4 || f.last < now.UnixNano() {
		t.Fatalf("opened at %d, offset %d, last %d", f.size, f.offset, f.last)
	}
	f.size = maxLog + 1 // as if it were that long
	c := tunnel.Chunk{Offset: 4, Time: 1, Stream: tunnel.Out, Data: []byte("too much")}
	if err := f.append(c, now); !errors.Is(err, errLogFull) {
		t.Fatalf("over the limit: %v", err)
	}
	if err := f.append(c, now); !errors.Is(err, errLogFull) {
		t.Fatalf("after the note: %v", err)
	}
	must(t, f.Close())
	var last time.Time
	var text strings.Builder
	file, err := os.Open(path)
	must(t, err)
	defer file.Close()
	must(t, readLog(file, time.Time{}, func(l api.LogLine) error {
		if !l.Time.After(last) || l.Time.After(now.Add(time.Second)) {
			t.Errorf("time %v after %v", l.Time, last)
		}
		last = l.Time
		text.Write(l.Data)
		return nil
	}))
	if !strings.HasPrefix(text.String(), "xxxx\n[gpufair: more output") || strings.Contains(text.String(), "too much") {
		t.Fatalf("%q", text.String())
	}
}

// A single file is an input as a folder is, and is still there when it is pushed; the last user closes what all shared.
func TestSingleFileInput(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data.txt")
	must(t, os.WriteFile(path, []byte("numbers"), 0o600))
	in, err := packInput(t.Context(), path)
	must(t, err)
	f := newFiles()
	f.inputs = in
	f.share().drop()
	r, err := in.Blob(t.Context(), in.Manifest.Entries[0].Chunks[0])
	must(t, err)
	b := make([]byte, r.Size())
	if _, err := r.ReadAt(b, 0); err != nil || string(b) != "numbers" || in.Manifest.Entries[0].Path != "data.txt" {
		t.Fatalf("%q of %+v: %v", b, in.Manifest, err)
	}
	must(t, r.Close())
	made := in.made
	f.drop()
	if _, err := os.Stat(made); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("left behind: %v", err)
	}
}

// What changed since it was ordered is not pushed.
func TestChangedSinceOrdered(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		id := r.order(plenty)
		rec := r.job(id)
		r.image = image{"another image"}
		f := newFiles()
		defer f.drop()
		if _, _, err := f.get(t.Context(), r, rec); err == nil || !strings.Contains(err.Error(), "changed since") {
			t.Fatalf("got %v", err)
		}
		r.runs(id)
		r.owner.ends()
		r.ends(id, time.Minute)
	})
}

// Old output and the oldest records go; what is live, undelivered or kept for a folder stays.
func TestTidy(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		id := r.order(plenty)
		r.runs(id)
		now := time.Now()
		const more = 5
		name := func(i int) (id market.LeaseID) { id[0], id[1], id[2] = 9, byte(i>>8), byte(i); return id }
		for at := 0; at < jobsKept+more; at += 250 {
			must(t, r.books.Update(t.Context(), func(tx *books.Tx) error {
				for i := at; i < min(at+250, jobsKept+more); i++ {
					rec := record{Version: recordVersion, ID: name(i), Final: true, Agreed: int64(i), Deliver: i == 0, Results: resultsNone}
					if i == 1 {
						rec.Results = resultsKept
					}
					if err := kv.Save(tx.Of(kv.Renter), jobKey(rec.ID), rec); err != nil {
						return err
					}
				}
				return nil
			}))
		}
		write := func(id market.LeaseID, age time.Duration) string {
			dir := r.agent.jobDir(id)
			must(t, os.MkdirAll(dir, 0o700))
			must(t, os.WriteFile(filepath.Join(dir, "log"), []byte("x"), 0o600))
			must(t, os.Chtimes(filepath.Join(dir, "log"), now.Add(-age), now.Add(-age)))
			must(t, os.MkdirAll(r.agent.resultsDir(id), 0o700))
			return dir
		}
		gone := []string{write(name(2), time.Hour), write(name(1000), logsFor+time.Hour)}
		stays := []string{write(name(1001), time.Hour), write(name(1), time.Hour), write(id, 2*logsFor)}
		must(t, r.agent.tidyOnce(t.Context(), now))
		for _, dir := range gone {
			if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s is still there", dir)
			}
		}
		for _, dir := range stays {
			if _, err := os.Stat(dir); err != nil {
				t.Error(err)
			}
		}
		for id, want := range map[market.LeaseID]bool{name(1): true, name(1000): false, id: true} {
			if _, err := os.Stat(r.agent.resultsDir(id)); (err == nil) != want {
				t.Errorf("results of %s: %v", id.Short(), err)
			}
		}
		records, err := r.agent.records(t.Context())
		must(t, err)
		kept := map[market.LeaseID]bool{}
		for _, rec := range records {
			kept[rec.ID] = true
		}
		if !kept[id] || !kept[name(0)] || !kept[name(1)] || kept[name(2)] || kept[name(more)] || !kept[name(more+1)] {
			t.Errorf("%d records kept", len(records))
		}
		r.owner.ends()
		r.ends(id, time.Minute)
	})
}

// Whoever asks before Run, or after it, gets an answer and no job.
func TestOutsideRun(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		id := r.order(plenty)
		r.runs(id)
		r.stop()
		j := r.agent.find(id)
		if err := r.agent.start(j); !errors.Is(err, errStopped) {
			t.Fatalf("started after the end: %v", err)
		}
		a, err := New(r.agent.Deps, r.agent.conf)
		must(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := a.Submit(ctx, api.RunRequest{}, func(api.RunEvent) error { return nil }); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("submitted before Run: %v", err)
		}
		if _, err := a.Jobs(ctx, false); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("listed before Run: %v", err)
		}
	})
}

// Two jobs on one agent share no results: what one drops is not the other's.
func TestTwoJobsHaveStoresOfTheirOwn(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		folder(t, r, map[string]string{"a": "the same"})
		first := r.order(plenty)
		r.runs(first)
		j := r.agent.find(first)
		other, err := r.agent.newJob(record{
			Version: recordVersion, ID: market.LeaseID{1}, Accept: j.record().Accept, Offer: j.record().Offer, OfferProof: j.record().OfferProof,
		}, newFiles())
		must(t, err)
		store, err := other.opened()
		must(t, err)
		if _, err := store.Put(t.Context(), []byte("the same")); err != nil {
			t.Fatal(err)
		}
		r.owner.ends()
		if rec := r.ends(first, time.Minute); rec.Results != resultsComplete {
			t.Fatalf("results %s", rec.Results)
		}
		if len(store.List()) != 1 {
			t.Fatal("the other job's results are gone")
		}
		other.closeFiles()
	})
}

func TestTransient(t *testing.T) {
	for _, err := range []error{
		&os.PathError{Op: "write", Err: errors.New("no space left")}, fmt.Errorf("x: %w", books.ErrReadOnly),
	} {
		if transient(err) {
			t.Errorf("%v would be tried for ever", err)
		}
	}
}
