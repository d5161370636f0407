package books

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/p2p/identity"
)

// The list of those who owe something gives the same sum as all accounts, whatever they owe, hold, prepaid or never paid.
func TestExposedIsAll(t *testing.T) {
	p := newParty(t)
	limits := p.Limits(money.Credit)
	rapid.Check(t, func(rt *rapid.T) {
		peer := identity.AccountID{rapid.Byte().Draw(rt, "account") % 8}
		want := ledger.Standing{
			Owed: rapid.Int64Range(-3, 3).Draw(rt, "owed"), Open: money.Micro(rapid.Uint64Range(0, 3).Draw(rt, "open")),
			BadDebt: money.Micro(rapid.Uint64Range(0, 1).Draw(rt, "bad debt")),
		}
		p.update(func(tx *Tx) error {
			return tx.change(ledger.AsProvider, money.Credit, peer, func(a *Account) error {
				a.Standing = want
				return nil
			})
		})
		p.view(func(r *Reader) error {
			var all money.Micro
			err := r.eachAccount(ledger.AsProvider, money.Credit, func(_ identity.AccountID, a Account) error {
				part, err := limits.Strange(a.Standing)
				all += part
				return err
			})
			if got, err := r.StrangersUsed(money.Credit, identity.AccountID{99}); err != nil || got != all {
				rt.Fatalf("listed: %v, all: %v, %v", got, all, err)
			}
			return err
		})
	})
}

// An account that is missing from the list, or is in it without reason, is found by verify.
func TestVerifyExposed(t *testing.T) {
	for name, edit := range map[string]func(kv.Tx, []byte) error{
		"missing": func(own kv.Tx, k []byte) error { return own.Delete(k) },
		"too many": func(own kv.Tx, _ []byte) error {
			return own.Set(exposedKey(money.Credit, identity.AccountID{7}), nil)
		},
	} {
		p := newPair(t)
		p.sell(1, 500)
		p.provider.verified(ResultOK)
		p.provider.update(func(tx *Tx) error { return edit(tx.own, exposedKey(money.Credit, p.renter.Self())) })
		if v, err := p.provider.Verify(t.Context()); err != nil || v.Result != ResultCorrupt || v.Entry == "store" {
			t.Errorf("%s: %+v, %v", name, v, err)
		}
	}
}
