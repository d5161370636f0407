package proof

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/history"
	"github.com/gpufair/gpufair/ledger/statement"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Payment is the proof of one payment made outside: the signatures that it has, and if it counts, its entry in the log of the account that
// made the file. Nothing in it is believed for its own sake.
type Payment struct {
	Version     uint16             `cbor:"1,keyasint"`
	Account     identity.AccountID `cbor:"2,keyasint"` // whose ledger made the file
	Settlement  Settlement         `cbor:"3,keyasint"`
	Delegations [][]byte           `cbor:"4,keyasint"`           // of the devices that signed, and of the one whose log it is
	Checkpoint  []byte             `cbor:"5,keyasint"`           // head of Account's log, a signed note
	Entry       *Entry             `cbor:"6,keyasint,omitempty"` // nil: it does not count yet
	Extensions  []Extension        `cbor:"7,keyasint,omitempty"` // from the checkpoints in the signatures to Checkpoint
}

// IsPayment reports whether bytes begin as a payment's file.
func IsPayment(raw []byte) bool { return bytes.HasPrefix(raw, []byte(ofPayment.magic)) }

// Encode gives the file's bytes, in the form of [File.Encode] with another first word.
func (p Payment) Encode() ([]byte, error) {
	p.Version = version
	out, err := ofPayment.join(p)
	if err != nil {
		return nil, fmt.Errorf("proof of a payment: %w", err)
	}
	return out, nil
}

// decodePayment reads what [Payment.Encode] gave.
func decodePayment(body []byte) (p Payment, err error) {
	if err := wire.UnmarshalStrict(body, &p); err != nil {
		return p, fmt.Errorf("%w: %w", ErrFile, err)
	}
	again, err := wire.Marshal(p)
	switch {
	case err != nil || !bytes.Equal(again, body):
		return p, fmt.Errorf("%w: it is not in its one form", ErrFile)
	case p.Version != version:
		return p, fmt.Errorf("%w: version %d; another release made it", ErrFile, p.Version)
	case len(p.Delegations) > MaxDelegations || len(p.Extensions) > maxExtensions:
		return p, fmt.Errorf("%w: %d delegations and %d extensions", ErrFile, len(p.Delegations), len(p.Extensions))
	}
	return p, nil
}

// CheckPayment checks a payment's file with nothing but its bytes: both signatures, that their accounts let those devices sign, that both
// signed the same, and that it was booked as it is in the signed log. It never fails: what is no such file is corrupt.
func CheckPayment(raw []byte) statement.PaymentProof {
	body, damage := ofPayment.split(raw)
	if body == nil {
		return statement.PaymentProof{Result: Corrupt, Record: "file", Detail: damage.Error()}
	}
	p, err := decodePayment(body)
	if err = cmp.Or(damage, err); err != nil {
		return statement.PaymentProof{Result: Corrupt, Record: "file", Detail: err.Error()}
	}
	return p.check()
}

func (p Payment) check() statement.PaymentProof {
	c := &check{
		f:           File{Account: p.Account, Delegations: p.Delegations, Checkpoint: p.Checkpoint, Extensions: p.Extensions},
		delegations: map[wire.Hash]identity.Delegation{},
	}
	out, err := c.payment(p)
	if err == nil {
		err = c.log()
	}
	if err == nil {
		err = c.paymentEntry(p, &out)
	}
	var wrong *finding
	switch {
	case errors.As(err, &wrong):
		return statement.PaymentProof{Result: wrong.result, Record: wrong.record, Detail: wrong.detail}
	case err != nil:
		return statement.PaymentProof{Result: Corrupt, Record: "file", Detail: err.Error()}
	}
	out.Result, out.Origin, out.Entries, out.Root, out.Proven, out.NotProven = OK, c.out.Origin, c.out.Entries, c.out.Root, c.out.Proven, c.out.NotProven
	if c.minor != nil {
		out.Result, out.Record, out.Detail = c.minor.result, c.minor.record, c.minor.detail
	}
	return out
}

// payment checks the signatures, and gives the payment in words.
func (c *check) payment(p Payment) (out statement.PaymentProof, err error) {
	const record = "proposal"
	if err := c.open(); err != nil {
		return out, err
	}
	s, err := c.settlement(record, p.Settlement.Proposal)
	if err != nil {
		return out, err
	}
	c.f.Channel, c.role = s.Channel, s.Channel.RoleOf(p.Account)
	if c.role == 0 || !s.Proposal.IsZero() {
		return out, corrupt(record, "account %s, which made the file, is no side of it, or it is a countersignature", p.Account.Short())
	}
	out = statement.PaymentProof{
		ID: s.ID().String(), Renter: s.Channel.Renter.String(), Provider: s.Channel.Provider.String(), MadeBy: p.Account.String(), Unit: string(s.Channel.Unit),
		Amount: s.Amount.String(), Method: strings.ToValidUTF8(s.Method, "?"), Reference: strings.ToValidUTF8(s.Reference, "?"), Time: time.UnixMilli(s.Time).UTC(),
		Signed: []string{s.Account.String()}, Leases: []statement.ProofLease{},
	}
	for _, l := range s.Lanes {
		out.Leases = append(out.Leases, statement.ProofLease{Lease: l.Lane.String(), Listed: l.Amount.String()})
	}
	c.proven("account %s signed that %v %s were paid from account %s to account %s, by %q with reference %q: its device's signature and delegation", s.Account,
		s.Amount, s.Channel.Unit, s.Channel.Renter, s.Channel.Provider, out.Method, out.Reference)
	if len(p.Settlement.Counter) == 0 {
		c.unproven("that account %s agrees: it has not signed, or its signature is not in the file", s.Channel.Peer(s.Account))
		return out, nil
	}
	counter, err := c.settlement("countersignature", p.Settlement.Counter)
	if err == nil {
		if err = voucher.Countersigned(s, identity.Hash(p.Settlement.Proposal), counter); err != nil {
			err = forged("countersignature", err)
		}
	}
	if err != nil {
		return out, err
	}
	out.Signed = append(out.Signed, counter.Account.String())
	c.proven("account %s signed the same: its device's signature and delegation", counter.Account)
	return out, nil
}

// paymentEntry checks that the payment was booked once both had signed.
func (c *check) paymentEntry(p Payment, out *statement.PaymentProof) error {
	if len(out.Signed) < 2 {
		if p.Entry != nil {
			return corrupt("entry", "a payment that only one side signed is booked")
		}
		return nil
	}
	if p.Entry == nil {
		return corrupt("entry", "both signed, and the file does not show that it was booked")
	}
	record := fmt.Sprintf("entry %d", p.Entry.Index)
	e, err := ledger.DecodeLeaf(p.Entry.Leaf)
	if err != nil {
		return corrupt(record, "%v", err)
	}
	if err := history.CheckInclusion(hashes(p.Entry.Proof), c.head, p.Entry.Index, p.Entry.Leaf); err != nil {
		return &finding{Forged, record, "it is not the one in the signed log: " + err.Error()}
	}
	s, err := voucher.OpenSettlement(p.Settlement.Proposal)
	if err != nil {
		return forged("proposal", err)
	}
	if e.Kind != ledger.KindSettlement || e.ID != ledger.EntryID(ledger.KindSettlement, s.ID()) || e.Peer != s.Channel.Peer(p.Account) ||
		len(e.Postings) == 0 || e.Postings[0].Amount != int64(s.Amount) || e.Postings[0].Unit != s.Channel.Unit {
		return corrupt(record, "it books something else than this payment")
	}
	at := p.Entry.Index
	out.Entry = &at
	c.proven("account %s booked it as entry %d of that log: inclusion proof", p.Account, p.Entry.Index)
	c.unproven("that money moved: both say so, and only the bank, or whatever carried it, knows")
	return nil
}
