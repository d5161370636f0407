package renter

import (
	"errors"

	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market"
)

// restoredFinal is what a lane ends with that was open when the ledger was restored: this side's meter is as old as the backup, so it is no
// less than what this side has signed since, up to the charge that the provider ended the lease with.
func restoredFinal(lane books.Lane, sealedEnd []byte, final money.Micro) (money.Micro, error) {
	if !lane.Restored || sealedEnd == nil {
		return final, nil
	}
	end, err := market.OpenEnd(sealedEnd)
	if err != nil {
		return 0, err
	}
	return max(final, min(lane.Amount, end.Charge)), nil
}

// unsure reports whether nothing is paid yet because the ledger was restored and the provider has not been asked. It is asked as soon as it
// is there, so a beat or two go by without a voucher.
func unsure(err error) bool { return errors.Is(err, books.ErrUnsure) }
