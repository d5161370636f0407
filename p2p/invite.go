package p2p

import (
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// DomainInvite is the domain of [Invite].
const DomainInvite identity.Domain = "gpufair/invite/1"

// InvitePrefix opens the text form of an invite, so that people and programs know it when they see it.
const InvitePrefix = "gpufair-invite:"

// Limits of an invite: it is pasted by people, and whoever reads it trusts none of it before the signature.
const (
	maxInviteAddrs  = 16      // a machine with more interfaces lists its best
	maxInviteAddr   = 128     // one over a relay and IPv6 can be longer, and is left out
	maxInviteCredit = 64      // an amount and its unit
	maxInviteText   = 4 << 10 // 16 addresses and all the rest in base64 fit
)

// ErrInvite says that a text is not an invite, or not a whole one.
var ErrInvite = errors.New("not a valid invite")

// Invite is all that a stranger needs to join a network: one string, signed by the device that made it, so that neither a typing
// error nor a helpful stranger can change it. The account in it is the device's own word until it shows its delegation.
type Invite struct {
	identity.Header
	Delegation wire.Hash `cbor:"4,keyasint"`           // of the device, so that the account's proof can be asked for by name
	Network    string    `cbor:"5,keyasint"`           // see [ProtocolID]
	Addrs      []string  `cbor:"6,keyasint"`           // multiaddresses of the device, without the /p2p part
	Credit     string    `cbor:"7,keyasint,omitempty"` // what the inviter offers to lend, as `credit` prints it
}

// NewInvite makes the invite of dev to network, reachable at the first of addrs that an invite may hold; those that are too long for it are
// left out. credit may be empty. The error says which part is out of bounds.
func NewInvite(dev *identity.Device, network string, addrs []string, credit string) (string, error) {
	addrs = slices.DeleteFunc(slices.Clone(addrs), func(one string) bool { return len(one) > maxInviteAddr })
	addrs = addrs[:min(len(addrs), maxInviteAddrs)]
	inv := Invite{Header: dev.Header(1), Delegation: dev.DelegationHash(), Network: network, Addrs: addrs, Credit: credit}
	if err := inv.validate(); err != nil {
		return "", fmt.Errorf("make invite: %w", err)
	}
	raw, err := dev.Seal(DomainInvite, inv)
	if err != nil {
		return "", fmt.Errorf("make invite: %w", err)
	}
	return InvitePrefix + base64.RawURLEncoding.EncodeToString(raw), nil
}

// ParseInvite reads what [NewInvite] made. White space around or inside it (a mail's line breaks) does no harm. Errors are
// [ErrInvite] and say whether the text is no invite, was cut, or was changed.
func ParseInvite(text string) (Invite, error) {
	s := strings.Join(strings.Fields(text), "")
	if len(s) > maxInviteText {
		return Invite{}, fmt.Errorf("%w: %d characters, an invite has at most %d", ErrInvite, len(s), maxInviteText)
	}
	b64, ok := strings.CutPrefix(s, InvitePrefix)
	if !ok {
		return Invite{}, fmt.Errorf("%w: want the whole line that `gpufaird invite` prints, it starts with %q", ErrInvite, InvitePrefix)
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(b64)
	if err != nil {
		return Invite{}, fmt.Errorf("%w: a character is missing or mistyped; copy the whole string again", ErrInvite)
	}
	inv, err := identity.OpenAdvert[Invite](DomainInvite, 1, raw)
	if err != nil {
		return Invite{}, fmt.Errorf("%w: it was cut short or changed on the way; copy the whole string again: %w", ErrInvite, err)
	}
	if err := inv.validate(); err != nil {
		return Invite{}, fmt.Errorf("%w: %w; ask for a new one", ErrInvite, err)
	}
	return inv, nil
}

// PeerAddr is where the inviting device is.
func (i Invite) PeerAddr() PeerAddr { return PeerAddr{Peer: i.Device, Addrs: i.Addrs} }

func (i Invite) validate() error {
	if err := CheckNetwork(i.Network); err != nil {
		return err
	}
	switch {
	case len(i.Addrs) == 0:
		return errors.New("it holds no address; an owner behind a router must name one that can be reached")
	case len(i.Addrs) > maxInviteAddrs:
		return fmt.Errorf("%d addresses, at most %d", len(i.Addrs), maxInviteAddrs)
	case len(i.Credit) > maxInviteCredit:
		return fmt.Errorf("credit text of %d bytes, at most %d", len(i.Credit), maxInviteCredit)
	}
	for _, a := range i.Addrs {
		if a == "" || len(a) > maxInviteAddr || a[0] != '/' {
			return fmt.Errorf("address %.40q is not a multiaddress such as /ip4/192.0.2.7/udp/4701/quic-v1", a)
		}
	}
	return nil
}
