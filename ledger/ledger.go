// Package ledger says what debts between peers are made of: accounts, entries whose postings sum to zero, channels, lanes, and the
// pure rule of how much an account may owe. It knows no GPU and no lease, only opaque references, and it stores nothing: ledger/books
// does. No network, no disk, no clock and no randomness of its own.
package ledger

import (
	"errors"
	"fmt"

	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Lane is one debt that only rises, within a channel: the id of a lease, which the ledger does not look into.
type Lane wire.Hash

// String is the lane in hex.
func (l Lane) String() string { return wire.Hash(l).String() }

// Short is the first 12 hex digits, for people.
func (l Lane) Short() string { return wire.Hash(l).Short() }

// MarshalText gives the lane in hex.
func (l Lane) MarshalText() ([]byte, error) { return wire.Hash(l).MarshalText() }

// UnmarshalText reads the lane from hex.
func (l *Lane) UnmarshalText(b []byte) error { return (*wire.Hash)(l).UnmarshalText(b) }

// UnmarshalCBOR reads exactly 32 bytes.
func (l *Lane) UnmarshalCBOR(b []byte) error { return (*wire.Hash)(l).UnmarshalCBOR(b) }

// Channel is all that one account may come to owe another in one unit (spec: ledger, Model). The epoch is that of the ledger whose device
// signs the lanes' vouchers, as it was when they were opened. It rises when that ledger is restored from a backup, so that what was opened
// before is told from what is opened after; an older lane goes on in its own channel. Epoch 0 is no ledger's: see [Channel.AllEpochs].
type Channel struct {
	Renter   identity.AccountID `cbor:"1,keyasint"` // who owes
	Provider identity.AccountID `cbor:"2,keyasint"` // who is owed
	Unit     money.Unit         `cbor:"3,keyasint"`
	Epoch    uint32             `cbor:"4,keyasint"`
}

// FirstEpoch is that of a ledger that was never restored.
const FirstEpoch uint32 = 1

// AllEpochs is c over every epoch: what a payment is of, so that whoever pays need not know epochs.
func (c Channel) AllEpochs() Channel {
	c.Epoch = 0
	return c
}

// Covers reports whether the channel of a lane is c, or one of its epochs if c is over all of them.
func (c Channel) Covers(lane Channel) bool { return c == lane || c == lane.AllEpochs() }

// ErrChannel says that a channel can't be one.
var ErrChannel = errors.New("not a channel")

// Validate checks that c has two sides and a unit. One account may be both sides only by mistake.
func (c Channel) Validate() error {
	switch {
	case c.Renter.IsZero() || c.Provider.IsZero():
		return fmt.Errorf("%w: an account is missing", ErrChannel)
	case c.Renter == c.Provider:
		return fmt.Errorf("%w: account %s on both sides: nobody owes himself", ErrChannel, c.Renter.Short())
	}
	return c.Unit.Validate()
}

// ID names the channel.
func (c Channel) ID() wire.Hash {
	return wire.Sum("gpufair/channel/1", c.Renter[:], c.Provider[:],
		[]byte{byte(c.Epoch >> 24), byte(c.Epoch >> 16), byte(c.Epoch >> 8), byte(c.Epoch)}, []byte(c.Unit))
}

// Peer is the other side, seen from self.
func (c Channel) Peer(self identity.AccountID) identity.AccountID {
	if c.Renter == self {
		return c.Provider
	}
	return c.Renter
}

// Role is on which side of a channel this account is.
type Role uint8

// The roles.
const (
	AsProvider Role = 1 // the peer owes
	AsRenter   Role = 2 // this account owes
)

// String is "provider" or "renter".
func (r Role) String() string {
	switch r {
	case AsProvider:
		return "provider"
	case AsRenter:
		return "renter"
	}
	return "nobody"
}

// RoleOf is self's side of c, or 0 if it is on none.
func (c Channel) RoleOf(self identity.AccountID) Role {
	switch self {
	case c.Provider:
		return AsProvider
	case c.Renter:
		return AsRenter
	}
	return 0
}

// AccountKind is what an account of the books is for. Kinds are never renumbered.
type AccountKind uint8

// The kinds of account (spec: ledger, Model). A positive balance is a debit: what is owed to this account's owner, or was spent.
const (
	Receivable AccountKind = 1 // per peer: what it owes; negative: it has prepaid
	Payable    AccountKind = 2 // per peer, negative: what is owed to it; positive: prepaid to it
	Hold       AccountKind = 3 // per peer: its open holds with us
	Committed  AccountKind = 4 // per peer, negative: our open holds with it
	Pending    AccountKind = 5 // other side of all open holds, so that a hold moves no income before it is posted
	Income     AccountKind = 6
	Expense    AccountKind = 7
	External   AccountKind = 8 // per payment method: what came in (positive) or went out outside of the ledger
	BadDebt    AccountKind = 9 // per peer: written off
	Opening    AccountKind = 10
	Clearing   AccountKind = 11 // other side of a netting's two legs: zero over all devices of the account
)

var accountNames = map[AccountKind]string{
	Receivable: "receivable", Payable: "payable", Hold: "hold", Committed: "committed", Pending: "pending", Income: "income",
	Expense: "expense", External: "external", BadDebt: "bad-debt", Opening: "opening", Clearing: "clearing",
}

// String is the kind's name.
func (k AccountKind) String() string {
	if s, ok := accountNames[k]; ok {
		return s
	}
	return fmt.Sprintf("account kind %d", uint8(k))
}

// Account is one account of the books.
type Account struct {
	Kind   AccountKind        `cbor:"1,keyasint"`
	Peer   identity.AccountID `cbor:"2,keyasint"`           // zero where the kind has none
	Method string             `cbor:"3,keyasint,omitempty"` // of External only
}

// String is the kind and whom or what it is for: "receivable:gf…", "external:manual".
func (a Account) String() string {
	switch {
	case !a.Peer.IsZero():
		return a.Kind.String() + ":" + a.Peer.String()
	case a.Method != "":
		return a.Kind.String() + ":" + a.Method
	}
	return a.Kind.String()
}

// EntryKind is why postings were made. Kinds are never renumbered.
type EntryKind uint8

// The kinds of entry (spec: ledger, Model).
const (
	KindUsage      EntryKind = 1 // a voucher raised a lane
	KindHold       EntryKind = 2
	KindPost       EntryKind = 3 // a hold became a debt
	KindVoid       EntryKind = 4 // a hold was given back
	KindSettlement EntryKind = 5 // paid outside, signed by both
	KindDispute    EntryKind = 6
	KindWriteOff   EntryKind = 7
	KindCorrection EntryKind = 8 // a lane ended below its newest voucher
	KindNetting    EntryKind = 9 // one leg of a circle that was cleared, signed by all of its members
)

var entryNames = map[EntryKind]string{
	KindUsage: "usage", KindHold: "hold", KindPost: "post", KindVoid: "void", KindSettlement: "settlement", KindDispute: "dispute",
	KindWriteOff: "write-off", KindCorrection: "correction", KindNetting: "netting",
}

// String is the kind's name.
func (k EntryKind) String() string {
	if s, ok := entryNames[k]; ok {
		return s
	}
	return fmt.Sprintf("entry kind %d", uint8(k))
}

// EntryID is the idempotency key of an entry of kind that parts cause (a voucher's hash, a hold's id …): whoever makes the entry again
// from the same cause gets the same id, and the books take it once.
func EntryID(kind EntryKind, parts ...wire.Hash) wire.Hash {
	bytes := make([][]byte, 0, 1+len(parts))
	bytes = append(bytes, []byte{byte(kind)})
	for i := range parts {
		bytes = append(bytes, parts[i][:])
	}
	return wire.Sum("gpufair/entry/1", bytes...)
}

// Posting is one line of an entry.
type Posting struct {
	Account Account    `cbor:"1,keyasint"`
	Unit    money.Unit `cbor:"2,keyasint"`
	Amount  int64      `cbor:"3,keyasint"` // micro-units, debit positive
}

// SaltSize is the length of an entry's salt: whoever sees one leaf's hash can't guess the entry from it.
const SaltSize = 16

// Salt is 16 random bytes.
type Salt [SaltSize]byte

// Limits of an entry.
const (
	MaxPostings = 16      // a usage has 4, a post 4
	MaxRefs     = 8       // a usage names the voucher
	MaxNote     = 256     // bytes of an outside reference
	MaxEntry    = 4 << 10 // bytes of an encoded entry with all of that
)

// Entry is one transaction of the books. It is never changed: a mistake is corrected by another entry.
type Entry struct {
	ID       wire.Hash          `cbor:"1,keyasint"` // [EntryID] of its cause
	Kind     EntryKind          `cbor:"2,keyasint"`
	Time     int64              `cbor:"3,keyasint"` // Unix milliseconds by the writer's clock; for people, nothing depends on it
	Peer     identity.AccountID `cbor:"4,keyasint"` // the counterparty
	Lane     Lane               `cbor:"5,keyasint"` // zero: none
	Postings []Posting          `cbor:"6,keyasint"`
	Refs     []wire.Hash        `cbor:"7,keyasint,omitempty"` // of the signed records that caused it
	Note     string             `cbor:"8,keyasint,omitempty"` // outside reference of a settlement
	Salt     Salt               `cbor:"-"`                    // before the entry's bytes in its leaf
}

var (
	// ErrUnbalanced says that an entry's postings do not sum to zero in each unit.
	ErrUnbalanced = errors.New("postings do not sum to zero")
	// ErrEntry says that an entry is malformed.
	ErrEntry = errors.New("not an entry")
)

// Validate checks that e is well formed and that its postings sum to zero in each unit, without overflow.
func (e Entry) Validate() error {
	if _, ok := entryNames[e.Kind]; !ok || e.ID.IsZero() {
		return fmt.Errorf("entry %s of %s: %w", e.ID.Short(), e.Kind, ErrEntry)
	}
	if len(e.Postings) < 2 || len(e.Postings) > MaxPostings || len(e.Refs) > MaxRefs || len(e.Note) > MaxNote {
		return fmt.Errorf("entry %s: %w: %d postings, %d references, note of %d bytes", e.ID.Short(), ErrEntry, len(e.Postings), len(e.Refs), len(e.Note))
	}
	sums := map[money.Unit]int64{}
	for _, p := range e.Postings {
		if _, ok := accountNames[p.Account.Kind]; !ok || p.Amount == 0 {
			return fmt.Errorf("entry %s: %w: posting of %d to %s", e.ID.Short(), ErrEntry, p.Amount, p.Account.Kind)
		}
		if err := p.Unit.Validate(); err != nil {
			return fmt.Errorf("entry %s: %w: %w", e.ID.Short(), ErrEntry, err)
		}
		sum, err := AddSigned(sums[p.Unit], p.Amount)
		if err != nil {
			return fmt.Errorf("entry %s: %w", e.ID.Short(), err)
		}
		sums[p.Unit] = sum
	}
	for u, sum := range sums {
		if sum != 0 {
			return fmt.Errorf("entry %s: %w: %d micro-%s left over", e.ID.Short(), ErrUnbalanced, sum, u)
		}
	}
	return nil
}

// Leaf gives the exact bytes that the log is a log of: the salt, then the entry.
func (e Entry) Leaf() ([]byte, error) {
	if err := e.Validate(); err != nil {
		return nil, err
	}
	b, err := wire.Marshal(e)
	if err != nil {
		return nil, err
	}
	return append(e.Salt[:], b...), nil
}

// DecodeLeaf reads what [Entry.Leaf] gave, and checks it.
func DecodeLeaf(leaf []byte) (Entry, error) {
	if len(leaf) < SaltSize || len(leaf) > MaxEntry {
		return Entry{}, fmt.Errorf("leaf of %d bytes: %w", len(leaf), ErrEntry)
	}
	var e Entry
	if err := wire.UnmarshalStrict(leaf[SaltSize:], &e); err != nil {
		return Entry{}, err
	}
	e.Salt = Salt(leaf[:SaltSize])
	return e, e.Validate()
}
