package books

import (
	"context"
	"errors"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/p2p/identity"
)

// KeepOwn keeps this device's delegation among the others, so that what was signed under it can be checked when the device has another
// one, and that this ledger is the device's own. Call it at each start.
func (b *Books) KeepOwn(ctx context.Context) error {
	dev, kept := b.config.Device, false
	err := b.View(ctx, func(r *Reader) error {
		has, err := r.HasDelegation(dev.DelegationHash())
		if err != nil || !has {
			return err
		}
		kept, err = r.isFormer(dev.Peer())
		return err
	})
	if err != nil || kept {
		return err
	}
	return b.Update(ctx, func(t *Tx) error {
		_, _, err := t.KeepDelegation(dev.Delegation())
		return errors.Join(err, save(t.own, ownKey(dev.Peer()), ownDevice{Since: t.now.UnixMilli()}))
	})
}

// laneCap is the most that a lane of ours may reach: by the delegation that it was opened under, whatever the device has now.
func (r *Reader) laneCap(l Lane) (money.Micro, error) {
	if l.Proof == r.b.config.Device.DelegationHash() {
		return r.b.cap, nil
	}
	d, err := r.delegation(l.Proof)
	return min(money.Micro(d.Cap), money.Max), err
}

// maySettle checks that the account lets this device sign settlements in its role, so that it hears of it here and not from the other
// side.
func (b *Books) maySettle(role ledger.Role) error {
	power := identity.PowerPay
	if role == ledger.AsProvider {
		power = identity.PowerProvide
	}
	d, err := identity.OpenDelegation(b.config.Device.Delegation())
	if err != nil {
		return err
	}
	return d.Allows(b.config.Device.Header(1), power)
}
