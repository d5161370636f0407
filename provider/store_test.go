package provider

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/provider/control/api"
)

// The owner is first, also when the disk is full: pause frees the devices at once and says what is missing.
func TestPauseOnFullDisk(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.paying.Store(true)
		k := r.run()
		other := r.sale()
		r.disk.full.Store(true)
		look := func() api.Status {
			r.a.lookAtStore(context.Background())
			var s api.Status
			r.a.mu.Lock()
			defer r.a.mu.Unlock()
			r.a.state(&s, time.Now())
			return s
		}
		if s := look(); s.State != api.Stuck || len(s.Warnings) != 1 || !strings.Contains(s.Warnings[0], "refuses writes") {
			t.Errorf("status on a full disk: %q %q", s.State, s.Warnings)
		}
		if _, why := r.a.compose(time.Now()); !strings.Contains(why, "refuses writes") {
			t.Errorf("it is offered: %q", why)
		}
		if err := r.a.Pause(context.Background(), 0); !errors.Is(err, ErrUnstored) {
			t.Errorf("pause: %v", err)
		}
		time.Sleep(2 * time.Second)
		if got := r.runtime.state(k.id); got != "" {
			t.Errorf("2 s after the pause the job is %s", got)
		}
		if s := look(); s.State != api.Paused || len(s.Warnings) != 1 {
			t.Errorf("status when paused: %q %q", s.State, s.Warnings)
		}
		if _, err := r.a.Sell(context.Background(), other); !isCode(err, reason.OwnerPaused) {
			t.Errorf("sale: %v", err)
		}
		r.disk.full.Store(false)
		r.over(k.id, "owner_reclaimed")
		must(t, r.a.Resume(context.Background()))
		if s := look(); len(s.Warnings) > 0 && strings.Contains(s.Warnings[0], "refuses writes") {
			t.Errorf("status with room again: %q", s.Warnings)
		}
	})
}

// A lease that can't be recorded says so once, and goes on when the ledger takes writes again.
func TestRefusedWritesAreLoggedOnce(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.paying.Store(true)
		k := r.run()
		r.runtime.exit(0, time.Now())
		r.over(k.id, "completed")
		r.disk.full.Store(true)
		var log bytes.Buffer
		must(t, k.do(context.Background(), func() error {
			k.log = slog.New(slog.NewTextHandler(&log, nil))
			k.beat = k.rec.Beat // the next one must be reserved
			return nil
		}))
		time.Sleep(time.Minute)
		var said string
		must(t, k.do(context.Background(), func() error { said = log.String(); return nil }))
		if n := strings.Count(said, "reserve beats"); n != 1 {
			t.Errorf("said %d times: %s", n, said)
		}
		r.disk.full.Store(false)
		r.awaitThat(k.id, "given more beats", 5*time.Second, func(rec record) bool { return rec.State == work.Ended && rec.Beat > beatsAhead })
	})
}
