package wire

import (
	"context"

	"github.com/gpufair/gpufair/ledger/settle"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p"
)

// openClaims makes the conversation about what is owed, and what drives the owner's program for payments.
func (b *Base) openClaims() (err error) {
	protocol := p2p.ProtocolID(b.name, work.ProtoClaims)
	b.Claims, err = settle.NewClaims(settle.ClaimsConfig{
		Network: b.Dealing, Protocol: protocol, Books: b.Books, Revoked: b.Delegations.Revoked,
		Log: b.Log.With("part", "claims"),
	})
	if err != nil {
		return err
	}
	b.Dealing.Handle(protocol, settle.ClaimLimits(), b.Claims.Handler())
	return b.openBilling()
}

// Claiming is the part that reminds those who owe this account of what is due, and brings disputes to the other side.
func (b *Base) Claiming() Part {
	return Part{Name: "claims", Run: func(ctx context.Context) error { return b.Claims.Run(ctx, b.deviceOf) }}
}
