package settle

import (
	"fmt"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
)

// speaks opens the delegation of a peer that asks something, and checks that it is that device's own.
func speaks(from identity.PeerID, delegation []byte) (identity.Delegation, error) {
	if len(delegation) > identity.MaxDelegation {
		return identity.Delegation{}, p2p.Errorf(p2p.KindBadRequest, "a delegation of %d bytes", len(delegation))
	}
	d, err := identity.OpenDelegation(delegation)
	if err == nil && d.Device != from {
		err = p2p.Errorf(p2p.KindForbidden, "the delegation is not of device %s", from.Short())
	}
	return d, err
}

// onSide checks that a peer that asks is a device of the channel's other side.
func onSide(self identity.AccountID, from identity.PeerID, ch ledger.Channel, delegation []byte) error {
	if err := ch.Validate(); err != nil {
		return p2p.Errorf(p2p.KindBadRequest, "%v", err)
	}
	d, err := speaks(from, delegation)
	if err != nil {
		return err
	}
	if ch.RoleOf(self) == 0 || d.Account != ch.Peer(self) {
		return p2p.Errorf(p2p.KindForbidden, "device %s is on no side of this channel", from.Short())
	}
	return nil
}

// answersFor checks that the peer that was asked answers as a device of account.
func answersFor(peer identity.PeerID, account identity.AccountID, delegation []byte) error {
	d, err := identity.OpenDelegation(delegation)
	if err == nil && (d.Device != peer || d.Account != account) {
		err = fmt.Errorf("%w: it answers for account %s", identity.ErrPower, d.Account.Short())
	}
	return err
}
