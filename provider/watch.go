package provider

import (
	"context"
	"math/bits"
	"time"

	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/market/work"
)

// killPatience is how long a killed job's end is waited for before the lease ends without it: its devices stay held until it is gone.
const killPatience = 30 * time.Second

// watch ends or pauses the lease when one of its windows is over (spec: jobs, Life of a lease: every state has a timer and an exit).
func (k *keeper) watch(ctx context.Context, now time.Time) {
	in := now.Sub(k.entered)
	switch k.rec.State {
	case work.Agreed:
		if in > work.ReadyIn*time.Second {
			k.a.unansweredBy(k.rec.Renter, now)
			k.finish(ctx, reason.New(reason.NotReady, "no answer to the lease for %d s", work.ReadyIn))
		}
	case work.Preparing:
		if in > work.PrepareIn*time.Second {
			k.finish(ctx, reason.New(reason.PrepareTimeout, "image and inputs took over %d s", work.PrepareIn))
		}
	case work.Running:
		k.watchMoney(ctx)
	case work.Paused:
		if in > work.EndPaused*time.Second {
			k.finish(ctx, reason.New(reason.RenterGone, "no voucher for %d s after the pause", work.EndPaused))
			return
		}
		k.steer(ctx)
	case work.Stopping:
		k.watchMoney(ctx)
		k.killDue(ctx, now)
	case work.Ended:
		switch {
		case !k.rec.Tidy:
			k.cleanUp(ctx)
		case k.rec.Fetched || k.evict || k.rec.Folders.Out == "" || now.After(k.keepUntil()):
			k.wipe(ctx)
		}
	}
}

// watchMoney stops a job whose term or credit is ending, early enough that the time it gets to end in is inside both, and pauses one
// whose renter does not pay. A job that is stopping already is killed instead.
func (k *keeper) watchMoney(ctx context.Context) {
	rent30, err := k.rentFor(work.PauseUnpaid * 1000)
	if err != nil {
		k.log.Error("rent", "err", err)
		return
	}
	if k.forged(ctx) {
		return
	}
	used, most := k.meter.Billable(), uint64(k.rec.Term)*1000
	left := most - min(used, most)
	grace := min(uint64(k.stopWait()/time.Millisecond), used/3) // of a short term or credit at most the last quarter
	late := k.unpaid() > max(rent30, 1)                         // a rent of nothing in 30 s is not late
	k.away = late && k.covered(time.Now())
	room, why, err := k.room(ctx)
	roomMs := k.msFor(uint64(room))
	stopping := k.rec.State == work.Stopping
	switch {
	case stopping && (left == 0 || err == nil && room == 0 || late && !k.away):
		k.killAt = time.Now()
	case stopping:
	case left <= grace:
		k.stop(ctx, reason.New(reason.TermOver, "%d s agreed", k.rec.Term), time.Duration(left)*time.Millisecond)
	case err != nil:
		k.log.Error("credit", "err", err)
	case room == 0 || roomMs <= grace:
		k.stop(ctx, why, time.Duration(min(roomMs, grace))*time.Millisecond)
	case late && !k.away:
		k.pause(ctx, reason.New(reason.RenterGone, "%d s of rent without a voucher", work.PauseUnpaid))
	}
}

// msFor is how many milliseconds of rent an amount pays, at least; a day if the rent is too low to tell.
func (k *keeper) msFor(amount uint64) uint64 {
	const day = 24 * 3600 * 1000
	perDay, err := k.rentFor(day)
	if err != nil || perDay == 0 || amount >= uint64(perDay) {
		return day
	}
	hi, lo := bits.Mul64(amount, day)
	ms, _ := bits.Div64(hi, lo, uint64(perDay)) // amount < perDay, so it fits
	return ms
}

// pause freezes the job: from now on it is not billed; it keeps its memory, and ends by itself.
func (k *keeper) pause(ctx context.Context, why reason.Reason) {
	if err := k.meter.Pause(k.now()); err != nil {
		k.log.Error("meter", "err", err)
	}
	k.capMeter()
	if err := k.move(ctx, work.Paused, why, func(r *record) { r.Paused = time.Now().UnixMilli() }); err != nil {
		k.trouble("pause", err) // the next beat tries again; meanwhile nothing is billed
		return
	}
	k.paid, k.frozen, k.ev.mark = false, false, true
	k.steer(ctx)
	k.send(ctx, true)
}

// resume lets a paused job go on once its renter pays again. A tick's rent may be missing: the renter signs what it measured itself.
func (k *keeper) resume(ctx context.Context) {
	tick, err := k.rentFor(work.TickInterval * 1000)
	if err != nil || k.rec.State != work.Paused || k.unpaid() > tick {
		return
	}
	k.paid = true
	k.steer(ctx)
}

// steer brings a paused job to where it should be: frozen, or thawed and running once it is paid for. Each beat calls it again until
// the runtime has done it.
func (k *keeper) steer(ctx context.Context) {
	id := k.id.String()
	switch {
	case k.rec.State != work.Paused || k.busy == "adopting":
	case k.paid:
		k.chore(ctx, chore{"thaw", func(ctx context.Context) error { return k.a.runtime.Thaw(ctx, id) }, func(err error) {
			if err == nil {
				k.frozen = false
				k.resumed(ctx)
			}
		}})
	case !k.frozen:
		k.chore(ctx, chore{"freeze", func(ctx context.Context) error { return k.a.runtime.Freeze(ctx, id) }, func(err error) {
			k.frozen = err == nil
		}})
	}
}

// resumed is the keeper's turn once a paused job runs again.
func (k *keeper) resumed(ctx context.Context) {
	if k.rec.State != work.Paused || k.ending != nil {
		return
	}
	why := k.rec.Reason.Code
	if err := k.move(ctx, work.Running, reason.Reason{}, nil); err != nil {
		k.trouble("resume", err) // it runs, unbilled; the next beat thaws it again and tries again
		return
	}
	k.ev.gap, k.ev.mark = why, true
	if err := k.meter.Resume(k.now()); err != nil {
		k.log.Error("meter", "err", err)
	}
	k.paid, k.alive, k.lastTick = false, k.now(), time.Now()
	k.send(ctx, false)
}

// stop asks the job to end, and kills it when it takes longer than wait or than its term.
func (k *keeper) stop(ctx context.Context, why reason.Reason, wait time.Duration) {
	switch k.rec.State {
	case work.Agreed, work.Preparing:
		k.finish(ctx, why)
		return
	case work.Stopping: // whoever has less patience decides when
		if by := time.Now().Add(wait); by.Before(k.killAt) {
			k.killAt = by
		}
		return
	case work.Ended:
		return
	}
	if k.ending != nil {
		return
	}
	k.sample()
	most := uint64(k.rec.Term) * 1000
	wait = min(wait, time.Duration(most-min(most, k.meter.Billable()))*time.Millisecond)
	err := k.move(ctx, work.Stopping, why, func(r *record) {
		r.Stopping, r.Wait = time.Now().UnixMilli(), uint32(wait/time.Millisecond)
	})
	if err != nil {
		k.log.Error("stop", "err", err)
		k.finish(ctx, why) // what can't be stored is ended at once
		return
	}
	k.killAt = time.Now().Add(wait)
	k.terminate(ctx)
	k.send(ctx, false)
}

// terminate thaws a job that may be frozen, which hears no signal, and tells it to end.
func (k *keeper) terminate(ctx context.Context) {
	id := k.id.String()
	if k.frozen || k.rec.Paused != 0 {
		k.chore(ctx, chore{what: "thaw", run: func(ctx context.Context) error { return k.a.runtime.Thaw(ctx, id) }})
	}
	k.signal(ctx, "SIGTERM", false)
}

// killDue kills a stopping job whose time is over, and ends a lease whose job can't be killed: the charge must not wait for the runtime.
func (k *keeper) killDue(ctx context.Context, now time.Time) {
	if k.rec.State != work.Stopping || k.ending != nil || now.Before(k.killAt) || now.Before(k.killNext) {
		return
	}
	if now.Sub(k.killAt) > killPatience {
		k.finish(ctx, k.rec.Reason)
		return
	}
	k.killNext = now.Add(work.BeatInterval * time.Second)
	k.signal(ctx, "SIGKILL", true)
}

// signal sends a signal to the job; a job that is gone already is fine. It reports whether it was taken.
func (k *keeper) signal(ctx context.Context, name string, all bool) bool {
	req := SignalRequest{ID: k.id.String(), Signal: name, All: all}
	what := name
	if all {
		what += " to all"
	}
	return k.chore(ctx, chore{what: what, run: func(ctx context.Context) error { return k.a.runtime.Signal(ctx, req) }})
}

const (
	defaultStopWait = work.DefaultStopWait * time.Second
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
