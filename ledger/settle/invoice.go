package settle

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/rail"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// claimed finds the payments that renters have signed to have made, for the program to look for. One by a method that the owner does not
// take waits for a person: the program knows none of them.
func (b *Billing) claimed(r *books.Reader, steps *[]errand, at reach) error {
	self := b.c.Books.Self()
	return r.Unsigned(books.Waiting, identity.AccountID{}, func(id wire.Hash, s voucher.Settlement) error {
		if s.Channel.Provider != self || s.Reference == "" {
			return nil
		}
		ask := b.request(rail.Check, s.Channel.Renter, s.Channel.Unit, id, s.Amount)
		ask.Method, ask.Reference, ask.Claimed = s.Method, s.Reference, true
		bill, ok, err := r.Bill(ledger.AsProvider, s.Channel.Unit, s.Channel.Renter)
		if err != nil {
			return err
		}
		ok = ok && bill.Method == s.Method && bill.Reference == s.Reference
		if !ok && !slices.Contains(b.c.Methods, s.Method) {
			return nil
		}
		if ok = ok && bill.Amount == s.Amount; ok {
			ask.Key = bill.Key.String()
		}
		*steps = append(*steps, errand{s.Channel.Renter, s.Channel.Unit, "check a payment", id.String(), func(ctx context.Context) (time.Duration, error) {
			a, err := b.c.Rail.Do(ctx, ask)
			if err != nil {
				return 0, err
			}
			in, err := came(a, s.Amount, !ok)
			switch {
			case err != nil:
				return 0, err
			case !in:
				return poll(s.Time), nil
			case ok:
				return 0, b.settled(ctx, at, s.Channel.Unit, s.Channel.Renter, bill.Key)
			}
			if err := b.c.Books.Update(ctx, func(t *books.Tx) error { return t.CountersignFound(id) }); err != nil {
				return 0, err
			}
			b.deliver(ctx, at, s.Channel.Renter, id)
			return 0, nil
		}})
		return nil
	})
}

// settled signs that a bill was paid, and says so to the other side.
func (b *Billing) settled(ctx context.Context, at reach, u money.Unit, peer identity.AccountID, key wire.Hash) error {
	var id wire.Hash
	err := b.c.Books.Update(ctx, func(t *books.Tx) (err error) {
		id, err = t.SettleBill(b.c.Role, u, peer, key)
		return err
	})
	if err == nil {
		b.deliver(ctx, at, peer, id)
	}
	return err
}

// billing finds what is to be done about the invoices to a renter.
func (b *Billing) billing(r *books.Reader, steps *[]errand, at reach, u money.Unit, peer identity.AccountID, a books.Account, bill books.Bill) error {
	add := func(what string, do func(context.Context) (time.Duration, error)) {
		*steps = append(*steps, errand{peer, u, what, string(u) + peer.String() + bill.Key.String(), do})
	}
	_, v, there, err := r.SettledBy(ledger.AsProvider, u, peer, bill)
	if err != nil {
		return err
	}
	switch bill.State {
	case books.BillAsked:
		if b.c.Rail != nil {
			add("make an invoice", func(ctx context.Context) (time.Duration, error) { return 0, b.makeBill(ctx, u, peer, bill) })
		}
	case books.BillOpen:
		switch {
		case there && v.State == books.Signed: // a person was first
			add("note a payment", func(ctx context.Context) (time.Duration, error) { return 0, b.settled(ctx, at, u, peer, bill.Key) })
		case !there && b.c.Rail != nil:
			add("check an invoice", func(ctx context.Context) (time.Duration, error) { return b.checkBill(ctx, at, u, peer, bill) })
		}
		if !bill.Told {
			add("send an invoice", func(ctx context.Context) (time.Duration, error) { return 0, b.tellBill(ctx, at, u, peer, bill) })
		}
	case books.BillPaid:
		if v.State != books.Signed { // the next one waits until this one is
			return nil
		}
		fallthrough
	default:
		due, err := b.mayAsk(r, u, peer, a, bill)
		if err != nil || !due {
			return err
		}
		add("make an invoice", func(ctx context.Context) (time.Duration, error) {
			var asked books.Bill
			err := b.c.Books.Update(ctx, func(t *books.Tx) (err error) { asked, err = t.AskBill(u, peer); return err })
			if err != nil {
				return 0, err
			}
			return 0, b.makeBill(ctx, u, peer, asked)
		})
	}
	return nil
}

// mayAsk reports whether it is time for a new invoice.
func (b *Billing) mayAsk(r *books.Reader, u money.Unit, peer identity.AccountID, a books.Account, last books.Bill) (bool, error) {
	if b.c.Rail == nil || a.DueAt == 0 || last.State == books.BillClosed && time.Since(time.UnixMilli(last.Made)) < askAgain {
		return false, nil
	}
	amount, since, _, err := r.Billable(ledger.AsProvider, u, peer)
	return amount > 0 && time.Since(time.UnixMilli(since)) >= b.c.After, err
}

// makeBill has the program make the invoice of a bill that is written down.
func (b *Billing) makeBill(ctx context.Context, u money.Unit, peer identity.AccountID, bill books.Bill) error {
	ask := b.request(rail.Invoice, peer, u, bill.Key, bill.Amount)
	due := time.UnixMilli(bill.Due).UTC()
	ask.Due, ask.Methods = &due, b.c.Methods
	a, err := b.c.Rail.Do(ctx, ask)
	if err != nil {
		return err
	}
	return b.c.Books.Update(ctx, func(t *books.Tx) error { return t.OpenBill(u, peer, bill.Key, a.Method, a.Reference, a.Pay) })
}

// checkBill has the program look whether an invoice was paid.
func (b *Billing) checkBill(ctx context.Context, at reach, u money.Unit, peer identity.AccountID, bill books.Bill) (time.Duration, error) {
	ask := b.request(rail.Check, peer, u, bill.Key, bill.Amount)
	ask.Method, ask.Reference = bill.Method, bill.Reference
	a, err := b.c.Rail.Do(ctx, ask)
	if err != nil {
		return 0, err
	}
	in, err := came(a, bill.Amount, false)
	switch {
	case err != nil:
		return 0, err
	case in:
		return 0, b.settled(ctx, at, u, peer, bill.Key)
	case a.State == rail.Expired:
		return 0, b.c.Books.Update(ctx, func(t *books.Tx) error { return t.CloseBill(ledger.AsProvider, u, peer, bill.Key, "it expired") })
	}
	return poll(bill.Made), nil
}

// tellBill brings an invoice to the renter, if it is there.
func (b *Billing) tellBill(ctx context.Context, at reach, u money.Unit, renter identity.AccountID, bill books.Bill) error {
	peer, ok := at(ctx, renter)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, claimWithin)
	defer cancel()
	channel := ledger.Channel{Renter: renter, Provider: b.c.Books.Self(), Unit: u}
	word := BillWord{Amount: bill.Amount, Due: bill.Due, Method: bill.Method, Reference: bill.Reference, Pay: bill.Pay}
	if _, err := b.c.Claims.ask(ctx, peer, Claim{Channel: channel, Bill: &word}); err != nil {
		return err
	}
	return b.c.Books.Update(ctx, func(t *books.Tx) error { return t.ToldBill(u, renter, bill.Key) })
}

// paying finds what is to be done about a provider's invoice.
func (b *Billing) paying(r *books.Reader, steps *[]errand, at reach, u money.Unit, provider identity.AccountID, bill books.Bill) error {
	if b.c.Rail == nil || bill.State != books.BillOpen && bill.State != books.BillPaying {
		return nil
	}
	_, _, there, err := r.SettledBy(ledger.AsRenter, u, provider, bill)
	if err != nil || there && bill.State == books.BillOpen { // a person paid
		return err
	}
	*steps = append(*steps, errand{provider, u, "pay an invoice", bill.Key.String(), func(ctx context.Context) (time.Duration, error) {
		return b.pay(ctx, at, u, provider, bill)
	}})
	return nil
}

// pay has the program pay an invoice that asks for no more than is owed.
func (b *Billing) pay(ctx context.Context, at reach, u money.Unit, provider identity.AccountID, bill books.Bill) (time.Duration, error) {
	var ok bool
	err := b.c.Books.Update(ctx, func(t *books.Tx) (err error) { ok, err = t.PayBill(u, provider, bill.Key); return err })
	if err == nil && !ok {
		err = fmt.Errorf("invoice %q asks for %v, which is more than is owed for leases that have ended: it is not paid", bill.Reference, bill.Amount)
	}
	if err != nil {
		return 0, err
	}
	ask := b.request(rail.Pay, provider, u, bill.Key, bill.Amount)
	ask.Method, ask.Reference, ask.Pay = bill.Method, bill.Reference, bill.Pay
	a, err := b.c.Rail.Do(ctx, ask)
	switch {
	case err != nil:
		return 0, err
	case a.State == rail.Paid:
		return 0, b.settled(ctx, at, u, provider, bill.Key)
	case a.State == rail.Refused:
		return 0, b.c.Books.Update(ctx, func(t *books.Tx) error { return t.CloseBill(ledger.AsRenter, u, provider, bill.Key, a.Why) })
	}
	return poll(bill.Made), nil
}
