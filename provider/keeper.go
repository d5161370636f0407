package provider

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/meter"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p/wire"
)

// A keeper lives one lease: it is the only goroutine that changes the lease's record, meter and lane. Everybody else asks it with
// [keeper.do]. What takes long (unpacking an image, packing results) runs beside it and reports back the same way.
type keeper struct {
	a      *Agent
	id     market.LeaseID
	accept market.Accept
	lease  market.Lease
	log    *slog.Logger

	asks chan func() // to be run by the keeper's goroutine
	done chan struct{}
	over chan struct{} // closed when the job is gone and its log complete

	// Below: the keeper's goroutine only.
	rec      record
	meter    *meter.Meter
	lane     *lane // the renter's newest lane stream; nil: it is away
	beat     uint64
	claimed  map[uint64]money.Micro // charge of the newest beats, for a release
	busy     string                 // what runs beside: "starting", "ending"; empty: nothing
	progress string
	usage    Usage
	told     work.Status // that the renter was told last
	// of the last claim:
	cpuAt        time.Duration // CPU time
	claimedMs    uint64        // billable milliseconds
	evidenceHash wire.Hash
	lastTick     time.Time // of the persisted meter
	final        bool      // nothing more to do: the record is complete
}

// asked is how many requests may wait for a keeper; a renter's own streams are limited, so more means that something hangs.
const asked = 64

// claimsKept is how many beats' charges a release may refer to: a renter that acknowledged none of the last 100 (200 s) was away, and
// its lease is paused by then.
const claimsKept = 128

// do runs f in the keeper's goroutine and waits for it.
func (k *keeper) do(ctx context.Context, f func() error) error {
	ran := make(chan error, 1)
	select {
	case k.asks <- func() { ran <- f() }:
	case <-k.done:
		return errGone
	case <-ctx.Done():
		return fmt.Errorf("lease %s: %w", k.id.Short(), context.Cause(ctx))
	}
	select {
	case err := <-ran:
		return err
	case <-k.done:
		select {
		case err := <-ran: // it ran, and was the keeper's last act
			return err
		default:
			return errGone
		}
	}
}

// errGone says that a lease's keeper has finished: the store has the rest.
var errGone = errors.New("the lease is over")

// post is do for what runs beside the keeper, which must not be lost: it waits for the keeper alone.
func (k *keeper) post(f func()) {
	select {
	case k.asks <- f:
	case <-k.done:
	}
}

// run lives the lease until it is over and its results are gone, or until ctx ends: then the job runs on and is adopted at the next start.
func (k *keeper) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer close(k.done)
	defer cancel()
	beats := time.NewTicker(work.BeatInterval * time.Second)
	defer beats.Stop()
	k.adopt(ctx)
	for !k.final {
		select {
		case <-ctx.Done():
			k.sampleLast(context.WithoutCancel(ctx))
			return
		case f := <-k.asks:
			f()
		case <-beats.C:
			k.onBeat(ctx, time.Now())
		}
	}
}

// now is the meter's clock: milliseconds of a clock that never steps.
func (k *keeper) now() uint64 { return uint64(time.Since(k.a.epoch) / time.Millisecond) }

// update changes the record, together with what f writes, in one durable transaction. If it fails, the record is as before.
func (k *keeper) update(ctx context.Context, change func(*record), f func(*books.Tx) error) error {
	next := k.rec
	change(&next)
	err := k.a.books.Update(ctx, func(tx *books.Tx) error {
		if f != nil {
			if err := f(tx); err != nil {
				return err
			}
		}
		return kv.Save(tx.Of(kv.Provider), leaseKey(k.id), next)
	})
	if err != nil {
		return fmt.Errorf("lease %s: %w", k.id.Short(), err)
	}
	moved := next.State != k.rec.State || next.Reason != k.rec.Reason
	k.rec = next
	if moved {
		k.log.Info("lease", "state", k.rec.State, "reason", k.rec.Reason.Code, "charge", k.rec.Charge)
		k.a.changed()
	}
	return nil
}

// move goes to another state; an illegal transition is a mistake of ours or a request out of order.
func (k *keeper) move(ctx context.Context, to work.State, why reason.Reason, change func(*record)) error {
	if !k.rec.State.Can(to) {
		return reason.Errorf(reason.NotPreparing, "the lease is %s", k.rec.State)
	}
	return k.update(ctx, func(r *record) {
		r.State, r.Reason = to, why
		if change != nil {
			change(r)
		}
	}, nil)
}

// onBeat is the keeper's pulse: it meters, watches the lease's limits and tells the renter.
func (k *keeper) onBeat(ctx context.Context, now time.Time) {
	if k.rec.State != work.Ended {
		if err := k.meter.Sample(k.now()); err != nil {
			k.log.Error("meter", "err", err)
		}
	}
	if now.Sub(k.lastTick) >= work.TickInterval*time.Second && k.rec.State == work.Running {
		k.tick(ctx, now)
	}
	k.watch(ctx, now)
	claim := k.rec.State == work.Running && k.beat%(work.TickInterval/work.BeatInterval) == 0
	k.send(claim || k.unpaid() > 0 && k.rec.State != work.Running)
}

// tick persists the meter, so that a crash bills up to here, and measures what the job uses.
func (k *keeper) tick(ctx context.Context, now time.Time) {
	k.lastTick = now
	if u, err := k.a.runtime.Usage(ctx, k.id.String()); err == nil {
		k.usage = u
	}
	if err := k.persistMeter(ctx); err != nil {
		k.log.Error("meter", "err", err)
		return
	}
	if disk, err := k.a.mounts.Usage(ctx, k.id.String()); err == nil && disk.Bytes > k.a.diskBytes(k.rec) {
		k.stop(ctx, reason.New(reason.ResourcesExceeded, "%d MiB on disk, %d allowed", disk.Bytes>>20, k.a.diskBytes(k.rec)>>20), k.stopWait())
	}
}

func (k *keeper) persistMeter(ctx context.Context) error {
	charge, err := k.meter.Charge()
	if err != nil {
		return err
	}
	saved, err := k.meter.Encode()
	if err != nil {
		return err
	}
	return k.update(ctx, func(r *record) {
		r.Meter, r.Charge, r.Billable, r.Beat = saved, charge, k.meter.Billable(), k.beat+beatsAhead
	}, k.meteredTx(charge))
}

// beatsAhead are the serial numbers that a tick reserves, so that no beat's number is used twice after a crash.
const beatsAhead = 2 * work.TickInterval / work.BeatInterval

// sampleLast persists the meter when the daemon stops: the job runs on, unbilled until it is adopted.
func (k *keeper) sampleLast(ctx context.Context) {
	if k.rec.State != work.Running {
		return
	}
	if err := k.meter.Sample(k.now()); err == nil {
		if err := k.persistMeter(ctx); err != nil {
			k.log.Error("meter at stop", "err", err)
		}
	}
}

// unpaid is what was metered and not vouchered.
func (k *keeper) unpaid() money.Micro {
	charge, err := k.meter.Charge()
	if err != nil || k.rec.State == work.Ended {
		charge = k.rec.Charge
	}
	return charge - min(charge, k.rec.Vouchered)
}

// watch ends or pauses the lease when one of its windows is over (spec: jobs, Life of a lease: every state has a timer and an exit).
func (k *keeper) watch(ctx context.Context, now time.Time) {
	since := func(ms int64) time.Duration { return now.Sub(time.UnixMilli(ms)) }
	switch k.rec.State {
	case work.Agreed:
		if since(k.rec.Agreed) > work.ReadyIn*time.Second {
			k.finish(ctx, reason.New(reason.NotReady, "no answer to the lease for %d s", work.ReadyIn))
		}
	case work.Preparing:
		if since(k.rec.Ready) > work.PrepareIn*time.Second {
			k.finish(ctx, reason.New(reason.PrepareTimeout, "image and inputs took over %d s", work.PrepareIn))
		}
	case work.Running:
		k.watchRunning(ctx)
	case work.Paused:
		if since(k.rec.Paused) > work.EndPaused*time.Second {
			k.finish(ctx, reason.New(reason.RenterGone, "no voucher for %d s after the pause", work.EndPaused))
		}
	case work.Ended:
		if k.rec.Fetched || k.rec.Folders.Out == "" || since(k.rec.Ended) > work.KeepResults*time.Second {
			k.wipe(ctx)
		}
	}
}

func (k *keeper) watchRunning(ctx context.Context) {
	rent30, err := k.rentFor(work.PauseUnpaid * 1000)
	if err != nil {
		k.log.Error("rent", "err", err)
		return
	}
	switch room, why, err := k.room(ctx); {
	case k.meter.Billable() >= uint64(k.rec.Term)*1000:
		k.stop(ctx, reason.New(reason.TermOver, "%d s agreed", k.rec.Term), k.stopWait())
	case err != nil:
		k.log.Error("credit", "err", err)
	case room == 0:
		k.stop(ctx, why, k.stopWait())
	case k.unpaid() > max(rent30, 1): // a rent of nothing in 30 s is not late
		k.pause(ctx, reason.New(reason.RenterGone, "%d s of rent without a voucher", work.PauseUnpaid))
	}
}

// pause freezes the job: it is not billed, keeps its memory, and ends by itself.
func (k *keeper) pause(ctx context.Context, why reason.Reason) {
	if err := k.a.runtime.Freeze(ctx, k.id.String()); err != nil {
		k.log.Error("freeze job", "err", err)
		return
	}
	if err := k.meter.Pause(k.now()); err != nil {
		k.log.Error("meter", "err", err)
	}
	if err := k.move(ctx, work.Paused, why, func(r *record) { r.Paused = time.Now().UnixMilli() }); err != nil {
		k.log.Error("pause", "err", err)
	}
	if err := k.persistMeter(ctx); err != nil {
		k.log.Error("meter", "err", err)
	}
	k.send(true)
}

// resume lets a paused job go on once its renter pays again.
func (k *keeper) resume(ctx context.Context) {
	if k.rec.State != work.Paused || k.unpaid() > 0 {
		return
	}
	if err := k.a.runtime.Thaw(ctx, k.id.String()); err != nil {
		k.log.Error("thaw job", "err", err)
		return
	}
	if err := k.move(ctx, work.Running, reason.Reason{}, nil); err != nil {
		k.log.Error("resume", "err", err)
		return
	}
	if err := k.meter.Resume(k.now()); err != nil {
		k.log.Error("meter", "err", err)
	}
	k.send(false)
}

// stop asks the job to end, and kills it when it takes longer than wait.
func (k *keeper) stop(ctx context.Context, why reason.Reason, wait time.Duration) {
	switch k.rec.State {
	case work.Agreed, work.Preparing:
		k.finish(ctx, why)
		return
	case work.Stopping, work.Ended:
		return
	case work.Paused: // a frozen job hears no signal
		if err := k.a.runtime.Thaw(ctx, k.id.String()); err != nil {
			k.log.Error("thaw job", "err", err)
		}
	}
	if err := k.move(ctx, work.Stopping, why, func(r *record) { r.Stopping = time.Now().UnixMilli() }); err != nil {
		k.log.Error("stop", "err", err)
		return
	}
	k.signal(ctx, "SIGTERM", false)
	k.killAfter(ctx, wait)
	k.send(false)
}

// killAfter ends a stopping job for good.
func (k *keeper) killAfter(ctx context.Context, wait time.Duration) {
	time.AfterFunc(wait, func() {
		k.post(func() {
			if k.rec.State == work.Stopping {
				k.signal(ctx, "SIGKILL", true)
			}
		})
	})
}

// signal sends a signal to the job; a job that is gone already is fine.
func (k *keeper) signal(ctx context.Context, name string, all bool) {
	err := k.a.runtime.Signal(ctx, SignalRequest{ID: k.id.String(), Signal: name, All: all})
	if err != nil && !errors.Is(err, ErrNotFound) {
		k.log.Error("signal job", "signal", name, "err", err)
	}
}

const (
	defaultStopWait = 10 * time.Second
	// ownerWait is what a job gets to end in when the owner takes the device back: it must be free within 2 s (spec: jobs).
	ownerWait = time.Second
)

// stopWait is how long the renter lets its job take to end.
func (k *keeper) stopWait() time.Duration {
	if k.rec.Spec != nil && k.rec.Spec.StopWait > 0 {
		return time.Duration(k.rec.Spec.StopWait) * time.Second
	}
	return defaultStopWait
}
