package books

import (
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/statement"
	"github.com/gpufair/gpufair/p2p/identity"
)

// ShowOwed gives what is owed by counterparty, unit and direction, by age. Who owes nothing, has nothing prepaid and nothing written off
// is left out.
func (r *Reader) ShowOwed() (statement.Owed, error) {
	out := statement.Owed{Owed: []statement.Debt{}}
	err := r.eachStanding(func(role ledger.Role, u money.Unit, peer identity.AccountID, a Account) error {
		if a.Owed == 0 && a.BadDebt == 0 {
			return nil
		}
		ages, err := r.ages(role, u, peer)
		if err != nil {
			return err
		}
		d := statement.Debt{
			Account: peer.String(), Role: role.String(), Unit: string(u), Owed: ages.Owed.String(), Since: maybe(ages.Since), DueAt: maybe(ages.Due),
			Late: a.Late, NotDue: ages.Ages[ledger.NotDue].String(), Due: ages.Ages[ledger.DueNow].String(),
			Overdue30: ages.Ages[ledger.Overdue30].String(), Overdue60: ages.Ages[ledger.Overdue60].String(),
			Overdue90: ages.Ages[ledger.Overdue90].String(), Overdue: ages.Ages[ledger.Overdue].String(),
			Prepaid: ledger.Positive(-a.Owed).String(), WrittenOff: a.BadDebt.String(), LastPayment: maybe(a.LastPaid),
		}
		m, ok, err := r.Reminder(role, u, peer)
		if ok && a.DueAt != 0 && (role == ledger.AsRenter || m.Due == a.DueAt) {
			d.Reminders, d.RemindedAt = m.Number, maybe(m.Sent)
		}
		if err == nil {
			d.Invoice, err = r.showBill(role, u, peer)
		}
		out.Owed = append(out.Owed, d)
		return err
	})
	return out, err
}

// showBill gives the newest invoice, which may only be asked for yet, or nil if there was none.
func (r *Reader) showBill(role ledger.Role, u money.Unit, peer identity.AccountID) (*statement.Invoice, error) {
	b, ok, err := r.Bill(role, u, peer)
	if err != nil || !ok {
		return nil, err
	}
	return &statement.Invoice{
		State: b.State.String(), Amount: b.Amount.String(), Method: b.Method, Reference: b.Reference, Pay: b.Pay, Made: when(b.Made), DueAt: maybe(b.Due),
		Why: b.Why,
	}, nil
}

// EachDue calls f with every account that has something due, and with the last reminder about it: of ours, or as renter of theirs.
func (r *Reader) EachDue(f func(ledger.Role, money.Unit, identity.AccountID, Account, Reminder) error) error {
	return r.eachStanding(func(role ledger.Role, u money.Unit, peer identity.AccountID, a Account) error {
		m, _, err := r.Reminder(role, u, peer)
		if err != nil || a.DueAt == 0 || !a.Late && m.Number == 0 {
			return err
		}
		if role == ledger.AsProvider && m.Due != a.DueAt {
			m = Reminder{} // of another debt
		}
		return f(role, u, peer, a, m)
	})
}

// overdueAfter is when a payer may take it that the other side will not sign for its payment (spec: ledger, Getting paid).
const overdueAfter = 7 * 24 * time.Hour

// Overdue reports whether a settlement that was proposed then, in Unix milliseconds, should have been answered by now.
func Overdue(proposed int64, now time.Time) bool {
	return now.Sub(time.UnixMilli(proposed)) >= overdueAfter
}

// maybe is a time that may not be, in Unix milliseconds.
func maybe(ms int64) *time.Time {
	if ms == 0 {
		return nil
	}
	t := when(ms)
	return &t
}

// ShowClaim gives the leases that are unpaid between this account and a peer, in every unit and direction, written off or not: what a
// proof of the debt must show.
func (r *Reader) ShowClaim(peer identity.AccountID) (statement.Claim, error) {
	out := statement.Claim{Account: peer.String(), Leases: []statement.UnpaidLease{}}
	err := r.eachStanding(func(role ledger.Role, u money.Unit, whom identity.AccountID, _ Account) error {
		if whom != peer {
			return nil
		}
		debts, err := r.Claim(role, u, peer)
		if err != nil {
			return err
		}
		for _, d := range debts {
			if d.Lane != (ledger.Lane{}) {
				out.Leases = append(out.Leases, statement.UnpaidLease{
					Lease: d.Lane.String(), Role: role.String(), Unit: string(u), Amount: d.Amount.String(), Since: when(d.Since), DueAt: when(d.Due),
				})
			}
		}
		return nil
	})
	return out, err
}
