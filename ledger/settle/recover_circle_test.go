package settle_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/netting"
	"github.com/gpufair/gpufair/p2p/p2ptest"
	"github.com/gpufair/gpufair/p2p/wire"
)

// clearCircle brings a clearing around: the first member signs last.
func clearCircle(t *testing.T, terms netting.Terms, members ...side) {
	t.Helper()
	id, err := terms.ID()
	must(t, err)
	var cleared netting.Clearing
	members[0].update(t, func(tx *books.Tx) error { return tx.ProposeClearing(terms) })
	for _, m := range members[1:] {
		var c netting.Clearing
		m.update(t, func(tx *books.Tx) (err error) { c, err = tx.AgreeClearing(terms, nil); return err })
		members[0].update(t, func(tx *books.Tx) error { _, err := tx.HearClearing(terms, c.Words()); return err })
	}
	members[0].update(t, func(tx *books.Tx) (err error) { cleared, err = tx.CompleteClearing(id); return err })
	for _, m := range members[1:] {
		m.update(t, func(tx *books.Tx) error { _, err := tx.HearClearing(terms, cleared.Words()); return err })
	}
}

// TestTakeCircle: two PCs of an account had a side each in one circle of debts. The one that takes the other over books that one's side, too,
// whether its own ledger was lost or not, and once.
func TestTakeCircle(t *testing.T) {
	for name, lost := range map[string]bool{"kept": false, "lost": true} {
		synctest.Test(t, func(t *testing.T) {
			n := p2ptest.NewNet(t)
			pcs := sisters(t, n, 2)
			debtor, creditor := newSide(t, n, 1<<30, nil), newSide(t, n, 1<<30, nil)
			n.Mesh()
			trade(t, debtor, pcs[0], 10, 1)
			trade(t, pcs[1], creditor, 20, 2)
			trade(t, creditor, debtor, 30, 1)
			leg := func(from, to side) netting.Leg {
				return netting.Leg{Debtor: from.dev.Account(), Creditor: to.dev.Account(), Payer: from.dev.Peer(), Payee: to.dev.Peer()}
			}
			clearCircle(t, netting.Terms{
				Unit: money.Credit, Amount: 600, Last: debtor.dev.Peer(), Deadline: time.Now().Add(time.Minute).UnixMilli(), Nonce: wire.Hash{1},
				Legs: []netting.Leg{leg(debtor, pcs[0]), leg(pcs[1], creditor), leg(creditor, debtor)},
			}, debtor, pcs[0], pcs[1], creditor)
			debtor.recovery(t)
			creditor.recovery(t)
			back := pcs[0]
			if lost {
				back = back.lost(t, true)
			}
			r := back.recovery(t, debtor, creditor)
			must(t, r.Take(t.Context(), pcs[1].dev.Peer()))
			for range 2 {
				for _, from := range []side{debtor, creditor} {
					if _, err := r.Ask(t.Context(), from.dev.Peer()); err != nil {
						t.Errorf("%s: %v", name, err)
					}
				}
				if a := back.account(t, ledger.AsRenter, creditor); a.Owed != 1400 || a.Settled != 600 || a.Lanes != 2 {
					t.Errorf("%s: what the lost PC owed: %+v", name, a)
				}
				if a := back.account(t, ledger.AsProvider, debtor); a.Owed != 400 || a.Settled != 600 || a.Lanes != 1 {
					t.Errorf("%s: what this PC is owed: %+v", name, a)
				}
			}
			back.sound(t)
		})
	}
}
