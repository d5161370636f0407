package books

import (
	"errors"
	"fmt"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/history"
	"github.com/gpufair/gpufair/ledger/meter"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

func hashes(h ...wire.Hash) []wire.Hash { return h }

func laneHash(l ledger.Lane) wire.Hash { return wire.Hash(l) }

// amountHash makes an amount a part of an entry's id.
func amountHash(m money.Micro) wire.Hash { return wire.Sum("gpufair/amount/1", be8(uint64(m))) }

// checkCheckpoint checks that a record carries a checkpoint that its device signed for its own log.
func checkCheckpoint(note []byte, device identity.PeerID) error {
	if _, err := history.Open(note, device); err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	return nil
}

// Accepted is what became of a voucher.
type Accepted struct {
	Lane    Lane
	Added   money.Micro // to what the lane owes; 0 for a repeat, or beyond the final charge
	Already bool        // it was here
	Receipt []byte      // to send back once the transaction is committed; nil for the opening voucher
}

// AcceptVoucher is the provider's taking of a voucher (spec: ledger, Model): it judges it by the lane and by the renter's credit over
// all lanes, books what it adds, and signs the receipt. evidence is the hash of what the job used in the interval. The same bytes again
// give the same receipt and add nothing. Errors wrap those of ledger/voucher and [*ledger.CreditError]; a proof of equivocation is kept
// even when the transaction fails by that error.
func (t *Tx) AcceptVoucher(envelope []byte, evidence wire.Hash) (Accepted, error) {
	return t.acceptVoucher(envelope, evidence, false)
}

// AcceptDisputed is [Tx.AcceptVoucher] on a lane that is frozen, for the exchange of what both sides have: what the renter signed before
// the dispute is still its promise.
func (t *Tx) AcceptDisputed(envelope []byte) (Accepted, error) {
	return t.acceptVoucher(envelope, wire.Hash{}, true)
}

func (t *Tx) acceptVoucher(envelope []byte, evidence wire.Hash, exchange bool) (Accepted, error) {
	v, err := voucher.Open(envelope)
	if err != nil {
		return Accepted{}, err
	}
	l, _, err := t.laneAs(v.Lane, ledger.AsProvider)
	if err != nil {
		return Accepted{}, fmt.Errorf("accept voucher: %w", err)
	}
	rules, err := t.rules(l)
	if err != nil {
		return Accepted{}, fmt.Errorf("accept voucher: %w", err)
	}
	var unread error
	verdict, err := rules.Next(v, func(seq uint64) []byte {
		b, err := raw(t.own, voucherKey(l.Lane, seq))
		unread = errors.Join(unread, err)
		return b
	})
	var two *voucher.Equivocation
	if errors.As(err, &two) {
		err = errors.Join(err, keepFraud(t.own, two))
	}
	if err := errors.Join(err, unread); err != nil {
		return Accepted{}, err
	}
	if verdict == voucher.Already {
		receipt, err := raw(t.own, receiptKey(v.Hash))
		return Accepted{Lane: l, Already: true, Receipt: receipt}, err
	}
	if l.Frozen() && !exchange || l.Agreed {
		return Accepted{}, fmt.Errorf("voucher %d of lane %s: %w", v.Seq, v.Lane.Short(), ErrDisputed)
	}
	if err := t.stillActs(rules.Powers); err != nil {
		return Accepted{}, fmt.Errorf("voucher %d of lane %s: %w", v.Seq, v.Lane.Short(), err)
	}
	head, err := t.sight(v.Checkpoint, v.Header)
	if err != nil {
		return Accepted{}, fmt.Errorf("voucher %d of lane %s: %w", v.Seq, v.Lane.Short(), err)
	}
	if err := t.checkVoucherCredit(l, v); err != nil {
		return Accepted{}, fmt.Errorf("voucher %d of lane %s: %w", v.Seq, v.Lane.Short(), err)
	}
	was := l.Owed()
	if err := errors.Join(t.raise(&l, ledger.AsProvider, v), t.keepSegments(l, v)); err != nil {
		return Accepted{}, err
	}
	receipt, err := t.receipt(&l, v, evidence)
	return Accepted{Lane: l, Added: l.Owed() - was, Receipt: receipt}, errors.Join(err, t.remember(head, v.Delegation), t.askAtEnd(l))
}

// rules gathers what the acceptance rules need of a lane.
func (r *Reader) rules(l Lane) (voucher.Lane, error) {
	last, err := raw(r.own, voucherKey(l.Lane, l.Seq))
	if err != nil {
		return voucher.Lane{}, err
	}
	d, err := r.delegation(l.Proof)
	if err != nil {
		return voucher.Lane{}, err
	}
	return voucher.Lane{
		Channel: l.Channel, Lane: l.Lane, Device: l.Device, Powers: d, Proof: l.Proof,
		Last: &voucher.Signed{Voucher: voucher.Voucher{Seq: l.Seq, Amount: l.Amount, Quantity: l.Quantity}, Raw: last, Hash: l.Voucher},
	}, nil
}

// raised is l after v.
func (l Lane) raised(v voucher.Signed) Lane {
	l.HoldLeft -= min(l.HoldLeft, v.Amount-l.Amount)
	l.Seq, l.Amount, l.Quantity, l.Voucher, l.Receipt = v.Seq, v.Amount, v.Quantity, v.Hash, wire.Hash{}
	return l
}

// checkVoucherCredit checks that what v adds to the renter's exposure fits its credit. What was metered or held is part of the exposure
// already, so a voucher for that always fits: a promise for work done is never refused for want of credit.
func (t *Tx) checkVoucherCredit(l Lane, v voucher.Signed) error {
	next := l.raised(v)
	was, err := money.Add(l.Owed(), l.Open())
	if err != nil {
		return err
	}
	is, err := money.Add(next.Owed(), next.Open())
	if err != nil {
		return err
	}
	return t.CheckCredit(l.Channel.Renter, l.Channel.Unit, is-min(is, was))
}

// raise books v on its lane.
func (t *Tx) raise(l *Lane, role ledger.Role, v voucher.Signed) error {
	next := l.raised(v)
	added, err := ledger.Signed(next.Owed() - l.Owed())
	if err != nil {
		return err
	}
	used, err := ledger.Signed(l.HoldLeft - next.HoldLeft)
	if err != nil {
		return err
	}
	peer := l.Channel.Peer(t.b.self)
	postings := append(debt(role, l.Channel, added), hold(role, l.Channel, -used)...)
	if len(postings) > 0 { // none for a voucher beyond the final charge: the record is kept, and owes nothing more
		_, err = t.post(ledger.Entry{
			ID: ledger.EntryID(ledger.KindUsage, v.Hash), Kind: ledger.KindUsage, Peer: peer, Lane: l.Lane, Postings: postings, Refs: hashes(v.Hash),
		})
		if err != nil {
			return err
		}
	}
	err = t.change(role, l.Channel.Unit, peer, func(a *Account) error {
		return errors.Join(a.owe(added), a.reopen(l.Open(), next.Open()), a.runs(*l, next))
	})
	if err != nil {
		return err
	}
	*l = next
	return errors.Join(t.keepVoucher(v), t.saveLane(l), t.indexDue(*l))
}

// receipt signs and keeps the receipt of v.
func (t *Tx) receipt(l *Lane, v voucher.Signed, evidence wire.Hash) ([]byte, error) {
	cp, err := t.Checkpoint()
	if err != nil {
		return nil, err
	}
	out, err := voucher.SignReceipt(t.b.config.Device, voucher.Receipt{Voucher: v.Hash, Checkpoint: cp, Evidence: evidence})
	if err != nil {
		return nil, err
	}
	l.Receipt, l.Receipts = identity.Hash(out), v.Seq
	return out, errors.Join(t.own.Set(receiptKey(v.Hash), out), t.saveLane(l))
}

// SignVoucher is the renter's promise that a lane has come to amount in all, computed from segments ([meter.Agree] gives both). The
// bytes may be sent once the transaction is committed. An amount that the newest voucher promises already gives that voucher again.
// Errors: [voucher.ErrCap] over this device's delegation, [voucher.ErrFinal] over the final charge of a lane that ended.
func (t *Tx) SignVoucher(id ledger.Lane, amount money.Micro, segs []meter.Segment) ([]byte, error) {
	l, role, err := t.laneAs(id, ledger.AsRenter)
	if err != nil {
		return nil, fmt.Errorf("sign voucher: %w", err)
	}
	limit, err := t.laneCap(l)
	switch {
	case err != nil:
		return nil, fmt.Errorf("sign voucher: %w", err)
	case l.Device != t.b.config.Device.Peer():
		return nil, fmt.Errorf("sign voucher for lane %s: %w: %s", id.Short(), voucher.ErrSigner, l.Device)
	case amount <= l.Amount:
		return raw(t.own, voucherKey(id, l.Seq))
	case l.Frozen():
		return nil, fmt.Errorf("sign voucher of %v for lane %s: %w", amount, id.Short(), ErrDisputed)
	case amount > limit:
		return nil, fmt.Errorf("sign voucher of %v for lane %s: %w", amount, id.Short(), voucher.ErrCap)
	case l.Closed() && amount > *l.Final:
		return nil, fmt.Errorf("sign voucher of %v for lane %s: %w: %v", amount, id.Short(), voucher.ErrFinal, *l.Final)
	}
	if err := t.certain(l); err != nil {
		return nil, fmt.Errorf("sign voucher: %w", err)
	}
	cp, err := t.Checkpoint()
	if err != nil {
		return nil, err
	}
	quantity, err := meter.Quantity(segs)
	if err != nil {
		return nil, err
	}
	digest, err := meter.Hash(segs)
	if err != nil {
		return nil, err
	}
	v, err := voucher.Sign(t.b.config.Device, voucher.Voucher{
		Channel: l.Channel, Lane: id, Seq: t.nextSeq(l), Amount: amount, Quantity: max(quantity, l.Quantity), Resource: meter.Resource,
		Segments: digest, Prev: l.Voucher, Checkpoint: cp, Delegation: l.Proof,
	})
	if err != nil {
		return nil, err
	}
	if err := t.raise(&l, role, v); err != nil {
		return nil, err
	}
	return v.Raw, save(t.own, key("seg/", id[:]), segments{Voucher: v.Hash, Segments: segs})
}

// RecordReceipt is the renter's taking of a receipt for one of its vouchers. The provider's delegation must have been kept before
// ([Tx.KeepDelegation]), else the error wraps ErrDelegation.
func (t *Tx) RecordReceipt(envelope []byte) (Lane, error) {
	r, err := voucher.OpenReceipt(envelope)
	if err != nil {
		return Lane{}, err
	}
	at, ok, err := load[place](t.own, key("vh/", r.Voucher[:]))
	if err != nil {
		return Lane{}, err
	}
	if !ok {
		return Lane{}, fmt.Errorf("receipt for voucher %s: %w", r.Voucher.Short(), ErrNoLane)
	}
	l, _, err := t.laneAs(at.Lane, ledger.AsRenter)
	if err != nil {
		return l, fmt.Errorf("receipt: %w", err)
	}
	if err := t.checkReceipt(l, r); err != nil {
		return l, fmt.Errorf("receipt for voucher %d of lane %s: %w", at.Seq, at.Lane.Short(), err)
	}
	if have, err := raw(t.own, receiptKey(r.Voucher)); err != nil || have != nil {
		return l, err
	}
	head, err := t.sight(r.Checkpoint, r.Header)
	if err != nil {
		return l, fmt.Errorf("receipt for voucher %d of lane %s: %w", at.Seq, at.Lane.Short(), err)
	}
	l.Receipts = max(l.Receipts, at.Seq)
	if r.Voucher == l.Voucher {
		l.Receipt = identity.Hash(envelope)
	}
	return l, errors.Join(t.own.Set(receiptKey(r.Voucher), envelope), t.saveLane(&l), t.remember(head, r.Delegation), t.askAtEnd(l))
}

// checkReceipt checks that r is by a device of the lane's provider, with a checkpoint of that device's log.
func (r *Reader) checkReceipt(l Lane, got voucher.Receipt) error {
	if err := r.checkReceiptSigner(l, got); err != nil {
		return err
	}
	return checkCheckpoint(got.Checkpoint, got.Device)
}

func (r *Reader) checkReceiptSigner(l Lane, got voucher.Receipt) error {
	if got.Account != l.Channel.Provider {
		return fmt.Errorf("%w: by account %s", identity.ErrSigner, got.Account.Short())
	}
	d, err := r.delegation(got.Delegation)
	if err != nil {
		return err
	}
	return d.Allows(got.Header, identity.PowerProvide)
}
