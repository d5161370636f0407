package auction

import (
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Verdict is what a transcript shows of its seller.
type Verdict uint8

// The verdicts.
const (
	Kept       Verdict = iota // the award is the one that the bids give, and nothing else in the file speaks against the seller
	Incomplete                // the file lacks something without which nobody can tell
	Broken                    // the seller broke a rule, and a [Fraud] in the report proves it to others
)

// Report is what [Verify] found in a transcript.
type Report struct {
	Auction ID
	Open    Open
	Bids    []Standing // one for each leaf of the log, in its order
	Counts  Counts
	Outcome Outcome  // cleared again, from the openings that the award counts
	Price   []Winner // of Outcome.Wins, in their order
	Dues    Dues     // what follows besides the price
	Aborted bool     // by the seller
	Faults  []Fault  // proven
	Missing []string // what the file lacks
	Notes   []string // what peers say and nothing proves, and records that were left out of account

	entries []Entry // that were cleared
}

// Counts is how many commits came to what.
type Counts struct {
	Leaves   int // in the log
	Replaced int // by a later commit of the same account
	Opened   int // and counted by the award, void ones among them
	Void     int
	Unopened int // by the end; commits that are none among them
}

// Standing is what became of one commit.
type Standing struct {
	Leaf    uint32
	Account identity.AccountID // zero if the leaf is no commit
	Hold    money.Micro
	Opened  bool           // its opening is in the file and can open it: it was not replaced, and is a commit
	Bid     *Bid           // what that showed
	Lease   market.LeaseID // of the lease that the opening makes if it wins
	Won     bool
	Reason  reason.Reason // why it did not win
}

// Winner is one win with the reason for its price.
type Winner struct {
	Win
	Account identity.AccountID
	Lease   market.LeaseID
	Rate    money.Rate // that it bid for each GPU-hour
	Why     string     // its price, in words
}

// Fault is a rule that the seller broke.
type Fault struct {
	Kind  Kind
	Words string
	Proof Fraud
}

// Verdict is the report in one word.
func (r Report) Verdict() Verdict {
	switch {
	case len(r.Faults) > 0:
		return Broken
	case len(r.Missing) > 0:
		return Incomplete
	}
	return Kept
}

// Has reports whether a fault of that kind was found.
func (r Report) Has(k Kind) bool {
	for _, f := range r.Faults {
		if f.Kind == k {
			return true
		}
	}
	return false
}

// leaf is one commit of the log and what is known of it.
type leaf struct {
	commit Commit
	hash   wire.Hash
	junk   error  // it is no commit to this auction: the seller let it in and answers for it as for one that stays sealed
	absent error  // its delegation is missing, so that it cannot be judged
	newer  bool   // a later commit of the account counts instead
	bid    *Bid   // of its opening, if there is one
	void   error  // why the opened bid cannot win
	shown  *Shown // the opening, once it was checked
}

// live reports whether the leaf can be opened.
func (l *leaf) live() bool { return l.junk == nil && !l.newer }

// entry is the leaf as clearing sees it.
func (l *leaf) entry(i uint32, root wire.Hash) Entry {
	return Entry{Leaf: i, Rank: Rank(root, l.hash), Options: l.bid.Options}
}
