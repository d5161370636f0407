package books

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/netting"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// ClearingCopy is what a member keeps of a clearing that counts, as it gives it to another member that lost it: the signatures of all.
type ClearingCopy struct {
	Terms netting.Terms        `cbor:"1,keyasint"`
	Words []netting.Word       `cbor:"2,keyasint"`
	Lanes []voucher.LaneAmount `cbor:"3,keyasint,omitempty"` // between the two that it counts for, as the giver booked it; no amount hangs on it
}

// AdoptClearing takes back a clearing that counts: every member's signature is in the copy, this account's own too. Adopting what is here
// already changes nothing. One of another device of this account stays out: [*SisterError]. Errors wrap ErrCopy or say which check failed; then nothing was written.
func (t *Tx) AdoptClearing(peer identity.AccountID, c ClearingCopy) (changed bool, err error) {
	err = t.txn.Try(func() (err error) {
		changed, err = t.adoptClearing(peer, c)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("adopt clearing: %w", err)
	}
	return changed, nil
}

func (t *Tx) adoptClearing(peer identity.AccountID, c ClearingCopy) (changed bool, err error) {
	if err := c.Terms.Validate(); err != nil {
		return false, err
	}
	if len(c.Words) > netting.MaxDevices || len(c.Lanes) > 2*voucher.MaxLanes {
		return false, fmt.Errorf("%w: %d words, %d lanes", ErrCopy, len(c.Words), len(c.Lanes))
	}
	id, err := c.Terms.ID()
	if err != nil {
		return false, err
	}
	have, ok, err := load[Netted](t.own, clearingKey(id))
	if err != nil {
		return false, err
	}
	devices, err := t.memberDevices(c.Terms)
	if err != nil {
		return false, err
	}
	if !ok {
		have = Netted{Clearing: netting.Clearing{Terms: c.Terms}, Self: devices[0]}
	}
	if c.Terms.Side(have.Self).Account() != t.b.self || !member(c.Terms, peer) {
		return false, fmt.Errorf("%w: accounts %s and %s are not both members of clearing %s", ErrCopy, t.b.self.Short(), peer.Short(), id.Short())
	}
	if have.State != netting.Cleared {
		heard, err := hear(have.Clearing, c.Words)
		if err != nil {
			return false, err
		}
		if heard.State != netting.Cleared {
			return false, fmt.Errorf("%w: clearing %s lacks %d signatures", ErrCopy, id.Short(), len(heard.Missing()))
		}
		if have, err = t.adoptSides(id, have, heard, devices); err != nil {
			return false, err
		}
		changed = true
	}
	if slices.ContainsFunc(devices, func(d identity.PeerID) bool { return !have.books(d) }) {
		// It counts here already, and a device that was taken over since has a side of its own in it.
		if have, err = t.adoptSides(id, have, have.Clearing, devices); err != nil {
			return false, err
		}
		changed = true
	}
	for _, l := range have.legs() {
		if l.peer != peer {
			continue
		}
		marked, err := t.adoptMarks(id, l.channel, c.Lanes)
		if err != nil {
			return false, err
		}
		changed = changed || marked
	}
	return changed, t.givenBy(id, have, peer)
}

// givenBy notes that the member who gave a clearing back has it: it hangs on this device no more than before the loss. Of an account with
// two devices in it, either may have been the one.
func (t *Tx) givenBy(id wire.Hash, v Netted, peer identity.AccountID) error {
	theirs := slices.DeleteFunc(v.Terms.Devices(), func(d identity.PeerID) bool { return v.Terms.Side(d).Account() != peer })
	if peer == t.b.self || len(theirs) != 1 || slices.Contains(v.Has, theirs[0]) {
		return nil
	}
	return t.ToldClearing(id, theirs[0])
}

// books reports whether a device's side of the clearing is booked here.
func (v Netted) books(device identity.PeerID) bool {
	return device == v.Self || slices.Contains(v.Also, device)
}

// adoptSides keeps a clearing that counts with the sides of devices, and books those that are not booked yet. The lanes that it counts for
// come from the other side of each.
func (t *Tx) adoptSides(id wire.Hash, was Netted, is netting.Clearing, devices []identity.PeerID) (Netted, error) {
	was.State = netting.Agreed // so that it comes to count now: a side that is booked is not booked again
	for _, d := range devices {
		if !was.books(d) {
			was.Also = append(was.Also, d)
		}
	}
	if err := t.saveClearingBy(id, was, is, func(*Netted, ledger.Channel) error { return nil }); err != nil {
		return Netted{}, err
	}
	return t.Clearing(id)
}

// memberDevices are this account's devices in the terms of a clearing: this one and others whose records this ledger books, this one first. A
// clearing of sister devices alone is in their ledgers: [*SisterError]. Where this account is no member it gives this device, and the caller says so.
func (r *Reader) memberDevices(t netting.Terms) (own []identity.PeerID, err error) {
	self := r.b.config.Device.Peer()
	var sister error
	for _, d := range t.Devices() {
		if t.Side(d).Account() != r.b.self {
			continue
		}
		switch err := r.charge(d); {
		case err != nil:
			sister = err
		case d == self:
			own = slices.Insert(own, 0, d)
		default:
			own = append(own, d)
		}
	}
	if len(own) > 0 {
		return own, nil
	}
	return []identity.PeerID{self}, sister
}

// member reports whether an account has a part in t.
func member(t netting.Terms, a identity.AccountID) bool {
	return slices.ContainsFunc(t.Legs, func(l netting.Leg) bool { return l.Debtor == a || l.Creditor == a })
}

// adoptMarks counts a clearing for lanes of a channel, unless it counts for some already: each lane that is here, up to what it comes to. So it
// grows once for each of this account's two sides, by what one copy may hold.
func (t *Tx) adoptMarks(id wire.Hash, c ledger.Channel, marks []voucher.LaneAmount) (changed bool, err error) {
	v, err := t.Clearing(id)
	if err != nil {
		return false, err
	}
	for _, la := range v.Lanes {
		if l, err := t.Lane(la.Lane); err != nil || c.Covers(l.Channel) {
			return false, err
		}
	}
	for _, la := range marks {
		l, err := t.Lane(la.Lane)
		if errors.Is(err, ErrNoLane) || err == nil && (!c.Covers(l.Channel) || la.Amount > l.Owed() || la.Amount == 0) {
			continue
		}
		if err != nil {
			return false, err
		}
		l.Settled = max(l.Settled, la.Amount)
		v.Lanes = append(v.Lanes, la)
		if err := t.saveLane(&l); err != nil {
			return false, err
		}
		changed = true
	}
	if !changed {
		return false, nil
	}
	return true, save(t.own, clearingKey(id), v)
}

// copyClearings gives the clearings that count of which peer is a member, after a place.
func (r *Reader) copyClearings(peer identity.AccountID, place []byte, n int) (out []ClearingCopy, next []byte, err error) {
	prefix := []byte("net/")
	for p, err := range r.own.Iterate(prefix, after(prefix, place)) {
		if err != nil {
			return nil, nil, err
		}
		var v Netted
		if err := wire.UnmarshalStrict(p.Value, &v); err != nil {
			return nil, nil, fmt.Errorf("clearing %x: %w: %w", p.Key, ErrCorrupt, err)
		}
		if v.State != netting.Cleared || !member(v.Terms, peer) {
			continue
		}
		if len(out) == n {
			return out, next, nil
		}
		c, err := r.copyClearing(v, peer)
		if err != nil {
			return nil, nil, err
		}
		out, next = append(out, c), append([]byte{placeClearing}, p.Key[len(prefix):]...)
	}
	return out, nil, nil
}

// copyClearing is a clearing as peer gets it.
func (r *Reader) copyClearing(v Netted, peer identity.AccountID) (ClearingCopy, error) {
	c := ClearingCopy{Terms: v.Terms}
	for _, s := range v.Said {
		if !s.Refuses {
			c.Words = append(c.Words, s.Word)
		}
	}
	for _, la := range v.Lanes {
		l, err := r.Lane(la.Lane)
		if err != nil {
			return c, err
		}
		if l.Channel.Peer(r.b.self) == peer {
			c.Lanes = append(c.Lanes, la)
		}
	}
	return c, nil
}
