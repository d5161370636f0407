package wire

import (
	"context"
	"errors"
	"fmt"

	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/p2p/delegation"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/local"
)

var _ delegation.Keeper = (*books.Books)(nil)

// openRevocations loads what is known of revoked devices: of others from the ledger, of this account from beside its key.
func (b *Base) openRevocations(ctx context.Context) error {
	if err := b.Delegations.Remember(ctx, b.Books); err != nil {
		return err
	}
	if err := b.spreadOwn(ctx); err != nil {
		b.Log.Warn("revocations of this account", "err", err)
	}
	return nil
}

// spreadOwn tells the directory which devices this account has revoked, and which keys of its own it has replaced.
func (b *Base) spreadOwn(ctx context.Context) error {
	signed, err := identity.Revocations(IdentityDir(b.State))
	if err != nil {
		return fmt.Errorf("devices of this account: %w", err)
	}
	var errs []error
	for _, raw := range signed {
		errs = append(errs, b.Delegations.Spread(ctx, raw))
	}
	return errors.Join(errs...)
}

// Refresh fulfils serve.Meeting.
func (m meeting) Refresh(ctx context.Context, _ struct{}) (local.Identity, error) {
	if err := m.b.spreadOwn(ctx); err != nil {
		return local.Identity{}, err
	}
	return m.Identity(ctx)
}

// checkRevoked is doctor's finding on this device's own standing.
func (b *Base) checkRevoked() []local.Check {
	err := b.Delegations.Self()
	if err == nil {
		return nil
	}
	return []local.Check{Finding(LevelFail, "device", err.Error(), "nobody who knows takes new records of this PC; `identity link` here and on the PC\n"+
		"that has the account's key lets it in again")}
}
