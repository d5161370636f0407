package auction

import (
	"fmt"
	"slices"

	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/p2p/wire"
)

// judge clears again, compares with what the seller signed, and says what became of each commit.
func (c *checker) judge() {
	awards := ofSeller(c, "award", c.t.Awards, ReadAward, aboutAward)
	aborts := ofSeller(c, "abort", c.t.Aborts, ReadAbort, aboutAbort)
	c.twoAwards(awards)
	first, second := rounds(awards)
	c.r.Aborted = len(aborts) > 0
	if c.r.Aborted && c.seal == nil {
		c.note("the seller ended the auction: %s; without a Seal nobody owes anything", aborts[0].body.Reason)
	}
	if c.r.Aborted && c.seal != nil {
		c.fault(Aborted, "the seller ended the auction after the Seal: "+aborts[0].body.Reason.String(),
			Fraud{Records: [][]byte{c.seal.raw, aborts[0].raw}})
	}
	counted, declined := c.shownLeaf, []uint32(nil)
	switch {
	case first != nil && c.seal != nil:
		counted = first.body.Counts
		declined = c.judgeAward(first, second)
	case c.seal == nil: // said before
	case first == nil && len(aborts) == 0:
		c.lacks("the Award")
	}
	c.conclude(counted, declined)
}

// rounds are the first Award and the one that replaced it after winners declined.
func rounds(awards []signed[Award]) (first, second *signed[Award]) {
	for i := range awards {
		if awards[i].body.Before.IsZero() && first == nil {
			first = &awards[i]
		}
	}
	for i := range awards {
		if first != nil && awards[i].body.Before == first.hash && second == nil {
			second = &awards[i]
		}
	}
	return first, second
}

func (c *checker) twoAwards(awards []signed[Award]) {
	for i, a := range awards {
		for _, b := range awards[:i] {
			if a.body.Before == b.body.Before && !c.r.Has(TwoAwards) {
				c.fault(TwoAwards, "the seller signed two Awards for one result", Fraud{Records: [][]byte{b.raw, a.raw}})
			}
		}
	}
}

func (c *checker) shownLeaf(i uint32) bool { return c.leaves[i].shown != nil }

// judgeAward holds the seller's Awards against what the bids give, and gives the leaves that rightly declined. While anything is
// missing it says nothing: with a delegation left out, another commit of an account would seem to be the one that counts.
func (c *checker) judgeAward(first, second *signed[Award]) (declined []uint32) {
	if first.body.Seal != c.seal.hash {
		c.lacks("the Seal that the Award is about")
	}
	if len(c.r.Missing) > 0 || !c.bitsAreRight(first) {
		return nil
	}
	c.ignoredOpenings(first)
	out := c.clear(first.body.Counts, nil)
	if words := differ(out, first.body); words != "" {
		c.wrongAward(words, first)
		return nil
	}
	if second != nil && c.judgeSecond(first, second) {
		return second.body.Declined
	}
	return nil
}

// bitsAreRight checks that the leaves which the Award counts as opened are ones that can be opened and are in the file.
func (c *checker) bitsAreRight(a *signed[Award]) bool {
	if err := a.body.fits(uint32(len(c.leaves))); err != nil {
		c.wrongAward(err.Error(), a)
		return false
	}
	for i := range uint32(len(c.leaves)) {
		l := &c.leaves[i]
		switch {
		case !a.body.Counts(i):
		case !l.live():
			c.wrongAward(fmt.Sprintf("it counts leaf %d, which no opening can open", i), a)
			return false
		case l.shown == nil:
			c.lacks("the opening of leaf %d, which the Award counts", i)
			return false
		}
	}
	return true
}

// ignoredOpenings: an opening that the seller acknowledged in time and does not count.
func (c *checker) ignoredOpenings(a *signed[Award]) {
	for _, r := range c.receipts {
		if r.body.Of != OfOpening || r.body.Size != c.seal.body.Size || a.body.Counts(r.body.Index) || c.r.Has(IgnoredOpening) {
			continue
		}
		c.fault(IgnoredOpening, fmt.Sprintf("the seller acknowledged the opening of leaf %d in time, and its Award does not count it", r.body.Index),
			Fraud{Records: [][]byte{r.raw, a.raw}})
	}
}

// clear is the outcome of the leaves that count, without those that declined. What it cannot clear is not there: every bid was checked.
func (c *checker) clear(counted func(uint32) bool, declined []uint32) Outcome {
	_, root := c.log.Head()
	c.r.entries = c.r.entries[:0]
	for i := range uint32(len(c.leaves)) {
		l := &c.leaves[i]
		if l.live() && l.shown != nil && l.void == nil && counted(i) && !slices.Contains(declined, i) {
			c.r.entries = append(c.r.entries, l.entry(i, root))
		}
	}
	out, err := Clear(c.r.Open.ClearingRules(), c.r.entries)
	if err != nil {
		c.lacks("%v", err)
	}
	return out
}

// differ says in words where an award is not the outcome, or "".
func differ(out Outcome, a Award) string {
	if slices.Equal(out.Wins, a.Wins) {
		return ""
	}
	won := map[uint32]Win{}
	for _, w := range out.Wins {
		won[w.Leaf] = w
	}
	for _, w := range a.Wins {
		right, ok := won[w.Leaf]
		switch {
		case !ok:
			return fmt.Sprintf("it gives leaf %d %d GPUs, and the bids give it none", w.Leaf, w.Quantity)
		case right.Quantity != w.Quantity:
			return fmt.Sprintf("it gives leaf %d %d GPUs, and the bids give it %d", w.Leaf, w.Quantity, right.Quantity)
		case right.Pay != w.Pay:
			return fmt.Sprintf("it lets leaf %d pay %s, and the bids come to %s", w.Leaf, perHour(w.Pay), perHour(right.Pay))
		}
		delete(won, w.Leaf)
	}
	for _, w := range out.Wins {
		if _, left := won[w.Leaf]; left {
			return fmt.Sprintf("it leaves out leaf %d, which wins %d GPUs at %s", w.Leaf, w.Quantity, perHour(w.Pay))
		}
	}
	return "its winners are not in order"
}

// wrongAward is proven with all that clearing needs and nothing else.
func (c *checker) wrongAward(words string, awards ...*signed[Award]) {
	only := c.evidence()
	for _, a := range awards {
		only.Awards = append(only.Awards, a.raw)
	}
	last := awards[len(awards)-1].body
	for _, s := range c.t.Shown {
		if last.Counts(s.Leaf) {
			only.Shown = append(only.Shown, s)
		}
	}
	for _, d := range c.declines {
		only.Declines = append(only.Declines, d.raw)
	}
	c.transcriptFault(WrongAward, "the Award is not what the bids give: "+words, only)
}

// judgeSecond checks the Award after winners declined: each of them did, each was in a group of bids, and the rest cleared once more.
func (c *checker) judgeSecond(first, second *signed[Award]) bool {
	if second.body.Seal != c.seal.hash || string(second.body.Opened) != string(first.body.Opened) {
		c.wrongAward("the second one counts other openings than the first", first, second)
		return false
	}
	for _, i := range second.body.Declined {
		won := slices.ContainsFunc(first.body.Wins, func(w Win) bool { return w.Leaf == i })
		switch {
		case !won:
			c.wrongAward(fmt.Sprintf("leaf %d declined and had not won", i), first, second)
			return false
		case c.leaves[i].bid.Group.IsZero():
			c.wrongAward(fmt.Sprintf("leaf %d declined and is of no group of bids", i), first, second)
			return false
		}
		d, ok := c.declineOf(i, first.hash)
		if !ok {
			c.lacks("the decline of leaf %d", i)
			return false
		}
		c.declines = append(c.declines, d)
	}
	if words := differ(c.clear(first.body.Counts, second.body.Declined), second.body); words != "" {
		c.wrongAward(words, first, second)
		return false
	}
	return true
}

// declineOf finds the winner's own word that it withdrew.
func (c *checker) declineOf(i uint32, award wire.Hash) (signed[Decline], bool) {
	for _, raw := range c.t.Declines {
		d, err := ReadDecline(raw)
		if err != nil || d.Auction != c.r.Auction || d.Award != award || d.Leaf != i || d.Account != c.leaves[i].commit.Account {
			continue
		}
		if c.signers.allow(d.Delegation, d.Header, powerOfBidder) == nil {
			return signed[Decline]{body: d, raw: raw}, true
		}
	}
	return signed[Decline]{}, false
}

// conclude writes down the result and what became of each commit.
func (c *checker) conclude(counted func(uint32) bool, declined []uint32) {
	before := c.clear(counted, nil)
	c.r.Outcome = before
	if len(declined) > 0 {
		c.r.Outcome = c.clear(counted, declined)
	}
	won := map[uint32]Win{}
	for _, w := range c.r.Outcome.Wins {
		won[w.Leaf] = w
	}
	c.r.Counts.Leaves = len(c.leaves)
	b := newBar(c.r.Outcome, c.leaves)
	for i := range uint32(len(c.leaves)) {
		l := &c.leaves[i]
		s := Standing{Leaf: i, Account: l.commit.Account, Hold: l.commit.Hold, Opened: l.live() && l.shown != nil, Bid: l.bid}
		if l.shown != nil {
			s.Lease = c.t.Opening(*l.shown).Lease(c.r.Auction, l.commit.Account)
		}
		_, s.Won = won[i]
		switch {
		case s.Won:
			c.r.Counts.Opened++
		case slices.Contains(declined, i):
			c.r.Counts.Opened++
			s.Reason = reason.Reason{Code: reason.WinDeclined}
		default:
			s.Reason = c.why(i, counted(i), b)
		}
		c.r.Bids = append(c.r.Bids, s)
	}
	for _, w := range c.r.Outcome.Wins {
		l := &c.leaves[w.Leaf]
		c.r.Price = append(c.r.Price, Winner{
			Win: w, Account: l.commit.Account, Lease: c.r.Bids[w.Leaf].Lease, Rate: rateOf(l.bid, w.Quantity), Why: c.whyPrice(w, rateOf(l.bid, w.Quantity)),
		})
	}
	c.settle(before, declined)
}
