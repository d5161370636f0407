package provider

import (
	"context"
	"errors"
	"fmt"
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
	accept, err := market.OpenAccept(rec.Accept)
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
	return &keeper{
		a: a, id: accept.ID(), accept: accept, lease: lease, log: a.log.With("lease", accept.ID().Short()), asks: make(chan func(), asked),
		done: make(chan struct{}), over: make(chan struct{}), rec: rec, meter: m, beat: rec.Beat, claimed: map[uint64]money.Micro{},
		claimedMs: rec.Billable,
	}, nil
}

// keep starts a keeper.
func (a *Agent) keep(k *keeper) {
	a.mu.Lock()
	a.keepers[k.id] = k
	a.mu.Unlock()
	a.keeping.Go(func() {
		k.run(a.ctx)
		a.mu.Lock()
		delete(a.keepers, k.id)
		a.mu.Unlock()
		a.changed()
	})
}

// reconcile finds every lease and every container again after a restart or a crash: each lease goes on, or ends in exactly one way, and
// what no live lease owns is removed.
func (a *Agent) reconcile(ctx context.Context) error {
	var records []record
	err := a.books.View(ctx, func(r *books.Reader) (err error) {
		records, err = kv.All[record](r.Of(kv.Provider), keyLease)
		return err
	})
	if err != nil {
		return fmt.Errorf("stored leases: %w", err)
	}
	live := map[string]bool{}
	for _, rec := range records {
		if rec.State == work.Ended && rec.Tidy && rec.Wiped {
			continue
		}
		k, err := a.newKeeper(rec)
		if err != nil {
			return fmt.Errorf("stored lease: %w", err)
		}
		live[k.id.String()] = true
		a.keep(k)
	}
	a.sweep(ctx, live)
	return nil
}

// sweep removes containers and folders that no live lease owns, and says what it removed.
func (a *Agent) sweep(ctx context.Context, live map[string]bool) {
	containers, err := a.runtime.List(ctx)
	if err != nil {
		a.log.Warn("containers not swept: the runtime does not answer", "err", err)
	}
	for _, c := range containers {
		if live[c.ID] {
			continue
		}
		err := a.runtime.Delete(ctx, c.ID)
		a.log.Warn("removed a container that no lease owns", "container", c.ID, "err", err)
	}
	ids, err := a.mounts.List(ctx)
	if err != nil {
		a.log.Warn("folders not swept", "err", err)
	}
	for _, id := range ids {
		if live[id] {
			continue
		}
		gone, err := a.mounts.Remove(ctx, id)
		a.log.Warn("removed folders that no lease owns", "lease", id, "gone", gone, "err", err)
	}
}

// adopt takes a lease over at the start of its keeper, after a restart of the daemon. What was metered and not persisted is not billed.
func (k *keeper) adopt(ctx context.Context) {
	err := k.a.books.View(ctx, func(r *books.Reader) error {
		lane, err := r.Lane(ledger.Lane(k.id))
		k.rec.Vouchered = lane.Amount
		return err
	})
	if err != nil {
		k.log.Error("lane", "err", err)
	}
	switch k.rec.State {
	case work.Running, work.Paused, work.Stopping:
		k.adoptContainer(ctx)
	case work.Preparing: // whatever was being started is started anew
		err := k.a.runtime.Delete(ctx, k.id.String())
		if err != nil && !errors.Is(err, ErrNotFound) {
			k.log.Warn("half-made container not removed", "err", err)
		}
	case work.Ended:
		if k.rec.Tidy {
			close(k.over)
		} else {
			k.cleanUp(ctx)
		}
	}
}

func (k *keeper) adoptContainer(ctx context.Context) {
	c, err := k.a.runtime.Status(ctx, k.id.String())
	switch {
	case errors.Is(err, ErrNotFound):
		k.finish(ctx, reason.New(reason.RuntimeLost, "the container vanished while the provider was restarting"))
		return
	case err == nil && (c.State == ContainerStopped || c.State == ContainerLost):
		k.exited(ctx, c, nil)
		return
	case err != nil:
		k.log.Warn("runtime does not answer; waiting for it", "err", err)
	}
	k.watchContainer(ctx)
	k.lastTick = time.Now()
	switch k.rec.State {
	case work.Running:
		if err := k.meter.Resume(k.now()); err != nil {
			k.log.Error("meter", "err", err)
		}
	case work.Stopping:
		k.signal(ctx, "SIGTERM", false)
		k.killAfter(ctx, k.stopWait())
	}
	k.log.Info("lease adopted", "state", k.rec.State, "billable_ms", k.meter.Billable())
}
