package identity

import (
	"crypto/ed25519"
	"crypto/rand"
	"fmt"

	"github.com/libp2p/go-libp2p/core/crypto"

	"github.com/gpufair/gpufair/p2p/wire"
)

// Device is this machine's half of an identity: the private key of its libp2p host and the delegation that lets it act for its
// account. It signs everything; the account's key stays in its file. Safe for concurrent use.
type Device struct {
	key        crypto.PrivKey
	id         PeerID
	account    AccountID
	delegation []byte
	hash       wire.Hash
}

// NewDevice checks that delegation is for the device of key and puts the two together.
func NewDevice(key ed25519.PrivateKey, delegation []byte) (*Device, error) {
	d, err := OpenDelegation(delegation)
	if err != nil {
		return nil, err
	}
	id := PeerID(key.Public().(ed25519.PublicKey))
	if d.Device != id {
		return nil, fmt.Errorf("delegation for device %s: %w: this device is %s", d.Device, ErrPower, id)
	}
	priv, err := crypto.UnmarshalEd25519PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("device key: %w", err)
	}
	return &Device{key: priv, id: id, account: d.Account, delegation: delegation, hash: Hash(delegation)}, nil
}

// Delegate signs a delegation of device by the account whose first key this is.
func Delegate(account ed25519.PrivateKey, device PeerID, serial uint64, powers Powers, limit uint64) ([]byte, error) {
	return FirstKey(account).Delegate(device, serial, powers, limit)
}

// DefaultCap is what one lane of a first device may reach: 10,000 units. No default is infinite.
const DefaultCap = 10_000 * 1_000_000

// Generate makes an account and its first device, with all powers and [DefaultCap]. Nothing is stored.
func Generate() (account ed25519.PrivateKey, device ed25519.PrivateKey, dev *Device, err error) {
	if _, account, err = ed25519.GenerateKey(rand.Reader); err != nil {
		return nil, nil, nil, fmt.Errorf("account key: %w", err)
	}
	if _, device, err = ed25519.GenerateKey(rand.Reader); err != nil {
		return nil, nil, nil, fmt.Errorf("device key: %w", err)
	}
	del, err := Delegate(account, PeerID(device.Public().(ed25519.PublicKey)), 1, AllPowers, DefaultCap)
	if err != nil {
		return nil, nil, nil, err
	}
	dev, err = NewDevice(device, del)
	return account, device, dev, err
}

// Peer is the device's id on the network.
func (d *Device) Peer() PeerID { return d.id }

// Account is whom the device acts for.
func (d *Device) Account() AccountID { return d.account }

// Delegation is the signed delegation's bytes; the caller must not change them.
func (d *Device) Delegation() []byte { return d.delegation }

// DelegationHash names the delegation in records (key 4).
func (d *Device) DelegationHash() wire.Hash { return d.hash }

// Header is the header of a record of the given version by this device.
func (d *Device) Header(version uint16) Header {
	return Header{Version: version, Account: d.account, Device: d.id}
}

// Seal signs body for domain. The body's header must be this device's, or the reader would refuse it.
func (d *Device) Seal(domain Domain, body Body) ([]byte, error) {
	if h := body.Head(); h.Account != d.account || h.Device != d.id {
		return nil, fmt.Errorf("sign %s: %w: its header names device %s", domain, ErrSigner, h.Device)
	}
	return seal(d.key, domain, body)
}

// HostKey is the private key in the form libp2p's host wants; only p2p/libp2p asks for it.
func (d *Device) HostKey() crypto.PrivKey { return d.key }
