package renter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/meter"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p/identity"
)

// measure moves this side's own meter. It runs only while the provider says that the job does; what happened in a silence is not known
// here, so all of it counts, up to what unseen says: the meter is a bound on the provider's claim and no claim of its own.
func (j *job) measure(s work.State) error {
	now := j.a.clock()
	if now > j.sampled {
		j.ticks += j.unseen(now - j.sampled)
	}
	j.sampled = now
	switch {
	case s != work.Running && s != work.Stopping:
		return j.meter.Pause(j.ticks)
	case j.meter.State() == meter.Running:
		return j.meter.Sample(j.ticks)
	case len(j.meter.Segments()) > 0:
		return j.meter.Resume(j.ticks)
	}
	return j.meter.Start(j.accept.Rate, j.accept.Quantity, j.ticks)
}

// agree is what this side owes for a claim, as far as its own measure, the budget and what both signed bear it out, and the segments that
// it comes from.
func (j *job) agree(rec record, claim money.Micro, billable uint64) (money.Micro, []meter.Segment, error) {
	amount, segments, err := meter.Agree(claim, billable, j.meter.Segments())
	if err != nil {
		return 0, nil, err
	}
	if rec.Bid != nil && rec.Bid.Discount > 0 {
		most, err := meter.Charge(segments)
		if err != nil {
			return 0, nil, err
		}
		amount = min(amount, rec.due(most))
	}
	amount = min(amount, rec.Budget)
	if rec.End != nil {
		end, err := market.OpenEnd(rec.End)
		if err != nil {
			return 0, nil, err
		}
		amount = min(amount, end.Charge)
	}
	if rec.Release != nil {
		r, err := market.OpenRelease(rec.Release)
		if err != nil {
			return 0, nil, err
		}
		amount = min(amount, max(r.Charge, rec.Allowed))
	}
	return amount, segments, nil
}

// pay signs what the provider claims, as far as agree bears it out. Nothing more is signed while two receipts are missing, since the
// provider would have nothing to show for what it got: the newest voucher goes out again, for the receipt that a broken line lost.
func (j *job) pay(ctx context.Context, b work.Beat, interval *books.Interval) ([]byte, error) {
	amount, segments, err := j.agree(j.record(), b.Charge, b.Billable)
	if err != nil {
		return nil, err
	}
	if amount < b.Charge {
		j.log.Info("claim is above the own measure, the budget or the end", "claim", b.Charge, "agreed", amount)
	}
	saved, err := j.meter.Encode()
	if err != nil {
		return nil, err
	}
	var voucher []byte
	var nothing, late, raised bool
	err = j.update(ctx, func(r *record) {
		r.Meter, r.Metering, r.Sampled = saved, j.meter.State() == meter.Running, time.Now().UnixMilli()
	}, func(tx *books.Tx, r *record) error {
		lane, err := tx.Lane(j.lane())
		if err != nil {
			return err
		}
		if late = amount > lane.Amount && unreceipted(lane); late || lane.Frozen() {
			amount = min(amount, lane.Amount)
		}
		voucher, err = tx.SignVoucher(j.lane(), amount, segments)
		r.Paid, nothing = max(lane.Amount, amount), max(lane.Amount, amount) == 0
		seq := lane.Seq + 1
		if raised = amount > lane.Amount; !raised {
			seq = 0 // the newest voucher again
		}
		return errors.Join(err, j.keepEvidence(tx, interval, seq))
	})
	if unsure(err) {
		j.log.Info("not paying yet", "err", err)
		return nil, nil
	}
	if err == nil {
		j.ev.wait = nil
	}
	if err == nil && raised {
		j.evidencePaid(voucher, interval)
	}
	if late {
		j.log.Warn("not paying more: receipts are missing")
	}
	if nothing {
		return nil, err
	}
	return voucher, err
}

// maxUnreceipted vouchers may be without a receipt (spec: ledger, Rules).
const maxUnreceipted = 2

func unreceipted(l books.Lane) bool { return l.Seq >= l.Receipts+maxUnreceipted }

// onStatus takes what the provider says of the lease's state. An end must be signed by it and for this lease. What is older than what is
// known already changes nothing.
func (j *job) onStatus(ctx context.Context, s work.Status) error {
	rec := j.record()
	if rank(s.State) != 0 && rank(s.State) < rank(rec.State) {
		return nil // an answer that a beat overtook
	}
	if err := plausible(rec, s.State); err != nil {
		return err
	}
	switch {
	case s.State == work.Ended && len(s.End) == 0:
		return badStatus("ended without a signed end")
	case s.State != work.Ended && len(s.End) > 0:
		return badStatus("%s with a signed end", s.State)
	case len(s.End) > 0 && !bytes.Equal(s.End, rec.End):
		if err := checkEnd(rec, s.End); err != nil {
			return err
		}
	}
	if s.Exit != nil && len(s.Exit.Signal) > maxSignal {
		return badStatus("signal of %d bytes", len(s.Exit.Signal))
	}
	s.Reason, s.Progress = s.Reason.Clean(), "" // no more than what is shown is kept
	s.Missing = nil
	j.mu.Lock()
	if j.status.Complete && !s.Complete || j.status.Complete && s.Outputs.IsZero() {
		s.Complete, s.Outputs = true, j.status.Outputs // it was packed once: a provider that wiped it says less
	}
	j.status = s
	j.mu.Unlock()
	if s.State == rec.State && s.Reason == rec.Reason && bytes.Equal(s.End, rec.End) && (s.Exit == nil) == (rec.Exit == nil) {
		j.changed()
		return nil
	}
	return j.update(ctx, func(r *record) {
		now := time.Now().UnixMilli()
		if r.Started == 0 && (rank(s.State) == 3 || rank(s.State) == 4 || s.Exit != nil) {
			r.Started = now
		}
		if s.State == work.Ended && r.Ended == 0 {
			r.Ended = now
		}
		r.State, r.Exit = s.State, s.Exit
		if r.Release == nil {
			r.Reason = s.Reason // else it is this side's own
		}
		if len(s.End) > 0 {
			r.End = s.End
		}
	}, nil)
}

// maxSignal is the longest name of a signal that is kept.
const maxSignal = 16

// checkEnd checks a provider's end against the lease, and that it does not charge more than an earlier one.
func checkEnd(rec record, raw []byte) error {
	end, err := market.OpenEnd(raw)
	if err != nil {
		return err
	}
	lease, err := market.OpenLease(rec.Lease)
	if err != nil {
		return err
	}
	if err := market.CheckEnd(end, lease); err != nil {
		return err
	}
	if rec.End == nil {
		return nil
	}
	old, err := market.OpenEnd(rec.End)
	if err == nil && end.Charge > old.Charge {
		return fmt.Errorf("provider raised the final charge from %v to %v: %w", old.Charge, end.Charge, identity.ErrSignature)
	}
	return err
}

// closing is what a lane closes with.
type closing struct {
	segments []meter.Segment
	amount   money.Micro // what this side owes in the end
	most     money.Micro // what it may come to owe, if the provider says so later
}

// finalClaim is the last claim that this side judges: of the signed end, or of the last acknowledged beat.
func (j *job) finalClaim(rec record) (closing, error) {
	claim, billable := rec.Charge, rec.Billable
	if rec.End != nil {
		end, err := market.OpenEnd(rec.End)
		if err != nil {
			return closing{}, err
		}
		claim, billable = end.Charge, end.Billable
		if err := j.measure(work.Ended); err != nil { // it may have run on while this side was away
			return closing{}, err
		}
	}
	amount, segments, err := j.agree(rec, claim, billable)
	if err != nil {
		return closing{}, err
	}
	most, err := j.most(rec)
	return closing{segments, amount, most}, err
}

// closeLane signs what is still owed, as a voucher that is delivered when the provider is there, and ends the lane with it: the hold goes
// back, and nothing more is ever signed.
func (j *job) closeLane(tx *books.Tx, r *record, c closing) error {
	lane, err := tx.Lane(j.lane())
	if errors.Is(err, books.ErrNoLane) {
		return nil
	}
	if err != nil {
		return err
	}
	if r.Lease == nil {
		c.amount = 0 // never sold
	}
	if lane.Restored && lane.Closed() {
		c.amount, c.most = min(c.amount, *lane.Final), min(c.most, *lane.Final) // its end came back: this side's measure is older
	}
	final := c.amount
	if final > lane.Amount {
		if unreceipted(lane) || lane.Frozen() {
			final = lane.Amount
		} else if _, err := tx.SignVoucher(j.lane(), final, c.segments); unsure(err) {
			final = lane.Amount // what was signed before the ledger was restored comes back from the provider
		} else if err != nil {
			return err
		}
	}
	if final, err = restoredFinal(lane, r.End, final); err != nil {
		return err
	}
	if r.End == nil {
		final = max(final, lane.Amount, c.most) // signed is signed, unless the provider itself takes less
	}
	if err := j.keepEvidence(tx, nil, 0); err != nil {
		return err
	}
	if lane.Restored && lane.Closed() {
		final = min(final, *lane.Final)
	}
	if lane, err = tx.CloseLane(j.lane(), final); err != nil {
		return err
	}
	if err := r.Bid.free(tx, j.channel()); err != nil {
		return err
	}
	r.Paid = lane.Amount
	if r.Lease != nil && lane.Seq > lane.Receipts {
		r.Deliver = true
	}
	return nil
}
