package renter

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/renter/control/api"
)

// A release that overtakes the sale finds no lease yet: it is told again, or the device would stay held until the order is withdrawn.
func TestReleaseOvertakesTheSale(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.owner.sold = func([]byte, error) ([]byte, error) { return nil, errors.New("a slow store") }
		early := 0
		r.owner.ask = func(_ context.Context, a work.Ask) (work.Status, error, bool) {
			if a.Action != work.ActRelease || early == 3 {
				return work.Status{}, nil, false
			}
			early++
			return work.Status{}, p2p.Errorf(p2p.KindNotFound, "no such lease"), true
		}
		id := r.order(plenty)
		r.until("the order is sold", time.Minute, func() bool { r.owner.mu.Lock(); defer r.owner.mu.Unlock(); return r.owner.id == id })
		must(t, r.agent.Signal(t.Context(), id, api.SignalRequest{Release: true}))
		r.ends(id, time.Minute)
		if r.owner.released != 1 {
			t.Fatalf("%d releases taken after %d that came too early", r.owner.released, early)
		}
		r.nothingHeld()
	})
}
