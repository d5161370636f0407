package main

import (
	cmpkey "cmp"
	"encoding/xml"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
	"github.com/gpufair/gpufair/provider"
	"github.com/gpufair/gpufair/provider/control/api"
)

// Every row's parts sum up to what was earned, whatever the rows are of; a credit takes off what its lease earned last, and units are
// never added.
func TestEarned(t *testing.T) {
	first, second, euro := ledger.Lane{1}, ledger.Lane{2}, ledger.Lane{3}
	alice, bob := identity.AccountID{1}, identity.AccountID{2}
	monday := time.Date(2026, 11, 23, 12, 0, 0, 0, time.Local)
	tuesday := monday.AddDate(0, 0, 1)
	list := []earning{ // newest first
		{second, bob, "CREDIT", tuesday, -100_000},
		{euro, bob, "EUR", tuesday, 500_000},
		{second, bob, "CREDIT", tuesday, 300_000},
		{first, alice, "CREDIT", tuesday, 1_000_000},
		{first, alice, "CREDIT", monday, 2_000_000},
	}
	unpaid := map[ledger.Lane]books.Unpaid{first: {Open: 1_250_000, Lost: 250_000}}
	a, b := wire.Hash{0xa}, wire.Hash{0xb}
	sold := map[market.LeaseID]provider.SoldDevices{
		market.LeaseID(first): {Model: "RTX 4090", Devices: []wire.Hash{a}}, market.LeaseID(second): {Model: "RTX 4090", Devices: []wire.Hash{a, b}},
	}
	row := func(key, name, unit string, leases int, amounts ...string) api.Earned {
		return api.Earned{Key: key, Name: name, Unit: unit, Leases: leases, Earned: amounts[0], Settled: amounts[1], Open: amounts[2], WrittenOff: amounts[3]}
	}
	for by, want := range map[string][]api.Earned{
		byDay: {
			row("2026-11-23", "", "CREDIT", 1, "2", "1.5", "0.25", "0.25"), row("2026-11-24", "", "CREDIT", 2, "1.2", "0.2", "1", "0"),
			row("2026-11-24", "", "EUR", 1, "0.5", "0.5", "0", "0"),
		},
		byRenter: {
			row(alice.String(), "", "CREDIT", 1, "3", "1.5", "1.25", "0.25"), row(bob.String(), "", "CREDIT", 1, "0.2", "0.2", "0", "0"),
			row(bob.String(), "", "EUR", 1, "0.5", "0.5", "0", "0"),
		},
		byCard: {
			row(a.String(), "RTX 4090", "CREDIT", 1, "3", "1.5", "1.25", "0.25"),
			row(a.String()+"+"+b.String(), "RTX 4090", "CREDIT", 1, "0.2", "0.2", "0", "0"), row("unknown", "", "EUR", 1, "0.5", "0.5", "0", "0"),
		},
	} {
		rows, totals := earned(list, unpaid, sold, by)
		byKey := func(a, b api.Earned) int {
			return cmpkey.Or(cmpkey.Compare(a.Unit, b.Unit), cmpkey.Compare(a.Key, b.Key))
		}
		slices.SortFunc(want, byKey)
		if diff := cmp.Diff(want, rows); diff != "" {
			t.Errorf("by %s (-want +got):\n%s", by, diff)
		}
		if diff := cmp.Diff([]api.Earned{row("", "", "CREDIT", 2, "3.2", "1.7", "1.25", "0.25"), row("", "", "EUR", 1, "0.5", "0.5", "0", "0")}, totals); diff != "" {
			t.Errorf("totals by %s (-want +got):\n%s", by, diff)
		}
	}
}

func TestBar(t *testing.T) {
	for value, want := range map[string]string{"0": "", "24": strings.Repeat("█", 24), "12": strings.Repeat("█", 12), "1": "█"} {
		if got := bar(micro(value), micro("24")); got != want {
			t.Errorf("%s of 24: %q", value, got)
		}
	}
	if got := bar(1, 48); got != "▌" {
		t.Errorf("half a cell: %q", got)
	}
	if bar(5, 0) != "" {
		t.Error("of nothing")
	}
}

// The chart is well-formed XML, whatever a model is called.
func TestChart(t *testing.T) {
	svg := chart(api.Earnings{By: byCard, Rows: []api.Earned{{Key: "k", Name: "<b>&\x00", Unit: "CREDIT", Earned: "3", Settled: "1", Open: "1", WrittenOff: "1"}}})
	d := xml.NewDecoder(strings.NewReader(string(svg)))
	bars := 0
	for {
		token, err := d.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatalf("%v in %s", err, svg)
		}
		if e, ok := token.(xml.StartElement); ok && e.Name.Local == "rect" {
			bars++
		}
	}
	if bars != 7 {
		t.Errorf("%d rectangles", bars)
	}
}

func TestParseSince(t *testing.T) {
	now := time.Date(2026, 11, 30, 15, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Time{
		"7d": time.Date(2026, 11, 23, 0, 0, 0, 0, time.UTC), "1w": time.Date(2026, 11, 23, 0, 0, 0, 0, time.UTC), "0d": time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC),
		"12h": now.Add(-12 * time.Hour), "2026-11-01": time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC),
	} {
		if got, err := parseSince(text, now); err != nil || !got.Equal(want) {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "soon", "-3d", "-1h", "9999999d"} {
		if got, err := parseSince(text, now); err == nil {
			t.Errorf("%q: %v", text, got)
		}
	}
}
