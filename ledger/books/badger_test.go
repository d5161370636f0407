package books

import (
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/badger"
	"github.com/gpufair/gpufair/ledger/meter"
	"github.com/gpufair/gpufair/ledger/money"
)

func openBadger(tb testing.TB, dir string) *badger.DB {
	tb.Helper()
	db, err := badger.Open(tb.Context(), badger.Config{Dir: dir, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	must(tb, err)
	return db
}

// The whole story over the real store: closed and opened again, and the store rebuilt from the journal after it was lost.
func TestOverBadger(t *testing.T) {
	dir := t.TempDir()
	db := openBadger(t, filepath.Join(dir, "store"))
	dev := newDevice(t)
	p := pairOf{renter: newParty(t), provider: openParty(t, dev, db, filepath.Join(dir, "ledger"), testLimits)}
	p.meet()
	lane := p.sell(1, 500)
	for i := range money.Micro(20) {
		p.pay(lane, 100+i)
	}
	p.close(lane, 110)
	p.settle(p.renter, p.provider, 110, "x")
	p.equal()
	size := p.provider.size()
	must(t, p.provider.Close())
	must(t, db.Close())
	for _, store := range []string{"store", "lost"} {
		db := openBadger(t, filepath.Join(dir, store))
		again := openParty(t, dev, db, filepath.Join(dir, "ledger"), testLimits)
		must(t, again.ReadOnly())
		again.verified(ResultOK)
		if again.size() != size {
			t.Fatalf("%s: %d entries of %d", store, again.size(), size)
		}
		must(t, again.Close())
		must(t, db.Close())
	}
}

// BenchmarkDurable measures commits of one voucher each, by as many callers at once as lanes tick in a busy daemon, beside the plain
// rate of fsync on the same disk.
func BenchmarkDurable(b *testing.B) {
	b.Run("fsync", func(b *testing.B) {
		f, err := os.Create(filepath.Join(b.TempDir(), "plain"))
		must(b, err)
		defer f.Close()
		for b.Loop() {
			if _, err := f.Write(make([]byte, 4096)); err != nil {
				b.Fatal(err)
			}
			must(b, f.Sync())
		}
	})
	b.Run("vouchers", func(b *testing.B) {
		db := openBadger(b, b.TempDir())
		defer db.Close()
		renter := openParty(b, newDevice(b), db, b.TempDir(), nil)
		provider := newDevice(b)
		lanes := 100 * runtime.GOMAXPROCS(0)
		next := make(chan ledger.Lane, lanes)
		for i := range lanes {
			o := Opening{Channel: renter.Channel(provider.Account(), money.Credit), Lane: ledger.Lane{1, byte(i >> 8), byte(i)}, Rate: perMs, Devices: 1}
			renter.update(func(tx *Tx) error {
				_, err := tx.Promise(o)
				return err
			})
			next <- o.Lane
		}
		b.SetParallelism(100)
		b.ResetTimer()
		b.RunParallel(func(pb *testing.PB) {
			lane, amount := <-next, money.Micro(0)
			for pb.Next() {
				amount++
				err := renter.Update(b.Context(), func(tx *Tx) error {
					_, err := tx.SignVoucher(lane, amount, []meter.Segment{{Rate: perMs, Devices: 1, Ms: uint64(amount)}})
					return err
				})
				if err != nil {
					b.Error(err)
				}
			}
		})
		b.StopTimer()
		must(b, renter.Close())
	})
}
