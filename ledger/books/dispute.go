package books

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

var (
	// ErrDisputed says that a lane is frozen by a dispute, or that nothing new is agreed on with an account while one is open.
	ErrDisputed = errors.New("a dispute is open")
	// ErrNoDispute says that a lane is not disputed.
	ErrNoDispute = errors.New("no dispute about this lease")
	// ErrRunning says that a lease has not ended.
	ErrRunning = errors.New("the lease has not ended")
)

// maxOpen bounds what another account may make open here, in milliseconds: 60 days from when its dispute came, whatever it says.
const maxOpen = 60 * 24 * 60 * 60 * 1000

// Dispute is a lane's dispute as both sides know it. Once a lane is disputed no voucher raises it any more, for ever.
type Dispute struct {
	Lane    ledger.Lane  `cbor:"1,keyasint"`
	Mine    []byte       `cbor:"2,keyasint,omitempty"` // as signed by this account
	Theirs  []byte       `cbor:"3,keyasint,omitempty"` // as signed by the other
	Until   int64        `cbor:"4,keyasint"`           // Unix milliseconds: open until then, if nothing is agreed before
	Told    bool         `cbor:"5,keyasint"`           // the other side has what this side has
	Offer   []byte       `cbor:"6,keyasint,omitempty"` // this side's proposed credit note
	Offered []byte       `cbor:"7,keyasint,omitempty"` // the other side's
	Note    []byte       `cbor:"8,keyasint,omitempty"` // the credit note that counts: the proposal
	Counter []byte       `cbor:"9,keyasint,omitempty"` // and the signature under it
	Agreed  *money.Micro `cbor:"10,keyasint"`          // what both agreed that the lane comes to
}

// Open reports whether d is open at now, Unix milliseconds.
func (d Dispute) Open(now int64) bool { return d.Agreed == nil && now < d.Until }

func disputeKey(l ledger.Lane) []byte { return key("dis/", l[:]) }

// Frozen reports whether the lane was ever disputed.
func (l Lane) Frozen() bool { return l.Disputed != 0 }

// Dispute gives a lane's dispute, or ErrNoDispute.
func (r *Reader) Dispute(lane ledger.Lane) (Dispute, error) {
	d, ok, err := load[Dispute](r.own, disputeKey(lane))
	if err == nil && !ok {
		err = fmt.Errorf("lane %s: %w", lane.Short(), ErrNoDispute)
	}
	return d, err
}

// EachDispute calls f with every dispute.
func (r *Reader) EachDispute(f func(Dispute) error) error {
	for p, err := range r.own.Iterate([]byte("dis/"), nil) {
		if err != nil {
			return err
		}
		var d Dispute
		if err := wire.UnmarshalStrict(p.Value, &d); err != nil {
			return fmt.Errorf("dispute %x: %w: %w", p.Key, ErrCorrupt, err)
		}
		if err := f(d); err != nil {
			return err
		}
	}
	return nil
}

// checkNew is ErrDisputed while a dispute with peer is open: nothing new is sold to it or bought from it (spec: ledger, Dispute). It is
// [identity.ErrTwoKeys] if nobody can tell which of two keys is peer's.
func (r *Reader) checkNew(role ledger.Role, u money.Unit, peer identity.AccountID) error {
	if err := r.oneKey(peer); err != nil {
		return err
	}
	a, err := r.Account(role, u, peer)
	if err == nil && r.at < a.DisputedUntil {
		err = fmt.Errorf("account %s: %w until %s, or until both agree", peer.Short(), ErrDisputed, when(a.DisputedUntil).Format("2006-01-02"))
	}
	return err
}

// OpenDispute opens this side's dispute about what a lane comes to, for at most so many milliseconds: it freezes the lane and signs the record.
// The bytes may be sent once the transaction is committed. A repeat gives the same bytes; with another reason, or once it is over, it is
// ErrConflict: what was signed stays. ErrNothingOwed before anything was promised.
func (t *Tx) OpenDispute(lane ledger.Lane, reason string, ms int64) ([]byte, error) {
	l, _, err := t.laneAs(lane, 0)
	if err != nil {
		return nil, fmt.Errorf("dispute: %w", err)
	}
	d, err := t.disputeOf(lane)
	if err != nil {
		return nil, err
	}
	switch {
	case d.Agreed != nil:
		return nil, fmt.Errorf("dispute lane %s: %w: both agreed on %v, which stands", lane.Short(), ErrConflict, *d.Agreed)
	case d.Mine != nil && !d.Open(t.at):
		return nil, fmt.Errorf("dispute lane %s: %w: its dispute is over, and %v stands", lane.Short(), ErrConflict, l.Owed())
	case d.Mine != nil:
		was, err := voucher.OpenDispute(d.Mine)
		if err == nil && was.Reason != reason {
			err = fmt.Errorf("dispute lane %s: %w: it is open already, and was signed with the reason %q", lane.Short(), ErrConflict, was.Reason)
		}
		return d.Mine, err
	case l.Owed() == 0:
		return nil, fmt.Errorf("dispute lane %s: nothing was promised on it: %w", lane.Short(), ErrNothingOwed)
	}
	out := voucher.Dispute{Lane: lane, Channel: l.Channel, Reason: reason, Time: t.now.UnixMilli(), Until: t.now.UnixMilli() + ms}
	if err := t.mutual(l, &out); err != nil {
		return nil, err
	}
	if out.Checkpoint, err = t.Checkpoint(); err != nil {
		return nil, err
	}
	if d.Mine, err = voucher.SignDispute(t.b.config.Device, out); err != nil {
		return nil, err
	}
	return d.Mine, t.freeze(l, d, out, d.Mine)
}

// disputeOf is [Reader.Dispute] with an empty one where there is none.
func (r *Reader) disputeOf(lane ledger.Lane) (Dispute, error) {
	d, err := r.Dispute(lane)
	if errors.Is(err, ErrNoDispute) {
		return Dispute{Lane: lane}, nil
	}
	return d, err
}

// mutual names the newest voucher that both sides signed.
func (r *Reader) mutual(l Lane, to *voucher.Dispute) error {
	b, err := r.Voucher(l.Lane, l.Receipts)
	if err != nil {
		return err
	}
	v, err := voucher.Open(b)
	if err != nil {
		return fmt.Errorf("lane %s: %w: %w", l.Lane.Short(), ErrForged, err)
	}
	to.Voucher, to.Amount = v.Hash, v.Amount
	receipt, err := r.Receipt(v.Hash)
	if receipt != nil {
		to.Receipt = identity.Hash(receipt)
	}
	return err
}

// RecordDispute takes the other side's dispute, which freezes the lane here, too. The signer's delegation must have been kept before. A
// repeat changes nothing.
func (t *Tx) RecordDispute(raw []byte) error {
	in, err := voucher.OpenDispute(raw)
	if err != nil {
		return err
	}
	l, _, err := t.laneAs(in.Lane, 0)
	if err != nil {
		return fmt.Errorf("dispute: %w", err)
	}
	if in.Channel != l.Channel || in.Account != l.Channel.Peer(t.b.self) {
		return fmt.Errorf("dispute of lane %s: %w: it is not the other side's", in.Lane.Short(), ErrRole)
	}
	if err := t.maySettle(l.Channel, in.Header, in.Delegation); err != nil {
		return fmt.Errorf("dispute of lane %s: %w", in.Lane.Short(), err)
	}
	d, err := t.disputeOf(in.Lane)
	if err != nil || d.Theirs != nil || d.Agreed != nil {
		return err
	}
	if err := t.settlerNotRevoked(in.Header, in.Delegation); err != nil {
		return fmt.Errorf("dispute of lane %s: %w", in.Lane.Short(), err)
	}
	d.Theirs = raw
	in.Until = min(in.Until, t.now.UnixMilli()+maxOpen)
	return t.freeze(l, d, in, raw)
}

// maySettle checks that an account let its device settle on a channel: to pay for a renter, to provide for a provider.
func (r *Reader) maySettle(c ledger.Channel, h identity.Header, delegation wire.Hash) error {
	d, err := r.delegation(delegation)
	if err != nil {
		return err
	}
	power := identity.PowerProvide
	if h.Account == c.Renter {
		power = identity.PowerPay
	}
	return d.Allows(h, power)
}

// freeze books a dispute. Its entry moves nothing: it puts the disputed amount, the reason and the record's hash into the log.
func (t *Tx) freeze(l Lane, d Dispute, in voucher.Dispute, record []byte) error {
	role, err := t.role(l.Channel)
	if err != nil {
		return err
	}
	peer := l.Channel.Peer(t.b.self)
	d.Until = max(d.Until, in.Until)
	if amount, err := ledger.Signed(l.Owed()); err != nil {
		return err
	} else if amount > 0 {
		_, err := t.post(ledger.Entry{
			ID: ledger.EntryID(ledger.KindDispute, identity.Hash(record)), Kind: ledger.KindDispute, Peer: peer, Lane: l.Lane,
			Postings: disputed(role, l.Channel, amount), Refs: hashes(identity.Hash(record)), Note: in.Reason,
		})
		if err != nil {
			return err
		}
	}
	l.Disputed = d.Until
	err = t.change(role, l.Channel.Unit, peer, func(a *Account) error {
		a.DisputedUntil = max(a.DisputedUntil, d.Until)
		return nil
	})
	if err != nil {
		return err
	}
	return errors.Join(save(t.own, disputeKey(l.Lane), d), t.saveLane(&l), t.indexDue(l))
}

// disputed gives postings that name an amount and move nothing.
func disputed(role ledger.Role, c ledger.Channel, amount int64) []ledger.Posting {
	a := ledger.Account{Kind: ledger.Receivable, Peer: c.Renter}
	if role == ledger.AsRenter {
		a = ledger.Account{Kind: ledger.Payable, Peer: c.Provider}
	}
	return pair(c.Unit, a, a, amount)
}

// Told keeps that the other side has this side's records of a dispute.
func (t *Tx) Told(lane ledger.Lane) error {
	d, err := t.Dispute(lane)
	if err != nil || d.Told {
		return err
	}
	d.Told = true
	return save(t.own, disputeKey(lane), d)
}

// OfferCredit signs this side's proposal to end a dispute: the lane, which has ended, comes to amount. If it is what the other side has
// proposed, that is signed instead, and counts. The bytes may be sent once the transaction is committed. The same amount again gives the
// same bytes.
func (t *Tx) OfferCredit(lane ledger.Lane, amount money.Micro) error {
	l, _, err := t.laneAs(lane, 0)
	if err != nil {
		return fmt.Errorf("credit note: %w", err)
	}
	d, err := t.Dispute(lane)
	if err != nil {
		return err
	}
	switch {
	case d.Agreed != nil && *d.Agreed == amount:
		return nil
	case !d.Open(t.at):
		return fmt.Errorf("credit note of lane %s: %w: the dispute is over, and %v stands", lane.Short(), ErrNoDispute, l.Owed())
	case !l.Closed():
		return fmt.Errorf("credit note of lane %s: %w", lane.Short(), ErrRunning)
	case amount > l.Owed():
		return fmt.Errorf("credit note of lane %s: %w: %v is more than the %v that were promised", lane.Short(), ErrDiffer, amount, l.Owed())
	}
	if theirs, err := noteOf(d.Offered); err != nil {
		return err
	} else if d.Offered != nil && theirs.Amount == amount {
		return t.agree(l, d)
	}
	if mine, err := noteOf(d.Offer); err != nil || d.Offer != nil && mine.Amount == amount {
		return err
	}
	d.Told = false
	d.Offer, err = voucher.SignCreditNote(t.b.config.Device, voucher.CreditNote{Lane: lane, Channel: l.Channel, Amount: amount, Time: t.now.UnixMilli()})
	if err != nil {
		return err
	}
	return save(t.own, disputeKey(lane), d)
}

// noteOf reads a kept note; the zero one for none.
func noteOf(raw []byte) (voucher.CreditNote, error) {
	if raw == nil {
		return voucher.CreditNote{}, nil
	}
	n, err := voucher.OpenCreditNote(raw)
	if err != nil {
		return n, fmt.Errorf("credit note: %w: %w", ErrForged, err)
	}
	return n, nil
}

// agree signs the other side's proposal, which is what this side wants, too.
func (t *Tx) agree(l Lane, d Dispute) error {
	n, err := noteOf(d.Offered)
	if err != nil {
		return err
	}
	n.Proposal = identity.Hash(d.Offered)
	counter, err := voucher.SignCreditNote(t.b.config.Device, n)
	if err != nil {
		return err
	}
	d.Note, d.Counter, d.Told = d.Offered, counter, false
	return t.settleDispute(l, d, n.Amount)
}

// RecordNote takes a credit note of the other side: a proposal, which is signed at once if this side has proposed the same amount, or the
// signature under this side's proposal. The signer's delegation must have been kept before. A repeat changes nothing.
func (t *Tx) RecordNote(raw []byte) error {
	n, err := voucher.OpenCreditNote(raw)
	if err != nil {
		return err
	}
	l, _, err := t.laneAs(n.Lane, 0)
	if err != nil {
		return fmt.Errorf("credit note: %w", err)
	}
	if n.Channel != l.Channel || n.Account != l.Channel.Peer(t.b.self) {
		return fmt.Errorf("credit note of lane %s: %w: it is not the other side's", n.Lane.Short(), ErrRole)
	}
	if err := t.maySettle(l.Channel, n.Header, n.Delegation); err != nil {
		return fmt.Errorf("credit note of lane %s: %w", n.Lane.Short(), err)
	}
	d, err := t.Dispute(n.Lane)
	if err != nil || d.Agreed != nil || bytes.Equal(d.Offered, raw) {
		return err
	}
	if err := t.settlerNotRevoked(n.Header, n.Delegation); err != nil {
		return fmt.Errorf("credit note of lane %s: %w", n.Lane.Short(), err)
	}
	switch {
	case !l.Closed():
		return fmt.Errorf("credit note of lane %s: %w", n.Lane.Short(), ErrRunning)
	case n.Amount > l.Owed():
		return fmt.Errorf("credit note of lane %s: %w: %v are owed here, %v there", n.Lane.Short(), ErrDiffer, l.Owed(), n.Amount)
	}
	mine, err := noteOf(d.Offer)
	if err != nil {
		return err
	}
	if !n.Proposal.IsZero() { // a signature counts whenever it comes: this side's was given for it
		if err := voucher.Agreed(mine, identity.Hash(d.Offer), n); err != nil {
			return err
		}
		d.Note, d.Counter, d.Told = d.Offer, raw, true
		return t.settleDispute(l, d, n.Amount)
	}
	if !d.Open(t.at) {
		return nil
	}
	d.Offered = raw
	if d.Offer != nil && mine.Amount == n.Amount {
		return t.agree(l, d)
	}
	return save(t.own, disputeKey(n.Lane), d)
}

// settleDispute books what both agreed on.
func (t *Tx) settleDispute(l Lane, d Dispute, amount money.Micro) error {
	d.Agreed = &amount
	if err := save(t.own, disputeKey(l.Lane), d); err != nil {
		return err
	}
	role, err := t.role(l.Channel)
	if err != nil {
		return err
	}
	if l, err = t.CloseLane(l.Lane, min(amount, l.Owed())); err != nil {
		return err
	}
	l.Agreed, l.Disputed = true, min(l.Disputed, t.now.UnixMilli())
	peer := l.Channel.Peer(t.b.self)
	var until int64
	err = t.EachDispute(func(other Dispute) error {
		ol, err := t.Lane(other.Lane)
		if err == nil && other.Agreed == nil && ol.Channel.AllEpochs() == l.Channel.AllEpochs() {
			until = max(until, other.Until)
		}
		return err
	})
	if err != nil {
		return err
	}
	err = t.change(role, l.Channel.Unit, peer, func(a *Account) error {
		a.DisputedUntil = until
		return nil
	})
	return errors.Join(err, t.saveLane(&l), t.indexDue(l))
}
