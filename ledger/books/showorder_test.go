package books

import (
	"testing"
	"testing/synctest"
	"time"
)

// Payments are listed by time, the newest first, and not by what their ids happen to be.
func TestSettlementsByTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		p.pay(p.sell(1, 0), 900)
		references := []string{"e", "d", "c", "b", "a"}
		for i := range references {
			p.settle(p.renter, p.provider, 1, references[len(references)-1-i])
			time.Sleep(time.Minute)
		}
		p.renter.view(func(r *Reader) error {
			list, err := r.ShowSettlements()
			for i, s := range list {
				if s.Reference != references[i] {
					t.Errorf("%d: %s", i, s.Reference)
				}
			}
			return err
		})
	})
}
