package settle_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/settle"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/p2ptest"
	"github.com/gpufair/gpufair/p2p/wire"
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
		word := voucher.Settlement{Channel: bad.AllEpochs(), Amount: money.Max, Method: "manual", Reference: "x", Time: 1, Nonce: wire.Hash{1}}
		evil.update(t, func(tx *books.Tx) (err error) { word.Checkpoint, err = tx.Checkpoint(); return err })
		signed, err := voucher.SignSettlement(evil.dev, word)
		must(t, err)
		var got settle.Answer
		must(t, p2p.Call(t.Context(), evil.net, renter.dev.Peer(), protocol, settle.Ask{Channel: word.Channel, Delegation: evil.dev.Delegation(), Proposal: signed}, &got, 1<<14))
		if got.State != books.Refused || !strings.Contains(got.Why, books.ErrNoDealings.Error()) {
			t.Errorf("a stranger's word: %+v", got)
		}
		if got := renter.settlements(t); len(got) != 0 {
			t.Errorf("a stranger's word is kept: %+v", got)
		}
		must(t, provider.Exchange(t.Context(), renter.dev.Peer(), c))
		_, state, err := provider.Settle(t.Context(), renter.dev.Peer(), books.Payment{Channel: c, Amount: 1001, Method: "manual", Reference: "too much"})
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
