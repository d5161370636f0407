package settle_test

import (
	"testing"
	"testing/synctest"

	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/p2ptest"
)

// TestAskedFromAnotherPC: an account that asks from another PC for what it lost is found there from then on, not on the PC that it rented with.
func TestAskedFromAnotherPC(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := p2ptest.NewNet(t)
		pcs, owner := sisters(t, n, 2), newSide(t, n, 1<<30, nil)
		n.Mesh()
		trade(t, pcs[0], owner, 10, 1)
		owner.recovery(t)
		found := func() (at []identity.PeerID) {
			must(t, owner.books.View(t.Context(), func(r *books.Reader) (err error) {
				at, err = r.DevicesOf(pcs[0].dev.Account())
				return err
			}))
			return at
		}
		if at := found(); len(at) != 1 || at[0] != pcs[0].dev.Peer() {
			t.Errorf("before: %v", at)
		}
		if _, err := pcs[1].recovery(t, owner).Ask(t.Context(), owner.dev.Peer()); err != nil {
			t.Error(err)
		}
		if at := found(); len(at) != 2 || at[0] != pcs[1].dev.Peer() {
			t.Errorf("after: %v", at)
		}
	})
}
