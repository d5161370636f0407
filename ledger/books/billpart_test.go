package books

import (
	"errors"
	"testing"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/money"
)

// An owner that signs for a part of an invoice, while all of it is being paid, gets no second one to be paid.
func TestPartOfAnInvoice(t *testing.T) {
	p := newPair(t)
	p.rent(1, 300)
	bill := Bill{Amount: 300, Due: 1, Method: "bank", Reference: "17"}
	unit, provider := money.Credit, p.provider.Self()
	next := bill
	next.Reference = "18"
	p.renter.update(func(tx *Tx) error {
		if err := tx.TakeBill(unit, provider, bill); err != nil {
			return err
		}
		kept, _, err := tx.Bill(ledger.AsRenter, unit, provider)
		if err != nil {
			return err
		}
		ok, err := tx.PayBill(unit, provider, kept.Key)
		if err == nil && !ok {
			err = errors.New("it is not paid")
		}
		return err
	})
	sign := func(amount money.Micro) {
		var proposal []byte
		p.provider.update(func(tx *Tx) (err error) {
			_, proposal, err = tx.Propose(Payment{Channel: p.renter.Channel(provider, unit), Amount: amount, Method: bill.Method, Reference: bill.Reference})
			return err
		})
		p.renter.update(func(tx *Tx) error { _, _, err := tx.SignProposal(proposal); return err })
	}
	sign(1)
	err := p.renter.Update(t.Context(), func(tx *Tx) error { return tx.TakeBill(unit, provider, next) })
	if !errors.Is(err, ErrUnsettled) {
		t.Errorf("a part is signed for: %v", err)
	}
}
