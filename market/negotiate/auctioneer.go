package negotiate

import (
	"fmt"
	"slices"
	"time"

	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/auction"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Stage is where a sealed auction stands.
type Stage uint8

// The stages, in order.
const (
	Committing Stage = iota + 1 // commits are taken
	Revealing                   // sealed: openings are taken
	Declining                   // awarded: winners of a group of bids may decline
	Over                        // awarded for good, or aborted
)

// stages says which stage may follow which.
var stages = map[Stage][]Stage{Committing: {Revealing, Over}, Revealing: {Declining, Over}, Declining: {Over}}

// maxCommits is how often one account may commit in one auction: each commit is a durable write of the seller.
const maxCommits = 16

// Times is when an auction reached its stages on the seller's clock, as far as it did.
type Times struct{ Opened, Sealed, Awarded time.Time }

// Auctioneer is the seller's half of one sealed auction: records that came and the time, in; records to store and send, out. It has no
// clock, no store and no network, and its whole state is a [auction.Transcript] with its [Times]: store both before anything that a method
// gives is sent, and after a crash [ResumeAuctioneer] goes on from what was stored. Not for concurrent use.
//
// A hold on the bidder's credit belongs into the transaction that stores a commit: Check first, then hold and store, then [Auctioneer.Admit].
type Auctioneer struct {
	dev    *identity.Device
	open   auction.Open
	id     auction.ID
	stage  Stage
	times  Times
	t      auction.Transcript
	log    auction.Log
	leaves map[wire.Hash]uint32          // by the commit's hash
	newest map[identity.AccountID]newest // of each bidder
	known  map[wire.Hash]bool            // delegations in the transcript
	shown  map[uint32]bool               // leaves in t.Shown
}

// newest is which commit of an account counts, and how many there were.
type newest struct {
	leaf, count uint32
	seq         uint64
}

// NewAuctioneer opens an auction at now: it signs open.
func NewAuctioneer(dev *identity.Device, open auction.Open, now time.Time) (*Auctioneer, error) {
	open.Header, open.Delegation = dev.Header(auction.Version), dev.DelegationHash()
	if err := open.Validate(); err != nil {
		return nil, err
	}
	raw, err := dev.Seal(auction.DomainOpen, open)
	if err != nil {
		return nil, err
	}
	return ResumeAuctioneer(dev, auction.Transcript{Open: raw, Delegations: [][]byte{dev.Delegation()}}, Times{Opened: now})
}

// ResumeAuctioneer goes on with a stored auction. What was due meanwhile is done at the next [Auctioneer.Tick].
func ResumeAuctioneer(dev *identity.Device, t auction.Transcript, times Times) (*Auctioneer, error) {
	open, err := auction.ReadOpen(t.Open)
	if err != nil {
		return nil, err
	}
	a := &Auctioneer{
		dev: dev, open: open, id: auction.IDOf(t.Open), stage: Committing, times: times,
		t:      auction.Transcript{Open: t.Open, Seals: t.Seals, Awards: t.Awards, Aborts: t.Aborts, Declines: t.Declines},
		leaves: map[wire.Hash]uint32{}, newest: map[identity.AccountID]newest{}, known: map[wire.Hash]bool{}, shown: map[uint32]bool{},
	}
	for _, d := range t.Delegations {
		a.learn(d)
	}
	for _, raw := range t.Leaves {
		c, err := auction.ReadCommit(raw)
		if err != nil {
			return nil, fmt.Errorf("resume auction %s: %w", a.id.Short(), err)
		}
		if err := a.append(raw, c); err != nil {
			return nil, fmt.Errorf("resume auction %s: %w", a.id.Short(), err)
		}
	}
	for _, s := range t.Shown {
		a.show(s)
	}
	switch {
	case len(t.Aborts) > 0 || len(t.Awards) > 1:
		a.stage = Over
	case len(t.Awards) == 1:
		a.stage = Declining
	case len(t.Seals) > 0:
		a.stage = Revealing
	}
	return a, nil
}

// ID names the auction.
func (a *Auctioneer) ID() auction.ID { return a.id }

// Stage is where the auction stands.
func (a *Auctioneer) Stage() Stage { return a.stage }

// Times is when it got there.
func (a *Auctioneer) Times() Times { return a.times }

// Transcript is all that happened so far, for storing, and for anybody who asks once the auction is over. It is a copy whose records are
// shared and never changed.
func (a *Auctioneer) Transcript() auction.Transcript {
	t := a.t
	t.Leaves, t.Shown, t.Delegations = t.Leaves[:len(t.Leaves):len(t.Leaves)], append([]auction.Shown(nil), t.Shown...), t.Delegations[:len(t.Delegations):len(t.Delegations)]
	return t
}

// step moves to a stage that may follow.
func (a *Auctioneer) step(to Stage) {
	if slices.Contains(stages[a.stage], to) {
		a.stage = to
		return
	}
}

func (a *Auctioneer) learn(delegation []byte) {
	if h := identity.Hash(delegation); !a.known[h] {
		a.known[h] = true
		a.t.Delegations = append(a.t.Delegations, delegation)
	}
}

func (a *Auctioneer) append(raw []byte, c auction.Commit) error {
	i, err := a.log.Append(raw)
	if err != nil {
		return err
	}
	a.t.Leaves = append(a.t.Leaves, raw)
	a.leaves[identity.Hash(raw)] = i
	n := a.newest[c.Account]
	n.count++
	if n.count == 1 || c.Seq > n.seq {
		n.leaf, n.seq = i, c.Seq
	}
	a.newest[c.Account] = n
	return nil
}

// Check judges a commit that came at now with its delegation. The error is a [reason.Error], reason.Duplicate for one that is a leaf
// already: then [Auctioneer.Receipt] has the answer.
func (a *Auctioneer) Check(raw, delegation []byte, now time.Time) (auction.Commit, error) {
	if _, ok := a.leaves[identity.Hash(raw)]; ok {
		return auction.Commit{}, reason.Err(reason.Reason{Code: reason.Duplicate})
	}
	if err := a.open.TakesCommit(now.Sub(a.times.Opened), a.stage != Committing); err != nil {
		return auction.Commit{}, err
	}
	c, err := auction.ReadCommit(raw)
	if err != nil {
		return auction.Commit{}, reason.Errorf(reason.BidVoid, "%v", err)
	}
	if c.Auction != a.id {
		return auction.Commit{}, reason.Errorf(reason.AuctionUnknown, "the commit is to auction %s", c.Auction.Short())
	}
	if _, err := market.OpenDelegation(delegation, c.Delegation, c.Header, identity.PowerTrade); err != nil {
		return auction.Commit{}, reason.Errorf(reason.DelegationPowers, "%v", err)
	}
	n, again := a.newest[c.Account]
	switch size, _ := a.log.Head(); {
	case again && c.Seq <= n.seq:
		return auction.Commit{}, reason.Errorf(reason.BidReplaced, "sequence %d, the newest is %d", c.Seq, n.seq)
	case n.count >= maxCommits:
		return auction.Commit{}, reason.Errorf(reason.AuctionClosed, "this account committed %d times", n.count)
	case size >= auction.MaxLeaves:
		return auction.Commit{}, reason.Errorf(reason.AuctionClosed, "it has %d commits", size)
	}
	return c, nil
}

// Admit makes a checked commit the next leaf and gives the receipt for it. replaced is the leaf of the account's commit that no longer
// counts, whose hold is void; false if there is none.
func (a *Auctioneer) Admit(raw, delegation []byte, now time.Time) (receipt []byte, replaced uint32, was bool, err error) {
	c, err := a.Check(raw, delegation, now)
	if err != nil {
		return nil, 0, false, err
	}
	n, was := a.newest[c.Account]
	if err := a.append(raw, c); err != nil {
		return nil, 0, false, fmt.Errorf("auction %s: %w", a.id.Short(), err)
	}
	a.learn(delegation)
	receipt, err = a.Receipt(identity.Hash(raw))
	return receipt, n.leaf, was, err
}

// Receipt signs the receipt for a commit that is a leaf, over the log as it is now.
func (a *Auctioneer) Receipt(commit wire.Hash) ([]byte, error) {
	return a.receipt(auction.OfCommit, commit)
}

func (a *Auctioneer) receipt(of auction.Of, commit wire.Hash) ([]byte, error) {
	i, ok := a.leaves[commit]
	if !ok {
		return nil, reason.Errorf(reason.AuctionUnknown, "commit %s is not in the log", commit.Short())
	}
	size, root := a.log.Head()
	return a.dev.Seal(auction.DomainReceipt, auction.Receipt{
		Header: a.dev.Header(auction.Version), Delegation: a.dev.DelegationHash(), Auction: a.id, Of: of, Commit: commit, Index: i, Size: size, Root: root,
	})
}

// Inclusion is the Seal and the proof that a commit is under it.
func (a *Auctioneer) Inclusion(commit wire.Hash) (seal []byte, leaf uint32, path []wire.Hash, err error) {
	i, ok := a.leaves[commit]
	if !ok || len(a.t.Seals) == 0 {
		return nil, 0, nil, reason.Errorf(reason.AuctionUnknown, "commit %s is not under a seal", commit.Short())
	}
	path, err = a.log.Prove(i)
	return a.t.Seals[0], i, path, err
}
