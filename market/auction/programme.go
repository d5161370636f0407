package auction

import (
	"slices"

	"github.com/gpufair/gpufair/ledger/money"
)

// bid is a bid whose options can win, in the programme.
type bid struct {
	first  contender // any of its options, for rank and leaf
	leaf   uint32
	rate   [MaxK + 1]money.Rate // by quantity
	weight [MaxK + 1]uint64     // by quantity; 0: no such option (an option weighs at least its quantity)
}

// row is the best weight by the GPUs that may be used, from 0 to K.
type row [MaxK + 1]uint64

// programme is the dynamic programme over bids in the order of their ranks.
type programme struct {
	k      uint32
	bids   []bid
	before []row // before[i]: of the bids before i
	after  []row // after[i]: of bid i and those behind it
}

func newProgramme(r Rules, entries []Entry) *programme {
	p := &programme{k: r.K}
	at := map[uint32]int{} // by leaf
	for q, list := range contenders(r, entries) {
		for _, c := range list {
			i, ok := at[c.leaf]
			if !ok {
				i = len(p.bids)
				at[c.leaf] = i
				p.bids = append(p.bids, bid{first: c, leaf: c.leaf})
			}
			p.bids[i].rate[q], p.bids[i].weight[q] = c.rate, c.weight
		}
	}
	slices.SortFunc(p.bids, func(a, b bid) int { return a.first.byRank(b.first) })
	n := len(p.bids)
	p.before, p.after = make([]row, n+1), make([]row, n+1)
	for i := range n {
		p.before[i+1] = p.bids[i].add(p.before[i], p.k)
		p.after[n-1-i] = p.bids[n-1-i].add(p.after[n-i], p.k)
	}
	return p
}

// add is the best row when the bid may win or not beside those of r.
func (b *bid) add(r row, k uint32) row {
	out := r
	for q := uint32(1); q <= k; q++ {
		if b.weight[q] == 0 {
			continue
		}
		for c := q; c <= k; c++ {
			out[c] = max(out[c], r[c-q]+b.weight[q])
		}
	}
	return out
}

// choice is one winner: a bid of the programme and the quantity that it gets.
type choice struct {
	bid      int
	quantity uint32
}

// chosen walks the bids in the order of their ranks and takes each that is in some best way, with the smallest quantity of that.
func (p *programme) chosen() (out []choice) {
	left := p.k
	for i := range p.bids {
		for q := uint32(1); q <= left; q++ {
			w := p.bids[i].weight[q]
			if w != 0 && w+p.after[i+1][left-q] == p.after[i][left] {
				out = append(out, choice{bid: i, quantity: q})
				left -= q
				break
			}
		}
	}
	return out
}

// externality is what the others would have had more without the winner: the best without it, less what they have with it.
func (p *programme) externality(c choice) money.Micro {
	without := uint64(0)
	for used := range p.k + 1 {
		without = max(without, p.before[c.bid][used]+p.after[c.bid+1][p.k-used])
	}
	others := p.after[0][p.k]/tierUnits - p.bids[c.bid].weight[c.quantity]/tierUnits
	return money.Micro(without/tierUnits - others)
}
