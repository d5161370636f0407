package books

import (
	"fmt"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// eachAccount calls f with each counterparty's record of a role and unit.
func (r *Reader) eachAccount(role ledger.Role, u money.Unit, f func(identity.AccountID, Account) error) error {
	prefix := key("acct/", []byte{'0' + byte(role)}, []byte(u), []byte("/"))
	for p, err := range r.own.Iterate(prefix, nil) {
		if err != nil {
			return err
		}
		a, peer, err := decodeAccount(p, len(prefix))
		if err != nil {
			return err
		}
		a.Late = ledger.Late(a.DueAt, r.at)
		if err := f(peer, a); err != nil {
			return err
		}
	}
	return nil
}

// decodeAccount reads an account record whose key ends with the peer at byte at.
func decodeAccount(p kv.Pair, at int) (Account, identity.AccountID, error) {
	var a Account
	var peer identity.AccountID
	if len(p.Key) != at+len(peer) {
		return a, peer, fmt.Errorf("account record %q: %w", p.Key, ErrCorrupt)
	}
	if err := wire.UnmarshalStrict(p.Value, &a); err != nil {
		return a, peer, fmt.Errorf("account record %q: %w: %w", p.Key, ErrCorrupt, err)
	}
	copy(peer[:], p.Key[at:])
	return a, peer, nil
}

// StrangersUsed is how much of the strangers' total of a unit is used: over all renters, what they owe beyond what their history
// covers, and bad debts. without leaves one account out; the zero account none.
func (r *Reader) StrangersUsed(u money.Unit, without identity.AccountID) (money.Micro, error) {
	limits, sum := r.b.Limits(u), money.Micro(0)
	err := r.eachExposed(u, func(peer identity.AccountID, a Account) error {
		if peer == without {
			return nil
		}
		part, err := limits.Strange(a.Standing)
		if err != nil {
			return err
		}
		sum, err = money.Add(sum, part)
		return err
	})
	return sum, err
}

// Room is how much more renter may come to owe us in a unit, and by which limit ([ledger.ErrCreditLimit] or
// [ledger.ErrStrangersTotal]) it ends.
func (r *Reader) Room(renter identity.AccountID, u money.Unit) (room money.Micro, cause error, err error) {
	a, err := r.Account(ledger.AsProvider, u, renter)
	if err != nil {
		return 0, nil, err
	}
	others, err := r.StrangersUsed(u, renter)
	if err != nil {
		return 0, nil, err
	}
	return r.b.Limits(u).Room(a.Standing, others)
}

// CheckCredit is nil if renter may come to owe us more, and else a [*ledger.CreditError].
func (r *Reader) CheckCredit(renter identity.AccountID, u money.Unit, more money.Micro) error {
	a, err := r.Account(ledger.AsProvider, u, renter)
	if err != nil {
		return err
	}
	return r.checkGrowth(renter, u, a.Standing, more)
}

// checkGrowth is the credit rule for a standing that would grow by more.
func (r *Reader) checkGrowth(renter identity.AccountID, u money.Unit, s ledger.Standing, more money.Micro) error {
	if more == 0 {
		return nil
	}
	others, err := r.StrangersUsed(u, renter)
	if err != nil {
		return err
	}
	return r.b.Limits(u).Check(s, others, more)
}

// SetLimit sets one renter's limit by the owner's hand; nil goes back to the rule.
func (t *Tx) SetLimit(renter identity.AccountID, u money.Unit, limit *money.Micro) error {
	if err := u.Validate(); err != nil {
		return err
	}
	if limit != nil && *limit > money.Max {
		return fmt.Errorf("limit of account %s: %w", renter.Short(), money.ErrOverflow)
	}
	return t.change(ledger.AsProvider, u, renter, func(a *Account) error {
		a.ByHand = limit
		return nil
	})
}
