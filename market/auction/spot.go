package auction

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
	"time"

	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Times of spot (spec: Four).
const (
	SpotMinRun     = 5 * time.Minute  // that a challenger pays at least, and that is free if it is preempted before
	SpotNotice     = 60 * time.Second // from the Outbid to SIGTERM; the incumbent may raise within it
	SpotAnswer     = 15 * time.Second // that a raise gives the challenger
	SpotLower      = 60 * time.Second // until a lower rate takes effect, and between two of them
	SpotUnproven   = 10 * time.Minute // off the incumbent's charge if it is not shown the challenger's lease and first receipt
	spotStep       = 20               // a challenger beats an incumbent by a 20th, which is 5 %
	maxSpotRunning = market.MaxSlots
	maxSpotBids    = 4096
)

// SpotBid is a renter's binding bid for GPUs that run until somebody bids more. The most that its renter would pay stays on the
// renter's machine: its agent raises in steps, so that there is nothing for the seller to peek at.
type SpotBid struct {
	identity.Header
	Delegation wire.Hash          `cbor:"4,keyasint"`
	Offer      wire.Hash          `cbor:"5,keyasint"`
	Provider   identity.AccountID `cbor:"6,keyasint"`
	Lot        uint8              `cbor:"7,keyasint"`
	Quantity   uint32             `cbor:"8,keyasint"` // GPUs, all or none
	Rate       money.Rate         `cbor:"9,keyasint"` // per GPU-hour
	Unit       money.Unit         `cbor:"10,keyasint"`
	MinRun     uint32             `cbor:"11,keyasint"` // seconds that it pays at least once it runs
	Nonce      wire.Hash          `cbor:"12,keyasint"` // of the lease: all bids of one lease have it
	Seq        uint64             `cbor:"13,keyasint"` // from 1; of one lease's bids the highest counts
	Needs      wire.Hash          `cbor:"14,keyasint"`
	Use        wire.Hash          `cbor:"15,keyasint"`
	Voucher    wire.Hash          `cbor:"16,keyasint"`
}

// ID is the id of the lease that the bid makes, as that of an Accept: raises keep it.
func (b SpotBid) ID() market.LeaseID {
	return market.LeaseID(wire.Sum("gpufair/lease/1", b.Offer[:], b.Account[:], b.Nonce[:]))
}

// Validate checks the limits of a spot bid.
func (b SpotBid) Validate() error {
	const what = "spot bid"
	switch {
	case b.Delegation.IsZero() || b.Offer.IsZero() || b.Provider.IsZero() || b.Nonce.IsZero() || b.Needs.IsZero() || b.Voucher.IsZero():
		return invalid(what, "delegation, offer, provider, nonce, needs and voucher must all be there")
	case b.Quantity == 0 || b.Quantity > market.MaxSlots:
		return invalid(what, "%d GPUs, want 1 to %d", b.Quantity, market.MaxSlots)
	case b.Rate == 0 || b.Rate > market.MaxRate:
		return invalid(what, "rate %v, want more than 0 and at most %v", b.Rate, market.MaxRate)
	case millis(b.MinRun)*1000 < SpotMinRun || b.MinRun > market.MaxTerm:
		return invalid(what, "minimum run of %d s, want %.0f to %d", b.MinRun, SpotMinRun.Seconds(), market.MaxTerm)
	case b.Seq == 0:
		return invalid(what, "sequence 0")
	}
	if err := b.Unit.Validate(); err != nil {
		return invalid(what, "%v", err)
	}
	return nil
}

// Outbid is the seller's notice to a running spot lease, with the signed bid that beats it, so that nobody is pushed by a rumour.
type Outbid struct {
	identity.Header
	Delegation wire.Hash      `cbor:"4,keyasint"`
	Lease      market.LeaseID `cbor:"5,keyasint"`
	Challenger []byte         `cbor:"6,keyasint"` // the SpotBid's envelope
	Notice     uint32         `cbor:"7,keyasint"` // seconds
}

// Validate checks the limits of a notice.
func (o Outbid) Validate() error {
	switch {
	case o.Delegation.IsZero() || wire.Hash(o.Lease).IsZero():
		return invalid("outbid", "delegation and lease must both be there")
	case len(o.Challenger) == 0 || len(o.Challenger) > MaxSpotBid:
		return invalid("outbid", "a bid of %d bytes", len(o.Challenger))
	case o.Notice == 0 || o.Notice > market.MaxNotice:
		return invalid("outbid", "notice of %d s, want 1 to %d", o.Notice, market.MaxNotice)
	}
	return nil
}

// ReadSpotBid checks size, signature and limits of a sealed spot bid.
func ReadSpotBid(raw []byte) (SpotBid, error) { return read[SpotBid](DomainSpotBid, raw, MaxSpotBid) }

// ReadOutbid checks size, signature and limits of a sealed notice and of the bid inside.
func ReadOutbid(raw []byte) (Outbid, SpotBid, error) {
	o, err := read[Outbid](DomainOutbid, raw, MaxOutbid)
	if err != nil {
		return Outbid{}, SpotBid{}, err
	}
	b, err := ReadSpotBid(o.Challenger)
	if err != nil {
		return Outbid{}, SpotBid{}, fmt.Errorf("open %s: challenger: %w", DomainOutbid, err)
	}
	return o, b, nil
}

// CheckOutbid judges, for the incumbent whose newest bid is own, a notice by the seller of its lease: the challenger bids for the same
// lot, in the same unit, and enough. again says that this challenger gave notice before and was answered, which leaves less time. The error
// is a [reason.Error]; the notice is then none.
func CheckOutbid(o Outbid, challenger, own SpotBid, again bool) error {
	least := SpotNotice
	if again {
		least = SpotAnswer
	}
	switch {
	case o.Account != own.Provider || o.Lease != own.ID():
		return reason.Errorf(reason.LeaseInvalid, "the notice is by another seller or for another lease")
	case challenger.Provider != own.Provider || challenger.Lot != own.Lot || challenger.Unit != own.Unit:
		return reason.Errorf(reason.LeaseInvalid, "the challenger bids for something else")
	case challenger.Account == own.Account:
		return reason.Errorf(reason.LeaseInvalid, "the challenger is the same account")
	case millis(o.Notice)*1000 < least:
		return reason.Errorf(reason.LeaseInvalid, "%d s of notice, it is %.0f at least", o.Notice, least.Seconds())
	case challenger.Rate < ToBeat(own.Rate):
		return reason.Errorf(reason.RaiseTooSmall, "it bids %v, %v beats %v", challenger.Rate, ToBeat(own.Rate), own.Rate)
	}
	return nil
}

// ToBeat is the lowest rate that beats r: 5 % more, rounded up, and at least one micro-unit.
func ToBeat(r money.Rate) money.Rate { return r + max(1, (r+spotStep-1)/spotStep) }

// Raise is the next bid of an agent whose renter pays at most limit, when it must beat a rate: the lowest that does; false if that is
// over the limit. The limit itself is never shown: where it lies between the rate and the step, the agent gives up.
func Raise(beat, limit money.Rate) (money.Rate, bool) {
	next := ToBeat(beat)
	return next, next <= limit
}

// Preempted is what a spot lease that was outbid comes to: nothing before its minimum run, and otherwise its charge. The owner or a
// buyer at the offer's price outrank every spot bid by the same rule.
func Preempted(charge money.Micro, ran, minRun time.Duration) money.Micro {
	if ran < minRun {
		return 0
	}
	return charge
}

// Phantom is what comes off a lease's charge after a take-over whose challenger was never shown to be real: ten minutes of its rent.
func Phantom(charge money.Micro, rate money.Rate, quantity uint32) money.Micro {
	off, err := money.Charge(rate, quantity, uint64(SpotUnproven.Milliseconds()))
	if err != nil {
		return 0
	}
	return Discounted(charge, off)
}

// SpotOrder is a spot bid as the rules see it.
type SpotOrder struct {
	ID       market.LeaseID
	Quantity uint32
	Rate     money.Rate
	Since    uint64 // when the seller first had it, or it began to run: any number that rises
}

// hour is what the order pays an hour.
func (o SpotOrder) hour() uint64 { return uint64(o.Rate) * uint64(o.Quantity) }

// SpotPlan is what a seller does next with a lot.
type SpotPlan struct {
	Start    []market.LeaseID // standing bids that fill free GPUs now
	TakeOver *TakeOver        // at most one at a time: the next is judged when this one is decided
}

// TakeOver is a standing bid that beats running ones.
type TakeOver struct {
	Challenger market.LeaseID
	Out        []market.LeaseID // that get its notice
}

// SpotNext says which standing bids start on the lot's free GPUs and which running ones get notice. The rules:
//
//  1. A bid below the floor waits. Of the others the highest rate comes first, then the earliest.
//  2. Whoever fits into the free GPUs starts. A bid behind one that does not fit may start if it fits: GPUs do not idle for a bundle.
//  3. The first that does not fit takes over if free GPUs and those of running bids that it beats are enough: it beats a running bid by
//     the step of [ToBeat] on the rate, and all that it pushes out together on what they pay an hour. It pushes out the lowest rates
//     first, of equal ones the latest, and none that it does not need; the free GPUs wait for it.
//
// The error wraps ErrInvalid where there are more GPUs running than the lot has, or too many bids.
func SpotNext(gpus uint32, floor money.Rate, running, standing []SpotOrder) (SpotPlan, error) {
	used := uint64(0)
	for _, r := range running {
		used += uint64(r.Quantity)
	}
	if used > uint64(gpus) || gpus > market.MaxSlots || len(running) > maxSpotRunning || len(standing) > maxSpotBids {
		return SpotPlan{}, invalid("spot", "%d of %d GPUs run, %d bids wait", used, gpus, len(standing))
	}
	free := gpus - uint32(used)
	queue := slices.Clone(standing)
	slices.SortFunc(queue, func(a, b SpotOrder) int {
		return cmp.Or(cmp.Compare(b.Rate, a.Rate), cmp.Compare(a.Since, b.Since), slices.Compare(a.ID[:], b.ID[:]))
	})
	var plan SpotPlan
	for _, s := range queue {
		switch {
		case s.Rate < floor || s.Quantity == 0 || s.Quantity > gpus:
		case s.Quantity <= free:
			plan.Start = append(plan.Start, s.ID)
			free -= s.Quantity
		case plan.TakeOver == nil:
			if out := pushes(s, free, running); out != nil {
				plan.TakeOver = &TakeOver{Challenger: s.ID, Out: out}
				free = 0
			}
		}
	}
	return plan, nil
}

// pushes is whom s takes over from, or nil if it cannot.
func pushes(s SpotOrder, free uint32, running []SpotOrder) (out []market.LeaseID) {
	weak := slices.Clone(running)
	slices.SortFunc(weak, func(a, b SpotOrder) int {
		return cmp.Or(cmp.Compare(a.Rate, b.Rate), cmp.Compare(b.Since, a.Since), slices.Compare(a.ID[:], b.ID[:]))
	})
	n, have := 0, free
	for n < len(weak) && have < s.Quantity && s.Rate >= ToBeat(weak[n].Rate) {
		have += weak[n].Quantity
		n++
	}
	if have < s.Quantity {
		return nil
	}
	pay := uint64(0)
	for i := n - 1; i >= 0; i-- { // from the highest rate: none that it does not need
		if have-weak[i].Quantity >= s.Quantity {
			have -= weak[i].Quantity
			continue
		}
		pay, out = pay+weak[i].hour(), append(out, weak[i].ID)
	}
	if hi, lo := bits.Mul64(pay, spotStep+1); hi == 0 && s.hour()*spotStep < lo {
		return nil
	}
	slices.Reverse(out)
	return out
}
