package books

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/p2p/identity"
)

// What is late follows from what is owed, from the due times of lanes and from the clock, and is never stored. So that the credit rule
// need not look at every lane, the account keeps what its running lanes promise and when the first of its unpaid debts is due, and the
// keys under due/ list the lanes that have ended. Verify computes all of it again.

// Due is when the lane's debt is due, in Unix milliseconds; 0 while it runs.
func (l Lane) Due() int64 {
	if l.Ended == 0 {
		return 0
	}
	return max(ledger.DueAt(l.Ended, l.DueDays), l.Disputed) // nobody is late with what is disputed
}

// debt is the lane as one debt, paid or not.
func (l Lane) debt() ledger.Debt {
	return ledger.Debt{Lane: l.Lane, Amount: l.Owed(), Since: l.Ended, Due: l.Due()}
}

// runs replaces a lane's part of what running lanes promise.
func (a *Account) runs(was, is Lane) error {
	part := func(l Lane) money.Micro {
		if l.Closed() {
			return 0
		}
		return l.Owed()
	}
	left, err := money.Sub(a.Running, part(was))
	if err != nil {
		return fmt.Errorf("promised by running lanes: %w", err)
	}
	a.Running, err = money.Add(left, part(is))
	return err
}

// ended is what is unpaid of lanes that have ended: payments settle those first.
func (a Account) ended() (int64, error) {
	running, err := ledger.Signed(a.Running)
	if err != nil {
		return 0, err
	}
	left, err := ledger.AddSigned(a.Owed, -running)
	return max(left, 0), err
}

// duePrefix is of the keys of an account's ended lanes.
func duePrefix(role ledger.Role, u money.Unit, peer identity.AccountID) []byte {
	return key("due/", []byte{'0' + byte(role)}, []byte(u), []byte("/"), peer[:], []byte("/"))
}

// dueKey is of one lane that has ended. The newest is first, so that a walk ends with the oldest unpaid one.
func dueKey(role ledger.Role, peer identity.AccountID, l Lane) []byte {
	return key(string(duePrefix(role, l.Channel.Unit, peer)), be8(^uint64(l.Ended)), l.Lane[:])
}

// indexDue lists a lane that has ended, and sets its account's due time.
func (t *Tx) indexDue(l Lane) error {
	if !l.Closed() {
		return nil
	}
	role, err := t.role(l.Channel)
	if err != nil {
		return err
	}
	peer := l.Channel.Peer(t.b.self)
	if l.Owed() > 0 {
		if err := t.own.Set(dueKey(role, peer, l), nil); err != nil {
			return err
		}
	}
	return t.setDue(role, l.Channel.Unit, peer)
}

// indexEnd is indexDue for a lane that has ended just now. All that was unpaid before stays unpaid, since payments settle the oldest lanes
// first, so an account that owes for thousands of lanes need not look at each again.
func (t *Tx) indexEnd(l Lane) error {
	role, err := t.role(l.Channel)
	if err != nil {
		return err
	}
	peer := l.Channel.Peer(t.b.self)
	a, err := t.Account(role, l.Channel.Unit, peer)
	if err != nil {
		return err
	}
	newest, err := t.isNewest(role, peer, l)
	if err != nil {
		return err
	}
	if a.DueAt == 0 || a.BadDebt != 0 || !newest || l.Owed() == 0 {
		return t.indexDue(l)
	}
	if err := t.own.Set(dueKey(role, peer, l), nil); err != nil || l.Due() >= a.DueAt {
		return err
	}
	a.DueAt = l.Due()
	return save(t.own, accountKey(role, l.Channel.Unit, peer), a)
}

// isNewest reports whether a lane ended after all others of its account; not so if the clock was stepped back.
func (r *Reader) isNewest(role ledger.Role, peer identity.AccountID, l Lane) (bool, error) {
	prefix := duePrefix(role, l.Channel.Unit, peer)
	for p, err := range r.own.Iterate(prefix, nil) {
		if err == nil && len(p.Key) < len(prefix)+8 {
			err = fmt.Errorf("ended lane %q: %w", p.Key, ErrCorrupt)
		}
		if err != nil {
			return false, err
		}
		return binary.BigEndian.Uint64(p.Key[len(prefix):]) > ^uint64(l.Ended), nil
	}
	return true, nil
}

// setDue sets the account's due time. It belongs after every change of what is owed but by a running lane.
func (t *Tx) setDue(role ledger.Role, u money.Unit, peer identity.AccountID) error {
	if err := t.takeBack(role, u, peer); err != nil {
		return err
	}
	unpaid, err := t.Unpaid(role, u, peer)
	if err != nil {
		return err
	}
	ages, err := ledger.AgeOf(unpaid, t.at)
	if err != nil {
		return err
	}
	a, err := t.Account(role, u, peer)
	if err != nil || a.DueAt == ages.Due {
		return err
	}
	a.DueAt = ages.Due
	if err := save(t.own, accountKey(role, u, peer), a); err != nil || a.DueAt != 0 {
		return err
	}
	return t.own.Delete(reminderKey(role, u, peer)) // nothing is left that it was about
}

// newestEnded gives the newest of an account's ended lanes until they come to as much as is left.
func (r *Reader) newestEnded(role ledger.Role, u money.Unit, peer identity.AccountID, left int64) ([]Lane, error) {
	prefix := duePrefix(role, u, peer)
	var out []Lane
	var sum money.Micro
	for p, err := range r.own.Iterate(prefix, nil) {
		if err != nil {
			return nil, err
		}
		if sum >= ledger.Positive(left) {
			break
		}
		var id ledger.Lane
		if len(p.Key) != len(prefix)+8+len(id) {
			return nil, fmt.Errorf("ended lane %q: %w", p.Key, ErrCorrupt)
		}
		copy(id[:], p.Key[len(prefix)+8:])
		l, err := r.Lane(id)
		if err != nil {
			return nil, err
		}
		if at := binary.BigEndian.Uint64(p.Key[len(prefix):]); at != ^uint64(l.Ended) {
			return nil, fmt.Errorf("lane %s: %w: its end is listed at another time", id.Short(), ErrCorrupt)
		}
		if sum, err = money.Add(sum, l.Owed()); err != nil {
			return nil, err
		}
		out = append(out, l)
	}
	return out, nil
}

// Unpaid gives what peer owes us in a unit as debts, oldest first, or as renter what we owe it. The last one, without a due time, is what
// running lanes promise.
func (r *Reader) Unpaid(role ledger.Role, u money.Unit, peer identity.AccountID) ([]ledger.Debt, error) {
	a, err := r.Account(role, u, peer)
	if err != nil {
		return nil, err
	}
	return r.unpaid(role, u, peer, a)
}

// Claim is [Reader.Unpaid] with what was written off: what may be asked for.
func (r *Reader) Claim(role ledger.Role, u money.Unit, peer identity.AccountID) ([]ledger.Debt, error) {
	a, err := r.Account(role, u, peer)
	if err != nil {
		return nil, err
	}
	if a.Owed, err = ledger.AddSigned(a.Owed, int64(a.BadDebt)); err != nil {
		return nil, err
	}
	return r.unpaid(role, u, peer, a)
}

func (r *Reader) unpaid(role ledger.Role, u money.Unit, peer identity.AccountID, a Account) ([]ledger.Debt, error) {
	left, err := a.ended()
	if err != nil {
		return nil, err
	}
	lanes, err := r.newestEnded(role, u, peer, left)
	if err != nil {
		return nil, err
	}
	debts := []ledger.Debt{{Amount: a.Running}}
	for _, l := range lanes {
		debts = append(debts, l.debt())
	}
	return ledger.Unpaid(debts, a.Owed), nil
}

// checkDue compares what an account says of its due debts with its lanes.
func (a *audit) checkDue(name string, role ledger.Role, u money.Unit, peer identity.AccountID, have Account) error {
	if err := a.checkLost(name, role, u, peer, have); err != nil {
		return err
	}
	lanes, err := a.r.Lanes(peer)
	if err != nil {
		return err
	}
	var all []ledger.Debt
	var running money.Micro
	for _, l := range lanes {
		if as, err := a.r.role(l.Channel); err != nil || as != role || l.Channel.Unit != u {
			continue
		}
		if l.Closed() != (l.Ended != 0) {
			return corrupt("lane "+l.Lane.Short(), "its end has no time")
		}
		if l.Closed() {
			all = append(all, l.debt())
		} else if running, err = money.Add(running, l.Owed()); err != nil {
			return err
		}
	}
	if running != have.Running {
		return corrupt(name, "its running lanes promise %v, it says %v", running, have.Running)
	}
	listed, err := a.r.Unpaid(role, u, peer)
	if err != nil {
		return corrupt(name, "%v", err)
	}
	unpaid := ledger.Unpaid(append(all, ledger.Debt{Amount: running}), have.Owed)
	if !slices.Equal(unpaid, listed) {
		return corrupt(name, "%d of its debts are unpaid, %d by the list of ended lanes, or they differ", len(unpaid), len(listed))
	}
	ages, err := ledger.AgeOf(unpaid, a.r.at)
	if err != nil || ages.Due != have.DueAt {
		return corrupt(name, "the first of its unpaid debts is due at %d, it says %d", ages.Due, have.DueAt)
	}
	return nil
}
