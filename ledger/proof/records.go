package proof

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/meter"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/statement"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/p2p/identity"
)

// vouchers checks signature, delegation, cap and order of the vouchers. Two with one sequence are the renter's forgery, and leave the
// figures of the first standing.
func (c *check) vouchers() error {
	if len(c.f.Vouchers) == 0 {
		return corrupt("voucher 0", "it is missing: every lane opens with one")
	}
	var rules voucher.Lane
	for i, raw := range c.f.Vouchers {
		v, err := voucher.Open(raw)
		if err != nil {
			return forged(fmt.Sprintf("voucher in place %d", i), err)
		}
		record := fmt.Sprintf("voucher %d", v.Seq)
		if err := c.allowed(record, v.Header, v.Delegation, identity.PowerPay); err != nil {
			return err
		}
		if i == 0 {
			rules = voucher.Lane{Channel: c.f.Channel, Lane: c.f.Lane, Device: v.Device, Powers: c.delegations[v.Delegation], Proof: v.Delegation}
		}
		if err := c.next(&rules, record, v); err != nil {
			return err
		}
		if err := c.carries(record, v.Checkpoint, v.Device); err != nil {
			return err
		}
	}
	c.newest = *rules.Last
	c.proven("account %s promises account %s %v %s in all for %d.%03d %q of lease %s: signature of voucher %d", c.f.Channel.Renter,
		c.f.Channel.Provider, c.newest.Amount, c.f.Channel.Unit, c.newest.Quantity/1000, c.newest.Quantity%1000, c.newest.Resource, c.f.Lane, c.newest.Seq)
	c.proven("that account let device %s sign for it: signature of its delegation", c.newest.Device)
	return nil
}

// next judges one more voucher of the lane.
func (c *check) next(rules *voucher.Lane, record string, v voucher.Signed) error {
	verdict, err := rules.Next(v, func(uint64) []byte { return nil })
	switch {
	case errors.Is(err, voucher.ErrEquivocation):
		c.note(&finding{Forged, record, fmt.Sprintf("account %s signed two with this sequence: %s promises %v, %s promises %v",
			v.Account, rules.Last.Hash.Short(), rules.Last.Amount, v.Hash.Short(), v.Amount)})
		return nil
	case errors.Is(err, voucher.ErrLane):
		return corrupt(record, "it is of lane %s, the file is about %s", v.Lane.Short(), c.f.Lane.Short())
	case errors.Is(err, voucher.ErrOld) || errors.Is(err, voucher.ErrOpening) || err == nil && verdict != voucher.New:
		return corrupt(record, "it is not in the order of sequences, which begins with the opening voucher")
	case err != nil:
		return forged(record, err)
	}
	rules.Last = &v
	return nil
}

// rates computes the newest voucher's amount again.
func (c *check) rates() error {
	if len(c.f.Segments) == 0 {
		if c.newest.Amount > 0 {
			c.unproven("the rate: the rate segments that voucher %d was computed from are not in the file", c.newest.Seq)
		}
		return nil
	}
	digest, err := meter.Hash(c.f.Segments)
	if err != nil {
		return corrupt("rate segments", "%v", err)
	}
	if digest != c.newest.Segments {
		return &finding{Forged, "rate segments", fmt.Sprintf("they are not those that voucher %d was signed for", c.newest.Seq)}
	}
	most, err := meter.Charge(c.f.Segments)
	if err != nil {
		return corrupt("rate segments", "%v", err)
	}
	quantity, err := meter.Quantity(c.f.Segments)
	if err != nil {
		return corrupt("rate segments", "%v", err)
	}
	if c.newest.Amount > most || c.newest.Quantity < quantity {
		return corrupt(fmt.Sprintf("voucher %d", c.newest.Seq), "it promises %v for %d device-milliseconds, its rate segments come to %v for %d",
			c.newest.Amount, c.newest.Quantity, most, quantity)
	}
	for _, s := range c.f.Segments {
		charge, err := money.Charge(s.Rate, s.Devices, s.Ms)
		if err != nil {
			return corrupt("rate segments", "%v", err)
		}
		c.out.Rates = append(c.out.Rates, statement.ProofRate{Rate: s.Rate.String(), Devices: s.Devices, Millis: s.Ms, Charge: charge.String()})
	}
	c.proven("the amount is within what its %d rate segments come to, %v, computed again", len(c.f.Segments), most)
	return nil
}

// receipt checks the provider's word that it has a voucher.
func (c *check) receipt() error {
	if len(c.f.Receipt) == 0 {
		c.unproven("that account %s has voucher %d: there is no receipt", c.f.Channel.Provider.Short(), c.newest.Seq)
		return nil
	}
	r, err := voucher.OpenReceipt(c.f.Receipt)
	if err != nil {
		return forged("receipt", err)
	}
	if r.Account != c.f.Channel.Provider {
		return &finding{Forged, "receipt", fmt.Sprintf("account %s signed it, which is not the provider", r.Account)}
	}
	if err := c.allowed("receipt", r.Header, r.Delegation, identity.PowerProvide); err != nil {
		return err
	}
	for _, raw := range c.f.Vouchers {
		if v, err := voucher.Open(raw); err == nil && v.Hash == r.Voucher {
			c.received = &v
		}
	}
	if c.received == nil {
		return corrupt("receipt", "it is for voucher %s, which is not in the file", r.Voucher.Short())
	}
	if c.received.Seq != c.newest.Seq {
		c.unproven("that account %s has voucher %d: its receipt is for voucher %d", c.f.Channel.Provider.Short(), c.newest.Seq, c.received.Seq)
	}
	c.proven("account %s has voucher %d, of %v: signature of its receipt", r.Account, c.received.Seq, c.received.Amount)
	return c.carries("receipt", r.Checkpoint, r.Device)
}

// paid is what payments that both signed may have paid of the lane.
type paid struct {
	all    money.Micro                 // of every payment that lists the lane, and of circles
	sum    money.Micro                 // of the payments alone
	most   map[ledger.Lane]money.Micro // listed in them, of each lane
	alone  money.Micro                 // of those that list no other
	listed money.Micro                 // the lane's amount in the newest of those
	full   money.Micro                 // the lane's amount in payments that cover all that they list
}

func (p *paid) add(s voucher.Settlement, lane money.Micro) error {
	if p.most == nil {
		p.most = map[ledger.Lane]money.Micro{}
	}
	var listed money.Micro
	var err error
	for _, l := range s.Lanes {
		if listed, err = money.Add(listed, l.Amount); err != nil {
			return err
		}
		p.most[l.Lane] = max(p.most[l.Lane], l.Amount)
	}
	if p.all, err = money.Add(p.all, s.Amount); err != nil {
		return err
	}
	if p.sum, err = money.Add(p.sum, s.Amount); err != nil {
		return err
	}
	if len(s.Lanes) == 1 {
		p.alone, err = money.Add(p.alone, s.Amount)
		p.listed = max(p.listed, lane)
	}
	if s.Amount >= listed {
		p.full = max(p.full, lane)
	}
	return err
}

// between gives how much of owed is paid, at least and at most, when a payment counts first for the leases that it lists. What the other
// leases that the payments list can't have taken is the lane's.
func (p paid) between(lane ledger.Lane, owed money.Micro) (low, high money.Micro) {
	rest := p.sum
	for l, most := range p.most {
		if l != lane {
			rest -= min(rest, most)
		}
	}
	return min(owed, max(p.full, min(p.alone, p.listed), min(rest, p.most[lane]))), min(owed, p.all)
}

// settlements checks the payments made outside that list the lane.
func (c *check) settlements() error {
	seen := map[string]bool{}
	for i, raw := range c.f.Settlements {
		record := fmt.Sprintf("settlement %d", i)
		s, err := c.settlement(record, raw.Proposal)
		if err != nil {
			return err
		}
		record = "settlement " + s.ID().Short()
		lane, listed := laneIn(s, c.f.Lane)
		switch {
		case !s.Channel.Covers(c.f.Channel) || !listed:
			return corrupt(record, "it is of another channel, or does not list the lane")
		case seen[s.ID().String()]:
			return corrupt(record, "it is there twice")
		}
		seen[s.ID().String()] = true
		row := statement.ProofSettlement{
			ID: s.ID().String(), Amount: s.Amount.String(), Listed: lane.String(), Method: strings.ToValidUTF8(s.Method, "?"),
			Reference: strings.ToValidUTF8(s.Reference, "?"), Time: time.UnixMilli(s.Time).UTC(), Signed: []string{s.Account.String()},
		}
		if len(raw.Counter) == 0 {
			c.unproven("that %v was paid: settlement %s has only the signature of account %s", s.Amount, s.ID().Short(), s.Account.Short())
			c.out.Settlements = append(c.out.Settlements, row)
			continue
		}
		counter, err := c.settlement(record, raw.Counter)
		if err != nil {
			return err
		}
		if err := voucher.Countersigned(s, identity.Hash(raw.Proposal), counter); err != nil {
			return forged(record, err)
		}
		row.Signed = append(row.Signed, counter.Account.String())
		c.out.Settlements = append(c.out.Settlements, row)
		if err := c.agreed(record, s, lane); err != nil {
			return err
		}
	}
	if n := c.f.Older.Settlements; n > 0 {
		c.unproven("%d older payments that list this lease: they are not in the file", n)
	}
	return nil
}

// agreed counts a payment that both sides signed.
func (c *check) agreed(record string, s voucher.Settlement, lane money.Micro) error {
	if lane > c.newest.Amount {
		c.note(&finding{Behind, record, fmt.Sprintf("both signed that %v was promised, the newest voucher here promises %v", lane, c.newest.Amount)})
	}
	if err := c.paid.add(s, lane); err != nil {
		return corrupt(record, "%v", err)
	}
	c.settled[ledger.EntryID(ledger.KindSettlement, s.ID())] = s
	c.proven("%v %s were paid outside on the whole channel, when %v were promised for this lease: both signatures of settlement %s",
		s.Amount, s.Channel.Unit, lane, s.ID().Short())
	return nil
}

// settlement checks one signature of a settlement.
func (c *check) settlement(record string, raw []byte) (voucher.Settlement, error) {
	s, err := voucher.OpenSettlement(raw)
	if err != nil {
		return s, forged(record, err)
	}
	power := identity.PowerProvide
	if s.Account == s.Channel.Renter {
		power = identity.PowerPay
	}
	if err := c.allowed(record, s.Header, s.Delegation, power); err != nil {
		return s, err
	}
	if len(s.Checkpoint) == 0 {
		return s, nil
	}
	return s, c.carries(record, s.Checkpoint, s.Device)
}

// laneIn reports whether a settlement lists a lane, and at which amount.
func laneIn(s voucher.Settlement, lane ledger.Lane) (money.Micro, bool) {
	for _, l := range s.Lanes {
		if l.Lane == lane {
			return l.Amount, true
		}
	}
	return 0, false
}
