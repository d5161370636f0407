package books

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/netting"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

var (
	// ErrNoClearing says that no clearing of that id is here.
	ErrNoClearing = errors.New("no such clearing")
	// ErrNotOwed says that a clearing is for more than is owed and not set aside for another.
	ErrNotOwed = errors.New("more than is owed")
	// ErrClearings says that too many clearings are open or were refused lately.
	ErrClearings = errors.New("too many clearings at once")
	// ErrExpired says that a clearing's deadline has passed, or is too far away.
	ErrExpired = errors.New("not within the clearing's time")
)

// Limits of what other accounts may leave here.
const (
	maxPeerOpen  = 8                   // clearings that set something aside of one debt
	maxRefused   = 256                 // refusals that are kept
	clearAhead   = 60 * 60 * 1000      // milliseconds to a deadline, by this side's clock
	refusedFor   = 24 * 60 * 60 * 1000 // milliseconds after the deadline for which a refusal is kept: more than clocks are wrong by
	clearingNote = "clearing "         // of the entries
)

// Netted is a clearing as it is kept: with the lanes that its booking counts for, the oldest first.
type Netted struct {
	netting.Clearing
	Lanes []voucher.LaneAmount `cbor:"20,keyasint,omitempty"`
	Self  identity.PeerID      `cbor:"21,keyasint"` // this account's device when it was made: it may have another since
	// Also are other devices of this account with a side of their own, which this ledger took over ([Tx.Take]): it books those sides, too.
	Also []identity.PeerID `cbor:"22,keyasint,omitempty"`
}

// legs are the sides of a clearing that this ledger books.
func (v Netted) legs() []leg {
	out := legs(v.Terms, v.Self)
	for _, d := range v.Also {
		out = append(out, legs(v.Terms, d)...)
	}
	return out
}

func clearingKey(id wire.Hash) []byte { return key("net/", id[:]) }

// asidePrefix is of the amounts that clearings have set aside of one debt.
func asidePrefix(role ledger.Role, u money.Unit, peer identity.AccountID) []byte {
	return key("nr/", []byte{'0' + byte(role)}, []byte(u), []byte("/"), peer[:], []byte("/"))
}

// leg is one side of a clearing as this account has it.
type leg struct {
	role    ledger.Role
	channel ledger.Channel
	peer    identity.AccountID
}

// legs are a device's sides of t.
func legs(t netting.Terms, device identity.PeerID) (out []leg) {
	side := t.Side(device)
	if side.Owed != nil {
		out = append(out, leg{ledger.AsProvider, t.Channel(*side.Owed), side.Owed.Debtor})
	}
	if side.Owes != nil {
		out = append(out, leg{ledger.AsRenter, t.Channel(*side.Owes), side.Owes.Creditor})
	}
	return out
}

// clearing gives what is kept of the clearing with terms t, or a fresh one. It checks t.
func (r *Reader) clearing(t netting.Terms) (id wire.Hash, v Netted, err error) {
	if err := t.Validate(); err != nil {
		return id, v, err
	}
	if id, err = t.ID(); err != nil {
		return id, v, err
	}
	v, ok, err := load[Netted](r.own, clearingKey(id))
	if err != nil || ok {
		return id, v, err
	}
	v.Terms, v.Self = t, r.b.config.Device.Peer()
	if t.Side(v.Self).Account() != r.b.self {
		return id, v, fmt.Errorf("clearing %s: %w: this device is no member", id.Short(), ErrRole)
	}
	return id, v, nil
}

// fits checks that the clearing's amount is owed on this device's legs and not set aside, and that its time is now.
func (r *Reader) fits(t netting.Terms) error {
	if now := r.at; t.Deadline < now || t.Deadline > now+clearAhead {
		return ErrExpired
	}
	for _, l := range legs(t, r.b.config.Device.Peer()) {
		if err := r.answered(l.peer); err != nil {
			return err
		}
		most, err := r.Clearable(l.role, t.Unit, l.peer)
		if err != nil {
			return err
		}
		if t.Amount > most {
			return fmt.Errorf("%w: %v %s with account %s, of which %v can be cleared", ErrNotOwed, t.Amount, t.Unit, l.peer.Short(), most)
		}
	}
	return nil
}

// room checks that one more clearing may set something aside of each of its debts here.
func (r *Reader) room(t netting.Terms) error {
	for _, l := range legs(t, r.b.config.Device.Peer()) {
		n := 0
		for _, err := range r.own.Iterate(asidePrefix(l.role, t.Unit, l.peer), nil) {
			if err != nil {
				return err
			}
			n++
		}
		if n >= maxPeerOpen {
			return fmt.Errorf("%w: %d with account %s", ErrClearings, n, l.peer.Short())
		}
	}
	return nil
}

// ProposeClearing begins a clearing on the device that signs last: it sets the amount aside. The terms may be sent once the transaction is
// committed. Errors: ErrNotOwed, ErrExpired, ErrClearings, identity.ErrRevoked.
func (t *Tx) ProposeClearing(terms netting.Terms) error {
	id, v, err := t.clearing(terms)
	if err != nil || v.State != 0 {
		return err
	}
	c, err := netting.Propose(t.b.config.Device.Peer(), terms)
	if err == nil {
		err = errors.Join(t.fits(terms), t.room(terms), t.membersNotRevoked(terms))
	}
	if err != nil {
		return fmt.Errorf("propose clearing %s: %w", id.Short(), err)
	}
	return t.saveClearing(id, v, c)
}

// AgreeClearing is this device's signature under a clearing that another member proposed: it sets the amount aside and binds. words are
// what others have said. The signature may be sent once the transaction is committed. A repeat gives the same words.
func (t *Tx) AgreeClearing(terms netting.Terms, words []netting.Word) (netting.Clearing, error) {
	id, v, err := t.clearing(terms)
	if err != nil {
		return netting.Clearing{}, err
	}
	c, err := hear(v.Clearing, words)
	if err == nil && c.State == 0 {
		err = errors.Join(t.fits(terms), t.room(terms), t.membersNotRevoked(terms))
	}
	if err == nil && c.State != netting.Cleared && c.State != netting.Agreed {
		var mine netting.Said
		if mine, err = netting.Sign(t.b.config.Device, terms, false); err == nil {
			c, err = c.Agree(mine)
		}
	}
	if err != nil {
		return v.Clearing, fmt.Errorf("agree to clearing %s: %w", id.Short(), err)
	}
	if c.State == v.State && len(c.Said) == len(v.Said) {
		return c, nil
	}
	return c, t.saveClearing(id, v, c)
}

// CompleteClearing is the last signature under a clearing of ours, when all other members have signed: now it counts. It may be sent once the
// transaction is committed. Errors: netting.ErrIncomplete, ErrExpired, identity.ErrRevoked.
func (t *Tx) CompleteClearing(id wire.Hash) (netting.Clearing, error) {
	v, err := t.Clearing(id)
	if err != nil || v.State == netting.Cleared {
		return v.Clearing, err
	}
	if v.Terms.Deadline < t.at {
		return v.Clearing, fmt.Errorf("complete clearing %s: %w", id.Short(), ErrExpired)
	}
	if err := t.membersNotRevoked(v.Terms); err != nil {
		return v.Clearing, fmt.Errorf("complete clearing %s: %w", id.Short(), err)
	}
	mine, err := netting.Sign(t.b.config.Device, v.Terms, false)
	if err != nil {
		return v.Clearing, err
	}
	c, err := v.Complete(mine)
	if err != nil {
		return v.Clearing, fmt.Errorf("complete clearing %s: %w", id.Short(), err)
	}
	return c, t.saveClearing(id, v, c)
}

// RefuseClearing is this device's word that it has not agreed to a clearing and never will: it frees the members that have. One that may have
// been agreed to before this ledger was restored is not refused (ErrUnsure). Errors: netting.ErrBound, ErrClearings.
func (t *Tx) RefuseClearing(terms netting.Terms) (netting.Clearing, error) {
	id, v, err := t.clearing(terms)
	if err != nil || v.State == netting.Refused || v.State == netting.Aborted {
		return v.Clearing, err
	}
	if v.State == 0 {
		if err = t.forgetRefused(); err == nil {
			err = t.sureOf(terms)
		}
	}
	var mine netting.Said
	if err == nil {
		mine, err = netting.Sign(t.b.config.Device, terms, true)
	}
	c := v.Clearing
	if err == nil {
		c, err = c.Refuse(mine)
	}
	if err != nil {
		return v.Clearing, fmt.Errorf("refuse clearing %s: %w", id.Short(), err)
	}
	return c, t.saveClearing(id, v, c)
}

// sureOf checks that no agreement to terms can have been lost in a restore.
func (r *Reader) sureOf(terms netting.Terms) error {
	at, err := r.Restored()
	if err == nil && !at.IsZero() && terms.Deadline <= at.UnixMilli()+clearAhead {
		err = ErrUnsure
	}
	return err
}

// forgetRefused makes room for one more refusal.
func (t *Tx) forgetRefused() error {
	var old []wire.Hash
	n := 0
	err := t.Clearings(func(id wire.Hash, v Netted) error {
		if v.State == netting.Refused {
			if n++; v.Terms.Deadline+refusedFor < t.at {
				old = append(old, id)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if n-len(old) >= maxRefused {
		return fmt.Errorf("%w: %d refused", ErrClearings, n)
	}
	for _, id := range old {
		if err := t.own.Delete(clearingKey(id)); err != nil {
			return err
		}
	}
	return nil
}

// HearClearing takes what members have said about a clearing. When all have agreed it counts, and is booked; a refusal frees what was set
// aside. Words on a clearing that this device knows nothing of are kept only if they are all agreements.
func (t *Tx) HearClearing(terms netting.Terms, words []netting.Word) (netting.Clearing, error) {
	id, v, err := t.clearing(terms)
	if err != nil {
		return netting.Clearing{}, err
	}
	c, err := hear(v.Clearing, words)
	if err != nil || c.State == 0 || len(c.Said) == len(v.Said) {
		return c, err
	}
	return c, t.saveClearing(id, v, c)
}

// ToldClearing notes that a member has all signatures of a clearing that counts here.
func (t *Tx) ToldClearing(id wire.Hash, device identity.PeerID) error {
	v, err := t.Clearing(id)
	if err != nil {
		return err
	}
	return t.saveClearing(id, v, v.Told(device))
}

// ReleaseClearing gives up waiting for the other members of a clearing, once its deadline has passed: for the owner to say. If all
// signatures turn up after all, it counts, and what was paid otherwise meanwhile is prepaid.
func (t *Tx) ReleaseClearing(id wire.Hash) (netting.Clearing, error) {
	v, err := t.Clearing(id)
	if err != nil {
		return v.Clearing, err
	}
	if t.at <= v.Terms.Deadline {
		return v.Clearing, fmt.Errorf("release clearing %s: %w: its members may still sign", id.Short(), ErrExpired)
	}
	c, err := v.Release()
	if err != nil {
		return v.Clearing, fmt.Errorf("release clearing %s: %w", id.Short(), err)
	}
	return c, t.saveClearing(id, v, c)
}

// hear opens words and adds them.
func hear(c netting.Clearing, words []netting.Word) (netting.Clearing, error) {
	if len(words) > 2*netting.MaxDevices {
		return c, fmt.Errorf("%d words on a clearing: %w", len(words), wire.ErrTooLarge)
	}
	for _, w := range words {
		said, err := netting.Open(c.Terms, w)
		if err != nil {
			return c, err
		}
		c = c.Hear(said)
	}
	return c, nil
}

// saveClearing keeps a clearing as it is now, sets aside or frees its amount, and books it when it has come to count.
func (t *Tx) saveClearing(id wire.Hash, was Netted, is netting.Clearing) error {
	return t.saveClearingBy(id, was, is, t.markLanes)
}

// saveClearingBy is saveClearing; mark counts what is booked on a channel for lanes.
func (t *Tx) saveClearingBy(id wire.Hash, was Netted, is netting.Clearing, mark func(*Netted, ledger.Channel) error) error {
	next := Netted{Clearing: is, Lanes: was.Lanes, Self: was.Self, Also: was.Also}
	if next.State != was.State {
		next.Changed = t.now.UnixMilli()
	}
	amount, err := ledger.Signed(is.Terms.Amount)
	if err != nil {
		return err
	}
	for _, l := range next.legs() {
		k := key(string(asidePrefix(l.role, is.Terms.Unit, l.peer)), id[:])
		if is.State.Reserves() {
			err = t.own.Set(k, be8(uint64(amount)))
		} else {
			err = t.own.Delete(k)
		}
		if err == nil && is.State == netting.Cleared && was.State != netting.Cleared {
			err = t.clear(&next, id, l, amount, mark)
		}
		if err != nil {
			return fmt.Errorf("clearing %s: %w", id.Short(), err)
		}
	}
	todo := key("nw/", id[:])
	if is.State.Reserves() || len(is.Untold(was.Self)) > 0 {
		err = t.own.Set(todo, nil)
	} else {
		err = t.own.Delete(todo)
	}
	return errors.Join(err, save(t.own, clearingKey(id), next))
}

// clearEntry is the entry of one leg of a clearing.
func clearEntry(id wire.Hash, t netting.Terms, l leg, amount int64) ledger.Entry {
	other := ledger.Account{Kind: ledger.Clearing}
	postings := pair(t.Unit, other, ledger.Account{Kind: ledger.Receivable, Peer: l.peer}, amount)
	if l.role == ledger.AsRenter {
		postings = pair(t.Unit, ledger.Account{Kind: ledger.Payable, Peer: l.peer}, other, amount)
	}
	return ledger.Entry{
		ID: ledger.EntryID(ledger.KindNetting, id, l.channel.ID()), Kind: ledger.KindNetting, Peer: l.peer, Postings: postings, Refs: hashes(id),
		Note: clearingNote + id.Short(),
	}
}

// clear books one leg of a clearing that counts. Like a payment it settles the oldest lanes first.
func (t *Tx) clear(v *Netted, id wire.Hash, l leg, amount int64, mark func(*Netted, ledger.Channel) error) error {
	added, err := t.post(clearEntry(id, v.Terms, l, amount))
	if err != nil || !added {
		return err
	}
	err = t.change(l.role, v.Terms.Unit, l.peer, func(a *Account) error {
		total, err := money.Add(a.Settled, v.Terms.Amount)
		if err != nil {
			return err
		}
		a.Settled, a.LastPaid = total, t.now.UnixMilli()
		return a.owe(-amount)
	})
	if err == nil {
		err = mark(v, l.channel)
	}
	if err != nil {
		return err
	}
	return t.setDue(l.role, v.Terms.Unit, l.peer)
}

// markLanes counts the clearing's amount for the oldest lanes of a channel that are not settled, at most voucher.MaxLanes of them.
func (t *Tx) markLanes(v *Netted, c ledger.Channel) error {
	lanes, err := t.Lanes(c.Peer(t.b.self))
	if err != nil {
		return err
	}
	slices.SortStableFunc(lanes, func(a, b Lane) int { return cmp.Compare(a.Opened, b.Opened) })
	left := v.Terms.Amount
	for _, l := range lanes {
		if !c.Covers(l.Channel) || l.Owed() <= l.Settled {
			continue
		}
		if left == 0 || len(v.Lanes) == 2*voucher.MaxLanes {
			return nil
		}
		part := min(left, l.Owed()-l.Settled)
		left -= part
		l.Settled += part
		v.Lanes = append(v.Lanes, voucher.LaneAmount{Lane: l.Lane, Amount: l.Settled})
		if err := t.saveLane(&l); err != nil {
			return err
		}
	}
	return nil
}
