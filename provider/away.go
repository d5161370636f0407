package provider

import (
	"context"
	"errors"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/market/work"
)

// allowance is how far the job may run while its renter is away; the ledger's lane has the signed one.
type allowance struct {
	amount money.Micro // charge in all; 0: none
	until  time.Time
	lapsed bool
}

func allowanceOf(l books.Lane) allowance {
	if l.Allowed == 0 {
		return allowance{}
	}
	return allowance{amount: l.Allowed, until: time.UnixMilli(l.AllowedUntil), lapsed: l.Lapsed}
}

// allow takes a renter's allowance (spec: ledger, Rules: renter away). It changes nothing of a pause: who sends it is there and can pay.
func (k *keeper) allow(ctx context.Context, raw []byte) error {
	a, err := voucher.OpenAllowance(raw)
	if err != nil {
		return err
	}
	if a.Lane != ledger.Lane(k.id) {
		return reason.Errorf(reason.LaneMismatch, "the allowance is for lane %s", a.Lane.Short())
	}
	if k.rec.State == work.Ended || k.ending != nil {
		return reason.Errorf(reason.NotPreparing, "the lease is %s", k.rec.State)
	}
	var lane books.Lane
	err = k.a.books.Update(ctx, func(tx *books.Tx) (err error) { lane, err = tx.Allow(raw); return err })
	switch err = creditReason(err); {
	case errors.Is(err, voucher.ErrAllowance), errors.Is(err, voucher.ErrSigner), errors.Is(err, voucher.ErrLane), errors.Is(err, voucher.ErrCap):
		return reason.Errorf(reason.LaneMismatch, "%v", err)
	case err != nil:
		return err
	}
	k.allowed = allowanceOf(lane)
	k.log.Info("allowance", "amount", k.allowed.amount, "until", k.allowed.until)
	k.a.changed()
	return nil
}

// covered reports whether metering may go on although no voucher comes: the renter is away, and the next beat's charge is still within
// what it allowed. A renter that is there and does not pay is not away.
func (k *keeper) covered(now time.Time) bool {
	if k.allowed.amount == 0 || k.lane != nil || !now.Before(k.allowed.until) {
		return false
	}
	charge, err := k.metered()
	if err != nil {
		return false
	}
	beat, err := k.rentFor(work.BeatInterval * 1000)
	return err == nil && charge <= k.allowed.amount && beat <= k.allowed.amount-charge
}

// lapse ends an allowance whose time is over: it holds no credit any more.
func (k *keeper) lapse(ctx context.Context, now time.Time) {
	if k.allowed.amount == 0 || k.allowed.lapsed || now.Before(k.allowed.until) || k.rec.State == work.Ended {
		return
	}
	err := k.a.books.Update(ctx, func(tx *books.Tx) error { return tx.LapseAllowance(ledger.Lane(k.id)) })
	if err != nil {
		k.trouble("allowance", err) // the next beat tries again
		return
	}
	k.allowed.lapsed = true
}

// keepUntil is how long the results of an ended lease are kept: a renter that said how long it is away finds them.
func (k *keeper) keepUntil() time.Time {
	end := k.entered.Add(work.KeepResults * time.Second)
	if k.allowed.until.After(end) {
		return k.allowed.until
	}
	return end
}
