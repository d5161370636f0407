package auction

import (
	"errors"
	"fmt"

	"github.com/gpufair/gpufair/ledger/history"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// checker is one verification.
type checker struct {
	t       Transcript
	signers signers
	r       *Report
	log     Log
	leaves  []leaf

	seals    []signed[Seal]
	seal     *signed[Seal] // whose leaves are those of the file
	receipts []signed[Receipt]
	declines []signed[Decline]
}

// signed is a record with its exact bytes.
type signed[T any] struct {
	body T
	raw  []byte
	hash wire.Hash
}

// Verify clears the auction of a transcript again and says whether seller and bidders kept the rules. It needs nothing else. An error
// wraps ErrTranscript: there is not even an auction.
//
// A Fault is given only with a proof that [CheckFraud] accepts. What is in the file and is no record of this auction is left out and
// noted; what is not in the file is never held against the seller.
func Verify(t Transcript) (Report, error) {
	if err := t.limits(); err != nil {
		return Report{}, fmt.Errorf("%w: %w", ErrTranscript, err)
	}
	open, err := ReadOpen(t.Open)
	if err != nil {
		return Report{}, fmt.Errorf("%w: %w", ErrTranscript, err)
	}
	c := checker{t: t, signers: readSigners(t.Delegations), r: &Report{Auction: IDOf(t.Open), Open: open}}
	if err := c.signers.allow(open.Delegation, open.Header, identity.PowerProvide); errors.Is(err, errAbsent) {
		c.lacks("the seller's %v", err)
		return *c.r, nil
	} else if err != nil {
		return Report{}, fmt.Errorf("%w: %w", ErrTranscript, err)
	}
	if err := c.readLeaves(); err != nil {
		return Report{}, err
	}
	c.readSeals()
	c.readReceipts()
	c.readOpenings()
	c.judge()
	c.judgeLeases()
	c.judgeWitnesses()
	return *c.r, nil
}

func (c *checker) lacks(format string, args ...any) {
	c.r.Missing = append(c.r.Missing, fmt.Sprintf(format, args...))
}

func (c *checker) note(format string, args ...any) {
	c.r.Notes = append(c.r.Notes, fmt.Sprintf(format, args...))
}

// fault adds a proven fault. The proof gets the Open and the delegations that it needs.
func (c *checker) fault(k Kind, words string, f Fraud) {
	f.Kind, f.Open = k, c.t.Open
	c.r.Faults = append(c.r.Faults, Fault{Kind: k, Words: words, Proof: f.withDelegations(c.t.Delegations)})
}

// ofSeller reads the records of one kind that the seller signed, without repeats. The others are noted.
func ofSeller[T identity.Body](c *checker, what string, raws [][]byte, open func([]byte) (T, error), about func(T) (ID, wire.Hash)) (out []signed[T]) {
	for i, raw := range raws {
		v, err := open(raw)
		if err == nil {
			id, named := about(v)
			switch {
			case id != c.r.Auction:
				err = errors.New("it is of another auction")
			case v.Head().Account != c.r.Open.Account:
				err = fmt.Errorf("it is by account %s, not by the seller", v.Head().Account.Short())
			default:
				err = c.signers.allow(named, v.Head(), identity.PowerProvide)
			}
		}
		if err != nil {
			c.note("%s %d was left out: %v", what, i+1, err)
			continue
		}
		s := signed[T]{body: v, raw: raw, hash: identity.Hash(raw)}
		repeated := false
		for _, o := range out {
			repeated = repeated || o.hash == s.hash
		}
		if !repeated {
			out = append(out, s)
		}
	}
	return out
}

func aboutSeal(s Seal) (ID, wire.Hash)       { return s.Auction, s.Delegation }
func aboutReceipt(r Receipt) (ID, wire.Hash) { return r.Auction, r.Delegation }
func aboutAward(a Award) (ID, wire.Hash)     { return a.Auction, a.Delegation }
func aboutAbort(a Abort) (ID, wire.Hash)     { return a.Auction, a.Delegation }

// readLeaves rebuilds the log and finds which commit of each account counts.
func (c *checker) readLeaves() error {
	c.leaves = make([]leaf, len(c.t.Leaves))
	each(len(c.leaves), func(i int) { c.leaves[i] = c.readLeaf(c.t.Leaves[i]) })
	newest := map[identity.AccountID]int{}
	for i := range c.leaves {
		if _, err := c.log.Append(c.t.Leaves[i]); err != nil {
			return fmt.Errorf("%w: %w", ErrTranscript, err)
		}
		l := &c.leaves[i]
		if l.absent != nil {
			c.lacks("leaf %d: %v", i, l.absent)
		}
		if l.junk != nil {
			continue
		}
		switch was, ok := newest[l.commit.Account]; {
		case !ok:
			newest[l.commit.Account] = i
		case c.leaves[was].commit.Seq < l.commit.Seq:
			c.leaves[was].newer, newest[l.commit.Account] = true, i
		default: // of one sequence twice the first in the log counts: which it is was not the bidder's choice
			l.newer = true
		}
	}
	return nil
}

func (c *checker) readLeaf(raw []byte) leaf {
	l := leaf{hash: identity.Hash(raw)}
	if l.commit, l.junk = ReadCommit(raw); l.junk != nil {
		return l
	}
	if l.commit.Auction != c.r.Auction {
		l.junk = errors.New("it is a commit to another auction")
		return l
	}
	if err := c.signers.allow(l.commit.Delegation, l.commit.Header, identity.PowerTrade); errors.Is(err, errAbsent) {
		l.absent = err
	} else if err != nil {
		l.junk = err
	}
	return l
}

// readSeals finds the Seal of these leaves, and a second one.
func (c *checker) readSeals() {
	c.seals = ofSeller(c, "seal", c.t.Seals, ReadSeal, aboutSeal)
	size, root := c.log.Head()
	for i := range c.seals {
		if s := &c.seals[i]; c.seal == nil && s.body.Size == size && s.body.Root == root {
			c.seal = s
		}
	}
	switch {
	case len(c.seals) == 0:
		c.lacks("the Seal")
	case c.seal == nil:
		c.lacks("the commits under the Seal: those in the file have another root")
	}
	if len(c.seals) > 1 {
		a, b := c.seals[0], c.seals[1]
		if c.seal != nil && c.seal.hash == b.hash {
			a, b = b, a
		}
		c.fault(TwoSeals, fmt.Sprintf("the seller signed two Seals, of %d and of %d commits: it could choose among logs after bids were shown",
			a.body.Size, b.body.Size), Fraud{Records: [][]byte{a.raw, b.raw}})
	}
}

// readReceipts compares what the seller acknowledged with what it sealed.
func (c *checker) readReceipts() {
	c.receipts = ofSeller(c, "receipt", c.t.Receipts, ReadReceipt, aboutReceipt)
	missing, twice := false, false
	for i, r := range c.receipts {
		for _, o := range c.receipts[:i] {
			if words := contradict(o.body, r.body); words != "" && !twice {
				twice = true
				c.fault(TwoReceipts, words, Fraud{Records: [][]byte{o.raw, r.raw}})
			}
		}
		if r.body.Of == OfCommit && !missing {
			missing = c.missingLeaf(r)
		}
		c.rewritten(r)
	}
}

func (c *checker) missingLeaf(r signed[Receipt]) bool {
	for _, s := range c.seals {
		f := Fraud{Records: [][]byte{r.raw, s.raw}}
		switch {
		case r.body.Index >= s.body.Size:
		case c.seal == nil || s.hash != c.seal.hash || c.leaves[r.body.Index].hash == r.body.Commit:
			continue
		default:
			path, err := c.log.Prove(r.body.Index)
			if err != nil {
				c.note("leaf %d: %v", r.body.Index, err) // cannot happen: the index is in the log
				continue
			}
			f.Leaf, f.Path = c.t.Leaves[r.body.Index], path
		}
		c.fault(MissingLeaf, fmt.Sprintf("the seller acknowledged commit %s as leaf %d, and sealed a log of %d without it",
			r.body.Commit.Short(), r.body.Index, s.body.Size), f)
		return true
	}
	return false
}

// rewritten: the log as a receipt shows it must be how the sealed log began.
func (c *checker) rewritten(r signed[Receipt]) {
	if c.seal == nil || r.body.Size > c.seal.body.Size || c.r.Has(Rewritten) {
		return
	}
	then, err := history.Root(&c.log, uint64(r.body.Size))
	if err == nil && wire.Hash(then) != r.body.Root {
		only := c.evidence()
		only.Receipts = [][]byte{r.raw}
		c.transcriptFault(Rewritten, fmt.Sprintf("the seller's log of %d commits was not how the sealed one began: leaves were moved or replaced",
			r.body.Size), only)
	}
}

// evidence is the part of the transcript on which clearing stands.
func (c *checker) evidence() Transcript {
	return Transcript{Open: c.t.Open, Seals: [][]byte{c.seal.raw}, Leaves: c.t.Leaves, Delegations: c.t.Delegations}
}

func (c *checker) transcriptFault(k Kind, words string, only Transcript) {
	raw, err := only.Encode()
	if err != nil {
		c.note("%s; it makes no proof: %v", words, err)
		return
	}
	c.r.Faults = append(c.r.Faults, Fault{Kind: k, Words: words, Proof: Fraud{Kind: k, Transcript: raw}})
}

// readOpenings checks that each opening shows what its commit hid, and judges the bid.
func (c *checker) readOpenings() {
	each(len(c.t.Shown), func(i int) {
		s := &c.t.Shown[i]
		l := &c.leaves[s.Leaf]
		if l.junk != nil || Seals(c.r.Auction, l.commit.Account, s.Bid, s.Nonce) != l.commit.Sealed {
			return
		}
		l.shown = s
		b, err := DecodeBid(s.Bid)
		if err != nil {
			l.void = err
			return
		}
		l.bid, l.void = &b, b.Check(c.r.Open, l.commit.Hold)
	})
	for _, s := range c.t.Shown {
		if c.leaves[s.Leaf].shown == nil {
			c.note("the opening of leaf %d was left out: it does not show what the commit hid", s.Leaf)
		}
	}
}

// contradict says in words how two receipts cannot both be of one log, or "".
func contradict(a, b Receipt) string {
	switch {
	case a.Index == b.Index && a.Commit != b.Commit:
		return fmt.Sprintf("the seller acknowledged two commits as leaf %d", a.Index)
	case a.Size == b.Size && a.Root != b.Root:
		return fmt.Sprintf("the seller showed two logs of %d commits", a.Size)
	}
	return ""
}
