package provider

import (
	"context"
	"errors"
	"fmt"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p/identity"
)

// openTx opens a sale's lane: voucher and hold.
func (a *Agent) openTx(tx *books.Tx, accept market.Accept, hold money.Micro, dueDays uint32, opening, delegation []byte) error {
	v, err := voucher.Open(opening)
	if err != nil {
		return err
	}
	channel := ledger.Channel{Renter: accept.Account, Provider: a.dev.Account(), Unit: accept.Unit, Epoch: v.Channel.Epoch} // the renter's
	_, err = tx.OpenLane(books.Opening{
		Channel: channel, Lane: ledger.Lane(accept.ID()), Rate: accept.Rate, Devices: accept.Quantity, Hold: hold, DueDays: dueDays,
	}, opening, delegation)
	return creditReason(err)
}

// creditReason makes a refusal of the books one that the renter can act on.
func creditReason(err error) error {
	var c *ledger.CreditError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &c) && errors.Is(c.Cause, ledger.ErrStrangersTotal):
		return reason.Errorf(reason.StrangersTotal, "%v of %v left, %v asked", c.Room, c.Limit, c.Asked)
	case errors.As(err, &c) && c.ByHand:
		return reason.Errorf(reason.CreditLimit, "%v of %v left, %v asked; the owner set this account's limit by hand", c.Room, c.Limit, c.Asked)
	case errors.As(err, &c) && (errors.Is(c.Cause, ledger.ErrLate) || errors.Is(c.Cause, ledger.ErrWrittenOff)):
		return reason.Errorf(reason.CreditLimit, "%v: `gpufair ledger owed` shows what is due", c.Cause)
	case errors.As(err, &c):
		return reason.Errorf(reason.CreditLimit, "%v of %v left, %v asked", c.Room, c.Limit, c.Asked)
	case errors.Is(err, books.ErrReadOnly):
		return reason.Errorf(reason.LedgerReadOnly, "the owner must recover the ledger first")
	case errors.Is(err, books.ErrFork): // the books keep the proof by the error itself
		return fmt.Errorf("%w: %w", reason.Errorf(reason.HistoryForked, "the provider holds the proof"), err)
	case errors.Is(err, identity.ErrRevoked):
		return reason.Errorf(reason.DelegationPowers, "%v", err)
	case errors.Is(err, books.ErrDisputed):
		return reason.Errorf(reason.Disputed, "%v", err)
	}
	return err
}

// meteredTx tells the books what was metered, in the transaction that stores the meter.
func (k *keeper) meteredTx(charge money.Micro) func(*books.Tx) error {
	return func(tx *books.Tx) error {
		lane, err := tx.Lane(ledger.Lane(k.id))
		if err != nil || endedBefore(lane) {
			return withoutLane(err)
		}
		return tx.Meter(ledger.Lane(k.id), charge)
	}
}

// closeTx ends the lane with its final charge.
func closeTx(id market.LeaseID, charge money.Micro) func(*books.Tx) error {
	return func(tx *books.Tx) error {
		_, err := tx.CloseLane(ledger.Lane(id), charge)
		return withoutLane(err)
	}
}

// room is how much more the lease may meter before its renter's credit ends, and what to tell the renter then.
func (k *keeper) room(ctx context.Context) (money.Micro, reason.Reason, error) {
	var room money.Micro
	var cause error
	err := k.a.books.View(ctx, func(r *books.Reader) (err error) {
		if room, cause, err = r.LaneRoom(ledger.Lane(k.id)); err != nil {
			return err
		}
		lane, err := r.Lane(ledger.Lane(k.id))
		k.rec.Vouchered = max(k.rec.Vouchered, lane.Amount) // a settlement brings vouchers, too
		return err
	})
	why := reason.New(reason.CreditOver, "%v", cause)
	if errors.Is(cause, books.ErrDisputed) {
		why = reason.New(reason.Disputed, "")
	}
	return room, why, err
}

// acceptVoucher takes a voucher and gives the lane's amount and the receipt. A refusal is a [reason.Error].
func (k *keeper) acceptVoucher(ctx context.Context, up work.LaneUp) (money.Micro, []byte, error) {
	v, err := voucher.Open(up.Voucher)
	if err != nil {
		return 0, nil, err
	}
	if v.Lane != ledger.Lane(k.id) { // it may be a good one, but this lease is not paid by it
		return 0, nil, reason.Errorf(reason.LaneMismatch, "the voucher is for lane %s", v.Lane.Short())
	}
	evidence, hash := k.paidInterval(up.Beat)
	var got books.Accepted
	err = k.a.books.Update(ctx, func(tx *books.Tx) (err error) {
		got, err = tx.AcceptVoucher(up.Voucher, hash)
		if err != nil || got.Already || evidence == nil {
			return err
		}
		return tx.KeepInterval(ledger.Lane(k.id), books.Interval{At: up.Beat, Evidence: evidence, Voucher: v.Seq})
	})
	if err == nil {
		k.intervalPaid(evidence)
		return got.Lane.Amount, got.Receipt, nil
	}
	if err = creditReason(err); isReason(err) {
		return 0, nil, err
	}
	if errors.Is(err, voucher.ErrEquivocation) {
		return 0, nil, reason.Errorf(reason.Equivocation, "%v", err)
	}
	if errors.Is(err, voucher.ErrOrder) || errors.Is(err, voucher.ErrSigner) {
		return 0, nil, reason.Errorf(reason.LaneMismatch, "%v", err)
	}
	return 0, nil, fmt.Errorf("lease %s: %w", k.id.Short(), err)
}

func isReason(err error) bool {
	_, ok := reason.Of(err)
	return ok
}

// forged ends the lease of a renter that signed two vouchers with one sequence, by whatever way they came: the books keep both, and nothing
// that it signs is worth more work.
func (k *keeper) forged(ctx context.Context) bool {
	var have []byte
	err := k.a.books.View(ctx, func(r *books.Reader) (err error) {
		have, _, err = r.Fraud(ledger.Lane(k.id))
		return err
	})
	if err != nil {
		k.log.Error("lane", "err", err)
	}
	if have == nil {
		return false
	}
	k.log.Warn("the renter signed two vouchers with one sequence: the ledger keeps both", "renter", k.rec.Renter)
	k.finish(ctx, reason.New(reason.Equivocation, "the lease's proof file shows both"))
	return true
}
