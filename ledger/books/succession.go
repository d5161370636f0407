package books

import (
	"errors"
	"fmt"

	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/p2p/identity"
)

// An account keeps its name when its key is changed, so balances, limits, lanes and debts stay where they are. What is kept beside them is
// the longest list of changes that was seen: nothing new is taken under a shorter one.

func keysKey(a identity.AccountID) []byte    { return key("ky/", a[:]) }
func twoKeysKey(a identity.AccountID) []byte { return key("fk/", a[:]) }

// TwoKeys is the proof that one key of an account named two to follow it: two lists of changes, each complete by itself, of which neither
// begins the other. As an error it wraps [identity.ErrTwoKeys], and is kept though the transaction fails by it.
type TwoKeys struct {
	Account identity.AccountID `cbor:"1,keyasint"`
	Have    identity.Chain     `cbor:"2,keyasint"`
	Got     identity.Chain     `cbor:"3,keyasint"`
	Found   int64              `cbor:"4,keyasint"` // Unix milliseconds
}

// Error says what it proves.
func (p *TwoKeys) Error() string {
	return fmt.Sprintf("account %s: %v", p.Account.Short(), identity.ErrTwoKeys)
}

// Unwrap is [identity.ErrTwoKeys].
func (p *TwoKeys) Unwrap() error { return identity.ErrTwoKeys }

// Check checks that the proof holds by itself.
func (p TwoKeys) Check() error {
	for _, c := range []identity.Chain{p.Have, p.Got} {
		if _, err := c.Key(p.Account); err != nil {
			return err
		}
	}
	if p.Have.Against(p.Got) != identity.Forked {
		return fmt.Errorf("%w: one list begins with the other", identity.ErrSuccession)
	}
	return nil
}

// keys is the longest list of changes of an account's key that is kept; none for most.
func (r *Reader) keys(a identity.AccountID) (identity.Chain, error) {
	c, _, err := load[identity.Chain](r.own, keysKey(a))
	return c, err
}

// TwoKeysOf gives the proof against an account; ok is false if there is none.
func (r *Reader) TwoKeysOf(a identity.AccountID) (p TwoKeys, ok bool, err error) {
	return load[TwoKeys](r.own, twoKeysKey(a))
}

// oneKey is [identity.ErrTwoKeys] for an account of which two keys claim to be the newest.
func (r *Reader) oneKey(a identity.AccountID) error {
	p, ok, err := r.TwoKeysOf(a)
	if err == nil && ok {
		err = fmt.Errorf("account %s: %w, found %s; settle what is owed in person", a.Short(), identity.ErrTwoKeys, when(p.Found).Format("2006-01-02"))
	}
	return err
}

// newestKey checks that a list of changes leads to the newest key of an account that is known here.
func (r *Reader) newestKey(a identity.AccountID, c identity.Chain) error {
	if err := r.oneKey(a); err != nil {
		return err
	}
	have, err := r.keys(a)
	if err != nil {
		return err
	}
	switch c.Against(have) {
	case identity.OlderKey:
		return fmt.Errorf("%w: account %s, after %d changes of its key; %d are known", identity.ErrReplaced, a.Short(), len(c), len(have))
	case identity.Forked:
		return &TwoKeys{Account: a, Have: have, Got: c}
	}
	return nil
}

// follow takes a list of changes that was checked: a longer one is kept, a shorter one is [identity.ErrReplaced], and one that forks is
// [TwoKeys].
func (t *Tx) follow(a identity.AccountID, c identity.Chain) error {
	if err := t.newestKey(a, c); err != nil || len(c) == 0 {
		return err
	}
	have, err := t.keys(a)
	if err != nil || c.Against(have) != identity.NewerKey {
		return err
	}
	return save(t.own, keysKey(a), c)
}

// keepTwoKeys keeps the first proof against an account.
func keepTwoKeys(t kv.Tx, p TwoKeys, at int64) error {
	if have, err := raw(t, twoKeysKey(p.Account)); err != nil || have != nil {
		return err
	}
	p.Found = at
	return errors.Join(p.Check(), save(t, twoKeysKey(p.Account), p))
}

// accountKeys checks the kept lists of changes and the proofs that two keys claim one place.
func (a *audit) accountKeys() error {
	for p, err := range a.r.own.Iterate([]byte("ky/"), nil) {
		if err != nil {
			return err
		}
		if err := a.changes(p); err != nil {
			return err
		}
	}
	return each(a.r.own, "fk/", func(k []byte, p TwoKeys) error {
		what := "proof against account " + p.Account.String()
		if string(k) != string(p.Account[:]) {
			return corrupt(what, "it is kept in another's place")
		}
		a.checked += uint64(2 * (len(p.Have) + len(p.Got)))
		if err := p.Check(); err != nil {
			return forged(what, err)
		}
		return nil
	})
}

func (a *audit) changes(p kv.Pair) error {
	account, ok := lastAccount(p.Key)
	if !ok {
		return corrupt(fmt.Sprintf("changes of a key %x", p.Key), "no account")
	}
	what := "changes of the key of account " + account.String()
	c, _, err := load[identity.Chain](a.r.own, p.Key)
	if err != nil {
		return err
	}
	a.checked += uint64(2 * len(c))
	if _, err := c.Key(account); err != nil {
		return forged(what, err)
	}
	return nil
}
