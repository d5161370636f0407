package books

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

var (
	// ErrPaid says that a payment with this outside reference is recorded already: one payment counts once.
	ErrPaid = errors.New("a payment with this reference is recorded already")
	// ErrDiffer says that a settlement lists more for a lane than is promised here: the newest vouchers come first.
	ErrDiffer = errors.New("the two ledgers differ")
	// ErrNoSettlement says that no settlement of that id is here.
	ErrNoSettlement = errors.New("no such settlement")
	// ErrWaiting says that too many proposals wait for a decision already.
	ErrWaiting = errors.New("too many settlements wait for a decision")
	// ErrNoDealings says that nothing was ever rented or lent between the two accounts in that unit.
	ErrNoDealings = errors.New("no dealings with that account")
	// ErrRefused says that the other side refused a settlement.
	ErrRefused = errors.New("settlement was refused")
	// ErrGiven says that this side's own signature has gone out: it can't be taken back.
	ErrGiven = errors.New("this side has signed it, and the other side may have the signature")
)

// Limits of what other accounts may leave here for a person to decide: a proposal has up to 24 KiB.
const (
	maxWaiting     = 256 // of all accounts
	maxPeerWaiting = 8   // of one
)

// Payment is a payment that was made outside, to be proposed as a settlement.
type Payment struct {
	Channel   ledger.Channel // its epoch means nothing: a payment is of all
	Amount    money.Micro
	Method    string // "manual"
	Reference string // invoice or transfer number; the same payment is recorded once by it. Empty: each proposal is another payment
	Held      bool   // it is not sent now: [Tx.Sending] comes before it is
}

// Propose signs a settlement of this account for a payment. The bytes may be sent once the transaction is committed. The same payment
// again gives the same bytes; the same reference for another amount is ErrPaid.
func (t *Tx) Propose(p Payment) (id wire.Hash, proposal []byte, err error) {
	p.Channel = p.Channel.AllEpochs()
	role, err := t.role(p.Channel)
	if err == nil {
		err = errors.Join(t.b.maySettle(role), t.oneKey(p.Channel.Peer(t.b.self)), t.answered(p.Channel.Peer(t.b.self)))
	}
	if err != nil {
		return id, nil, fmt.Errorf("propose settlement: %w", err)
	}
	s := voucher.Settlement{Channel: p.Channel, Amount: p.Amount, Method: p.Method, Reference: p.Reference, Time: t.now.UnixMilli()}
	have, ok, err := t.paidAs(s)
	if err != nil {
		return id, nil, err
	}
	if ok {
		old, err := voucher.OpenSettlement(have.Proposal)
		if err != nil {
			return id, nil, fmt.Errorf("%w: %w", ErrForged, err)
		}
		if old.Amount != p.Amount || old.Account != t.b.self {
			return id, nil, fmt.Errorf("propose settlement %q: %w: %v, %s", p.Reference, ErrPaid, old.Amount, have.State)
		}
		return old.ID(), have.Proposal, nil
	}
	if _, err := rand.Read(s.Nonce[:]); err != nil {
		return id, nil, fmt.Errorf("propose settlement: %w", err)
	}
	if s.Lanes, err = t.paysOff(p.Channel, p.Amount); err != nil {
		return id, nil, err
	}
	if s.Checkpoint, err = t.Checkpoint(); err != nil {
		return id, nil, err
	}
	proposal, err = voucher.SignSettlement(t.b.config.Device, s)
	if err != nil {
		return id, nil, err
	}
	v := Settled{State: Proposed, Proposal: proposal}
	if p.Held {
		v.Held = t.b.epoch
	}
	return s.ID(), proposal, t.saveSettled(s, v)
}

// unsigned are the prefixes of the keys that list settlements which one side has signed.
var unsigned = map[SettlementState]string{Waiting: "wait/", Proposed: "prop/"}

// Unsigned calls f with the settlements of a state that one side has signed, Proposed or Waiting, with peer or, if that is zero, with all.
func (r *Reader) Unsigned(state SettlementState, peer identity.AccountID, f func(id wire.Hash, s voucher.Settlement) error) error {
	prefix := []byte(unsigned[state])
	if peer != (identity.AccountID{}) {
		prefix = key(unsigned[state], peer[:], []byte("/"))
	}
	for p, err := range r.own.Iterate(prefix, nil) {
		if err != nil {
			return err
		}
		var id wire.Hash
		if len(p.Key) < len(id) {
			return fmt.Errorf("unsigned settlement %q: %w", p.Key, ErrCorrupt)
		}
		copy(id[:], p.Key[len(p.Key)-len(id):])
		v, err := r.Settlement(id)
		if err != nil {
			return err
		}
		s, err := voucher.OpenSettlement(v.Proposal)
		if err != nil {
			return fmt.Errorf("settlement %s: %w: %w", id.Short(), ErrForged, err)
		}
		if err := f(id, s); err != nil {
			return err
		}
	}
	return nil
}

// paidAs looks for a settlement of the same outside payment that was not refused.
func (r *Reader) paidAs(s voucher.Settlement) (Settled, bool, error) {
	pay := s.Payment()
	if pay.IsZero() {
		return Settled{}, false, nil
	}
	id, err := raw(r.own, key("pay/", pay[:]))
	if err != nil || id == nil {
		return Settled{}, false, err
	}
	have, ok, err := load[Settled](r.own, key("set/", id))
	return have, ok && have.State != Refused, err
}

func (t *Tx) saveSettled(s voucher.Settlement, v Settled) error {
	v.Changed = t.now.UnixMilli()
	id, pay, peer := s.ID(), s.Payment(), s.Channel.Peer(t.b.self)
	errs := []error{save(t.own, settlementKey(id), v)}
	for state, prefix := range unsigned {
		if k := key(prefix, peer[:], []byte("/"), id[:]); v.State == state {
			errs = append(errs, t.own.Set(k, nil))
		} else {
			errs = append(errs, t.own.Delete(k))
		}
	}
	if !pay.IsZero() {
		errs = append(errs, t.own.Set(key("pay/", pay[:]), id[:]), t.indexReference(s, v.State))
	}
	return errors.Join(errs...)
}

// acknowledged is what both sides know a lane to promise: as provider all that came, as renter what has a receipt. A voucher that the
// provider refused (at its credit limit, say) must not keep the renter from settling.
func (r *Reader) acknowledged(l Lane) (money.Micro, error) {
	if l.Missing() == 0 || l.Channel.RoleOf(r.b.self) == ledger.AsProvider {
		return l.Owed(), nil
	}
	b, err := r.Voucher(l.Lane, l.Receipts)
	if err != nil {
		return 0, err
	}
	v, err := voucher.Open(b)
	if err != nil {
		return 0, fmt.Errorf("lane %s: %w: %w", l.Lane.Short(), ErrForged, err)
	}
	return min(v.Amount, l.Owed()), nil
}

// openSettlement checks a settlement's signature, its signer's delegation and that this account is a side of it.
func (t *Tx) openSettlement(envelope []byte) (voucher.Settlement, error) {
	s, err := voucher.OpenSettlement(envelope)
	if err != nil {
		return s, err
	}
	if _, err := t.role(s.Channel); err != nil {
		return s, fmt.Errorf("settlement %s: %w", s.ID().Short(), err)
	}
	return s, t.checkSettler(s)
}

// checkSettler checks that the account of s let its device settle: to pay for a renter, to provide for a provider.
func (r *Reader) checkSettler(s voucher.Settlement) error {
	d, err := r.delegation(s.Delegation)
	if err != nil {
		return fmt.Errorf("settlement %s: %w", s.ID().Short(), err)
	}
	power := identity.PowerProvide
	if s.Account == s.Channel.Renter {
		power = identity.PowerPay
	}
	if err := d.Allows(s.Header, power); err != nil {
		return fmt.Errorf("settlement %s: %w", s.ID().Short(), err)
	}
	return nil
}

// checkLanes checks that nothing in s is more than is promised here. It may be less: the lane may have gone on since. Of a lane whose dispute
// ended with less, it may be what the vouchers promised: the payment may have been made before both agreed, and what it is beyond is prepaid.
func (r *Reader) checkLanes(s voucher.Settlement) error {
	for _, la := range s.Lanes {
		l, err := r.Lane(la.Lane)
		if errors.Is(err, ErrNoLane) {
			return fmt.Errorf("settlement %s: %w: lane %s is unknown here", s.ID().Short(), ErrDiffer, la.Lane.Short())
		}
		if err != nil {
			return err
		}
		most := l.Owed()
		if l.Agreed {
			most = l.Amount
		}
		if !s.Channel.Covers(l.Channel) || la.Amount > most {
			return fmt.Errorf("settlement %s: %w: lane %s has %v here, %v there", s.ID().Short(), ErrDiffer, la.Lane.Short(), most, la.Amount)
		}
	}
	return nil
}

// Settlement gives a settlement, or ErrNoSettlement.
func (r *Reader) Settlement(id wire.Hash) (Settled, error) {
	v, ok, err := load[Settled](r.own, settlementKey(id))
	if err == nil && !ok {
		err = fmt.Errorf("settlement %s: %w", id.Short(), ErrNoSettlement)
	}
	return v, err
}

// Countersign signs the other side's proposal and books it: now it counts here. The bytes may be sent once the transaction is
// committed. A repeat gives the same bytes and books nothing.
func (t *Tx) Countersign(id wire.Hash) ([]byte, error) {
	v, err := t.Settlement(id)
	if err != nil {
		return nil, err
	}
	switch v.State {
	case Signed:
		return v.Counter, nil
	case Refused:
		return nil, fmt.Errorf("countersign settlement %s: %w: %s", id.Short(), ErrRefused, v.Why)
	case Proposed:
		return nil, fmt.Errorf("countersign settlement %s: %w: this side proposed it", id.Short(), ErrRole)
	}
	s, err := t.openSettlement(v.Proposal)
	if err != nil {
		return nil, err
	}
	peer := s.Channel.Peer(t.b.self)
	if err := errors.Join(t.b.maySettle(s.Channel.RoleOf(t.b.self)), t.oneKey(peer), t.answered(peer), t.checkLanes(s)); err != nil {
		return nil, err
	}
	counter := s
	counter.Proposal = identity.Hash(v.Proposal)
	if counter.Checkpoint, err = t.Checkpoint(); err != nil {
		return nil, err
	}
	if v.Counter, err = voucher.SignSettlement(t.b.config.Device, counter); err != nil {
		return nil, err
	}
	return v.Counter, t.settle(s, v)
}

// RecordCounter takes the other side's signature under this side's proposal and books the settlement. The signer's delegation must
// have been kept before. A repeat books nothing.
func (t *Tx) RecordCounter(counter []byte) (wire.Hash, error) {
	c, err := t.openSettlement(counter)
	if err != nil {
		return wire.Hash{}, err
	}
	id := c.ID()
	v, err := t.Settlement(id)
	if err != nil || v.State == Signed {
		return id, err
	}
	if err := t.settlerNotRevoked(c.Header, c.Delegation); err != nil {
		return id, fmt.Errorf("settlement %s: %w", id.Short(), err)
	}
	s, err := voucher.OpenSettlement(v.Proposal)
	if err != nil {
		return id, fmt.Errorf("%w: %w", ErrForged, err)
	}
	if err := voucher.Countersigned(s, identity.Hash(v.Proposal), c); err != nil {
		return id, err
	}
	other, taken, err := t.paidAs(s)
	if err != nil {
		return id, err
	}
	if taken && !bytes.Equal(other.Proposal, v.Proposal) {
		return id, fmt.Errorf("settlement %s: %w: %q", id.Short(), ErrPaid, s.Reference)
	}
	if err := t.settler(c.Checkpoint, c.Header, c.Delegation); err != nil {
		return id, fmt.Errorf("settlement %s: %w", id.Short(), err)
	}
	v.Counter = counter
	return id, t.settle(s, v)
}

// settle books a settlement that both have signed.
func (t *Tx) settle(s voucher.Settlement, v Settled) error {
	role, err := t.role(s.Channel)
	if err != nil {
		return err
	}
	amount, err := ledger.Signed(s.Amount)
	if err != nil {
		return err
	}
	id := s.ID()
	added, err := t.post(ledger.Entry{
		ID: ledger.EntryID(ledger.KindSettlement, id), Kind: ledger.KindSettlement, Peer: s.Channel.Peer(t.b.self),
		Postings: paid(role, s.Channel, s.Method, amount), Refs: hashes(identity.Hash(v.Proposal), identity.Hash(v.Counter)), Note: s.Reference,
	})
	if err != nil || !added {
		return err
	}
	err = t.change(role, s.Channel.Unit, s.Channel.Peer(t.b.self), func(a *Account) error {
		total, err := money.Add(a.Settled, s.Amount)
		if err != nil {
			return err
		}
		a.Settled, a.LastPaid = total, t.now.UnixMilli()
		return a.owe(-amount)
	})
	if err != nil {
		return fmt.Errorf("settlement %s: %w", id.Short(), err)
	}
	for _, la := range s.Lanes {
		l, err := t.Lane(la.Lane)
		if err != nil {
			return err
		}
		l.Settled = max(l.Settled, la.Amount)
		if err := t.saveLane(&l); err != nil {
			return err
		}
	}
	v.State, v.Why, v.Held, v.Dropped = Signed, "", 0, false // a signature counts whenever it comes
	return errors.Join(t.saveSettled(s, v), t.setDue(role, s.Channel.Unit, s.Channel.Peer(t.b.self)))
}

// Settlements calls f with each settlement, in no order that means anything.
func (r *Reader) Settlements(f func(id wire.Hash, s voucher.Settlement, v Settled) error) error {
	for p, err := range r.own.Iterate([]byte("set/"), nil) {
		if err != nil {
			return err
		}
		v, s, err := decodeSettled(p)
		if err != nil {
			return err
		}
		if err := f(s.ID(), s, v); err != nil {
			return err
		}
	}
	return nil
}

func decodeSettled(p kv.Pair) (v Settled, s voucher.Settlement, err error) {
	if err := wire.UnmarshalStrict(p.Value, &v); err != nil {
		return v, s, fmt.Errorf("settlement %x: %w: %w", p.Key, ErrCorrupt, err)
	}
	if s, err = voucher.OpenSettlement(v.Proposal); err != nil {
		return v, s, fmt.Errorf("settlement %x: %w: %w", p.Key, ErrForged, err)
	}
	return v, s, nil
}
