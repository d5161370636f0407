package auction

import (
	"errors"
	"fmt"

	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/p2p/identity"
)

// powerOfBidder is what a device needs to bid for its account.
const powerOfBidder = identity.PowerTrade

// bar is what losers are shown: the lowest rate that won, and which rates won.
type bar struct {
	sold   bool
	lowest money.Rate
	won    map[Option]bool
}

func newBar(out Outcome, leaves []leaf) bar {
	b := bar{won: map[Option]bool{}}
	for _, w := range out.Wins {
		rate := rateOf(leaves[w.Leaf].bid, w.Quantity)
		if !b.sold || rate < b.lowest {
			b.sold, b.lowest = true, rate
		}
		b.won[Option{Quantity: w.Quantity, Rate: rate}] = true
	}
	return b
}

// rateOf is the rate that a bid gives for a quantity.
func rateOf(b *Bid, quantity uint32) money.Rate {
	for _, o := range b.Options {
		if o.Quantity == quantity {
			return o.Rate
		}
	}
	return 0
}

// why is the reason for which leaf i did not win, and counts it.
func (c *checker) why(i uint32, counted bool, b bar) reason.Reason {
	l, n := &c.leaves[i], &c.r.Counts
	switch {
	case l.junk != nil:
		n.Unopened++
		return reason.New(reason.BidVoid, "the seller let in a leaf that is no commit: %v", l.junk).Clean()
	case l.newer:
		n.Replaced++
		return reason.Reason{Code: reason.BidReplaced}
	case !counted && l.shown != nil:
		n.Unopened++
		return reason.New(reason.RevealOver, "the Award does not count it")
	case !counted || l.shown == nil:
		n.Unopened++
		return reason.New(reason.BidUnopened, "%v", l.commit.Hold)
	case l.void != nil:
		n.Opened++
		n.Void++
		if r, ok := reason.Of(l.void); ok {
			return r
		}
		return reason.New(reason.BidVoid, "%v", l.void).Clean()
	}
	n.Opened++
	return c.whyLost(l.bid, b)
}

// whyLost is the reason for which a valid bid did not win.
func (c *checker) whyLost(bid *Bid, b bar) reason.Reason {
	best, below := money.Rate(0), true
	for _, o := range bid.Options {
		best, below = max(best, o.Rate), below && o.Rate < c.r.Open.Reserve
	}
	if below {
		return reason.New(reason.BidBelowReserve, "it bid %v, the reserve is %v", best, c.r.Open.Reserve)
	}
	for _, o := range bid.Options {
		if b.won[o] {
			return reason.New(reason.TieLost, "%d at %v won", o.Quantity, o.Rate)
		}
	}
	switch {
	case !b.sold: // only an option for fewer GPUs than there are loses where nothing is sold; it cannot be
		return reason.Reason{Code: reason.Outbid}
	case best < b.lowest:
		return reason.New(reason.Outbid, "it bid %v, the lowest that won is %v", best, b.lowest)
	}
	return reason.New(reason.Outbid, "it bid %v, and the bids that won come to more for the GPUs that it wants", best)
}

// whyPrice says in words why a winner pays what it pays.
func (c *checker) whyPrice(w Win, bid money.Rate) string {
	reserve := hourly(c.r.Open.Reserve, w.Quantity)
	switch {
	case c.r.Open.Mode == First:
		return "its own bid"
	case c.r.Open.Mode == KPlus1 && c.r.Outcome.Losing > 0:
		return fmt.Sprintf("the highest bid that lost, %v; its own was %v", c.r.Outcome.Losing, bid)
	case w.Pay == reserve:
		return fmt.Sprintf("the reserve, since nobody lost a GPU to it; its own bid was %v", bid)
	}
	return fmt.Sprintf("the reserve and %s that the others would have bid more without it; its own bid was %v", perHour(w.Pay-reserve), bid)
}

// judgeWitnesses sums up what peers attest. It proves nothing and costs the seller reputation (spec: Three).
func (c *checker) judgeWitnesses() {
	early := map[identity.AccountID]bool{}
	commits, openings := map[identity.AccountID]bool{}, map[identity.AccountID]bool{}
	inLog := map[[32]byte]int{}
	for i := range c.leaves {
		inLog[c.leaves[i].hash] = i
	}
	for n, raw := range c.t.Witnesses {
		w, err := ReadWitness(raw)
		if err == nil && w.Auction != c.r.Auction {
			err = errors.New("it is of another auction")
		}
		if err == nil {
			err = c.signers.allow(w.Delegation, w.Header, 0)
		}
		if err != nil {
			c.note("witness %d was left out: %v", n+1, err)
			continue
		}
		i, known := inLog[w.Subject]
		switch {
		case w.Event == SawSeal && c.r.Open.EarlySeal(millis(w.After)):
			early[w.Account] = true
		case w.Event == SawCommit && !known && millis(w.After) < c.r.Open.CommitFor():
			commits[w.Account] = true
		case w.Event == SawOpening && known && c.r.Open.TakesOpening(millis(w.After)) == nil && c.r.Bids[i].Reason.Code == reason.RevealOver:
			openings[w.Account] = true
		}
	}
	for _, s := range []struct {
		who  map[identity.AccountID]bool
		what string
	}{
		{early, "the Seal more than 2 s before its time"},
		{commits, "a commit in time that is not under the Seal"},
		{openings, "an opening in time that the Award does not count"},
	} {
		if len(s.who) > 0 {
			c.note("%d peers saw %s; that is their word against the seller's", len(s.who), s.what)
		}
	}
}
