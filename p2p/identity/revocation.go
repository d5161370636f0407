package identity

import (
	"crypto/ed25519"
	"fmt"

	"github.com/gpufair/gpufair/p2p/wire"
)

// DomainRevocation is the domain of [Revocation].
const DomainRevocation Domain = "gpufair/revocation/1"

// ErrRevoked says that a device's account has let it go; it wraps [ErrPower].
var ErrRevoked = fmt.Errorf("%w: its account has revoked the device", ErrPower)

// MaxRevocation is the largest sealed revocation in bytes: one without a change of the account's key has under 250, each change adds 170.
const MaxRevocation = 1 << 10

// Revocation is an account's word that a device acts for it no longer: every delegation of the device up to Serial is void for records
// that come from now on. What the device signed before stays owed. It is never undone; a delegation of a higher serial lets the device
// in again. The account's key signs it, so its Header.Device is not the signer but the device that is let go. A key of the account that
// was replaced is let go in the same way, by its own name in the place of the device: so whoever hears of it has the chain.
type Revocation struct {
	Header
	Serial uint64 `cbor:"5,keyasint"`           // the last that is void
	Time   int64  `cbor:"6,keyasint"`           // Unix milliseconds; for people, no promise is judged by it
	Chain  Chain  `cbor:"7,keyasint,omitempty"` // of version 2: how the key that signed came to be the account's
}

// Revoke signs a revocation of device by the account whose first key this is.
func Revoke(account ed25519.PrivateKey, device PeerID, serial uint64, unixMilli int64) ([]byte, error) {
	return FirstKey(account).Revoke(device, serial, unixMilli)
}

// OpenRevocation checks and decodes a revocation: its signature must be by the account that it names.
func OpenRevocation(raw []byte) (Revocation, error) {
	if len(raw) > MaxRevocation {
		return Revocation{}, fmt.Errorf("open %s: %d bytes: %w (limit %d)", DomainRevocation, len(raw), wire.ErrTooLarge, MaxRevocation)
	}
	body, signer, err := open(DomainRevocation, raw)
	if err != nil {
		return Revocation{}, err
	}
	var r Revocation
	if err := wire.UnmarshalStrict(body, &r); err != nil {
		return Revocation{}, fmt.Errorf("open %s: %w", DomainRevocation, err)
	}
	if err := checkSigner(r.Header, r.Chain, signer); err != nil {
		return Revocation{}, fmt.Errorf("open %s: %w", DomainRevocation, err)
	}
	return r, nil
}

// Voids reports whether r makes d void: it is for the same account and device, and d is newer neither by its serial nor by the account's
// key that signed it.
func (r Revocation) Voids(d Delegation) bool {
	return r.Account == d.Account && r.Device == d.Device && d.Serial <= r.Serial && r.Chain.Against(d.Chain) != OlderKey
}

// Over reports whether r takes the place of another revocation of the same device: by a newer key of the account, or a higher serial.
func (r Revocation) Over(have Revocation) bool {
	switch r.Chain.Against(have.Chain) {
	case NewerKey:
		return true
	case SameKey:
		return r.Serial > have.Serial
	}
	return false
}
