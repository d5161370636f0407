package books

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// SettledCopy is what one side keeps of a settlement, as it gives it to the other side that lost it.
type SettledCopy struct {
	Proposal    []byte   `cbor:"1,keyasint"`
	Counter     []byte   `cbor:"2,keyasint,omitempty"` // none: it is not signed by both
	Delegations [][]byte `cbor:"3,keyasint"`           // of the signers
}

// AdoptSettlement takes back what peer has of a settlement. One that both have signed is booked, whatever became of it here since. One that
// only this side has signed is a proposal of ours again, and one that only the other has signed waits for a decision. The lanes that it
// lists must be here: adopt those first. Adopting what is here already changes nothing. One that another device of this account signed stays
// out: [*SisterError]. Errors wrap ErrCopy or say which check failed; then nothing was written.
func (t *Tx) AdoptSettlement(peer identity.AccountID, c SettledCopy) (changed bool, err error) {
	return t.takeSettlement(peer, c, false)
}

// takeSettlement is AdoptSettlement; own says that the copy is from this side's own ledger.
func (t *Tx) takeSettlement(peer identity.AccountID, c SettledCopy, own bool) (changed bool, err error) {
	s, err := voucher.OpenSettlement(c.Proposal)
	if err != nil {
		return false, fmt.Errorf("adopt settlement: %w", err)
	}
	id := s.ID()
	err = t.txn.Try(func() (err error) {
		changed, err = t.adoptSettlement(peer, s, c, own)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("adopt settlement %s: %w", id.Short(), err)
	}
	return changed, nil
}

func (t *Tx) adoptSettlement(peer identity.AccountID, s voucher.Settlement, c SettledCopy, own bool) (bool, error) {
	if s.Channel.RoleOf(t.b.self) == 0 || s.Channel.Peer(t.b.self) != peer || len(c.Delegations) > maxCopyDelegations {
		return false, fmt.Errorf("%w: it is between %s and %s", ErrCopy, s.Channel.Renter.Short(), s.Channel.Provider.Short())
	}
	have, ok, err := load[Settled](t.own, settlementKey(s.ID()))
	if err != nil || ok && (have.State == Signed || len(c.Counter) == 0) {
		return false, err
	}
	if ok && !bytes.Equal(have.Proposal, c.Proposal) {
		return false, ErrConflict
	}
	if !own {
		if err := t.ownSignature(s, c.Counter); err != nil {
			return false, err
		}
	}
	for _, raw := range c.Delegations {
		if len(raw) > maxDelegation {
			return false, fmt.Errorf("%w: delegation of %d bytes", ErrCopy, len(raw))
		}
		d, err := identity.OpenDelegation(raw)
		if err != nil {
			return false, err
		}
		if d.Account != peer && d.Account != t.b.self {
			return false, fmt.Errorf("%w: delegation of account %s", ErrCopy, d.Account.Short())
		}
		if err := t.own.Set(delegationKey(identity.Hash(raw)), raw); err != nil {
			return false, err
		}
	}
	if err := t.checkSettler(s); err != nil {
		return false, err
	}
	switch {
	case len(c.Counter) > 0:
		return true, t.adoptSigned(s, c)
	case s.Account == t.b.self:
		if !s.Proposal.IsZero() {
			return false, fmt.Errorf("%w: it answers another proposal", ErrCopy)
		}
		if taken, paid, err := t.paidAs(s); err != nil || paid && !bytes.Equal(taken.Proposal, c.Proposal) {
			return false, err // the same payment is recorded otherwise
		}
		return true, t.saveSettled(s, Settled{State: Proposed, Proposal: c.Proposal})
	}
	if err := t.Dealt(s.Channel); err != nil {
		return false, err
	}
	_, _, err = t.RecordProposal(c.Proposal)
	return err == nil, err
}

// adoptSigned books a settlement with both signatures.
func (t *Tx) adoptSigned(s voucher.Settlement, c SettledCopy) error {
	counter, err := t.openSettlement(c.Counter)
	if err != nil {
		return err
	}
	if err := voucher.Countersigned(s, identity.Hash(c.Proposal), counter); err != nil {
		return err
	}
	for _, la := range s.Lanes {
		l, err := t.Lane(la.Lane)
		if err != nil {
			return errors.Join(ErrDiffer, err)
		}
		if !s.Channel.Covers(l.Channel) {
			return fmt.Errorf("%w: lane %s is of another channel", ErrDiffer, la.Lane.Short())
		}
	}
	return t.settle(s, Settled{State: Signed, Proposal: c.Proposal, Counter: c.Counter})
}

// CopySettlement is what this side has of a settlement, for the other side; ok is false where there is nothing to give: a refused one.
func (r *Reader) CopySettlement(s voucher.Settlement, v Settled) (c SettledCopy, ok bool, err error) {
	if v.State == Refused {
		return c, false, nil
	}
	named := []wire.Hash{s.Delegation}
	if len(v.Counter) > 0 {
		counter, err := voucher.OpenSettlement(v.Counter)
		if err != nil {
			return c, false, fmt.Errorf("settlement %s: %w: %w", s.ID().Short(), ErrForged, err)
		}
		named = append(named, counter.Delegation)
	}
	c = SettledCopy{Proposal: v.Proposal, Counter: v.Counter}
	c.Delegations, err = r.delegations(named)
	return c, err == nil, err
}

// Page is a part of what one side has of its dealings with another, of one kind at a time.
type Page struct {
	Lanes   []LaneCopy
	Settled []SettledCopy
	Cleared []ClearingCopy
	Next    []byte // the place to go on from, nil at the end; places rise
}

// Copies gives what this side has of its dealings with peer, from a place on: at most n lanes, settlements once there are no more lanes, and
// then clearings. A place that is none gives the beginning.
func (r *Reader) Copies(peer identity.AccountID, place []byte, n int) (p Page, err error) {
	kind := byte(placeLane)
	if len(place) > 0 && (place[0] == placeSettlement || place[0] == placeClearing) {
		kind = place[0]
	}
	if kind == placeLane {
		p.Lanes, p.Next, err = r.copyLanes(peer, place, n)
		if err != nil || len(p.Next) > 0 {
			return p, err
		}
		if len(p.Lanes) > 0 {
			p.Next = []byte{placeSettlement}
			return p, nil
		}
		kind, place = placeSettlement, nil
	}
	if kind == placeSettlement {
		p.Settled, p.Next, err = r.copySettlements(peer, place, n)
		if err != nil || len(p.Next) > 0 {
			return p, err
		}
		if len(p.Settled) > 0 {
			p.Next = []byte{placeClearing}
			return p, nil
		}
		place = nil
	}
	p.Cleared, p.Next, err = r.copyClearings(peer, place, n)
	return p, err
}

// PastSettlements reports whether a place is beyond what the first version of the conversation knows.
func PastSettlements(place []byte) bool { return len(place) > 0 && place[0] == placeClearing }

// Kinds of a place, its first byte; what follows is the key after which to go on.
const (
	placeLane       = 'l'
	placeSettlement = 's'
	placeClearing   = 'u'
)

func (r *Reader) copyLanes(peer identity.AccountID, place []byte, n int) (out []LaneCopy, next []byte, err error) {
	prefix := key("lp/", peer[:], []byte("/"))
	var last []byte
	for p, err := range r.own.Iterate(prefix, after(prefix, place)) {
		if err != nil {
			return nil, nil, err
		}
		if len(out) == n {
			return out, append([]byte{placeLane}, last...), nil
		}
		var id ledger.Lane
		if copy(id[:], p.Key[len(prefix):]) != len(id) {
			return nil, nil, fmt.Errorf("lanes of account %s: %w", peer.Short(), ErrCorrupt)
		}
		l, err := r.Lane(id)
		if err != nil {
			return nil, nil, err
		}
		c, err := r.CopyLane(l)
		if err != nil {
			return nil, nil, err
		}
		out, last = append(out, c), id[:]
	}
	return out, nil, nil
}

func (r *Reader) copySettlements(peer identity.AccountID, place []byte, n int) (out []SettledCopy, next []byte, err error) {
	prefix := []byte("set/")
	for p, err := range r.own.Iterate(prefix, after(prefix, place)) {
		if err != nil {
			return nil, nil, err
		}
		v, s, err := decodeSettled(p)
		if err != nil {
			return nil, nil, err
		}
		if s.Channel.Peer(r.b.self) != peer || v.Held != 0 && v.State == Proposed {
			continue // what was not sent yet is not given in passing
		}
		if len(out) == n {
			return out, next, nil
		}
		c, ok, err := r.CopySettlement(s, v)
		if err != nil {
			return nil, nil, err
		}
		if ok {
			id := s.ID()
			out, next = append(out, c), append([]byte{placeSettlement}, id[:]...)
		}
	}
	return out, nil, nil
}

// after is the first key behind a place.
func after(prefix, place []byte) []byte {
	if len(place) < 2 {
		return prefix
	}
	return append(key(string(prefix), place[1:]), 0)
}
