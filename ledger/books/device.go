package books

import (
	"context"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/p2p/identity"
)

// KeepOwn keeps this device's delegation among the others, so that what was signed under it can be checked when the device has another
// one. Call it at each start.
func (b *Books) KeepOwn(ctx context.Context) error {
	kept := false
	err := b.View(ctx, func(r *Reader) (err error) {
		kept, err = r.HasDelegation(b.config.Device.DelegationHash())
		return err
	})
	if err != nil || kept {
		return err
	}
	return b.Update(ctx, func(t *Tx) error {
		_, _, err := t.KeepDelegation(b.config.Device.Delegation())
		return err
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
