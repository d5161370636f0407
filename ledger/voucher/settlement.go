package voucher

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Settlement records a payment from the channel's renter to its provider that was made outside. The channel is over all epochs, and so
// are its lanes. Either side proposes it, and it counts
// when the other has signed the same terms with Proposal set to the hash of the proposal. It may exceed what is owed: the surplus is
// prepaid.
type Settlement struct {
	identity.Header
	Delegation wire.Hash      `cbor:"4,keyasint"`
	Channel    ledger.Channel `cbor:"5,keyasint"`
	Nonce      wire.Hash      `cbor:"6,keyasint"` // random, the proposer's: makes the id
	Amount     money.Micro    `cbor:"7,keyasint"`
	Method     string         `cbor:"8,keyasint"`            // "manual"
	Reference  string         `cbor:"9,keyasint"`            // invoice or transfer number; one payment is recorded once
	Lanes      []LaneAmount   `cbor:"10,keyasint"`           // what both agree was promised on the lanes that it pays off, the oldest first
	Time       int64          `cbor:"11,keyasint"`           // Unix milliseconds by the proposer's clock; for people
	Proposal   wire.Hash      `cbor:"12,keyasint"`           // zero in a proposal
	Checkpoint []byte         `cbor:"13,keyasint,omitempty"` // of the signer's log, a signed note
}

// LaneAmount is the cumulative amount of a lane's newest voucher.
type LaneAmount struct {
	Lane   ledger.Lane `cbor:"1,keyasint"`
	Amount money.Micro `cbor:"2,keyasint"`
}

var (
	// ErrSettlement says that a settlement is malformed.
	ErrSettlement = errors.New("not a settlement")
	// ErrTerms says that a countersignature is for other terms than the proposal, or not by the other side.
	ErrTerms = errors.New("countersigned other terms")
)

// ID names the payment: a hash of channel and nonce, the same in proposal and countersignature.
func (s Settlement) ID() wire.Hash {
	ch := s.Channel.ID()
	return wire.Sum("gpufair/settlement-id/1", ch[:], s.Nonce[:])
}

// Payment names what was paid by its outside reference, so that it is recorded once; zero for a settlement without a reference.
func (s Settlement) Payment() wire.Hash {
	if s.Reference == "" {
		return wire.Hash{}
	}
	ch, method := s.Channel.ID(), wire.Sum("gpufair/method/1", []byte(s.Method))
	return wire.Sum("gpufair/payment/1", ch[:], method[:], []byte(s.Reference))
}

// Validate checks the fields of s that need no other record.
func (s Settlement) Validate() error {
	switch {
	case s.Channel.Validate() != nil:
		return fmt.Errorf("settlement: %w", s.Channel.Validate())
	case s.Channel != s.Channel.AllEpochs():
		return fmt.Errorf("settlement: %w: it is of epoch %d: a payment is of all", ErrSettlement, s.Channel.Epoch)
	case s.Channel.RoleOf(s.Account) == 0:
		return fmt.Errorf("settlement: %w: account %s is no side of the channel", ErrSettlement, s.Account.Short())
	case s.Amount == 0 || s.Amount > money.Max:
		return fmt.Errorf("settlement of %v: %w", s.Amount, ErrSettlement)
	case s.Nonce.IsZero() || s.Method == "" || len(s.Method) > MaxMethod || len(s.Reference) > MaxReference || len(s.Lanes) > MaxLanes ||
		len(s.Checkpoint) > MaxCheckpoint:
		return fmt.Errorf("settlement of %v: %w: a field is missing or too long", s.Amount, ErrSettlement)
	}
	for i, l := range s.Lanes {
		if i > 0 && slices.Compare(s.Lanes[i-1].Lane[:], l.Lane[:]) >= 0 {
			return fmt.Errorf("settlement of %v: %w: its lanes are not in order", s.Amount, ErrSettlement)
		}
	}
	return nil
}

// SignSettlement signs s by dev: a proposal, or with Proposal set a countersignature.
func SignSettlement(dev *identity.Device, s Settlement) ([]byte, error) {
	s.Header, s.Delegation = dev.Header(version), dev.DelegationHash()
	if err := s.Validate(); err != nil {
		return nil, err
	}
	return dev.Seal(DomainSettlement, s)
}

// OpenSettlement checks a settlement's signature and fields.
func OpenSettlement(raw []byte) (Settlement, error) {
	return open[Settlement](DomainSettlement, "settlement", MaxSettlement, raw)
}

// Countersigned checks that counter is the other side's signature under the terms of proposal, whose bytes have the given hash.
func Countersigned(proposal Settlement, hash wire.Hash, counter Settlement) error {
	same := proposal.Channel == counter.Channel && proposal.Nonce == counter.Nonce && proposal.Amount == counter.Amount &&
		proposal.Method == counter.Method && proposal.Reference == counter.Reference && slices.Equal(proposal.Lanes, counter.Lanes) &&
		proposal.Time == counter.Time
	switch {
	case !proposal.Proposal.IsZero():
		return fmt.Errorf("settlement %s: %w: the proposal is itself a countersignature", proposal.ID().Short(), ErrTerms)
	case !same || counter.Proposal != hash:
		return fmt.Errorf("settlement %s: %w", proposal.ID().Short(), ErrTerms)
	case counter.Account != proposal.Channel.Peer(proposal.Account):
		return fmt.Errorf("settlement %s: %w: both signatures are of account %s", proposal.ID().Short(), ErrTerms, counter.Account.Short())
	}
	return nil
}
