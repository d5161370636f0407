package books

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/money"
)

// TestTrailRepeats: a peer can't fill a restored ledger's disk with one evidence that a receipt names, by repeating it all over a lane.
func TestTrailRepeats(t *testing.T) {
	p := newPair(t)
	lane := p.sell(1, 0)
	const vouchers = 3
	for i := range uint64(vouchers) {
		p.payFor(lane, money.Micro(100*(i+1)), i+1, fmt.Sprint(i), fmt.Sprint(i))
	}
	back := func() *party {
		r := p.renter.restored(&kv.Memory{}, time.Now())
		lanes, _, _ := p.provider.copies(p.renter, 9)
		for _, c := range lanes {
			r.update(func(tx *Tx) error { _, err := tx.AdoptLane(p.provider.Self(), c, nil); return err })
		}
		return r
	}
	honest := back()
	honest.trails(p.provider)
	if n := honest.kept(lane); n != vouchers {
		t.Errorf("%d intervals came back, want %d", n, vouchers)
	}

	r := back()
	adopt := func(page Trail) error {
		return r.Update(t.Context(), func(tx *Tx) error { return tx.AdoptTrail(lane, page, append([]byte{placeInterval}, be8(1)...)) })
	}
	var first Trail
	p.provider.view(func(r *Reader) (err error) { first, _, err = r.Trail(p.renter.Self(), lane, nil); return err })
	must(t, adopt(first))
	at := uint64(0)
	for range 2 {
		var page Trail
		for range trailRecords {
			page.Intervals = append(page.Intervals, IntervalCopy{At: at, Evidence: []byte("0"), Voucher: 1})
			at++
		}
		must(t, adopt(page))
	}
	if n := r.kept(lane); n != 1+1+unsignedSpare { // the signed one lets one more unsigned in
		t.Errorf("%d intervals are kept of one that a receipt names", n)
	}
	for _, again := range []uint64{at - 1, 5} {
		if err := adopt(Trail{Intervals: []IntervalCopy{{At: again, Evidence: []byte("1"), Voucher: 2}}}); !errors.Is(err, ErrCopy) {
			t.Errorf("evidence %d after %d: %v", again, at-1, err)
		}
	}
	must(t, adopt(Trail{Intervals: []IntervalCopy{{At: at, Evidence: []byte("2"), Voucher: 3}}}))
	if n := r.kept(lane); n != 1+1+unsignedSpare+1 {
		t.Errorf("%d intervals are kept after another that a receipt names", n)
	}
	r.verified(ResultOK)
}

// kept counts a lane's intervals.
func (p *party) kept(lane ledger.Lane) (n int) {
	p.tb.Helper()
	p.view(func(r *Reader) error {
		return r.Intervals(lane, func(Interval) (bool, error) { n++; return true, nil })
	})
	return n
}
