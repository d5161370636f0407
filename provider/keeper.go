package provider

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/meter"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/market/work"
)

// A keeper lives one lease: it is the only goroutine that changes the lease's record, meter and lane. Everybody else asks it with
// [keeper.do]. It calls neither the runtime nor the folders itself: whatever may take long or hang runs beside it and reports back, so
// that it always answers and its windows always end. Windows are judged by this process's monotonic clock.
type keeper struct {
	a       *Agent
	id      market.LeaseID
	accept  market.Accept
	lease   market.Lease
	log     *slog.Logger
	stage   *stage   // what its renter pushed
	results *packing // what it fetches

	asks chan func() // to be run by the keeper's goroutine
	done chan struct{}
	over chan struct{} // closed when the job is gone and its log complete

	onDisk atomic.Int64 // bytes that the lease's disk held when it was last counted

	mu   sync.Mutex
	seen snapshot // guarded by mu; how the lease stands, for whoever must not wait

	// Below: the keeper's goroutine only.
	rec      record
	entered  time.Time // the record's state; monotonic
	meter    *meter.Meter
	alive    uint64 // on the meter's clock: when the job was last known to run
	lane     *lane  // the renter's newest lane stream; nil: it is away
	beat     uint64
	claimed  map[uint64]money.Micro // charge of the newest beats, for a release
	claims   int                    // sent and not answered with a voucher yet
	busy     string                 // what runs beside: "adopting", "starting", "ending", "wiping"; empty: nothing
	halt     context.CancelFunc     // ends a start that is under way; nil: none is
	progress string
	pulling  bool    // the image is on its way from its registry
	chores   []chore // calls of the runtime, one after the other; the first is under way
	counting bool    // what the job uses is being read
	countAt  time.Time
	usage    Usage
	told     work.Status // that the renter was told last
	ev       evidenced
	allowed  allowance
	away     bool            // metering goes on under it
	lastTick time.Time       // of the persisted meter
	unstored int             // ticks in a row that the ledger did not take
	killAt   time.Time       // of a stopping job
	killNext time.Time       // not again before
	paid     bool            // a paused job's renter pays again: it is to go on
	frozen   bool            // the job is known to be frozen
	ending   *reason.Reason  // why the lease ends; set before that is stored
	credited bool            // with ending: the reclaim credit was taken off the meter
	killed   bool            // the container is gone although the end is not stored
	tidyAt   time.Time       // no clean up before
	evict    bool            // the results are no longer kept
	said     map[string]bool // troubles that were logged since the ledger took a change last
	final    bool            // nothing more to do: the record is complete
}

// snapshot is how a lease stood at its last change or beat.
type snapshot struct {
	rec      record
	usage    Usage
	charge   money.Micro
	billable uint64
}

const (
	// asked is how many requests may wait for a keeper; a renter's own streams are limited, so more means that something hangs.
	asked = 64
	// claimsKept is how many beats' charges a release may refer to: a renter that acknowledged none of the last 128 (256 s) was away, and
	// its lease is paused by then.
	claimsKept = 128
	// choresMax is how many calls of the runtime may wait for one that hangs. Only a renter's signals could make more.
	choresMax = 8
	// choreIn bounds one such call: containerd answers in milliseconds or is not there.
	choreIn = 10 * time.Second
	// beatsAhead is how many serial numbers of beats are reserved at once, so that none is used twice after a crash: half an hour of them.
	beatsAhead = 1000
)

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

// beside runs f beside the keeper, which goes on; the agent waits for it when it stops.
func (k *keeper) beside(f func()) { k.a.keeping.Go(f) }

// chore is one call of the runtime about the job.
type chore struct {
	what string
	run  func(context.Context) error
	then func(error)
}

// chore queues a call of the runtime; then is the keeper's turn after it and may be nil. One that waits already is not queued twice.
// It reports whether it was taken.
func (k *keeper) chore(ctx context.Context, c chore) bool {
	for _, q := range k.chores {
		if q.what == c.what {
			return true
		}
	}
	if len(k.chores) == choresMax {
		return false
	}
	k.chores = append(k.chores, c)
	if len(k.chores) == 1 {
		k.nextChore(ctx)
	}
	return true
}

func (k *keeper) nextChore(ctx context.Context) {
	c := k.chores[0]
	k.beside(func() {
		within, cancel := context.WithTimeout(ctx, choreIn)
		defer cancel()
		err := c.run(within)
		k.post(func() {
			if err != nil && !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrState) { // the job's end is told by its watcher
				k.log.Warn("runtime", "call", c.what, "err", err)
			}
			k.chores = k.chores[1:]
			if c.then != nil {
				c.then(err)
			}
			if len(k.chores) > 0 {
				k.nextChore(ctx)
			}
		})
	})
}

// run lives the lease until it is over and its results are gone, or until ctx ends: then the job runs on and is adopted at the next start.
func (k *keeper) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer close(k.done)
	defer cancel()
	beats := time.NewTicker(work.BeatInterval * time.Second)
	defer beats.Stop()
	kill := time.NewTimer(0)
	defer kill.Stop()
	k.adopt(ctx)
	for !k.final {
		if k.rec.State == work.Stopping {
			kill.Reset(max(time.Until(k.killAt), time.Until(k.killNext)))
		} else {
			kill.Stop()
		}
		select {
		case <-ctx.Done():
			k.sampleLast(context.WithoutCancel(ctx))
			return
		case f := <-k.asks:
			f()
		case <-beats.C:
			k.onBeat(ctx, time.Now())
		case <-kill.C:
			k.killDue(ctx, time.Now())
		}
		k.show()
	}
}

// show takes the snapshot.
func (k *keeper) show() {
	s := snapshot{rec: k.rec, usage: k.usage, charge: k.rec.Charge, billable: k.rec.Billable}
	if k.rec.State != work.Ended {
		s.billable = k.meter.Billable()
		if c, err := k.metered(); err == nil {
			s.charge = c
		}
	}
	k.mu.Lock()
	k.seen = s
	k.mu.Unlock()
}

// look gives the snapshot.
func (k *keeper) look() snapshot {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.seen
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
		return errors.Join(k.keepIntervals(tx), kv.Save(tx.Of(kv.Provider), leaseKey(k.id), next))
	})
	if err != nil {
		return fmt.Errorf("lease %s: %w", k.id.Short(), err)
	}
	k.intervalsKept()
	moved := next.State != k.rec.State || next.Reason != k.rec.Reason
	if next.State != k.rec.State {
		k.entered = time.Now()
	}
	k.rec = next
	clear(k.said)
	k.show()
	if moved {
		k.log.Info("lease", "state", k.rec.State, "reason", k.rec.Reason.Code, "charge", k.rec.Charge)
		k.a.changed()
	}
	return nil
}

// trouble logs what fails at each beat while the ledger takes nothing: once.
func (k *keeper) trouble(what string, err error) {
	if k.said[what] {
		return
	}
	k.said[what] = true
	k.log.Error(what+"; trying on", "err", err)
}

// move goes to another state; an illegal transition is a mistake of ours or a request out of order. What was metered is stored with it.
func (k *keeper) move(ctx context.Context, to work.State, why reason.Reason, change func(*record)) error {
	if !k.rec.State.Can(to) || k.ending != nil {
		return reason.Errorf(reason.NotPreparing, "the lease is %s", k.rec.State)
	}
	return k.updateMetered(ctx, func(r *record) {
		r.State, r.Reason = to, why
		if change != nil {
			change(r)
		}
	})
}

// updateMetered is update that stores the meter, too, and tells the books what it says.
func (k *keeper) updateMetered(ctx context.Context, change func(*record)) error {
	charge, err := k.metered()
	if err != nil {
		return err
	}
	saved, err := k.meter.Encode()
	if err != nil {
		return err
	}
	return k.update(ctx, func(r *record) {
		r.Meter, r.Charge, r.Billable = saved, charge, k.meter.Billable()
		change(r)
	}, k.meteredTx(charge))
}

// onBeat is the keeper's pulse: it meters, watches the lease's limits and tells the renter.
func (k *keeper) onBeat(ctx context.Context, now time.Time) {
	if k.ending != nil && k.rec.State != work.Ended { // the ledger did not take the end yet
		k.finish(ctx, *k.ending)
		return
	}
	k.sample()
	if k.rec.State == work.Running || k.rec.State == work.Stopping {
		k.count(ctx, now)
		if now.Sub(k.lastTick) >= work.TickInterval*time.Second {
			k.tick(ctx, now)
		}
	}
	k.lapse(ctx, now)
	k.watch(ctx, now)
	if k.final || k.ending != nil && k.rec.State != work.Ended {
		return
	}
	claim := k.rec.State == work.Running && k.beat%(work.TickInterval/work.BeatInterval) == 0
	k.send(ctx, claim || k.unpaid() > 0 && k.rec.State != work.Running)
}

// sample meters up to now, at most up to the term: no bill is above rate x term.
func (k *keeper) sample() {
	if k.rec.State == work.Ended || k.ending != nil {
		return
	}
	if err := k.meter.Sample(k.now()); err != nil {
		k.log.Error("meter", "err", err)
	}
	k.capMeter()
}

func (k *keeper) capMeter() {
	if most, is := uint64(k.rec.Term)*1000, k.meter.Billable(); is > most {
		k.meter.Credit(is - most)
	}
}

// tick persists the meter, so that a crash bills up to here. A job that can't be recorded is ended.
func (k *keeper) tick(ctx context.Context, now time.Time) {
	k.lastTick = now
	err := k.updateMetered(ctx, func(*record) {})
	if err == nil {
		k.unstored = 0
		return
	}
	k.log.Error("meter", "err", err)
	if k.unstored++; k.unstored >= maxUnstored || k.a.books.ReadOnly() != nil {
		k.finish(ctx, reason.New(reason.LedgerReadOnly, "the provider's ledger can't record the lease"))
	}
}

// maxUnstored ticks may fail before the job is ended: as long as vouchers may be late.
const maxUnstored = work.PauseUnpaid / work.TickInterval

// sampleLast persists the meter when the daemon stops: the job runs on, unbilled until it is adopted.
func (k *keeper) sampleLast(ctx context.Context) {
	if k.rec.State != work.Running && k.rec.State != work.Stopping || k.ending != nil {
		return
	}
	k.sample()
	if err := k.updateMetered(ctx, func(*record) {}); err != nil {
		k.log.Error("meter at stop", "err", err)
	}
}

// count reads beside the keeper what the job uses, and ends one that is over its disk. It takes at most a twentieth of the time: a job
// with millions of files must not keep the owner's machine counting.
func (k *keeper) count(ctx context.Context, now time.Time) {
	if k.counting || now.Before(k.countAt) {
		return
	}
	k.counting = true
	k.beside(func() {
		began, at := time.Now(), k.now()
		usage, err := k.a.runtime.Usage(ctx, k.id.String())
		reading := k.read(ctx)
		over := k.overDisk(ctx)
		took := time.Since(began)
		k.post(func() {
			k.counting, k.countAt = false, time.Now().Add(20*took)
			if err == nil {
				k.usage, k.ev.reading = usage, reading
				if usage.Pids > 0 {
					k.alive = max(k.alive, at)
				}
			}
			if over != "" { // it goes on writing until it is gone, so it gets no longer than an owner's pause gives
				k.stop(ctx, reason.New(reason.ResourcesExceeded, "%s", over), min(k.stopWait(), ownerWait))
			}
		})
	})
}

// overDisk counts what the job has on disk and says by what it is over its limit, or nothing. It is not for the keeper's goroutine.
func (k *keeper) overDisk(ctx context.Context) string {
	disk, err := k.a.mounts.Usage(ctx, k.id.String())
	rec := k.look().rec
	limit := rec.diskBytes()
	if err == nil {
		k.onDisk.Store(disk.Bytes)
	}
	switch {
	case err != nil && !errors.Is(err, ErrNotFound) && ctx.Err() == nil:
		k.log.Warn("disk of the job not counted", "err", err)
	case err == nil && !disk.Held && (disk.Bytes > limit || disk.Inodes > maxInodes):
		return fmt.Sprintf("%d MiB in %d files on disk, %d MiB in %d allowed", disk.Bytes>>20, disk.Inodes, limit>>20, maxInodes)
	}
	return ""
}

// maxInodes is how many files a job may make: more than any data set that is not an archive, and few enough to be counted and wiped.
const maxInodes = 1 << 20

// unpaid is what was metered and not vouchered.
func (k *keeper) unpaid() money.Micro {
	charge, err := k.metered()
	if err != nil || k.rec.State == work.Ended {
		charge = k.rec.Charge
	}
	return charge - min(charge, k.rec.Vouchered)
}
