package netting_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/netting"
	"github.com/gpufair/gpufair/p2p/identity"
)

type position struct {
	account identity.AccountID
	unit    money.Unit
}

// positions is what each account is owed less what it owes.
func positions(debts []netting.Debt) map[position]int64 {
	out := map[position]int64{}
	for _, d := range debts {
		out[position{d.Debtor, d.Unit}] -= int64(d.Amount)
		out[position{d.Creditor, d.Unit}] += int64(d.Amount)
	}
	return out
}

func drawDebts(t *rapid.T) []netting.Debt {
	account := rapid.Custom(func(t *rapid.T) identity.AccountID {
		return identity.AccountID{rapid.ByteRange(1, 9).Draw(t, "account")}
	})
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) netting.Debt {
		return netting.Debt{
			Debtor: account.Draw(t, "debtor"), Creditor: account.Draw(t, "creditor"),
			Unit: rapid.SampledFrom([]money.Unit{"CREDIT", "EUR"}).Draw(t, "unit"), Amount: money.Micro(rapid.Uint64Range(0, 50).Draw(t, "amount")),
		}
	}), 0, 40).Draw(t, "debts")
}

// TestPlan: a plan clears something in each circle, changes nobody's net position, leaves no debt below zero and none that was not there,
// and leaves no circle behind.
func TestPlan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		debts := drawDebts(t)
		through := identity.AccountID{rapid.ByteRange(0, 9).Draw(t, "through")}
		parties := rapid.IntRange(1, 10).Draw(t, "parties")
		circles, left := netting.Plan(debts, through, parties)

		rest := map[netting.Debt]int64{}
		at := func(unit money.Unit, debtor, creditor identity.AccountID) netting.Debt {
			return netting.Debt{Debtor: debtor, Creditor: creditor, Unit: unit}
		}
		for _, d := range debts {
			if d.Debtor != d.Creditor {
				rest[at(d.Unit, d.Debtor, d.Creditor)] += int64(d.Amount)
			}
		}
		for i, c := range circles {
			if c.Amount == 0 || len(c.Accounts) < netting.MinParties || len(c.Accounts) > min(parties, netting.MaxParties) {
				t.Fatalf("circle %+v of at most %d", c, parties)
			}
			if !through.IsZero() && c.Accounts[0] != through {
				t.Fatalf("circle %+v is not through %v", c, through)
			}
			if i > 0 && c.Amount > circles[i-1].Amount {
				t.Fatalf("circle %+v after a smaller one", c)
			}
			for j, debtor := range c.Accounts {
				k := at(c.Unit, debtor, c.Accounts[(j+1)%len(c.Accounts)])
				if rest[k] -= int64(c.Amount); rest[k] < 0 {
					t.Fatalf("%v owes %d after %+v", k, rest[k], c)
				}
				if slices.Index(c.Accounts, debtor) != j {
					t.Fatalf("circle %+v meets an account twice", c)
				}
			}
		}
		for _, d := range left {
			k := at(d.Unit, d.Debtor, d.Creditor)
			if rest[k] != int64(d.Amount) {
				t.Fatalf("%v: %d are left, want %d", k, d.Amount, rest[k])
			}
			delete(rest, k)
		}
		for k, v := range rest {
			if v != 0 {
				t.Fatalf("%v: %d were lost", k, v)
			}
		}
		was, is := positions(debts), positions(left)
		for k, v := range was {
			if is[k] != v {
				t.Fatalf("%v had %d, has %d", k, v, is[k])
			}
		}
		if again, _ := netting.Plan(left, through, parties); len(again) != 0 {
			t.Fatalf("%+v are left", again)
		}
	})
}

// TestPlanOrder: the same debts in another order, or cut into parts, give the same plan.
func TestPlanOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		debts := drawDebts(t)
		want, wantLeft := netting.Plan(debts, identity.AccountID{}, netting.MaxParties)
		var other []netting.Debt
		for _, d := range debts {
			if half := d.Amount / 2; half > 0 {
				part := d
				part.Amount, d.Amount = half, d.Amount-half
				other = append(other, part)
			}
			other = append(other, d)
		}
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		r.Shuffle(len(other), func(i, j int) { other[i], other[j] = other[j], other[i] })
		got, gotLeft := netting.Plan(other, identity.AccountID{}, netting.MaxParties)
		if !slices.EqualFunc(got, want, func(a, b netting.Circle) bool {
			return a.Unit == b.Unit && a.Amount == b.Amount && slices.Equal(a.Accounts, b.Accounts)
		}) || !slices.Equal(gotLeft, wantLeft) {
			t.Fatalf("got %+v and %+v, want %+v and %+v", got, gotLeft, want, wantLeft)
		}
	})
}

// TestPlanChoice: the largest circle first, and the shortest of equals.
func TestPlanChoice(t *testing.T) {
	a, b, c, d := identity.AccountID{1}, identity.AccountID{2}, identity.AccountID{3}, identity.AccountID{4}
	debts := []netting.Debt{
		{Debtor: a, Creditor: b, Unit: "CREDIT", Amount: 10},
		{Debtor: b, Creditor: c, Unit: "CREDIT", Amount: 7},
		{Debtor: c, Creditor: a, Unit: "CREDIT", Amount: 9},
		{Debtor: c, Creditor: d, Unit: "CREDIT", Amount: 7},
		{Debtor: d, Creditor: a, Unit: "CREDIT", Amount: 9},
		{Debtor: b, Creditor: a, Unit: "CREDIT", Amount: 2},
		{Debtor: b, Creditor: a, Unit: "EUR", Amount: 50}, // no circle in another unit
	}
	circles, left := netting.Plan(debts, b, netting.MaxParties)
	if len(circles) != 2 || len(circles[0].Accounts) != 3 || circles[0].Amount != 7 || len(circles[1].Accounts) != 2 || circles[1].Amount != 2 {
		t.Errorf("circles %+v", circles)
	}
	if want := (netting.Debt{Debtor: a, Creditor: b, Unit: "CREDIT", Amount: 1}); !slices.Contains(left, want) {
		t.Errorf("left %+v, want %+v in it", left, want)
	}
}

// TestPlanDense: everybody owes everybody: more circles than could ever be looked at, and an end all the same.
func TestPlanDense(t *testing.T) {
	var debts []netting.Debt
	for i := range byte(30) {
		for j := range byte(30) {
			debts = append(debts, netting.Debt{Debtor: identity.AccountID{i + 1}, Creditor: identity.AccountID{j + 1}, Unit: "CREDIT", Amount: 1 + money.Micro(i)*37%11})
		}
	}
	was := positions(debts)
	circles, left := netting.Plan(debts, identity.AccountID{}, netting.MaxParties)
	if len(circles) == 0 {
		t.Fatal("no circle")
	}
	is := positions(left)
	for k, v := range was {
		if is[k] != v {
			t.Fatalf("%v had %d, has %d", k, v, is[k])
		}
	}
}
