package books

import (
	"errors"
	"fmt"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// BillState is where a bill stands. States are never renumbered.
type BillState uint8

// The states. What has an effect outside is written down before it may happen, so that whoever starts again asks with the same key.
const (
	BillAsked  BillState = 1 // as provider: an invoice may have been made
	BillOpen   BillState = 2 // there is an invoice
	BillPaying BillState = 3 // as renter: it may have been paid
	BillPaid   BillState = 4 // this account signed a settlement for it
	BillClosed BillState = 5 // it expired, or was not to be paid
)

var billNames = map[BillState]string{BillAsked: "asked", BillOpen: "open", BillPaying: "paying", BillPaid: "paid", BillClosed: "closed"}

// String is the state's name.
func (s BillState) String() string { return billNames[s] }

// Bill is an invoice between this account and a counterparty in one unit, made by a program of the provider's owner. There is one at a
// time. Nothing depends on it: what is owed stands on vouchers, and what was paid on settlements.
type Bill struct {
	Key        wire.Hash   `cbor:"1,keyasint"` // the same for the same payment, over crashes and restores
	State      BillState   `cbor:"2,keyasint"`
	Amount     money.Micro `cbor:"3,keyasint"`
	Due        int64       `cbor:"4,keyasint"` // Unix milliseconds; 0: at once
	Made       int64       `cbor:"5,keyasint"` // Unix milliseconds
	Method     string      `cbor:"6,keyasint,omitempty"`
	Reference  string      `cbor:"7,keyasint,omitempty"`
	Pay        string      `cbor:"8,keyasint,omitempty"` // what the payer's program needs
	Told       bool        `cbor:"9,keyasint,omitempty"` // the renter has it
	Settlement wire.Hash   `cbor:"10,keyasint"`          // of BillPaid
	Why        string      `cbor:"11,keyasint,omitempty"`
}

// maxPay bounds what a program says about how to pay, in bytes: ledger/rail reads no more.
const maxPay = 4096

var (
	// ErrNoBill says that there is no invoice of that key.
	ErrNoBill = errors.New("no such invoice")
	// ErrUnsettled says that another payment to the same account waits for its signature.
	ErrUnsettled = errors.New("a payment to this account is not signed by it yet")
)

func billKey(role ledger.Role, u money.Unit, peer identity.AccountID) []byte {
	return key("bill/", []byte{'0' + byte(role)}, []byte(u), []byte("/"), peer[:])
}

// Bill gives the newest invoice between this account, in a role, and peer in a unit; ok is false if there was none.
func (r *Reader) Bill(role ledger.Role, u money.Unit, peer identity.AccountID) (Bill, bool, error) {
	return load[Bill](r.own, billKey(role, u, peer))
}

// Standings calls f with every account that this one has a standing with in a role, and with its newest bill.
func (r *Reader) Standings(role ledger.Role, f func(u money.Unit, peer identity.AccountID, a Account, b Bill) error) error {
	return r.eachStanding(func(as ledger.Role, u money.Unit, peer identity.AccountID, a Account) error {
		if as != role {
			return nil
		}
		b, _, err := r.Bill(role, u, peer)
		if err != nil {
			return err
		}
		return f(u, peer, a, b)
	})
}

// Billable is what an invoice of this moment may ask: what is unpaid of leases that have ended, less what a circle has set aside and what
// settlements that only one side signed pay for already. While a dispute is open it is nothing. since is the end of the oldest of those
// leases and due when it is due, in Unix milliseconds.
func (r *Reader) Billable(role ledger.Role, u money.Unit, peer identity.AccountID) (amount money.Micro, since, due int64, err error) {
	a, err := r.Account(role, u, peer)
	if err != nil || a.DisputedUntil > r.at || a.DueAt == 0 {
		return 0, 0, 0, err
	}
	ages, err := r.ages(role, u, peer)
	if err != nil {
		return 0, 0, 0, err
	}
	left, err := a.ended()
	if err != nil {
		return 0, 0, 0, err
	}
	aside, err := r.Aside(role, u, peer)
	if err != nil {
		return 0, 0, 0, err
	}
	taken, ch := aside, r.channel(role, u, peer)
	for _, state := range []SettlementState{Proposed, Waiting} {
		err := r.Unsigned(state, peer, func(_ wire.Hash, s voucher.Settlement) (err error) {
			if s.Channel == ch {
				taken, err = money.Add(taken, s.Amount)
			}
			return err
		})
		if err != nil {
			return 0, 0, 0, err
		}
	}
	return ledger.Positive(left) - min(ledger.Positive(left), taken), ages.Since, ages.Due, nil
}

// channel is the one with peer, over all epochs.
func (r *Reader) channel(role ledger.Role, u money.Unit, peer identity.AccountID) ledger.Channel {
	if role == ledger.AsProvider {
		return ledger.Channel{Renter: peer, Provider: r.b.self, Unit: u}
	}
	return ledger.Channel{Renter: r.b.self, Provider: peer, Unit: u}
}

// payment is what the settlement of a bill records.
func (b Bill) payment(c ledger.Channel) Payment {
	return Payment{Channel: c, Amount: b.Amount, Method: b.Method, Reference: b.Reference}
}

// SettledBy gives the settlement that records the payment of a bill, whoever proposed it; ok is false if there is none. As provider, that is
// also one by another method, once both have signed it.
func (r *Reader) SettledBy(role ledger.Role, u money.Unit, peer identity.AccountID, b Bill) (id wire.Hash, v Settled, ok bool, err error) {
	ch := r.channel(role, u, peer)
	v, ok, err = r.paidAs(voucher.Settlement{Channel: ch, Method: b.Method, Reference: b.Reference})
	if err != nil {
		return id, v, false, err
	}
	if !ok {
		if role != ledger.AsProvider || b.Reference == "" {
			return id, v, false, nil
		}
		return r.signedUnder(ch, b.Reference)
	}
	s, err := voucher.OpenSettlement(v.Proposal)
	return s.ID(), v, err == nil, err
}

// AskBill writes down that an invoice is to be made for what peer owes now, and under which key. With one that is asked for or open
// already it gives that. ErrNothingOwed: there is nothing to ask.
func (t *Tx) AskBill(u money.Unit, peer identity.AccountID) (Bill, error) {
	have, _, err := t.Bill(ledger.AsProvider, u, peer)
	if err != nil || have.State == BillAsked || have.State == BillOpen {
		return have, err
	}
	amount, _, due, err := t.Billable(ledger.AsProvider, u, peer)
	if err != nil {
		return Bill{}, err
	}
	if amount == 0 {
		return Bill{}, fmt.Errorf("invoice for account %s: %w", peer.Short(), ErrNothingOwed)
	}
	a, err := t.Account(ledger.AsProvider, u, peer)
	if err != nil {
		return Bill{}, err
	}
	// The key follows from the ledger and from the bill before, so that a ledger which was restored asks for the same invoice again, and not
	// for a second one.
	ch := t.channel(ledger.AsProvider, u, peer).ID()
	k := wire.Sum("gpufair/invoice/1", ch[:], have.Key[:], be8(uint64(a.Settled)), be8(uint64(amount)))
	b := Bill{Key: k, State: BillAsked, Amount: amount, Due: due, Made: t.now.UnixMilli()}
	return b, save(t.own, billKey(ledger.AsProvider, u, peer), b)
}

// changeBill lets f change the bill of that key.
func (t *Tx) changeBill(role ledger.Role, u money.Unit, peer identity.AccountID, k wire.Hash, f func(*Bill) error) error {
	b, ok, err := t.Bill(role, u, peer)
	if err == nil && (!ok || b.Key != k) {
		err = fmt.Errorf("invoice %s of account %s: %w", k.Short(), peer.Short(), ErrNoBill)
	}
	if err != nil {
		return err
	}
	if err := f(&b); err != nil {
		return err
	}
	return save(t.own, billKey(role, u, peer), b)
}

// OpenBill records the invoice that was made for a bill. A reference that another payment has is ErrPaid.
func (t *Tx) OpenBill(u money.Unit, peer identity.AccountID, k wire.Hash, method, reference, pay string) error {
	return t.changeBill(ledger.AsProvider, u, peer, k, func(b *Bill) error {
		if b.State != BillAsked {
			return nil
		}
		b.Method, b.Reference, b.Pay, b.State = method, reference, pay, BillOpen
		if err := b.validate(); err != nil {
			return err
		}
		_, _, taken, err := t.SettledBy(ledger.AsProvider, u, peer, *b)
		if err == nil && taken {
			err = fmt.Errorf("invoice %q: %w", reference, ErrPaid)
		}
		return errors.Join(err, t.soleReference(b.payment(t.channel(ledger.AsProvider, u, peer)), wire.Hash{}, false))
	})
}

func (b Bill) validate() error {
	if b.Amount == 0 || b.Amount > money.Max || b.Reference == "" || len(b.Reference) > voucher.MaxReference || b.Method == "" ||
		len(b.Method) > voucher.MaxMethod || len(b.Pay) > maxPay || b.Due < 0 {
		return fmt.Errorf("invoice of %v: %w", b.Amount, wire.ErrFormat)
	}
	return nil
}

// ToldBill notes that the renter has a bill.
func (t *Tx) ToldBill(u money.Unit, peer identity.AccountID, k wire.Hash) error {
	return t.changeBill(ledger.AsProvider, u, peer, k, func(b *Bill) error { b.Told = true; return nil })
}

// CloseBill ends a bill for which nothing is paid.
func (t *Tx) CloseBill(role ledger.Role, u money.Unit, peer identity.AccountID, k wire.Hash, why string) error {
	return t.changeBill(role, u, peer, k, func(b *Bill) error {
		b.State, b.Why = BillClosed, ledger.Cut(why, voucher.MaxReference)
		return nil
	})
}

// TakeBill keeps a provider's invoice, for people and their programs to see. One of an account that this one never rented from is ErrNoLane.
// Nothing takes the place of one that may have been paid until the provider has signed for all of it: ErrUnsettled. So whoever takes money
// and does not sign, or signs for less, gets none again.
func (t *Tx) TakeBill(u money.Unit, provider identity.AccountID, b Bill) error {
	if err := b.validate(); err != nil {
		return err
	}
	a, err := t.Account(ledger.AsRenter, u, provider)
	if err != nil {
		return err
	}
	if a.Lanes == 0 {
		return fmt.Errorf("invoice of account %s: %w", provider.Short(), ErrNoLane)
	}
	have, ok, err := t.Bill(ledger.AsRenter, u, provider)
	switch {
	case err != nil:
		return err
	case ok && have.Method == b.Method && have.Reference == b.Reference:
		return nil // whatever else it says: the first word counts
	case have.State == BillPaying, have.State == BillPaid:
		_, v, there, err := t.SettledBy(ledger.AsRenter, u, provider, have)
		whole := there && v.State == Signed
		if err == nil && whole {
			var s voucher.Settlement
			s, err = voucher.OpenSettlement(v.Proposal)
			whole = s.Amount >= have.Amount
		}
		if err == nil && !whole {
			err = fmt.Errorf("invoice %q after %q: %w", b.Reference, have.Reference, ErrUnsettled)
		}
		if err != nil {
			return err
		}
	}
	b.Key = voucher.Settlement{Channel: t.channel(ledger.AsRenter, u, provider), Method: b.Method, Reference: b.Reference}.Payment()
	b.State, b.Made, b.Told, b.Settlement, b.Why = BillOpen, t.now.UnixMilli(), false, wire.Hash{}, ""
	return save(t.own, billKey(ledger.AsRenter, u, provider), b)
}

// PayBill writes down that a bill is being paid, if it asks for no more than this ledger says is owed for leases that have ended: ok is
// false if it asks for more. It belongs before the payment.
func (t *Tx) PayBill(u money.Unit, provider identity.AccountID, k wire.Hash) (ok bool, err error) {
	if err := errors.Join(t.b.maySettle(ledger.AsRenter), t.answered(provider)); err != nil {
		return false, err
	}
	err = t.changeBill(ledger.AsRenter, u, provider, k, func(b *Bill) error {
		if b.State == BillPaying {
			ok = true // what was begun goes on, whatever is owed by now: the money may be gone
			return nil
		}
		amount, _, _, err := t.Billable(ledger.AsRenter, u, provider)
		if err == nil && b.State == BillOpen && b.Amount <= amount {
			b.State, ok = BillPaying, true
		}
		return err
	})
	return ok, err
}

// SettleBill signs, in the same transaction, that a bill was paid: the other side's proposal of that payment, or one of this account's
// own. Either may be sent once the transaction is committed. As provider, a payment of another amount that both have signed under its
// reference ends the bill, too: what is left is asked by the next one.
func (t *Tx) SettleBill(role ledger.Role, u money.Unit, peer identity.AccountID, k wire.Hash) (id wire.Hash, err error) {
	err = t.changeBill(role, u, peer, k, func(b *Bill) error {
		var v Settled
		var there bool
		if id, v, there, err = t.SettledBy(role, u, peer, *b); err != nil {
			return err
		}
		pay, both := b.payment(t.channel(role, u, peer)), there && v.State == Signed
		if role == ledger.AsProvider && !both {
			if err := t.soleReference(pay, id, false); err != nil {
				return err
			}
		}
		switch {
		case both && role == ledger.AsProvider:
		case there:
			s, err := voucher.OpenSettlement(v.Proposal)
			if err == nil && s.Amount != b.Amount {
				err = fmt.Errorf("invoice %q: %w: %v, %s", b.Reference, ErrPaid, s.Amount, v.State)
			}
			if err == nil && v.State == Waiting {
				_, err = t.Countersign(id)
			}
			if err != nil {
				return err
			}
		default:
			if id, _, err = t.Propose(pay); err != nil {
				return err
			}
		}
		b.State, b.Settlement = BillPaid, id
		return nil
	})
	return id, err
}
