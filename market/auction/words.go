package auction

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/p2p/identity"
)

// losersShown is how many losing bids the text names; the report has all.
const losersShown = 20

// String is the verdict in words.
func (v Verdict) String() string {
	switch v {
	case Kept:
		return "the rules were kept"
	case Incomplete:
		return "nobody can tell from this file"
	}
	return "the seller broke the rules"
}

// Text is the report for people: what was sold, who won at what price and why, who lost and why, what follows, and the verdict. own is
// the reader's account, whose line says "you"; zero: a stranger reads.
func (r Report) Text(own identity.AccountID) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	o, n := r.Open, r.Counts
	line("Auction %s by %s: %s for at least %s, reserve %v %s an hour each, rule %q.", r.Auction.Short(), name(o.Account, own),
		gpus(o.K), seconds(o.MinTerm), o.Reserve, o.Unit, string(o.Mode))
	line("%s: %d opened, %d stayed sealed, %d replaced, %d void.", many(n.Leaves, "commit"), n.Opened, n.Unopened, n.Replaced, n.Void)
	r.winnersText(line, own)
	r.losersText(line, own)
	r.duesText(line, own)
	for _, f := range r.Faults {
		line("BROKEN (%s): %s. The proof is in the report.", f.Kind, f.Words)
	}
	for _, m := range r.Missing {
		line("Missing: %s.", m)
	}
	for _, m := range r.Notes {
		line("Note: %s.", m)
	}
	line("Verdict: %s.", r.Verdict())
	return b.String()
}

func (r Report) winnersText(line func(string, ...any), own identity.AccountID) {
	if len(r.Price) == 0 {
		line("Nobody won.")
	}
	for _, w := range r.Price {
		line("Won: %s (leaf %d): %s for %v %s an hour in all: %s.", name(w.Account, own), w.Leaf, gpus(w.Quantity), w.Pay, r.Open.Unit, w.Why)
	}
}

// losersText names the reader's own bid first, then by what they bid.
func (r Report) losersText(line func(string, ...any), own identity.AccountID) {
	var lost []Standing
	for _, s := range r.Bids {
		if !s.Won && s.Reason.Code != reason.BidReplaced {
			lost = append(lost, s)
		}
	}
	slices.SortStableFunc(lost, func(a, b Standing) int {
		switch {
		case (a.Account == own) != (b.Account == own) && !own.IsZero():
			if a.Account == own {
				return -1
			}
			return 1
		case a.best() != b.best():
			if a.best() > b.best() {
				return -1
			}
			return 1
		}
		return 0
	})
	for i, s := range lost {
		if i == losersShown {
			line("Lost: %s more.", many(len(lost)-i, "bid"))
			break
		}
		line("Lost: %s (leaf %d): %s.", name(s.Account, own), s.Leaf, s.Reason)
	}
}

// best is the highest rate that a bid gave.
func (s Standing) best() (most money.Rate) {
	if s.Bid == nil {
		return 0
	}
	for _, o := range s.Bid.Options {
		most = max(most, o.Rate)
	}
	return most
}

func (r Report) duesText(line func(string, ...any), own identity.AccountID) {
	for _, d := range []struct {
		list []Due
		what string
	}{
		{r.Dues.Discounts, "deducts %v %s from its vouchers, its part of the bond for what stayed sealed"},
		{r.Dues.Posted, "loses the hold of %v %s to the seller, since its bid stayed sealed"},
		{r.Dues.Fees, "pays %v %s for declining"},
		{r.Dues.Credits, "is owed %v %s by the seller, which aborted"},
	} {
		for i, due := range d.list {
			if i == losersShown {
				line("Due: %s more of that kind.", many(len(d.list)-i, "amount"))
				break
			}
			line("Due: %s "+d.what+".", name(r.Bids[due.Leaf].Account, own), due.Amount, r.Open.Unit)
		}
	}
}

func name(a, own identity.AccountID) string {
	switch {
	case a.IsZero():
		return "nobody"
	case a == own:
		return "you"
	}
	return a.Short()
}

func gpus(n uint32) string { return many(int(n), "GPU") }

func many(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// seconds is a term as people say it.
func seconds(n uint32) string {
	switch {
	case n%3600 == 0:
		return many(int(n/3600), "hour")
	case n%60 == 0:
		return many(int(n/60), "minute")
	}
	return many(int(n), "second")
}
