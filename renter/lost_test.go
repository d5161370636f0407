package renter

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gpufair/gpufair/ledger/meter"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/book"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/blob"
	"github.com/gpufair/gpufair/p2p/p2ptest"
	"github.com/gpufair/gpufair/p2p/wire"
	"github.com/gpufair/gpufair/renter/control/api"
)

// A provider that dies is suspected at 5 s and released after GiveUp; nothing after its last beat is owed. When it comes back, however much
// later and whatever this side's process went through meanwhile, it gets the release and the newest voucher.
func TestProviderGoneAndBack(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		id := r.order(plenty)
		r.runs(id)
		time.Sleep(33 * time.Second)
		died := time.Now()
		r.owner.node.Close()
		took := r.until("suspicion", 8*time.Second, func() bool { return r.agent.find(id).view().Suspected })
		if took < 2*time.Second {
			t.Fatalf("suspected after %v", took)
		}
		rec := r.ends(id, time.Minute)
		lane := laneOf(t, r.books, id)
		ran := money.Micro(died.Sub(r.owner.started) / time.Millisecond)
		if rec.Reason.Code != reason.ProviderGone || !rec.Deliver || *lane.Final > ran || *lane.Final < ran-2_500 || lane.Amount != *lane.Final {
			t.Fatalf("%s, final %v of %v, signed %v, to deliver: %v", rec.Reason, *lane.Final, ran, lane.Amount, rec.Deliver)
		}
		r.nothingHeld()
		r.stop()
		r.start()
		time.Sleep(3 * time.Hour)
		r.owner.join()
		r.net.Mesh()
		r.until("the delivery", time.Minute, func() bool { return !r.job(id).Deliver })
		theirs := laneOf(t, r.owner.books, id)
		if r.owner.released != 1 || theirs.Amount != lane.Amount || laneOf(t, r.books, id).Missing() != 0 {
			t.Fatalf("%d releases taken; the provider has %v of %v", r.owner.released, theirs.Amount, lane.Amount)
		}
		r.nothingHeld()
	})
}

// A provider that is back before it is given up goes on, and an honest one is paid in full.
func TestProviderBackInTime(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		id := r.order(plenty)
		r.runs(id)
		for range 3 {
			time.Sleep(20 * time.Second)
			r.owner.node.Close()
			time.Sleep(giveUp - 3*time.Second)
			r.owner.join()
			r.net.Mesh()
		}
		time.Sleep(10 * time.Second)
		r.owner.ends()
		rec := r.ends(id, time.Minute)
		end, err := market.OpenEnd(rec.End)
		must(t, err)
		if rec.Reason.Code != reason.Completed || rec.Paid != end.Charge {
			t.Fatalf("%s, %v of %v paid", rec.Reason, rec.Paid, end.Charge)
		}
	})
}

// An agent that is killed and started again at any time pays an honest provider in full and a lying one no more than the tolerance and its
// own absences.
func TestAgentRestarts(t *testing.T) {
	for name, lie := range map[string]bool{"honest": false, "liar": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				if lie {
					r.owner.claim = func(ms uint64) (money.Micro, uint64) { return money.Micro(3 * ms), 3 * ms }
				}
				id := r.order(plenty)
				r.runs(id)
				for i := range 5 {
					time.Sleep(time.Duration(7+3*i) * time.Second)
					r.stop()
					time.Sleep(time.Duration(5*i) * time.Second)
					r.start()
				}
				time.Sleep(10 * time.Second)
				r.owner.ends()
				ran := uint64(time.Since(r.owner.started) / time.Millisecond)
				rec := r.ends(id, time.Minute)
				end, err := market.OpenEnd(rec.End)
				must(t, err)
				switch {
				case !lie && rec.Paid != end.Charge:
					t.Fatalf("%v paid of %v", rec.Paid, end.Charge)
				case lie && rec.Paid > money.Micro(meter.Tolerance(ran+2_500)):
					t.Fatalf("%v paid of %v for %d ms", rec.Paid, end.Charge, ran)
				}
				r.nothingHeld()
			})
		})
	}
}

// A job that ended, and was wiped, while the agent was away ends by its provider's word.
func TestEndedWhileAway(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		id := r.order(plenty)
		r.runs(id)
		time.Sleep(15 * time.Second)
		r.stop()
		time.Sleep(5 * time.Second)
		r.owner.ends()
		r.owner.lane = func(_ context.Context, s p2p.Stream) (bool, error) { return true, s.Reset(p2p.KindNotFound) }
		time.Sleep(2 * time.Hour)
		r.start()
		rec := r.ends(id, time.Minute)
		end, err := market.OpenEnd(rec.End)
		must(t, err)
		if rec.Reason.Code != reason.Completed || rec.Paid != end.Charge {
			t.Fatalf("%s, %v of %v paid", rec.Reason, rec.Paid, end.Charge)
		}
		r.until("the rest to be delivered", time.Minute, func() bool { return !r.job(id).Deliver })
		if l := laneOf(t, r.owner.books, id); l.Amount != end.Charge {
			t.Fatalf("the provider has %v of %v", l.Amount, end.Charge)
		}
	})
}

// An order without an answer is asked for again with the same bytes: sold once, it runs; never answered, nothing is held.
func TestOrderWithoutAnAnswer(t *testing.T) {
	for name, answers := range map[string]int{"answered late": 8, "never answered": 1 << 30} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				lost := 0
				r.owner.sold = func(raw []byte, err error) ([]byte, error) {
					if lost++; lost < answers {
						return nil, errors.New("a fault of the store")
					}
					return raw, err
				}
				id := r.order(plenty)
				if answers < 1<<30 {
					r.runs(id)
					r.owner.ends()
				}
				rec := r.ends(id, 3*time.Minute)
				if answers == 1<<30 && (rec.Reason.Code != reason.ProviderGone || r.owner.ready > 0 || r.owner.released == 0) {
					t.Fatalf("%s, %d readies, %d releases", rec.Reason, r.owner.ready, r.owner.released)
				}
				r.nothingHeld()
			})
		})
	}
}

// Each step may be the one at which the agent is killed, or at which the renter gives up: the job ends in one way, nothing stays held, and
// a lease that was sold is not left to itself.
func TestKilledOrReleasedAtEachStep(t *testing.T) {
	steps := map[string]func(*rig, market.LeaseID) bool{
		"ordered":      func(r *rig, id market.LeaseID) bool { return true },
		"agreed":       func(r *rig, id market.LeaseID) bool { return r.job(id).Lease != nil },
		"acknowledged": func(r *rig, id market.LeaseID) bool { return r.job(id).Ready },
		"asked":        func(r *rig, id market.LeaseID) bool { return r.job(id).Asked },
		"running":      func(r *rig, id market.LeaseID) bool { return r.job(id).State == work.Running },
		"ended":        func(r *rig, id market.LeaseID) bool { return r.job(id).State == work.Ended },
	}
	for name, reached := range steps {
		for _, release := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, release %v", name, release), func(t *testing.T) {
				bubble(t, func(t *testing.T, r *rig) {
					r.net.Faults(r.node.Self(), r.owner.node.Self(), p2pLatency)
					id := r.order(plenty)
					if name == "ended" {
						r.runs(id)
						r.owner.ends()
					}
					r.until(name, time.Minute, func() bool { return reached(r, id) })
					if release {
						if err := r.agent.Signal(t.Context(), id, api.SignalRequest{Release: true}); err != nil {
							t.Fatal(err)
						}
					}
					r.stop()
					time.Sleep(3 * time.Second)
					r.start()
					if !release && name != "ended" {
						r.runs(id)
						r.owner.ends()
					}
					rec := r.ends(id, 2*time.Minute)
					if want := reason.Completed; !release && rec.Reason.Code != want {
						t.Fatalf("ended with %s", rec.Reason)
					}
					if r.owner.state != 0 && r.owner.state != work.Ended && name != "ordered" {
						t.Fatalf("the provider's lease is %s", r.owner.state)
					}
					r.nothingHeld()
				})
			})
		}
	}
}

var p2pLatency = p2ptest.Faults{Latency: 50 * time.Millisecond}

// folder is a packed folder as the stranger's results.
func folder(t *testing.T, r *rig, files map[string]string) *blob.Packed {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	p, err := blob.Pack(t.Context(), dir, blob.PackOptions{})
	must(t, err)
	t.Cleanup(func() { p.Close() })
	r.owner.fetch = func(context.Context, blob.Request) (blob.Source, error) { return p, nil }
	r.owner.outputs = p.ID
	return p
}

func content(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	must(t, err)
	return string(b)
}

// What had come home before the provider died lies in the output folder.
func TestPartialResults(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		folder(t, r, map[string]string{"a": "so far"})
		id := r.order(plenty)
		r.runs(id)
		r.until("a snapshot", time.Minute, func() bool { return !r.job(id).Outputs.IsZero() })
		r.owner.mu.Lock()
		r.owner.outputs = wire.Sum("", []byte("never fetched"))
		r.owner.mu.Unlock()
		time.Sleep(3 * time.Second)
		r.owner.node.Close()
		rec := r.ends(id, time.Minute)
		if rec.Results != resultsPartial || content(t, filepath.Join(rec.Output, "a")) != "so far" {
			t.Fatalf("results %s", rec.Results)
		}
	})
}

// An output folder that somebody made meanwhile is not touched: the results are kept, and can be had elsewhere.
func TestOutputTaken(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		folder(t, r, map[string]string{"a": "result"})
		id := r.order(plenty)
		r.runs(id)
		must(t, os.Mkdir(filepath.Join(r.dir, "out"), 0o700))
		r.owner.ends()
		rec := r.ends(id, time.Minute)
		if rec.Results != resultsKept {
			t.Fatalf("results %s", rec.Results)
		}
		r.stop()
		r.start()
		time.Sleep(time.Second) // tidy has looked
		if _, err := r.agent.Results(t.Context(), id, ""); !errors.Is(err, ErrRequest) {
			t.Fatalf("into the taken folder: %v", err)
		}
		to := filepath.Join(r.dir, "elsewhere")
		if _, err := r.agent.Results(t.Context(), id, to); err != nil || content(t, filepath.Join(to, "a")) != "result" {
			t.Fatal(err)
		}
		if rec := r.job(id); rec.Results != resultsComplete || rec.Output != to {
			t.Fatalf("results %s in %s", rec.Results, rec.Output)
		}
		if left, err := os.ReadDir(filepath.Join(r.dir, "results")); err != nil || len(left) > 0 {
			t.Fatalf("left: %v %v", left, err)
		}
	})
}

// Results that are not what their name says, or more than may be stored, are not taken, and the job ends all the same.
func TestBadResults(t *testing.T) {
	zeros, random := make([]byte, 3<<20), make([]byte, 3<<20)
	for i := range random {
		random[i] = byte(i >> 20) // another chunk each
	}
	for name, lie := range map[string]func(*testing.T, *rig){
		"no such blob": func(_ *testing.T, r *rig) { r.owner.outputs = wire.Sum("", []byte("x")) },
		"other chunks": func(t *testing.T, r *rig) {
			p := folder(t, r, map[string]string{"a": "right"})
			wrong := folder(t, r, map[string]string{"a": "wrong"})
			r.owner.outputs = p.ID
			r.owner.fetch = func(context.Context, blob.Request) (blob.Source, error) {
				return blob.SourceFunc(func(ctx context.Context, h wire.Hash) (blob.Reader, error) {
					if h == p.ID {
						return p.Blob(ctx, h)
					}
					return wrong.Blob(ctx, wrong.Manifest.Entries[0].Chunks[0])
				}), nil
			}
		},
		"over the quota":   func(t *testing.T, r *rig) { folder(t, r, map[string]string{"a": string(random)}) },
		"one chunk, often": func(t *testing.T, r *rig) { folder(t, r, map[string]string{"a": string(zeros)}) },
		"no manifest": func(t *testing.T, r *rig) {
			p := folder(t, r, map[string]string{"a": "x"})
			r.owner.outputs = p.Manifest.Entries[0].Chunks[0]
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				lie(t, r)
				id := r.order(plenty)
				r.runs(id)
				time.Sleep(40 * time.Second) // over a snapshot
				r.owner.ends()
				rec := r.ends(id, time.Minute)
				if rec.Results != resultsNone || rec.Reason.Code != reason.Completed {
					t.Fatalf("results %s, ended with %s", rec.Results, rec.Reason)
				}
				if _, err := os.Lstat(rec.Output); !errors.Is(err, os.ErrNotExist) {
					t.Fatalf("something landed: %v", err)
				}
				r.nothingHeld()
			})
		})
	}
}

// A disk that can't be written is waited for: the results come home when it can.
func TestDiskComesBack(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		folder(t, r, map[string]string{"a": "result"})
		id := r.order(plenty)
		must(t, os.WriteFile(r.agent.resultsDir(id), nil, 0o600)) // no folder can be made here
		r.runs(id)
		r.owner.ends()
		time.Sleep(time.Minute)
		if rec := r.job(id); rec.Final || rec.Results != resultsFetching {
			t.Fatalf("gave up: %s", rec.Results)
		}
		must(t, os.Remove(r.agent.resultsDir(id)))
		if rec := r.ends(id, time.Minute); rec.Results != resultsComplete || content(t, filepath.Join(rec.Output, "a")) != "result" {
			t.Fatalf("results %s", rec.Results)
		}
	})
}

// Killed after the results landed and before the job was closed, the next process leaves them where they are.
func TestKilledAfterLanding(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		folder(t, r, map[string]string{"a": "result"})
		r.owner.ask = func(ctx context.Context, a work.Ask) (work.Status, error, bool) {
			if a.Action == work.ActFetched {
				<-ctx.Done() // the answer never comes
			}
			return work.Status{}, nil, false
		}
		id := r.order(plenty)
		r.runs(id)
		r.owner.ends()
		r.until("the results", time.Minute, func() bool { return r.job(id).Results == resultsComplete })
		r.stop()
		r.start()
		if rec := r.ends(id, 2*time.Minute); rec.Results != resultsComplete {
			t.Fatalf("results %s", rec.Results)
		}
	})
}

// Every state has an end, whatever a provider says that goes on beating.
func TestWindows(t *testing.T) {
	refuse := func(_ context.Context, a work.Ask) (work.Status, error, bool) {
		return work.Status{}, reason.Errorf(reason.NotPreparing, "still unpacking"), a.Action == work.ActStart
	}
	for name, c := range map[string]struct {
		lie    func(*stranger)
		budget money.Micro
		want   reason.Code
		limit  time.Duration
	}{
		"never starts":       {func(s *stranger) { s.ask = refuse }, plenty, reason.PrepareTimeout, prepareFor + time.Minute},
		"runs over its term": {func(*stranger) {}, 30_000, reason.TermOver, graceEnd + time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				r.owner.t = t
				c.lie(r.owner)
				id := r.order(c.budget)
				rec := r.ends(id, c.limit)
				if rec.Reason.Code != c.want || rec.Paid > c.budget {
					t.Fatalf("ended with %s, paid %v", rec.Reason, rec.Paid)
				}
				r.nothingHeld()
			})
		})
	}
}

// Cancelled before the order is stored, nothing is held and no job is left; an offer whose provider is not there costs nothing either.
func TestNothingHeld(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		<-r.agent.ready
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := r.agent.order(ctx, &planned{}, book.Found{}); !errors.Is(err, context.Canceled) {
			t.Fatalf("ordered: %v", err)
		}
		r.owner.node.Close()
		id := r.order(plenty)
		rec := r.ends(id, time.Minute)
		if rec.Lease != nil || rec.Deliver || !another(rec.Reason) {
			t.Fatalf("ended with %s", rec.Reason)
		}
		r.nothingHeld()
		if jobs, err := r.agent.Jobs(t.Context(), true); err != nil || len(jobs) != 1 {
			t.Fatalf("%d jobs: %v", len(jobs), err)
		}
	})
}

// Once the lease has ended, results are waited for, but not for ever.
func TestOverdueResults(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		id := r.order(plenty)
		r.runs(id)
		j := r.agent.find(id)
		rec := j.record()
		rec.State = work.Ended
		now := time.Now()
		time.Sleep(time.Second)
		for _, c := range []struct {
			silent time.Duration
			ended  time.Time
			over   bool
		}{
			{giveUp + time.Second, now, false},
			{5*giveUp + time.Second, now, true},
			{0, now, false},
			{0, now.Add(-time.Hour), true},
			{0, time.Time{}, false},
		} {
			if why := j.overdue(rec, c.silent, 0, c.ended); (why.Code == reason.ProviderGone) != c.over {
				t.Errorf("%+v: %s", c, why)
			}
		}
		r.owner.ends()
		r.ends(id, time.Minute)
	})
}

// A release is delivered though nothing was ever owed: the provider would keep its device for a job that never comes.
func TestReleaseIsDelivered(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.owner.ask = func(_ context.Context, a work.Ask) (work.Status, error, bool) {
			return work.Status{}, reason.Errorf(reason.NotPreparing, "still unpacking"), a.Action == work.ActStart
		}
		id := r.order(plenty)
		r.until("asked", time.Minute, func() bool { return r.job(id).Asked })
		r.owner.node.Close()
		if rec := r.ends(id, time.Minute); !rec.Deliver || rec.Paid != 0 {
			t.Fatalf("to deliver: %v, paid %v", rec.Deliver, rec.Paid)
		}
		r.owner.join()
		r.net.Mesh()
		r.until("the delivery", time.Minute, func() bool { return !r.job(id).Deliver })
		if r.owner.released != 1 || r.owner.state != work.Ended {
			t.Fatalf("%d releases, lease %s", r.owner.released, r.owner.state)
		}
	})
}
