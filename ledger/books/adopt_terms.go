package books

import (
	"fmt"
	"slices"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/proof"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Terms are what the signed records of another wing say of a lane. The books can't read those: whoever can has checked their signatures, and
// that they are about this lane of this channel.
type Terms struct {
	Hold    money.Micro  // on the renter's credit while it runs
	DueDays uint32       // after its end
	Charge  *money.Micro // with which the provider ended it; nil: it has not
	Signed  []Signature  // who signed the records
}

// Signature is who signed a record, under which delegation.
type Signature struct {
	identity.Header
	Delegation wire.Hash
}

// keptTerms is what is kept of a lane's terms: of a lease of which nothing is known here but by the other side.
type keptTerms struct {
	Charge  *money.Micro       `cbor:"1,keyasint,omitempty"`
	Records []proof.Attachment `cbor:"2,keyasint"`
}

func termsKey(l ledger.Lane) []byte { return key("terms/", l[:]) }

// KeptRecords are the records of another wing that came back with a lane, none for one that was not lost.
func (r *Reader) KeptRecords(lane ledger.Lane) ([]proof.Attachment, error) {
	kept, _, err := load[keptTerms](r.own, termsKey(lane))
	return kept.Records, err
}

// signersOf are the delegations that records name.
func signersOf(records []proof.Attachment) (out []wire.Hash) {
	for _, a := range records {
		if h, err := a.Delegation(); err == nil {
			out = append(out, h)
		}
	}
	return out
}

// AttachTo puts records of another wing into the copy of a lane, with the delegations that they name. One whose delegation is not here, or
// that is too large, is left out.
func (r *Reader) AttachTo(c *LaneCopy, records []proof.Attachment) error {
	for _, a := range records {
		h, err := a.Delegation()
		if err != nil || len(a.Data) > maxCopyRecord || len(c.Records) == maxCopyRecords {
			continue
		}
		more, err := r.delegations([]wire.Hash{h})
		if err != nil {
			return err
		}
		if len(more) == 0 {
			continue
		}
		c.Records = append(c.Records, a)
		if has := func(b []byte) bool { return identity.Hash(b) == h }; !slices.ContainsFunc(c.Delegations, has) && len(c.Delegations) < maxCopyDelegations {
			c.Delegations = append(c.Delegations, more[0])
		}
	}
	return nil
}

// signedTerms checks that the lane's provider let the devices provide that signed its terms.
func (a *adoption) signedTerms() error {
	if a.terms == nil || a.own {
		return nil
	}
	for _, s := range a.terms.Signed {
		if s.Account != a.vouchers[0].Channel.Provider {
			return fmt.Errorf("%w: terms by account %s", ErrCopy, s.Account.Short())
		}
		raw := a.delegations[s.Delegation]
		if s.Delegation == a.t.b.config.Device.DelegationHash() {
			raw = a.t.b.config.Device.Delegation()
		}
		d, err := identity.OpenDelegation(raw)
		if err == nil {
			err = d.Allows(s.Header, identity.PowerProvide)
		}
		if err != nil {
			return err
		}
	}
	for _, r := range a.copy.Records {
		if len(r.Data) > maxCopyRecord || len(r.Name) > maxRecordName {
			return fmt.Errorf("%w: record of %d bytes", ErrCopy, len(r.Data))
		}
	}
	return nil
}

// maxRecordName bounds a record's domain.
const maxRecordName = 64

// opening is what a lane that was lost is opened with.
func (a *adoption) opening(first voucher.Signed) Opening {
	o := Opening{Channel: first.Channel, Lane: first.Lane, Rate: a.copy.Rate, Devices: a.copy.Devices}
	if a.terms == nil {
		return o
	}
	o.DueDays = a.terms.DueDays
	if _, ended := a.final(); !ended {
		o.Hold = a.terms.Hold // as it stood before the vouchers, which use it up
	}
	return o
}

// time is a time that the other side says, in Unix milliseconds: not after now, which is also what it is if it says none.
func (a *adoption) time(said int64) int64 {
	now := a.t.now.UnixMilli()
	if said <= 0 || said > now {
		return now
	}
	return said
}

// keepTerms keeps the records of a lane that came with its terms, and the delegations that they name.
func (a *adoption) keepTerms() error {
	if a.terms == nil || a.own || len(a.copy.Records) == 0 {
		return nil
	}
	have, ok, err := load[keptTerms](a.t.own, termsKey(a.lane.Lane))
	if err != nil || ok && (have.Charge != nil || a.terms.Charge == nil) {
		return err
	}
	for _, s := range a.terms.Signed {
		if err := a.keep(s.Delegation); err != nil {
			return err
		}
	}
	a.changed = true
	return save(a.t.own, termsKey(a.lane.Lane), keptTerms{Charge: a.terms.Charge, Records: a.copy.Records})
}

// A lane is stray if it came back open, and no lease is known here that will end it: the other side will say how it ended.

func strayKey(l ledger.Lane) []byte { return key("stray/", l[:]) }

func (r *Reader) stray(l ledger.Lane) (bool, error) {
	b, err := raw(r.own, strayKey(l))
	return b != nil, err
}

// strayed notes a lane that came back open.
func (t *Tx) strayed(l Lane) error {
	if l.Closed() {
		return nil
	}
	peer := l.Channel.Peer(t.b.self)
	return t.own.Set(strayKey(l.Lane), peer[:])
}

// Unfinished are the accounts that are to be asked again: they have not said how a lane ended that no lease here knows of, or the trail of a
// lane with them is not here.
func (r *Reader) Unfinished() (map[identity.AccountID]bool, error) {
	out := map[identity.AccountID]bool{}
	for p, err := range r.own.Iterate([]byte("stray/"), nil) {
		if err != nil {
			return nil, err
		}
		if len(p.Value) != len(identity.AccountID{}) {
			return nil, fmt.Errorf("stray lane %x: %w", p.Key, ErrCorrupt)
		}
		out[identity.AccountID(p.Value)] = true
	}
	for p, err := range r.own.Iterate([]byte("want/"), nil) {
		if err != nil {
			return nil, err
		}
		w, _, err := load[wanted](r.own, p.Key)
		if err != nil {
			return nil, err
		}
		out[w.Peer] = true
	}
	return out, nil
}
