package books

import (
	"fmt"
	"maps"
	"slices"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/p2p/identity"
)

// The renters who owe or hold something are listed beside the accounts: whoever judges credit asks for what strangers use at every voucher,
// and of the thousands who ever came few do at one time.

func exposedKey(u money.Unit, peer identity.AccountID) []byte {
	return key("xp/", []byte(u), []byte("/"), peer[:])
}

// exposed says whether an account takes part in the strangers' total under some limits.
func (a Account) exposed() bool {
	exposure, err := a.Exposure()
	return err != nil || exposure > 0 || a.BadDebt > 0
}

// list keeps the list of renters in step with an account that changed.
func (t *Tx) list(role ledger.Role, u money.Unit, peer identity.AccountID, was, is bool) error {
	switch k := exposedKey(u, peer); {
	case role != ledger.AsProvider || was == is:
		return nil
	case is:
		return t.own.Set(k, nil)
	default:
		return t.own.Delete(k)
	}
}

// eachExposed calls f with each renter who owes or holds something in a unit.
func (r *Reader) eachExposed(u money.Unit, f func(identity.AccountID, Account) error) error {
	prefix := key("xp/", []byte(u), []byte("/"))
	for p, err := range r.own.Iterate(prefix, nil) {
		if err != nil {
			return err
		}
		var peer identity.AccountID
		if len(p.Key) != len(prefix)+len(peer) {
			return fmt.Errorf("list of renters %q: %w", p.Key, ErrCorrupt)
		}
		copy(peer[:], p.Key[len(prefix):])
		a, err := r.Account(ledger.AsProvider, u, peer)
		if err != nil {
			return err
		}
		if err := f(peer, a); err != nil {
			return err
		}
	}
	return nil
}

// exposed compares the list with the accounts.
func (a *audit) exposed() error {
	listed := map[string]bool{}
	for p, err := range a.r.own.Iterate([]byte("xp/"), nil) {
		if err != nil {
			return err
		}
		listed[string(p.Key)] = true
	}
	for p, err := range a.r.own.Iterate([]byte("acct/"), nil) {
		if err != nil {
			return err
		}
		role, unit, size, err := splitAccountKey(p.Key)
		if err != nil {
			return err
		}
		have, peer, err := decodeAccount(p, size)
		if err != nil {
			return err
		}
		k := string(exposedKey(unit, peer))
		if role != ledger.AsProvider {
			continue
		}
		if have.exposed() != listed[k] {
			return corrupt("account "+peer.String(), "it is listed among those who owe: %v", listed[k])
		}
		delete(listed, k)
	}
	if len(listed) > 0 {
		return corrupt("list of renters", "%q has no account", slices.Sorted(maps.Keys(listed))[0])
	}
	return nil
}
