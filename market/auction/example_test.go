package auction_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market/auction"
)

// between is the table of docs/auctions.md between two marks, as rows of cells.
func between(t *testing.T, mark string) (rows [][]string) {
	t.Helper()
	page, err := os.ReadFile("../../docs/auctions.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(page), "<!-- "+mark+" -->")
	table, _, closed := strings.Cut(rest, "<!-- /"+mark+" -->")
	if !ok || !closed {
		t.Fatalf("docs/auctions.md has no table %q", mark)
	}
	for line := range strings.SplitSeq(strings.TrimSpace(table), "\n") {
		var cells []string
		for c := range strings.SplitSeq(strings.Trim(line, "|"), "|") {
			cells = append(cells, strings.TrimSpace(c))
		}
		rows = append(rows, cells)
	}
	return rows[2:]
}

// bidText is the options of a text such as "2 GPUs at 0.45, or 4 GPUs at 0.46".
func bidText(t *testing.T, s string) (options []auction.Option) {
	t.Helper()
	for part := range strings.SplitSeq(s, ", or ") {
		var n uint32
		var unitName, price string
		if _, err := fmt.Sscanf(part, "%d %s at %s", &n, &unitName, &price); err != nil {
			t.Fatalf("%q: %v", part, err)
		}
		rate, err := money.ParseRate(price)
		if err != nil {
			t.Fatal(err)
		}
		options = append(options, opt(n, rate))
	}
	return options
}

func amount(t *testing.T, s string) money.Micro {
	t.Helper()
	m, err := money.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestWorkedExample executes the example of docs/auctions.md: its bids give its winners and its prices.
func TestWorkedExample(t *testing.T) {
	for _, row := range between(t, "prices") {
		mode := auction.Mode(strings.Trim(row[0], "`"))
		h := newHall(t, mode, 4)
		leaves, sealed := map[string]uint32{}, uint32(0)
		for i, bidder := range between(t, "example") {
			if bidder[1] == "sealed" {
				sealed = h.bids(i+1, opt(1, 250_000))
				continue
			}
			options := bidText(t, bidder[1])
			leaves[bidder[0]] = h.bids(i+1, options...)
			counts := strings.Split(bidder[2], ", or ")
			for n, o := range options {
				if o.Rate < h.open.Reserve {
					if bidder[2] != "below the reserve" {
						t.Errorf("%s counts %s", bidder[0], bidder[2])
					}
				} else if got := money.Micro(o.Rate-h.open.Reserve) * money.Micro(o.Quantity); got != amount(t, counts[n]) {
					t.Errorf("%s counts %v, the page says %s", bidder[0], got, counts[n])
				}
			}
		}
		h.opensAll(sealed)
		h.awards(h.honest())
		r := h.kept()
		if len(r.Price) != 2 || r.Price[0].Leaf != leaves["Ann"] || r.Price[1].Leaf != leaves["Cid"] || r.Price[0].Quantity != 2 || r.Price[1].Quantity != 2 {
			t.Fatalf("%s: %+v", mode, r.Price)
		}
		if r.Price[0].Pay != amount(t, row[1]) || r.Price[1].Pay != amount(t, row[2]) {
			t.Errorf("%s: they pay %v and %v, the page says %s and %s", mode, r.Price[0].Pay, r.Price[1].Pay, row[1], row[2])
		}
		if h.open.Bond != amount(t, "0.066666") || len(r.Dues.Posted) != 1 || r.Dues.Posted[0].Leaf != sealed {
			t.Errorf("%s: bond %v, %+v", mode, h.open.Bond, r.Dues)
		}
	}
}
