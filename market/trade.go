package market

import (
	"bytes"
	"slices"
	"time"

	"github.com/gpufair/gpufair/benchmark"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

type figure = benchmark.Figure

// Limits of a lease's windows, in seconds.
const (
	maxReadyIn   = 600
	maxPrepareIn = 24 * 3600
)

// Validate checks the limits of an accept, whatever offer it is for.
func (a Accept) Validate() error {
	const what = "accept"
	switch {
	case a.Delegation.IsZero():
		return invalid(what, "no delegation")
	case a.Offer.IsZero():
		return invalid(what, "no offer")
	case a.Provider.IsZero():
		return invalid(what, "no provider")
	case a.Quantity == 0 || a.Quantity > MaxSlots:
		return invalid(what, "%d devices, want 1 to %d", a.Quantity, MaxSlots)
	case a.Rate > MaxRate:
		return invalid(what, "rate %v, want at most %v", a.Rate, MaxRate)
	case a.Term == 0 || a.Term > MaxTerm:
		return invalid(what, "term of %d s, want 1 to %d", a.Term, MaxTerm)
	case a.Nonce.IsZero():
		return invalid(what, "no nonce")
	case a.Needs.IsZero():
		return invalid(what, "no needs")
	case a.Voucher.IsZero():
		return invalid(what, "no opening voucher")
	}
	if err := a.Unit.Validate(); err != nil {
		return invalid(what, "%v", err)
	}
	return nil
}

// Validate checks the limits of a lease, whatever accept it answers.
func (l Lease) Validate() error {
	const what = "lease"
	switch {
	case l.Delegation.IsZero():
		return invalid(what, "no delegation")
	case wire.Hash(l.ID).IsZero():
		return invalid(what, "no id")
	case len(l.Accept) == 0 || len(l.Accept) > MaxAccept:
		return invalid(what, "an accept of %d bytes", len(l.Accept))
	case max(l.Hold, l.Credit) > money.Max:
		return invalid(what, "a hold or credit over %v", money.Max)
	case l.ReadyIn == 0 || l.ReadyIn > maxReadyIn:
		return invalid(what, "%d s until it is withdrawn, want 1 to %d", l.ReadyIn, maxReadyIn)
	case l.PrepareIn > maxPrepareIn:
		return invalid(what, "%d s of free preparing, want at most %d", l.PrepareIn, maxPrepareIn)
	}
	return checkSlots(what, l.Slots)
}

func checkSlots(what string, slots []SlotGeneration) error {
	if len(slots) == 0 || len(slots) > MaxSlots {
		return invalid(what, "%d devices, want 1 to %d", len(slots), MaxSlots)
	}
	seen := make(map[wire.Hash]bool, len(slots))
	for _, s := range slots {
		switch {
		case s.Device.IsZero():
			return invalid(what, "a device without an id")
		case s.Generation == 0:
			return invalid(what, "device %s at generation 0", s.Device.Short())
		case seen[s.Device]:
			return invalid(what, "device %s twice", s.Device.Short())
		}
		seen[s.Device] = true
	}
	return nil
}

// Validate checks the limits of a ready.
func (r Ready) Validate() error {
	if r.Delegation.IsZero() || wire.Hash(r.Lease).IsZero() || r.Hash.IsZero() {
		return invalid("ready", "delegation, lease and hash must all be there")
	}
	return nil
}

// Validate checks the limits of a release.
func (r Release) Validate() error {
	switch {
	case r.Delegation.IsZero() || wire.Hash(r.Lease).IsZero():
		return invalid("release", "delegation and lease must both be there")
	case r.Charge > money.Max:
		return invalid("release", "charge over %v", money.Max)
	case r.Beat == 0 && r.Charge != 0:
		return invalid("release", "a charge of %v without a beat that claimed it", r.Charge)
	}
	return checkReason("release", r.Reason)
}

// Validate checks the limits of an end.
func (e End) Validate() error {
	switch {
	case e.Delegation.IsZero() || wire.Hash(e.Lease).IsZero():
		return invalid("end", "delegation and lease must both be there")
	case e.Charge > money.Max:
		return invalid("end", "charge over %v", money.Max)
	case e.Billable > MaxTerm*1000:
		return invalid("end", "%d billable ms, want at most %d", e.Billable, uint64(MaxTerm)*1000)
	case e.Exit != nil && len(e.Exit.Signal) > 16:
		return invalid("end", "signal %q", clip(e.Exit.Signal))
	}
	if err := checkSlots("end", e.Slots); err != nil {
		return err
	}
	return checkReason("end", e.Reason)
}

func checkReason(what string, r reason.Reason) error {
	switch {
	case r.Code == "" || len(r.Code) > 64:
		return invalid(what, "reason code of %d bytes", len(r.Code))
	case len(r.Detail) > reason.MaxDetail:
		return invalid(what, "reason of %d bytes, want at most %d", len(r.Detail), reason.MaxDetail)
	}
	return nil
}

// Hold is what a lease holds on the renter's credit: rate x devices x minimum term, rounded down once.
func Hold(rate money.Rate, devices, minTerm uint32) (money.Micro, error) {
	return money.Charge(rate, devices, uint64(minTerm)*1000)
}

// CheckAccept judges an accept against the provider's offer of that hash, at now. The error is a [reason.Error]. Credit, free devices
// in the store, and the powers of the renter's device are for the caller.
func CheckAccept(o SealedOffer, a Accept, now time.Time) error {
	if o.Lapsed(now) && a.Provider == o.Account && a.Offer == o.Hash {
		return reason.Errorf(reason.OfferExpired, "issued %s ago for %d s", now.Sub(o.Issued()).Round(time.Second), o.TTL)
	}
	if err := checkTerms(o, a); err != nil {
		return err
	}
	if l, _ := o.Lot(a.Lot); a.Rate < l.Price {
		return reason.Errorf(reason.PriceBelow, "%v asked, %v offered", l.Price, a.Rate)
	}
	return nil
}

// checkTerms judges what an accept takes of an offer besides the price and whether it still stands.
func checkTerms(o SealedOffer, a Accept) error {
	switch {
	case a.Provider != o.Account:
		return reason.Errorf(reason.OfferUnknown, "the accept is for provider %s, the offer is by %s", a.Provider.Short(), o.Account.Short())
	case a.Offer != o.Hash:
		return reason.Errorf(reason.OfferUnknown, "the accept names offer %s, not %s", a.Offer.Short(), o.Hash.Short())
	case a.Unit != o.Unit:
		return reason.Errorf(reason.UnknownUnit, "the accept counts in %s, the offer in %s", a.Unit, o.Unit)
	case a.Use != o.Terms.Use:
		return reason.Errorf(reason.TermsChanged, "the accept names terms %s, the offer %s", a.Use.Short(), o.Terms.Use.Short())
	}
	l, ok := o.Lot(a.Lot)
	switch {
	case !ok:
		return reason.Errorf(reason.OfferUnknown, "it has no lot %d", a.Lot)
	case int(a.Quantity) > len(l.Slots):
		return reason.Errorf(reason.ResourcesExceeded, "%d devices asked, the lot has %d", a.Quantity, len(l.Slots))
	case a.Term < l.MinTerm || a.Term > l.MaxTerm:
		return reason.Errorf(reason.TermOutOfRange, "%d s, the lot is let for %d to %d s", a.Term, l.MinTerm, l.MaxTerm)
	}
	return nil
}

// CheckLease judges, for the renter, the lease that a provider gave for acceptRaw under offer o: same accept bytes, id, provider and
// device, as many devices as were ordered and all of the lot, and the right hold. The error is a [reason.Error] of code
// lease_invalid. The lease must come from [OpenLease]; the power of its device is for the caller.
func CheckLease(o SealedOffer, acceptRaw []byte, l Lease) error {
	a, err := OpenAccept(acceptRaw)
	if err != nil {
		return err
	}
	bad := func(format string, args ...any) error { return reason.Errorf(reason.LeaseInvalid, format, args...) }
	switch {
	case !bytes.Equal(l.Accept, acceptRaw):
		return bad("it holds another accept")
	case a.Offer != o.Hash:
		return bad("the accept names offer %s, not %s", a.Offer.Short(), o.Hash.Short())
	case l.ID != a.ID():
		return bad("its id is %s, not %s", l.ID.Short(), a.ID().Short())
	case l.Account != o.Account || l.Account != a.Provider:
		return bad("it is by account %s, the offer by %s", l.Account.Short(), o.Account.Short())
	case l.Device != o.Device:
		return bad("it is by device %s, the offer by %s", l.Device.Short(), o.Device.Short())
	case len(l.Slots) != int(a.Quantity):
		return bad("it has %d devices, %d were ordered", len(l.Slots), a.Quantity)
	}
	lot, ok := o.Lot(a.Lot)
	if !ok {
		return bad("the offer has no lot %d", a.Lot)
	}
	offered := make(map[wire.Hash]bool, len(lot.Slots))
	for _, s := range lot.Slots {
		offered[s.Device] = true
	}
	for _, s := range l.Slots {
		if !offered[s.Device] {
			return bad("device %s is not of the lot", s.Device.Short())
		}
	}
	hold, err := Hold(a.Rate, a.Quantity, lot.MinTerm)
	if err != nil {
		return bad("%v", err)
	}
	if l.Hold != hold {
		return bad("it holds %v, rate x minimum term is %v", l.Hold, hold)
	}
	return nil
}

// CheckReady judges a ready against the lease: signed by the device that signed the accept, and for exactly those bytes.
func CheckReady(r Ready, a Accept, leaseRaw []byte) error {
	switch {
	case r.Account != a.Account || r.Device != a.Device:
		return reason.Errorf(reason.DelegationPowers, "the ready is by device %s, the accept by %s", r.Device.Short(), a.Device.Short())
	case r.Lease != a.ID() || r.Hash != identity.Hash(leaseRaw):
		return reason.Errorf(reason.LeaseInvalid, "the ready names another lease")
	}
	return nil
}

// CheckEnd judges, for the renter, a provider's end of lease l: same account, lease, devices and generations.
func CheckEnd(e End, l Lease) error {
	switch {
	case e.Account != l.Account || e.Device != l.Device:
		return reason.Errorf(reason.LeaseInvalid, "the end is by device %s, the lease by %s", e.Device.Short(), l.Device.Short())
	case e.Lease != l.ID:
		return reason.Errorf(reason.LeaseInvalid, "the end names lease %s, not %s", e.Lease.Short(), l.ID.Short())
	case len(e.Slots) != len(l.Slots):
		return reason.Errorf(reason.LeaseInvalid, "the end frees %d devices of %d", len(e.Slots), len(l.Slots))
	}
	for i := range e.Slots {
		if e.Slots[i] != l.Slots[i] {
			return reason.Errorf(reason.LeaseInvalid, "the end frees another device or generation than the lease took")
		}
	}
	return nil
}

// DoubleLease reports whether two sealed leases prove that their provider let one device twice: equal account, slot and generation,
// different ids (spec: market, Buy now). It gives the slot. Both must open; an error says which does not.
func DoubleLease(rawA, rawB []byte) (SlotGeneration, bool, error) {
	a, err := OpenLease(rawA)
	if err != nil {
		return SlotGeneration{}, false, err
	}
	b, err := OpenLease(rawB)
	if err != nil {
		return SlotGeneration{}, false, err
	}
	if a.Account != b.Account || a.ID == b.ID {
		return SlotGeneration{}, false, nil
	}
	for _, s := range a.Slots {
		if slices.Contains(b.Slots, s) {
			return s, true, nil
		}
	}
	return SlotGeneration{}, false, nil
}
