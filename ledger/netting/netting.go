// Package netting finds circles of debts (A owes B, B owes C, C owes A), says what each of them can clear, and holds the records and the
// rules by which its members clear one, all or nothing. It takes debts and records as values and gives values. It stores nothing and asks
// nobody: ledger/books keeps the records and books them, ledger/settle carries them.
package netting

import (
	"bytes"
	"cmp"
	"slices"

	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/p2p/identity"
)

// Limits of circles and of the search for them.
const (
	MinParties = 2       // accounts of a circle: two that owe each other are one, too
	MaxParties = 8       // of a circle
	MaxDebts   = 1 << 10 // that [Plan] looks at
	maxSteps   = 1 << 16 // of one search: a dense graph has more circles than anybody needs
)

// Debt is what one account owes another in one unit, as both acknowledge it: an edge of the graph.
type Debt struct {
	Debtor, Creditor identity.AccountID
	Unit             money.Unit
	Amount           money.Micro
}

// Circle is debts that close. All of them are cleared by the same amount, so that nobody's net position changes.
type Circle struct {
	Unit     money.Unit
	Accounts []identity.AccountID // each owes the next, the last owes the first
	Amount   money.Micro          // the least of the debts
}

// Plan finds circles of at most parties accounts (never over [MaxParties]), through one account or, if that is zero, anywhere. They come in
// the order in which they are to be cleared, each with its amount after those before it: the largest first, then the shortest, then by the
// accounts' bytes. left is what is owed after all of them. The same debts in any order give the same plan. Debts of nothing or to oneself
// are dropped, those beyond MaxDebts are left alone, and so are circles that a bounded search does not find.
func Plan(debts []Debt, through identity.AccountID, parties int) (circles []Circle, left []Debt) {
	g := graph{debts: merged(debts), parties: min(parties, MaxParties)}
	for {
		best := g.best(through)
		if best.Amount == 0 {
			return circles, slices.DeleteFunc(g.debts, func(d Debt) bool { return d.Amount == 0 })
		}
		for i, debtor := range best.Accounts {
			at, _ := g.find(best.Unit, debtor, best.Accounts[(i+1)%len(best.Accounts)])
			g.debts[at].Amount -= best.Amount
		}
		circles = append(circles, best)
	}
}

// merged is debts in the order of their unit, debtor and creditor, one each. A sum beyond [money.Max] stays two debts, of which the graph
// sees the first.
func merged(debts []Debt) (out []Debt) {
	sorted := slices.DeleteFunc(slices.Clone(debts), func(d Debt) bool { return d.Amount == 0 || d.Debtor == d.Creditor })
	slices.SortFunc(sorted, func(a, b Debt) int {
		return cmp.Or(compare(a, b.Unit, b.Debtor, b.Creditor), cmp.Compare(a.Amount, b.Amount))
	})
	for _, d := range sorted {
		if n := len(out) - 1; n >= 0 && compare(out[n], d.Unit, d.Debtor, d.Creditor) == 0 {
			if sum, err := money.Add(out[n].Amount, d.Amount); err == nil {
				out[n].Amount = sum
				continue
			}
		}
		out = append(out, d)
	}
	return out
}

func compare(d Debt, unit money.Unit, debtor, creditor identity.AccountID) int {
	return cmp.Or(cmp.Compare(d.Unit, unit), bytes.Compare(d.Debtor[:], debtor[:]), bytes.Compare(d.Creditor[:], creditor[:]))
}

// graph is debts in order.
type graph struct {
	debts   []Debt
	parties int
}

// find gives the place of a debt, or where it would be.
func (g graph) find(unit money.Unit, debtor, creditor identity.AccountID) (int, bool) {
	return slices.BinarySearchFunc(g.debts[:min(len(g.debts), MaxDebts)], Debt{}, func(d, _ Debt) int { return compare(d, unit, debtor, creditor) })
}

// search is a walk along debts.
type search struct {
	graph
	unit    money.Unit
	anybody bool // circles through any account: each is found from its least one
	path    []identity.AccountID
	best    Circle
	steps   int
}

// best is the circle to be cleared next, of no amount if there is none.
func (g graph) best(through identity.AccountID) Circle {
	s := &search{graph: g, anybody: through.IsZero()}
	var last Debt
	for i, d := range g.debts[:min(len(g.debts), MaxDebts)] {
		if i > 0 && d.Unit == last.Unit && d.Debtor == last.Debtor || !s.anybody && d.Debtor != through {
			continue
		}
		last, s.unit, s.path = d, d.Unit, append(s.path[:0], d.Debtor)
		s.walk(money.Max)
	}
	return s.best
}

// walk goes on from the path's end, with the least debt so far.
func (s *search) walk(least money.Micro) {
	first, at := s.path[0], s.path[len(s.path)-1]
	from, _ := s.find(s.unit, at, identity.AccountID{})
	for _, d := range s.debts[from:min(len(s.debts), MaxDebts)] {
		if d.Unit != s.unit || d.Debtor != at {
			return
		}
		amount := min(least, d.Amount)
		if s.steps++; s.steps > maxSteps || amount == 0 || amount < s.best.Amount {
			continue
		}
		switch {
		case d.Creditor == first:
			s.found(amount)
		case len(s.path) < s.parties && !slices.Contains(s.path, d.Creditor) && !(s.anybody && bytes.Compare(d.Creditor[:], first[:]) < 0):
			s.path = append(s.path, d.Creditor)
			s.walk(amount)
			s.path = s.path[:len(s.path)-1]
		}
	}
}

// found keeps the path as the best circle if it is better: the walk comes in the order of the accounts' bytes, so the first of equals stays.
func (s *search) found(amount money.Micro) {
	if len(s.path) < MinParties || amount == s.best.Amount && (len(s.path) >= len(s.best.Accounts)) {
		return
	}
	s.best = Circle{Unit: s.unit, Accounts: slices.Clone(s.path), Amount: amount}
}
