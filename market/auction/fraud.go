package auction

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Kind is which rule a [Fraud] shows to be broken. Kinds are never renumbered.
type Kind uint8

// The frauds that records prove.
const (
	TwoSeals       Kind = 1 // two Seals of one auction
	MissingLeaf    Kind = 2 // a commit with a receipt that is not under the Seal
	TwoReceipts    Kind = 3 // two receipts that cannot be of one log
	IgnoredOpening Kind = 4 // an opening with a receipt that the Award does not count
	TwoAwards      Kind = 5 // two Awards of one result
	WrongAward     Kind = 6 // an Award that is not what the openings give; buyers pay what they do give
	Rewritten      Kind = 7 // a sealed log that does not begin as a receipt showed it
	Aborted        Kind = 8 // an end without an Award after the Seal
	DoubleLease    Kind = 9 // two leases of one device and generation, in whatever way they were sold
)

var kindNames = [...]string{
	TwoSeals: "two seals", MissingLeaf: "missing leaf", TwoReceipts: "two receipts", IgnoredOpening: "ignored opening", TwoAwards: "two awards",
	WrongAward: "wrong award", Rewritten: "rewritten log", Aborted: "aborted", DoubleLease: "double lease",
}

// String is the kind in words.
func (k Kind) String() string {
	if int(k) < len(kindNames) && kindNames[k] != "" {
		return kindNames[k]
	}
	return fmt.Sprintf("fraud %d", uint8(k))
}

// Limits of a fraud proof.
const (
	MaxGossipFraud = 32 << 10              // bytes: of every kind that is shown by two records
	MaxFraud       = MaxTranscript + 1<<10 // bytes: with a transcript inside; one over MaxGossipFraud is named by hash and fetched
	maxPath        = 2 * 14                // hashes of an inclusion proof in a log of MaxLeaves
	maxRecord      = market.MaxLease       // bytes of the largest record that a fraud is shown by
	maxWitnessed   = 4                     // delegations: two records, the Open, and one to spare
)

// Fraud is the proof that a seller broke a rule: signed records that contradict each other, and all that a third peer needs to see it.
type Fraud struct {
	Version     uint16      `cbor:"1,keyasint"`
	Kind        Kind        `cbor:"2,keyasint"`
	Open        []byte      `cbor:"3,keyasint,omitempty"` // envelope; not of a DoubleLease
	Records     [][]byte    `cbor:"4,keyasint,omitempty"` // two envelopes
	Leaf        []byte      `cbor:"5,keyasint,omitempty"` // MissingLeaf: the commit that stands in the place of the missing one
	Path        []wire.Hash `cbor:"6,keyasint,omitempty"` // its inclusion proof
	Delegations [][]byte    `cbor:"7,keyasint,omitempty"` // of the devices that signed
	Transcript  []byte      `cbor:"8,keyasint,omitempty"` // WrongAward, Rewritten: the file
}

// ErrFraud says that bytes prove nothing.
var ErrFraud = errors.New("no proof of a fraud")

// Finding is what a fraud proof shows.
type Finding struct {
	Kind    Kind
	Seller  identity.AccountID
	Auction ID        // zero of a DoubleLease
	Hash    wire.Hash // of the proof's bytes, so that it is kept and gossiped once
	Words   string
}

// withDelegations adds those of the delegations at hand that the proof's records name.
func (f Fraud) withDelegations(have [][]byte) Fraud {
	named := map[wire.Hash]bool{}
	for _, raw := range append([][]byte{f.Open}, f.Records...) {
		if h, ok := namedDelegation(raw); ok {
			named[h] = true
		}
	}
	for _, raw := range have {
		if h := identity.Hash(raw); named[h] {
			f.Delegations = append(f.Delegations, raw)
			delete(named, h)
		}
	}
	return f
}

// namedDelegation is the delegation that a record of a seller names.
func namedDelegation(raw []byte) (wire.Hash, bool) {
	if v, err := ReadOpen(raw); err == nil {
		return v.Delegation, true
	}
	if v, err := ReadSeal(raw); err == nil {
		return v.Delegation, true
	}
	if v, err := ReadReceipt(raw); err == nil {
		return v.Delegation, true
	}
	if v, err := ReadAward(raw); err == nil {
		return v.Delegation, true
	}
	if v, err := ReadAbort(raw); err == nil {
		return v.Delegation, true
	}
	if v, err := market.OpenLease(raw); err == nil {
		return v.Delegation, true
	}
	return wire.Hash{}, false
}

// Encode gives the proof's bytes: deterministic CBOR.
func (f Fraud) Encode() ([]byte, error) {
	f.Version = Version
	if err := f.limits(); err != nil {
		return nil, err
	}
	raw, err := wire.Marshal(f)
	if err != nil {
		return nil, fmt.Errorf("write proof of %s: %w", f.Kind, err)
	}
	if len(raw) > f.limit() {
		return nil, fmt.Errorf("write proof of %s, %d bytes: %w (limit %d)", f.Kind, len(raw), wire.ErrTooLarge, f.limit())
	}
	return raw, nil
}

// DecodeFraud reads what [Fraud.Encode] gave, and nothing else. It checks the form only: see [CheckFraud]. Errors wrap ErrFraud.
func DecodeFraud(raw []byte) (Fraud, error) {
	if len(raw) > MaxFraud {
		return Fraud{}, fmt.Errorf("read %d bytes: %w: the limit is %d", len(raw), ErrFraud, MaxFraud)
	}
	var f Fraud
	if err := wire.UnmarshalStrict(raw, &f); err != nil {
		return Fraud{}, fmt.Errorf("%w: %w", ErrFraud, err)
	}
	if f.Version != Version {
		return Fraud{}, fmt.Errorf("%w: version %d: %w", ErrFraud, f.Version, identity.ErrVersion)
	}
	if err := f.limits(); err != nil {
		return Fraud{}, err
	}
	if len(raw) > f.limit() {
		return Fraud{}, fmt.Errorf("read %d bytes of %s: %w: the limit is %d", len(raw), f.Kind, ErrFraud, f.limit())
	}
	if again, err := wire.Marshal(f); err != nil || !bytes.Equal(again, raw) {
		return Fraud{}, fmt.Errorf("%w: it is not in its one form", ErrFraud)
	}
	return f, nil
}

// heavy kinds have a transcript inside.
func (k Kind) heavy() bool { return k == WrongAward || k == Rewritten }

func (f Fraud) limit() int {
	if f.Kind.heavy() {
		return MaxFraud
	}
	return MaxGossipFraud
}

// limits checks that the proof has the parts of its kind and no others, so that one fraud has few spellings.
func (f Fraud) limits() error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("proof of %s: %w: %s", f.Kind, ErrFraud, fmt.Sprintf(format, args...))
	}
	if f.Kind.heavy() {
		if len(f.Transcript) == 0 || len(f.Open)+len(f.Records)+len(f.Leaf)+len(f.Path)+len(f.Delegations) > 0 {
			return bad("it has a transcript and nothing else")
		}
		return nil
	}
	switch {
	case f.Kind < TwoSeals || f.Kind > DoubleLease:
		return bad("this release does not know it")
	case len(f.Transcript) > 0 || len(f.Records) != 2 || (len(f.Open) == 0) != (f.Kind == DoubleLease):
		return bad("it has two records and an open")
	case f.Kind != MissingLeaf && len(f.Leaf)+len(f.Path) > 0:
		return bad("it has no leaf")
	case len(f.Leaf) > MaxCommit || len(f.Path) > maxPath || len(f.Delegations) > maxWitnessed:
		return bad("leaf, path or delegations are too many")
	}
	for _, raw := range append([][]byte{f.Open}, f.Records...) {
		if len(raw) > maxRecord {
			return bad("record of %d bytes, at most %d", len(raw), maxRecord)
		}
	}
	for _, raw := range f.Delegations {
		if len(raw) > market.MaxDelegation {
			return bad("delegation of %d bytes, at most %d", len(raw), market.MaxDelegation)
		}
	}
	return nil
}
