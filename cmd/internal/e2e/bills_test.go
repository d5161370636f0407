package e2e

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/p2p/wire"
	"github.com/gpufair/gpufair/renter/control/api"
)

// standing is how a party stands with another.
func standing(t *testing.T, b *books.Books, role ledger.Role, peer *party) (a books.Account) {
	t.Helper()
	err := b.View(context.Background(), func(r *books.Reader) (err error) {
		a, err = r.Account(role, money.Credit, peer.account())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// settled is what a party's books say of a settlement.
func settled(t *testing.T, b *books.Books, id wire.Hash) (s books.Settled) {
	t.Helper()
	err := b.View(context.Background(), func(r *books.Reader) (err error) { s, err = r.Settlement(id); return err })
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// After a job the renter pays outside and proposes the settlement, the owner signs it, and what was paid too much is used by the next job
// before any credit is.
func TestSettle(t *testing.T) {
	t.Parallel()
	m := newFair(t)
	r := m.tenant("renter")
	o := m.owner("owner", r.account())
	r.meet(o.party)
	r.sees(1)
	s, err := r.submit(r.order(m, "copy", "/etc/passwd", "/out/a", "3s"))
	if err != nil || s.last.Job == nil || s.last.Job.Reason != "completed" {
		t.Fatalf("run: %v %+v", err, s.last)
	}
	cost, err := money.Parse(s.last.Job.Cost)
	if err != nil || cost < 2_000 {
		t.Fatalf("cost %s: %v", s.last.Job.Cost, err)
	}
	peer, err := r.agent.PeerOf(t.Context(), o.account())
	if err != nil || peer != o.base.Device.Peer() {
		t.Fatalf("the provider's device: %v %v", peer, err)
	}
	const surplus = money.Micro(50_000)
	pay := books.Payment{Channel: r.base.Books.Channel(o.account(), money.Credit), Amount: cost + surplus, Method: "manual", Reference: "invoice 1"}
	id, state, err := r.base.Settle.Settle(t.Context(), peer, pay)
	if err != nil || state != books.Proposed {
		t.Fatalf("proposed: %v %v", state, err)
	}
	if got := settled(t, o.base.Books, id); got.State != books.Waiting {
		t.Fatalf("at the owner: %v", got.State)
	}
	if err := o.base.Settle.Accept(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if state, err := o.base.Settle.Send(t.Context(), r.base.Device.Peer(), id); err != nil || state != books.Signed {
		t.Fatalf("signed: %v %v", state, err)
	}
	mine, theirs := settled(t, r.base.Books, id), settled(t, o.base.Books, id)
	if mine.State != books.Signed || theirs.State != books.Signed || string(mine.Proposal) != string(theirs.Proposal) ||
		len(mine.Counter) == 0 || string(mine.Counter) != string(theirs.Counter) {
		t.Fatalf("mine %v, theirs %v", mine.State, theirs.State)
	}
	both := func(want int64) {
		t.Helper()
		a, b := standing(t, r.base.Books, ledger.AsRenter, o.party), standing(t, o.base.Books, ledger.AsProvider, r.party)
		if a.Owed != want || b.Owed != want {
			t.Errorf("owed: renter's books %d, owner's %d, want %d", a.Owed, b.Owed, want)
		}
	}
	both(-int64(surplus))
	r.sees(1)
	next, err := r.submit(r.order(m, "copy", "/etc/passwd", "/out/a", "3s"))
	if err != nil || next.last.Job == nil || next.last.Job.Reason != "completed" {
		t.Fatalf("second run: %v %+v", err, next.last)
	}
	again, err := money.Parse(next.last.Job.Cost)
	if err != nil {
		t.Fatal(err)
	}
	both(int64(again) - int64(surplus))
	sameMoney(t, o, r, s.id)
	sameMoney(t, o, r, next.id)
	cosigned(t, r.party, o.party)
}

// The provider's machine dies in the middle of a job: its renter is told in seconds, owes nothing after the last beat, has the output and
// the files that arrived, and lets go. Back again, the provider gets release and voucher, and ends what still ran.
func TestProviderDies(t *testing.T) {
	t.Parallel()
	m := newFair(t)
	r := m.tenant("renter")
	r.stop()
	r.give = 15 * time.Second
	r.start()
	o := m.owner("owner", r.account())
	r.meet(o.party)
	r.sees(1)
	req := r.order(m, "copy", "/etc/passwd", "/out/a", "300s")
	id, _ := r.background(req)
	until(t, "output and a snapshot of the results", patience, func() bool {
		out, _ := r.output(id)
		left, err := filepath.Glob(filepath.Join(r.dir, "agent", "results", id.String(), "whole", "*"))
		return err == nil && len(left) > 1 && strings.Contains(out, "copied")
	})
	o.stop()
	died := time.Now()
	until(t, "suspicion", patience, func() bool { return r.job(id).Suspected })
	job := r.ends(id, patience)
	until(t, "the job to be over", patience, func() bool { return r.agent.Live() == 0 })
	job = r.job(id)
	if job.Reason != "provider_gone" || job.Results != "partial" || job.EndedAt.Sub(died) > r.give+patience {
		t.Fatalf("ended with %q (%s), results %s", job.Reason, job.Detail, job.Results)
	}
	if limit := died.Sub(*job.Started).Seconds() + 10; job.Seconds > limit {
		t.Fatalf("%.1f s are billed, the provider died after %.1f", job.Seconds, limit)
	}
	if found, err := filepath.Glob(filepath.Join(req.Output, "a")); err != nil || len(found) != 1 {
		t.Fatalf("partial results: %v %v", found, err)
	}
	if out, _ := r.output(id); !strings.Contains(out, "copied") {
		t.Fatalf("output: %q", out)
	}
	r.stop() // both restart: the release is not forgotten
	r.start()
	o.start()
	r.meet(o.party)
	until(t, "release and voucher to arrive", patience, func() bool {
		theirs, mine := statementOf(t, o.base.Books, id), statementOf(t, r.base.Books, id)
		return theirs.Amount == mine.Amount && theirs.Voucher == mine.Voucher && o.free()
	})
	sameMoney(t, o, r, id)
}

// A renter gives up while it buys and while the job is being prepared: nothing runs, nothing is held on either side.
func TestReleaseBeforeItRuns(t *testing.T) {
	t.Parallel()
	m := newFair(t)
	r := m.tenant("renter")
	o := m.owner("owner", r.account())
	r.meet(o.party)
	ran := map[string]bool{} // jobs that were quicker than the release
	for range 2 {
		r.sees(1)
		released := false
		err := r.agent.Submit(t.Context(), r.order(m, "sleep"), func(e api.RunEvent) error {
			if e.Job == nil {
				return nil
			}
			ran[e.Job.ID] = ran[e.Job.ID] || e.Job.Started != nil
			if released {
				return nil
			}
			released = true
			return r.agent.Signal(t.Context(), mustID(t, e.Job.ID), api.SignalRequest{Release: true})
		})
		if err != nil || !released {
			t.Fatalf("released %v, %v", released, err)
		}
		until(t, "the device to be free again", patience, o.free)
	}
	for _, b := range []*books.Books{r.base.Books, o.base.Books} {
		err := b.View(context.Background(), func(x *books.Reader) error {
			return x.EachLane(func(l books.Lane) error {
				if !l.Closed() || l.HoldLeft > 0 || l.Amount > 0 && !ran[l.Lane.String()] {
					t.Errorf("lane %s: %+v", l.Lane.Short(), l)
				}
				return nil
			})
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func mustID(t *testing.T, text string) (id market.LeaseID) {
	t.Helper()
	if err := id.UnmarshalText([]byte(text)); err != nil {
		t.Fatal(err)
	}
	return id
}
