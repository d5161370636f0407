package provider

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/blob"
	"github.com/gpufair/gpufair/p2p/wire"
)

// bubble runs f with a rig, in time of its own.
func bubble(t *testing.T, f func(*testing.T, *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		defer r.close()
		f(t, r)
	})
}

func TestNotReady(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		k := r.sell()
		time.Sleep((work.ReadyIn - 3) * time.Second)
		if r.stored(k.id).State != work.Agreed {
			t.Fatal("ended early")
		}
		r.await(k.id, work.Ended, 6*time.Second)
		if rec := r.over(k.id, "not_ready"); rec.Charge != 0 {
			t.Fatalf("charged %v", rec.Charge)
		}
		<-k.done // nothing of it is kept
		if second := r.sell(); second.lease.Slots[0].Generation != 2 {
			t.Fatalf("generation %d after the first lease", second.lease.Slots[0].Generation)
		}
	})
}

func TestPrepareTimeout(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		k := r.sell()
		r.prepare(k)
		if _, err := k.stage.open(); err != nil {
			t.Fatal(err)
		}
		time.Sleep((work.PrepareIn - 3) * time.Second)
		if r.stored(k.id).State != work.Preparing {
			t.Fatal("ended early")
		}
		r.await(k.id, work.Ended, 6*time.Second)
		r.over(k.id, "prepare_timeout")
		if _, err := os.Stat(k.stage.dir); !errors.Is(err, os.ErrNotExist) {
			t.Fatalf("what was pushed is still there: %v", err)
		}
	})
}

// Vouchers stop: the job is frozen and not billed, goes on when they come back, and ends by itself when they do not.
func TestUnpaid(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.paying.Store(true)
		k := r.run()
		time.Sleep(time.Minute)
		if rec := r.stored(k.id); rec.State != work.Running || k.look().rec.Vouchered < 49_000 {
			t.Fatalf("paid lease is %s, vouchered %v", rec.State, k.look().rec.Vouchered)
		}
		r.paying.Store(false)
		r.await(k.id, work.Paused, 45*time.Second)
		time.Sleep(time.Second)
		before := k.look()
		time.Sleep(30 * time.Second)
		if after := k.look(); after.charge != before.charge || r.runtime.state(k.id) != ContainerFrozen {
			t.Fatalf("a pause was billed %v to %v, container %s", before.charge, after.charge, r.runtime.state(k.id))
		}
		r.paying.Store(true)
		r.await(k.id, work.Running, 5*time.Second)
		if r.runtime.state(k.id) != ContainerRunning {
			t.Fatal("not thawed")
		}
		r.paying.Store(false)
		r.await(k.id, work.Paused, 45*time.Second)
		r.await(k.id, work.Ended, (work.EndPaused+5)*time.Second)
		rec := r.over(k.id, "renter_gone")
		if most := rec.Vouchered + 35_000; rec.Charge > most {
			t.Fatalf("charged %v, vouchered %v", rec.Charge, rec.Vouchered)
		}
	})
}

// The bill is never above rate x term, however deaf the job, and the job's time to end in is inside the term.
func TestTermIsABound(t *testing.T) {
	for _, deaf := range []bool{false, true} {
		bubble(t, func(t *testing.T, r *rig) {
			r.paying.Store(true)
			r.term, r.runtime.deaf = 60, deaf
			k := r.run()
			began := time.Now()
			rec := r.over(k.id, "term_over")
			if took := time.Since(began); took > 63*time.Second {
				t.Errorf("deaf %v: ended after %v of a term of 60 s", deaf, took)
			}
			if rec.Charge > 60_000 || rec.Billable > 60_000 || deaf && rec.Charge < 59_000 {
				t.Errorf("deaf %v: charged %v for %d ms", deaf, rec.Charge, rec.Billable)
			}
		})
	}
}

func TestCreditIsABound(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.paying.Store(true)
		r.runtime.deaf = true
		limit := money.Micro(40_000)
		r.conf.Credit.Stranger = &limit
		must(t, r.a.setLimits(r.conf))
		k := r.run()
		rec := r.over(k.id, "credit_over")
		if rec.Charge > limit+2000 {
			t.Fatalf("charged %v over the limit of %v", rec.Charge, limit)
		}
	})
}

// A runtime that hangs stops neither answers nor windows; the device stays held until it is clear, and then it is given back.
func TestRuntimeHangs(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.paying.Store(true)
		k := r.run()
		hang := make(chan struct{})
		r.runtime.set(func() { r.runtime.hang = hang })
		began := time.Now()
		must(t, r.a.Pause(context.Background(), 0))
		if status, err := r.ask(work.Ask{Lease: k.id, Action: work.ActStatus}); err != nil || status.State != work.Stopping {
			t.Fatalf("status %v, %v", status.State, err)
		}
		if took := time.Since(began); took > time.Second {
			t.Fatalf("the owner waited %v", took)
		}
		rec := r.await(k.id, work.Ended, time.Minute)
		state, _ := r.a.capacity.Look(r.conf.Lots[0].Device)
		if rec.Tidy || state.Lease == nil {
			t.Fatal("a device was given back while its job runs")
		}
		r.runtime.set(func() { r.runtime.hang = nil })
		close(hang)
		if rec := r.over(k.id, "owner_reclaimed"); rec.Charge != 0 {
			t.Fatalf("charged %v of less than the reclaim credit", rec.Charge)
		}
	})
}

// A start that hangs is cut short when its lease ends.
func TestStartHangs(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		k := r.sell()
		r.prepare(k)
		r.attend(k)
		var hang chan struct{}
		must(t, k.do(context.Background(), func() error {
			hang = make(chan struct{})
			r.runtime.set(func() { r.runtime.hang = hang })
			return k.start(k.a.ctx)
		}))
		time.Sleep(time.Second)
		must(t, r.a.Pause(context.Background(), 0))
		r.await(k.id, work.Ended, time.Second)
		r.runtime.set(func() { r.runtime.hang = nil })
		r.over(k.id, "owner_reclaimed")
		close(hang)
	})
}

// What the ledger can't record does not run: the job ends, its renter hears no more, and the end is stored once it can be.
func TestLedgerFails(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.paying.Store(true)
		k := r.run()
		time.Sleep(21 * time.Second)
		charged := r.stored(k.id).Charge
		r.disk.full.Store(true)
		time.Sleep(45 * time.Second)
		if got := r.runtime.state(k.id); got != "" {
			t.Fatalf("the job is %s 45 s after the ledger failed", got)
		}
		if rec := r.stored(k.id); rec.State != work.Running || rec.Charge != charged {
			t.Fatalf("stored as %s", rec.State)
		}
		must(t, k.do(context.Background(), func() error {
			if k.lane != nil {
				t.Error("its renter still hears beats")
			}
			return nil
		}))
		if _, err := r.a.Sell(context.Background(), r.sale()); err == nil {
			t.Error("sold without a ledger")
		}
		r.disk.full.Store(false)
		rec := r.over(k.id, "ledger_read_only")
		if rec.Charge < charged || rec.Charge > charged+35_000 {
			t.Fatalf("charged %v, %v was stored", rec.Charge, charged)
		}
	})
}

// No lease without money, no money without a lease: a sale that the ledger refuses leaves nothing.
func TestSaleFails(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		s := r.sale()
		r.disk.full.Store(true)
		if _, err := r.a.Sell(context.Background(), s); err == nil {
			t.Fatal("sold")
		}
		r.disk.full.Store(false)
		if r.keeper(s.ID) != nil || r.stored(s.ID).Version != 0 {
			t.Fatal("something of the lease is there")
		}
		raw, err := r.a.Sell(context.Background(), s)
		must(t, err)
		again, err := r.a.Sell(context.Background(), s)
		if err != nil || string(again) != string(raw) {
			t.Fatalf("a repeat got another lease: %v", err)
		}
		if account, ok := r.a.delegations.Account(r.renter.Peer()); !ok || account != r.renter.Account() {
			t.Fatal("nobody knows any more for whom the renter's device acts")
		}
		other := r.sale()
		if _, err := r.a.Sell(context.Background(), other); !isCode(err, reason.DeviceTaken) {
			t.Fatalf("the second sale: %v", err)
		}
	})
}

func isCode(err error, want reason.Code) bool {
	r, ok := reason.Of(err)
	return ok && r.Code == want
}

// The wall clock of the runtime may have stepped: a charge ends between the last sign of life and now.
func TestExitTimes(t *testing.T) {
	for name, ago := range map[string]time.Duration{"now": 0, "3 h ago": 3 * time.Hour, "in 3 h": -3 * time.Hour} {
		bubble(t, func(t *testing.T, r *rig) {
			r.paying.Store(true)
			k := r.run()
			time.Sleep(65 * time.Second)
			r.runtime.exit(0, time.Now().Add(-ago))
			rec := r.over(k.id, "completed")
			if rec.Billable < 53_000 || rec.Billable > 66_000 {
				t.Errorf("exit %s: billed %d ms of 65 s", name, rec.Billable)
			}
		})
	}
}

func TestRelease(t *testing.T) {
	for name, c := range map[string]struct {
		change func(k *keeper, rel *market.Release)
		min    money.Micro
		max    money.Micro
	}{
		"last beat":          {func(k *keeper, rel *market.Release) { rel.Beat = k.beat }, 24_000, 26_000},
		"an earlier beat":    {func(k *keeper, rel *market.Release) { rel.Beat = k.beat - 3 }, 18_000, 21_000},
		"a beat to come":     {func(k *keeper, rel *market.Release) { rel.Beat = 1 << 40 }, 24_000, 26_000},
		"below what it owes": {func(k *keeper, rel *market.Release) { rel.Beat = k.beat - 12 }, 15_000, 21_000},
	} {
		bubble(t, func(t *testing.T, r *rig) {
			r.paying.Store(name == "below what it owes")
			k := r.run()
			time.Sleep(25 * time.Second)
			rel := market.Release{
				Header: r.renter.Header(market.Version), Delegation: r.renter.DelegationHash(), Lease: k.id,
				Reason: reason.New(reason.StoppedRenter, ""),
			}
			must(t, k.do(context.Background(), func() error { c.change(k, &rel); return nil }))
			ask := work.Ask{Lease: k.id, Action: work.ActRelease, Signed: r.sign(market.DomainRelease, rel)}
			if _, err := r.a.job(context.Background(), r.owner.Peer(), ask); !errors.Is(err, errNotYours) {
				t.Errorf("a stranger released: %v", err)
			}
			other := device(t)
			forged, err := other.Seal(market.DomainRelease, market.Release{
				Header: other.Header(market.Version), Delegation: other.DelegationHash(), Lease: k.id, Reason: rel.Reason,
			})
			must(t, err)
			if _, err := r.ask(work.Ask{Lease: k.id, Action: work.ActRelease, Signed: forged}); err == nil {
				t.Error("a release by another account was taken")
			}
			for range 2 { // a repeat changes nothing
				if _, err := r.ask(ask); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
			if rec := r.over(k.id, "stopped_renter"); rec.Charge < c.min || rec.Charge > c.max {
				t.Errorf("%s: charged %v", name, rec.Charge)
			}
		})
	}
}

// A voucher counts for its own lane only, and only when it was asked for.
func TestVouchers(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		k := r.run()
		time.Sleep(15 * time.Second)
		up := func(v []byte) error {
			return k.do(context.Background(), func() error { return k.onUp(k.a.ctx, work.LaneUp{Voucher: v}) })
		}
		other := r.sale() // a lane that was promised and never sold
		must(t, up(r.voucher(other.ID, 5000, 5000)))
		if got := k.look().rec.Vouchered; got != 0 {
			t.Fatalf("another lane's voucher counted as %v", got)
		}
		must(t, k.do(context.Background(), func() error { k.claims = 0; return nil }))
		if err := up(r.voucher(k.id, 1000, 1000)); err == nil {
			t.Fatal("a voucher that nobody asked for was taken")
		}
		must(t, k.do(context.Background(), func() error { k.claims = 2; return nil }))
		good := r.voucher(k.id, 2000, 2000)
		must(t, up(good))
		must(t, up(good))
		if got := k.look(); got.rec.Vouchered != 2000 {
			t.Fatalf("vouchered %v", got.rec.Vouchered)
		}
		if err := up([]byte("garbage")); err == nil {
			t.Fatal("garbage was taken")
		}
	})
}

// Actions out of order are refused with a reason and change nothing.
func TestWrongOrder(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		k := r.sell()
		for _, a := range []work.Ask{
			{Action: work.ActStart},
			{Action: work.ActSignal, Signal: "SIGTERM"},
			{Action: work.ActFetched},
			{Action: work.ActPrepare, Spec: &work.Spec{Image: k.accept.Needs}},
		} {
			a.Lease = k.id
			if _, err := r.ask(a); err == nil {
				t.Errorf("action %d of a lease that is agreed was taken", a.Action)
			}
		}
		r.prepare(k)
		if _, err := r.ask(work.Ask{Lease: k.id, Action: work.ActStart}); err == nil {
			t.Error("started without a lane")
		}
		if rec := r.stored(k.id); rec.State != work.Preparing {
			t.Fatalf("the lease is %s", rec.State)
		}
	})
}

// A job over its disk is ended.
func TestDiskQuota(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.paying.Store(true)
		k := r.run()
		r.runtime.set(func() { r.runtime.deaf = true })
		r.mounts.disk.Store(65 << 20)
		r.await(k.id, work.Stopping, 2500*time.Millisecond)
		r.await(k.id, work.Ended, 2500*time.Millisecond)
		r.noResults(r.over(k.id, "resources_exceeded"), k)
	})
}

// A job that writes and ends between two counts does not get away with it.
func TestDiskQuotaAtExit(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.paying.Store(true)
		k := r.run()
		must(t, os.WriteFile(filepath.Join(k.look().rec.Folders.Out, "big"), []byte("big"), 0o600))
		time.Sleep(500 * time.Millisecond)
		r.mounts.disk.Store(65 << 20)
		r.runtime.exit(0, time.Now())
		r.noResults(r.over(k.id, "resources_exceeded"), k)
		if rec := r.stored(k.id); rec.Exit == nil || rec.Exit.Code != 0 || rec.Reason.Detail == "" {
			t.Errorf("exit %v, reason %v", rec.Exit, rec.Reason)
		}
	})
}

// A job that the renter ends when it is over its disk gets nothing of it, either.
func TestDiskQuotaAtRelease(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.paying.Store(true)
		k := r.run()
		must(t, os.WriteFile(filepath.Join(k.look().rec.Folders.Out, "big"), []byte("big"), 0o600))
		time.Sleep(500 * time.Millisecond)
		r.mounts.disk.Store(65 << 20)
		_, err := r.ask(work.Ask{Lease: k.id, Action: work.ActStop})
		must(t, err)
		r.noResults(r.over(k.id, "stopped_renter"), k)
	})
}

// noResults checks that an ended lease offers nothing and says why, also after a restart.
func (r *rig) noResults(rec record, k *keeper) {
	r.t.Helper()
	if !rec.Outputs.IsZero() || !strings.Contains(rec.Lost, "65 MiB") {
		r.t.Errorf("outputs %s, lost %q", rec.Outputs, rec.Lost)
	}
	pack, err := blob.Pack(context.Background(), rec.Folders.Out, blob.PackOptions{})
	must(r.t, err)
	defer pack.Close()
	r.crash()
	_, err = r.a.Fetch(context.Background(), blob.Request{Lease: wire.Hash(k.id), Peer: r.renter.Peer(), Hash: pack.ID})
	if !errors.Is(err, blob.ErrNotFound) && p2p.KindOf(err) != p2p.KindNotFound {
		r.t.Errorf("fetched: %v", err)
	}
}

// A reload that takes a leased device off the offer changes nothing for its lease.
func TestReloadKeepsLeases(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.paying.Store(true)
		k := r.run()
		conf := r.conf
		conf.Lots = nil
		must(t, r.a.Reload(conf))
		time.Sleep(time.Minute)
		if rec := r.stored(k.id); rec.State != work.Running {
			t.Fatalf("the lease is %s (%s)", rec.State, rec.Reason)
		}
		if _, err := r.a.Sell(context.Background(), r.sale()); !isCode(err, reason.OfferUnknown) {
			t.Fatalf("a device that is off the offer was sold: %v", err)
		}
		r.runtime.exit(0, time.Now())
		r.over(k.id, "completed")
	})
}

// What a renter is told of a start that failed names neither our ids nor its kind twice.
func TestStartReason(t *testing.T) {
	id := strings.Repeat("ab", 32)
	for want, err := range map[string]error{
		"exec /bin/nothing: no such file": fmt.Errorf("start container %s: %w: exec /bin/nothing: no such file", id, ErrCommand),
		"no manifest":                     fmt.Errorf("%w: import image %q: %w: no manifest", ErrImage, id, ErrImage),
		"":                                fmt.Errorf("create container %s: %w", id, ErrImage),
	} {
		if got := startReason(err); got.Detail != want {
			t.Errorf("%v: told %q, want %q", err, got.Detail, want)
		}
	}
}

// A limit that the owner set by hand is told as that: paying does not raise it.
func TestCreditReason(t *testing.T) {
	for byHand, want := range map[bool]string{true: "1 of 2 left, 3 asked; the owner set this account's limit by hand", false: "1 of 2 left, 3 asked"} {
		err := creditReason(&ledger.CreditError{Cause: ledger.ErrCreditLimit, Room: 1e6, Limit: 2e6, Asked: 3e6, ByHand: byHand})
		if r, ok := reason.Of(err); !ok || r.Code != reason.CreditLimit || r.Detail != want {
			t.Errorf("by hand %v: %v", byHand, err)
		}
	}
}

// A job keeps its user ids though the last look at the runtime failed between the sale and its start.
func TestUserIDsWhateverWasSeenLast(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		k := r.sell()
		r.prepare(k)
		r.attend(k)
		r.a.mu.Lock()
		r.a.sandbox = RuntimeInfo{}
		r.a.mu.Unlock()
		_, err := r.ask(work.Ask{Lease: k.id, Action: work.ActStart})
		must(t, err)
		r.await(k.id, work.Running, time.Second)
		r.runtime.set(func() {
			if len(r.runtime.specs) != 1 || !strings.Contains(string(r.runtime.specs[0]), `{"type":"user"}`) {
				t.Errorf("started with %s", r.runtime.specs)
			}
		})
	})
}
