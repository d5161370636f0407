package e2e

import (
	"testing"
	"time"

	"github.com/gpufair/gpufair/renter/control/api"
)

// Over real sockets: a renter asks an owner for a price below the offer's, gets it down to the floor, and pays the job by it. Below the floor
// the answer says why.
func TestQuotes(t *testing.T) {
	t.Parallel()
	m := newFair(t)
	r := m.tenant("renter")
	o := m.owner("owner", r.account())
	o.conf.Lots[0].Floor = price / 2
	if err := o.agent.Reload(o.conf); err != nil {
		t.Fatal(err)
	}
	r.meet(o.party)
	r.sees(1)
	req := r.order(m, "copy", "/etc/passwd", "/out/a", "1s")
	req.MaxPrice = (price / 4).String()
	low, err := r.submit(req)
	if err == nil || len(low.events) != 2 || low.events[1].Quote == nil || low.events[1].Quote.Code != "quote_floor" {
		t.Fatalf("below the floor: %v, %+v", err, low.events)
	}
	req.MaxPrice = (price / 3 * 2).String()
	asked := time.Now()
	got, err := r.submit(req)
	if err != nil || got.last.Job == nil || got.last.Job.Reason != "completed" || got.last.Job.Rate != req.MaxPrice {
		t.Fatalf("%v, %+v", err, got.last)
	}
	for _, e := range got.events {
		if e.Step == api.StepQuote && (e.Quote.Price != req.MaxPrice || !e.Quote.Firm) {
			t.Errorf("%+v", e.Quote)
		}
	}
	t.Logf("from the demand to the job's end %v", time.Since(asked).Round(time.Millisecond))
	sameMoney(t, o, r, got.id)
	o.waitFree()
}
