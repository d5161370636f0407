package provider

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market/auction"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/wire"
)

// lane is one stream to a lease's renter: beats and receipts down, acknowledgements and vouchers up. The newest replaces older ones.
type lane struct {
	down chan work.LaneDown // what the keeper sends; full: the renter does not read, and its lane is cut
	gone chan struct{}      // closed when the keeper lets go of the lane
}

// laneQueue is how many messages may wait for a slow renter: 30 s of beats.
const laneQueue = 16

// laneIdle cuts a lane whose renter says nothing: it acknowledges every beat.
const laneIdle = 15 * time.Second

// laneHandler serves the lane protocol.
func (a *Agent) laneHandler(ctx context.Context, s p2p.Stream) error {
	var open work.LaneOpen
	if err := s.SetDeadline(time.Now().Add(laneIdle)); err != nil {
		return fmt.Errorf("lane: %w", err)
	}
	if err := wire.ReadFrame(s, &open, work.MaxBeat); err != nil {
		return err
	}
	k, err := a.keeperFor(open.Lease, s.Peer())
	if err != nil {
		return p2p.Respond(s, nil, toPeer(err), work.MaxBeat)
	}
	l := &lane{down: make(chan work.LaneDown, laneQueue), gone: make(chan struct{})}
	var opened work.LaneOpened
	err = k.do(ctx, func() error {
		if k.ending != nil && k.rec.State != work.Ended {
			return reason.Errorf(reason.LedgerReadOnly, "the lease is ending and the provider's ledger can't record it")
		}
		opened.Beat = k.beat
		k.takeLane(context.WithoutCancel(ctx), l)
		return nil
	})
	if err != nil {
		return p2p.Respond(s, nil, toPeer(err), work.MaxBeat)
	}
	if err := p2p.Respond(s, opened, nil, work.MaxBeat); err != nil {
		return err
	}
	defer k.do(context.WithoutCancel(ctx), func() error { return k.dropLane(l) })
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() { cancel(k.writeLane(ctx, s, l)) }()
	go func() { // a renter that acknowledges and does not read would keep the writer for ever
		select {
		case <-l.gone:
			s.Reset(p2p.KindUnavailable)
		case <-ctx.Done():
		}
	}()
	for {
		var up work.LaneUp
		if err := wire.ReadFrame(s, &up, work.MaxBeat); err != nil {
			return err
		}
		if err := s.SetDeadline(time.Now().Add(laneIdle)); err != nil {
			return fmt.Errorf("lane: %w", err)
		}
		if err := k.do(ctx, func() error { return k.onUp(ctx, up) }); err != nil {
			return err
		}
	}
}

// writeLane sends what the keeper queues until the lane is over; then the stream is reset, which ends its reader.
func (k *keeper) writeLane(ctx context.Context, s p2p.Stream, l *lane) error {
	defer s.Reset(p2p.KindUnavailable)
	for {
		select {
		case m := <-l.down:
			if err := wire.WriteFrame(s, m, work.MaxBeat); err != nil {
				return err
			}
		case <-l.gone:
			return errLaneReplaced
		case <-k.done:
			return errors.Join(errGone, l.drain(s))
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// drain sends what the keeper said last before it finished.
func (l *lane) drain(s p2p.Stream) error {
	for {
		select {
		case m := <-l.down:
			if err := wire.WriteFrame(s, m, work.MaxBeat); err != nil {
				return err
			}
		default:
			return s.CloseWrite()
		}
	}
}

var errLaneReplaced = errors.New("another lane took over")

func (k *keeper) takeLane(ctx context.Context, l *lane) {
	if k.lane != nil {
		close(k.lane.gone)
	}
	k.lane = l
	k.told = work.Status{} // it is told how the lease stands
	k.send(ctx, k.unpaid() > 0)
}

func (k *keeper) dropLane(l *lane) error {
	if k.lane == l {
		k.lane = nil
	}
	return nil
}

// send gives the renter a beat, with a claim if one is due.
func (k *keeper) send(ctx context.Context, claim bool) {
	if k.beat+1 > k.rec.Beat { // reserved before it is used
		if err := k.update(ctx, func(r *record) { r.Beat = k.beat + beatsAhead }, nil); err != nil {
			k.trouble("reserve beats", err)
			return
		}
	}
	k.beat++
	charge, err := k.metered()
	if err != nil {
		k.log.Error("meter", "err", err)
		return
	}
	if k.rec.State == work.Ended {
		charge = k.rec.Charge
	}
	k.claimed[k.beat] = charge
	delete(k.claimed, k.beat-claimsKept)
	beat := work.Beat{Seq: k.beat, State: k.rec.State, Billable: k.meter.Billable(), Charge: charge, Claim: claim && charge > k.rec.Vouchered}
	if beat.Claim || k.ev.mark {
		beat.Evidence = k.evidence()
	}
	if k.lane == nil {
		return
	}
	if beat.Claim {
		k.claims = min(k.claims+1, laneQueue)
	}
	if k.tellStatus() {
		status := k.status()
		beat.Status = &status
	}
	k.push(work.LaneDown{Beat: &beat})
}

// tellStatus reports whether the renter has not been told how the lease stands now.
func (k *keeper) tellStatus() bool {
	now := k.status()
	if now.State == k.told.State && now.Reason == k.told.Reason && now.Progress == k.told.Progress && now.Complete == k.told.Complete &&
		len(now.End) == len(k.told.End) {
		return false
	}
	k.told = now
	return true
}

// push queues a message; a renter that does not read loses its lane and opens another.
func (k *keeper) push(m work.LaneDown) {
	if k.lane == nil {
		return
	}
	select {
	case k.lane.down <- m:
	default:
		close(k.lane.gone)
		k.lane = nil
	}
}

// onUp takes an acknowledgement, and the voucher in it.
func (k *keeper) onUp(ctx context.Context, up work.LaneUp) error {
	if len(up.Voucher) == 0 {
		return nil
	}
	if k.claims == 0 { // each voucher is a durable write: nobody makes us do more of them than we asked for
		return p2p.Errorf(p2p.KindBadRequest, "a voucher that no claim asked for")
	}
	k.claims--
	amount, receipt, err := k.acceptVoucher(ctx, up)
	if err != nil {
		why, ok := reason.Of(err)
		if !ok {
			return err
		}
		k.log.Warn("voucher refused", "err", err)
		k.push(work.LaneDown{Refused: &why})
		return nil
	}
	k.rec.Vouchered = max(k.rec.Vouchered, amount)
	k.push(work.LaneDown{Receipt: receipt})
	k.resume(ctx)
	return nil
}

// status is how the lease stands, for its renter.
func (k *keeper) status() work.Status {
	charge := k.rec.Charge
	if k.rec.State != work.Ended {
		if c, err := k.metered(); err == nil {
			charge = c
		}
	}
	progress := k.progress
	if progress == "" {
		progress = k.rec.Lost
	}
	return work.Status{
		State: k.rec.State, Reason: k.rec.Reason, Progress: progress, Billable: k.meter.Billable(), Charge: charge, End: k.rec.End,
		Exit: k.rec.Exit, Outputs: k.rec.Outputs, LogBytes: k.rec.LogBytes, Complete: k.rec.Tidy,
	}
}

// metered is what the lease comes to so far: the meter's charge less the winner's discount, if it was sold by auction.
func (k *keeper) metered() (money.Micro, error) {
	charge, err := k.meter.Charge()
	return auction.Discounted(charge, k.rec.Discount), err
}

// rentFor is the lease's rent for ms milliseconds.
func (k *keeper) rentFor(ms uint64) (money.Micro, error) {
	return money.Charge(k.accept.Rate, k.accept.Quantity, ms)
}
