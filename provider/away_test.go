package provider

import (
	"context"
	"testing"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/negotiate"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/market/work"
)

// allow signs an allowance as the renter and gives it to the provider.
func (r *rig) allow(k *keeper, amount money.Micro, until time.Time) error {
	r.t.Helper()
	var raw []byte
	must(r.t, r.theirs.Update(context.Background(), func(tx *books.Tx) (err error) {
		raw, err = tx.SignAllowance(ledger.Lane(k.id), amount, until.UnixMilli())
		return err
	}))
	_, err := r.ask(work.Ask{Lease: k.id, Action: work.ActAllow, Signed: raw})
	return err
}

// leave is the renter's agent going away.
func (r *rig) leave(k *keeper) {
	r.t.Helper()
	r.paying.Store(false)
	must(r.t, k.do(context.Background(), func() error { close(k.lane.gone); k.lane = nil; return nil }))
}

// away is a lease that runs and whose renter leaves after 20 s with an allowance.
func (r *rig) leaves(amount money.Micro, until time.Duration) *keeper {
	r.t.Helper()
	r.paying.Store(true)
	k := r.run()
	time.Sleep(20 * time.Second)
	must(r.t, r.allow(k, amount, time.Now().Add(until)))
	r.leave(k)
	return k
}

// While its renter is away a job runs on under the allowance, and goes on being paid for when the renter is back.
func TestAway(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		k := r.leaves(900_000, time.Hour)
		time.Sleep(10 * time.Minute)
		if rec := r.stored(k.id); rec.State != work.Running || rec.Charge < 590_000 {
			t.Fatalf("ten minutes later the lease is %s (%s), charged %v", rec.State, rec.Reason, rec.Charge)
		}
		r.paying.Store(true)
		r.attend(k)
		time.Sleep(time.Minute)
		if s := k.look(); s.rec.State != work.Running || s.rec.Vouchered < 650_000 {
			t.Fatalf("back again: %s, %v vouchered", s.rec.State, s.rec.Vouchered)
		}
		r.runtime.exit(0, time.Now())
		r.over(k.id, "completed")
		told := 0
		for _, l := range r.sums(k.id) {
			if l.ev.Away {
				told++
			}
		}
		if told < 50 {
			t.Errorf("%d lines tell of the absence", told)
		}
	})
}

// An allowance ends with its amount or its time: then the job is paused as without one, and ends.
func TestAwayTooLong(t *testing.T) {
	for name, c := range map[string]struct {
		amount   money.Micro
		until    time.Duration
		from, to money.Micro // of the final charge
	}{
		"amount":              {300_000, time.Hour, 296_000, 300_000},
		"time":                {3_000_000, 4 * time.Minute, 255_000, 262_000},
		"time less than 30 s": {3_000_000, 10 * time.Second, 40_000, 54_000},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				limit := money.Micro(5_000_000)
				r.conf.Credit.Stranger, r.conf.Credit.StrangersTotal = &limit, &limit
				must(t, r.a.setLimits(r.conf))
				k := r.leaves(c.amount, c.until)
				r.await(k.id, work.Paused, 10*time.Minute)
				r.await(k.id, work.Ended, (work.EndPaused+5)*time.Second)
				if rec := r.over(k.id, "renter_gone"); rec.Charge < c.from || rec.Charge > c.to {
					t.Errorf("charged %v, want %v to %v", rec.Charge, c.from, c.to)
				}
			})
		})
	}
}

// A renter that is there and does not pay is not away, whatever it allowed.
func TestThereAndNotPaying(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.paying.Store(true)
		k := r.run()
		must(t, r.allow(k, 900_000, time.Now().Add(time.Hour)))
		r.paying.Store(false)
		r.await(k.id, work.Paused, 45*time.Second)
	})
}

// The allowance outlives the daemon.
func TestAwayOverACrash(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		k := r.leaves(900_000, 10*time.Minute)
		time.Sleep(2 * time.Minute)
		r.crash()
		k = r.keeper(k.id)
		time.Sleep(5 * time.Minute)
		if rec := r.stored(k.id); rec.State != work.Running || rec.Charge < 400_000 {
			t.Fatalf("after the crash the lease is %s (%s), charged %v", rec.State, rec.Reason, rec.Charge)
		}
		shown := func(over bool) {
			t.Helper()
			list, err := r.a.Leases(context.Background(), false)
			must(t, err)
			if len(list) != 1 || list[0].Away == nil || list[0].Away.Most != "0.9" || list[0].Away.Over != over {
				t.Errorf("the owner is shown %+v", list)
			}
		}
		shown(false)
		r.await(k.id, work.Paused, 5*time.Minute)
		must(t, r.a.books.View(context.Background(), func(b *books.Reader) error {
			lane, err := b.Lane(ledger.Lane(k.id))
			if !lane.Lapsed || lane.Allowed != 900_000 {
				t.Errorf("%+v", lane)
			}
			return err
		}))
		shown(true)
	})
}

// An allowance is credit: it is taken only as far as that goes, and what it opens leaves less for others.
func TestAllowanceIsCredit(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.paying.Store(true)
		limit := money.Micro(500_000)
		r.conf.Credit.Stranger = &limit
		must(t, r.a.setLimits(r.conf))
		k := r.run()
		time.Sleep(20 * time.Second)
		if err := negotiate.Typed(r.allow(k, 600_000, time.Now().Add(time.Hour))); !reason.Is(err, reason.CreditLimit) {
			t.Fatalf("over the credit: %v", err)
		}
		r.leave(k)
		r.await(k.id, work.Paused, 45*time.Second)
	})
}

// A release that arrives after an absence takes nothing back of what ran under the allowance, whether or not its lease is still known.
func TestReleaseAfterAway(t *testing.T) {
	for _, late := range []string{"", "ended", "wiped"} {
		bubble(t, func(t *testing.T, r *rig) {
			k := r.leaves(300_000, time.Hour)
			beat, paid := k.look().rec.Beat, k.look().rec.Vouchered
			time.Sleep(4 * time.Minute)
			want := "stopped_renter"
			if late != "" {
				r.await(k.id, work.Ended, 10*time.Minute)
				want = "renter_gone"
			}
			if late == "wiped" {
				r.over(k.id, want)
				_, err := r.ask(work.Ask{Lease: k.id, Action: work.ActFetched})
				must(t, err)
				<-k.done
			}
			release := market.Release{
				Header: r.renter.Header(market.Version), Delegation: r.renter.DelegationHash(), Lease: k.id, Charge: paid, Beat: min(beat, 8),
				Reason: reason.New(reason.StoppedRenter, ""),
			}
			_, err := r.ask(work.Ask{Lease: k.id, Action: work.ActRelease, Signed: r.sign(market.DomainRelease, release)})
			must(t, err)
			if rec := r.over(k.id, want); rec.Charge < 255_000 || rec.Charge > 300_000 {
				t.Errorf("late %q: charged %v, %v was paid", late, rec.Charge, paid)
			}
		})
	}
}

// Who said for how long it is away finds its results.
func TestResultsAwait(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		k := r.leaves(300_000, 3*time.Hour)
		r.runtime.exit(0, time.Now())
		r.over(k.id, "completed")
		time.Sleep(2*time.Hour + 50*time.Minute)
		if r.stored(k.id).Wiped {
			t.Fatal("wiped before the renter's time was over")
		}
		r.awaitThat(k.id, "wiped", 15*time.Minute, func(rec record) bool { return rec.Wiped })
	})
}
