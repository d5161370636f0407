package books

import (
	"errors"
	"fmt"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/meter"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/p2p/identity"
)

// Opening is what a lane starts with. Both sides say the same.
type Opening struct {
	Channel ledger.Channel
	Lane    ledger.Lane
	Rate    money.Rate  // per device-hour
	Devices uint32      //
	Hold    money.Micro // on the renter's credit: rate x minimum term for a buy-now
	DueDays uint32      // after the lane's end its debt is due, by the offer's terms
}

// OpenLane is the provider's start of a lane, in the transaction of the sale: it checks the renter's opening voucher and delegation and
// puts the hold on its credit. The error is a [*ledger.CreditError] when that does not fit. A repeat gives the lane as it is.
func (t *Tx) OpenLane(o Opening, opening, delegation []byte) (Lane, error) {
	v, err := voucher.Open(opening)
	if err != nil {
		return Lane{}, err
	}
	if have, ok, err := t.sameLane(o, v); err != nil || ok {
		return have, err
	}
	role, err := t.role(o.Channel)
	if err != nil {
		return Lane{}, err
	}
	if role != ledger.AsProvider {
		return Lane{}, fmt.Errorf("open lane %s: %w: the renter calls Promise", o.Lane.Short(), ErrRole)
	}
	d, err := identity.OpenDelegation(delegation)
	if err != nil {
		return Lane{}, err
	}
	rules := voucher.Lane{Channel: o.Channel, Lane: o.Lane, Device: v.Device, Powers: d, Proof: identity.Hash(delegation)}
	if _, err := rules.Next(v, nil); err != nil {
		return Lane{}, err
	}
	head, err := t.sight(v.Checkpoint, v.Header)
	if err != nil {
		return Lane{}, fmt.Errorf("open lane %s: %w", o.Lane.Short(), err)
	}
	if err := t.enterEpoch(v); err != nil {
		return Lane{}, err
	}
	if err := errors.Join(t.checkNew(role, o.Channel.Unit, o.Channel.Renter), t.notRevoked(d)); err != nil {
		return Lane{}, fmt.Errorf("open lane %s: %w", o.Lane.Short(), err)
	}
	if err := t.CheckCredit(o.Channel.Renter, o.Channel.Unit, o.Hold); err != nil {
		return Lane{}, fmt.Errorf("open lane %s: %w", o.Lane.Short(), err)
	}
	if err := errors.Join(t.follow(d.Account, d.Chain), t.own.Set(delegationKey(rules.Proof), delegation), t.remember(head, rules.Proof)); err != nil {
		return Lane{}, err
	}
	return t.openLane(role, o, v)
}

// Promise is the renter's start of a lane, before its order is sent: it signs the opening voucher and books the hold. A repeat gives
// the same bytes.
func (t *Tx) Promise(o Opening) ([]byte, error) {
	role, err := t.role(o.Channel)
	if err != nil {
		return nil, err
	}
	if role != ledger.AsRenter {
		return nil, fmt.Errorf("promise lane %s: %w: the provider calls OpenLane", o.Lane.Short(), ErrRole)
	}
	old, err := raw(t.own, voucherKey(o.Lane, 0))
	if err != nil {
		return nil, err
	}
	if old != nil {
		v, err := voucher.Open(old)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrForged, err)
		}
		_, _, err = t.sameLane(o, v)
		return old, err
	}
	if err := t.checkNew(role, o.Channel.Unit, o.Channel.Provider); err != nil {
		return nil, fmt.Errorf("promise lane %s: %w", o.Lane.Short(), err)
	}
	cp, err := t.Checkpoint()
	if err != nil {
		return nil, err
	}
	none, err := meter.Hash(nil)
	if err != nil {
		return nil, err
	}
	v, err := voucher.Sign(t.b.config.Device, voucher.Voucher{
		Channel: o.Channel, Lane: o.Lane, Resource: meter.Resource, Segments: none, Checkpoint: cp,
	})
	if err != nil {
		return nil, err
	}
	_, err = t.openLane(role, o, v)
	return v.Raw, err
}

// sameLane looks for the lane of o: ok if it is here as o says, ErrConflict if it is here otherwise.
func (t *Tx) sameLane(o Opening, v voucher.Signed) (have Lane, ok bool, err error) {
	have, ok, err = load[Lane](t.own, laneKey(o.Lane))
	if err != nil || !ok {
		return have, false, err
	}
	first, err := raw(t.own, voucherKey(o.Lane, 0))
	if err != nil {
		return have, false, err
	}
	was := Opening{Channel: have.Channel, Lane: have.Lane, Rate: have.Rate, Devices: have.Devices, Hold: have.Hold, DueDays: have.DueDays}
	if was != o || identity.Hash(first) != v.Hash {
		return have, false, fmt.Errorf("open lane %s: %w", o.Lane.Short(), ErrConflict)
	}
	return have, true, nil
}

// openLane writes a new lane with its opening voucher and hold.
func (t *Tx) openLane(role ledger.Role, o Opening, v voucher.Signed) (Lane, error) {
	amount, err := ledger.Signed(o.Hold)
	if err != nil {
		return Lane{}, fmt.Errorf("hold of lane %s: %w", o.Lane.Short(), err)
	}
	l := Lane{
		Channel: o.Channel, Lane: o.Lane, Device: v.Device, Proof: v.Delegation, Rate: o.Rate, Devices: o.Devices,
		Hold: o.Hold, HoldLeft: o.Hold, Voucher: v.Hash, Opened: t.now.UnixMilli(), DueDays: o.DueDays,
	}
	peer := o.Channel.Peer(t.b.self)
	err = t.change(role, o.Channel.Unit, peer, func(a *Account) error {
		a.Lanes++
		return a.reopen(0, l.Open())
	})
	if err != nil {
		return Lane{}, err
	}
	if o.Hold > 0 {
		_, err := t.post(ledger.Entry{
			ID: ledger.EntryID(ledger.KindHold, v.Hash), Kind: ledger.KindHold, Peer: peer, Lane: o.Lane,
			Postings: hold(role, o.Channel, amount), Refs: hashes(v.Hash),
		})
		if err != nil {
			return Lane{}, err
		}
	}
	return l, errors.Join(t.own.Set(peerLane(peer, o.Lane), nil), t.keepVoucher(v), t.saveLane(&l))
}

func (t *Tx) saveLane(l *Lane) error {
	l.Changed = t.now.UnixMilli()
	return save(t.own, laneKey(l.Lane), *l)
}

func (t *Tx) keepVoucher(v voucher.Signed) error {
	return errors.Join(t.own.Set(voucherKey(v.Lane, v.Seq), v.Raw), save(t.own, key("vh/", v.Hash[:]), place{Lane: v.Lane, Seq: v.Seq}))
}

// Lane gives a lane, or ErrNoLane.
func (r *Reader) Lane(id ledger.Lane) (Lane, error) {
	l, ok, err := load[Lane](r.own, laneKey(id))
	if err == nil && !ok {
		err = fmt.Errorf("lane %s: %w", id.Short(), ErrNoLane)
	}
	return l, err
}

// Meter says what the provider's meter has charged on a lane in all, vouchered or not. It belongs into the transaction that persists
// the meter at each tick. A lane that has ended takes no more.
func (t *Tx) Meter(id ledger.Lane, charge money.Micro) error {
	l, role, err := t.laneAs(id, ledger.AsProvider)
	if err != nil {
		return fmt.Errorf("meter: %w", err)
	}
	if l.Closed() {
		return fmt.Errorf("meter lane %s: %w: it ended", id.Short(), ErrConflict)
	}
	was := l.Open()
	l.Metered = charge
	if l.Open() == was {
		return t.saveLane(&l)
	}
	err = t.change(role, l.Channel.Unit, l.Channel.Renter, func(a *Account) error { return a.reopen(was, l.Open()) })
	if err != nil {
		return fmt.Errorf("meter lane %s: %w", id.Short(), err)
	}
	return t.saveLane(&l)
}

// LaneRoom is how much more a lane of ours may meter before the renter's credit ends, and by which limit: what is left of its hold
// or allowance, and the room of the account. A lane that is disputed has none, by ErrDisputed.
func (r *Reader) LaneRoom(id ledger.Lane) (room money.Micro, cause error, err error) {
	l, err := r.Lane(id)
	if err != nil || l.Frozen() {
		return 0, ErrDisputed, err
	}
	room, cause, err = r.Room(l.Channel.Renter, l.Channel.Unit)
	if err != nil {
		return 0, nil, err
	}
	room, err = money.Add(room, l.Open()-l.Unvouchered())
	return room, cause, err
}

// laneAs gives a lane of which this account is on the given side.
func (r *Reader) laneAs(id ledger.Lane, want ledger.Role) (Lane, ledger.Role, error) {
	l, err := r.Lane(id)
	if err != nil {
		return l, 0, err
	}
	role, err := r.role(l.Channel)
	if err == nil && want != 0 && role != want {
		err = fmt.Errorf("lane %s: %w", id.Short(), ErrRole)
	}
	return l, role, err
}

// CloseLane ends a lane with a final charge, on either side: what is left of the hold goes back, and what was vouchered beyond final is
// corrected. Vouchers up to final are taken afterwards, too. A repeat changes nothing, and a lower final charge (a release that came
// late, a credit) replaces the first; a higher one is ErrConflict.
func (t *Tx) CloseLane(id ledger.Lane, final money.Micro) (Lane, error) {
	return t.closeLane(id, final, t.now.UnixMilli())
}

// closeLane is CloseLane of a lane that ended at a time, in Unix milliseconds.
func (t *Tx) closeLane(id ledger.Lane, final money.Micro, ended int64) (Lane, error) {
	l, role, err := t.laneAs(id, 0)
	if err != nil {
		return l, fmt.Errorf("close: %w", err)
	}
	if l.Agreed && l.Closed() {
		return l, nil // both signed what it comes to
	}
	if l.Closed() && final >= *l.Final {
		if final > *l.Final {
			return l, fmt.Errorf("close lane %s with %v: %w: it ended with %v", id.Short(), final, ErrConflict, *l.Final)
		}
		return l, nil
	}
	next := l
	next.Final, next.HoldLeft, next.Metered = &final, 0, final
	if !l.Closed() {
		next.Ended = ended
	}
	over, err := ledger.Signed(l.Owed() - min(l.Owed(), final))
	if err != nil {
		return l, fmt.Errorf("close lane %s: %w", id.Short(), err)
	}
	back, err := ledger.Signed(l.HoldLeft)
	if err != nil {
		return l, fmt.Errorf("close lane %s: %w", id.Short(), err)
	}
	err = t.change(role, l.Channel.Unit, l.Channel.Peer(t.b.self), func(a *Account) error {
		return errors.Join(a.owe(-over), a.reopen(l.Open(), next.Open()), a.runs(l, next))
	})
	if err != nil {
		return l, fmt.Errorf("close lane %s: %w", id.Short(), err)
	}
	entry := ledger.Entry{Peer: l.Channel.Peer(t.b.self), Lane: id, Refs: hashes(l.Voucher)}
	if back > 0 {
		entry.Kind, entry.ID = ledger.KindVoid, ledger.EntryID(ledger.KindVoid, laneHash(id), amountHash(final))
		entry.Postings = hold(role, l.Channel, -back)
		if _, err := t.post(entry); err != nil {
			return l, err
		}
	}
	if over > 0 {
		entry.Kind, entry.ID = ledger.KindCorrection, ledger.EntryID(ledger.KindCorrection, laneHash(id), amountHash(final))
		entry.Postings = debt(role, l.Channel, -over)
		if _, err := t.post(entry); err != nil {
			return l, err
		}
	}
	return next, errors.Join(t.saveLane(&next), t.indexEnd(next), t.askAbout(next))
}
