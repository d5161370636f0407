package ledger

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gpufair/gpufair/ledger/money"
)

// day is the unit of payment terms, in milliseconds.
const day = 24 * 60 * 60 * 1000

// DueAt is when a debt that arose at since is due, by terms of so many days; both times in Unix milliseconds.
func DueAt(since int64, days uint32) int64 { return since + int64(days)*day }

// Late reports whether a debt that is due at due, in Unix milliseconds, is late at now: a whole day has gone by since. That day is for
// the payment to arrive and for the reminder to be read. A due time of 0 is never late: nothing is owed that has one.
func Late(due, now int64) bool { return due != 0 && now-due >= day }

// Debt is one part of what an account owes.
type Debt struct {
	Lane   Lane        // zero: none
	Amount money.Micro // that is not paid
	Since  int64       // Unix milliseconds: when it came to be owed, the end of its lane. 0: it still grows
	Due    int64       // Unix milliseconds; 0: not yet
}

// Age is how long a debt is owed.
type Age uint8

// The ages, in order.
const (
	NotDue    Age = iota // its lane runs, or its due time is to come
	DueNow               // due, and not late: within a day
	Overdue30            // 1 to 30 days
	Overdue60            // 31 to 60 days
	Overdue90            // 61 to 90 days
	Overdue              // more than 90 days
	numAges
)

// Age is d's age at now, Unix milliseconds.
func (d Debt) Age(now int64) Age {
	if d.Due == 0 || now < d.Due {
		return NotDue
	}
	switch days := (now - d.Due) / day; {
	case days < 1:
		return DueNow
	case days <= 30:
		return Overdue30
	case days <= 60:
		return Overdue60
	case days <= 90:
		return Overdue90
	}
	return Overdue
}

// Ageing is what an account owes, by age.
type Ageing struct {
	Owed  money.Micro // in all
	Ages  [numAges]money.Micro
	Since int64 // Unix milliseconds: when the oldest unpaid debt came to be owed; 0: nothing is owed but what still grows
	Due   int64 // Unix milliseconds: when the first unpaid debt is due; 0: none is
}

// Late is the part that is late.
func (a Ageing) Late() money.Micro {
	var sum money.Micro
	for _, m := range a.Ages[Overdue30:] {
		sum += m // parts of Owed, which is no more than money.Max
	}
	return sum
}

// Unpaid gives what is left of debts when owed is all that is left of them together, oldest first: payments settle the oldest debts first,
// and what still grows last. So the newest debts are unpaid. What of owed no debt accounts for comes first, without a due time. debts is
// not changed.
func Unpaid(debts []Debt, owed int64) []Debt {
	left := Positive(owed)
	sorted := slices.Clone(debts)
	slices.SortStableFunc(sorted, func(a, b Debt) int {
		return cmp.Or(-cmp.Compare(a.since(), b.since()), slices.Compare(a.Lane[:], b.Lane[:]))
	})
	var out []Debt
	for _, d := range sorted {
		d.Amount = min(d.Amount, left)
		if left -= d.Amount; d.Amount > 0 {
			out = append(out, d)
		}
	}
	if left > 0 {
		out = append(out, Debt{Amount: left})
	}
	slices.Reverse(out)
	return out
}

// since orders debts: what still grows is the newest.
func (d Debt) since() uint64 { return uint64(d.Since) - 1 }

// AgeOf sorts unpaid debts, as [Unpaid] gives them, by their age at now, Unix milliseconds.
func AgeOf(unpaid []Debt, now int64) (Ageing, error) {
	var out Ageing
	for _, d := range unpaid {
		var err error
		if out.Owed, err = money.Add(out.Owed, d.Amount); err != nil {
			return out, fmt.Errorf("age of lane %s: %w", d.Lane.Short(), err)
		}
		out.Ages[d.Age(now)] += d.Amount
		if d.Since != 0 && (out.Since == 0 || d.Since < out.Since) {
			out.Since = d.Since
		}
		if d.Due != 0 && (out.Due == 0 || d.Due < out.Due) {
			out.Due = d.Due
		}
	}
	return out, nil
}
