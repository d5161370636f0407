package provider

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/blob"
	"github.com/gpufair/gpufair/p2p/wire"
)

// kill -9 in any state, then start: each lease goes on or ends in exactly one way, its container is adopted or swept, its device is free
// in the end, nothing is billed that no tick recorded, and the next lease has the next generation.
func TestCrash(t *testing.T) {
	for name, c := range crashes() {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				r.paying.Store(true)
				k := c.until(r)
				began, before := time.Now(), k.look().billable
				r.crash()
				if c.then != nil {
					c.then(r, k.id)
				}
				for r.stored(k.id).State != work.Ended && time.Since(began) < 15*time.Minute {
					time.Sleep(time.Second)
				}
				rec := r.over(k.id, c.why)
				if most := before + uint64(time.Since(began)/time.Millisecond); rec.Billable > most {
					t.Errorf("billed %d ms, at most %d ran", rec.Billable, most)
				}
				r.runtime.set(func() { r.runtime.deaf = false })
				if next := r.sell(); next.lease.Slots[0].Generation != 2 {
					t.Errorf("the next lease has generation %d", next.lease.Slots[0].Generation)
				}
			})
		})
	}
}

// crash is a state to die in.
type crash struct {
	until func(*rig) *keeper // brings a lease to where the process dies
	then  func(*rig, market.LeaseID)
	why   string
}

func crashes() map[string]crash {
	all := crashesOfRuntime()
	// it can be started anew
	maps.Copy(all, map[string]crash{
		"agreed": {until: (*rig).sell, why: "not_ready"},
		"preparing": {until: func(r *rig) *keeper {
			k := r.sell()
			r.prepare(k)
			return k
		}, why: "prepare_timeout"},
		"half started": {until: func(r *rig) *keeper {
			k := r.sell()
			r.prepare(k)
			_, err := r.runtime.Create(context.Background(), CreateRequest{ID: k.id.String()})
			must(r.t, err)
			return k
		}, then: func(r *rig, id market.LeaseID) {
			time.Sleep(5 * time.Second)
			r.attend(r.keeper(id))
			_, err := r.ask(work.Ask{Lease: id, Action: work.ActStart})
			must(r.t, err)
			r.await(id, work.Running, time.Second)
			r.runtime.exit(0, time.Now())
		}, why: "completed"},
		"running": {until: func(r *rig) *keeper {
			k := r.run()
			time.Sleep(25 * time.Second)
			return k
		}, then: func(r *rig, id market.LeaseID) {
			r.attend(r.keeper(id))
			time.Sleep(10 * time.Second)
			r.runtime.exit(0, time.Now())
		}, why: "completed"},
		"paused": {until: func(r *rig) *keeper {
			k := r.run()
			r.paying.Store(false)
			r.await(k.id, work.Paused, time.Minute)
			return k
		}, why: "renter_gone"},
		"stopping": {until: func(r *rig) *keeper {
			r.runtime.deaf = true
			k := r.run()
			_, err := r.ask(work.Ask{Lease: k.id, Action: work.ActStop})
			must(r.t, err)
			return k
		}, why: "stopped_renter"},
	})
	return all
}

// crashesOfRuntime are those in which the runtime fails, too.
func crashesOfRuntime() map[string]crash {
	return map[string]crash{
		"running, and its container is gone": {until: func(r *rig) *keeper {
			k := r.run()
			time.Sleep(25 * time.Second)
			r.runtime.set(func() { clear(r.runtime.jobs) })
			return k
		}, why: "runtime_lost"},
		"ended, and the runtime is down": {until: func(r *rig) *keeper {
			k := r.run()
			r.runtime.set(func() { r.runtime.down = true })
			must(r.t, k.do(context.Background(), func() error { k.finish(k.a.ctx, reason.New(reason.StoppedRenter, "")); return nil }))
			return k
		}, then: func(r *rig, id market.LeaseID) {
			time.Sleep(20 * time.Second)
			if s, _ := r.a.capacity.Look(r.conf.Lots[0].Device); s.Lease == nil {
				r.t.Error("the device was given back with the job in it")
			}
			r.runtime.set(func() { r.runtime.down = false })
		}, why: "stopped_renter"},
		"running, and the runtime is down": {until: func(r *rig) *keeper {
			k := r.run()
			time.Sleep(25 * time.Second)
			r.runtime.set(func() { r.runtime.down = true })
			return k
		}, then: func(r *rig, id market.LeaseID) {
			time.Sleep(20 * time.Second)
			if s := r.keeper(id).look(); s.billable > 26_000 {
				r.t.Errorf("%d ms billed while nobody could say that it runs", s.billable)
			}
			r.runtime.set(func() { r.runtime.down = false })
			time.Sleep(5 * time.Second)
			r.runtime.exit(0, time.Now())
		}, why: "completed"},
	}
}

// The sweeper removes what no lease owns and leaves what one does, as soon as the runtime answers.
func TestSweep(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.paying.Store(true)
		k := r.run()
		_, err := r.runtime.Create(t.Context(), CreateRequest{ID: "stray"})
		must(t, err)
		_, err = r.mounts.Make(t.Context(), MountRequest{ID: "stray"})
		must(t, err)
		must(t, os.MkdirAll(filepath.Join(r.a.inbox, "stray", "whole"), 0o700))
		r.runtime.set(func() { r.runtime.down = true })
		if err := r.a.sweep(t.Context()); err == nil {
			t.Fatal("swept without a runtime")
		}
		r.runtime.set(func() { r.runtime.down = false })
		must(t, r.a.sweep(t.Context()))
		if _, err := os.Stat(filepath.Join(r.a.inbox, "stray")); err == nil {
			t.Error("stray blobs are left")
		}
		ids, err := r.mounts.List(t.Context())
		must(t, err)
		if r.runtime.deleted != 1 || len(ids) != 1 || r.runtime.state(k.id) != ContainerRunning {
			t.Errorf("%d deleted, folders %v, the job is %s", r.runtime.deleted, ids, r.runtime.state(k.id))
		}
	})
}

// A ledger that lost its records knows none of the leases that live: their jobs and results stay.
func TestSweepSparesWhatALostLedgerForgot(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.paying.Store(true)
		k := r.run()
		inbox := filepath.Join(r.a.inbox, k.id.String())
		must(t, os.MkdirAll(inbox, 0o700))
		r.cancel()
		r.a.keeping.Wait()
		must(t, r.a.books.Close())
		dir := filepath.Join(r.dir, "ours")
		must(t, os.Remove(filepath.Join(dir, "journal")))
		r.disk = &fullDisk{}
		r.open(dir)
		if r.a.books.ReadOnly() == nil || r.a.live(k.id.String()) {
			t.Fatal("the ledger has not lost the lease")
		}
		must(t, r.a.sweep(t.Context()))
		ids, err := r.mounts.List(t.Context())
		must(t, err)
		for what, ask := range map[string]func() error{
			"status": func() error { _, err := r.ask(work.Ask{Lease: k.id, Action: work.ActStatus}); return err },
			"release": func() error {
				_, err := r.ask(work.Ask{Lease: k.id, Action: work.ActRelease, Signed: []byte{1}})
				return err
			},
			"fetch": func() error {
				_, err := r.a.Fetch(t.Context(), blob.Request{Lease: wire.Hash(k.id), Peer: r.renter.Peer()})
				return err
			},
			"logs": func() error { _, err := r.a.openLog(t.Context(), r.renter.Peer(), wire.Hash(k.id)); return err },
		} {
			if err := ask(); p2p.KindOf(err) != p2p.KindUnavailable || !strings.Contains(err.Error(), "the provider's ledger is read-only") {
				t.Errorf("%s of a lease that the ledger may have lost: %v", what, err)
			}
		}
		if _, err := os.Stat(inbox); err != nil || len(ids) != 1 || r.runtime.state(k.id) != ContainerRunning {
			t.Errorf("inbox %v, folders %v, the job is %s", err, ids, r.runtime.state(k.id))
		}
	})
}

// Images go a day after their last use, but not those that a lease wants.
func TestSweepImages(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.paying.Store(true)
		image := func(name string) string { return digest(wire.Sum("", []byte(name))) }
		r.runtime.images = []ImageInfo{{Digest: image("image"), Size: 1}, {Digest: image("old"), Size: 1}}
		k := r.run() // of "image"
		must(t, r.a.sweepImages(t.Context(), time.Now()))
		if len(r.runtime.images) != 2 {
			t.Fatal("a young image was removed")
		}
		must(t, r.a.sweepImages(t.Context(), time.Now().Add(25*time.Hour)))
		if left := r.runtime.images; len(left) != 1 || left[0].Digest != image("image") {
			t.Fatalf("left: %v", left)
		}
		r.runtime.exit(0, time.Now())
		r.over(k.id, "completed")
		time.Sleep(time.Second) // the newest stays: the other was used before
		r.runtime.images = append(r.runtime.images, ImageInfo{Digest: image("huge"), Size: imageBytes})
		must(t, r.a.sweepImages(t.Context(), time.Now()))
		if left := r.runtime.images; len(left) != 1 || left[0].Digest != image("huge") {
			t.Fatalf("over the limit are left: %v", left)
		}
	})
}

// An account that fetches nothing keeps no more than a few results here.
func TestEvict(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.paying.Store(true)
		var ids []market.LeaseID
		for range keptResults + 3 {
			k := r.run()
			time.Sleep(time.Second) // the oldest goes first: no two end at once
			r.runtime.exit(0, time.Now())
			r.over(k.id, "completed")
			ids = append(ids, k.id)
		}
		time.Sleep(10 * time.Second)
		r.a.mu.Lock()
		n := len(r.a.keepers)
		r.a.mu.Unlock()
		if n > keptResults+1 {
			t.Fatalf("%d keepers", n)
		}
		if !r.stored(ids[0]).Wiped || r.stored(ids[len(ids)-1]).Wiped {
			t.Fatal("the wrong results were dropped")
		}
		list, err := r.a.Leases(t.Context(), true)
		if err != nil || len(list) != len(ids) || list[0].ID != ids[len(ids)-1].String() {
			t.Fatalf("%d listed: %v", len(list), err)
		}
		if open, err := r.a.Leases(t.Context(), false); err != nil || len(open) != 0 {
			t.Fatalf("open: %v %v", open, err)
		}
		one, err := r.a.FindLease(t.Context(), ids[2].String()[:9])
		if err != nil || one.ID != ids[2].String() {
			t.Fatalf("found %v %v", one.ID, err)
		}
	})
}

// A release that comes after everything was wiped still caps the charge, down to what was vouchered.
func TestLateRelease(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.paying.Store(true)
		k := r.run()
		time.Sleep(25 * time.Second)
		r.runtime.exit(0, time.Now())
		r.paying.Store(false)
		rec := r.over(k.id, "completed")
		time.Sleep(time.Second)
		_, err := r.ask(work.Ask{Lease: k.id, Action: work.ActFetched})
		must(t, err)
		<-k.done
		rel := market.Release{
			Header: r.renter.Header(market.Version), Delegation: r.renter.DelegationHash(), Lease: k.id, Beat: 3, Charge: 1,
			Reason: reason.New(reason.ProviderGone, ""),
		}
		status, err := r.ask(work.Ask{Lease: k.id, Action: work.ActRelease, Signed: r.sign(market.DomainRelease, rel)})
		must(t, err)
		var amount uint64
		must(t, r.a.books.View(t.Context(), func(b *books.Reader) error {
			lane, err := b.Lane([32]byte(k.id))
			amount = uint64(lane.Amount)
			return err
		}))
		if uint64(status.Charge) != amount || status.Charge > rec.Charge || amount == 0 {
			t.Fatalf("charge %v after a late release, vouchered %d, %v before", status.Charge, amount, rec.Charge)
		}
		r.over(k.id, "completed")
	})
}

// A pack that a renter asks for again and again is made once in a while.
func TestSyncIsBounded(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.paying.Store(true)
		k := r.run()
		out := k.look().rec.Folders.Out
		var ids []wire.Hash
		for i := range 20 {
			must(t, os.WriteFile(filepath.Join(out, fmt.Sprint(i)), []byte("x"), 0o600))
			status, err := r.ask(work.Ask{Lease: k.id, Action: work.ActSync})
			must(t, err)
			if len(ids) == 0 || ids[len(ids)-1] != status.Outputs {
				ids = append(ids, status.Outputs)
			}
			time.Sleep(time.Second)
		}
		if len(ids) < 2 || len(ids) > 5 {
			t.Fatalf("%d packs in 20 s", len(ids))
		}
	})
}
