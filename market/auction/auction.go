// Package auction is the rules of sealed auctions and of spot: what is signed in them, how bids clear to the micro-unit, the transcript
// from which anybody clears again, the verdict on it in words, and frauds as objects that a third peer checks with nothing else. It
// takes values and gives values: it knows no network, no clock, no store and no ledger, and it never decides when something is sent.
//
// One auction in the order of its records: [Open] (seller), [Commit] (each bidder), [Receipt] (seller), [Seal] (seller), [Opening]
// (each bidder), [Award] (seller). The sources of all rules are spec/market.md, Three: sealed auction and Four: spot; docs/auctions.md
// has them in plain words.
package auction

import (
	"errors"
	"fmt"
	"time"

	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Domains of the signed records. docs/protocol.md has the table.
const (
	DomainOpen    identity.Domain = "gpufair/auction-open/1"
	DomainCommit  identity.Domain = "gpufair/commit/1"
	DomainReceipt identity.Domain = "gpufair/commit-receipt/1"
	DomainSeal    identity.Domain = "gpufair/seal/1"
	DomainAward   identity.Domain = "gpufair/award/1"
	DomainDecline identity.Domain = "gpufair/decline/1"
	DomainAbort   identity.Domain = "gpufair/abort/1"
	DomainWitness identity.Domain = "gpufair/witness/1"
	DomainSpotBid identity.Domain = "gpufair/spot-bid/1"
	DomainOutbid  identity.Domain = "gpufair/outbid/1"
)

// Version is that of every record in this package.
const Version = 1

// RulesVersion is that of the clearing rules: an Open names it, and whoever clears by other rules must not bid.
const RulesVersion = 1

// Limits of what a record may say.
const (
	MaxK       = market.MaxSlots // GPUs of one auction: the dynamic programme is over them
	MaxLeaves  = 1 << 14         // commits of one auction, replaced ones among them: a transcript of all has under 16 MiB
	MaxOptions = MaxK            // of one bid, one for each quantity
	MaxBid     = 512             // bytes of a bid
	maxWindow  = 24 * 3600       // seconds of one window
	maxGrace   = 60              // seconds
)

// Defaults of an Open, in seconds (spec: Three).
const (
	DefaultCommit  = 20
	DefaultGrace   = 3
	DefaultReveal  = 10
	DefaultDecline = 60 // of the winner's own rent, as the fee of declining
)

// Fixed times of the rules.
const (
	ReceiptWithin = 2 * time.Second  // a commit without a receipt is gossiped again
	SealEarly     = 2 * time.Second  // a Seal earlier than that before its time is attested against the seller
	DeclineWithin = 5 * time.Second  // from the Award
	LateWithin    = 60 * time.Second // from the Award: an opening may still bring the hold back
)

// Limits of sealed records in bytes. Each is the largest legal record with room.
const (
	MaxOpen    = 1 << 10
	MaxCommit  = 512
	MaxReceipt = 512
	MaxSeal    = 512
	MaxAward   = 4 << 10 // a bit for each of 16,384 leaves, and 16 winners
	MaxDecline = 512
	MaxAbort   = 1 << 10
	MaxWitness = 512
	MaxSpotBid = 1 << 10
	MaxOutbid  = 2 << 10 // the challenger's bid inside
)

// Mode is how winners are chosen and what they pay.
type Mode string

// The modes.
const (
	First  Mode = "first"  // the default: each winner pays its bid; the only one-shot rule that needs no trust in the seller
	KPlus1 Mode = "kplus1" // one GPU for each bidder; all winners pay the highest losing bid or the reserve
	VCG    Mode = "vcg"    // bundles; each winner pays what its win takes from the others. Shown to bidders as "trusts the seller"
)

// ID names an auction: SHA-256 of the Open's envelope.
type ID wire.Hash

// IDOf is the id of the auction that an Open's envelope opens.
func IDOf(open []byte) ID { return ID(identity.Hash(open)) }

// String is the id in hex.
func (id ID) String() string { return wire.Hash(id).String() }

// Short is the first 12 hex digits, as people use it.
func (id ID) Short() string { return wire.Hash(id).Short() }

// IsZero reports whether id was never set.
func (id ID) IsZero() bool { return wire.Hash(id).IsZero() }

// MarshalText gives the id in hex.
func (id ID) MarshalText() ([]byte, error) { return wire.Hash(id).MarshalText() }

// UnmarshalText reads the id from hex.
func (id *ID) UnmarshalText(b []byte) error { return (*wire.Hash)(id).UnmarshalText(b) }

// UnmarshalCBOR reads exactly 32 bytes.
func (id *ID) UnmarshalCBOR(b []byte) error { return (*wire.Hash)(id).UnmarshalCBOR(b) }

// ErrInvalid says that a record is signed and well formed and still makes no sense: a figure is outside its limits.
var ErrInvalid = errors.New("invalid record")

func invalid(what, format string, args ...any) error {
	return fmt.Errorf("%s: %w: %s", what, ErrInvalid, fmt.Sprintf(format, args...))
}

// validated is a record that can judge itself.
type validated interface {
	identity.Body
	Validate() error
}

func read[T validated](d identity.Domain, raw []byte, limit int) (T, error) {
	var zero T
	if len(raw) > limit {
		return zero, fmt.Errorf("open %s of %d bytes: %w (limit %d)", d, len(raw), wire.ErrTooLarge, limit)
	}
	v, err := identity.OpenMoney[T](d, Version, raw)
	if err != nil {
		return zero, err
	}
	if err := v.Validate(); err != nil {
		return zero, err
	}
	return v, nil
}

// perHour is an amount for each hour of a whole bundle, as people read it.
func perHour(m money.Micro) string { return m.String() + "/h" }
