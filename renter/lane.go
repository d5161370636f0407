package renter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/meter"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// keepLane holds a lane to the provider and opens it again when it breaks, until the job is over or its provider is given up.
func (j *job) keepLane(ctx context.Context) {
	for pause := 250 * time.Millisecond; !j.over() && ctx.Err() == nil; pause = min(2*pause, 2*time.Second) {
		start := time.Now()
		err := j.holdLane(ctx)
		if ctx.Err() != nil {
			return
		}
		j.log.Debug("lane broke", "err", err)
		if time.Since(start) > 10*time.Second {
			pause = 250 * time.Millisecond
		}
		j.judgeSilence(err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// judgeSilence shows a silent provider and in the end gives it up.
func (j *job) judgeSilence(err error) {
	j.mu.Lock()
	silent := time.Since(j.lastBeat)
	was := j.suspected
	j.suspected = silent > work.Suspected*time.Second
	now, state := j.suspected, j.rec.State
	j.mu.Unlock()
	if now != was {
		j.changed()
	}
	switch p2p.KindOf(err) {
	case p2p.KindNotFound, p2p.KindForbidden: // it answers, and knows no such lease
		if state != work.Ended {
			j.release(reason.New(reason.ProviderGone, "the provider says that it has no such lease"))
		}
		return
	}
	if silent > j.a.conf.GiveUp && state != work.Ended {
		j.release(reason.New(reason.ProviderGone, "no sign of life for %v", silent.Round(time.Second)))
	}
}

// holdLane speaks one lane until it breaks. Beats come every 2 s, so a read that takes longer than 5 s means that the line is dead.
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
	if err := s.SetDeadline(time.Now().Add(work.Suspected * time.Second)); err != nil {
		return err
	}
	if err := p2p.Send(s, work.LaneOpen{Lease: j.id, Acked: j.record().Beat}, work.MaxBeat); err != nil {
		return err
	}
	var opened work.LaneOpened
	if err := p2p.Receive(s, &opened, work.MaxBeat); err != nil {
		return err
	}
	for {
		if err := s.SetDeadline(time.Now().Add(work.Suspected * time.Second)); err != nil {
			return err
		}
		var m work.LaneDown
		if err := wire.ReadFrame(s, &m, work.MaxBeat); err != nil {
			return err
		}
		if err := j.hear(ctx, s, m); err != nil {
			return err
		}
	}
}

// hear takes one message of the provider.
func (j *job) hear(ctx context.Context, s p2p.Stream, m work.LaneDown) error {
	if m.Receipt != nil {
		err := j.a.Books.Update(ctx, func(tx *books.Tx) error {
			_, err := tx.RecordReceipt(m.Receipt)
			return err
		})
		if err != nil {
			return fmt.Errorf("receipt: %w", err)
		}
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

// onBeat takes a beat: the own meter follows the state that it says, and a claim is answered with a voucher.
func (j *job) onBeat(ctx context.Context, b work.Beat, up *work.LaneUp) error {
	j.mu.Lock()
	j.lastBeat, j.suspected = time.Now(), false
	if b.Seq > j.rec.Beat {
		j.rec.Beat, j.rec.Charge, j.rec.Billable = b.Seq, b.Charge, b.Billable // stored with the next voucher
	}
	j.mu.Unlock()
	if err := j.measure(b.State); err != nil {
		return err
	}
	if b.Status != nil {
		if err := j.onStatus(ctx, *b.Status); err != nil {
			return err
		}
	}
	if b.Claim && !j.ending() {
		v, err := j.pay(ctx, b)
		if err != nil {
			return err
		}
		up.Voucher = v
	}
	j.changed()
	return nil
}

// measure moves this side's own meter. It runs only while the provider says that the job does.
func (j *job) measure(s work.State) error {
	now := monotonic()
	switch s {
	case work.Running, work.Stopping:
		if j.meter.State() == meter.Running {
			return j.meter.Sample(now)
		}
		if len(j.meter.Segments()) > 0 {
			return j.meter.Resume(now)
		}
		return j.meter.Start(j.accept.Rate, j.accept.Quantity, now)
	case work.Paused:
		return j.meter.Pause(now)
	case work.Ended:
		return j.meter.Stop(now)
	}
	return nil
}

// pay signs what the provider claims, as far as this side's own measure and the budget bear it out. Nothing is signed while two
// receipts are missing: the provider would have nothing to show for what it got.
func (j *job) pay(ctx context.Context, b work.Beat) ([]byte, error) {
	amount, segments, err := meter.Agree(b.Charge, b.Billable, j.meter.Segments())
	if err != nil {
		return nil, err
	}
	rec := j.record()
	amount = min(amount, rec.Budget)
	if rec.End != nil {
		end, err := market.OpenEnd(rec.End)
		if err != nil {
			return nil, err
		}
		amount = min(amount, end.Charge)
	}
	if amount < b.Charge {
		j.log.Info("claim is above the own measure or the budget", "claim", b.Charge, "agreed", amount)
	}
	saved, err := j.meter.Encode()
	if err != nil {
		return nil, err
	}
	var voucher []byte
	err = j.update(ctx, func(r *record) { r.Meter, r.Paid = saved, max(r.Paid, amount) }, func(tx *books.Tx) error {
		lane, err := tx.Lane(j.lane())
		if err != nil {
			return err
		}
		if lane.Seq >= lane.Receipts+maxUnreceipted && amount > lane.Amount {
			return errUnreceipted
		}
		voucher, err = tx.SignVoucher(j.lane(), amount, segments)
		return err
	})
	if errors.Is(err, errUnreceipted) {
		j.log.Warn("not paying: receipts are missing")
		return nil, nil
	}
	if amount == 0 {
		return nil, err
	}
	return voucher, err
}

// maxUnreceipted vouchers may be without a receipt (spec: ledger, Rules).
const maxUnreceipted = 2

var errUnreceipted = errors.New("receipts are missing")

// onStatus takes what the provider says of the lease's state. An end must be signed by it and for this lease.
func (j *job) onStatus(ctx context.Context, s work.Status) error {
	rec := j.record()
	if len(s.End) > 0 && string(s.End) != string(rec.End) {
		if err := j.checkEnd(rec, s.End); err != nil {
			return err
		}
	} else if s.State == work.Ended && len(s.End) == 0 {
		return fmt.Errorf("provider ended the lease without a signed end: %w", wire.ErrFormat)
	}
	j.mu.Lock()
	j.status = s
	j.mu.Unlock()
	if s.State == rec.State && s.Reason == rec.Reason && string(s.End) == string(rec.End) && s.Outputs == rec.Outputs {
		return nil
	}
	return j.update(ctx, func(r *record) {
		now := time.Now().UnixMilli()
		if s.State == work.Running && r.Started == 0 {
			r.Started = now
		}
		if s.State == work.Ended && r.Ended == 0 {
			r.Ended = now
		}
		r.State, r.Reason, r.Exit = s.State, s.Reason.Clean(), s.Exit
		if len(s.End) > 0 {
			r.End = s.End
		}
		if !s.Outputs.IsZero() {
			r.Outputs = s.Outputs
		}
	}, nil)
}

// checkEnd checks a provider's end against the lease, and that it does not charge more than an earlier one.
func (j *job) checkEnd(rec record, raw []byte) error {
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

// due is what this side owes on the lease as it ended.
func (j *job) due(rec record) (money.Micro, error) {
	if rec.End == nil {
		return rec.Paid, nil
	}
	end, err := market.OpenEnd(rec.End)
	return end.Charge, err
}
