package auction_test

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/auction"
	"github.com/gpufair/gpufair/p2p/wire"
)

// rankOf is a rank without a collision for each leaf and salt.
func rankOf(leaf uint32, salt byte) wire.Hash {
	return wire.Sum("gpufair/test", binary.BigEndian.AppendUint32([]byte{salt}, leaf))
}

// byRank is the entries in the order that breaks ties.
func byRank(entries []auction.Entry) []auction.Entry {
	out := slices.Clone(entries)
	slices.SortFunc(out, func(a, b auction.Entry) int {
		return cmp.Or(bytes.Compare(a.Rank[:], b.Rank[:]), cmp.Compare(a.Leaf, b.Leaf))
	})
	return out
}

// way is one way to give out the GPUs: for each bid by rank the quantity that it gets, 0 for none.
type way struct {
	surplus, sold uint64
	got           []uint32
}

// better is the rule of Clear in its own words: surplus, GPUs sold, then the first bid by rank that one serves and the other does not,
// and of one bid's options the smaller quantity.
func (w way) better(o way) bool {
	if w.surplus != o.surplus {
		return w.surplus > o.surplus
	}
	if w.sold != o.sold {
		return w.sold > o.sold
	}
	for i := range w.got {
		if (w.got[i] == 0) != (o.got[i] == 0) {
			return w.got[i] != 0
		}
		if w.got[i] != o.got[i] {
			return w.got[i] < o.got[i]
		}
	}
	return false
}

// best tries every way there is.
func best(r auction.Rules, sorted []auction.Entry) way {
	found, at := way{got: make([]uint32, len(sorted))}, way{got: make([]uint32, len(sorted))}
	var try func(i int)
	try = func(i int) {
		if i == len(sorted) {
			if at.better(found) {
				found = way{at.surplus, at.sold, slices.Clone(at.got)}
			}
			return
		}
		try(i + 1)
		for _, o := range sorted[i].Options {
			if o.Rate < r.Reserve || at.sold+uint64(o.Quantity) > uint64(r.K) {
				continue
			}
			was := at
			at.surplus += uint64(o.Rate-r.Reserve) * uint64(o.Quantity)
			at.sold += uint64(o.Quantity)
			at.got[i] = o.Quantity
			try(i + 1)
			at.surplus, at.sold = was.surplus, was.sold
			at.got[i] = 0
		}
	}
	try(0)
	return found
}

func rateOf(e auction.Entry, quantity uint32) money.Rate {
	for _, o := range e.Options {
		if o.Quantity == quantity {
			return o.Rate
		}
	}
	return 0
}

// brute clears by trying everything, and prices by the textbook: VCG by taking each winner out, KPlus1 by sorting.
func brute(r auction.Rules, entries []auction.Entry) (out auction.Outcome) {
	sorted := byRank(entries)
	all := best(r, sorted)
	for i, e := range sorted {
		q := all.got[i]
		if q == 0 {
			continue
		}
		value := uint64(rateOf(e, q)) * uint64(q)
		pay := value
		switch r.Mode {
		case auction.VCG:
			without := best(r, slices.Delete(slices.Clone(sorted), i, i+1)).surplus
			pay = uint64(r.Reserve)*uint64(q) + without - (all.surplus - (value - uint64(r.Reserve)*uint64(q)))
		case auction.KPlus1:
			pay = uint64(r.Reserve)
			for j, l := range sorted {
				if all.got[j] == 0 && l.Options[0].Rate >= r.Reserve {
					pay = max(pay, uint64(l.Options[0].Rate))
					out.Losing = money.Rate(pay)
				}
			}
		}
		out.Wins = append(out.Wins, auction.Win{Leaf: e.Leaf, Quantity: q, Pay: money.Micro(pay)})
		out.Sold += q
		out.Value += money.Micro(value)
		out.Revenue += money.Micro(pay)
	}
	slices.SortFunc(out.Wins, func(a, b auction.Win) int { return cmp.Compare(a.Leaf, b.Leaf) })
	return out
}

// small draws an auction of so few bids and such narrow rates that ties are common and every way can be tried.
func small(t *rapid.T, mode auction.Mode) (auction.Rules, []auction.Entry) {
	r := auction.Rules{K: rapid.Uint32Range(0, 6).Draw(t, "k"), Reserve: money.Rate(rapid.Uint64Range(0, 3).Draw(t, "reserve")), Mode: mode}
	rate := rapid.Uint64Range(0, 6)
	if rapid.IntRange(0, 9).Draw(t, "top") == 0 { // prices at the top of the range
		r.Reserve = money.Rate(rapid.Uint64Range(0, 1).Draw(t, "reserve at the top")) * market.MaxRate
		rate = rapid.Uint64Range(uint64(market.MaxRate)-2, uint64(market.MaxRate))
	}
	salt := rapid.Byte().Draw(t, "salt")
	var entries []auction.Entry
	for i := range rapid.IntRange(0, 6).Draw(t, "bids") {
		e := auction.Entry{Leaf: uint32(i), Rank: rankOf(uint32(i), salt)}
		most := 3
		if mode == auction.KPlus1 {
			most = 1
		}
		q := uint32(0)
		for range rapid.IntRange(1, most).Draw(t, "options") {
			q += rapid.Uint32Range(1, 3).Draw(t, "quantity")
			if mode == auction.KPlus1 {
				q = 1
			}
			e.Options = append(e.Options, auction.Option{Quantity: q, Rate: money.Rate(rate.Draw(t, "rate"))})
		}
		entries = append(entries, e)
	}
	return r, entries
}

func clearing(t interface {
	Helper()
	Fatal(...any)
}, r auction.Rules, entries []auction.Entry,
) auction.Outcome {
	t.Helper()
	out, err := auction.Clear(r, entries)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

var modes = []auction.Mode{auction.First, auction.KPlus1, auction.VCG}

// TestClearIsBruteForce: winners, quantities and payments are those of trying every way, whatever the order of the bids.
func TestClearIsBruteForce(t *testing.T) {
	for _, mode := range modes {
		t.Run(string(mode), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				r, entries := small(t, mode)
				want := brute(r, entries)
				if got := clearing(t, r, entries); !reflect.DeepEqual(got, want) {
					t.Fatalf("%+v of %+v\n got %+v\nwant %+v", r, entries, got, want)
				}
				shuffled := rapid.Permutation(entries).Draw(t, "order")
				if got := clearing(t, r, shuffled); !reflect.DeepEqual(got, want) {
					t.Fatalf("another order of the bids: got %+v, want %+v", got, want)
				}
			})
		})
	}
}

// FuzzClear: the same on whatever bytes make.
func FuzzClear(f *testing.F) {
	f.Add(uint8(4), uint8(2), []byte{1, 5, 2, 4, 2, 4, 3, 3, 1, 1})
	f.Fuzz(func(t *testing.T, k, reserve uint8, b []byte) {
		var entries []auction.Entry
		for i := 0; i+1 < len(b) && i < 14; i += 2 {
			entries = append(entries, auction.Entry{
				Leaf: uint32(i), Rank: rankOf(uint32(i), k),
				Options: []auction.Option{{Quantity: uint32(b[i]%6) + 1, Rate: money.Rate(b[i+1] % 8)}},
			})
		}
		for _, mode := range []auction.Mode{auction.First, auction.VCG} {
			r := auction.Rules{K: uint32(k % 17), Reserve: money.Rate(reserve % 8), Mode: mode}
			if got, want := clearing(t, r, entries), brute(r, entries); !reflect.DeepEqual(got, want) {
				t.Fatalf("%+v of %+v\n got %+v\nwant %+v", r, entries, got, want)
			}
		}
	})
}

// large draws an auction that no brute force could clear.
func large(rng *rand.Rand, mode auction.Mode, k uint32, bids, options int) (auction.Rules, []auction.Entry) {
	entries := make([]auction.Entry, bids)
	for i := range entries {
		e := auction.Entry{Leaf: uint32(i), Rank: rankOf(uint32(i), byte(rng.Uint32()))}
		n := options
		if mode == auction.KPlus1 {
			n = 1
		}
		for q := range uint32(n) {
			quantity := q + 1
			if n == 1 && mode != auction.KPlus1 {
				quantity = 1 + rng.Uint32N(MaxDraw)
			}
			e.Options = append(e.Options, auction.Option{Quantity: quantity, Rate: money.Rate(rng.Uint64N(1_000_000))})
		}
		entries[i] = e
	}
	return auction.Rules{K: k, Reserve: 200_000, Mode: mode}, entries
}

// MaxDraw is the largest bundle that large draws.
const MaxDraw = 16

// unpruned is the programme of a textbook over all bids, without contenders: the optimal surplus, with one bid left out if not < 0.
func unpruned(r auction.Rules, entries []auction.Entry, without int) uint64 {
	row := make([]uint64, r.K+1)
	for i, e := range entries {
		if i == without {
			continue
		}
		next := slices.Clone(row)
		for _, o := range e.Options {
			for c := o.Quantity; c <= r.K && o.Rate >= r.Reserve; c++ {
				next[c] = max(next[c], row[c-o.Quantity]+uint64(o.Rate-r.Reserve)*uint64(o.Quantity))
			}
		}
		row = next
	}
	return row[r.K]
}

// TestPruningIsExact: keeping few bids of each quantity changes neither the welfare nor a payment, in auctions of hundreds of bids with
// up to 16 exclusive options each.
func TestPruningIsExact(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 150 {
		k := rng.Uint32N(auction.MaxK + 1)
		r, entries := large(rng, auction.VCG, k, rng.IntN(120), 1+rng.IntN(auction.MaxOptions))
		out := clearing(t, r, entries)
		all := unpruned(r, entries, -1)
		if got := uint64(out.Value) - uint64(out.Sold)*uint64(r.Reserve); got != all {
			t.Fatalf("k %d, %d bids: surplus %d, optimum %d", k, len(entries), got, all)
		}
		for _, w := range out.Wins {
			own := (uint64(rateOf(entries[w.Leaf], w.Quantity)) - uint64(r.Reserve)) * uint64(w.Quantity)
			want := uint64(r.Reserve)*uint64(w.Quantity) + unpruned(r, entries, int(w.Leaf)) - (all - own)
			if uint64(w.Pay) != want {
				t.Fatalf("k %d: leaf %d pays %d, want %d", k, w.Leaf, w.Pay, want)
			}
		}
	}
}

// TestPruningKeepsWhomOthersLeave: three bidders bid more for three GPUs than the fourth, and all win single ones: the fourth gets the three.
// Keeping floor(k/q)+1 options of each quantity would do for bids of one option each, not here.
func TestPruningKeepsWhomOthersLeave(t *testing.T) {
	var entries []auction.Entry
	for i := range uint32(3) {
		entries = append(entries, auction.Entry{Leaf: i, Rank: rankOf(i, 0), Options: []auction.Option{{1, 100}, {3, 40}}})
	}
	entries = append(entries, auction.Entry{Leaf: 3, Rank: rankOf(3, 0), Options: []auction.Option{{3, 39}}})
	for _, mode := range []auction.Mode{auction.First, auction.VCG} {
		r := auction.Rules{K: 6, Mode: mode}
		got, want := clearing(t, r, entries), brute(r, entries)
		if !reflect.DeepEqual(got, want) || len(got.Wins) != 4 || got.Value != 417 {
			t.Errorf("%s: got %+v, want %+v", mode, got, want)
		}
	}
}

// TestClearRefuses what no Open and no Bid can say.
func TestClearRefuses(t *testing.T) {
	one := func(q uint32, rate money.Rate) []auction.Entry {
		return []auction.Entry{{Options: []auction.Option{{Quantity: q, Rate: rate}}}}
	}
	for name, c := range map[string]struct {
		r auction.Rules
		e []auction.Entry
	}{
		"mode":             {auction.Rules{K: 1, Mode: "second"}, nil},
		"no mode":          {auction.Rules{K: 1}, nil},
		"too many GPUs":    {auction.Rules{K: auction.MaxK + 1, Mode: auction.First}, nil},
		"reserve":          {auction.Rules{K: 1, Mode: auction.First, Reserve: market.MaxRate + 1}, nil},
		"rate":             {auction.Rules{K: 1, Mode: auction.First}, one(1, market.MaxRate+1)},
		"no GPU":           {auction.Rules{K: 1, Mode: auction.First}, one(0, 1)},
		"quantity":         {auction.Rules{K: 1, Mode: auction.First}, one(auction.MaxK+1, 1)},
		"bundle in kplus1": {auction.Rules{K: 4, Mode: auction.KPlus1}, one(2, 1)},
		"no options":       {auction.Rules{K: 1, Mode: auction.First}, []auction.Entry{{}}},
		"equal quantities": {auction.Rules{K: 1, Mode: auction.First}, []auction.Entry{{Options: []auction.Option{{1, 1}, {1, 2}}}}},
		"too many bids":    {auction.Rules{K: 1, Mode: auction.First}, make([]auction.Entry, auction.MaxLeaves+1)},
	} {
		if out, err := auction.Clear(c.r, c.e); !errors.Is(err, auction.ErrInvalid) {
			t.Errorf("%s: got %+v, %v", name, out, err)
		}
	}
}

// BenchmarkClear10k clears 10,000 bids on 16 GPUs (DESIGN: under 50 ms).
func BenchmarkClear10k(b *testing.B) {
	for _, c := range []struct {
		name    string
		mode    auction.Mode
		options int
	}{
		{"first", auction.First, 1},
		{"kplus1", auction.KPlus1, 1},
		{"vcg", auction.VCG, 1},
		{"vcg-xor16", auction.VCG, 16},
	} {
		b.Run(c.name, func(b *testing.B) {
			r, entries := large(rand.New(rand.NewPCG(3, 4)), c.mode, 16, 10_000, c.options)
			for b.Loop() {
				if _, err := auction.Clear(r, entries); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
