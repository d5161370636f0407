package auction

import (
	"fmt"
	"math/bits"

	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Open is the seller's word that begins an auction. Nothing of it changes: another reserve, K or end is another Open with another id.
type Open struct {
	identity.Header
	Delegation wire.Hash   `cbor:"4,keyasint"`
	Offer      wire.Hash   `cbor:"5,keyasint"` // in which the lot stands; its terms hold
	Lot        uint8       `cbor:"6,keyasint"`
	K          uint32      `cbor:"7,keyasint"`  // GPUs
	MinTerm    uint32      `cbor:"8,keyasint"`  // seconds that a winner pays at least
	MaxTerm    uint32      `cbor:"9,keyasint"`  // seconds
	Unit       money.Unit  `cbor:"10,keyasint"` // of every amount in the auction
	Reserve    money.Rate  `cbor:"11,keyasint"` // per GPU-hour
	Mode       Mode        `cbor:"12,keyasint"`
	Bond       money.Micro `cbor:"13,keyasint"` // that the winners together are given for each sealed commit that stays unopened
	Commit     uint32      `cbor:"14,keyasint"` // seconds from the Open in which commits are sent
	Grace      uint32      `cbor:"15,keyasint"` // further seconds in which those on the way still arrive
	Reveal     uint32      `cbor:"16,keyasint"` // seconds from the Seal in which openings are taken
	Decline    uint32      `cbor:"17,keyasint"` // seconds of its own rent that a winner pays who declines
	Rules      uint16      `cbor:"18,keyasint"` // RulesVersion
	Nonce      wire.Hash   `cbor:"19,keyasint"` // random, so that no two auctions have one id
}

// FullBond is the bond at which opening false bids by choice gains nothing: the whole lot for its minimum term at the reserve.
func (o Open) FullBond() (money.Micro, error) { return market.Hold(o.Reserve, o.K, o.MinTerm) }

// ClearingRules is what clearing needs of o.
func (o Open) ClearingRules() Rules { return Rules{K: o.K, Reserve: o.Reserve, Mode: o.Mode} }

// Validate checks the limits of an Open, and that a mode that needs a bond has it in full.
func (o Open) Validate() error {
	const what = "auction"
	switch {
	case o.Delegation.IsZero():
		return invalid(what, "no delegation")
	case o.Offer.IsZero():
		return invalid(what, "no offer")
	case o.Nonce.IsZero():
		return invalid(what, "no nonce")
	case o.K == 0 || o.K > MaxK:
		return invalid(what, "%d GPUs, want 1 to %d", o.K, MaxK)
	case o.MinTerm == 0 || o.MinTerm > o.MaxTerm || o.MaxTerm > market.MaxTerm:
		return invalid(what, "terms of %d to %d s, want 1 to %d in order", o.MinTerm, o.MaxTerm, market.MaxTerm)
	case o.Reserve > market.MaxRate:
		return invalid(what, "reserve %v, want at most %v", o.Reserve, market.MaxRate)
	case o.Mode != First && o.Mode != KPlus1 && o.Mode != VCG:
		return invalid(what, "mode %.16q, want %s, %s or %s", string(o.Mode), First, KPlus1, VCG)
	case o.Bond > money.Max:
		return invalid(what, "bond over %v", money.Max)
	case o.Commit == 0 || o.Commit > maxWindow || o.Reveal == 0 || o.Reveal > maxWindow:
		return invalid(what, "windows of %d and %d s, want 1 to %d", o.Commit, o.Reveal, maxWindow)
	case o.Grace == 0 || o.Grace > maxGrace:
		return invalid(what, "grace of %d s, want 1 to %d", o.Grace, maxGrace)
	case o.Decline > o.MinTerm:
		return invalid(what, "declining costs %d s of rent, the minimum term is %d", o.Decline, o.MinTerm)
	case o.Rules != RulesVersion:
		return invalid(what, "clearing rules %d, this release clears by %d", o.Rules, RulesVersion)
	}
	if err := o.Unit.Validate(); err != nil {
		return invalid(what, "%v", err)
	}
	full, err := o.FullBond()
	switch {
	case err != nil:
		return invalid(what, "%v", err)
	case o.Mode == First:
		return nil
	case o.Reserve == 0 || o.Bond < full:
		return invalid(what, "mode %s needs a reserve and a bond of the whole lot at it, %v; the bond is %v", o.Mode, full, o.Bond)
	}
	return nil
}

// Commit is a bidder's sealed bid. It is the bidder's signature under the bid: the bid's own bytes carry none.
type Commit struct {
	identity.Header
	Delegation wire.Hash   `cbor:"4,keyasint"`
	Auction    ID          `cbor:"5,keyasint"`
	Sealed     wire.Hash   `cbor:"6,keyasint"` // see [Seals]
	Hold       money.Micro `cbor:"7,keyasint"` // held on the bidder's credit or prepaid balance: the bid's price of the minimum term, or more to hide it
	Seq        uint64      `cbor:"8,keyasint"` // from 1; of one account's commits the highest counts
}

// Validate checks the limits of a commit.
func (c Commit) Validate() error {
	switch {
	case c.Delegation.IsZero() || c.Auction.IsZero() || c.Sealed.IsZero():
		return invalid("commit", "delegation, auction and sealed bid must all be there")
	case c.Hold > money.Max:
		return invalid("commit", "hold over %v", money.Max)
	case c.Seq == 0:
		return invalid("commit", "sequence 0")
	}
	return nil
}

// Of is what a Receipt is for.
type Of uint8

// What a seller acknowledges.
const (
	OfCommit  Of = 1 // the commit is a leaf of the log
	OfOpening Of = 2 // the opening of a sealed commit arrived in time
)

// Receipt is the seller's acknowledgement. One for a commit that is no leaf of the Seal, and one for an opening that the Award does not
// count, prove a fraud.
type Receipt struct {
	identity.Header
	Delegation wire.Hash `cbor:"4,keyasint"`
	Auction    ID        `cbor:"5,keyasint"`
	Of         Of        `cbor:"6,keyasint"`
	Commit     wire.Hash `cbor:"7,keyasint"` // of the commit's envelope; of an opening, of the commit that it opens
	Index      uint32    `cbor:"8,keyasint"` // of the commit's leaf
	Size       uint32    `cbor:"9,keyasint"` // of the log at that moment: at least Index + 1
	Root       wire.Hash `cbor:"10,keyasint"`
}

// Validate checks the limits of a receipt.
func (r Receipt) Validate() error {
	switch {
	case r.Delegation.IsZero() || r.Auction.IsZero() || r.Commit.IsZero():
		return invalid("receipt", "delegation, auction and commit must all be there")
	case r.Of != OfCommit && r.Of != OfOpening:
		return invalid("receipt", "of kind %d", r.Of)
	case r.Size > MaxLeaves || r.Index >= r.Size:
		return invalid("receipt", "leaf %d of %d, at most %d", r.Index, r.Size, MaxLeaves)
	}
	return nil
}

// Seal is the seller's log when commits are over: no later commit is in it, and no bid was open when it was signed.
type Seal struct {
	identity.Header
	Delegation wire.Hash `cbor:"4,keyasint"`
	Auction    ID        `cbor:"5,keyasint"`
	Size       uint32    `cbor:"6,keyasint"` // leaves
	Root       wire.Hash `cbor:"7,keyasint"` // RFC 6962, over the commits' envelopes
}

// Validate checks the limits of a seal.
func (s Seal) Validate() error {
	switch {
	case s.Delegation.IsZero() || s.Auction.IsZero() || s.Root.IsZero():
		return invalid("seal", "delegation, auction and root must all be there")
	case s.Size > MaxLeaves:
		return invalid("seal", "%d leaves, want at most %d", s.Size, MaxLeaves)
	}
	return nil
}

// Award is the seller's result. Whoever clears the same openings gets the same, or holds a fraud proof.
type Award struct {
	identity.Header
	Delegation wire.Hash `cbor:"4,keyasint"`
	Auction    ID        `cbor:"5,keyasint"`
	Seal       wire.Hash `cbor:"6,keyasint"`           // of the Seal's envelope
	Opened     []byte    `cbor:"7,keyasint"`           // bit i%8 of byte i/8: leaf i was opened in time
	Wins       []Win     `cbor:"8,keyasint"`           // by leaf
	Declined   []uint32  `cbor:"9,keyasint,omitempty"` // leaves, rising; there are some in the second Award of an auction only
	Before     wire.Hash `cbor:"10,keyasint"`          // of the Award that this one replaces after winners declined; zero: it is the first
}

// Validate checks the limits of an award.
func (a Award) Validate() error {
	const what = "award"
	switch {
	case a.Delegation.IsZero() || a.Auction.IsZero() || a.Seal.IsZero():
		return invalid(what, "delegation, auction and seal must all be there")
	case len(a.Opened) > MaxLeaves/8:
		return invalid(what, "%d bytes of opened leaves, want at most %d", len(a.Opened), MaxLeaves/8)
	case len(a.Wins) > MaxK || len(a.Declined) > MaxK:
		return invalid(what, "%d winners and %d that declined, want at most %d", len(a.Wins), len(a.Declined), MaxK)
	case a.Before.IsZero() != (len(a.Declined) == 0):
		return invalid(what, "it replaces another one exactly if winners declined")
	}
	for i, w := range a.Wins {
		switch {
		case w.Quantity == 0 || w.Quantity > MaxK || w.Pay > money.Max || w.Leaf >= MaxLeaves:
			return invalid(what, "%d GPUs at %v to leaf %d", w.Quantity, w.Pay, w.Leaf)
		case i > 0 && w.Leaf <= a.Wins[i-1].Leaf:
			return invalid(what, "winners are not in the order of their leaves")
		}
	}
	for i, leaf := range a.Declined {
		if leaf >= MaxLeaves || (i > 0 && leaf <= a.Declined[i-1]) {
			return invalid(what, "leaves that declined are not in order")
		}
	}
	return nil
}

// Counts reports whether the award counts leaf i as opened.
func (a Award) Counts(i uint32) bool {
	return int(i/8) < len(a.Opened) && a.Opened[i/8]&(1<<(i%8)) != 0
}

// OpenedBits is the field Opened of an Award over size leaves; opened says which.
func OpenedBits(size uint32, opened func(leaf uint32) bool) []byte {
	out := make([]byte, (size+7)/8)
	for i := range size {
		if opened(i) {
			out[i/8] |= 1 << (i % 8)
		}
	}
	return out
}

// fits checks that the award's bits are for size leaves and no more.
func (a Award) fits(size uint32) error {
	if len(a.Opened) != int(size+7)/8 {
		return fmt.Errorf("%d bytes of opened leaves for %d leaves", len(a.Opened), size)
	}
	if n := len(a.Opened); n > 0 && size%8 != 0 && bits.Len8(a.Opened[n-1]) > int(size%8) {
		return fmt.Errorf("bits beyond leaf %d are set", size)
	}
	return nil
}

// Decline is a winner's withdrawal within [DeclineWithin] of the Award, since it won elsewhere in its group of bids.
type Decline struct {
	identity.Header
	Delegation wire.Hash `cbor:"4,keyasint"`
	Auction    ID        `cbor:"5,keyasint"`
	Award      wire.Hash `cbor:"6,keyasint"` // of the Award's envelope
	Leaf       uint32    `cbor:"7,keyasint"`
}

// Validate checks the limits of a decline.
func (d Decline) Validate() error {
	if d.Delegation.IsZero() || d.Auction.IsZero() || d.Award.IsZero() || d.Leaf >= MaxLeaves {
		return invalid("decline", "delegation, auction, award and a leaf must all be there")
	}
	return nil
}

// Abort is the seller's end of an auction without an Award: after the Seal a fault that it signs itself, which costs it the bond to
// every bidder that would have won.
type Abort struct {
	identity.Header
	Delegation wire.Hash     `cbor:"4,keyasint"`
	Auction    ID            `cbor:"5,keyasint"`
	Reason     reason.Reason `cbor:"6,keyasint"`
}

// Validate checks the limits of an abort.
func (a Abort) Validate() error {
	if a.Delegation.IsZero() || a.Auction.IsZero() || a.Reason.IsZero() || a.Reason != a.Reason.Clean() {
		return invalid("abort", "delegation, auction and a printable reason must all be there")
	}
	return nil
}

// Event is what a Witness saw.
type Event uint8

// The events that peers attest. They cost the seller reputation and prove nothing (spec: Three).
const (
	SawCommit  Event = 1 // a commit by gossip, After from the Open
	SawSeal    Event = 2 // the Seal, After from the Open
	SawOpening Event = 3 // an opening of the commit Subject, After from the Seal
	SawAward   Event = 4 // the Award, After from the Seal
)

// Witness is a peer's word of what it saw and when, on its own monotonic clock from its first sight of the Open or the Seal.
type Witness struct {
	identity.Header
	Delegation wire.Hash `cbor:"4,keyasint"`
	Auction    ID        `cbor:"5,keyasint"`
	Event      Event     `cbor:"6,keyasint"`
	Subject    wire.Hash `cbor:"7,keyasint"` // hash of the envelope; of an opening, of the commit that it opens
	After      uint32    `cbor:"8,keyasint"` // milliseconds
}

// Validate checks the limits of a witness.
func (w Witness) Validate() error {
	if w.Delegation.IsZero() || w.Auction.IsZero() || w.Subject.IsZero() || w.Event < SawCommit || w.Event > SawAward {
		return invalid("witness", "delegation, auction, subject and a known event must all be there")
	}
	return nil
}

// ReadOpen checks size, signature and limits of a sealed Open. Whether the device may provide is for its delegation, as in every Read.
func ReadOpen(raw []byte) (Open, error) { return read[Open](DomainOpen, raw, MaxOpen) }

// ReadCommit checks size, signature and limits of a sealed commit.
func ReadCommit(raw []byte) (Commit, error) { return read[Commit](DomainCommit, raw, MaxCommit) }

// ReadReceipt checks size, signature and limits of a sealed receipt.
func ReadReceipt(raw []byte) (Receipt, error) { return read[Receipt](DomainReceipt, raw, MaxReceipt) }

// ReadSeal checks size, signature and limits of a sealed Seal.
func ReadSeal(raw []byte) (Seal, error) { return read[Seal](DomainSeal, raw, MaxSeal) }

// ReadAward checks size, signature and limits of a sealed award, not that it is right: see [Verify].
func ReadAward(raw []byte) (Award, error) { return read[Award](DomainAward, raw, MaxAward) }

// ReadDecline checks size, signature and limits of a sealed decline.
func ReadDecline(raw []byte) (Decline, error) { return read[Decline](DomainDecline, raw, MaxDecline) }

// ReadAbort checks size, signature and limits of a sealed abort.
func ReadAbort(raw []byte) (Abort, error) { return read[Abort](DomainAbort, raw, MaxAbort) }

// ReadWitness checks size, signature and limits of a sealed witness.
func ReadWitness(raw []byte) (Witness, error) { return read[Witness](DomainWitness, raw, MaxWitness) }
