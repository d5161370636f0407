package books

import (
	"errors"
	"fmt"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// ErrNothingOwed says that there is no debt to do something about.
var ErrNothingOwed = errors.New("nothing is owed on leases that have ended")

// WriteOff gives up hope for all that renter owes us on lanes that have ended: it becomes a bad debt, which counts against the limit for
// all strangers and takes the renter's credit to 0. The renter is not told, and owes it as before: when it pays after all, a correction
// takes back as much of the write-off. Nothing owed is ErrNothingOwed, so a repeat changes nothing.
func (t *Tx) WriteOff(renter identity.AccountID, u money.Unit, reason string) (money.Micro, error) {
	a, err := t.Account(ledger.AsProvider, u, renter)
	if err != nil {
		return 0, err
	}
	left, err := a.ended()
	if err != nil {
		return 0, err
	}
	if left == 0 {
		return 0, fmt.Errorf("write off what account %s owes in %s: %w", renter.Short(), u, ErrNothingOwed)
	}
	if err := t.moveLost(ledger.KindWriteOff, renter, u, left, reason); err != nil {
		return 0, fmt.Errorf("write off what account %s owes in %s: %w", renter.Short(), u, err)
	}
	return money.Micro(left), t.setDue(ledger.AsProvider, u, renter)
}

// takeBack takes back what was written off and is paid, or was corrected, after all: what the account has paid beyond what is booked as
// owed on ended lanes. What is booked is paid first.
func (t *Tx) takeBack(role ledger.Role, u money.Unit, peer identity.AccountID) error {
	a, err := t.Account(role, u, peer)
	if err != nil || role != ledger.AsProvider || a.BadDebt == 0 {
		return err
	}
	running, err := ledger.Signed(a.Running)
	if err != nil {
		return err
	}
	over, err := ledger.AddSigned(running, -a.Owed)
	if err != nil || over <= 0 {
		return err
	}
	return t.moveLost(ledger.KindCorrection, peer, u, -min(over, int64(a.BadDebt)), "written off, and paid after all")
}

// moveLost moves amount from what a renter owes to bad debts, or back if it is negative.
func (t *Tx) moveLost(kind ledger.EntryKind, renter identity.AccountID, u money.Unit, amount int64, note string) error {
	h, err := t.head()
	if err != nil {
		return err
	}
	err = t.change(ledger.AsProvider, u, renter, func(a *Account) error {
		bad, err := ledger.AddSigned(int64(a.BadDebt), amount)
		if err != nil || bad < 0 {
			return errors.Join(err, money.ErrOverflow)
		}
		a.BadDebt = money.Micro(bad)
		return a.owe(-amount)
	})
	if err != nil {
		return err
	}
	// Nothing outside causes the entry, so its place in the log names it: it is made where its cause is booked, once.
	cause := wire.Sum("gpufair/lost-debt/1", renter[:], []byte(u), be8(h.Size))
	_, err = t.post(ledger.Entry{
		ID: ledger.EntryID(kind, cause), Kind: kind, Peer: renter, Note: note,
		Postings: pair(u, ledger.Account{Kind: ledger.BadDebt, Peer: renter}, ledger.Account{Kind: ledger.Receivable, Peer: renter}, amount),
	})
	return err
}

// checkLost compares a bad debt with the entries.
func (a *audit) checkLost(name string, role ledger.Role, u money.Unit, peer identity.AccountID, have Account) error {
	var booked int64
	if role == ledger.AsProvider {
		booked = a.balances[string(balanceKey(u, ledger.Account{Kind: ledger.BadDebt, Peer: peer}))]
	}
	if booked < 0 || ledger.Positive(booked) != have.BadDebt {
		return corrupt(name, "%v of what it owes are written off, the entries say %s", have.BadDebt, signed(booked))
	}
	return nil
}

// shape checks that an entry of a kind that no signed record causes moves what its kind moves.
func shape(name string, e ledger.Entry) error {
	if e.Kind == ledger.KindDispute && (len(e.Postings) != 2 || e.Postings[0].Account != e.Postings[1].Account || len(e.Refs) != 1) {
		return corrupt(name, "a dispute moves nothing, this does")
	}
	lost := e.Kind == ledger.KindWriteOff || e.Kind == ledger.KindCorrection && e.Lane == ledger.Lane{}
	if !lost {
		return nil
	}
	ok := len(e.Postings) == 2 && e.Postings[0].Account == ledger.Account{Kind: ledger.BadDebt, Peer: e.Peer} &&
		e.Postings[1].Account == ledger.Account{Kind: ledger.Receivable, Peer: e.Peer} &&
		(e.Postings[0].Amount > 0) == (e.Kind == ledger.KindWriteOff)
	if !ok {
		return corrupt(name, "it is no %s", e.Kind)
	}
	return nil
}
