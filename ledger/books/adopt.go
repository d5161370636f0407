package books

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/proof"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// LaneCopy is what one side keeps of a lane, as it gives it to the other side that lost it. Every promise in it is signed; what is not
// signed (rate, devices, final charge) can only make the lane owe less than its vouchers say, and times move no money. Keys above 6 came
// with the second version of the conversation.
type LaneCopy struct {
	Vouchers    [][]byte     `cbor:"1,keyasint"`           // the opening one, the last with a receipt, the newest; rising
	Receipt     []byte       `cbor:"2,keyasint,omitempty"` // of the last with a receipt
	Delegations [][]byte     `cbor:"3,keyasint"`           // that they name
	Rate        money.Rate   `cbor:"4,keyasint"`
	Devices     uint32       `cbor:"5,keyasint"`
	Final       *money.Micro `cbor:"6,keyasint,omitempty"` // charge with which it ended there

	Opened  int64              `cbor:"7,keyasint,omitempty"`  // Unix milliseconds, there
	Ended   int64              `cbor:"8,keyasint,omitempty"`  // Unix milliseconds, there
	Records []proof.Attachment `cbor:"9,keyasint,omitempty"`  // of another wing: what was sold, and how it ended
	Dispute *DisputeCopy       `cbor:"10,keyasint,omitempty"` // about it
}

// Limits of a copy.
const (
	maxCopyVouchers    = 3
	maxCopyDelegations = 8
	maxCopyRecords     = 4
	maxCopyRecord      = 8 << 10 // bytes
	maxDelegation      = 1 << 10 // bytes
)

// First is the copy of the first version of the conversation.
func (c LaneCopy) First() LaneCopy {
	c.Opened, c.Ended, c.Records, c.Dispute = 0, 0, nil, nil
	return c
}

// Lane is the lane of a copy, zero if it can't be read.
func (c LaneCopy) Lane() (id ledger.Lane) {
	if len(c.Vouchers) == 0 {
		return id
	}
	v, err := voucher.Open(c.Vouchers[0])
	if err != nil {
		return id
	}
	return v.Lane
}

// ErrCopy says that what a peer gave back is not what a lane or a settlement of ours can be.
var ErrCopy = errors.New("not a record of ours")

// Adopted is what became of a copy.
type Adopted struct {
	Lane    ledger.Lane
	Opened  bool // the lane was not here
	Changed bool // something was lost and is back
}

// adoption is one copy on its way in.
type adoption struct {
	t           *Tx
	copy        LaneCopy
	terms       *Terms
	own         bool
	role        ledger.Role
	lane        Lane
	opened      bool // it was not here
	changed     bool
	delegations map[wire.Hash][]byte
	vouchers    []voucher.Signed
}

// AdoptLane takes back what peer has of a lane: its newest voucher, after every check that it had to pass when it was signed, and the
// receipt, its dispute and its end. A peer can give back only what was signed, and nothing falls by it but by a signature of this side: a
// peer that lies can keep back at most what it alone has. terms are what the copy's records say, as the caller read them; nil: nothing, and
// then a lane that is not here is opened without a hold. Adopting what is here already changes nothing. A lane that is not here and of another
// device of this account stays out: [*SisterError].
// Errors wrap ErrCopy or say which check failed; then nothing was written.
func (t *Tx) AdoptLane(peer identity.AccountID, c LaneCopy, terms *Terms) (Adopted, error) {
	return t.adoptLane(peer, c, terms, false)
}

// adoptLane is AdoptLane; own says that the copy is from this side's own ledger.
func (t *Tx) adoptLane(peer identity.AccountID, c LaneCopy, terms *Terms, own bool) (Adopted, error) {
	a := &adoption{t: t, copy: c, terms: terms, own: own, delegations: map[wire.Hash][]byte{}}
	if err := a.open(peer); err != nil {
		return Adopted{}, fmt.Errorf("adopt lane: %w", err)
	}
	if a.signedTerms() != nil {
		a.terms = nil // as if it had given none
	}
	id := a.vouchers[0].Lane
	err := t.txn.Try(func() error {
		for _, step := range []func() error{a.find, a.raise, a.receipt, a.keepTerms, a.end, a.dispute, a.want} {
			if err := step(); err != nil {
				return err
			}
		}
		return t.own.Delete(unsureKey(id))
	})
	var two *voucher.Equivocation
	if errors.As(err, &two) {
		err = errors.Join(err, keepFraud(t.own, two))
	}
	if err != nil {
		return Adopted{}, fmt.Errorf("adopt lane %s: %w", id.Short(), err)
	}
	return Adopted{Lane: id, Opened: a.opened, Changed: a.changed}, nil
}

// open reads the records: all of one lane, between peer and this account.
func (a *adoption) open(peer identity.AccountID) error {
	if n := len(a.copy.Vouchers); n == 0 || n > maxCopyVouchers || len(a.copy.Delegations) > maxCopyDelegations || len(a.copy.Records) > maxCopyRecords {
		return fmt.Errorf("%w: %d vouchers, %d delegations, %d records", ErrCopy, n, len(a.copy.Delegations), len(a.copy.Records))
	}
	for _, raw := range a.copy.Delegations {
		if len(raw) > maxDelegation {
			return fmt.Errorf("%w: delegation of %d bytes", ErrCopy, len(raw))
		}
		a.delegations[identity.Hash(raw)] = raw
	}
	for i, raw := range a.copy.Vouchers {
		v, err := voucher.Open(raw)
		if err != nil {
			return err
		}
		if i == 0 && v.Seq != 0 || i > 0 && (v.Seq <= a.vouchers[i-1].Seq || v.Lane != a.vouchers[0].Lane || v.Channel != a.vouchers[0].Channel) {
			return fmt.Errorf("%w: voucher %d in place %d", ErrCopy, v.Seq, i)
		}
		a.vouchers = append(a.vouchers, v)
	}
	channel := a.vouchers[0].Channel
	role, err := a.t.role(channel)
	if err != nil {
		return err
	}
	if channel.Peer(a.t.b.self) != peer {
		return fmt.Errorf("%w: it is with account %s", ErrCopy, channel.Peer(a.t.b.self).Short())
	}
	a.role = role
	return nil
}

// keep stores a delegation that a record names, from the copy.
func (a *adoption) keep(h wire.Hash) error {
	have, err := a.t.HasDelegation(h)
	if err != nil || have || h == a.t.b.config.Device.DelegationHash() {
		return err
	}
	raw := a.delegations[h]
	if raw == nil {
		return fmt.Errorf("%w: %s", ErrDelegation, h.Short())
	}
	_, _, err = a.t.KeepDelegation(raw)
	return err
}

// find gives the lane that is here, or opens it by the copy's opening voucher.
func (a *adoption) find() error {
	first := a.vouchers[0]
	have, ok, err := load[Lane](a.t.own, laneKey(first.Lane))
	if err != nil {
		return err
	}
	if ok {
		a.lane = have
		return a.judge(first)
	}
	if err := a.ours(first); err != nil {
		return err
	}
	if err := a.keep(first.Delegation); err != nil {
		return err
	}
	d, err := a.t.delegation(first.Delegation)
	if err != nil {
		return err
	}
	rules := voucher.Lane{Channel: first.Channel, Lane: first.Lane, Device: first.Device, Powers: d, Proof: first.Delegation}
	if _, err := rules.Next(first, nil); err != nil {
		return err
	}
	if err := checkCheckpoint(first.Checkpoint, first.Device); err != nil {
		return err
	}
	if seen, _, err := load[uint32](a.t.own, epochKey(first.Device)); err != nil {
		return err
	} else if first.Channel.Epoch > seen && a.role == ledger.AsProvider {
		if err := save(a.t.own, epochKey(first.Device), first.Channel.Epoch); err != nil {
			return err
		}
	}
	a.opened, a.changed = true, true
	a.lane, err = a.t.openLane(a.role, a.opening(first), first)
	a.lane.Restored, a.lane.Opened = true, a.time(a.copy.Opened)
	return errors.Join(err, a.t.saveLane(&a.lane), a.found())
}

// judge checks a voucher of a lane that is here.
func (a *adoption) judge(v voucher.Signed) error {
	_, err := a.next(v)
	if errors.Is(err, voucher.ErrOld) {
		return nil
	}
	return err
}

func (a *adoption) next(v voucher.Signed) (voucher.Verdict, error) {
	rules, err := a.t.rules(a.lane)
	if err != nil {
		return 0, err
	}
	var unread error
	verdict, err := rules.Next(v, func(seq uint64) []byte {
		b, err := raw(a.t.own, voucherKey(a.lane.Lane, seq))
		unread = errors.Join(unread, err)
		return b
	})
	return verdict, errors.Join(err, unread)
}

// raise books the vouchers that are newer than what is here. Credit is not asked: they were taken once.
func (a *adoption) raise() error {
	if err := a.reopenFinal(); err != nil {
		return err
	}
	for _, v := range a.vouchers[1:] {
		verdict, err := a.next(v)
		switch {
		case errors.Is(err, voucher.ErrOld) || err == nil && verdict == voucher.Already:
			continue
		case err != nil:
			return err
		}
		if err := checkCheckpoint(v.Checkpoint, v.Device); err != nil {
			return err
		}
		if err := a.t.raise(&a.lane, a.role, v); err != nil {
			return err
		}
		a.changed = true
	}
	return nil
}

// reopenFinal raises the final charge of a lane that was ended after the restore, before its newest voucher was known: to what that
// promises, or less if the other side ended it with less. What both knew before the restore stays.
func (a *adoption) reopenFinal() error {
	mark, marked, err := a.t.unsure(a.lane.Lane)
	if err != nil || !marked || !a.lane.Closed() || a.lane.Agreed {
		return err
	}
	to := a.vouchers[len(a.vouchers)-1].Amount
	for _, most := range []*money.Micro{a.copy.Final, mark.Final} {
		if most != nil {
			to = min(to, *most)
		}
	}
	was := a.lane
	if to <= *was.Final {
		return nil
	}
	a.lane.Final, a.changed = &to, true
	return a.correct(was)
}

// correct books that a lane owes more or less than it did, by its final charge.
func (a *adoption) correct(was Lane) error {
	old, err1 := ledger.Signed(was.Owed())
	now, err2 := ledger.Signed(a.lane.Owed())
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	peer, c := a.lane.Channel.Peer(a.t.b.self), a.lane.Channel
	err := a.t.change(a.role, c.Unit, peer, func(acct *Account) error {
		return errors.Join(acct.owe(now-old), acct.reopen(was.Open(), a.lane.Open()), acct.runs(was, a.lane))
	})
	if err != nil {
		return err
	}
	if now != old {
		_, err = a.t.post(ledger.Entry{
			ID: ledger.EntryID(ledger.KindCorrection, laneHash(a.lane.Lane), amountHash(*a.lane.Final), a.lane.Voucher), Kind: ledger.KindCorrection,
			Peer: peer, Lane: a.lane.Lane, Postings: debt(a.role, c, now-old), Refs: hashes(a.lane.Voucher),
		})
		if err != nil {
			return err
		}
	}
	return errors.Join(a.t.saveLane(&a.lane), a.t.indexDue(a.lane))
}

// receipt takes the copy's receipt, if it is of a voucher that is here; as provider it is this side's own word.
func (a *adoption) receipt() error {
	if len(a.copy.Receipt) == 0 {
		return nil
	}
	r, err := voucher.OpenReceipt(a.copy.Receipt)
	if err != nil {
		return err
	}
	at, ok, err := load[place](a.t.own, key("vh/", r.Voucher[:]))
	if err != nil || !ok || at.Lane != a.lane.Lane {
		return err // of one that was kept back
	}
	if have, err := raw(a.t.own, receiptKey(r.Voucher)); err != nil || have != nil {
		return err
	}
	if err := a.keep(r.Delegation); err != nil {
		return err
	}
	if err := a.t.checkReceipt(a.lane, r); err != nil {
		return err
	}
	a.lane.Receipts, a.changed = max(a.lane.Receipts, at.Seq), true
	if r.Voucher == a.lane.Voucher {
		a.lane.Receipt = identity.Hash(a.copy.Receipt)
	}
	return errors.Join(a.t.own.Set(receiptKey(r.Voucher), a.copy.Receipt), a.t.saveLane(&a.lane))
}

// end ends a lane that no lease here knows of any more as the other side did: the provider may take less than was promised, and says so, now
// or in the end of the lease that it signed before; of the renter's word nothing is taken that this side's own signature does not bear out.
// A lane that is known here is its lease's to end, if no end of it was signed before.
func (a *adoption) end() error {
	mark, marked, err := a.t.unsure(a.lane.Lane)
	if err != nil {
		return err
	}
	stray, err := a.t.stray(a.lane.Lane)
	signed := a.terms != nil && a.terms.Charge != nil
	if err != nil || !a.opened && !stray && (!marked || mark.Final != nil || !a.lane.Closed() && !signed) {
		return err
	}
	final, ok := a.final()
	if !ok {
		return a.t.strayed(a.lane)
	}
	if err := a.t.own.Delete(strayKey(a.lane.Lane)); err != nil || a.lane.Closed() && final >= *a.lane.Final {
		return err
	}
	a.lane, err = a.t.closeLane(a.lane.Lane, final, a.time(a.copy.Ended))
	a.changed = true
	return err
}

// final is the charge with which the lane ended, if it did.
func (a *adoption) final() (money.Micro, bool) {
	given, signed := a.copy.Final, (*money.Micro)(nil)
	if a.terms != nil {
		signed = a.terms.Charge
	}
	switch {
	case given == nil && signed == nil:
		return 0, false
	case a.own, a.role == ledger.AsRenter && given != nil:
		return *given, true
	case signed != nil:
		return *signed, true
	}
	return max(*given, a.lane.Owed()), true
}

// CopyLane is what this side has of a lane, for the other side.
func (r *Reader) CopyLane(l Lane) (LaneCopy, error) {
	c := LaneCopy{Rate: l.Rate, Devices: l.Devices, Final: l.Final, Opened: l.Opened, Ended: l.Ended}
	named := []wire.Hash{l.Proof}
	for _, seq := range []uint64{0, l.Receipts, l.Seq} {
		b, err := r.Voucher(l.Lane, seq)
		if err != nil {
			return c, err
		}
		if b == nil || len(c.Vouchers) > 0 && bytes.Equal(c.Vouchers[len(c.Vouchers)-1], b) {
			continue
		}
		c.Vouchers = append(c.Vouchers, b)
		if seq == 0 || seq != l.Receipts {
			continue
		}
		if c.Receipt, err = r.Receipt(identity.Hash(b)); err != nil {
			return c, err
		}
		if c.Receipt == nil {
			continue
		}
		got, err := voucher.OpenReceipt(c.Receipt)
		if err != nil {
			return c, fmt.Errorf("receipt of lane %s: %w: %w", l.Lane.Short(), ErrForged, err)
		}
		named = append(named, got.Delegation)
	}
	kept, _, err := load[keptTerms](r.own, termsKey(l.Lane))
	if err != nil {
		return c, err
	}
	c.Records = kept.Records
	if named, err = r.copyDispute(l, &c, append(named, signersOf(c.Records)...)); err != nil {
		return c, err
	}
	c.Delegations, err = r.delegations(named)
	return c, err
}

// delegations gives kept delegations, each once.
func (r *Reader) delegations(named []wire.Hash) (out [][]byte, err error) {
	for i, h := range named {
		if slices.Contains(named[:i], h) {
			continue
		}
		b := r.b.config.Device.Delegation()
		if h != r.b.config.Device.DelegationHash() {
			if b, err = raw(r.own, delegationKey(h)); err != nil {
				return nil, err
			}
		}
		if b != nil {
			out = append(out, b)
		}
	}
	return out, nil
}

// receiptDevice is the device of a lane's last receipt, zero if there is none.
func (r *Reader) receiptDevice(l Lane) (identity.PeerID, error) {
	got, err := r.lastReceipt(l)
	return got.Device, err
}

// lastReceipt is a lane's last receipt, zero if there is none.
func (r *Reader) lastReceipt(l Lane) (got voucher.Receipt, err error) {
	v, err := r.Voucher(l.Lane, l.Receipts)
	if err != nil || v == nil {
		return got, err
	}
	b, err := r.Receipt(identity.Hash(v))
	if err != nil || b == nil {
		return got, err
	}
	if got, err = voucher.OpenReceipt(b); err != nil {
		return got, fmt.Errorf("receipt of lane %s: %w: %w", l.Lane.Short(), ErrForged, err)
	}
	return got, nil
}
