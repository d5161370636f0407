package renter

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p/blob"
	"github.com/gpufair/gpufair/p2p/wire"
	"github.com/gpufair/gpufair/renter/control/api"
)

// syncEvery is how often the results so far are brought home while the job runs, so that a provider's death loses only the newest; a
// transfer that takes long makes the next one later.
const syncEvery = 15 * time.Second

// keepResults brings home what the job has written so far.
func (j *job) keepResults(ctx context.Context) {
	for wait := syncEvery; ; {
		select {
		case <-ctx.Done():
			return
		case <-j.stop:
			return
		case <-time.After(wait):
		}
		if j.record().State != work.Running {
			if j.record().State == work.Ended {
				return
			}
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
	status, err := j.ask(ctx, work.Ask{Action: work.ActSync})
	if err != nil || status.Outputs.IsZero() || status.Outputs == j.record().Outputs {
		return err
	}
	if _, err := j.blobs().FetchTree(ctx, j.a.store, status.Outputs, nil); err != nil {
		return err
	}
	return j.update(ctx, func(r *record) { r.Outputs = status.Outputs }, nil)
}

func (j *job) blobs() blob.Client {
	return blob.Client{Network: j.a.Network, Protocol: j.a.protocol(work.ProtoBlob), Peer: j.offer.Device, Lease: wire.Hash(j.id)}
}

// conclude brings results and money to their end, whether the provider ended the lease or this side releases it.
func (j *job) conclude(ctx context.Context) error {
	if j.ending() {
		if err := j.letGo(ctx); err != nil {
			return err
		}
	}
	rec := j.record()
	if rec.State == work.Ended && !j.ending() {
		j.fetchResults(ctx)
		j.payRest(ctx)
		if _, err := j.ask(ctx, work.Ask{Action: work.ActFetched}); err == nil {
			if status, err := j.ask(ctx, work.Ask{Action: work.ActStatus}); err == nil && len(status.End) > 0 {
				if err := j.onStatus(ctx, status); err != nil {
					j.log.Warn("provider's last word", "err", err)
				}
			}
		}
	} else {
		j.landPartial(ctx)
	}
	return j.close(ctx)
}

// letGo signs the release and tells the provider, if it is there; the signed record is kept and delivered when it comes back.
func (j *job) letGo(ctx context.Context) error {
	rec := j.record()
	j.mu.Lock()
	why := *j.giveUp
	j.mu.Unlock()
	if rec.Release == nil {
		dev := j.a.Device
		raw, err := dev.Seal(market.DomainRelease, market.Release{
			Header: dev.Header(market.Version), Delegation: dev.DelegationHash(), Lease: j.id, Beat: rec.Beat, Charge: rec.Charge, Reason: why.Clean(),
		})
		if err != nil {
			return err
		}
		err = j.update(ctx, func(r *record) {
			r.Release, r.State, r.Reason = raw, work.Ended, why
			if r.Ended == 0 {
				r.Ended = time.Now().UnixMilli()
			}
		}, nil)
		if err != nil {
			return err
		}
		rec = j.record()
	}
	if rec.Lease == nil {
		return nil // never sold, or withdrawn by the provider unless it hears of it
	}
	status, err := j.ask(ctx, work.Ask{Action: work.ActRelease, Signed: rec.Release})
	if err != nil {
		j.log.Info("provider not told of the release; it is when it comes back", "err", err)
		return nil
	}
	return j.onStatus(ctx, status)
}

// payRest waits a moment for the last claim to be answered over the lane.
func (j *job) payRest(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 3*work.BeatInterval*time.Second)
	defer cancel()
	err := j.wait(ctx, func() bool {
		rec := j.record()
		due, err := j.due(rec)
		return err != nil || rec.Paid >= due
	})
	if err != nil {
		j.log.Info("the last claim is not paid in full", "paid", j.record().Paid)
	}
}

// fetchResults gets the results and puts them into the output folder.
func (j *job) fetchResults(ctx context.Context) {
	j.mu.Lock()
	final := j.status.Outputs
	j.mu.Unlock()
	if final.IsZero() {
		j.setResults(ctx, resultsNone)
		return
	}
	j.setResults(ctx, resultsFetching)
	err := j.insist(ctx, func() error {
		_, err := j.blobs().FetchTree(ctx, j.a.store, final, func(done, total int64) {
			j.tell(api.RunEvent{Step: api.StepFetch, Done: done, Total: total})
		})
		return err
	})
	if err != nil {
		j.log.Warn("results not fetched", "err", err)
		j.landPartial(ctx)
		return
	}
	if err := j.land(ctx, final, j.record().Output); err != nil {
		j.log.Error("results not written", "err", err)
		j.tell(api.RunEvent{Step: api.StepFetch, Detail: err.Error()})
		return
	}
	j.setResults(ctx, resultsComplete)
}

// landPartial puts what arrived while the job ran into the output folder.
func (j *job) landPartial(ctx context.Context) {
	rec := j.record()
	if rec.Outputs.IsZero() || rec.Results == resultsComplete {
		return
	}
	if err := j.land(ctx, rec.Outputs, rec.Output); err != nil {
		j.log.Warn("partial results not written", "err", err)
		return
	}
	j.setResults(ctx, resultsPartial)
}

func (j *job) setResults(ctx context.Context, state string) {
	if err := j.update(ctx, func(r *record) { r.Results = state }, nil); err != nil {
		j.log.Error("state of results", "err", err)
	}
}

// land makes the output folder of fetched results.
func (j *job) land(ctx context.Context, id wire.Hash, output string) error {
	raw, err := readBlob(ctx, j.a.store, id)
	if err != nil {
		return err
	}
	m, err := blob.DecodeManifest(raw)
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
	return blob.Unpack(ctx, j.a.store, m, parent, filepath.Base(output), blob.UnpackOptions{Sync: true})
}

func readBlob(ctx context.Context, s blob.Source, h wire.Hash) ([]byte, error) {
	r, err := s.Blob(ctx, h)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	if r.Size() > blob.MaxManifest {
		return nil, fmt.Errorf("manifest %s: %w", h.Short(), wire.ErrTooLarge)
	}
	b := make([]byte, r.Size())
	if _, err := r.ReadAt(b, 0); err != nil {
		return nil, fmt.Errorf("manifest %s: %w", h.Short(), err)
	}
	return b, nil
}

// close ends the lane in the ledger and the job.
func (j *job) close(ctx context.Context) error {
	rec := j.record()
	final, err := j.finalCharge(rec)
	if err != nil {
		return err
	}
	err = j.update(ctx, func(r *record) {
		r.Final = true
		if r.Ended == 0 {
			r.Ended = time.Now().UnixMilli()
		}
		r.State = work.Ended
		if r.Results == "" || r.Results == resultsFetching {
			r.Results = resultsNone
		}
	}, func(tx *books.Tx) error {
		_, err := tx.CloseLane(j.lane(), final)
		if errors.Is(err, books.ErrNoLane) {
			return nil // the order never got as far
		}
		return err
	})
	if err != nil {
		return err
	}
	j.dropResults(ctx, rec)
	j.tell(api.RunEvent{Step: api.StepDone})
	return nil
}

// finalCharge is what the lease cost in the end: as the provider's end says, at most what this side signed for; without an end, what
// was signed and what the last acknowledged beat claimed.
func (j *job) finalCharge(rec record) (money.Micro, error) {
	if rec.Lease == nil {
		return 0, nil
	}
	due, err := j.due(rec)
	if err != nil {
		return 0, err
	}
	if rec.End == nil {
		return max(rec.Paid, min(rec.Charge, rec.Budget)), nil
	}
	return min(due, max(rec.Paid, min(rec.Charge, rec.Budget))), nil
}

// dropResults frees what was fetched, once it lies in the output folder.
func (j *job) dropResults(ctx context.Context, rec record) {
	if rec.Outputs.IsZero() || (j.record().Results != resultsComplete && j.record().Results != resultsPartial) {
		return
	}
	raw, err := readBlob(ctx, j.a.store, rec.Outputs)
	if err != nil {
		return
	}
	m, err := blob.DecodeManifest(raw)
	if err != nil {
		return
	}
	drop := []wire.Hash{rec.Outputs}
	for _, e := range m.Entries {
		drop = append(drop, e.Chunks...)
	}
	for _, h := range drop {
		if err := j.a.store.Remove(h); err != nil {
			j.log.Warn("fetched blob not dropped", "blob", h.Short(), "err", err)
		}
	}
}
