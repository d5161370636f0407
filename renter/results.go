package renter

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p/blob"
	"github.com/gpufair/gpufair/p2p/wire"
	"github.com/gpufair/gpufair/renter/control/api"
)

// syncEvery is how often the results so far are brought home while the job runs, so that a provider's death loses only the newest; a
// transfer that takes long makes the next one later.
const syncEvery = 15 * time.Second

// resultsDir is where a job's results lie on their way. Each job has a store of its own: what one provider sends can take no more than
// the quota, and what one job drops is never another's.
func (a *Agent) resultsDir(id market.LeaseID) string {
	return filepath.Join(a.conf.Dir, "results", id.String())
}

// opened is the job's store. It is opened when it is needed, and again if that failed.
func (j *job) opened() (*blob.Store, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.store != nil {
		return j.store, nil
	}
	s, err := blob.OpenStore(j.a.resultsDir(j.id), j.a.conf.Results)
	if err == nil {
		j.store = s
	}
	return s, err
}

// keepResults brings home what the job has written so far.
func (j *job) keepResults(ctx context.Context) {
	for wait := syncEvery; ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		if s := j.record().State; s == work.Ended {
			return
		} else if s != work.Running {
			continue
		}
		start := time.Now()
		if err := j.snapshot(ctx); err != nil {
			j.log.Debug("results so far not fetched", "err", err)
		}
		wait = max(syncEvery, 10*time.Since(start))
	}
}

// snapshot fetches what /out holds now. Files that are being written may be missing from it.
func (j *job) snapshot(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, snapshotWithin)
	defer cancel()
	status, err := j.ask(ctx, work.Ask{Action: work.ActSync})
	if err != nil || status.Outputs.IsZero() || status.Outputs == j.record().Outputs {
		return err
	}
	return j.fetch(ctx, status.Outputs, nil)
}

// snapshotWithin bounds one snapshot: a provider that trickles must not keep the final results waiting for its stream.
const snapshotWithin = 10 * time.Minute

func (j *job) blobs() blob.Client {
	return blob.Client{Network: j.a.Network, Protocol: j.a.protocol(work.ProtoBlob), Peer: j.offer.Device, Lease: wire.Hash(j.id)}
}

// fetch gets a manifest and its files into the job's store, and then drops what only an older one named.
func (j *job) fetch(ctx context.Context, id wire.Hash, progress blob.Progress) error {
	store, err := j.opened()
	if err != nil {
		return err
	}
	m, err := j.blobs().FetchTree(ctx, store, id, progress)
	if err != nil {
		return err
	}
	if n := m.Bytes(); n > j.a.conf.Results { // few chunks, named often
		return fmt.Errorf("results of %d bytes: %w of %d bytes", n, blob.ErrQuota, j.a.conf.Results)
	}
	if err := j.update(ctx, func(r *record) { r.Outputs = id }, nil); err != nil {
		return err
	}
	needed := map[wire.Hash]bool{id: true}
	for _, e := range m.Entries {
		for _, h := range e.Chunks {
			needed[h] = true
		}
	}
	for _, h := range store.List() {
		if needed[h] {
			continue
		}
		if err := store.Remove(h); err != nil {
			j.log.Debug("older results not dropped", "blob", h.Short(), "err", err)
		}
	}
	return nil
}

// bringHome gets results and the rest of the output, pays the last claim while the lane is open, and lets the provider wipe the lease. It
// goes on while the provider restarts and while this machine's disk is full, until ctx ends: a release, or keepWatch's patience.
func (j *job) bringHome(ctx context.Context) {
	j.mu.Lock()
	final := j.status.Outputs
	j.mu.Unlock()
	results := j.record().Results // an earlier process may have been here
	home := final.IsZero() || results == resultsComplete || results == resultsKept
	if !home {
		home = j.fetchFinal(ctx, final)
	}
	j.awaitLog(ctx)
	j.payRest(ctx)
	if !home {
		return // whoever frees some space may still get them: the provider keeps them for a while
	}
	if _, err := j.ask(ctx, work.Ask{Action: work.ActFetched}); err == nil {
		j.asksState(ctx) // the end says now that the lease was wiped
	}
}

// fetchFinal fetches the results and puts them into the output folder. It reports whether they are on this machine.
func (j *job) fetchFinal(ctx context.Context, final wire.Hash) bool {
	j.setResults(ctx, func(r *record) { r.Results = resultsFetching })
	progress := func(done, total int64) { j.tell(api.RunEvent{Step: api.StepFetch, Done: done, Total: total}) }
	again := func(err error) bool {
		if !localFault(err) {
			return transient(err)
		}
		j.log.Warn("results can't be written; trying again", "err", err)
		j.tell(api.RunEvent{Step: api.StepFetch, Detail: "can't write them, trying again: free some space: " + err.Error()})
		return true
	}
	if err := j.insist(ctx, again, func() error { return j.fetch(ctx, final, progress) }); err != nil {
		j.log.Warn("results not fetched", "err", err)
		return false
	}
	j.setResults(ctx, func(r *record) { r.Whole = true })
	j.land(ctx)
	return true
}

// awaitLog waits a moment for the last of the output.
func (j *job) awaitLog(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	err := j.wait(ctx, func() bool {
		j.mu.Lock()
		defer j.mu.Unlock()
		return j.logDone
	})
	if err != nil {
		j.log.Info("output may be incomplete")
	}
}

// payRest waits a moment for the last claim to be answered over the lane, and for its receipt. What this does not pay goes with the
// closing of the lane.
func (j *job) payRest(ctx context.Context) {
	rec := j.record()
	if rec.End == nil {
		return
	}
	end, err := market.OpenEnd(rec.End)
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 2*work.BeatInterval*time.Second)
	defer cancel()
	err = j.wait(ctx, func() bool {
		var lane books.Lane
		err := j.a.Books.View(ctx, func(r *books.Reader) (err error) { lane, err = r.Lane(j.lane()); return err })
		return err != nil || lane.Amount >= end.Charge && lane.Missing() == 0
	})
	if err != nil {
		j.log.Debug("the last claim is paid with the closing", "paid", j.record().Paid)
	}
}

func (j *job) setResults(ctx context.Context, change func(*record)) {
	if err := j.update(context.WithoutCancel(ctx), change, nil); err != nil {
		j.log.Error("state of results", "err", err)
	}
}

// land makes the output folder of what is here, or keeps it where it is if the folder can't be made.
func (j *job) land(ctx context.Context) {
	rec := j.record()
	if rec.Outputs.IsZero() || rec.Results == resultsComplete || rec.Results == resultsPartial || rec.Results == resultsKept {
		return
	}
	state := resultsPartial
	if rec.Whole {
		state = resultsComplete
	}
	store, err := j.opened()
	if err == nil {
		err = unpack(context.WithoutCancel(ctx), store, rec.Outputs, rec.Output)
	}
	if err != nil {
		state = resultsKept
		j.log.Warn("results not written to their folder: gpufair results --output puts them into another", "output", rec.Output, "err", err)
		j.tell(api.RunEvent{Step: api.StepFetch, Detail: err.Error()})
	}
	j.setResults(ctx, func(r *record) { r.Results = state })
}

// unpack makes the folder output of a manifest in a store.
func unpack(ctx context.Context, store *blob.Store, id wire.Hash, output string) error {
	m, err := blob.LoadManifest(ctx, store, id)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(output), 0o755); err != nil {
		return fmt.Errorf("output folder: %w", err)
	}
	parent, err := os.OpenRoot(filepath.Dir(output))
	if err != nil {
		return fmt.Errorf("output folder: %w", err)
	}
	defer parent.Close()
	return blob.Unpack(ctx, store, m, parent, filepath.Base(output), blob.UnpackOptions{Sync: true})
}

// Results says where a job's results lie, or puts them into another folder. Those that found their own folder taken lie in the agent's
// store until this is asked.
func (a *Agent) Results(ctx context.Context, id market.LeaseID, output string) (string, error) {
	a.landing.Lock()
	defer a.landing.Unlock()
	rec, ok, err := a.load(ctx, id)
	switch {
	case err != nil:
		return "", err
	case !ok:
		return "", ErrNoJob
	case !rec.Final:
		return "", refuse("job %s has not ended: its results are brought home then", id.Short())
	case rec.Results == resultsKept:
		return a.landKept(ctx, rec, output)
	case rec.Results != resultsComplete && rec.Results != resultsPartial:
		return "", refuse("job %s left no results", id.Short())
	case output == "" || output == rec.Output:
		return rec.Output, nil
	}
	if err := checkOutput(output); err != nil {
		return "", err
	}
	if err := os.Mkdir(output, 0o777); err != nil { // less the umask
		return "", noRoom(id, output, fmt.Errorf("copy results of job %s: %w", id.Short(), err))
	}
	if err := os.CopyFS(output, os.DirFS(rec.Output)); err != nil {
		// What was copied so far would bar the next try. The folder is ours: it was made just now.
		err = errors.Join(fmt.Errorf("copy results of job %s from %s: %w", id.Short(), filepath.Clean(rec.Output), err), os.RemoveAll(output))
		return "", noRoom(id, output, err)
	}
	return output, nil
}

// noRoom words for people that a disk is full.
func noRoom(id market.LeaseID, output string, err error) error {
	if !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT) {
		return err
	}
	return &refusal{
		why:  fmt.Errorf("no space is left in %s for the results of job %s, which are kept: %w", filepath.Dir(output), id.Short(), ErrDiskFull),
		next: "free some there, or name a folder on another disk: gpufair results " + id.Short() + " --output DIR",
	}
}

// landKept puts kept results into output, or into their own folder if that is free by now.
func (a *Agent) landKept(ctx context.Context, rec record, output string) (path string, err error) {
	if output == "" {
		output = rec.Output
	}
	if err := checkOutput(output); err != nil {
		return "", fmt.Errorf("%w: the results are kept: gpufair results --output puts them there", err)
	}
	store, err := blob.OpenStore(a.resultsDir(rec.ID), a.conf.Results)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	if err := unpack(ctx, store, rec.Outputs, output); err != nil {
		return "", noRoom(rec.ID, output, err)
	}
	rec.Output, rec.Results = output, resultsPartial
	if rec.Whole {
		rec.Results = resultsComplete
	}
	err = a.Books.Update(context.WithoutCancel(ctx), func(tx *books.Tx) error { return kv.Save(tx.Of(kv.Renter), jobKey(rec.ID), rec) })
	if err != nil {
		return "", err
	}
	return output, os.RemoveAll(a.resultsDir(rec.ID))
}
