package meter

import (
	"math"
	"math/bits"

	"github.com/gpufair/gpufair/ledger/money"
)

// What the renter adds to its own measure before it calls a claim too high (spec: ledger, Rules): the way of the messages that start
// and end the job, and the drift of two crystals.
const (
	AgreeSlackMs  = 2000
	AgreeDriftPPM = 500
)

// Tolerance is own plus 2 s and 500 ppm over the whole lease, in milliseconds.
func Tolerance(own uint64) uint64 {
	hi, lo := bits.Mul64(own, AgreeDriftPPM)
	drift, _ := bits.Div64(hi, lo, 1_000_000)
	if own > math.MaxUint64-drift-AgreeSlackMs {
		return math.MaxUint64
	}
	return own + drift + AgreeSlackMs
}

// Agree is what the renter signs for a claim of amount and claimMs billable milliseconds, when its own meter has billed own: the claim,
// but at most its own measure + 2 s + 500 ppm over the whole lease. It gives the amount and the segments that it was computed from; the
// tolerance is added to, and a shorter claim taken off, the newest segments.
func Agree(amount money.Micro, claimMs uint64, own []Segment) (money.Micro, []Segment, error) {
	agreed := append([]Segment(nil), own...)
	if len(agreed) == 0 {
		return 0, nil, nil
	}
	measured := Billable(agreed)
	target := min(claimMs, Tolerance(measured))
	if target >= measured {
		agreed[len(agreed)-1].Ms += target - measured
	}
	for i, off := len(agreed)-1, measured-min(target, measured); i >= 0 && off > 0; i-- {
		d := min(off, agreed[i].Ms)
		agreed[i].Ms -= d
		off -= d
	}
	most, err := Charge(agreed)
	if err != nil {
		return 0, nil, err
	}
	return min(amount, most), agreed, nil
}
