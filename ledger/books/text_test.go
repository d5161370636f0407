package books

import (
	"strings"
	"testing"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/p2p/identity"
)

// billed has the provider make an invoice for what the renter owes.
func (p pairOf) billed(reference string) (b Bill) {
	p.renter.tb.Helper()
	p.provider.update(func(t *Tx) (err error) {
		if b, err = t.AskBill(money.Credit, p.renter.Self()); err != nil {
			return err
		}
		return t.OpenBill(money.Credit, p.renter.Self(), b.Key, "bank", reference, "")
	})
	return b
}

// A reason that is cut within a letter leaves a record that can be read.
func TestLongReasons(t *testing.T) {
	p := newPair(t)
	p.rent(1, 300)
	bill := p.billed("17")
	long, asked := "x"+strings.Repeat("ä", 200), identity.AccountID{1}
	p.provider.update(func(tx *Tx) error {
		if err := save(tx.own, pendingKey(asked), Pending{Account: asked}); err != nil {
			return err
		}
		if err := tx.NotReached(asked, long); err != nil {
			return err
		}
		id, _, err := tx.Propose(Payment{Channel: p.renter.Channel(p.provider.Self(), money.Credit), Amount: 5, Method: "manual"})
		if err == nil {
			err = tx.Refused(id, long)
		}
		if err != nil {
			return err
		}
		return tx.CloseBill(ledger.AsProvider, money.Credit, p.renter.Self(), bill.Key, long)
	})
	p.provider.view(func(r *Reader) error {
		b, _, err := r.Bill(ledger.AsProvider, money.Credit, p.renter.Self())
		if want := "x" + strings.Repeat("ä", 63); err != nil || b.Why != want {
			t.Errorf("invoice: %q, %v", b.Why, err)
		}
		list, err := r.ShowSettlements()
		if want := "x" + strings.Repeat("ä", 63); err != nil || len(list) != 1 || list[0].Why != want {
			t.Errorf("settlement: %+v, %v", list, err)
		}
		pending, err := r.ToAsk()
		if want := "x" + strings.Repeat("ä", 99); err != nil || len(pending) != 1 || pending[0].Why != want {
			t.Errorf("account to ask: %+v, %v", pending, err)
		}
		return nil
	})
}
