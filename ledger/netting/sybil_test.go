package netting_test

import (
	"math/rand/v2"
	"testing"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/netting"
	"github.com/gpufair/gpufair/p2p/identity"
)

// market is an owner with the default limits and any number of accounts of one attacker. The owner lends by its limits to all of them, buys
// from some, and clears whatever circle is found.
type market struct {
	t      *testing.T
	limits ledger.Limits
	owner  identity.AccountID
	owed   map[identity.AccountID]*ledger.Standing // to the owner
	debts  map[[2]identity.AccountID]money.Micro   // of all others, and the owner's
	got    money.Micro                             // that the owner had for nothing in return but a clearing
}

func (m *market) others(but identity.AccountID) (sum money.Micro) {
	m.t.Helper()
	for a, s := range m.owed {
		if a == but {
			continue
		}
		part, err := m.limits.Strange(*s)
		if err != nil {
			m.t.Fatal(err)
		}
		sum += part
	}
	return sum
}

// borrow lets an account use all the credit that it gets.
func (m *market) borrow(a identity.AccountID) {
	m.t.Helper()
	if m.owed[a] == nil {
		m.owed[a] = &ledger.Standing{}
	}
	room, _, err := m.limits.Room(*m.owed[a], m.others(a))
	if err != nil {
		m.t.Fatal(err)
	}
	m.owed[a].Owed += int64(room)
}

// clear clears every circle that there is.
func (m *market) clear() {
	m.t.Helper()
	var all []netting.Debt
	for pair, amount := range m.debts {
		all = append(all, netting.Debt{Debtor: pair[0], Creditor: pair[1], Unit: money.Credit, Amount: amount})
	}
	for a, s := range m.owed {
		all = append(all, netting.Debt{Debtor: a, Creditor: m.owner, Unit: money.Credit, Amount: ledger.Positive(s.Owed)})
	}
	circles, _ := netting.Plan(all, identity.AccountID{}, netting.MaxParties)
	for _, c := range circles {
		for i, debtor := range c.Accounts {
			creditor := c.Accounts[(i+1)%len(c.Accounts)]
			if creditor == m.owner {
				m.owed[debtor].Owed -= int64(c.Amount)
				m.owed[debtor].Settled += c.Amount
				m.got += c.Amount
				continue
			}
			m.debts[[2]identity.AccountID{debtor, creditor}] -= c.Amount
		}
	}
}

// lost is what the attacker owes the owner at the end.
func (m *market) lost() (sum money.Micro) {
	for _, s := range m.owed {
		sum += ledger.Positive(s.Owed)
	}
	return sum
}

// TestSybilsClear: keys of one attacker who clear any debts among themselves earn no credit with the owner. In circles through the owner they
// earn what he no longer owes them: he loses at most the strangers' total and half of what he had in kind.
func TestSybilsClear(t *testing.T) {
	limits, err := ledger.DefaultLimits(400_000, 1)
	if err != nil {
		t.Fatal(err)
	}
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 11))
		m := &market{
			t: t, limits: limits, owner: identity.AccountID{255}, owed: map[identity.AccountID]*ledger.Standing{},
			debts: map[[2]identity.AccountID]money.Micro{},
		}
		buys := seed%2 == 1
		for range 60 {
			a, b := identity.AccountID{1 + byte(r.IntN(12))}, identity.AccountID{1 + byte(r.IntN(12))}
			switch r.IntN(4) {
			case 0:
				m.borrow(a)
			case 1:
				if a != b { // fake: it costs nothing
					m.debts[[2]identity.AccountID{a, b}] += 1_000_000_000
				}
			case 2:
				if buys { // the owner has work done by one of them, and owes for it
					m.debts[[2]identity.AccountID{m.owner, a}] += 50_000
				}
			case 3:
				m.clear()
			}
			if most := limits.StrangersTotal + m.got/2; m.lost() > most {
				t.Fatalf("seed %d: lost %v of at most %v", seed, m.lost(), most)
			}
		}
		if !buys && m.got != 0 {
			t.Fatalf("seed %d: %v were cleared with an owner who owes nothing", seed, m.got)
		}
		if buys && m.got == 0 {
			t.Fatalf("seed %d: nothing was cleared", seed)
		}
	}
}
