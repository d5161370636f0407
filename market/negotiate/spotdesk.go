package negotiate

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"time"

	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/auction"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/p2p/identity"
)

// maxStanding is how many bids wait at one lot, maxOfAccount how many of them are of one account: a queue is memory of the seller.
const (
	maxStanding  = 256
	maxOfAccount = 8
)

// SpotAct is what the seller of a spot lot does next.
type SpotAct struct {
	Do    SpotDo
	Lease market.LeaseID
	Rate  money.Rate // per GPU-hour, of SpotStart, SpotReprice and SpotAnswer
	Raw   []byte     // the Outbid of SpotNotice; the incumbent's bid of SpotAnswer
}

// SpotDo says what to do with a lease or a waiting bid.
type SpotDo uint8

// What a [SpotDesk] has done.
const (
	SpotStart   SpotDo = iota + 1 // the bid's lease begins
	SpotNotice                    // send Raw: somebody bids more, and takes over unless the lease's bid is raised
	SpotAnswer                    // send Raw to the challenger: the incumbent raised; the lowest rate that leads again is Rate
	SpotStop                      // the lease ends as reason.SpotOutbid: SIGTERM, 30 s, kill
	SpotReprice                   // the lease is billed at Rate from now on
)

// SpotDesk is the seller's half of spot on one lot: bids, ends and the time, in; what to do, out. It has no clock, no store and no network.
// A bid is only waiting until it starts, so what must survive a crash is the running leases with their newest bids; standing bids are sent
// again by their agents. Not for concurrent use.
type SpotDesk struct {
	dev      *identity.Device
	lot      uint8
	unit     money.Unit
	gpus     uint32 // that spot may use now
	floor    money.Rate
	arrived  uint64
	running  map[market.LeaseID]*spotBid
	standing map[market.LeaseID]*spotBid
	contest  *contest
}

// spotBid is the newest bid of a lease.
type spotBid struct {
	bid   auction.SpotBid
	raw   []byte
	since uint64
	rate  money.Rate // that counts and is billed
	due   time.Time  // when a running lease is billed at bid's rate; zero: it is already
	next  time.Time  // before which no lower rate is taken
}

// contest is a take-over in its notice.
type contest struct {
	challenger market.LeaseID
	out        []market.LeaseID
	until      time.Time // the end of the notice
	answer     time.Time // until when a challenger that was outbid in turn may answer; zero: it leads
}

// NewSpotDesk opens a lot of gpus for spot bids from floor.
func NewSpotDesk(dev *identity.Device, lot uint8, unit money.Unit, gpus uint32, floor money.Rate) *SpotDesk {
	return &SpotDesk{
		dev: dev, lot: lot, unit: unit, gpus: gpus, floor: floor,
		running: map[market.LeaseID]*spotBid{}, standing: map[market.LeaseID]*spotBid{},
	}
}

// Resume puts back a lease that ran before a crash, with its newest bid and the rate at which it is billed; the leases come in the order in
// which they began. What a lower rate had waited is not known: its minute begins again at now.
func (d *SpotDesk) Resume(raw []byte, billed money.Rate, now time.Time) error {
	b, err := auction.ReadSpotBid(raw)
	if err != nil {
		return err
	}
	d.arrived++
	s := &spotBid{bid: b, raw: raw, since: d.arrived, rate: billed}
	s.reprice(now)
	d.running[b.ID()] = s
	return nil
}

// reprice has a running lease follow its newest bid: a higher rate counts at once, a lower one after a minute.
func (b *spotBid) reprice(now time.Time) {
	b.due = time.Time{}
	switch {
	case b.bid.Rate > b.rate:
		b.rate, b.due = b.bid.Rate, now
	case b.bid.Rate < b.rate:
		b.due = now.Add(auction.SpotLower)
		b.next = b.due
	}
}

// Bid takes a new bid, or another rate for one that stands or runs, at now. The error is a [reason.Error].
func (d *SpotDesk) Bid(raw, delegation []byte, now time.Time) error {
	b, err := auction.ReadSpotBid(raw)
	if err != nil {
		return reason.Errorf(reason.BidVoid, "%v", err)
	}
	if _, err := market.OpenDelegation(delegation, b.Delegation, b.Header, identity.PowerTrade); err != nil {
		return reason.Errorf(reason.DelegationPowers, "%v", err)
	}
	switch {
	case b.Provider != d.dev.Account() || b.Lot != d.lot:
		return reason.Errorf(reason.OfferUnknown, "the bid is for another lot")
	case b.Unit != d.unit:
		return reason.Errorf(reason.UnknownUnit, "the bid counts in %s, the lot in %s", b.Unit, d.unit)
	case b.Rate < d.floor:
		return reason.Errorf(reason.BidBelowReserve, "it bids %v, the floor is %v", b.Rate, d.floor)
	}
	for _, list := range []map[market.LeaseID]*spotBid{d.running, d.standing} {
		if have, ok := list[b.ID()]; ok {
			return d.change(have, b, raw, now)
		}
	}
	own := 0
	for _, s := range d.standing {
		if s.bid.Account == b.Account {
			own++
		}
	}
	if len(d.standing) >= maxStanding || own >= maxOfAccount {
		return reason.Errorf(reason.DeviceTaken, "%d bids wait, %d of this account", len(d.standing), own)
	}
	d.arrived++
	d.standing[b.ID()] = &spotBid{bid: b, raw: raw, since: d.arrived, rate: b.Rate}
	return nil
}

// change takes another rate for a bid: a higher one at once, a lower one of a running lease after a minute, at most once a minute.
func (d *SpotDesk) change(have *spotBid, b auction.SpotBid, raw []byte, now time.Time) error {
	_, runs := d.running[b.ID()]
	same := have.bid
	same.Header, same.Delegation, same.Rate, same.Seq = b.Header, b.Delegation, b.Rate, b.Seq
	switch {
	case b.Seq == have.bid.Seq && string(raw) == string(have.raw):
		return nil // a repeat
	case b.Seq <= have.bid.Seq:
		return reason.Errorf(reason.BidReplaced, "sequence %d, the newest is %d", b.Seq, have.bid.Seq)
	case b != same:
		return reason.Errorf(reason.BidVoid, "only the rate of a bid changes")
	case runs && b.Rate < have.rate && now.Before(have.next):
		return reason.Errorf(reason.BidVoid, "a rate is lowered once a minute")
	}
	have.bid, have.raw = b, raw
	if runs {
		have.reprice(now)
	} else {
		have.rate = b.Rate
	}
	return nil
}

// Gone takes away a bid that was cancelled or a lease that ended.
func (d *SpotDesk) Gone(id market.LeaseID) {
	delete(d.running, id)
	delete(d.standing, id)
}

// orders are bids as the rules see them, in one order.
func orders(list map[market.LeaseID]*spotBid) (out []auction.SpotOrder) {
	for id, b := range list {
		out = append(out, auction.SpotOrder{ID: id, Quantity: b.bid.Quantity, Rate: b.rate, Since: b.since})
	}
	slices.SortFunc(out, func(a, b auction.SpotOrder) int { return cmp.Compare(a.Since, b.Since) })
	return out
}

// Tick does what is due at now. Call it after every bid and end, and at [SpotDesk.Due].
func (d *SpotDesk) Tick(now time.Time) (acts []SpotAct, err error) {
	for id, b := range d.running {
		if !b.due.IsZero() && !now.Before(b.due) {
			b.rate, b.due = b.bid.Rate, time.Time{}
			acts = append(acts, SpotAct{Do: SpotReprice, Lease: id, Rate: b.rate})
		}
	}
	slices.SortFunc(acts, func(a, b SpotAct) int { return slices.Compare(a.Lease[:], b.Lease[:]) })
	plan, err := auction.SpotNext(d.gpus, d.floor, orders(d.running), orders(d.standing))
	if err != nil {
		return nil, fmt.Errorf("spot on lot %d: %w", d.lot, err)
	}
	for _, id := range plan.Start {
		acts = append(acts, d.start(id))
	}
	more, err := d.contend(plan.TakeOver, now)
	return append(acts, more...), err
}

func (d *SpotDesk) start(id market.LeaseID) SpotAct {
	b := d.standing[id]
	d.running[id] = b
	delete(d.standing, id)
	return SpotAct{Do: SpotStart, Lease: id, Rate: b.rate}
}

// contend moves the contest on: notice, raises within it, and its end.
func (d *SpotDesk) contend(next *auction.TakeOver, now time.Time) (acts []SpotAct, err error) {
	if c := d.contest; c != nil {
		leads := next != nil && next.Challenger == c.challenger && !slices.ContainsFunc(next.Out, func(id market.LeaseID) bool { return !slices.Contains(c.out, id) })
		switch {
		case leads && !c.answer.IsZero(): // it answered: the incumbent has as long
			c.answer = time.Time{}
			c.until = later(c.until, now.Add(auction.SpotAnswer))
			return d.notices(now)
		case leads && now.Before(c.until):
			return nil, nil
		case leads:
			for _, id := range next.Out {
				delete(d.running, id)
				acts = append(acts, SpotAct{Do: SpotStop, Lease: id})
			}
			d.contest = nil
			return append(acts, d.start(c.challenger)), nil
		case d.standing[c.challenger] != nil && c.answer.IsZero():
			c.answer = now.Add(auction.SpotAnswer)
			return d.asksAnswer(), nil
		case d.standing[c.challenger] != nil && now.Before(c.answer):
			return nil, nil
		}
		d.contest = nil // it gave up, or is gone
	}
	if next == nil {
		return nil, nil
	}
	d.contest = &contest{challenger: next.Challenger, out: next.Out, until: now.Add(auction.SpotNotice)}
	return d.notices(now)
}

// notices tells everybody whom the challenger would push out.
func (d *SpotDesk) notices(now time.Time) (acts []SpotAct, err error) {
	c := d.contest
	for _, id := range c.out {
		if d.running[id] == nil {
			continue
		}
		raw, err := d.dev.Seal(auction.DomainOutbid, auction.Outbid{
			Header: d.dev.Header(auction.Version), Delegation: d.dev.DelegationHash(), Lease: id, Challenger: d.standing[c.challenger].raw,
			Notice: uint32(c.until.Sub(now) / time.Second),
		})
		if err != nil {
			return nil, fmt.Errorf("notice to lease %s: %w", id.Short(), err)
		}
		acts = append(acts, SpotAct{Do: SpotNotice, Lease: id, Raw: raw})
	}
	return acts, nil
}

// asksAnswer tells the challenger that it was outbid in turn, with the incumbent's signed bid, while there is one that it must beat.
func (d *SpotDesk) asksAnswer() []SpotAct {
	c := d.contest
	var strongest *spotBid
	for _, id := range c.out {
		if b := d.running[id]; b != nil && (strongest == nil || b.rate > strongest.rate) {
			strongest = b
		}
	}
	if strongest == nil {
		return nil
	}
	return []SpotAct{{Do: SpotAnswer, Lease: c.challenger, Rate: d.Price(d.standing[c.challenger].bid.Quantity), Raw: strongest.raw}}
}

// Price is the lowest rate at which a new bid for quantity GPUs would start or take over as things stand; more than market.MaxRate if none
// would. It is what owners show as the spot price.
func (d *SpotDesk) Price(quantity uint32) money.Rate {
	running := orders(d.running)
	return money.Rate(sort.Search(int(market.MaxRate)+1, func(rate int) bool {
		plan, err := auction.SpotNext(d.gpus, d.floor, running, []auction.SpotOrder{{Quantity: quantity, Rate: money.Rate(rate)}})
		return err == nil && (len(plan.Start) > 0 || plan.TakeOver != nil)
	}))
}

// Yield says which running leases make way for a buyer at the offer's price, or for the owner, who want n GPUs: the lowest rates, the latest
// of equals, and none that need not. The caller gives them the same notice, then [SpotDesk.Gone] and [SpotDesk.Resize].
func (d *SpotDesk) Yield(n uint32) (out []market.LeaseID) {
	running := orders(d.running)
	slices.SortStableFunc(running, func(a, b auction.SpotOrder) int {
		return cmp.Or(cmp.Compare(a.Rate, b.Rate), cmp.Compare(b.Since, a.Since))
	})
	have := d.gpus
	for _, r := range running {
		have -= r.Quantity
	}
	last := 0
	for last < len(running) && have < n {
		have += running[last].Quantity
		last++
	}
	for i := last - 1; i >= 0; i-- {
		if have-running[i].Quantity >= n {
			have -= running[i].Quantity
			continue
		}
		out = append(out, running[i].ID)
	}
	return out
}

// Resize says how many GPUs spot may use from now on.
func (d *SpotDesk) Resize(gpus uint32) { d.gpus = gpus }

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// Due is when the next [SpotDesk.Tick] has something to do if nothing arrives before; zero: never.
func (d *SpotDesk) Due() (due time.Time) {
	sooner := func(t time.Time) {
		if !t.IsZero() && (due.IsZero() || t.Before(due)) {
			due = t
		}
	}
	for _, b := range d.running {
		sooner(b.due)
	}
	if c := d.contest; c != nil {
		if c.answer.IsZero() {
			sooner(c.until)
		}
		sooner(c.answer)
	}
	return due
}
