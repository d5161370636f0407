package auction_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/auction"
)

// TestNobodyPaysTooMuch: winners never pay above their bid nor below the reserve, GPUs are never sold twice, and no option below the
// reserve wins.
func TestNobodyPaysTooMuch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		mode := rapid.SampledFrom(modes).Draw(t, "mode")
		r, entries := small(t, mode)
		out := clearing(t, r, entries)
		sold, revenue := uint32(0), money.Micro(0)
		for _, w := range out.Wins {
			bid := money.Micro(uint64(rateOf(entries[w.Leaf], w.Quantity)) * uint64(w.Quantity))
			least := money.Micro(uint64(r.Reserve) * uint64(w.Quantity))
			if w.Pay > bid || w.Pay < least || bid < least {
				t.Fatalf("leaf %d bid %d, pays %d, the reserve is %d", w.Leaf, bid, w.Pay, least)
			}
			sold, revenue = sold+w.Quantity, revenue+w.Pay
		}
		if sold > r.K || sold != out.Sold || revenue != out.Revenue || revenue < money.Micro(uint64(r.Reserve)*uint64(sold)) || out.Value < revenue {
			t.Fatalf("%+v", out)
		}
	})
}

// TestUniformPrice: in kplus1 all pay one price, at most the lowest winning bid, and it is what VCG asks of bidders for one GPU.
func TestUniformPrice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r, entries := small(t, auction.KPlus1)
		out := clearing(t, r, entries)
		for _, w := range out.Wins {
			if w.Pay != out.Wins[0].Pay || w.Pay > money.Micro(rateOf(entries[w.Leaf], 1)) {
				t.Fatalf("%+v", out)
			}
		}
		r.Mode = auction.VCG
		if same := clearing(t, r, entries); !slices.Equal(same.Wins, out.Wins) {
			t.Fatalf("vcg gives %+v, kplus1 %+v", same.Wins, out.Wins)
		}
	})
}

// gain is what an outcome is worth to a bidder whose values are its options: value of what it got less what it pays.
func gain(out auction.Outcome, leaf uint32, worth auction.Entry) int64 {
	for _, w := range out.Wins {
		if w.Leaf == leaf {
			return int64(uint64(rateOf(worth, w.Quantity))*uint64(w.Quantity)) - int64(w.Pay)
		}
	}
	return 0
}

// TestTruthIsBest: in vcg and kplus1 no other bid is worth more to a bidder than its true values, whatever the others bid.
func TestTruthIsBest(t *testing.T) {
	for _, mode := range []auction.Mode{auction.VCG, auction.KPlus1} {
		t.Run(string(mode), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				r, entries := small(t, mode)
				if len(entries) == 0 {
					return
				}
				i := rapid.IntRange(0, len(entries)-1).Draw(t, "who")
				worth := entries[i]
				truth := gain(clearing(t, r, entries), worth.Leaf, worth)
				for range 8 {
					lie := slices.Clone(entries)
					lie[i].Options = slices.Clone(worth.Options)
					for j := range lie[i].Options { // other rates for the same GPUs
						lie[i].Options[j].Rate = money.Rate(rapid.Uint64Range(0, 8).Draw(t, "lie"))
					}
					if mode == auction.VCG && rapid.Bool().Draw(t, "fewer options") {
						lie[i].Options = lie[i].Options[rapid.IntRange(0, len(lie[i].Options)-1).Draw(t, "from"):]
					}
					if got := gain(clearing(t, r, lie), worth.Leaf, worth); got > truth {
						t.Fatalf("bidding %+v for %+v gains %d, the truth %d", lie[i].Options, worth.Options, got, truth)
					}
				}
			})
		})
	}
}

// TestNoFalseName: in kplus1 a bidder that wants one GPU gains nothing by a second bid under another name.
func TestNoFalseName(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r, entries := small(t, auction.KPlus1)
		if len(entries) == 0 {
			return
		}
		worth := entries[0]
		truth := gain(clearing(t, r, entries), worth.Leaf, worth)
		two := slices.Clone(entries)
		rate := rapid.Uint64Range(0, 8)
		two[0].Options = []auction.Option{{Quantity: 1, Rate: money.Rate(rate.Draw(t, "own"))}}
		two = append(two, auction.Entry{
			Leaf: 99, Rank: rankOf(99, rapid.Byte().Draw(t, "rank")), Options: []auction.Option{{Quantity: 1, Rate: money.Rate(rate.Draw(t, "false"))}},
		})
		out := clearing(t, r, two)
		got, won := int64(0), false
		for _, w := range out.Wins {
			if w.Leaf == worth.Leaf || w.Leaf == 99 {
				got -= int64(w.Pay)
				won = true
			}
		}
		if won {
			got += int64(rateOf(worth, 1))
		}
		if got > truth {
			t.Fatalf("two names gain %d, one %d", got, truth)
		}
	})
}

// TestBiddingMoreKeepsAWin: whoever wins still wins at a higher rate for the same GPUs.
func TestBiddingMoreKeepsAWin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		mode := rapid.SampledFrom(modes).Draw(t, "mode")
		r, entries := small(t, mode)
		out := clearing(t, r, entries)
		if len(out.Wins) == 0 {
			return
		}
		w := out.Wins[rapid.IntRange(0, len(out.Wins)-1).Draw(t, "winner")]
		more := slices.Clone(entries)
		more[w.Leaf].Options = slices.Clone(entries[w.Leaf].Options)
		for i, o := range more[w.Leaf].Options {
			if o.Quantity == w.Quantity {
				more[w.Leaf].Options[i].Rate = min(market.MaxRate, o.Rate+money.Rate(rapid.Uint64Range(0, 3).Draw(t, "more")))
			}
		}
		if !slices.ContainsFunc(clearing(t, r, more).Wins, func(x auction.Win) bool { return x.Leaf == w.Leaf && x.Quantity == w.Quantity }) {
			t.Fatalf("leaf %d lost by bidding more", w.Leaf)
		}
	})
}

// TestEdges of clearing: no bids, no GPUs, one of each.
func TestEdges(t *testing.T) {
	one := []auction.Entry{{Leaf: 5, Options: []auction.Option{{Quantity: 1, Rate: market.MaxRate}}}}
	for _, mode := range modes {
		r := auction.Rules{K: 1, Reserve: market.MaxRate, Mode: mode}
		if out := clearing(t, r, nil); len(out.Wins) != 0 || out.Revenue != 0 {
			t.Errorf("%s, no bids: %+v", mode, out)
		}
		if out := clearing(t, r, one); len(out.Wins) != 1 || out.Wins[0] != (auction.Win{Leaf: 5, Quantity: 1, Pay: money.Micro(market.MaxRate)}) {
			t.Errorf("%s, at the reserve: %+v", mode, out)
		}
		r.K = 0
		if out := clearing(t, r, one); len(out.Wins) != 0 {
			t.Errorf("%s, no GPUs: %+v", mode, out)
		}
	}
}
