package market

import (
	"errors"
	"fmt"

	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Version is that of every record in this package.
const Version = 1

// Limits of sealed records in bytes. Each is the largest legal record with room for keys of a later version.
const (
	MaxTombstone  = 256
	MaxAccept     = 1 << 10
	MaxLease      = 4 << 10 // the Accept inside, and 16 slots
	MaxReady      = 512
	MaxRelease    = 1 << 10
	MaxEnd        = 4 << 10
	MaxDelegation = identity.MaxDelegation
)

// ErrInvalid says that a record is signed and well formed and still makes no sense: a figure is outside its limits.
var ErrInvalid = errors.New("invalid record")

func invalid(what, format string, args ...any) error {
	return fmt.Errorf("%s: %w: %s", what, ErrInvalid, fmt.Sprintf(format, args...))
}

// validated is a record that can judge itself.
type validated interface {
	identity.Body
	Validate() error
}

func checkSize(d identity.Domain, raw []byte, limit int) error {
	if len(raw) > limit {
		return fmt.Errorf("open %s of %d bytes: %w (limit %d)", d, len(raw), wire.ErrTooLarge, limit)
	}
	return nil
}

func openAdvert[T validated](d identity.Domain, raw []byte, limit int) (T, error) {
	var zero T
	if err := checkSize(d, raw, limit); err != nil {
		return zero, err
	}
	v, err := identity.OpenAdvert[T](d, Version, raw)
	if err != nil {
		return zero, err
	}
	if err := v.Validate(); err != nil {
		return zero, err
	}
	return v, nil
}

func openMoney[T validated](d identity.Domain, raw []byte, limit int) (T, error) {
	var zero T
	if err := checkSize(d, raw, limit); err != nil {
		return zero, err
	}
	v, err := identity.OpenMoney[T](d, Version, raw)
	if err != nil {
		return zero, err
	}
	if err := v.Validate(); err != nil {
		return zero, err
	}
	return v, nil
}

// OpenOffer checks size, signature and limits of a sealed offer; [OpenSealedOffer] checks its delegation as well.
func OpenOffer(raw []byte) (Offer, error) { return openAdvert[Offer](DomainOffer, raw, MaxOffer) }

// OpenHeartbeat checks size and signature of a sealed heartbeat. That its account let the device offer is for the offer it names.
func OpenHeartbeat(raw []byte) (Heartbeat, error) {
	return openAdvert[Heartbeat](DomainHeartbeat, raw, MaxHeartbeat)
}

// OpenTombstone checks size and signature of a sealed tombstone.
func OpenTombstone(raw []byte) (Tombstone, error) {
	return openAdvert[Tombstone](DomainTombstone, raw, MaxTombstone)
}

// OpenAccept checks size, signature and limits of a sealed accept. Whether the device may trade is for its delegation.
func OpenAccept(raw []byte) (Accept, error) { return openMoney[Accept](DomainAccept, raw, MaxAccept) }

// OpenLease checks size, signature and limits of a sealed lease, not that it answers an accept: see [CheckLease].
func OpenLease(raw []byte) (Lease, error) { return openMoney[Lease](DomainLease, raw, MaxLease) }

// OpenReady checks size, signature and limits of a sealed ready.
func OpenReady(raw []byte) (Ready, error) { return openMoney[Ready](DomainReady, raw, MaxReady) }

// OpenRelease checks size, signature and limits of a sealed release.
func OpenRelease(raw []byte) (Release, error) {
	return openMoney[Release](DomainRelease, raw, MaxRelease)
}

// OpenEnd checks size, signature and limits of a sealed end.
func OpenEnd(raw []byte) (End, error) { return openMoney[End](DomainEnd, raw, MaxEnd) }

// OpenDelegation opens a delegation and checks that it lets the signer of the record with header h do what power names, and that
// it is the delegation whose hash the record names.
func OpenDelegation(raw []byte, named wire.Hash, h identity.Header, power identity.Powers) (identity.Delegation, error) {
	if err := checkSize(identity.DomainDelegation, raw, MaxDelegation); err != nil {
		return identity.Delegation{}, err
	}
	if identity.Hash(raw) != named {
		return identity.Delegation{}, fmt.Errorf("delegation of device %s: %w: the record names another one", h.Device.Short(), identity.ErrPower)
	}
	d, err := identity.OpenDelegation(raw)
	if err != nil {
		return identity.Delegation{}, err
	}
	return d, d.Allows(h, power)
}

// SealedOffer is a checked offer with the exact bytes that were signed, for keeping, forwarding and naming it.
type SealedOffer struct {
	Offer
	Raw           []byte    // the envelope
	DelegationRaw []byte    // the account's word that the device may offer
	Hash          wire.Hash // of Raw
}

// OpenSealedOffer checks an offer and the delegation beside it: sizes, both signatures, the limits, and the power to provide.
func OpenSealedOffer(raw, delegation []byte) (SealedOffer, error) {
	o, err := OpenOffer(raw)
	if err != nil {
		return SealedOffer{}, err
	}
	if _, err := OpenDelegation(delegation, o.Delegation, o.Header, identity.PowerProvide); err != nil {
		return SealedOffer{}, err
	}
	return SealedOffer{Offer: o, Raw: raw, DelegationRaw: delegation, Hash: identity.Hash(raw)}, nil
}

// Prefix is the start of the offer's hash, as heartbeats name it.
func (o SealedOffer) Prefix() [16]byte { return [16]byte(o.Hash[:16]) }
