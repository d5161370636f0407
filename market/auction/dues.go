package auction

import (
	"math/bits"
	"slices"
	"time"

	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market/reason"
)

func millis(n uint32) time.Duration { return time.Duration(n) * time.Millisecond }

// Due is an amount that follows for one leaf.
type Due struct {
	Leaf   uint32
	Amount money.Micro
}

// Dues is what an auction's end brings besides the prices. Nobody's money is moved by it: a winner deducts its discount from its own
// vouchers, and the seller posts a hold that the bidder agreed to with its commit.
type Dues struct {
	Discounts []Due // to winners, off their vouchers: the bond of each commit that stayed sealed, shared by what they pay
	Posted    []Due // holds of commits that stayed sealed, to the seller
	Fees      []Due // of winners that declined, to the seller
	Credits   []Due // by a seller that aborted, to each that would have won: the bond
}

// settle writes the dues of a report whose outcome and standings are set. first is the outcome before winners declined.
func (c *checker) settle(first Outcome, declined []uint32) {
	r, d := c.r, &c.r.Dues
	if r.Aborted {
		for _, w := range r.Outcome.Wins {
			d.Credits = append(d.Credits, Due{Leaf: w.Leaf, Amount: r.Open.Bond})
		}
		return
	}
	d.Discounts = Share(times(r.Open.Bond, r.Counts.Unopened), r.Outcome.Wins)
	_, root := c.log.Head()
	rules := r.Open.ClearingRules()
	few := reduce(rules, r.entries)
	for i, s := range r.Bids {
		l := &c.leaves[i]
		switch s.Reason.Code {
		case reason.BidUnopened:
			d.Posted = append(d.Posted, Due{Leaf: s.Leaf, Amount: s.Hold})
		case reason.RevealOver:
			if l.void == nil && wouldWin(rules, few, l.entry(s.Leaf, root)) {
				d.Posted = append(d.Posted, Due{Leaf: s.Leaf, Amount: s.Hold})
			}
		}
	}
	for _, w := range first.Wins {
		if slices.Contains(declined, w.Leaf) {
			fee, _ := money.Charge(money.Rate(w.Pay), 1, uint64(r.Open.Decline)*1000) // within the minimum term, whose price fits a hold
			d.Fees = append(d.Fees, Due{Leaf: w.Leaf, Amount: fee})
		}
	}
}

// wouldWin reports whether a late opening would have won beside the entries that were cleared. It never changes a result: it decides
// whether the bidder gets its hold back, which it does if it gained nothing by waiting (spec: Three).
func wouldWin(r Rules, cleared []Entry, late Entry) bool {
	out, err := Clear(r, append(slices.Clone(cleared), late))
	return err == nil && slices.ContainsFunc(out.Wins, func(w Win) bool { return w.Leaf == late.Leaf })
}

// reduce keeps the entries that can matter beside one more: few, so that hundreds of late openings cost no more than one clearing.
func reduce(r Rules, entries []Entry) (out []Entry) {
	matters := map[uint32]bool{}
	for _, list := range contenders(r, entries) {
		for _, c := range list {
			matters[c.leaf] = true
		}
	}
	for _, e := range entries {
		if matters[e.Leaf] {
			out = append(out, e)
		}
	}
	return out
}

// Share divides total among winners by what they pay, each part rounded down. Where nobody pays anything there is nothing to deduct
// from. What a winner's lease comes to in the end may be less than its part: [Discounted] stops at 0.
func Share(total money.Micro, wins []Win) (out []Due) {
	sum := uint64(0)
	for _, w := range wins {
		sum += uint64(w.Pay)
	}
	if total == 0 || sum == 0 {
		return nil
	}
	for _, w := range wins {
		hi, lo := bits.Mul64(uint64(total), uint64(w.Pay))
		part, _ := bits.Div64(hi, lo, sum) // at most total, since Pay is at most sum
		out = append(out, Due{Leaf: w.Leaf, Amount: money.Micro(part)})
	}
	return out
}

// Discounted is a lease's charge less its discount, never below 0.
func Discounted(charge, discount money.Micro) money.Micro { return charge - min(charge, discount) }

// times is m x n, or the largest amount there is: more than anybody owes is all that it owes.
func times(m money.Micro, n int) money.Micro {
	hi, lo := bits.Mul64(uint64(m), uint64(n))
	if hi != 0 || money.Micro(lo) > money.Max {
		return money.Max
	}
	return money.Micro(lo)
}
