package books

import (
	"io"
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/gpufair/gpufair/ledger/badger"
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
