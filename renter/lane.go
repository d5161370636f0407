package renter

import (
	"context"
	"fmt"
	"time"

	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/wire"
)

// keepLane holds a lane to the provider and opens it again when it breaks, until ctx ends.
func (j *job) keepLane(ctx context.Context) {
	for pause := 250 * time.Millisecond; ctx.Err() == nil; pause = min(2*pause, 2*time.Second) {
		start := time.Now()
		err := j.holdLane(ctx)
		if ctx.Err() != nil {
			return
		}
		j.log.Debug("lane broke", "err", err)
		if time.Since(start) > 10*time.Second {
			pause = 250 * time.Millisecond
		}
		if unknown(err) {
			j.hearsOfNoLease(ctx)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// unknown reports whether the provider answers that it has no such lease, or not for us.
func unknown(err error) bool {
	kind := p2p.KindOf(err)
	return kind == p2p.KindNotFound || kind == p2p.KindForbidden
}

// hearsOfNoLease asks a provider that has no lane for the lease how it ended; one that does not know is given up.
func (j *job) hearsOfNoLease(ctx context.Context) {
	if j.record().State == work.Ended {
		return
	}
	status, err := j.ask(ctx, work.Ask{Action: work.ActStatus})
	if err == nil {
		err = j.onStatus(ctx, status)
	}
	if unknown(err) {
		j.release(reason.New(reason.ProviderGone, "the provider says that it has no such lease"))
	}
}

// watchEach is how often silence and windows are looked at.
const watchEach = 500 * time.Millisecond

// keepWatch shows a silent provider, and gives up one that stays silent or lets one of the lease's windows pass: every state has an end,
// whatever the provider says (spec: jobs, Life of a lease).
func (j *job) keepWatch(ctx context.Context) {
	tick := time.NewTicker(watchEach)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-j.stop:
			return
		case <-tick.C:
		}
		j.mu.Lock()
		silent, was := time.Since(j.lastBeat), j.suspected
		j.suspected = silent > work.Suspected*time.Second && !(j.rec.State == work.Ended && j.status.Complete)
		now, rec, own, ended := j.suspected, j.now(), j.live.own, j.ended
		j.mu.Unlock()
		if now != was {
			j.changed()
		}
		if why := j.overdue(rec, silent, own, ended); why.Code != "" {
			j.release(why)
		}
	}
}

// Windows that this side holds a provider to, beyond its own.
const (
	graceEnd   = 2 * time.Minute // beyond the term: the provider ends the job itself, politely first
	afterEnd   = 5               // times Config.GiveUp that a provider may be away once the lease has ended: it restarts, and the results wait there
	prepareFor = 2 * work.PrepareIn * time.Second
)

// overdue is why the lease is to be given up, or nothing.
func (j *job) overdue(rec record, silent time.Duration, own uint64, ended time.Time) reason.Reason {
	giveUp := j.a.conf.GiveUp
	switch {
	case rec.State == work.Ended && silent > afterEnd*giveUp:
		return reason.New(reason.ProviderGone, "no sign of life for %v: results not fetched", silent.Round(time.Second))
	case rec.State == work.Ended && !ended.IsZero() && time.Since(ended) > work.KeepResults*time.Second:
		return reason.New(reason.ProviderGone, "results not fetched in %d s", work.KeepResults)
	case rec.State == work.Ended:
		return reason.Reason{}
	case silent > j.patience(rec, silent, own):
		return reason.New(reason.ProviderGone, "no sign of life for %v", silent.Round(time.Second))
	case rec.State < work.Running && time.Since(j.begun) > prepareFor:
		return reason.New(reason.PrepareTimeout, "the job did not start in %v", prepareFor)
	case own > uint64(time.Duration(j.accept.Term)*time.Second/time.Millisecond)+uint64(graceEnd/time.Millisecond):
		return reason.New(reason.TermOver, "the provider did not end the job after %d s", j.accept.Term)
	}
	return reason.Reason{}
}

// holdLane speaks one lane until it breaks. Beats come every 2 s, so 5 s without one mean that the line is dead, whatever else it carries.
func (j *job) holdLane(ctx context.Context) error {
	dial, cancel := context.WithTimeout(ctx, work.Suspected*time.Second)
	defer cancel()
	s, err := j.a.Network.Open(dial, j.offer.Device, j.a.protocol(work.ProtoLane))
	if err != nil {
		return err
	}
	defer s.Close()
	stop := context.AfterFunc(ctx, func() { s.Reset(p2p.KindUnavailable) })
	defer stop()
	alive := func() error { return s.SetDeadline(time.Now().Add(work.Suspected * time.Second)) }
	if err := alive(); err != nil {
		return err
	}
	if err := p2p.Send(s, work.LaneOpen{Lease: j.id, Acked: j.record().Beat}, work.MaxBeat); err != nil {
		return err
	}
	var opened work.LaneOpened
	if err := p2p.Receive(s, &opened, work.MaxBeat); err != nil {
		return err
	}
	var rate rate
	for {
		var m work.LaneDown
		if err := wire.ReadFrame(s, &m, work.MaxBeat); err != nil {
			return err
		}
		if err := rate.take(time.Now()); err != nil {
			return err
		}
		if err := j.hear(ctx, s, m); err != nil {
			return err
		}
		if m.Beat != nil {
			if err := alive(); err != nil {
				return err
			}
		}
	}
}

// maxMessages of a lane in a beat's interval: each may cost this side a durable write, and an honest provider has a beat, a receipt and a
// few changes of state to tell.
const maxMessages = 64

// rate holds a lane to maxMessages.
type rate struct {
	since time.Time
	n     int
}

func (r *rate) take(now time.Time) error {
	if now.Sub(r.since) > work.BeatInterval*time.Second {
		*r = rate{since: now}
	}
	if r.n++; r.n > maxMessages {
		return fmt.Errorf("%w: over %d messages in %d s", wire.ErrFormat, maxMessages, work.BeatInterval)
	}
	return nil
}

// hear takes one message of the provider.
func (j *job) hear(ctx context.Context, s p2p.Stream, m work.LaneDown) error {
	if m.Receipt != nil {
		if err := j.takeReceipt(ctx, m.Receipt); err != nil {
			return err
		}
		j.checkReceipt(m.Receipt)
		j.changed()
	}
	if m.Refused != nil {
		j.log.Warn("provider refused a voucher", "reason", m.Refused.Clean())
	}
	if m.Beat == nil {
		return nil
	}
	up := work.LaneUp{Beat: m.Beat.Seq}
	if err := j.onBeat(ctx, *m.Beat, &up); err != nil {
		return err
	}
	return p2p.Send(s, up, work.MaxBeat)
}

// onBeat takes a beat: the own meter follows the state that it says, and a claim is answered with a voucher. A beat that can't be true is
// no sign of life.
func (j *job) onBeat(ctx context.Context, b work.Beat, up *work.LaneUp) error {
	if b.Status != nil {
		if b.Status.State != b.State {
			return badStatus("%s in a beat of %s", b.Status.State, b.State)
		}
		if err := j.onStatus(ctx, *b.Status); err != nil {
			return err
		}
	}
	rec := j.record()
	if err := plausible(rec, b.State); err != nil {
		return err
	}
	if b.State == work.Ended && rec.End == nil {
		return badStatus("ended without a signed end")
	}
	interval, err := j.takeEvidence(b)
	if err != nil {
		return err
	}
	if err := j.measure(b.State); err != nil {
		return err
	}
	amount, _, err := j.agree(rec, b.Charge, b.Billable)
	if err != nil {
		return err
	}
	j.mu.Lock()
	j.lastBeat, j.suspected = time.Now(), false
	j.live.own = j.meter.Billable()
	if b.Seq > j.live.beat {
		j.live.beat, j.live.charge, j.live.billable = b.Seq, amount, b.Billable
	}
	j.mu.Unlock()
	if b.Claim {
		v, err := j.pay(ctx, b, interval)
		if err != nil {
			return err
		}
		up.Voucher = v
	}
	j.changed()
	return nil
}

// rank orders the states: a lease never goes back, but between running and paused.
func rank(s work.State) int {
	switch s {
	case work.Agreed:
		return 1
	case work.Preparing:
		return 2
	case work.Running, work.Paused:
		return 3
	case work.Stopping:
		return 4
	case work.Ended:
		return 5
	}
	return 0
}

// plausible judges a state that the provider says by what this side knows.
func plausible(rec record, s work.State) error {
	switch r := rank(s); {
	case r == 0:
		return badStatus("state %d", s)
	case r < rank(rec.State):
		return badStatus("%s after %s", s, rec.State)
	case (r == 3 || r == 4) && !rec.Asked:
		return badStatus("%s before it was asked to start", s)
	}
	return nil
}
