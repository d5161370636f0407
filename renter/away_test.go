package renter

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/meter"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/renter/control/api"
)

// allowing makes the owner take allowances, or refuse them, and gives those that it took. The same one may be asked twice at once.
func (s *stranger) allowing(refuse error) func() []voucher.Allowance {
	var took []voucher.Allowance // guarded by s.mu
	s.ask = func(ctx context.Context, a work.Ask) (work.Status, error, bool) {
		if a.Action != work.ActAllow {
			return work.Status{}, nil, false
		}
		if refuse != nil {
			return work.Status{}, refuse, true
		}
		err := s.books.Update(ctx, func(tx *books.Tx) error { _, err := tx.Allow(a.Signed); return err })
		s.mu.Lock()
		defer s.mu.Unlock()
		if got, err := voucher.OpenAllowance(a.Signed); err == nil {
			took = append(took, got)
		}
		return s.told(), err, true
	}
	return func() []voucher.Allowance {
		s.mu.Lock()
		defer s.mu.Unlock()
		return slices.Clone(took)
	}
}

// parts cuts the two apart, as when a laptop is shut, and joins them again.
func (r *rig) parts(span time.Duration) {
	r.t.Helper()
	r.net.Partition(r.dev.Peer(), r.owner.dev.Peer())
	time.Sleep(span)
	r.net.Heal(r.dev.Peer(), r.owner.dev.Peer())
}

// While this side is away the job runs on, and what it comes to is signed on return: all of it, if it is within the allowance.
func TestAway(t *testing.T) {
	for name, restart := range map[string]bool{"line cut": false, "agent stopped": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				r.owner.t = t
				took := r.owner.allowing(nil)
				id := r.order(plenty)
				r.runs(id)
				time.Sleep(20 * time.Second)
				must(t, r.agent.Away(t.Context(), id, api.AwayRequest{Seconds: 1200}))
				if len(took()) == 0 || took()[0].Amount < 1_200_000 || took()[0].Amount > 1_230_000 {
					t.Fatalf("the owner has %+v", took())
				}
				if restart {
					r.stop()
					time.Sleep(10 * time.Minute)
					r.start()
				} else {
					r.parts(10 * time.Minute)
				}
				time.Sleep(time.Minute)
				r.owner.ends()
				rec := r.ends(id, time.Minute)
				end, err := market.OpenEnd(rec.End)
				must(t, err)
				if rec.Reason.Code != reason.Completed || rec.Paid != end.Charge || end.Charge < 680_000 {
					t.Fatalf("ended with %v, %v of %v paid", rec.Reason, rec.Paid, end.Charge)
				}
				if mine, theirs := laneOf(t, r.books, id), laneOf(t, r.owner.books, id); mine.Amount != theirs.Amount {
					t.Fatalf("mine %+v, theirs %+v", mine, theirs)
				}
				r.nothingHeld()
			})
		})
	}
}

// A provider that claims more than can have run in an absence gets what can have, and never more than was allowed.
func TestAwayLies(t *testing.T) {
	for name, c := range map[string]struct {
		span  int    // of the allowance, in seconds
		most  string // of it
		claim func(ms uint64) (money.Micro, uint64)
		least money.Micro
		cap   money.Micro
	}{
		"more than time":      {3600, "1", func(ms uint64) (money.Micro, uint64) { return money.Micro(3 * ms), 3 * ms }, 600_000, 624_000},
		"more than allowed":   {3600, "0.1", nil, 100_000, 126_000},
		"more than both":      {3600, "0.1", func(ms uint64) (money.Micro, uint64) { return money.Micro(3 * ms), 3 * ms }, 100_000, 126_000},
		"longer than allowed": {120, "1", nil, 120_000, 146_000},
		"more than its hours": {3600, "1", func(ms uint64) (money.Micro, uint64) { return money.Micro(9 * ms), ms }, 600_000, 624_000},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				r.owner.t = t
				r.owner.allowing(nil)
				id := r.order(plenty)
				r.runs(id)
				time.Sleep(20 * time.Second)
				must(t, r.agent.Away(t.Context(), id, api.AwayRequest{Seconds: c.span, Most: c.most}))
				r.owner.mu.Lock()
				r.owner.claim = c.claim
				r.owner.mu.Unlock()
				r.stop()
				time.Sleep(10 * time.Minute)
				r.owner.ends()
				r.start()
				r.ends(id, time.Minute)
				if lane := laneOf(t, r.books, id); lane.Amount < c.least || lane.Amount > c.cap || *lane.Final > c.cap {
					t.Fatalf("signed %v, final %v; want %v to %v", lane.Amount, *lane.Final, c.least, c.cap)
				}
				r.nothingHeld()
			})
		})
	}
}

// A run asks for its allowance as soon as its job runs; a refusal is shown, and changes nothing of what a silence counts.
func TestRunAway(t *testing.T) {
	for name, refused := range map[string]error{"taken": nil, "refused": reason.Errorf(reason.CreditLimit, "0.1 left")} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				r.owner.t = t
				took := r.owner.allowing(refused)
				r.away = 10 * time.Minute
				id := r.order(plenty)
				r.runs(id)
				r.until("an answer", time.Minute, func() bool { return r.job(id).AllowTold })
				v := r.agent.find(id).view().Away
				if v == nil || !v.Told || (v.Refused == "") != (refused == nil) || len(took()) == 0 && refused == nil {
					t.Fatalf("%+v, the owner has %v", v, took())
				}
				r.net.Partition(r.dev.Peer(), r.owner.dev.Peer())
				time.Sleep(2 * time.Minute)
				if rec := r.job(id); (rec.Release != nil) != (refused != nil) {
					t.Fatalf("after two minutes of silence: released %v, allowance refused %v", rec.Release != nil, refused != nil)
				}
				r.net.Heal(r.dev.Peer(), r.owner.dev.Peer())
				r.owner.ends()
				r.ends(id, 10*time.Minute)
			})
		})
	}
}

// An allowance that the provider took stands, though a later one is refused, or never reached it.
func TestAwayTwice(t *testing.T) {
	for name, late := range map[string]bool{"refused": false, "not heard of": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				r.owner.t = t
				r.owner.allowing(nil)
				id := r.order(plenty)
				r.runs(id)
				time.Sleep(20 * time.Second)
				must(t, r.agent.Away(t.Context(), id, api.AwayRequest{Seconds: 600}))
				if !late {
					r.owner.allowing(reason.Errorf(reason.CreditLimit, "0.1 left"))
					if err := r.agent.Away(t.Context(), id, api.AwayRequest{Seconds: 1200}); !reason.Is(err, reason.CreditLimit) {
						t.Fatal(err)
					}
				}
				r.net.Partition(r.dev.Peer(), r.owner.dev.Peer())
				if late {
					time.Sleep(time.Second)
					if err := r.agent.Away(t.Context(), id, api.AwayRequest{Seconds: 1200}); !errors.Is(err, ErrSilent) {
						t.Fatal(err)
					}
				}
				time.Sleep(5 * time.Minute)
				if r.job(id).Release != nil {
					t.Fatal("released within the time of the allowance that was taken")
				}
				r.net.Heal(r.dev.Peer(), r.owner.dev.Peer())
				time.Sleep(time.Minute)
				r.owner.ends()
				if rec := r.ends(id, time.Minute); rec.Paid < 360_000 {
					t.Errorf("%v paid", rec.Paid)
				}
			})
		})
	}
}

// What a release says is all that is paid beyond what was signed, but for what was allowed.
func TestAgreeAfterARelease(t *testing.T) {
	_, _, dev, err := identity.Generate()
	must(t, err)
	release, err := dev.Seal(market.DomainRelease, market.Release{
		Header: dev.Header(market.Version), Delegation: dev.DelegationHash(), Lease: market.LeaseID{1}, Beat: 1, Charge: 20_000, Reason: reason.New(reason.StoppedRenter, ""),
	})
	must(t, err)
	m := meter.New(1 << 63)
	must(t, m.Start(testRate, 1, 0))
	must(t, m.Sample(90_000))
	for allowed, want := range map[money.Micro]money.Micro{0: 20_000, 10_000: 20_000, 60_000: 60_000, 1_000_000: 80_000} {
		got, _, err := (&job{meter: m}).agree(record{Budget: plenty, Release: release, Allowed: allowed}, 80_000, 80_000)
		if err != nil || got != want {
			t.Errorf("%v allowed: %v, %v; want %v", allowed, got, err, want)
		}
	}
}

// Who never hears of the provider again gives the lease up when the allowance is over, and owes what it signed; what the provider shows
// later of the time in between is paid for, within the allowance.
func TestAwayAndGivenUp(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.owner.t = t
		r.owner.allowing(nil)
		id := r.order(plenty)
		r.runs(id)
		time.Sleep(20 * time.Second)
		must(t, r.agent.Away(t.Context(), id, api.AwayRequest{Seconds: 300}))
		r.net.Partition(r.dev.Peer(), r.owner.dev.Peer())
		rec := r.ends(id, 10*time.Minute)
		if rec.Reason.Code != reason.ProviderGone || rec.Release == nil {
			t.Fatalf("%+v", rec.Reason)
		}
		lane := laneOf(t, r.books, id)
		if lane.Amount > 25_000 || *lane.Final < 300_000 || *lane.Final > 330_000 {
			t.Fatalf("signed %v, final %v", lane.Amount, *lane.Final)
		}
		r.owner.mu.Lock()
		r.owner.claim = func(uint64) (money.Micro, uint64) { return 310_000, 310_000 } // it stopped by itself
		r.owner.mu.Unlock()
		r.net.Heal(r.dev.Peer(), r.owner.dev.Peer())
		r.until("what is owed is delivered", 2*time.Hour, func() bool { return !r.job(id).Deliver })
		mine, theirs := laneOf(t, r.books, id), laneOf(t, r.owner.books, id)
		if mine.Amount != 310_000 || theirs.Amount != mine.Amount || *mine.Final != 310_000 || r.job(id).Paid != 310_000 {
			t.Fatalf("mine %+v, theirs %+v", mine, theirs)
		}
	})
}

// What makes no sense is refused before anything is signed.
func TestAwayRefuses(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.owner.allowing(nil)
		id := r.order(plenty)
		r.runs(id)
		time.Sleep(20 * time.Second)
		for _, req := range []api.AwayRequest{{}, {Seconds: 59}, {Seconds: -1}, {Seconds: 1 << 40}, {Seconds: 60, Most: "x"}, {Seconds: 60, Most: "0"}} {
			if err := r.agent.Away(t.Context(), id, req); !errors.Is(err, ErrRequest) {
				t.Errorf("%+v: %v", req, err)
			}
		}
		if err := r.agent.Away(t.Context(), id, api.AwayRequest{Seconds: 60, Most: "1000000"}); !reason.Is(err, reason.CreditLimit) {
			t.Errorf("over the credit: %v", err)
		}
		if lane := laneOf(t, r.books, id); lane.Allowed != 0 {
			t.Errorf("%v is allowed", lane.Allowed)
		}
		r.owner.ends()
		r.ends(id, time.Minute)
		if err := r.agent.Away(t.Context(), id, api.AwayRequest{Seconds: 60}); !errors.Is(err, ErrRequest) {
			t.Errorf("of an ended job: %v", err)
		}
	})
}
