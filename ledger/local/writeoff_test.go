package local_test

import (
	"context"
	"log/slog"
	"net/http"
	"testing"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/local"
	"github.com/gpufair/gpufair/ledger/meter"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/p2ptest"
)

// empty is a ledger of dev with nothing in it.
func empty(t *testing.T, dev *identity.Device) *books.Books {
	t.Helper()
	schema := kv.Schema{Release: "v0.0.1", Steps: []kv.Step{{Number: 1, Name: "first", Run: func(context.Context, *kv.Txn) error { return nil }}}}
	store, err := kv.Open(t.Context(), &kv.Memory{}, schema)
	if err != nil {
		t.Fatal(err)
	}
	b, err := books.Open(t.Context(), books.Config{
		Dir: t.TempDir(), Store: store, Device: dev, Log: slog.New(slog.DiscardHandler),
		Limits: map[money.Unit]ledger.Limits{money.Credit: {Stranger: 1 << 30, StrangersTotal: 1 << 30}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

// TestWriteOffBeforeItIsDue: a debt that may still be paid in time is given up by --force only.
func TestWriteOffBeforeItIsDue(t *testing.T) {
	buyer := p2ptest.Device(t)
	renter, provider := empty(t, buyer), empty(t, p2ptest.Device(t))
	rent := func(lane ledger.Lane, days uint32) {
		t.Helper()
		o := books.Opening{Channel: renter.Channel(provider.Self(), money.Credit), Lane: lane, Rate: 3_600_000, Devices: 1, DueDays: days}
		var first, paid []byte
		err := renter.Update(t.Context(), func(tx *books.Tx) (err error) {
			if first, err = tx.Promise(o); err == nil {
				paid, err = tx.SignVoucher(lane, 111, []meter.Segment{{Rate: 3_600_000, Devices: 1, Ms: 111}})
			}
			return err
		})
		if err == nil {
			err = provider.Update(t.Context(), func(tx *books.Tx) error {
				if _, err := tx.OpenLane(o, first, buyer.Delegation()); err != nil {
					return err
				}
				if _, err := tx.AcceptVoucher(paid, identity.Hash(paid)); err != nil {
					return err
				}
				_, err := tx.CloseLane(lane, 111)
				return err
			})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	d := local.Desk{Books: provider, Unit: money.Credit, Role: ledger.AsProvider}
	off := func(more string) string {
		return `{"account":"` + buyer.Account().String() + `","reason":"gone"` + more + `}`
	}
	rent(ledger.Lane{1}, 3)
	post(t, d, "/ledger/write-off", off(""), http.StatusConflict, "is due at")
	post(t, d, "/ledger/write-off", off(""), http.StatusConflict, "--force")
	post(t, d, "/ledger/write-off", off(`,"force":true`), http.StatusOK, `"amount":"0.000111"`)
}
