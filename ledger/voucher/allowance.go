package voucher

import (
	"errors"
	"fmt"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// DomainAllowance is of the signed records. docs/protocol.md has the table.
const DomainAllowance identity.Domain = "gpufair/allowance/1"

// Limits of an allowance.
const (
	MaxAllowance = 1 << 10 // bytes of a sealed one: 350
	MaxUntil     = 1 << 43 // Unix milliseconds: the year 2248
)

// ErrAllowance says that an allowance is malformed, or takes back what an earlier one promised.
var ErrAllowance = errors.New("not an allowance, or less than an earlier one")

// Allowance is the renter's word for the time when it is away (spec: ledger, Rules): what the provider meters on this lane until Until, up to
// Amount in all, I will sign for when I am back. It is cumulative as vouchers are, so that the same allowance twice is one promise, and a
// later one only raises it. It is no voucher: it owes nothing by itself, and what was metered under it is the provider's word until a
// voucher says so.
type Allowance struct {
	identity.Header
	Delegation wire.Hash      `cbor:"4,keyasint"`
	Channel    ledger.Channel `cbor:"5,keyasint"`
	Lane       ledger.Lane    `cbor:"6,keyasint"`
	Amount     money.Micro    `cbor:"7,keyasint"` // of the lane in all, what its vouchers promise included
	Until      int64          `cbor:"8,keyasint"` // Unix milliseconds; judged by the provider's clock while it meters
}

// Validate checks the fields of a that need no other record.
func (a Allowance) Validate() error {
	switch {
	case a.Channel.Validate() != nil:
		return fmt.Errorf("allowance for lane %s: %w", a.Lane.Short(), a.Channel.Validate())
	case a.Account != a.Channel.Renter:
		return fmt.Errorf("allowance for lane %s: %w: signed for account %s", a.Lane.Short(), ErrSigner, a.Account.Short())
	case a.Amount > money.Max:
		return fmt.Errorf("allowance for lane %s: %w", a.Lane.Short(), money.ErrOverflow)
	case a.Amount == 0 || a.Until <= 0 || a.Until > MaxUntil || a.Lane == ledger.Lane{}:
		return fmt.Errorf("allowance for lane %s: %w: %v until %d", a.Lane.Short(), ErrAllowance, a.Amount, a.Until)
	}
	return nil
}

// SignAllowance makes an allowance of a's fields by dev, under the lane's delegation. The header is filled in.
func SignAllowance(dev *identity.Device, a Allowance) ([]byte, error) {
	a.Header = dev.Header(version)
	if err := a.Validate(); err != nil {
		return nil, err
	}
	return dev.Seal(DomainAllowance, a)
}

// OpenAllowance checks an allowance's signature and fields. Whether it is for a lane is for [Lane.Allows].
func OpenAllowance(raw []byte) (Allowance, error) {
	return open[Allowance](DomainAllowance, "allowance", MaxAllowance, raw)
}

// Allows checks that an allowance is by the lane's device, within its delegation.
func (l Lane) Allows(a Allowance) error {
	err := l.identity(Voucher{Header: a.Header, Delegation: a.Delegation, Channel: a.Channel, Lane: a.Lane, Amount: a.Amount})
	if err != nil {
		return fmt.Errorf("allowance for lane %s: %w", a.Lane.Short(), err)
	}
	return nil
}
