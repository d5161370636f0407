package books

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/netting"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Aside is what clearings have set aside of what peer owes us in a unit, or as renter of what we owe it. It is owed as before.
func (r *Reader) Aside(role ledger.Role, u money.Unit, peer identity.AccountID) (sum money.Micro, err error) {
	for p, err := range r.own.Iterate(asidePrefix(role, u, peer), nil) {
		if err != nil {
			return 0, err
		}
		amount, err := r.balanceAt(p.Key)
		if err != nil {
			return 0, err
		}
		if sum, err = money.Add(sum, ledger.Positive(amount)); err != nil {
			return 0, err
		}
	}
	return sum, nil
}

// Clearable is what peer owes us in a unit, or as renter what we owe it, less what clearings have set aside.
func (r *Reader) Clearable(role ledger.Role, u money.Unit, peer identity.AccountID) (money.Micro, error) {
	a, err := r.Account(role, u, peer)
	if err != nil {
		return 0, err
	}
	aside, err := r.Aside(role, u, peer)
	owed := ledger.Positive(a.Owed)
	return owed - min(owed, aside), err
}

// Clearables gives all that can be cleared of what we owe in a unit, or as provider of what we are owed: the largest first, then by account.
func (r *Reader) Clearables(role ledger.Role, u money.Unit) (out []netting.Debt, err error) {
	err = r.eachAccount(role, u, func(peer identity.AccountID, _ Account) error {
		amount, err := r.Clearable(role, u, peer)
		if err != nil || amount == 0 {
			return err
		}
		d := netting.Debt{Debtor: r.b.self, Creditor: peer, Unit: u, Amount: amount}
		if role == ledger.AsProvider {
			d.Debtor, d.Creditor = peer, r.b.self
		}
		out = append(out, d)
		return nil
	})
	slices.SortStableFunc(out, func(a, b netting.Debt) int { return cmp.Compare(b.Amount, a.Amount) })
	return out, err
}

// Clearing gives a clearing, or ErrNoClearing.
func (r *Reader) Clearing(id wire.Hash) (Netted, error) {
	v, ok, err := load[Netted](r.own, clearingKey(id))
	if err == nil && !ok {
		err = fmt.Errorf("clearing %s: %w", id.Short(), ErrNoClearing)
	}
	return v, err
}

// Clearings calls f with each clearing, in no order that means anything.
func (r *Reader) Clearings(f func(id wire.Hash, v Netted) error) error {
	for p, err := range r.own.Iterate([]byte("net/"), nil) {
		if err != nil {
			return err
		}
		var v Netted
		if err := wire.UnmarshalStrict(p.Value, &v); err != nil {
			return fmt.Errorf("clearing %x: %w: %w", p.Key, ErrCorrupt, err)
		}
		id, err := v.Terms.ID()
		if err != nil {
			return err
		}
		if err := f(id, v); err != nil {
			return err
		}
	}
	return nil
}

// OpenClearings are those in which something is still to be done: they set something aside, or count and were not brought to all members.
func (r *Reader) OpenClearings() (out []wire.Hash, err error) {
	for p, err := range r.own.Iterate([]byte("nw/"), nil) {
		if err != nil {
			return nil, err
		}
		var id wire.Hash
		if copy(id[:], p.Key[len("nw/"):]) != len(id) {
			return nil, fmt.Errorf("open clearing %x: %w", p.Key, ErrCorrupt)
		}
		out = append(out, id)
	}
	return out, nil
}

// DeviceOf is the device of a counterparty with which this account deals in a role and unit: of its newest lane, by what it signed there.
// ErrNoLane if there is none.
func (r *Reader) DeviceOf(role ledger.Role, u money.Unit, peer identity.AccountID) (device identity.PeerID, err error) {
	device, err = r.lastDevice(peer, func(l Lane) bool { return l.Channel.Unit == u && l.Channel.RoleOf(r.b.self) == role })
	if err == nil && device.IsZero() {
		err = fmt.Errorf("device of account %s: %w", peer.Short(), ErrNoLane)
	}
	return device, err
}
