package books

import (
	"errors"
	"fmt"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Hold sets amount of a channel aside under id, for something that is no lane yet, such as a bid; a lane's own hold comes with
// [Tx.OpenLane]. As provider it checks the renter's credit: the error is a [*ledger.CreditError] when it does not fit. A repeat changes
// nothing; the same id with another amount or channel is ErrConflict.
func (t *Tx) Hold(id wire.Hash, c ledger.Channel, amount money.Micro) error {
	role, err := t.role(c)
	if err != nil {
		return fmt.Errorf("hold %s: %w", id.Short(), err)
	}
	have, ok, err := load[Held](t.own, key("hold/", id[:]))
	if err != nil {
		return err
	}
	if ok {
		if have.Channel != c || have.Amount != amount {
			return fmt.Errorf("hold %s: %w: %v", id.Short(), ErrConflict, have.Amount)
		}
		return nil
	}
	signed, err := ledger.Signed(amount)
	if err != nil || amount == 0 {
		return fmt.Errorf("hold %s of %v: %w", id.Short(), amount, money.ErrOverflow)
	}
	if err := t.checkNew(role, c.Unit, c.Peer(t.b.self)); err != nil {
		return fmt.Errorf("hold %s: %w", id.Short(), err)
	}
	if role == ledger.AsProvider {
		if err := t.CheckCredit(c.Renter, c.Unit, amount); err != nil {
			return fmt.Errorf("hold %s: %w", id.Short(), err)
		}
	}
	return t.moveHold(id, Held{Channel: c, Amount: amount, Left: amount}, role, ledger.KindHold, hold(role, c, signed), 0, amount)
}

// VoidHold gives back what is left of a hold. A repeat, or a hold that was posted, changes nothing.
func (t *Tx) VoidHold(id wire.Hash) error { return t.endHold(id, 0, ledger.KindVoid) }

// PostHold makes amount of a hold a debt without a voucher, as for a sealed bid that was never opened, and gives back the rest. It is
// ErrConflict for more than is left.
func (t *Tx) PostHold(id wire.Hash, amount money.Micro) error {
	if amount == 0 {
		return t.VoidHold(id)
	}
	return t.endHold(id, amount, ledger.KindPost)
}

// Forfeit makes amount of a channel a debt under id without a voucher and without a hold that is set aside before, as renter: a bid in a
// sealed auction agreed to it already, so a dispute that was opened meanwhile does not stand in its way. A repeat changes nothing; the same
// id with another amount or channel is ErrConflict.
func (t *Tx) Forfeit(id wire.Hash, c ledger.Channel, amount money.Micro) error {
	role, err := t.role(c)
	if err != nil || role != ledger.AsRenter {
		return errors.Join(err, fmt.Errorf("forfeit %s: only its renter owes it: %w", id.Short(), ErrConflict))
	}
	have, ok, err := load[Held](t.own, key("hold/", id[:]))
	if err != nil {
		return err
	}
	if ok && (have.Channel != c || have.Amount != amount) {
		return fmt.Errorf("forfeit %s: %w: %v", id.Short(), ErrConflict, have.Amount)
	}
	signed, err := ledger.Signed(amount)
	if err != nil || amount == 0 {
		return fmt.Errorf("forfeit %s of %v: %w", id.Short(), amount, money.ErrOverflow)
	}
	if !ok {
		h := Held{Channel: c, Amount: amount, Left: amount}
		if err := t.moveHold(id, h, role, ledger.KindHold, hold(role, c, signed), 0, amount); err != nil {
			return err
		}
	}
	return t.PostHold(id, amount)
}

func (t *Tx) endHold(id wire.Hash, amount money.Micro, kind ledger.EntryKind) error {
	h, ok, err := load[Held](t.own, key("hold/", id[:]))
	if err != nil {
		return err
	}
	if !ok {
		return fmt.Errorf("%s of hold %s: %w", kind, id.Short(), ErrNoLane)
	}
	if done, err := raw(t.own, t.entryKey(kind, id)); err != nil || done != nil {
		return err
	}
	if kind == ledger.KindVoid && h.Left == 0 {
		return nil
	}
	if amount > h.Left {
		return fmt.Errorf("%s %v of hold %s: %w: %v are left", kind, amount, id.Short(), ErrConflict, h.Left)
	}
	role, err := t.role(h.Channel)
	if err != nil {
		return err
	}
	posted, err := ledger.Signed(amount)
	if err != nil {
		return err
	}
	back, err := ledger.Signed(h.Left)
	if err != nil {
		return err
	}
	was := h.Left
	h.Left = 0
	return t.moveHold(id, h, role, kind, append(debt(role, h.Channel, posted), hold(role, h.Channel, -back)...), was, 0)
}

func (t *Tx) entryKey(kind ledger.EntryKind, id wire.Hash) []byte {
	e := ledger.EntryID(kind, id)
	return key("id/", e[:])
}

// moveHold writes a hold's record with the entry that changed it.
func (t *Tx) moveHold(id wire.Hash, h Held, role ledger.Role, kind ledger.EntryKind, postings []ledger.Posting, was, is money.Micro) error {
	peer := h.Channel.Peer(t.b.self)
	var owed int64
	for _, p := range postings {
		switch p.Account.Kind {
		case ledger.Receivable:
			owed = p.Amount
		case ledger.Payable:
			owed = -p.Amount
		}
	}
	err := t.change(role, h.Channel.Unit, peer, func(a *Account) error {
		if err := a.owe(owed); err != nil {
			return err
		}
		return a.reopen(was, is)
	})
	if err != nil {
		return fmt.Errorf("%s %s: %w", kind, id.Short(), err)
	}
	_, err = t.post(ledger.Entry{ID: ledger.EntryID(kind, id), Kind: kind, Peer: peer, Postings: postings, Refs: hashes(id)})
	if err != nil {
		return err
	}
	return save(t.own, key("hold/", id[:]), h)
}
