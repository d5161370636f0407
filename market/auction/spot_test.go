package auction_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/auction"
	"github.com/gpufair/gpufair/market/markettest"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/p2p/identity"
)

func order(id byte, quantity uint32, rate money.Rate, since uint64) auction.SpotOrder {
	return auction.SpotOrder{ID: market.LeaseID{id}, Quantity: quantity, Rate: rate, Since: since}
}

func ids(list ...byte) (out []market.LeaseID) {
	for _, b := range list {
		out = append(out, market.LeaseID{b})
	}
	return out
}

func TestSpotNext(t *testing.T) {
	const floor = 100
	type orders = []auction.SpotOrder
	for name, c := range map[string]struct {
		gpus              uint32
		running, standing orders
		start             []market.LeaseID
		challenger        byte // 0: nobody takes over
		out               []market.LeaseID
	}{
		"nothing":                       {gpus: 4},
		"fills free GPUs, best first":   {gpus: 2, standing: orders{order(1, 1, 200, 1), order(2, 1, 300, 2), order(3, 1, 250, 3)}, start: ids(2, 3)},
		"the earlier of equal rates":    {gpus: 1, standing: orders{order(1, 1, 200, 9), order(2, 1, 200, 2)}, start: ids(2)},
		"below the floor":               {gpus: 1, standing: orders{order(1, 1, 99, 1)}},
		"at the floor":                  {gpus: 1, standing: orders{order(1, 1, 100, 1)}, start: ids(1)},
		"too large for the lot":         {gpus: 2, standing: orders{order(1, 3, 500, 1), order(2, 1, 100, 2)}, start: ids(2)},
		"behind a bundle that waits":    {gpus: 2, running: orders{order(9, 1, 400, 1)}, standing: orders{order(1, 2, 300, 1), order(2, 1, 100, 2)}, start: ids(2)},
		"5 % more takes over":           {gpus: 1, running: orders{order(9, 1, 200, 1)}, standing: orders{order(1, 1, 210, 2)}, challenger: 1, out: ids(9)},
		"less than 5 % does not":        {gpus: 1, running: orders{order(9, 1, 200, 1)}, standing: orders{order(1, 1, 209, 2)}},
		"one micro-unit where 5 % is 0": {gpus: 1, running: orders{order(9, 1, 1, 1)}, standing: orders{order(1, 1, 100, 2)}, challenger: 1, out: ids(9)},
		"pushes out the lowest, the latest of equals": {
			gpus: 3, running: orders{order(7, 1, 200, 1), order(8, 1, 150, 1), order(9, 1, 150, 5)}, standing: orders{order(1, 1, 300, 9)}, challenger: 1, out: ids(9),
		},
		"none that it does not need": {
			gpus: 4, running: orders{order(7, 1, 110, 1), order(8, 3, 120, 1)}, standing: orders{order(1, 3, 300, 9)}, challenger: 1, out: ids(8),
		},
		"free GPUs count, and wait for it": {
			gpus: 3, running: orders{order(9, 2, 150, 1)}, standing: orders{order(1, 3, 300, 1), order(2, 1, 200, 2)}, challenger: 1, out: ids(9),
		},
		"each must be beaten": {gpus: 2, running: orders{order(8, 1, 150, 1), order(9, 1, 290, 1)}, standing: orders{order(1, 2, 300, 1)}},
		"together too": { // one GPU at 300 brings less than the two at 200 that it would stop
			gpus: 2, running: orders{order(9, 2, 200, 1)}, standing: orders{order(1, 1, 300, 1)},
		},
		"the next, where the best cannot": {
			gpus: 2, running: orders{order(8, 1, 150, 1), order(9, 1, 390, 1)}, standing: orders{order(1, 2, 400, 1), order(2, 1, 300, 2)}, challenger: 2, out: ids(8),
		},
	} {
		p, err := auction.SpotNext(c.gpus, floor, c.running, c.standing)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !slices.Equal(p.Start, c.start) || (p.TakeOver == nil) != (c.challenger == 0) {
			t.Errorf("%s: %+v", name, p)
			continue
		}
		if p.TakeOver != nil && (p.TakeOver.Challenger != market.LeaseID{c.challenger} || !slices.Equal(p.TakeOver.Out, c.out)) {
			t.Errorf("%s: %+v", name, *p.TakeOver)
		}
	}
	if _, err := auction.SpotNext(1, 0, []auction.SpotOrder{order(1, 2, 1, 1)}, nil); !errors.Is(err, auction.ErrInvalid) {
		t.Error(err)
	}
}

// TestSpotNeverWorse: a plan never leases a GPU twice, never brings the seller less an hour, and is the same whatever the order of the bids.
func TestSpotNeverWorse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		gpus := rapid.Uint32Range(0, 8).Draw(t, "gpus")
		floor := money.Rate(rapid.Uint64Range(0, 4).Draw(t, "floor"))
		byID := map[market.LeaseID]auction.SpotOrder{}
		draw := func(from byte, n int) (out []auction.SpotOrder) {
			for i := range n {
				o := order(from+byte(i), rapid.Uint32Range(1, 4).Draw(t, "quantity"), money.Rate(rapid.Uint64Range(1, 40).Draw(t, "rate")), rapid.Uint64Range(0, 3).Draw(t, "since"))
				out, byID[o.ID] = append(out, o), o
			}
			return out
		}
		var running []auction.SpotOrder
		used := uint32(0)
		for _, o := range draw(1, rapid.IntRange(0, 4).Draw(t, "running")) {
			if used+o.Quantity <= gpus {
				running, used = append(running, o), used+o.Quantity
			}
		}
		standing := draw(100, rapid.IntRange(0, 6).Draw(t, "standing"))
		p, err := auction.SpotNext(gpus, floor, running, standing)
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range p.Start {
			if byID[id].Rate < floor {
				t.Fatal("below the floor")
			}
			used += byID[id].Quantity
		}
		if p.TakeOver != nil {
			in := byID[p.TakeOver.Challenger]
			before, after := uint64(0), uint64(in.Rate)*uint64(in.Quantity)
			for _, id := range p.TakeOver.Out {
				o := byID[id]
				used -= o.Quantity
				before += uint64(o.Rate) * uint64(o.Quantity)
				if in.Rate < auction.ToBeat(o.Rate) {
					t.Fatalf("%d pushes out %d", in.Rate, o.Rate)
				}
			}
			used += in.Quantity
			if after*20 < before*21 {
				t.Fatalf("%d an hour for %d", after, before)
			}
		}
		if used > gpus {
			t.Fatalf("%d of %d GPUs", used, gpus)
		}
		again, err := auction.SpotNext(gpus, floor, rapid.Permutation(running).Draw(t, "running order"), rapid.Permutation(standing).Draw(t, "standing order"))
		if err != nil || !slices.Equal(again.Start, p.Start) || (again.TakeOver == nil) != (p.TakeOver == nil) {
			t.Fatalf("%+v in one order, %+v in another", p, again)
		}
		if p.TakeOver != nil && (again.TakeOver.Challenger != p.TakeOver.Challenger || !slices.Equal(again.TakeOver.Out, p.TakeOver.Out)) {
			t.Fatalf("%+v in one order, %+v in another", *p.TakeOver, *again.TakeOver)
		}
	})
}

// TestSpotWar: two agents that raise in steps end at about the second highest limit, and neither shows its own.
func TestSpotWar(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limits := [2]money.Rate{money.Rate(rapid.Uint64Range(100_000, 900_000).Draw(t, "a")), money.Rate(rapid.Uint64Range(100_000, 900_000).Draw(t, "b"))}
		rate, holder, bids := money.Rate(100_000), 0, 0
		for {
			next, ok := auction.Raise(rate, limits[1-holder])
			if !ok {
				break
			}
			rate, holder = next, 1-holder
			if bids++; bids > 60 {
				t.Fatal("it does not end")
			}
		}
		if rate > limits[holder] || auction.ToBeat(rate) <= limits[1-holder] {
			t.Fatalf("ends at %d, limits %v", rate, limits)
		}
	})
	for rate, want := range map[money.Rate]money.Rate{0: 1, 1: 2, 20: 21, 21: 23, 200: 210, market.MaxRate: market.MaxRate / 20 * 21} {
		if got := auction.ToBeat(rate); got != want {
			t.Errorf("%d beats %d, want %d", got, rate, want)
		}
	}
}

func TestSpotCharges(t *testing.T) {
	if auction.Preempted(70, 5*time.Minute-time.Nanosecond, auction.SpotMinRun) != 0 || auction.Preempted(70, 5*time.Minute, auction.SpotMinRun) != 70 {
		t.Error("a run that is cut before its minimum is free, a longer one is not")
	}
	if got := auction.Phantom(1_000_000, 600_000, 2); got != 800_000 {
		t.Errorf("ten minutes of two GPUs at 0.6 are 0.2: %v left", got)
	}
	if got := auction.Phantom(5, 600_000, 2); got != 0 {
		t.Error(got)
	}
}

func spotBid(dev, seller *identity.Device, rate money.Rate) auction.SpotBid {
	return auction.SpotBid{
		Header: dev.Header(auction.Version), Delegation: dev.DelegationHash(), Offer: markettest.Hash("offer"), Provider: seller.Account(), Lot: 1,
		Quantity: 1, Rate: rate, Unit: money.Credit, MinRun: 300, Nonce: markettest.Hash("nonce"), Seq: 1, Needs: markettest.Hash("needs"),
		Use: markettest.Hash("use"), Voucher: markettest.Hash("voucher"),
	}
}

// TestOutbidIsChecked: an incumbent believes a notice only with a signed bid that beats its own.
func TestOutbidIsChecked(t *testing.T) {
	seller, a, b := party(t, 1, identity.AllPowers), party(t, 2, identity.AllPowers), party(t, 3, identity.AllPowers)
	own := spotBid(a, seller, 200_000)
	for name, c := range map[string]struct {
		spoil func(*auction.Outbid, *auction.SpotBid)
		want  reason.Code
	}{
		"good":            {func(*auction.Outbid, *auction.SpotBid) {}, ""},
		"too low":         {func(_ *auction.Outbid, s *auction.SpotBid) { s.Rate-- }, reason.RaiseTooSmall},
		"another seller":  {func(_ *auction.Outbid, s *auction.SpotBid) { s.Provider = a.Account() }, reason.LeaseInvalid},
		"another lot":     {func(_ *auction.Outbid, s *auction.SpotBid) { s.Lot = 2 }, reason.LeaseInvalid},
		"another unit":    {func(_ *auction.Outbid, s *auction.SpotBid) { s.Unit = "EUR" }, reason.LeaseInvalid},
		"another lease":   {func(o *auction.Outbid, _ *auction.SpotBid) { o.Lease[0]++ }, reason.LeaseInvalid},
		"short notice":    {func(o *auction.Outbid, _ *auction.SpotBid) { o.Notice = 59 }, reason.LeaseInvalid},
		"one's own bid":   {func(_ *auction.Outbid, s *auction.SpotBid) { s.Account = a.Account() }, reason.LeaseInvalid},
		"by someone else": {func(o *auction.Outbid, _ *auction.SpotBid) { o.Account = b.Account() }, reason.LeaseInvalid},
	} {
		s := spotBid(b, seller, 210_000)
		o := auction.Outbid{Header: seller.Header(auction.Version), Delegation: seller.DelegationHash(), Lease: own.ID(), Notice: 60}
		c.spoil(&o, &s)
		err := auction.CheckOutbid(o, s, own, false)
		if (err == nil) != (c.want == "") || (err != nil && !reason.Is(err, c.want)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	short := auction.Outbid{Header: seller.Header(auction.Version), Lease: own.ID(), Notice: 15}
	if err := auction.CheckOutbid(short, spotBid(b, seller, 210_000), own, true); err != nil {
		t.Error("a second notice leaves 15 s:", err)
	}
	if short.Notice--; auction.CheckOutbid(short, spotBid(b, seller, 210_000), own, true) == nil {
		t.Error("a second notice left less than 15 s")
	}
	raw := markettest.Seal(t, b, auction.DomainSpotBid, spotBid(b, seller, 210_000))
	notice := auction.Outbid{Header: seller.Header(auction.Version), Delegation: seller.DelegationHash(), Lease: own.ID(), Challenger: raw, Notice: 60}
	if _, s, err := auction.ReadOutbid(markettest.Seal(t, seller, auction.DomainOutbid, notice)); err != nil || s.Rate != 210_000 {
		t.Error(s, err)
	}
	notice.Challenger = []byte("nobody")
	if _, _, err := auction.ReadOutbid(markettest.Seal(t, seller, auction.DomainOutbid, notice)); err == nil {
		t.Error("a notice without a signed bid was read")
	}
	raise := own
	raise.Rate, raise.Seq = 300_000, 2
	if raise.ID() != own.ID() {
		t.Error("a raise is another lease")
	}
}
