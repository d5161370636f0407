package books

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/p2p/wire"
)

// claims has the renter say that it paid: the provider keeps it for a decision.
func (p pairOf) claims(method, reference string) (id wire.Hash) {
	p.renter.tb.Helper()
	var proposal []byte
	p.renter.update(func(t *Tx) (err error) {
		id, proposal, err = t.Propose(Payment{
			Channel: p.renter.Channel(p.provider.Self(), money.Credit), Amount: 100, Method: method, Reference: reference,
		})
		return err
	})
	p.provider.update(func(t *Tx) error { _, _, err := t.RecordProposal(proposal); return err })
	return id
}

// found has the provider sign what a program found.
func (p *party) found(id wire.Hash) error {
	p.tb.Helper()
	must(p.tb, p.IndexReferences(p.tb.Context()))
	return p.Update(p.tb.Context(), func(t *Tx) error { return t.CountersignFound(id) })
}

// twoRenters are two that owe one provider.
func twoRenters(t *testing.T) (a, b pairOf) {
	t.Helper()
	a = newPair(t)
	b = pairOf{renter: newParty(t), provider: a.provider}
	b.meet()
	a.rent(1, 3000)
	b.rent(2, 3000)
	return a, b
}

// A program's word that money came under a reference counts for one payment.
func TestFoundOnce(t *testing.T) {
	a, b := twoRenters(t)
	p := a.provider
	must(t, p.found(a.claims("bank", "Transfer-9")))
	wanted := []wire.Hash{a.claims("wire", "Transfer-9"), b.claims("bank", "Transfer-9"), b.claims("bank", " transfer 9"), b.claims("bank", "TRANSFER-9.")}
	b.billed("INV-17")
	wanted = append(wanted, a.claims("bank", "INV-17"), a.claims("bank", "inv 17"), b.claims("wire", "INV-17"), b.claims("bank", "inv-17"))
	for i, id := range wanted {
		if err := p.found(id); !errors.Is(err, ErrPaid) || !strings.Contains(err.Error(), "waits for you") {
			t.Errorf("claim %d: %v", i, err)
		}
	}
	for _, reference := range []string{"Überweisung 9", "--", "transfer\u200b 9"} {
		if err := p.found(a.claims("bank", reference)); !errors.Is(err, wire.ErrFormat) {
			t.Errorf("%q: %v", reference, err)
		}
	}
	must(t, p.found(b.claims("bank", "INV-1"))) // the beginning of another
	if got := p.account(ledger.AsProvider, a.renter).Settled + p.account(ledger.AsProvider, b.renter).Settled; got != 200 {
		t.Errorf("%v is settled", got)
	}
	p.update(func(tx *Tx) error { _, err := tx.Countersign(wanted[1]); return err }) // a person may
	p.verified(ResultOK)
}

// A reference is free until this side has signed for it, and again after a refusal. The renter's word alone takes nobody's.
func TestReferenceIsTaken(t *testing.T) {
	a, b := twoRenters(t)
	p := a.provider
	waits := a.claims("bank", "transfer 9")
	second := b.claims("bank", "transfer 9")
	var mine wire.Hash
	p.update(func(tx *Tx) (err error) {
		mine, _, err = tx.Propose(Payment{Channel: a.renter.Channel(p.Self(), money.Credit), Amount: 5, Method: "manual", Reference: "transfer 9"})
		return err
	})
	if err := p.found(second); !errors.Is(err, ErrPaid) {
		t.Errorf("the provider has signed for it: %v", err)
	}
	p.update(func(tx *Tx) error { return tx.Refused(mine, "a mistake") })
	must(t, p.found(second))
	if err := p.found(waits); !errors.Is(err, ErrPaid) {
		t.Errorf("another has it: %v", err)
	}
}

// Settlements that are older than the index are put into it, over as many transactions as that takes, and nothing is found before.
func TestIndexReferences(t *testing.T) {
	a, b := twoRenters(t)
	p := a.provider
	const signed = 7
	for i := range signed {
		id := a.claims("bank", fmt.Sprintf("transfer %d", i))
		p.update(func(tx *Tx) error { _, err := tx.Countersign(id); return err })
	}
	forget := func() {
		p.update(func(tx *Tx) error {
			for kept, err := range tx.own.Iterate([]byte("ref/"), nil) {
				if err := errors.Join(err, tx.own.Delete(kept.Key)); err != nil {
					return err
				}
			}
			return tx.own.Delete([]byte(keyReferences))
		})
	}
	twice := b.claims("bank", "transfer 3")
	for batch := 1; batch <= signed+1; batch++ {
		forget()
		for whole := false; !whole; {
			err := p.Update(t.Context(), func(tx *Tx) error { return tx.CountersignFound(twice) })
			if err == nil || errors.Is(err, ErrPaid) {
				t.Fatalf("found before the index is whole: %v", err)
			}
			p.update(func(tx *Tx) (err error) {
				if err = tx.indexMore(batch); err == nil {
					whole, err = tx.indexed()
				}
				return err
			})
		}
		n := 0
		p.view(func(r *Reader) error {
			for _, err := range r.own.Iterate([]byte("ref/"), nil) {
				if err != nil {
					return err
				}
				n++
			}
			return nil
		})
		if n != signed {
			t.Errorf("in steps of %d: %d of %d are indexed", batch, n, signed)
		}
	}
	forget()
	for i := range signed {
		if err := p.found(b.claims("bank", fmt.Sprintf("transfer %d", i))); !errors.Is(err, ErrPaid) {
			t.Errorf("transfer %d: %v", i, err)
		}
	}
}

// After a restore of an older backup the program finds what was signed for since, until all have given that back.
func TestFoundAfterRestore(t *testing.T) {
	a, b := twoRenters(t)
	p := a.provider
	backup := copyEngine(t, p.engine)
	var counter []byte
	first := a.claims("bank", "transfer 9")
	p.update(func(tx *Tx) (err error) { counter, err = tx.Countersign(first); return err })
	a.renter.update(func(tx *Tx) error { _, err := tx.RecordCounter(counter); return err })

	back := p.restored(backup, time.Now())
	a.provider, b.provider = back, back
	back.recover(b.renter)
	again := b.claims("bank", "transfer 9")
	if err := back.found(again); !errors.Is(err, ErrUnsure) {
		t.Errorf("while one has not answered: %v", err)
	}
	back.recover(a.renter)
	if err := back.found(again); !errors.Is(err, ErrPaid) {
		t.Errorf("after both have: %v", err)
	}
	if got := back.account(ledger.AsProvider, a.renter); got.Settled != 100 || got.Owed != 2900 {
		t.Errorf("%+v", got)
	}
}

// A payment that both have signed under an invoice's reference ends the invoice, whatever its amount and method are; one of another renter
// does not.
func TestBillEnds(t *testing.T) {
	for _, method := range []string{"bank", "wire"} {
		a, b := twoRenters(t)
		p := a.provider
		bill := a.billed("17")
		ended := func() error {
			return p.Update(t.Context(), func(tx *Tx) error {
				_, err := tx.SettleBill(ledger.AsProvider, money.Credit, a.renter.Self(), bill.Key)
				return err
			})
		}
		var mine wire.Hash
		if method == "wire" {
			p.update(func(tx *Tx) (err error) {
				mine, _, err = tx.Propose(Payment{Channel: a.renter.Channel(p.Self(), money.Credit), Amount: 3000, Method: "cash", Reference: "17"})
				return err
			})
			if err := ended(); !errors.Is(err, ErrPaid) {
				t.Errorf("the renter has not signed: %v", err)
			}
			p.update(func(tx *Tx) error { return tx.Refused(mine, "a mistake") })
		}
		id := a.claims(method, "17")
		if method == "bank" {
			if err := ended(); !errors.Is(err, ErrPaid) {
				t.Errorf("a part that waits: %v", err)
			}
		}
		other := b.claims(method, "17")
		p.update(func(tx *Tx) error { _, err := tx.Countersign(other); return err }) // by a person
		if err := ended(); !errors.Is(err, ErrPaid) {
			t.Errorf("%s: the money is another's: %v", method, err)
		}
		p.update(func(tx *Tx) error { _, err := tx.Countersign(id); return err })
		must(t, ended())
		p.view(func(r *Reader) error {
			got, _, err := r.Bill(ledger.AsProvider, money.Credit, a.renter.Self())
			if got.State != BillPaid || got.Settlement != id {
				t.Errorf("%s: %+v", method, got)
			}
			return err
		})
		if got := a.billed("18"); got.Amount != 2900 {
			t.Errorf("%s: the next asks for %v", method, got.Amount)
		}
	}
}

// Two invoices never have one reference.
func TestBillsOwnReference(t *testing.T) {
	a, b := twoRenters(t)
	a.billed("17")
	err := a.provider.Update(t.Context(), func(tx *Tx) error {
		bill, err := tx.AskBill(money.Credit, b.renter.Self())
		if err != nil {
			return err
		}
		return tx.OpenBill(money.Credit, b.renter.Self(), bill.Key, "bank", "17", "")
	})
	if !errors.Is(err, ErrPaid) {
		t.Error(err)
	}
}
