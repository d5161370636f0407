package local

import (
	"context"
	"io"
	"log/slog"
	"strings"
	"testing"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/meter"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/statement"
	"github.com/gpufair/gpufair/p2p/identity"
)

// TestSettleCountsWhatWaits: without an amount, what own proposals pay for already is not proposed again.
func TestSettleCountsWhatWaits(t *testing.T) {
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	_, _, dev, err := identity.Generate()
	must(err)
	schema := kv.Schema{Release: "v0.0.1", Steps: []kv.Step{{Number: 1, Name: "first", Run: func(context.Context, *kv.Txn) error { return nil }}}}
	store, err := kv.Open(t.Context(), &kv.Memory{}, schema)
	must(err)
	b, err := books.Open(t.Context(), books.Config{Dir: t.TempDir(), Store: store, Device: dev, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	must(err)
	t.Cleanup(func() { b.Close() })
	d := Desk{Books: b, Unit: money.Credit, Role: ledger.AsRenter}
	c := b.Channel(identity.AccountID{7}, money.Credit).AllEpochs()
	update := func(f func(tx *books.Tx) error) {
		t.Helper()
		must(b.Update(t.Context(), f))
	}
	propose := func(c ledger.Channel, amount money.Micro, reference string) {
		t.Helper()
		update(func(tx *books.Tx) error {
			_, _, err := tx.Propose(books.Payment{Channel: c, Amount: amount, Method: "manual", Reference: reference})
			return err
		})
	}
	check := func(in statement.SettleRequest, want money.Micro, text string) {
		t.Helper()
		got, err := d.amount(t.Context(), in, c)
		if text == "" && (err != nil || got != want) {
			t.Errorf("%+v: %v, %v; want %v", in, got, err, want)
		}
		if text != "" && (err == nil || !strings.Contains(err.Error(), text)) {
			t.Errorf("%+v: %v, %v; want an error with %q", in, got, err, text)
		}
	}

	check(statement.SettleRequest{}, 0, "nothing is owed")
	lane := ledger.Lane{1}
	update(func(tx *books.Tx) error {
		_, err := tx.Promise(books.Opening{Channel: d.Books.Channel(c.Provider, c.Unit), Lane: lane, Rate: 1_000_000, Devices: 1, Hold: 500})
		return err
	})
	update(func(tx *books.Tx) error {
		_, err := tx.SignVoucher(lane, 111, []meter.Segment{})
		return err
	})
	check(statement.SettleRequest{}, 111, "")
	propose(b.Channel(identity.AccountID{8}, money.Credit), 111, "") // another's
	check(statement.SettleRequest{}, 111, "")
	propose(c, 40, "")
	check(statement.SettleRequest{}, 71, "")
	propose(c, 71, "invoice 3")
	check(statement.SettleRequest{}, 0, "a proposal of 0.000111 CREDIT waits for "+identity.AccountID{7}.Short()+"'s signature: `settle list`")
	check(statement.SettleRequest{Reference: "invoice 4"}, 0, "waits for")
	check(statement.SettleRequest{Reference: "invoice 3"}, 71, "") // a repeat of the same payment
	check(statement.SettleRequest{Amount: "0.000005"}, 5, "")      // on purpose
}
