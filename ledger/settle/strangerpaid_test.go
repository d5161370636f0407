package settle_test

import (
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/p2ptest"
)

// What peers say that this account paid: a stranger's word is not kept, one of more than is owed waits for a person, and neither takes
// anything from an honest payment.
func TestWordOfAPayment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := p2ptest.NewNet(t)
		renter, provider, evil := newSide(t, n, 0, nil), newSide(t, n, 1<<30, nil), newSide(t, n, 1<<30, nil)
		n.Mesh()
		c := owe(t, renter, provider, 1, 1000)
		bad := ledger.Channel{Renter: c.Renter, Provider: evil.dev.Account(), Unit: c.Unit, Epoch: 1}
		_, state, err := evil.Settle(t.Context(), renter.dev.Peer(), books.Payment{Channel: bad, Amount: money.Max, Method: "manual", Reference: "x"})
		if p2p.KindOf(err) != p2p.KindForbidden {
			t.Errorf("a stranger's word: %v %v", state, err)
		}
		if got := renter.settlements(t); len(got) != 0 {
			t.Errorf("a stranger's word is kept: %+v", got)
		}
		must(t, provider.Exchange(t.Context(), renter.dev.Peer(), c))
		_, state, err = provider.Settle(t.Context(), renter.dev.Peer(), books.Payment{Channel: c, Amount: 1001, Method: "manual", Reference: "too much"})
		if err != nil || state != books.Proposed {
			t.Errorf("more than is owed: %v %v", state, err)
		}
		_, state, err = provider.Settle(t.Context(), renter.dev.Peer(), books.Payment{Channel: c, Amount: 1000, Method: "manual", Reference: "transfer 9"})
		if err != nil || state != books.Signed {
			t.Errorf("an honest payment: %v %v", state, err)
		}
		same(t, renter, provider, 0, 1000)
	})
}

// Payments that are signed by themselves are few a day, or a debt could be paid by the micro-unit until the disk is full; and they need no
// place among those that wait.
func TestFewAreSignedByThemselves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, renter, provider := world(t, nil)
		c := owe(t, renter, provider, 1, 1000)
		must(t, provider.Exchange(t.Context(), renter.dev.Peer(), c))
		for i := range 8 { // as many as may wait
			_, state, err := provider.Settle(t.Context(), renter.dev.Peer(), books.Payment{Channel: c, Amount: 5000, Method: "manual", Reference: fmt.Sprint("much", i)})
			if err != nil || state != books.Proposed {
				t.Fatalf("%d: %v %v", i, state, err)
			}
		}
		signed := 0
		for i := range 40 {
			_, state, err := provider.Settle(t.Context(), renter.dev.Peer(), books.Payment{Channel: c, Amount: 1, Method: "manual", Reference: fmt.Sprint(i)})
			if err == nil && state == books.Signed {
				signed++
			}
		}
		if signed != 32 {
			t.Errorf("%d were signed at once", signed)
		}
	})
}

// A part under the reference of the provider's own open invoice is not signed by itself: it would stand for the whole.
func TestPartOfAnInvoiceWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, renter, provider := world(t, nil)
		c := owe(t, renter, provider, 1, 1000)
		must(t, provider.Exchange(t.Context(), renter.dev.Peer(), c))
		renter.update(t, func(tx *books.Tx) error {
			return tx.TakeBill(money.Credit, provider.dev.Account(), books.Bill{Amount: 1000, Due: 1, Method: "bank", Reference: "17"})
		})
		_, state, err := provider.Settle(t.Context(), renter.dev.Peer(), books.Payment{Channel: c, Amount: 1, Method: "bank", Reference: "17"})
		if err != nil || state != books.Proposed {
			t.Errorf("%v %v", state, err)
		}
	})
}
