package arch

import (
	"go/token"
	"slices"
	"strings"
)

// pure are the packages that take values and give values.
var pure = []string{
	"market", "market/work", "market/query", "market/auction", "market/book", "market/reason",
	"ledger", "ledger/money", "ledger/voucher", "ledger/meter", "ledger/history", "ledger/proof", "ledger/export",
	"ledger/netting",
	"benchmark", "provider/sandbox", "provider/schedule",
}

var impure = []string{"net", "os", "syscall", "crypto/rand", "math/rand", "golang.org/x/sys", "log", "testing"}

var clocks = []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"}

func pureRules() []rule {
	return []rule{
		{"purity", "these packages take values and give values: no network, no disk, no clock, no randomness of their own. That is what lets " +
			"an auction or a ledger be tested by the million. Take a `now time.Time` or the bytes as a parameter.", purity},
	}
}

func purity(t *tree) (found []string) {
	for _, p := range t.packages {
		if !slices.Contains(pure, p.dir) {
			continue
		}
		for _, f := range p.code() {
			for _, i := range f.imports() {
				if slices.ContainsFunc(impure, func(bad string) bool { return within(i, bad) }) {
					found = append(found, violation(f.path, "%s is pure, but imports %s", p.dir, i))
				}
			}
			f.uses("time", clocks, func(pos token.Pos, name string) {
				found = append(found, violation(t.at(pos), "%s is pure, but uses time.%s", p.dir, name))
			})
			for _, i := range f.ast.Imports {
				if i.Name != nil && i.Name.Name == "." {
					found = append(found, violation(t.at(i.Pos()), "%s is pure, but dot-imports %s, which hides what it calls", p.dir, strings.Trim(i.Path.Value, `"`)))
				}
			}
		}
	}
	return found
}
