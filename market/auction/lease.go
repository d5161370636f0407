package auction

import (
	"bytes"
	"fmt"

	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// MeterRate is how a winner's lease is metered: as one bundle at what it pays an hour, since a price for each GPU may be a fraction of a
// micro-unit.
func (w Win) MeterRate() (rate money.Rate, bundles uint32) { return money.Rate(w.Pay), 1 }

// Hold is what a winner's lease holds: the minimum term at what it pays. It takes the place of the hold of the commit.
func (w Win) Hold(minTerm uint32) (money.Micro, error) {
	rate, bundles := w.MeterRate()
	return market.Hold(rate, bundles, minTerm)
}

// Lease is the unsigned lease of a win for the seller to sign: the winner's opening stands where a sale has its Accept. It is given the
// slots that the seller's store took, and the credit limit.
func Lease(seller *identity.Device, o Open, opening Opening, w Win, slots []market.SlotGeneration, credit money.Micro) (market.Lease, error) {
	raw, err := opening.Encode()
	if err != nil {
		return market.Lease{}, fmt.Errorf("lease of leaf %d: %w", w.Leaf, err)
	}
	_, c, err := DecodeOpening(raw)
	if err != nil {
		return market.Lease{}, fmt.Errorf("lease of leaf %d: %w", w.Leaf, err)
	}
	hold, err := w.Hold(o.MinTerm)
	if err != nil {
		return market.Lease{}, fmt.Errorf("lease of leaf %d: %w", w.Leaf, err)
	}
	return market.Lease{
		Header: seller.Header(market.Version), Delegation: seller.DelegationHash(), ID: opening.Lease(c.Auction, c.Account), Accept: raw,
		Slots: slots, Hold: hold, Credit: credit, ReadyIn: work.ReadyIn, PrepareIn: work.PrepareIn,
	}, nil
}

// AcceptOf is the order that a winning opening is, as the two agents meter it: one bundle at what it pays an hour, and the auction in the
// place of the offer, so that its id is that of the lease. It is a value only; what was signed is the commit.
func AcceptOf(o Open, opening Opening, pay money.Micro) (market.Accept, error) {
	c, err := ReadCommit(opening.Commit)
	if err != nil {
		return market.Accept{}, err
	}
	b, err := DecodeBid(opening.Bid)
	if err != nil {
		return market.Accept{}, err
	}
	rate, bundles := Win{Pay: pay}.MeterRate()
	return market.Accept{
		Header: c.Header, Delegation: c.Delegation, Offer: wire.Hash(c.Auction), Provider: o.Account, Lot: o.Lot, Quantity: bundles, Rate: rate, Unit: b.Unit,
		Term: b.Term, Nonce: opening.Nonce, Needs: b.Needs, Use: b.Use, Voucher: b.Voucher,
	}, nil
}

// CheckLease judges, for a winner, the lease that its opening got: by the seller's account and device, for that opening, with as many of
// the lot's devices as it won, and the hold that its price makes. The error is a [reason.Error].
func CheckLease(o Open, lot market.Lot, opening Opening, w Win, l market.Lease) error {
	if err := leaseFits(o, opening, w, l); err != nil {
		return err
	}
	offered := make(map[wire.Hash]bool, len(lot.Slots))
	for _, s := range lot.Slots {
		offered[s.Device] = true
	}
	for _, s := range l.Slots {
		if !offered[s.Device] {
			return reason.Errorf(reason.LeaseInvalid, "device %s is not of the lot", s.Device.Short())
		}
	}
	return nil
}

func leaseFits(o Open, opening Opening, w Win, l market.Lease) error {
	bad := func(format string, args ...any) error { return reason.Errorf(reason.LeaseInvalid, format, args...) }
	raw, err := opening.Encode()
	if err != nil {
		return bad("%v", err)
	}
	c, err := ReadCommit(opening.Commit)
	if err != nil {
		return bad("%v", err)
	}
	hold, err := w.Hold(o.MinTerm)
	if err != nil {
		return bad("%v", err)
	}
	switch {
	case !bytes.Equal(l.Accept, raw):
		return bad("it is for another opening")
	case l.ID != opening.Lease(c.Auction, c.Account):
		return bad("its id is %s, the opening makes %s", l.ID.Short(), opening.Lease(c.Auction, c.Account).Short())
	case l.Account != o.Account || l.Device != o.Device:
		return bad("it is by device %s, the auction by %s", l.Device.Short(), o.Device.Short())
	case len(l.Slots) != int(w.Quantity):
		return bad("it has %d devices, %d were won", len(l.Slots), w.Quantity)
	case l.Hold != hold:
		return bad("it holds %v, the minimum term at %s is %v", l.Hold, perHour(w.Pay), hold)
	}
	return nil
}

// judgeLeases looks for a device that was leased twice, and for winners whose lease is not what they won.
func (c *checker) judgeLeases() {
	var good []signed[market.Lease]
	for i, raw := range c.t.Leases {
		l, err := market.OpenLease(raw)
		if err == nil && l.Account != c.r.Open.Account {
			err = fmt.Errorf("it is by account %s, not by the seller", l.Account.Short())
		}
		if err == nil {
			err = c.signers.allow(l.Delegation, l.Header, identity.PowerProvide)
		}
		if err != nil {
			c.note("lease %d was left out: %v", i+1, err)
			continue
		}
		for _, o := range good {
			if slot, double, err := market.DoubleLease(o.raw, raw); err == nil && double && !c.r.Has(DoubleLease) {
				f := Fraud{Kind: DoubleLease, Records: [][]byte{o.raw, raw}}
				c.r.Faults = append(c.r.Faults, Fault{
					Kind:  DoubleLease,
					Words: fmt.Sprintf("the seller leased device %s twice in its generation %d", slot.Device.Short(), slot.Generation),
					Proof: f.withDelegations(c.t.Delegations),
				})
			}
		}
		good = append(good, signed[market.Lease]{body: l, raw: raw})
		c.compareLease(l)
	}
}

// compareLease notes a lease of a winner that is not what it won: the winner owes nothing on it until it says that it is ready.
func (c *checker) compareLease(l market.Lease) {
	for _, w := range c.r.Price {
		if w.Lease != l.ID {
			continue
		}
		opening := c.t.Opening(*c.leaves[w.Leaf].shown)
		if err := leaseFits(c.r.Open, opening, w.Win, l); err != nil {
			c.note("the lease of leaf %d is not what it won: %v", w.Leaf, err)
		}
	}
}
