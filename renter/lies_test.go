package renter

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpufair/gpufair/ledger/meter"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/wire"
	"github.com/gpufair/gpufair/renter/control/api"
)

const plenty = money.Micro(2_000_000) // 2,000 s of rent

func bubble(t *testing.T, f func(t *testing.T, r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		defer r.end()
		f(t, r)
	})
}

func TestHonest(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		id := r.order(plenty)
		r.runs(id)
		time.Sleep(63 * time.Second)
		r.owner.ends()
		rec := r.ends(id, 30*time.Second)
		end, err := market.OpenEnd(rec.End)
		must(t, err)
		if rec.Reason.Code != reason.Completed || rec.Paid != end.Charge || end.Charge < 60_000 {
			t.Fatalf("ended with %s, %v of %v paid", rec.Reason, rec.Paid, end.Charge)
		}
		mine, theirs := laneOf(t, r.books, id), laneOf(t, r.owner.books, id)
		if mine.Amount != theirs.Amount || mine.Missing() != 0 || rec.Deliver {
			t.Fatalf("mine %+v, theirs %+v", mine, theirs)
		}
		r.nothingHeld()
		if account, ok := r.agent.Delegations.Account(r.owner.dev.Peer()); !ok || account != r.owner.dev.Account() {
			t.Fatal("nobody knows any more for whom the provider's device acts")
		}
		if err := r.agent.Signal(t.Context(), id, api.SignalRequest{}); !errors.Is(err, ErrRequest) || !strings.Contains(err.Error(), "has ended already") {
			t.Fatalf("stop of an ended job: %v", err)
		}
	})
}

// What a provider claims beyond what this side saw, or beyond the budget, is never signed, whatever it says at the end.
func TestClaimsTooMuch(t *testing.T) {
	double := func(ms uint64) (money.Micro, uint64) { return money.Micro(2 * ms), 2 * ms }
	for name, c := range map[string]struct {
		budget money.Micro
		lie    func(*stranger)
		most   money.Micro
	}{
		"double":        {plenty, func(s *stranger) { s.claim = double }, money.Micro(meter.Tolerance(62_000))},
		"charge alone":  {plenty, func(s *stranger) { s.claim = func(ms uint64) (money.Micro, uint64) { return money.Micro(9 * ms), ms } }, 62_500},
		"at the end":    {plenty, func(s *stranger) { s.end = func(e *market.End) { e.Charge *= 3; e.Billable *= 3 } }, money.Micro(meter.Tolerance(62_000))},
		"over a budget": {30_000, func(*stranger) {}, 30_000},
		"the largest":   {plenty, func(s *stranger) { s.claim = func(uint64) (money.Micro, uint64) { return money.Max, 1 << 40 } }, money.Micro(meter.Tolerance(62_000))},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				c.lie(r.owner)
				r.owner.t = t
				id := r.order(c.budget)
				r.runs(id)
				time.Sleep(60 * time.Second)
				if name == "the largest" { // no valid end says so: it vanishes
					r.owner.node.Close()
				} else {
					r.owner.ends()
				}
				rec := r.ends(id, 30*time.Second)
				lane := laneOf(t, r.books, id)
				if lane.Amount > c.most || rec.Paid > c.most || *lane.Final > c.most || lane.Amount < min(c.budget, 50_000) {
					t.Fatalf("signed %v, final %v; at most %v", lane.Amount, *lane.Final, c.most)
				}
				r.nothingHeld()
			})
		})
	}
}

// Without receipts two vouchers are signed and no third.
func TestNoReceipts(t *testing.T) {
	for name, lie := range map[string]func([]byte) []byte{
		"none":    func([]byte) []byte { return nil },
		"garbage": func([]byte) []byte { return []byte{1, 2, 3} },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				r.owner.receipt = lie
				id := r.order(plenty)
				r.runs(id)
				time.Sleep(2 * time.Minute)
				if l := laneOf(t, r.books, id); l.Seq > 2 || l.Amount == 0 {
					t.Fatalf("%d vouchers over %v are signed without a receipt", l.Seq, l.Amount)
				}
				r.owner.ends()
				rec := r.ends(id, 2*time.Minute)
				if l := laneOf(t, r.books, id); l.Seq > 2 || *l.Final != l.Amount || rec.Paid != l.Amount {
					t.Fatalf("closed with %d vouchers, %v of %v", l.Seq, l.Amount, *l.Final)
				}
			})
		})
	}
}

// Receipts that a broken line lost are had again: the provider is paid in full.
func TestReceiptsLost(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		lost := 0
		r.owner.receipt = func(b []byte) []byte {
			if lost++; lost <= 2 {
				return nil
			}
			return b
		}
		id := r.order(plenty)
		r.runs(id)
		time.Sleep(time.Minute)
		r.owner.ends()
		rec := r.ends(id, time.Minute)
		if end, err := market.OpenEnd(rec.End); err != nil || rec.Paid != end.Charge {
			t.Fatalf("%v paid of %v (%v)", rec.Paid, end.Charge, err)
		}
	})
}

// A provider that says what can't be true is as good as silent: it is suspected, then given up, and not paid for what it can't claim.
func TestSaysWhatCannotBe(t *testing.T) {
	for name, lie := range map[string]func(*stranger){
		"ended without a signed end": func(s *stranger) {
			s.status = func(st *work.Status) {
				if !s.started.IsZero() && time.Since(s.started) > 10*time.Second {
					st.State, st.End, st.Complete = work.Ended, nil, true
				}
			}
			s.beat = func(b *work.Beat) *work.Beat { b.State = b.Status.State; return b }
		},
		"another lease's end": func(s *stranger) {
			s.end = func(e *market.End) { e.Lease[0]++ }
			time.AfterFunc(20*time.Second, s.ends)
		},
		"other devices' end": func(s *stranger) {
			s.end = func(e *market.End) { e.Slots[0].Generation++ }
			time.AfterFunc(20*time.Second, s.ends)
		},
		"no state at all": func(s *stranger) {
			s.beat = func(b *work.Beat) *work.Beat {
				if b.State == work.Running {
					b.State, b.Status.State = 77, 77
				}
				return b
			}
		},
		"back to preparing": func(s *stranger) {
			s.beat = func(b *work.Beat) *work.Beat {
				if b.Charge > 10_000 {
					b.State, b.Status.State = work.Preparing, work.Preparing
				}
				return b
			}
		},
		"beats without a word": func(s *stranger) { s.beat = func(*work.Beat) *work.Beat { return nil } },
		"empty messages":       func(s *stranger) { s.lane = chatter },
		"a slow message":       func(s *stranger) { s.lane = slow },
		"no such lease": func(s *stranger) {
			s.ask = func(_ context.Context, a work.Ask) (work.Status, error, bool) {
				return work.Status{}, p2p.Errorf(p2p.KindNotFound, "no such lease"), true
			}
			s.lane = func(_ context.Context, st p2p.Stream) (bool, error) {
				return true, st.Reset(p2p.KindNotFound)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				r.owner.t = t
				lie(r.owner)
				start := time.Now()
				id := r.order(plenty)
				rec := r.ends(id, 2*time.Minute)
				if rec.Release == nil || rec.Reason.Code != reason.ProviderGone {
					t.Fatalf("ended with %s", rec.Reason)
				}
				if l := laneOf(t, r.books, id); *l.Final > money.Micro(time.Since(start)/time.Millisecond) {
					t.Fatalf("final %v after %v", *l.Final, time.Since(start))
				}
				r.nothingHeld()
			})
		})
	}
}

// A line that carries much and no beat is given up for another within seconds.
func TestChatterIsNoLife(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		lanes := 0
		r.owner.lane = func(ctx context.Context, s p2p.Stream) (bool, error) {
			if lanes++; lanes > 1 {
				return false, nil
			}
			return chatter(ctx, s)
		}
		id := r.order(plenty)
		r.runs(id)
		r.owner.ends()
		if rec := r.ends(id, time.Minute); rec.Reason.Code != reason.Completed {
			t.Fatalf("ended with %s", rec.Reason)
		}
	})
}

// chatter keeps the line busy and never beats.
func chatter(ctx context.Context, s p2p.Stream) (bool, error) {
	for ctx.Err() == nil {
		if err := wire.WriteFrame(s, work.LaneDown{}, work.MaxBeat); err != nil {
			return true, err
		}
		time.Sleep(time.Second)
	}
	return true, ctx.Err()
}

// slow sends one byte of a frame every two seconds.
func slow(ctx context.Context, s p2p.Stream) (bool, error) {
	for i := 0; ctx.Err() == nil; i++ {
		if _, err := s.Write([]byte{byte(i % 2)}); err != nil {
			return true, err
		}
		time.Sleep(2 * time.Second)
	}
	return true, ctx.Err()
}

// A provider that says that the job runs before it was asked to start it meters nothing.
func TestRunsBeforeItWasAsked(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.owner.ask = func(_ context.Context, a work.Ask) (work.Status, error, bool) {
			if a.Action == work.ActPrepare {
				r.owner.mu.Lock()
				r.owner.state, r.owner.started = work.Running, time.Now()
				r.owner.mu.Unlock()
				return work.Status{}, p2p.Errorf(p2p.KindBusy, "later"), true
			}
			return work.Status{}, nil, false
		}
		id := r.order(plenty)
		rec := r.ends(id, 2*time.Minute)
		if l := laneOf(t, r.books, id); rec.Reason.Code != reason.ProviderGone || l.Amount != 0 || *l.Final != 0 {
			t.Fatalf("%s, signed %v", rec.Reason, l.Amount)
		}
	})
}

// Messages beyond any honest rate break the lane; the job goes on over another.
func TestFlood(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		floods := 0
		r.owner.lane = func(_ context.Context, s p2p.Stream) (bool, error) {
			if floods++; floods > 3 {
				return false, nil
			}
			for range maxMessages + 8 {
				if err := wire.WriteFrame(s, work.LaneDown{}, work.MaxBeat); err != nil {
					return true, err
				}
			}
			<-time.After(time.Minute)
			return true, nil
		}
		id := r.order(plenty)
		r.runs(id)
		if floods < 4 {
			t.Fatal("the flood was listened to")
		}
		r.owner.ends()
		r.ends(id, time.Minute)
	})
}
