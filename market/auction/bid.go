package auction

import (
	"encoding/binary"
	"fmt"

	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Bid is what a commit hides: an order that binds its bidder if it wins. Its bytes are deterministic CBOR, signed by the commit over
// their hash and so not again by themselves.
type Bid struct {
	Version uint16     `cbor:"1,keyasint"`
	Options []Option   `cbor:"2,keyasint"` // in rising quantity, at most one wins
	Unit    money.Unit `cbor:"3,keyasint"`
	Term    uint32     `cbor:"4,keyasint"` // seconds, at most
	Needs   wire.Hash  `cbor:"5,keyasint"` // of the job's needs (work.Needs)
	Use     wire.Hash  `cbor:"6,keyasint"` // of the owner's use terms that the bidder accepted
	Voucher wire.Hash  `cbor:"7,keyasint"` // of the opening voucher of the lease's lane
	Group   wire.Hash  `cbor:"8,keyasint"` // common to bids in several auctions of which the bidder needs one; zero: none
}

// Encode gives the bid's bytes, as the commit hides and the opening shows them.
func (b Bid) Encode() ([]byte, error) {
	b.Version = Version
	if err := b.Validate(); err != nil {
		return nil, err
	}
	raw, err := wire.Marshal(b)
	if err != nil {
		return nil, err
	}
	if len(raw) > MaxBid {
		return nil, fmt.Errorf("bid of %d bytes: %w (limit %d)", len(raw), wire.ErrTooLarge, MaxBid)
	}
	return raw, nil
}

// DecodeBid reads a bid's bytes strictly, and checks the limits that hold in every auction; [Bid.Check] has those of one.
func DecodeBid(raw []byte) (Bid, error) {
	var b Bid
	if len(raw) > MaxBid {
		return Bid{}, fmt.Errorf("bid of %d bytes: %w (limit %d)", len(raw), wire.ErrTooLarge, MaxBid)
	}
	if err := wire.UnmarshalStrict(raw, &b); err != nil {
		return Bid{}, fmt.Errorf("read bid: %w", err)
	}
	if b.Version != Version {
		return Bid{}, fmt.Errorf("read bid: version %d: %w", b.Version, identity.ErrVersion)
	}
	return b, b.Validate()
}

// Validate checks the limits of a bid, whatever auction it is for.
func (b Bid) Validate() error {
	switch {
	case b.Term == 0 || b.Term > market.MaxTerm:
		return invalid("bid", "term of %d s, want 1 to %d", b.Term, market.MaxTerm)
	case b.Needs.IsZero() || b.Voucher.IsZero():
		return invalid("bid", "needs and opening voucher must both be there")
	}
	if err := b.Unit.Validate(); err != nil {
		return invalid("bid", "%v", err)
	}
	return checkOptions("", b.Options)
}

// Check judges a bid against its auction and the hold of its commit. The error is a [reason.Error]; such a bid is void: it cannot win,
// changes nothing for the others and costs its bidder nothing, since it could not have been opened to win either.
func (b Bid) Check(o Open, hold money.Micro) error {
	if b.Unit != o.Unit {
		return reason.Errorf(reason.UnknownUnit, "the bid counts in %s, the auction in %s", b.Unit, o.Unit)
	}
	if b.Term < o.MinTerm || b.Term > o.MaxTerm {
		return reason.Errorf(reason.TermOutOfRange, "%d s, the lot takes %d to %d", b.Term, o.MinTerm, o.MaxTerm)
	}
	if o.Mode == KPlus1 && (len(b.Options) != 1 || b.Options[0].Quantity != 1) {
		return reason.Errorf(reason.BidVoid, "mode %s takes bids for one GPU", KPlus1)
	}
	if last := b.Options[len(b.Options)-1]; last.Quantity > o.K {
		return reason.Errorf(reason.BidVoid, "it asks for %d of %d GPUs", last.Quantity, o.K)
	}
	need, err := b.Backing(o.MinTerm)
	if err != nil {
		return reason.Errorf(reason.BidUnbacked, "%v", err)
	}
	if need > hold {
		return reason.Errorf(reason.BidUnbacked, "the minimum term comes to %v, the commit holds %v", need, hold)
	}
	return nil
}

// Backing is the least that a commit to b must hold: the minimum term of its dearest option.
func (b Bid) Backing(minTerm uint32) (money.Micro, error) {
	most := money.Micro(0)
	for _, o := range b.Options {
		h, err := market.Hold(o.Rate, o.Quantity, minTerm)
		if err != nil {
			return 0, err
		}
		most = max(most, h)
	}
	return most, nil
}

// HideHold is a hold that backs need and tells little of it: the next power of two, or top (the bidder's free credit) if that is less.
func HideHold(need, top money.Micro) money.Micro {
	h := money.Micro(1)
	for h < need {
		h *= 2
	}
	return max(need, min(h, top))
}

// Seals is what a commit says of a bid: SHA-256(domain | auction | account | length of the bid in 4 bytes | bid | nonce). The account
// is in it so that nobody can copy another's commit and open it after its owner did.
func Seals(auction ID, account identity.AccountID, bid []byte, nonce wire.Hash) wire.Hash {
	var n [4]byte
	binary.BigEndian.PutUint32(n[:], uint32(len(bid)))
	return wire.Sum("gpufair/commitment/1", auction[:], account[:], n[:], bid, nonce[:])
}

// Rank orders equal bids: SHA-256(domain | root of the Seal | hash of the commit's envelope), the lower first. The root is not known
// when commits are made, and the commits are when the root is.
func Rank(root, commit wire.Hash) wire.Hash { return wire.Sum("gpufair/tie/1", root[:], commit[:]) }

// Opening shows what a commit hid. It needs no signature: the commit has it. As the Accept of a Lease it is the winner's order.
type Opening struct {
	Commit []byte    `cbor:"1,keyasint"` // the envelope's exact bytes
	Bid    []byte    `cbor:"2,keyasint"` // exact bytes
	Nonce  wire.Hash `cbor:"3,keyasint"`
}

// Lease is the id of the lease that the opening makes if it wins, as SHA-256("gpufair/lease/1" | auction | account | nonce): the
// auction stands where an Accept has its offer.
func (o Opening) Lease(auction ID, account identity.AccountID) market.LeaseID {
	return market.LeaseID(wire.Sum("gpufair/lease/1", auction[:], account[:], o.Nonce[:]))
}

// Encode gives the opening's bytes, as they are gossiped and stand in the Accept of a winner's Lease.
func (o Opening) Encode() ([]byte, error) { return wire.Marshal(o) }

// DecodeOpening reads an opening and checks everything but the commit's delegation and the auction: the commit's signature, and that
// its seal is that of the bid.
func DecodeOpening(raw []byte) (Opening, Commit, error) {
	if len(raw) > market.MaxAccept {
		return Opening{}, Commit{}, fmt.Errorf("opening of %d bytes: %w (limit %d)", len(raw), wire.ErrTooLarge, market.MaxAccept)
	}
	var o Opening
	if err := wire.UnmarshalStrict(raw, &o); err != nil {
		return Opening{}, Commit{}, fmt.Errorf("read opening: %w", err)
	}
	c, err := ReadCommit(o.Commit)
	if err != nil {
		return Opening{}, Commit{}, fmt.Errorf("read opening: %w", err)
	}
	if len(o.Bid) > MaxBid || Seals(c.Auction, c.Account, o.Bid, o.Nonce) != c.Sealed {
		return Opening{}, Commit{}, invalid("opening", "it does not show what the commit hid")
	}
	return o, c, nil
}
