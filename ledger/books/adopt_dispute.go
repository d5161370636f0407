package books

import (
	"bytes"
	"fmt"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// DisputeCopy is what one side has of a lane's dispute: all of it is signed.
type DisputeCopy struct {
	ByRenter     []byte `cbor:"1,keyasint,omitempty"` // its dispute
	ByProvider   []byte `cbor:"2,keyasint,omitempty"`
	RenterNote   []byte `cbor:"3,keyasint,omitempty"` // its newest proposed credit note
	ProviderNote []byte `cbor:"4,keyasint,omitempty"`
	Note         []byte `cbor:"5,keyasint,omitempty"` // the credit note that counts
	Counter      []byte `cbor:"6,keyasint,omitempty"` // and the signature under it
}

// isRenter reports whether this account is the renter of a lane.
func (r *Reader) isRenter(l Lane) bool { return l.Channel.RoleOf(r.b.self) == ledger.AsRenter }

// copyDispute puts the dispute of a lane into its copy, and adds the delegations that it names.
func (r *Reader) copyDispute(l Lane, c *LaneCopy, named []wire.Hash) ([]wire.Hash, error) {
	if !l.Frozen() {
		return named, nil
	}
	d, err := r.disputeOf(l.Lane)
	if err != nil {
		return named, err
	}
	c.Dispute = &DisputeCopy{ByRenter: d.Mine, ByProvider: d.Theirs, RenterNote: d.Offer, ProviderNote: d.Offered, Note: d.Note, Counter: d.Counter}
	if !r.isRenter(l) {
		c.Dispute.ByRenter, c.Dispute.ByProvider, c.Dispute.RenterNote, c.Dispute.ProviderNote = d.Theirs, d.Mine, d.Offered, d.Offer
	}
	for _, raw := range [][]byte{d.Mine, d.Theirs} {
		if raw == nil {
			continue
		}
		in, err := voucher.OpenDispute(raw)
		if err != nil {
			return named, fmt.Errorf("dispute of lane %s: %w: %w", l.Lane.Short(), ErrForged, err)
		}
		named = append(named, in.Delegation)
	}
	for _, raw := range [][]byte{d.Offer, d.Offered, d.Note, d.Counter} {
		n, err := noteOf(raw)
		if err != nil {
			return named, err
		}
		if raw != nil {
			named = append(named, n.Delegation)
		}
	}
	return named, nil
}

// dispute takes back a dispute with its credit notes. What both signed counts, whatever became of it here since; what only one signed is
// here as before.
func (a *adoption) dispute() error {
	c := a.copy.Dispute
	if c == nil {
		return nil
	}
	mine, theirs, offer, offered := c.ByRenter, c.ByProvider, c.RenterNote, c.ProviderNote
	if !a.t.isRenter(a.lane) {
		mine, theirs, offer, offered = theirs, mine, offered, offer
	}
	self := a.t.b.self
	peer := a.lane.Channel.Peer(self)
	for raw, signer := range map[string]identity.AccountID{string(mine): self, string(theirs): peer} {
		if err := a.freeze([]byte(raw), signer); err != nil {
			return err
		}
	}
	d, err := a.t.disputeOf(a.lane.Lane)
	if err != nil || d.Agreed != nil {
		return err
	}
	if d.Mine == nil && d.Theirs == nil {
		return fmt.Errorf("%w: credit notes without a dispute", ErrCopy)
	}
	if len(c.Note) > 0 {
		return a.agreed(d)
	}
	was := d
	for raw, at := range map[string]*[]byte{string(offer): &d.Offer, string(offered): &d.Offered} {
		signer := self
		if at == &d.Offered {
			signer = peer
		}
		if raw == "" || *at != nil {
			continue
		}
		if _, err := a.note([]byte(raw), signer); err != nil {
			return err
		}
		*at = []byte(raw)
	}
	d.Told = bytes.Equal(d.Mine, mine) && bytes.Equal(d.Offer, offer)
	if bytes.Equal(was.Offer, d.Offer) && bytes.Equal(was.Offered, d.Offered) && was.Told == d.Told {
		return nil
	}
	a.changed = true
	return save(a.t.own, disputeKey(a.lane.Lane), d)
}

// freeze takes one side's dispute.
func (a *adoption) freeze(raw []byte, signer identity.AccountID) error {
	if len(raw) == 0 {
		return nil
	}
	d, err := a.t.disputeOf(a.lane.Lane)
	if err != nil {
		return err
	}
	own := signer == a.t.b.self
	if own && d.Mine != nil || !own && d.Theirs != nil || d.Agreed != nil {
		return nil
	}
	in, err := voucher.OpenDispute(raw)
	if err != nil {
		return err
	}
	if in.Lane != a.lane.Lane || in.Channel != a.lane.Channel || in.Account != signer {
		return fmt.Errorf("%w: dispute of lane %s by account %s", ErrCopy, in.Lane.Short(), in.Account.Short())
	}
	if err := a.keep(in.Delegation); err != nil {
		return err
	}
	if err := a.t.maySettle(a.lane.Channel, in.Header, in.Delegation); err != nil {
		return err
	}
	if own {
		d.Mine = raw
	} else {
		d.Theirs = raw
		in.Until = min(in.Until, a.time(in.Time)+maxOpen)
	}
	a.changed = true
	if err := a.t.freeze(a.lane, d, in, raw); err != nil {
		return err
	}
	a.lane, err = a.t.Lane(a.lane.Lane)
	return err
}

// note checks one signature of a credit note of the lane.
func (a *adoption) note(raw []byte, signer identity.AccountID) (voucher.CreditNote, error) {
	n, err := voucher.OpenCreditNote(raw)
	switch {
	case err != nil:
		return n, err
	case n.Lane != a.lane.Lane || n.Channel != a.lane.Channel || n.Account != signer:
		return n, fmt.Errorf("%w: credit note of lane %s by account %s", ErrCopy, n.Lane.Short(), n.Account.Short())
	case n.Amount > a.lane.Owed():
		return n, fmt.Errorf("%w: credit note of %v, the lane comes to %v", ErrDiffer, n.Amount, a.lane.Owed())
	}
	if err := a.keep(n.Delegation); err != nil {
		return n, err
	}
	return n, a.t.maySettle(a.lane.Channel, n.Header, n.Delegation)
}

// agreed takes the credit note that counts.
func (a *adoption) agreed(d Dispute) error {
	c := a.copy.Dispute
	first, err := voucher.OpenCreditNote(c.Note)
	if err != nil {
		return err
	}
	n, err := a.note(c.Note, first.Account)
	if err != nil {
		return err
	}
	counter, err := a.note(c.Counter, a.lane.Channel.Peer(n.Account))
	if err != nil {
		return err
	}
	if err := voucher.Agreed(n, identity.Hash(c.Note), counter); err != nil {
		return err
	}
	d.Note, d.Counter, d.Told = c.Note, c.Counter, true
	d.Offer, d.Offered = c.RenterNote, c.ProviderNote
	if !a.t.isRenter(a.lane) {
		d.Offer, d.Offered = d.Offered, d.Offer
	}
	for _, raw := range [][]byte{d.Offer, d.Offered} { // for people: what was proposed before
		if _, err := noteOf(raw); err != nil {
			return err
		}
	}
	if !a.lane.Closed() {
		if a.lane, err = a.t.closeLane(a.lane.Lane, min(n.Amount, a.lane.Owed()), a.time(a.copy.Ended)); err != nil {
			return err
		}
	}
	a.changed = true
	if err := a.t.settleDispute(a.lane, d, n.Amount); err != nil {
		return err
	}
	a.lane, err = a.t.Lane(a.lane.Lane)
	return err
}
