package voucher

import (
	"errors"
	"fmt"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Domains of the records of a dispute.
const (
	DomainDispute    identity.Domain = "gpufair/dispute/1"
	DomainCreditNote identity.Domain = "gpufair/credit-note/1"
)

// Limits of the records of a dispute.
const (
	MaxDispute    = 2 << 10 // bytes of a sealed dispute
	MaxCreditNote = 2 << 10 // bytes of a sealed credit note
	MaxReason     = 256     // bytes of a reason
)

// Dispute is one side's word that it does not agree with what a lane comes to. It freezes the lane: no voucher raises it any more. It
// names the newest voucher that its signer knows both to have signed: what stands if the two do not agree on less. Its key 5 is the lane,
// as in all records of a lease.
type Dispute struct {
	identity.Header
	Delegation wire.Hash      `cbor:"4,keyasint"`
	Lane       ledger.Lane    `cbor:"5,keyasint"`
	Channel    ledger.Channel `cbor:"6,keyasint"`  // of the lane
	Voucher    wire.Hash      `cbor:"7,keyasint"`  // the newest that both signed; the opening one if there is none after it
	Amount     money.Micro    `cbor:"8,keyasint"`  // of that voucher
	Receipt    wire.Hash      `cbor:"9,keyasint"`  // of that voucher's receipt, which names the evidence; zero: none
	Reason     string         `cbor:"10,keyasint"` // for people
	Time       int64          `cbor:"11,keyasint"` // Unix milliseconds by the signer's clock
	Until      int64          `cbor:"12,keyasint"` // Unix milliseconds: from then on the amount stands, if the two did not agree on less
	Checkpoint []byte         `cbor:"13,keyasint"` // of the signer's log, a signed note
}

// CreditNote ends a dispute by agreement: a lane comes to Amount, which is no more than what was promised. Either side proposes it, and it
// counts when the other has signed the same with Proposal set to the hash of the proposal.
type CreditNote struct {
	identity.Header
	Delegation wire.Hash      `cbor:"4,keyasint"`
	Lane       ledger.Lane    `cbor:"5,keyasint"`
	Channel    ledger.Channel `cbor:"6,keyasint"`
	Amount     money.Micro    `cbor:"7,keyasint"` // that the lane comes to in all
	Time       int64          `cbor:"8,keyasint"` // Unix milliseconds by the proposer's clock
	Proposal   wire.Hash      `cbor:"9,keyasint"` // zero in a proposal
}

// ErrDispute says that a record of a dispute is malformed.
var ErrDispute = errors.New("not a record of a dispute")

// maxDispute is how long a dispute may stay open, in milliseconds: 90 days. No default is infinite.
const maxDispute = 90 * 24 * 60 * 60 * 1000

// Validate checks the fields of d that need no other record.
func (d Dispute) Validate() error {
	switch {
	case d.Channel.Validate() != nil:
		return fmt.Errorf("dispute of lane %s: %w", d.Lane.Short(), d.Channel.Validate())
	case d.Channel.RoleOf(d.Account) == 0:
		return fmt.Errorf("dispute of lane %s: %w: account %s is no side of the channel", d.Lane.Short(), ErrDispute, d.Account.Short())
	case d.Lane == ledger.Lane{} || d.Voucher.IsZero() || d.Amount > money.Max || d.Reason == "" || len(d.Reason) > MaxReason ||
		len(d.Checkpoint) > MaxCheckpoint:
		return fmt.Errorf("dispute of lane %s: %w: a field is missing or too long", d.Lane.Short(), ErrDispute)
	case d.Time <= 0 || d.Until <= d.Time || d.Until-d.Time > maxDispute:
		return fmt.Errorf("dispute of lane %s: %w: open from %d to %d", d.Lane.Short(), ErrDispute, d.Time, d.Until)
	}
	return nil
}

// SignDispute signs d by dev.
func SignDispute(dev *identity.Device, d Dispute) ([]byte, error) {
	d.Header, d.Delegation = dev.Header(version), dev.DelegationHash()
	if err := d.Validate(); err != nil {
		return nil, err
	}
	return dev.Seal(DomainDispute, d)
}

// OpenDispute checks a dispute's signature and fields.
func OpenDispute(raw []byte) (Dispute, error) {
	return open[Dispute](DomainDispute, "dispute", MaxDispute, raw)
}

// Validate checks the fields of n that need no other record.
func (n CreditNote) Validate() error {
	switch {
	case n.Channel.Validate() != nil:
		return fmt.Errorf("credit note of lane %s: %w", n.Lane.Short(), n.Channel.Validate())
	case n.Channel.RoleOf(n.Account) == 0 || n.Lane == ledger.Lane{} || n.Amount > money.Max || n.Time <= 0:
		return fmt.Errorf("credit note of lane %s: %w: account %s, amount %v", n.Lane.Short(), ErrDispute, n.Account.Short(), n.Amount)
	}
	return nil
}

// SignCreditNote signs n by dev: a proposal, or with Proposal set a countersignature.
func SignCreditNote(dev *identity.Device, n CreditNote) ([]byte, error) {
	n.Header, n.Delegation = dev.Header(version), dev.DelegationHash()
	if err := n.Validate(); err != nil {
		return nil, err
	}
	return dev.Seal(DomainCreditNote, n)
}

// OpenCreditNote checks a credit note's signature and fields.
func OpenCreditNote(raw []byte) (CreditNote, error) {
	return open[CreditNote](DomainCreditNote, "credit note", MaxCreditNote, raw)
}

// Agreed checks that counter is the other side's signature under the terms of proposal, whose bytes have the given hash.
func Agreed(proposal CreditNote, hash wire.Hash, counter CreditNote) error {
	same := proposal.Lane == counter.Lane && proposal.Channel == counter.Channel && proposal.Amount == counter.Amount && proposal.Time == counter.Time
	switch {
	case !proposal.Proposal.IsZero():
		return fmt.Errorf("credit note of lane %s: %w: the proposal is itself a countersignature", proposal.Lane.Short(), ErrTerms)
	case !same || counter.Proposal != hash:
		return fmt.Errorf("credit note of lane %s: %w", proposal.Lane.Short(), ErrTerms)
	case counter.Account != proposal.Channel.Peer(proposal.Account):
		return fmt.Errorf("credit note of lane %s: %w: both signatures are of account %s", proposal.Lane.Short(), ErrTerms, counter.Account.Short())
	}
	return nil
}
