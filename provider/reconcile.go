package provider

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/meter"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/market/work"
)

// maxGap is the longest stretch between two samples that the meter bills: 2.5 ticks (spec: ledger).
const maxGap = 2500 * work.TickInterval

// newKeeper makes the keeper of a stored lease; run starts it.
func (a *Agent) newKeeper(rec record) (*keeper, error) {
	accept, err := rec.order()
	if err != nil {
		return nil, err
	}
	lease, err := market.OpenLease(rec.Lease)
	if err != nil {
		return nil, err
	}
	m := meter.New(maxGap)
	if rec.Meter != nil {
		if m, err = meter.Decode(rec.Meter); err != nil {
			return nil, err
		}
	}
	id := accept.ID()
	k := &keeper{
		a: a, id: id, accept: accept, lease: lease, log: a.log.With("lease", id.Short()), asks: make(chan func(), asked),
		stage: a.stageOf(rec, id.String()), results: &packing{}, done: make(chan struct{}), over: make(chan struct{}), rec: rec, meter: m,
		beat: rec.Beat, claimed: map[uint64]money.Micro{}, said: map[string]bool{},
	}
	// Across a restart there is only the wall clock; a step forward ends a window early, one back begins it anew.
	k.entered = time.Now().Add(-max(time.Since(time.UnixMilli(rec.since())), 0))
	k.show()
	return k, nil
}

// keep starts a keeper.
func (a *Agent) keep(k *keeper) {
	a.mu.Lock()
	a.keepers[k.id] = k
	if k.rec.Spec != nil && !k.rec.Tidy {
		a.wanted[k.id] = digest(k.rec.Spec.Image)
	}
	a.mu.Unlock()
	a.keeping.Go(func() {
		k.run(a.ctx)
		a.mu.Lock()
		delete(a.keepers, k.id)
		a.mu.Unlock()
		a.changed()
	})
}

// reconcile finds every lease again after a restart or a crash: each goes on, or ends in exactly one way. One that can't be read is
// said and left; what it ran is swept.
func (a *Agent) reconcile(ctx context.Context) error {
	var open []record
	err := a.books.View(ctx, func(r *books.Reader) error {
		return eachLease(r.Of(kv.Provider), nil, func(_ market.LeaseID, rec record) error {
			if rec.State != work.Ended || !rec.Tidy || !rec.Wiped {
				open = append(open, rec)
			}
			return nil
		})
	})
	if err != nil {
		return fmt.Errorf("stored leases: %w", err)
	}
	for _, rec := range open {
		k, err := a.newKeeper(rec)
		if err != nil {
			a.log.Error("stored lease can't be read; its devices stay held", "renter", rec.Renter, "err", err)
			continue
		}
		a.keep(k)
	}
	return a.setLimits(a.config())
}

const (
	sweepEvery = time.Hour
	sweepAgain = 5 * time.Second // after one that the runtime did not answer
)

// sweepAll sweeps at the start, as soon as the runtime answers, and every hour.
func (a *Agent) sweepAll(ctx context.Context) error {
	for {
		wait := sweepEvery
		if err := a.sweep(ctx); err != nil && ctx.Err() == nil {
			a.log.Warn("not swept; trying again", "err", err)
			wait = sweepAgain
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

// sweep removes containers, folders and pushed blobs that no live lease owns, and old images, and says what it removed. Who is live is
// asked after each list was made: a keeper is there before anything of its lease is, and until nothing is. With a read-only ledger it
// removes nothing.
func (a *Agent) sweep(ctx context.Context) error {
	if err := a.books.ReadOnly(); err != nil {
		// Behind or damaged, the ledger may not show leases that live: what looks like nobody's may be a job that runs, or its results.
		a.log.Warn("nothing is swept until the ledger is recovered", "err", err)
		return nil
	}
	ids, err := a.mounts.List(ctx)
	if err != nil {
		return err
	}
	for _, id := range ids {
		if !a.live(id) {
			gone, err := a.mounts.Remove(ctx, id)
			a.log.Warn("removed folders that no lease owns", "lease", id, "gone", gone, "err", err)
		}
	}
	pushed, err := os.ReadDir(a.inbox)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("list inbox: %w", err)
	}
	for _, e := range pushed {
		if !a.live(e.Name()) {
			if err := os.RemoveAll(filepath.Join(a.inbox, e.Name())); err != nil {
				return fmt.Errorf("sweep inbox: %w", err)
			}
		}
	}
	within, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	containers, err := a.runtime.List(within)
	if err != nil {
		return err
	}
	for _, c := range containers {
		if !a.live(c.ID) {
			err := a.runtime.Delete(within, c.ID)
			a.log.Warn("removed a container that no lease owns", "container", c.ID, "err", err)
		}
	}
	return errors.Join(a.sweepNetworks(within), a.sweepImages(within, time.Now()))
}

// sweepNetworks removes networks that no live lease owns.
func (a *Agent) sweepNetworks(ctx context.Context) error {
	ids, err := a.network.List(ctx)
	if err != nil {
		return err
	}
	for _, id := range ids {
		if !a.live(id) {
			err := a.network.Unwire(ctx, id)
			a.log.Warn("removed a network that no lease owns", "lease", id, "err", err)
		}
	}
	return nil
}

// live reports whether a lease of that id has a keeper.
func (a *Agent) live(id string) bool {
	var lease market.LeaseID
	if lease.UnmarshalText([]byte(id)) != nil {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.keepers[lease] != nil
}

// adopt takes a lease over at the start of its keeper, after a restart of the daemon. What was metered and not persisted is not billed,
// and nothing is until the runtime has said that the job runs.
func (k *keeper) adopt(ctx context.Context) {
	err := k.a.books.View(ctx, func(r *books.Reader) error {
		lane, err := r.Lane(ledger.Lane(k.id))
		k.rec.Vouchered, k.allowed = lane.Amount, allowanceOf(lane)
		return errors.Join(err, k.recall(r))
	})
	if err != nil {
		k.log.Error("lane", "err", err)
	}
	k.ev.mark = k.rec.State == work.Ended && k.ev.last.State != work.Ended
	k.alive = k.now()
	switch k.rec.State {
	case work.Running, work.Paused, work.Stopping:
		k.ev.gap = reason.ProviderRestarted
		k.killAt = k.entered.Add(time.Duration(k.rec.Wait) * time.Millisecond)
		k.adoptContainer(ctx)
	case work.Preparing: // whatever was being started is started anew
		if k.rec.Spec != nil {
			k.clearStart(ctx)
		}
	case work.Ended:
		if k.rec.Tidy {
			close(k.over)
		} else {
			k.cleanUp(ctx)
		}
	}
}

// clearStart removes a half-made container, as soon as the runtime answers.
func (k *keeper) clearStart(ctx context.Context) {
	k.busy = "adopting"
	k.beside(func() {
		err := persist(ctx, func(ctx context.Context) error {
			_, err := k.a.clear(ctx, k.id) // the next start counts on
			return err
		})
		k.post(func() {
			k.busy = ""
			if err != nil {
				k.log.Warn("half-made container not removed", "err", err)
			}
			k.cleanUp(ctx) // if it ended meanwhile
		})
	})
}

// persist calls f until the runtime answers or ctx ends.
func persist(ctx context.Context, f func(context.Context) error) error {
	for {
		within, cancel := context.WithTimeout(ctx, choreIn)
		err := f(within)
		late := within.Err() != nil
		cancel()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if !late && !errors.Is(err, ErrUnavailable) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Second):
		}
	}
}

func (k *keeper) adoptContainer(ctx context.Context) {
	k.busy = "adopting"
	k.beside(func() {
		var c Container
		err := persist(ctx, func(ctx context.Context) (err error) { c, err = k.a.runtime.Status(ctx, k.id.String()); return err })
		over := ""
		if err == nil && (c.State == ContainerStopped || c.State == ContainerLost) {
			over = k.overDisk(ctx)
		}
		k.post(func() { k.adopted(ctx, c, err, over) })
	})
}

// adopted is the keeper's turn when the runtime has said how an adopted job stands.
func (k *keeper) adopted(ctx context.Context, c Container, err error, over string) {
	k.busy = ""
	switch {
	case ctx.Err() != nil:
		return
	case k.rec.State == work.Ended:
		k.cleanUp(ctx)
		return
	case k.ending != nil:
		return
	case errors.Is(err, ErrNotFound):
		k.finish(ctx, reason.New(reason.RuntimeLost, "the container vanished while the provider was restarting"))
		return
	case err == nil && (c.State == ContainerStopped || c.State == ContainerLost):
		k.exited(ctx, c, nil, over)
		return
	case err != nil:
		k.log.Warn("status of adopted job", "err", err)
	}
	k.watchContainer(ctx)
	k.lastTick, k.frozen = time.Now(), c.State == ContainerFrozen
	switch k.rec.State {
	case work.Running:
		if k.frozen {
			id := k.id.String()
			k.chore(ctx, chore{what: "thaw", run: func(ctx context.Context) error { return k.a.runtime.Thaw(ctx, id) }})
			k.frozen = false
		}
		k.bill()
	case work.Stopping:
		k.bill()
		k.terminate(ctx)
	case work.Paused:
		k.steer(ctx)
	}
	k.log.Info("lease adopted", "state", k.rec.State, "billable_ms", k.meter.Billable())
}

// bill goes on metering from now on.
func (k *keeper) bill() {
	k.alive = k.now()
	if err := k.meter.Resume(k.alive); err != nil {
		k.log.Error("meter", "err", err)
	}
}

// eachLease gives the stored leases whose ids start with prefix, by id.
func eachLease(tx kv.Reader, prefix []byte, f func(market.LeaseID, record) error) error {
	for pair, err := range tx.Iterate(append([]byte(keyLease), prefix...), nil) {
		if err != nil {
			return err
		}
		rec, _, err := kv.Load[record](tx, pair.Key)
		if err != nil {
			return err
		}
		if err := f(market.LeaseID(pair.Key[len(keyLease):]), rec); err != nil {
			return err
		}
	}
	return nil
}
