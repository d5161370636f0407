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

// Delegation is an account's word that a device may act for it. The account's key signs it, so its Header.Device, alone among all
// records, is not the signer but the device that is let in.
type Delegation struct {
	Header
	Serial uint64 `cbor:"5,keyasint"` // rises with each delegation of the account; the newest for a device counts
	Powers Powers `cbor:"6,keyasint"`
	Cap    uint64 `cbor:"7,keyasint"` // the most micro-units that one lane signed by this device may reach
}

// OpenDelegation checks and decodes a delegation: its signature must be by the account that it names.
func OpenDelegation(raw []byte) (Delegation, error) {
	body, signer, err := open(DomainDelegation, raw)
	if err != nil {
		return Delegation{}, err
	}
	var d Delegation
	if err := wire.UnmarshalStrict(body, &d); err != nil {
		return Delegation{}, fmt.Errorf("open %s: %w", DomainDelegation, err)
	}
	switch {
	case d.Version != 1:
		return Delegation{}, fmt.Errorf("open %s: version %d: %w", DomainDelegation, d.Version, ErrVersion)
	case d.Account != AccountID(signer):
		return Delegation{}, fmt.Errorf("open %s: %w", DomainDelegation, ErrSigner)
	case d.Powers&^AllPowers != 0:
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
