package settle_test

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/settle"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/p2ptest"
)

// A device that its account has let go changes nothing at a peer that knows, not even of an account that was never dealt with; it may
// still read. A peer that does not know is unaffected.
func TestRevokedDeviceSettlesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := p2ptest.NewNet(t)
		renter, provider := newSide(t, net, 1<<40, nil), newSide(t, net, 1<<40, nil)
		net.Mesh()
		c := owe(t, renter, provider, 1, 5000)
		knows, err := settle.New(settle.Config{
			Network: provider.net, Protocol: protocol, Books: provider.books,
			Revoked: func(d identity.Delegation) error {
				if d.Device == renter.dev.Peer() {
					return identity.ErrRevoked
				}
				return nil
			},
		})
		must(t, err)
		provider.net.Handle(protocol, settle.Limits(), knows.Handler())
		if err := renter.Exchange(t.Context(), provider.dev.Peer(), c); p2p.KindOf(err) != p2p.KindForbidden {
			t.Errorf("vouchers: %v", err)
		}
		_, _, err = renter.Settle(t.Context(), provider.dev.Peer(), books.Payment{Channel: c, Amount: 100, Method: "manual", Reference: "x"})
		if p2p.KindOf(err) != p2p.KindForbidden && !errors.Is(err, settle.ErrNotTaken) {
			t.Errorf("a proposal: %v", err)
		}
		if a := provider.account(t, ledger.AsProvider, renter); a.Owed != 0 || a.Settled != money.Micro(0) {
			t.Errorf("booked %+v", a)
		}
	})
}
