package netting

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Domains of the signed records. docs/protocol.md has the table.
const (
	DomainAgreement identity.Domain = "gpufair/clearing/1"
	DomainRefusal   identity.Domain = "gpufair/clearing-refusal/1"
)

// version is of both records.
const version = 1

// Limits of the records.
const (
	MaxWord       = 512 // bytes of a sealed agreement or refusal: under 300
	MaxDelegation = identity.MaxDelegation
	MaxDevices    = 2 * MaxParties // of a clearing: an account may pay by one and be paid by another
)

var (
	// ErrTerms says that terms are no closed circle of debts, or that they do not name who signs.
	ErrTerms = errors.New("not the terms of a clearing")
	// ErrWord says that an agreement or refusal is for another clearing, or by a device that the terms do not name.
	ErrWord = errors.New("not a word of this clearing")
)

// Leg is one debt of a clearing, with the devices whose ledgers hold its two sides.
type Leg struct {
	Debtor   identity.AccountID `cbor:"1,keyasint"`
	Creditor identity.AccountID `cbor:"2,keyasint"`
	Payer    identity.PeerID    `cbor:"3,keyasint"` // the debtor's device, with the power to pay
	Payee    identity.PeerID    `cbor:"4,keyasint"` // the creditor's device, with the power to provide
}

// Terms are what all members of a clearing sign: every leg's debt goes down by the same amount, or none does. Like a payment it is of all
// epochs of the legs' channels.
type Terms struct {
	Unit     money.Unit      `cbor:"1,keyasint"`
	Amount   money.Micro     `cbor:"2,keyasint"`
	Legs     []Leg           `cbor:"3,keyasint"` // each creditor is the debtor of the next leg, the last one's that of the first
	Last     identity.PeerID `cbor:"4,keyasint"` // the device that signs last: the one that proposed it
	Deadline int64           `cbor:"5,keyasint"` // Unix milliseconds: nobody agrees later. Who has agreed is bound beyond it
	Nonce    wire.Hash       `cbor:"6,keyasint"` // random
}

// Channel is the leg's channel, over all epochs.
func (t Terms) Channel(l Leg) ledger.Channel {
	return ledger.Channel{Renter: l.Debtor, Provider: l.Creditor, Unit: t.Unit}.AllEpochs()
}

// ID names the clearing: it is what members sign.
func (t Terms) ID() (wire.Hash, error) {
	b, err := wire.Marshal(t)
	if err != nil {
		return wire.Hash{}, err
	}
	return wire.Sum("gpufair/clearing-id/1", b), nil
}

// Validate checks that t is a simple circle: each account owes once and is owed once, by devices of which none acts for two accounts.
func (t Terms) Validate() error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s", ErrTerms, fmt.Sprintf(format, args...))
	}
	switch {
	case t.Unit.Validate() != nil:
		return fmt.Errorf("%w: %w", ErrTerms, t.Unit.Validate())
	case t.Amount == 0 || t.Amount > money.Max:
		return bad("amount %v", t.Amount)
	case len(t.Legs) < MinParties || len(t.Legs) > MaxParties:
		return bad("%d debts: want %d to %d", len(t.Legs), MinParties, MaxParties)
	case t.Deadline <= 0 || t.Nonce.IsZero():
		return bad("no deadline or no nonce")
	case !slices.Contains(t.Devices(), t.Last):
		return bad("who signs last is no member")
	}
	owner := map[identity.PeerID]identity.AccountID{}
	owes := map[identity.AccountID]bool{}
	for i, l := range t.Legs {
		next := t.Legs[(i+1)%len(t.Legs)]
		if l.Debtor.IsZero() || l.Payer.IsZero() || l.Payee.IsZero() || owes[l.Debtor] || l.Creditor != next.Debtor {
			return bad("debt %d does not go on the circle", i)
		}
		owes[l.Debtor] = true
		for _, end := range []struct {
			device  identity.PeerID
			account identity.AccountID
		}{{l.Payer, l.Debtor}, {l.Payee, l.Creditor}} {
			if was, known := owner[end.device]; known && was != end.account {
				return bad("device %s acts for two accounts", end.device.Short())
			}
			owner[end.device] = end.account
		}
	}
	return nil
}

// Devices are who must sign, once each, in the order of the circle from the device that proposed it on: each deals with the next.
func (t Terms) Devices() []identity.PeerID {
	var all []identity.PeerID
	for _, l := range t.Legs {
		for _, d := range []identity.PeerID{l.Payer, l.Payee} {
			if !slices.Contains(all, d) {
				all = append(all, d)
			}
		}
	}
	if at := slices.Index(all, t.Last); at > 0 {
		all = append(all[at:len(all):len(all)], all[:at]...)
	}
	return all
}

// Next is the device after one on the circle.
func (t Terms) Next(device identity.PeerID) identity.PeerID {
	all := t.Devices()
	return all[(slices.Index(all, device)+1)%len(all)]
}

// Side is what a device holds of a clearing: the leg in which its account is owed, and the leg in which it owes. Nil: another device of the
// account holds it.
type Side struct{ Owed, Owes *Leg }

// Side gives a device's side; both legs are nil for a device that is no member.
func (t Terms) Side(device identity.PeerID) (s Side) {
	for i := range t.Legs {
		if t.Legs[i].Payee == device {
			s.Owed = &t.Legs[i]
		}
		if t.Legs[i].Payer == device {
			s.Owes = &t.Legs[i]
		}
	}
	return s
}

// Account is for whom the device of a side acts, zero if it is no member.
func (s Side) Account() identity.AccountID {
	switch {
	case s.Owed != nil:
		return s.Owed.Creditor
	case s.Owes != nil:
		return s.Owes.Debtor
	}
	return identity.AccountID{}
}

// powers is what the side's device needs.
func (s Side) powers() (p identity.Powers) {
	if s.Owed != nil {
		p |= identity.PowerProvide
	}
	if s.Owes != nil {
		p |= identity.PowerPay
	}
	return p
}

// Agreement is a device's word that the clearing with the given id counts as soon as all of its devices have said so.
type Agreement struct {
	identity.Header
	Delegation wire.Hash `cbor:"4,keyasint"`
	Clearing   wire.Hash `cbor:"5,keyasint"` // [Terms.ID]
}

// Refusal is a device's word that it never agreed to a clearing and never will: it can't come to count any more. A device that signs both
// has lied; both records together prove it.
type Refusal struct {
	identity.Header
	Delegation wire.Hash `cbor:"4,keyasint"`
	Clearing   wire.Hash `cbor:"5,keyasint"`
}

// Word is an agreement or a refusal as it travels and is kept: with the delegation that it names.
type Word struct {
	Envelope   []byte `cbor:"1,keyasint"`
	Delegation []byte `cbor:"2,keyasint"`
}

// Said is a word that was checked.
type Said struct {
	Device  identity.PeerID `cbor:"1,keyasint"`
	Refuses bool            `cbor:"2,keyasint,omitempty"`
	Word    Word            `cbor:"3,keyasint"`
}

// Sign says by dev that it agrees to t, or refuses it.
func Sign(dev *identity.Device, t Terms, refuse bool) (Said, error) {
	if err := t.Validate(); err != nil {
		return Said{}, err
	}
	id, err := t.ID()
	if err != nil {
		return Said{}, err
	}
	var raw []byte
	if refuse {
		raw, err = dev.Seal(DomainRefusal, Refusal{Header: dev.Header(version), Delegation: dev.DelegationHash(), Clearing: id})
	} else {
		raw, err = dev.Seal(DomainAgreement, Agreement{Header: dev.Header(version), Delegation: dev.DelegationHash(), Clearing: id})
	}
	if err != nil {
		return Said{}, err
	}
	return Open(t, Word{Envelope: raw, Delegation: dev.Delegation()})
}

// Open checks a word: both signatures, that its device is a member of t and has the powers for its side.
func Open(t Terms, w Word) (Said, error) {
	if len(w.Envelope) > MaxWord || len(w.Delegation) > MaxDelegation {
		return Said{}, fmt.Errorf("word on a clearing: %w", wire.ErrTooLarge)
	}
	id, err := t.ID()
	if err != nil {
		return Said{}, err
	}
	a, err := identity.OpenMoney[Agreement](DomainAgreement, version, w.Envelope)
	refuses := false
	if err != nil {
		var r Refusal
		var other error
		if r, other = identity.OpenMoney[Refusal](DomainRefusal, version, w.Envelope); other != nil {
			return Said{}, fmt.Errorf("clearing %s: %w", id.Short(), errors.Join(err, other))
		}
		a, refuses = Agreement(r), true
	}
	side := t.Side(a.Device)
	if a.Clearing != id || side == (Side{}) || side.Account() != a.Account {
		return Said{}, fmt.Errorf("clearing %s: %w: by device %s", id.Short(), ErrWord, a.Device.Short())
	}
	d, err := identity.OpenDelegation(w.Delegation)
	if err != nil {
		return Said{}, fmt.Errorf("clearing %s: %w", id.Short(), err)
	}
	if identity.Hash(w.Delegation) != a.Delegation {
		return Said{}, fmt.Errorf("clearing %s: %w: it names another delegation", id.Short(), ErrWord)
	}
	if err := d.Allows(a.Header, side.powers()); err != nil {
		return Said{}, fmt.Errorf("clearing %s: %w", id.Short(), err)
	}
	return Said{Device: a.Device, Refuses: refuses, Word: w}, nil
}
