package books

import (
	"fmt"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Reminder is a provider's word to a renter that a payment is due. Nothing depends on it: what is owed stands on vouchers.
type Reminder struct {
	Number uint32      `cbor:"1,keyasint"` // from 1 for each first unpaid debt
	Due    int64       `cbor:"2,keyasint"` // Unix milliseconds by the provider's clock: since when
	Amount money.Micro `cbor:"3,keyasint"` // that is due by now
	Sent   int64       `cbor:"4,keyasint"` // Unix milliseconds by the provider's clock
}

// Pace of reminders, in milliseconds: at the due time, then weekly, and at most once a day when the first debt is paid and the next one
// is due; ten in all for one debt.
const (
	remindDay    = 24 * 60 * 60 * 1000
	remindWeek   = 7 * remindDay
	maxReminders = 10
)

// maxNumber bounds the number of a reminder: no provider that keeps the pace comes near.
const maxNumber = 1 << 20

// Validate checks r's bounds.
func (r Reminder) Validate() error {
	if r.Number == 0 || r.Number > maxNumber || r.Due <= 0 || r.Sent < r.Due || r.Amount == 0 || r.Amount > money.Max {
		return fmt.Errorf("reminder %d of %v: %w", r.Number, r.Amount, wire.ErrFormat)
	}
	return nil
}

// tooEarly reports whether it is too early for a reminder of a debt due at due after the last one.
func (r Reminder) tooEarly(due, now int64) bool {
	since := now - r.Sent
	if since < 0 { // the clock was stepped back
		since = -since
	}
	if r.Due != due {
		return since < remindDay
	}
	return r.Number >= maxReminders || since < remindWeek
}

// Dun is a reminder that is to be sent now.
type Dun struct {
	Renter identity.AccountID
	Unit   money.Unit
	Reminder
}

func reminderKey(role ledger.Role, u money.Unit, peer identity.AccountID) []byte {
	return key("rem/", []byte{'0' + byte(role)}, []byte(u), []byte("/"), peer[:])
}

// Duns gives the reminders that are to be sent now: one for each renter and unit at most.
func (r *Reader) Duns() ([]Dun, error) {
	var out []Dun
	err := r.eachStanding(func(role ledger.Role, u money.Unit, peer identity.AccountID, a Account) error {
		if role != ledger.AsProvider || a.DueAt == 0 || r.at < a.DueAt {
			return nil
		}
		last, known, err := load[Reminder](r.own, reminderKey(role, u, peer))
		if err != nil || known && last.tooEarly(a.DueAt, r.at) {
			return err
		}
		ages, err := r.ages(role, u, peer)
		if err != nil {
			return err
		}
		next := Reminder{Number: 1, Due: a.DueAt, Amount: ages.Owed - ages.Ages[ledger.NotDue], Sent: r.at}
		if known && last.Due == a.DueAt {
			next.Number = last.Number + 1
		}
		out = append(out, Dun{Renter: peer, Unit: u, Reminder: next})
		return nil
	})
	return out, err
}

// eachStanding calls f with every account record.
func (r *Reader) eachStanding(f func(ledger.Role, money.Unit, identity.AccountID, Account) error) error {
	for p, err := range r.own.Iterate([]byte("acct/"), nil) {
		if err != nil {
			return err
		}
		role, unit, size, err := splitAccountKey(p.Key)
		if err != nil {
			return err
		}
		a, peer, err := decodeAccount(p, size)
		if err != nil {
			return err
		}
		a.Late = ledger.Late(a.DueAt, r.at)
		if err := f(role, unit, peer, a); err != nil {
			return err
		}
	}
	return nil
}

// ages is what is owed by age.
func (r *Reader) ages(role ledger.Role, u money.Unit, peer identity.AccountID) (ledger.Ageing, error) {
	unpaid, err := r.Unpaid(role, u, peer)
	if err != nil {
		return ledger.Ageing{}, err
	}
	return ledger.AgeOf(unpaid, r.at)
}

// Reminded keeps that a reminder was sent, and heard.
func (t *Tx) Reminded(d Dun) error {
	return save(t.own, reminderKey(ledger.AsProvider, d.Unit, d.Renter), d.Reminder)
}

// TakeReminder keeps a provider's newest reminder, for people to see. Whether the debt is known here is not asked; one of an account that
// this one never rented from is ErrNoLane, so that nobody else can leave anything here.
func (t *Tx) TakeReminder(provider identity.AccountID, u money.Unit, m Reminder) error {
	if err := m.Validate(); err != nil {
		return err
	}
	a, err := t.Account(ledger.AsRenter, u, provider)
	if err != nil {
		return err
	}
	if a.Lanes == 0 {
		return fmt.Errorf("reminder of account %s: %w", provider.Short(), ErrNoLane)
	}
	return save(t.own, reminderKey(ledger.AsRenter, u, provider), m)
}

// Reminder gives the last reminder that went to peer, or as renter came from it; ok is false if there was none.
func (r *Reader) Reminder(role ledger.Role, u money.Unit, peer identity.AccountID) (m Reminder, ok bool, err error) {
	return load[Reminder](r.own, reminderKey(role, u, peer))
}
