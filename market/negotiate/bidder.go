package negotiate

import (
	"bytes"
	"fmt"
	"time"

	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/auction"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// wantWitnesses is how many peers besides the seller should show a bidder the Seal before it opens (spec: market, Three).
const wantWitnesses = 2

// revealTries is how often a bidder asks within the reveal window for what it needs to open.
const revealTries = 20

// Ask is what a bidder wants done next.
type Ask uint8

// What a bidder asks for. Each is asked again until what it brings is there: all of it may be lost.
const (
	SendCommit  Ask = iota + 1 // send Commit and delegation to the seller; gossip Commit too, if the seller was asked before
	FetchSeal                  // ask the seller for the Seal and the proof of the commit under it, and other participants for the Seal
	SendOpening                // send Opening to the seller and gossip it
	FetchAward                 // ask the seller, or whoever has it, for the transcript
)

// Sealed is a bid in a sealed auction as its bidder must have it stored before anything is sent: with it, and nothing else, a crash at any
// moment loses neither the bid nor the hold.
type Sealed struct {
	Open   []byte // the Open's envelope
	Commit []byte // the Commit's envelope
	Bid    []byte
	Nonce  wire.Hash
}

// Lease is the id of the lease that the bid makes if it wins; the opening voucher of the bid is for this lane.
func (s Sealed) Lease(account identity.AccountID) market.LeaseID {
	return auction.Opening{Nonce: s.Nonce}.Lease(auction.IDOf(s.Open), account)
}

// PrepareBid makes and signs a commit to a bid. nonce is 32 random bytes; credit is the bidder's free credit with the seller, up to which
// the hold may hide the bid; seq is higher than that of the account's earlier commits in this auction. The error is a [reason.Error] if the
// auction does not take the bid.
func PrepareBid(dev *identity.Device, open []byte, b auction.Bid, nonce wire.Hash, seq uint64, credit money.Micro) (Sealed, error) {
	o, err := auction.ReadOpen(open)
	if err != nil {
		return Sealed{}, err
	}
	raw, err := b.Encode()
	if err != nil {
		return Sealed{}, err
	}
	need, err := b.Backing(o.MinTerm)
	if err != nil {
		return Sealed{}, err
	}
	if need > credit {
		return Sealed{}, reason.Errorf(reason.CreditLimit, "the bid holds %v, %v is free", need, credit)
	}
	hold := auction.HideHold(need, credit)
	if err := b.Check(o, hold); err != nil {
		return Sealed{}, err
	}
	id := auction.IDOf(open)
	commit, err := dev.Seal(auction.DomainCommit, auction.Commit{
		Header: dev.Header(auction.Version), Delegation: dev.DelegationHash(), Auction: id,
		Sealed: auction.Seals(id, dev.Account(), raw, nonce), Hold: hold, Seq: seq,
	})
	if err != nil {
		return Sealed{}, fmt.Errorf("bid in auction %s: %w", id.Short(), err)
	}
	return Sealed{Open: open, Commit: commit, Bid: raw, Nonce: nonce}, nil
}

// Bidder is the bidder's half of one sealed auction: records that came and the time, in; what to ask for, out. It believes nothing that it
// did not check. It has no clock, no store and no network: started again from the same [Sealed] it goes on, since everything else can be
// asked for again. Not for concurrent use.
type Bidder struct {
	bid       Sealed
	open      auction.Open
	id        auction.ID
	commit    auction.Commit
	began     time.Time // first sight of the Open
	asked     time.Time // when it last asked
	receipt   []byte
	seals     [][]byte // that the seller signed; two are a fraud
	sealedAt  time.Time
	included  bool
	witnesses map[identity.PeerID]bool
	others    int    // participants besides this one that it knows of
	sought    bool   // it asked for the Seal
	opened    bool   // it asked to send its opening
	acked     []byte // the seller's receipt for the opening
	report    *auction.Report
}

// NewBidder begins, or begins again after a crash; began is when the bidder first saw the Open, by its own clock.
func NewBidder(bid Sealed, began time.Time) (*Bidder, error) {
	o, err := auction.ReadOpen(bid.Open)
	if err != nil {
		return nil, err
	}
	c, err := auction.ReadCommit(bid.Commit)
	if err != nil {
		return nil, err
	}
	return &Bidder{bid: bid, open: o, id: auction.IDOf(bid.Open), commit: c, began: began, witnesses: map[identity.PeerID]bool{}}, nil
}

// Others says how many other participants are known, so that a bidder alone does not wait for witnesses that cannot be.
func (b *Bidder) Others(n int) { b.others = n }

// Commit is the commit's envelope.
func (b *Bidder) Commit() []byte { return b.bid.Commit }

// Opening is what the bidder shows once it may.
func (b *Bidder) Opening() ([]byte, error) {
	return auction.Opening{Commit: b.bid.Commit, Bid: b.bid.Bid, Nonce: b.bid.Nonce}.Encode()
}

// Receipt takes the seller's receipt for the commit or for the opening, and keeps it as evidence.
func (b *Bidder) Receipt(raw []byte) error {
	r, err := auction.ReadReceipt(raw)
	if err != nil {
		return err
	}
	if r.Auction != b.id || r.Account != b.open.Account || r.Device != b.open.Device || r.Commit != identity.Hash(b.bid.Commit) {
		return fmt.Errorf("receipt of auction %s: %w", b.id.Short(), auction.ErrInvalid)
	}
	if r.Of == auction.OfOpening && !b.opened {
		return fmt.Errorf("receipt of auction %s: of an opening that nobody sent: %w", b.id.Short(), auction.ErrInvalid)
	}
	if r.Of == auction.OfOpening {
		b.acked = raw
	} else {
		b.receipt = raw
	}
	return nil
}

// Seal takes a Seal that peer showed at now. The same Seal from other peers makes them witnesses; another Seal of the same auction is kept
// as the evidence of a fraud.
func (b *Bidder) Seal(raw []byte, peer identity.PeerID, now time.Time) error {
	if len(b.seals) > 0 && bytes.Equal(raw, b.seals[0]) { // checked before
		if peer != b.open.Device {
			b.witnesses[peer] = true
		}
		return nil
	}
	s, err := auction.ReadSeal(raw)
	if err != nil {
		return err
	}
	if s.Auction != b.id || s.Account != b.open.Account || s.Device != b.open.Device {
		return fmt.Errorf("seal of auction %s: %w", b.id.Short(), auction.ErrInvalid)
	}
	switch len(b.seals) {
	case 0:
		b.sealedAt = now
		if peer != b.open.Device {
			b.witnesses[peer] = true
		}
		fallthrough
	case 1:
		b.seals = append(b.seals, raw)
	}
	return nil
}

// Inclusion takes the proof that the commit is a leaf under the Seal.
func (b *Bidder) Inclusion(leaf uint32, path []wire.Hash) error {
	if len(b.seals) == 0 {
		return fmt.Errorf("inclusion in auction %s: there is no seal yet: %w", b.id.Short(), auction.ErrInvalid)
	}
	s, err := auction.ReadSeal(b.seals[0])
	if err != nil {
		return err
	}
	if err := auction.Included(path, s.Size, s.Root, leaf, b.bid.Commit); err != nil {
		return err
	}
	b.included = true
	return nil
}

// Unwitnessed reports whether the bidder opened, or would now, with fewer peers than it should have seen the Seal from.
func (b *Bidder) Unwitnessed() bool { return len(b.witnesses) < min(wantWitnesses, b.others) }

// mayOpen: only under a Seal that has the commit, of which there is no second, and that others saw too; for a third of the reveal window it
// waits for them. It has no end by this side's clock: a seller that was away begins the window anew, and a late opening may still save the
// hold.
func (b *Bidder) mayOpen(now time.Time) bool {
	if !b.included || len(b.seals) != 1 {
		return false
	}
	return !b.Unwitnessed() || now.Sub(b.sealedAt) >= b.open.RevealFor()/3
}

// Transcript takes the file of the auction and checks it, together with the evidence that this bidder holds. The result is the outcome if
// the file is whole; otherwise it asks again, and for good it is what the last file showed.
func (b *Bidder) Transcript(t auction.Transcript) (auction.Report, error) {
	if !bytes.Equal(t.Open, b.bid.Open) {
		return auction.Report{}, fmt.Errorf("transcript of auction %s: it is of auction %s: %w", b.id.Short(), auction.IDOf(t.Open).Short(), auction.ErrTranscript)
	}
	t = b.evidence(t)
	r, err := auction.Verify(t)
	if err != nil {
		return auction.Report{}, err
	}
	if r.Verdict() != auction.Incomplete || r.Aborted { // an abort before the Seal is all there is
		b.report = &r
	}
	return r, nil
}

// evidence adds the Seals and receipts that this bidder holds.
func (b *Bidder) evidence(t auction.Transcript) auction.Transcript {
	for _, s := range b.seals {
		t.Seals = with(t.Seals, s)
	}
	for _, r := range [][]byte{b.receipt, b.acked} {
		if r != nil {
			t.Receipts = with(t.Receipts, r)
		}
	}
	return t
}

// with is list and raw, once.
func with(list [][]byte, raw []byte) [][]byte {
	for _, have := range list {
		if bytes.Equal(have, raw) {
			return list
		}
	}
	return append(list[:len(list):len(list)], raw)
}

// Report is the checked result, nil before.
func (b *Bidder) Report() *auction.Report { return b.report }

// Next says what to ask for at now, and when to come back if nothing arrives before; zero: nothing, it is over.
func (b *Bidder) Next(now time.Time) (ask []Ask, again time.Time) {
	if b.report != nil {
		return nil, time.Time{}
	}
	sinceOpen, pause := now.Sub(b.began), auction.ReceiptWithin
	if b.acked == nil && sinceOpen >= b.open.SealAfter() && sinceOpen < b.open.SealAfter()+2*b.open.RevealFor() {
		pause = b.open.RevealFor() / revealTries // the hold is at stake, and the window is short
	}
	again = now.Add(pause)
	if !b.asked.IsZero() && now.Sub(b.asked) < pause && (b.opened || !b.mayOpen(now)) {
		return nil, b.asked.Add(pause)
	}
	switch {
	case b.receipt == nil && len(b.seals) == 0 && sinceOpen < b.open.CommitFor():
		ask = []Ask{SendCommit}
	case len(b.seals) == 0 && sinceOpen < b.open.SealAfter():
		again = b.began.Add(b.open.SealAfter())
	case b.mayOpen(now) && b.acked == nil:
		ask, b.opened = []Ask{SendOpening}, true
		if b.open.TakesOpening(now.Sub(b.sealedAt)) != nil { // it may be awarded without this bid
			ask = append(ask, FetchAward)
		}
	case b.acked == nil && (!b.included || b.open.TakesOpening(now.Sub(b.sealedAt)) == nil):
		ask = []Ask{FetchSeal}
		if b.sought && sinceOpen > b.open.SealAfter()+b.open.RevealFor() {
			ask = append(ask, FetchAward) // it missed the Seal, or the proof: what is left may be to learn what became of the hold
		}
		b.sought = true // once alone: a bidder that is back late shows its bid before the result ends all
	default:
		ask = []Ask{FetchAward}
	}
	b.asked = now
	return ask, again
}
