package provider

import (
	"context"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/market/work"
)

// restore goes on with a new agent over what an engine held, as after `ledger restore`: containers and folders are as they are now.
func (r *rig) restore(backup *fullDisk) uint32 {
	r.t.Helper()
	r.cancel()
	r.a.keeping.Wait()
	must(r.t, r.a.books.Close())
	r.disk = backup
	store, err := kv.Open(context.Background(), backup, kv.Schema{Release: "v0", Steps: []kv.Step{{
		Number: 1, Name: "first", Run: func(context.Context, *kv.Txn) error { return nil },
	}}})
	must(r.t, err)
	epoch, err := books.NewEpoch(context.Background(), store, r.owner, 0, time.Now())
	must(r.t, err)
	r.open(filepath.Join(r.t.(interface{ TempDir() string }).TempDir(), "restored"))
	return epoch
}

// copyDisk is what the store holds now.
func (r *rig) copyDisk() *fullDisk {
	r.t.Helper()
	var writes []kv.Write
	must(r.t, r.disk.View(context.Background(), func(rd kv.Reader) error {
		for p, err := range rd.Iterate(nil, nil) {
			if err != nil {
				return err
			}
			writes = append(writes, kv.Write{Key: p.Key, Value: p.Value})
		}
		return nil
	}))
	next := &fullDisk{}
	must(r.t, next.Apply(context.Background(), writes))
	return next
}

// TestRestoredLedger: after an old backup a lease that ran on and ended ends once more, with what its renter signed for, and no number that
// was used after the backup is used again.
func TestRestoredLedger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		k := r.run()
		r.paying.Store(true)
		time.Sleep(25 * time.Second)
		synctest.Wait()
		backup := r.copyDisk()
		time.Sleep(60 * time.Second)
		synctest.Wait()
		var signed, before books.Lane
		must(t, r.theirs.View(t.Context(), func(rd *books.Reader) (err error) { signed, err = rd.Lane(ledger.Lane(k.id)); return err }))
		epoch := r.restore(backup)
		must(t, r.a.books.View(t.Context(), func(rd *books.Reader) (err error) { before, err = rd.Lane(ledger.Lane(k.id)); return err }))
		if before.Amount >= signed.Amount {
			t.Fatalf("the backup knows %v, the renter signed %v", before.Amount, signed.Amount)
		}
		var copies []books.LaneCopy
		must(t, r.theirs.View(t.Context(), func(rd *books.Reader) (err error) {
			page, err := rd.Copies(r.owner.Account(), nil, 9)
			copies = page.Lanes
			return err
		}))
		must(t, r.a.books.Update(t.Context(), func(tx *books.Tx) error {
			_, err := tx.AdoptLane(r.renter.Account(), copies[0], nil)
			return err
		}))
		again := r.a.keepers[k.id]
		must(t, again.do(t.Context(), func() error { again.finish(r.a.ctx, again.rec.Reason); return nil }))
		synctest.Wait()
		rec := again.look().rec
		if rec.State != work.Ended || rec.Charge < signed.Amount {
			t.Errorf("%s with a charge of %v, the renter signed %v", rec.State, rec.Charge, signed.Amount)
		}
		first, err := seqStore{r.a}.ReserveSeq(t.Context(), 10)
		if err != nil || first <= uint64(epoch) {
			t.Errorf("adverts go on at %d, %v", first, err)
		}
		for _, slot := range r.a.capacity.Held(k.id) {
			if slot.Generation < uint64(epoch) {
				t.Errorf("generation %d", slot.Generation)
			}
		}
		r.close()
	})
}

// TestLeaseWithoutALane: of a lease whose lane can't be read any more nothing is owed, and it ends all the same.
func TestLeaseWithoutALane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		k := r.run()
		synctest.Wait()
		backup := r.copyDisk()
		store, err := kv.Open(t.Context(), backup, kv.Schema{Release: "v0", Steps: []kv.Step{{
			Number: 1, Name: "first", Run: func(context.Context, *kv.Txn) error { return nil },
		}}})
		must(t, err)
		must(t, store.Update(t.Context(), func(tx *kv.Txn) error { return tx.Of(kv.Books).Delete(append([]byte("lane/"), k.id[:]...)) }))
		r.restore(backup)
		again := r.a.keepers[k.id]
		must(t, again.do(t.Context(), func() error { again.finish(r.a.ctx, again.rec.Reason); return nil }))
		synctest.Wait()
		if rec := again.look().rec; rec.State != work.Ended {
			t.Errorf("it is %s", rec.State)
		}
		r.close()
	})
}
