package e2e

import (
	"testing"

	"github.com/gpufair/gpufair/renter/control/api"
)

// TestRunsInARow: the one device of the market is found again as soon as a job has left it, without waiting for the news.
func TestRunsInARow(t *testing.T) {
	t.Parallel()
	m := newFair(t)
	r := m.tenant("renter")
	o := m.owner("owner", r.account())
	r.meet(o.party)
	r.sees(1)
	for i := range 3 {
		s, err := r.submit(r.order(m, "exit", "0"))
		if err != nil || s.last.Step != api.StepDone || s.last.Error != nil || s.last.Job.Exit == nil {
			t.Fatalf("run %d: %v, last %+v", i+1, err, s.last)
		}
	}
}
