package identity

import (
	"errors"
	"fmt"
	"strings"

	"github.com/gpufair/gpufair/p2p/wire"
)

// Powers is what an account lets a device do, as bits.
type Powers uint8

// The powers. They are never renumbered.
const (
	PowerTrade   Powers = 1 << iota // accept offers, release leases
	PowerPay                        // sign vouchers and settlements
	PowerProvide                    // sign offers, leases, receipts and ends
)

// AllPowers is what the first device of an account gets.
const AllPowers = PowerTrade | PowerPay | PowerProvide

// String lists the powers: "trade|pay|provide".
func (p Powers) String() string {
	var names []string
	for i, n := range []string{"trade", "pay", "provide"} {
		if p&(1<<i) != 0 {
			names = append(names, n)
		}
	}
	return strings.Join(names, "|")
}

// DomainDelegation is the domain of [Delegation].
const DomainDelegation Domain = "gpufair/delegation/1"

// ErrPower says that a device did what its account never let it do.
var ErrPower = errors.New("beyond the device's delegation")

// Delegation is an account's word that a device may act for it. The account's key signs it, its first one or one that followed it, so its Header.Device, alone among all
// records, is not the signer but the device that is let in.
type Delegation struct {
	Header
	Serial uint64 `cbor:"5,keyasint"` // rises with each delegation of the account; the newest for a device counts
	Powers Powers `cbor:"6,keyasint"`
	Cap    uint64 `cbor:"7,keyasint"`           // the most micro-units that one lane signed by this device may reach
	Chain  Chain  `cbor:"8,keyasint,omitempty"` // of version 2: how the key that signed came to be the account's
}

// MaxDelegation is the largest sealed delegation in bytes: one without a change of the account's key has under 300, each change adds 170.
const MaxDelegation = 1 << 10

// OpenDelegation checks and decodes a delegation: its signature must be by the account that it names, or by the key that follows from it.
func OpenDelegation(raw []byte) (Delegation, error) {
	body, signer, err := open(DomainDelegation, raw)
	if err != nil {
		return Delegation{}, err
	}
	var d Delegation
	if err := wire.UnmarshalStrict(body, &d); err != nil {
		return Delegation{}, fmt.Errorf("open %s: %w", DomainDelegation, err)
	}
	if err := checkSigner(d.Header, d.Chain, signer); err != nil {
		return Delegation{}, fmt.Errorf("open %s: %w", DomainDelegation, err)
	}
	if d.Powers&^AllPowers != 0 {
		return Delegation{}, fmt.Errorf("open %s: unknown powers %#x: %w", DomainDelegation, uint8(d.Powers), ErrVersion)
	}
	return d, nil
}

// Allows checks that the record with header h was signed by this delegation's device for its account, within power.
func (d Delegation) Allows(h Header, power Powers) error {
	switch {
	case d.Account != h.Account || d.Device != h.Device:
		return fmt.Errorf("%w: the delegation is for device %s of account %s, the record names %s of %s",
			ErrPower, d.Device.Short(), d.Account.Short(), h.Device.Short(), h.Account.Short())
	case d.Powers&power != power:
		return fmt.Errorf("%w: the account let the device %q, this needs %q", ErrPower, d.Powers, power)
	}
	return nil
}
