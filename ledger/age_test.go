package ledger_test

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/money"
)

const dayMs = int64(24 * time.Hour / time.Millisecond)

func TestAgeAtItsEdges(t *testing.T) {
	const due = 100 * dayMs
	for at, want := range map[int64]ledger.Age{
		due - 1: ledger.NotDue, due: ledger.DueNow, due + dayMs - 1: ledger.DueNow, due + dayMs: ledger.Overdue30, due + 31*dayMs - 1: ledger.Overdue30,
		due + 31*dayMs: ledger.Overdue60, due + 61*dayMs - 1: ledger.Overdue60, due + 61*dayMs: ledger.Overdue90, due + 91*dayMs - 1: ledger.Overdue90,
		due + 91*dayMs: ledger.Overdue, math.MaxInt64: ledger.Overdue,
	} {
		d := ledger.Debt{Amount: 7, Due: due}
		if got := d.Age(at); got != want {
			t.Errorf("age %d ms after the due time is %d, want %d", at-due, got, want)
		}
		if late := ledger.Late(due, at); late != (want >= ledger.Overdue30) {
			t.Errorf("late %d ms after the due time: %v", at-due, late)
		}
	}
	if (ledger.Debt{}).Age(math.MaxInt64) != ledger.NotDue || ledger.Late(0, math.MaxInt64) {
		t.Error("what has no due time got late")
	}
	if got := ledger.DueAt(5, 14); got != 5+14*dayMs {
		t.Errorf("due in 14 days: %d", got)
	}
}

func lane(n byte) ledger.Lane { return ledger.Lane{n} }

// Payments settle what was due first, and what still grows last.
func TestUnpaidIsFIFO(t *testing.T) {
	debts := []ledger.Debt{
		{Lane: lane(3), Amount: 30},                      // runs
		{Lane: lane(2), Amount: 20, Since: 20, Due: 120}, // ended last
		{Lane: lane(1), Amount: 10, Since: 10, Due: 110},
	}
	first, second, running := debts[2], debts[1], debts[0]
	part := func(d ledger.Debt, amount money.Micro) ledger.Debt { d.Amount = amount; return d }
	for owed, want := range map[int64][]ledger.Debt{
		60: {first, second, running}, 55: {part(first, 5), second, running}, 50: {second, running}, 31: {part(second, 1), running}, 30: {running},
		1: {part(running, 1)}, 0: nil, -5: nil,
		64: {{Amount: 4}, first, second, running}, // a debt without a lane
	} {
		if diff := cmp.Diff(want, ledger.Unpaid(debts, owed)); diff != "" {
			t.Errorf("%d owed (-want +got):\n%s", owed, diff)
		}
	}
	if debts[0].Lane != lane(3) {
		t.Error("the caller's debts were sorted")
	}
}

func TestAgeOf(t *testing.T) {
	now := 200 * dayMs
	got, err := ledger.AgeOf([]ledger.Debt{
		{Amount: 1, Since: 7, Due: now - 100*dayMs},
		{Amount: 2, Since: 9, Due: now - 5*dayMs},
		{Amount: 4, Due: now - 5*dayMs},
		{Amount: 8, Due: now},
		{Amount: 16},
	}, now)
	want := ledger.Ageing{Owed: 31, Since: 7, Due: now - 100*dayMs}
	want.Ages[ledger.Overdue], want.Ages[ledger.Overdue30], want.Ages[ledger.DueNow], want.Ages[ledger.NotDue] = 1, 6, 8, 16
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v, ages (-want +got):\n%s", err, diff)
	}
	if got.Late() != 7 {
		t.Errorf("%v late, want 7", got.Late())
	}
	if _, err := ledger.AgeOf([]ledger.Debt{{Amount: money.Max}, {Amount: 1}}, now); !errors.Is(err, money.ErrOverflow) {
		t.Error(err)
	}
}

// Whatever is paid in whatever parts, what is unpaid sums up to what is owed, and paying never makes an older debt unpaid again.
func TestUnpaidHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var debts []ledger.Debt
		var sum int64
		for i := range rapid.IntRange(0, 20).Draw(t, "debts") {
			d := ledger.Debt{Lane: lane(byte(i)), Amount: money.Micro(rapid.Uint64Range(0, 50).Draw(t, "amount"))}
			if rapid.Bool().Draw(t, "ended") {
				d.Since = rapid.Int64Range(1, 9).Draw(t, "since")
				d.Due = ledger.DueAt(d.Since, uint32(rapid.IntRange(0, 3).Draw(t, "days")))
			}
			debts, sum = append(debts, d), sum+int64(d.Amount)
		}
		owed := rapid.Int64Range(-5, sum).Draw(t, "owed")
		now := rapid.Int64Range(0, 10*dayMs).Draw(t, "now")
		unpaid := ledger.Unpaid(debts, owed)
		ages, err := ledger.AgeOf(unpaid, now)
		if err != nil || ages.Owed != ledger.Positive(owed) {
			t.Fatalf("%v unpaid of %d owed: %v", ages.Owed, owed, err)
		}
		less, err := ledger.AgeOf(ledger.Unpaid(unpaid, owed-1), now)
		if err != nil || less.Late() > ages.Late() || less.Since != 0 && less.Since < ages.Since {
			t.Fatalf("after a payment: %+v, before: %+v, %v", less, ages, err)
		}
	})
}
