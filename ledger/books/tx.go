package books

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/history"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Reader reads one snapshot of the ledger. Valid only inside the function that got it; not safe for concurrent use.
type Reader struct {
	b   *Books
	txn *kv.Txn
	own kv.Tx
	at  int64 // Unix milliseconds by the wall clock: what is late is judged by it, and nothing else

	// powers are the delegations that were opened before: their signatures cost as much as those of what names them.
	powers map[wire.Hash]identity.Delegation
}

func newReader(b *Books, t *kv.Txn) *Reader {
	return &Reader{b: b, txn: t, own: t.Of(kv.Books), at: time.Now().UnixMilli()}
}

// Of gives another owner's part of the same snapshot or transaction: lease state commits with the entries. In a View its writes give
// kv.ErrReadOnly. What is written here must never be written past the books, or a replay of the journal would bring back old values.
func (r *Reader) Of(o kv.Owner) kv.Tx { return r.txn.Of(o) }

// Tx is a transaction on the ledger. Valid only inside the function that got it; not safe for concurrent use. A method that gives an
// error has written nothing, so a function may go on with other lanes; the one exception is a proof of equivocation, which is kept.
type Tx struct {
	*Reader
	now time.Time
}

// Now is the wall clock at the start of the transaction: for people, nothing depends on it.
func (t *Tx) Now() time.Time { return t.now }

// hashes reads the log's stored hashes.
func (r *Reader) hashes() history.Hashes {
	return history.HashesFunc(func(numbers []int64) ([]history.Hash, error) {
		out := make([]history.Hash, len(numbers))
		for i, n := range numbers {
			b, err := r.own.Get(key("h/", be8(uint64(n))))
			if err != nil {
				return nil, fmt.Errorf("hash %d of the log: %w", n, err)
			}
			if len(b) != len(out[i]) {
				return nil, fmt.Errorf("hash %d of the log: %w", n, ErrCorrupt)
			}
			copy(out[i][:], b)
		}
		return out, nil
	})
}

// post appends e, whose id, kind, peer, lane, postings, references and note are set, unless an entry of its id is here.
func (t *Tx) post(e ledger.Entry) (added bool, err error) {
	if have, err := raw(t.own, key("id/", e.ID[:])); err != nil || have != nil {
		return false, err
	}
	e.Time = t.now.UnixMilli()
	if _, err := rand.Read(e.Salt[:]); err != nil {
		return false, fmt.Errorf("salt of entry: %w", err)
	}
	leaf, err := e.Leaf()
	if err != nil {
		return false, err
	}
	balances, err := t.balances(e.Postings)
	if err != nil {
		return false, err
	}
	h, err := t.head()
	if err != nil {
		return false, err
	}
	more, err := history.Append(t.hashes(), h.Size, leaf)
	if err != nil {
		return false, err
	}
	errs := []error{
		t.own.Set(key("e/", be8(more.Index)), leaf),
		t.own.Set(key("id/", e.ID[:]), be8(more.Index)),
		save(t.own, []byte(keyHead), head{Size: more.Size, Root: wire.Hash(more.Root)}),
	}
	for i, hash := range more.Hashes {
		errs = append(errs, t.own.Set(key("h/", be8(more.First+uint64(i))), hash[:]))
	}
	for _, b := range balances {
		errs = append(errs, t.own.Set(b.key, be8(uint64(b.value))))
	}
	if e.Lane != (ledger.Lane{}) {
		errs = append(errs, t.own.Set(key("le/", e.Lane[:], []byte("/"), be8(more.Index)), nil))
	}
	return true, errors.Join(errs...)
}

// balance is a changed balance.
type balance struct {
	key   []byte
	value int64
}

// balances gives the balances that postings lead to.
func (r *Reader) balances(postings []ledger.Posting) ([]balance, error) {
	var out []balance
	for _, p := range postings {
		k := balanceKey(p.Unit, p.Account)
		i := slices.IndexFunc(out, func(b balance) bool { return string(b.key) == string(k) })
		if i < 0 {
			have, err := r.balanceAt(k)
			if err != nil {
				return nil, err
			}
			i, out = len(out), append(out, balance{key: k, value: have})
		}
		sum, err := ledger.AddSigned(out[i].value, p.Amount)
		if err != nil {
			return nil, fmt.Errorf("balance of %s: %w", p.Account, err)
		}
		out[i].value = sum
	}
	return out, nil
}

func (r *Reader) balanceAt(k []byte) (int64, error) {
	b, err := raw(r.own, k)
	if err != nil || b == nil {
		return 0, err
	}
	if len(b) != 8 {
		return 0, fmt.Errorf("balance %q: %w", k, ErrCorrupt)
	}
	return int64(binary.BigEndian.Uint64(b)), nil
}

// Balance is the balance of one account of the books, in micro-units, debit positive.
func (r *Reader) Balance(u money.Unit, a ledger.Account) (int64, error) {
	return r.balanceAt(balanceKey(u, a))
}

// Account is how this account stands with peer, as the given role in a unit.
func (r *Reader) Account(role ledger.Role, u money.Unit, peer identity.AccountID) (Account, error) {
	a, _, err := load[Account](r.own, accountKey(role, u, peer))
	a.Late = ledger.Late(a.DueAt, r.at)
	return a, err
}

// change loads the account record of peer, lets f change it, and saves it with the time of its last entry.
func (t *Tx) change(role ledger.Role, u money.Unit, peer identity.AccountID, f func(*Account) error) error {
	a, err := t.Account(role, u, peer)
	if err != nil {
		return err
	}
	was := a.exposed()
	if err := f(&a); err != nil {
		return err
	}
	a.LastEntry = t.now.UnixMilli()
	return errors.Join(save(t.own, accountKey(role, u, peer), a), t.list(role, u, peer, was, a.exposed()))
}

// reopen replaces one part of an account's open exposure.
func (a *Account) reopen(was, is money.Micro) error {
	left, err := money.Sub(a.Open, was)
	if err != nil {
		return fmt.Errorf("open exposure: %w", err)
	}
	a.Open, err = money.Add(left, is)
	return err
}

// owe adds to what is owed.
func (a *Account) owe(amount int64) (err error) {
	a.Owed, err = ledger.AddSigned(a.Owed, amount)
	return err
}

// debt gives the postings for amount more owed on a channel (less, if negative), as role sees them.
func debt(role ledger.Role, c ledger.Channel, amount int64) []ledger.Posting {
	if role == ledger.AsProvider {
		return pair(c.Unit, ledger.Account{Kind: ledger.Receivable, Peer: c.Renter}, ledger.Account{Kind: ledger.Income}, amount)
	}
	return pair(c.Unit, ledger.Account{Kind: ledger.Expense}, ledger.Account{Kind: ledger.Payable, Peer: c.Provider}, amount)
}

// hold gives the postings for amount more held on a channel (less, if negative), as role sees them.
func hold(role ledger.Role, c ledger.Channel, amount int64) []ledger.Posting {
	pending := ledger.Account{Kind: ledger.Pending}
	if role == ledger.AsProvider {
		return pair(c.Unit, ledger.Account{Kind: ledger.Hold, Peer: c.Renter}, pending, amount)
	}
	return pair(c.Unit, pending, ledger.Account{Kind: ledger.Committed, Peer: c.Provider}, amount)
}

// paid gives the postings for amount paid outside on a channel, as role sees them.
func paid(role ledger.Role, c ledger.Channel, method string, amount int64) []ledger.Posting {
	outside := ledger.Account{Kind: ledger.External, Method: method}
	if role == ledger.AsProvider {
		return pair(c.Unit, outside, ledger.Account{Kind: ledger.Receivable, Peer: c.Renter}, amount)
	}
	return pair(c.Unit, ledger.Account{Kind: ledger.Payable, Peer: c.Provider}, outside, amount)
}

// pair debits one account and credits another; nothing for 0.
func pair(u money.Unit, debit, credit ledger.Account, amount int64) []ledger.Posting {
	if amount == 0 {
		return nil
	}
	return []ledger.Posting{{Account: debit, Unit: u, Amount: amount}, {Account: credit, Unit: u, Amount: -amount}}
}

// role is this account's side of c.
func (r *Reader) role(c ledger.Channel) (ledger.Role, error) {
	if err := c.Validate(); err != nil {
		return 0, err
	}
	role := c.RoleOf(r.b.self)
	if role == 0 {
		return 0, fmt.Errorf("%w: it is between %s and %s", ErrRole, c.Renter.Short(), c.Provider.Short())
	}
	return role, nil
}

// KeepDelegation stores a delegation that records will name. It checks the account's signature.
func (t *Tx) KeepDelegation(envelope []byte) (identity.Delegation, wire.Hash, error) {
	d, err := identity.OpenDelegation(envelope)
	if err != nil {
		return d, wire.Hash{}, err
	}
	h := identity.Hash(envelope)
	return d, h, t.own.Set(delegationKey(h), envelope)
}

// delegation gives a kept delegation.
func (r *Reader) delegation(h wire.Hash) (identity.Delegation, error) {
	if d, ok := r.powers[h]; ok {
		return d, nil
	}
	d, err := r.openDelegation(h)
	if err == nil {
		if r.powers == nil {
			r.powers = map[wire.Hash]identity.Delegation{}
		}
		r.powers[h] = d
	}
	return d, err
}

func (r *Reader) openDelegation(h wire.Hash) (identity.Delegation, error) {
	if h == r.b.config.Device.DelegationHash() {
		return identity.OpenDelegation(r.b.config.Device.Delegation())
	}
	b, err := raw(r.own, delegationKey(h))
	if err != nil {
		return identity.Delegation{}, err
	}
	if b == nil {
		return identity.Delegation{}, fmt.Errorf("%w: %s", ErrDelegation, h.Short())
	}
	return identity.OpenDelegation(b)
}

// HasDelegation reports whether a delegation is kept.
func (r *Reader) HasDelegation(h wire.Hash) (bool, error) {
	b, err := raw(r.own, delegationKey(h))
	return b != nil, err
}
