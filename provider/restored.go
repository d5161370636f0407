package provider

import (
	"context"
	"errors"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/provider/capacity"
)

// After the ledger was restored from a backup, or made again, the agent's records are as old as it is: leases that ended since are open
// again here, leases sold since are not here, and numbers that were used since would be used again. The renters' vouchers, which the ledger
// gets back, say what the former came to.

// restoredCharge is the final charge of a lease that was open when the ledger was restored: the meter is as old as the backup, so it is no
// less than the renter signed for since. A reclaim credit, which may be less than that, was taken off before the backup, or not at all. Where
// the end that this side had signed came back, the charge is that.
func (k *keeper) restoredCharge(ctx context.Context, charge money.Micro) (money.Micro, error) {
	credited := k.rec.Credited || k.credited
	err := k.a.books.View(ctx, func(r *books.Reader) error {
		lane, err := r.Lane(ledger.Lane(k.id))
		switch {
		case err == nil && endedBefore(lane):
			charge = *lane.Final
		case err == nil && lane.Restored && !credited:
			charge = max(charge, lane.Amount)
		}
		return withoutLane(err)
	})
	return charge, err
}

// endedBefore reports whether a lane came back with its end: it takes no more of the meter, which is older.
func endedBefore(l books.Lane) bool { return l.Restored && l.Closed() }

// withoutLane lets a lease end of which the ledger knows nothing any more: there is no money to move.
func withoutLane(err error) error {
	if errors.Is(err, books.ErrNoLane) {
		return nil
	}
	return err
}

// usedBefore is the least number that was never used before the ledger was restored: the epoch is the second of the restore, and neither adverts
// nor leases of one device come as fast as one a second. Of a ledger that never was, 0.
func (a *Agent) usedBefore() uint64 {
	if e := a.books.Epoch(); e > ledger.FirstEpoch {
		return uint64(e)
	}
	return 0
}

// raiseGenerations lifts the slots' generations above those of leases that were sold after the backup: no two leases have one.
func (a *Agent) raiseGenerations(slots []capacity.Slot) {
	for i := range slots {
		slots[i].Generation = max(slots[i].Generation, a.usedBefore())
	}
}
