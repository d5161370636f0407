package identity

import (
	"crypto/ed25519"
	"fmt"

	"github.com/libp2p/go-libp2p/core/crypto"

	"github.com/gpufair/gpufair/p2p/wire"
)

// DomainRevocation is the domain of [Revocation].
const DomainRevocation Domain = "gpufair/revocation/1"

// ErrRevoked says that a device's account has let it go; it wraps [ErrPower].
var ErrRevoked = fmt.Errorf("%w: its account has revoked the device", ErrPower)

// MaxRevocation is the largest sealed revocation in bytes; ours have under 250.
const MaxRevocation = 384

// Revocation is an account's word that a device acts for it no longer: every delegation of the device up to Serial is void for records
// that come from now on. What the device signed before stays owed. It is never undone; a delegation of a higher serial lets the device
// in again. The account's key signs it, so its Header.Device is not the signer but the device that is let go.
type Revocation struct {
	Header
	Serial uint64 `cbor:"5,keyasint"` // the last that is void
	Time   int64  `cbor:"6,keyasint"` // Unix milliseconds; for people, no promise is judged by it
}

// Revoke signs a revocation of device by the account of key.
func Revoke(account ed25519.PrivateKey, device PeerID, serial uint64, unixMilli int64) ([]byte, error) {
	priv, err := crypto.UnmarshalEd25519PrivateKey(account)
	if err != nil {
		return nil, fmt.Errorf("account key: %w", err)
	}
	return seal(priv, DomainRevocation, Revocation{
		Header: Header{Version: 1, Account: AccountID(account.Public().(ed25519.PublicKey)), Device: device}, Serial: serial, Time: unixMilli,
	})
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
	switch {
	case r.Version != 1:
		return Revocation{}, fmt.Errorf("open %s: version %d: %w", DomainRevocation, r.Version, ErrVersion)
	case r.Account != AccountID(signer):
		return Revocation{}, fmt.Errorf("open %s: %w", DomainRevocation, ErrSigner)
	}
	return r, nil
}

// Voids reports whether r makes d void: it is for the same account and device, and d is not newer.
func (r Revocation) Voids(d Delegation) bool {
	return r.Account == d.Account && r.Device == d.Device && d.Serial <= r.Serial
}
