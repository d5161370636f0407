package main

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/gpufair/gpufair/cmd/internal/wire"
	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/meter"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/p2p/identity"
	wirehash "github.com/gpufair/gpufair/p2p/wire"
	"github.com/gpufair/gpufair/provider/control/api"
)

func ledgerInMemory(t *testing.T) *books.Books {
	t.Helper()
	_, _, dev, err := identity.Generate()
	if err != nil {
		t.Fatal(err)
	}
	store, err := kv.Open(t.Context(), &kv.Memory{}, kv.Schema{Release: "v0", Steps: []kv.Step{{Number: 1, Name: "first", Run: func(context.Context, *kv.Txn) error { return nil }}}})
	if err != nil {
		t.Fatal(err)
	}
	b, err := books.Open(t.Context(), books.Config{
		Dir: t.TempDir(), Store: store, Device: dev, Log: slog.New(slog.DiscardHandler),
		Limits: map[money.Unit]ledger.Limits{money.Credit: {Stranger: 1_000_000, StrangersTotal: 1_000_000}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// TestMoney follows what is owed and what was earned today, as vouchers come in and days begin.
func TestMoney(t *testing.T) {
	renter, owner := ledgerInMemory(t), ledgerInMemory(t)
	update := func(b *books.Books, f func(*books.Tx) error) {
		t.Helper()
		if err := b.Update(t.Context(), f); err != nil {
			t.Fatal(err)
		}
	}
	const perMs = 3_600_000 // micro-units per device-hour: one per millisecond
	o := books.Opening{Channel: renter.Channel(owner.Self(), money.Credit), Lane: ledger.Lane{1}, Rate: perMs, Devices: 1, Hold: 1000}
	var raw []byte
	update(renter, func(tx *books.Tx) (err error) { raw, err = tx.Promise(o); return err })
	update(owner, func(tx *books.Tx) error { _, err := tx.OpenLane(o, raw, renter.Device().Delegation()); return err })
	pay := func(amount money.Micro) {
		t.Helper()
		segments := []meter.Segment{{Rate: perMs, Devices: 1, Ms: uint64(amount)}}
		update(renter, func(tx *books.Tx) (err error) { raw, err = tx.SignVoucher(o.Lane, amount, segments); return err })
		update(owner, func(tx *books.Tx) error { _, err := tx.AcceptVoucher(raw, wirehash.Hash{1}); return err })
	}
	d := &daemon{Base: &wire.Base{Books: owner}}
	since := func(day time.Time) (today []api.Amount) {
		t.Helper()
		err := owner.View(t.Context(), func(r *books.Reader) (err error) { today, err = d.income.since(r, day); return err })
		if err != nil {
			t.Fatal(err)
		}
		return today
	}
	is := func(what string, got []api.Amount, want string) {
		t.Helper()
		if text := amountsText(got); text != want {
			t.Errorf("%s: %s, want %s", what, text, want)
		}
	}
	day := time.Now().Add(-time.Hour)
	is("an open lane", since(day), "nothing")
	pay(300)
	is("the first voucher", since(day), "0.0003 CREDIT")
	is("asked again", since(day), "0.0003 CREDIT")
	pay(500)
	is("the second voucher", since(day), "0.0005 CREDIT")
	got, err := d.money(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	is("owed", got.Owed, "0.0005 CREDIT")
	is("a day that has just begun", since(time.Now().Add(time.Hour)), "nothing")
	is("the day before again", since(day), "0.0005 CREDIT")
}

func TestStartOfDay(t *testing.T) {
	berlin := time.FixedZone("CET", 3600)
	at := time.Date(2026, 11, 30, 0, 30, 0, 0, berlin)
	if got, want := startOfDay(at), time.Date(2026, 11, 30, 0, 0, 0, 0, berlin); !got.Equal(want) {
		t.Errorf("the day of %v begins at %v, want %v", at, got, want)
	}
}
