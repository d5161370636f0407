package auction

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"

	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Rules is what clearing needs of an Open.
type Rules struct {
	K       uint32     // GPUs; 0 sells nothing
	Reserve money.Rate // per GPU-hour
	Mode    Mode
}

// Option is one of the things that a bid would take; of all options of a bid at most one wins.
type Option struct {
	Quantity uint32     `cbor:"1,keyasint"` // GPUs, all or none
	Rate     money.Rate `cbor:"2,keyasint"` // per GPU-hour, at most
}

// Entry is an opened bid as clearing sees it.
type Entry struct {
	Leaf    uint32    // index in the seller's log
	Rank    wire.Hash // breaks ties, the lower first: see [Rank]
	Options []Option
}

// Win is what one winner gets and pays.
type Win struct {
	Leaf     uint32      `cbor:"1,keyasint"` // of the winning commit in the seller's log
	Quantity uint32      `cbor:"2,keyasint"` // GPUs
	Pay      money.Micro `cbor:"3,keyasint"` // an hour, for all its GPUs together: exact where a price for each would be a fraction
}

// Outcome is the result of clearing.
type Outcome struct {
	Wins    []Win       // by leaf
	Sold    uint32      // GPUs
	Value   money.Micro // an hour: what the winners would have paid at most
	Revenue money.Micro // an hour: what they pay
	Losing  money.Rate  // the highest rate for one GPU that lost in KPlus1; 0: none at or above the reserve
}

// tierUnits scales a surplus so that the GPUs sold fit below it: more of them is better only where the surplus is the same.
const tierUnits = 2 * MaxK

// Clear chooses the winners and what they pay: exactly, in integers, and whatever the order of the entries.
//
// An option counts with (rate - reserve) x quantity; one below the reserve or for more GPUs than there are cannot win. Of all ways to
// give out the K GPUs that one wins which has, in this order:
//
//  1. the highest sum of what its options count;
//  2. the most GPUs sold (an option at the reserve counts 0 and is still sold);
//  3. in the order of ranks the first bid that another way leaves out; and of one bid's options the smaller quantity.
//
// The error wraps ErrInvalid if the rules or an entry are outside the limits that every Open and Bid has.
func Clear(r Rules, entries []Entry) (Outcome, error) {
	if err := checkClearing(r, entries); err != nil {
		return Outcome{}, err
	}
	if r.Mode == KPlus1 {
		return clearUniform(r, entries), nil
	}
	p := newProgramme(r, entries)
	out := Outcome{}
	for _, c := range p.chosen() {
		rate, q := p.bids[c.bid].rate[c.quantity], c.quantity
		w := Win{Leaf: p.bids[c.bid].leaf, Quantity: q, Pay: hourly(rate, q)}
		out.Value += w.Pay
		if r.Mode == VCG {
			w.Pay = hourly(r.Reserve, q) + p.externality(c)
		}
		out.Sold += q
		out.Revenue += w.Pay
		out.Wins = append(out.Wins, w)
	}
	slices.SortFunc(out.Wins, func(a, b Win) int { return cmp.Compare(a.Leaf, b.Leaf) })
	return out, nil
}

func checkClearing(r Rules, entries []Entry) error {
	switch {
	case r.K > MaxK:
		return invalid("clearing", "%d GPUs, at most %d", r.K, MaxK)
	case r.Reserve > market.MaxRate:
		return invalid("clearing", "reserve %v, at most %v", r.Reserve, market.MaxRate)
	case r.Mode != First && r.Mode != KPlus1 && r.Mode != VCG:
		return invalid("clearing", "mode %q", string(r.Mode))
	case len(entries) > MaxLeaves:
		return invalid("clearing", "%d bids, at most %d", len(entries), MaxLeaves)
	}
	for _, e := range entries {
		if err := checkOptions(r.Mode, e.Options); err != nil {
			return fmt.Errorf("bid at leaf %d: %w", e.Leaf, err)
		}
	}
	return nil
}

// checkOptions wants one option for each quantity at most, in rising order, and in KPlus1 one for one GPU.
func checkOptions(m Mode, options []Option) error {
	if len(options) == 0 || len(options) > MaxOptions {
		return invalid("bid", "%d options, want 1 to %d", len(options), MaxOptions)
	}
	before := uint32(0)
	for _, o := range options {
		switch {
		case o.Quantity <= before || o.Quantity > MaxK:
			return invalid("bid", "option for %d GPUs after one for %d: want rising, at most %d", o.Quantity, before, MaxK)
		case o.Rate > market.MaxRate:
			return invalid("bid", "rate %v, at most %v", o.Rate, market.MaxRate)
		}
		before = o.Quantity
	}
	if m == KPlus1 && (len(options) != 1 || options[0].Quantity != 1) {
		return invalid("bid", "mode %s takes bids for one GPU", KPlus1)
	}
	return nil
}

// hourly is rate x quantity; both are within their limits, so it fits.
func hourly(r money.Rate, quantity uint32) money.Micro {
	return money.Micro(uint64(r) * uint64(quantity))
}

// contender is an option that can matter: its bid, what it counts and who is preferred where two count the same.
type contender struct {
	rank   *wire.Hash
	leaf   uint32
	rate   money.Rate
	weight uint64 // surplus x tierUnits + quantity
}

// before is the order among options of one quantity: the heavier, then the lower rank.
func (a contender) before(b contender) int {
	if c := cmp.Compare(b.weight, a.weight); c != 0 {
		return c
	}
	return a.byRank(b)
}

func (a contender) byRank(b contender) int {
	if c := bytes.Compare(a.rank[:], b.rank[:]); c != 0 {
		return c
	}
	return cmp.Compare(a.leaf, b.leaf) // two equal ranks would be a collision of SHA-256: the result is one even then
}

// contenders keeps for each quantity q the best k-q+2 options. That is exact: where an option of quantity q wins, at most k-q other
// bids win, so of any k-q+1 better options of that quantity one belongs to a bid that wins nothing and would take its place. One more
// is kept so that this holds without any single bid, which is what VCG prices ask.
func contenders(r Rules, entries []Entry) [][]contender {
	best := make([][]contender, r.K+1)
	for q := range best {
		best[q] = make([]contender, 0, int(r.K)-q+3)
	}
	for i := range entries {
		e := &entries[i]
		for _, o := range e.Options {
			if o.Rate < r.Reserve || o.Quantity > r.K {
				continue
			}
			q := o.Quantity
			weight := uint64(o.Rate-r.Reserve)*uint64(q)*tierUnits + uint64(q)
			list, room := best[q], int(r.K-q)+2
			if len(list) == room && weight < list[room-1].weight {
				continue
			}
			c := contender{rank: &e.Rank, leaf: e.Leaf, rate: o.Rate, weight: weight}
			at, _ := slices.BinarySearchFunc(list, c, contender.before)
			if at == room {
				continue
			}
			if len(list) == room {
				list = list[:room-1]
			}
			best[q] = slices.Insert(list, at, c)
		}
	}
	return best
}

// clearUniform is KPlus1: the k best bids for one GPU win, and all pay the best that lost, or the reserve.
func clearUniform(r Rules, entries []Entry) Outcome {
	if r.K == 0 {
		return Outcome{}
	}
	ranked := contenders(r, entries)[1] // k + 1 of them
	out, price := Outcome{}, r.Reserve
	if uint32(len(ranked)) > r.K {
		price = ranked[r.K].rate
		out.Losing = price
		ranked = ranked[:r.K]
	}
	for _, c := range ranked {
		out.Value += hourly(c.rate, 1)
		out.Revenue += hourly(price, 1)
		out.Sold++
		out.Wins = append(out.Wins, Win{Leaf: c.leaf, Quantity: 1, Pay: hourly(price, 1)})
	}
	slices.SortFunc(out.Wins, func(a, b Win) int { return cmp.Compare(a.Leaf, b.Leaf) })
	return out
}
