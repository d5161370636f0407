package negotiate_test

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/auction"
	"github.com/gpufair/gpufair/market/markettest"
	"github.com/gpufair/gpufair/market/negotiate"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// spotter is a renter's agent: it raises in steps up to a limit that nobody else knows.
type spotter struct {
	t       testing.TB
	dev     *identity.Device
	bid     auction.SpotBid
	limit   money.Rate
	noticed time.Time // of the notice that stands
	until   time.Time
	runs    bool
}

func newSpotter(t testing.TB, n uint64, quantity uint32, rate, limit money.Rate) *spotter {
	dev := person(t, n)
	return &spotter{t: t, dev: dev, limit: limit, bid: auction.SpotBid{
		Header: dev.Header(auction.Version), Delegation: dev.DelegationHash(), Offer: markettest.Hash("offer"), Provider: person(t, 1).Account(), Lot: 1,
		Quantity: quantity, Rate: rate, Unit: money.Credit, MinRun: 300, Nonce: wire.Sum("gpufair/test", []byte{byte(n)}), Seq: 1,
		Needs: markettest.Hash("needs"), Voucher: markettest.Hash("voucher"),
	}}
}

func (s *spotter) sends(d *negotiate.SpotDesk, now time.Time) error {
	s.t.Helper()
	return d.Bid(markettest.Seal(s.t, s.dev, auction.DomainSpotBid, s.bid), s.dev.Delegation(), now)
}

// raises answers a rate that must be reached, if the limit allows it.
func (s *spotter) raises(d *negotiate.SpotDesk, to money.Rate, now time.Time) {
	s.t.Helper()
	if to > s.limit || to <= s.bid.Rate {
		return
	}
	s.bid.Rate, s.bid.Seq = to, s.bid.Seq+1
	if err := s.sends(d, now); err != nil {
		s.t.Fatal(err)
	}
}

func newDesk(t testing.TB, gpus uint32) *negotiate.SpotDesk {
	return negotiate.NewSpotDesk(person(t, 1), 1, money.Credit, gpus, 100_000)
}

func acts(t testing.TB, d *negotiate.SpotDesk, now time.Time) []negotiate.SpotAct {
	t.Helper()
	out, err := d.Tick(now)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// does is the acts in short: what, and with whose lease.
func does(list []negotiate.SpotAct, who ...*spotter) (out []string) {
	names := map[negotiate.SpotDo]string{
		negotiate.SpotStart: "start", negotiate.SpotNotice: "notice", negotiate.SpotAnswer: "answer", negotiate.SpotStop: "stop", negotiate.SpotReprice: "reprice",
	}
	for _, a := range list {
		for i, s := range who {
			if s.bid.ID() == a.Lease {
				out = append(out, names[a.Do]+" "+string(rune('a'+i)))
			}
		}
	}
	return out
}

func wants(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: got %q, want %q", what, got, want)
	}
}

func bidAll(t *testing.T, d *negotiate.SpotDesk, now time.Time, who ...*spotter) {
	t.Helper()
	for _, s := range who {
		if err := s.sends(d, now); err != nil {
			t.Fatal(err)
		}
	}
}

// TestSpotTakeOver: notice, a raise within it, the challenger's answer, and the end.
func TestSpotTakeOver(t *testing.T) {
	d := newDesk(t, 1)
	a, b := newSpotter(t, 2, 1, 200_000, 300_000), newSpotter(t, 3, 1, 210_000, 400_000)
	bidAll(t, d, after(0), a)
	wants(t, "alone", does(acts(t, d, after(0)), a, b), "start a")
	bidAll(t, d, after(time.Second), b)
	list := acts(t, d, after(time.Second))
	wants(t, "outbid", does(list, a, b), "notice a")
	o, ch, err := auction.ReadOutbid(list[0].Raw)
	if err != nil || auction.CheckOutbid(o, ch, a.bid, false) != nil || ch.Rate != 210_000 || o.Notice != 60 {
		t.Fatal(o, err)
	}
	if !d.Due().Equal(after(61 * time.Second)) {
		t.Error(d.Due())
	}
	wants(t, "during the notice", does(acts(t, d, after(30*time.Second)), a, b))
	a.raises(d, auction.ToBeat(ch.Rate), after(50*time.Second)) // 220,500
	list = acts(t, d, after(50*time.Second))
	wants(t, "raised", does(list, a, b), "reprice a", "answer b")
	if list[0].Rate != a.bid.Rate {
		t.Errorf("a lease that was raised to %d is billed at %d", a.bid.Rate, list[0].Rate)
	}
	if list[1].Rate != auction.ToBeat(a.bid.Rate) || !bytes.Equal(list[1].Raw, markettest.Seal(t, a.dev, auction.DomainSpotBid, a.bid)) {
		t.Errorf("the challenger is told %d and shown another bid", list[1].Rate)
	}
	b.raises(d, list[1].Rate, after(60*time.Second))
	list = acts(t, d, after(60*time.Second))
	wants(t, "answered", does(list, a, b), "notice a")
	if o, ch, err = auction.ReadOutbid(list[0].Raw); err != nil || auction.CheckOutbid(o, ch, a.bid, true) != nil || o.Notice != 15 {
		t.Error("the incumbent has 15 s more:", o.Notice, err)
	}
	wants(t, "a moment before", does(acts(t, d, after(75*time.Second-1)), a, b))
	wants(t, "at the end", does(acts(t, d, after(75*time.Second)), a, b), "stop a", "start b")
	if !d.Due().IsZero() {
		t.Error(d.Due())
	}
}

// TestSpotChallengerGivesUp: after a raise it has 15 s, and then the incumbent stays. One that is cancelled is gone at once.
func TestSpotChallengerGivesUp(t *testing.T) {
	d := newDesk(t, 1)
	a, b := newSpotter(t, 2, 1, 200_000, 300_000), newSpotter(t, 3, 1, 210_000, 210_000)
	bidAll(t, d, after(0), a)
	acts(t, d, after(0))
	bidAll(t, d, after(0), b)
	acts(t, d, after(0))
	a.raises(d, 220_500, after(59*time.Second))
	wants(t, "raised", does(acts(t, d, after(59*time.Second)), a, b), "reprice a", "answer b")
	wants(t, "waiting", does(acts(t, d, after(74*time.Second-1)), a, b))
	wants(t, "over", does(acts(t, d, after(74*time.Second)), a, b))
	if !d.Due().IsZero() {
		t.Error("the contest goes on until", d.Due())
	}
	b.limit = 500_000
	b.raises(d, 400_000, after(80*time.Second))
	wants(t, "it comes back with a new notice", does(acts(t, d, after(80*time.Second)), a, b), "notice a")
	d.Gone(b.bid.ID())
	wants(t, "cancelled", does(acts(t, d, after(140*time.Second)), a, b))
	d.Gone(a.bid.ID())
	c := newSpotter(t, 4, 1, 100_000, 100_000)
	bidAll(t, d, after(141*time.Second), c)
	wants(t, "a lot frees up", does(acts(t, d, after(141*time.Second)), a, b, c), "start c")
}

// TestSpotRates: a lower rate counts after a minute, at most once a minute, and a higher one at once; nothing else of a bid changes.
func TestSpotRates(t *testing.T) {
	d := newDesk(t, 2)
	a := newSpotter(t, 2, 1, 300_000, 500_000)
	bidAll(t, d, after(0), a)
	acts(t, d, after(0))
	again := markettest.Seal(t, a.dev, auction.DomainSpotBid, a.bid)
	if err := d.Bid(again, a.dev.Delegation(), after(0)); err != nil {
		t.Error("a repeat:", err)
	}
	a.bid.Rate, a.bid.Seq = 250_000, 2
	bidAll(t, d, after(time.Second), a)
	a.bid.Rate, a.bid.Seq = 240_000, 3
	refused(t, "lowered twice", a.sends(d, after(30*time.Second)), reason.BidVoid)
	a.bid.Seq = 1
	refused(t, "an old sequence", a.sends(d, after(30*time.Second)), reason.BidReplaced)
	a.bid.Rate, a.bid.Seq, a.bid.Quantity = 400_000, 4, 2
	refused(t, "more GPUs", a.sends(d, after(30*time.Second)), reason.BidVoid)
	a.bid.Quantity, a.bid.Use = 1, markettest.Hash("other terms")
	refused(t, "other use terms", a.sends(d, after(30*time.Second)), reason.BidVoid)
	a.bid.Use = wire.Hash{}
	wants(t, "before a minute", does(acts(t, d, after(61*time.Second-1)), a))
	list := acts(t, d, after(61*time.Second))
	if wants(t, "after a minute", does(list, a), "reprice a"); list[0].Rate != 250_000 {
		t.Error(list[0].Rate)
	}
	a.bid.Rate, a.bid.Seq = 90_000, 5
	refused(t, "below the floor", a.sends(d, after(62*time.Second)), reason.BidBelowReserve)
	a.bid.Rate, a.bid.Lot = 200_000, 2
	refused(t, "another lot", a.sends(d, after(62*time.Second)), reason.OfferUnknown)
	a.bid.Lot, a.bid.Unit = 1, "EUR"
	refused(t, "another unit", a.sends(d, after(62*time.Second)), reason.UnknownUnit)
	refused(t, "junk", d.Bid([]byte("junk"), a.dev.Delegation(), after(0)), reason.BidVoid)
	refused(t, "another's delegation", d.Bid(again, person(t, 9).Delegation(), after(0)), reason.DelegationPowers)
	b := newSpotter(t, 3, 4, 300_000, 300_000) // more than the lot has: it waits
	for n := range 9 {
		b.bid.Nonce = wire.Sum("gpufair/test", []byte{99, byte(n)})
		if err := b.sends(d, after(0)); n < 8 && err != nil {
			t.Fatal(err)
		} else if n == 8 {
			refused(t, "a ninth bid of one account", err, reason.DeviceTaken)
		}
	}
}

// TestSpotRaiseTakesBackALowerRate that was to come into effect.
func TestSpotRaiseTakesBackALowerRate(t *testing.T) {
	d := newDesk(t, 1)
	a := newSpotter(t, 2, 1, 300_000, 0)
	bidAll(t, d, after(0), a)
	acts(t, d, after(0))
	for seq, rate := range []money.Rate{250_000, 300_000} {
		a.bid.Rate, a.bid.Seq = rate, uint64(seq+2)
		bidAll(t, d, after(time.Second), a)
	}
	if wants(t, "a minute later", does(acts(t, d, after(time.Minute+time.Second)), a)); !d.Due().IsZero() {
		t.Error(d.Due())
	}
}

// TestSpotResumes after a crash: leases go on at the rate at which they were billed, and the newest bid counts as if it came now.
func TestSpotResumes(t *testing.T) {
	d := newDesk(t, 3)
	same, lower, higher := newSpotter(t, 2, 1, 300_000, 0), newSpotter(t, 3, 1, 250_000, 0), newSpotter(t, 4, 1, 350_000, 0)
	for _, s := range []*spotter{same, lower, higher} {
		if err := d.Resume(markettest.Seal(t, s.dev, auction.DomainSpotBid, s.bid), 300_000, after(0)); err != nil {
			t.Fatal(err)
		}
	}
	list := acts(t, d, after(0))
	if wants(t, "at once", does(list, same, lower, higher), "reprice c"); list[0].Rate != 350_000 {
		t.Error(list[0].Rate)
	}
	if got := d.Price(1); got != auction.ToBeat(300_000) {
		t.Error("a pending rate counts already:", got)
	}
	lower.bid.Rate, lower.bid.Seq = 240_000, 2
	refused(t, "lowered again", lower.sends(d, after(59*time.Second)), reason.BidVoid)
	wants(t, "before a minute", does(acts(t, d, after(time.Minute-1)), same, lower, higher))
	list = acts(t, d, after(time.Minute))
	if wants(t, "after a minute", does(list, same, lower, higher), "reprice b"); list[0].Rate != 250_000 {
		t.Error(list[0].Rate)
	}
}

// TestSpotYields to whoever outranks it, the lowest first.
func TestSpotYields(t *testing.T) {
	d := newDesk(t, 4)
	a, b, c := newSpotter(t, 2, 2, 200_000, 0), newSpotter(t, 3, 1, 150_000, 0), newSpotter(t, 4, 1, 150_000, 0)
	bidAll(t, d, after(0), a, b, c)
	acts(t, d, after(0))
	for n, want := range map[uint32][]market.LeaseID{0: nil, 1: {c.bid.ID()}, 2: {b.bid.ID(), c.bid.ID()}, 3: {a.bid.ID(), c.bid.ID()}, 4: {a.bid.ID(), b.bid.ID(), c.bid.ID()}} {
		got := d.Yield(n)
		slices.SortFunc(got, func(x, y market.LeaseID) int { return slices.Compare(x[:], y[:]) })
		slices.SortFunc(want, func(x, y market.LeaseID) int { return slices.Compare(x[:], y[:]) })
		if !slices.Equal(got, want) {
			t.Errorf("%d GPUs: %d leases, want %d", n, len(got), len(want))
		}
	}
	if got := d.Price(1); got != auction.ToBeat(150_000) {
		t.Error(got)
	}
	if got := d.Price(5); got <= market.MaxRate {
		t.Error(got)
	}
	d.Gone(c.bid.ID())
	d.Resize(3)
	if got := acts(t, d, after(time.Second)); len(got) != 0 {
		t.Error(got)
	}
}

// TestSpotWars: agents that raise in steps, in virtual time, against each other on one lot. A GPU never runs twice, nobody is stopped without a
// minute's signed notice, and in the end no waiting bid's limit beats a running one.
func TestSpotWars(t *testing.T) {
	for seed := range uint64(40) {
		war(t, rand.New(rand.NewPCG(seed, 3)))
	}
}

func war(t *testing.T, rng *rand.Rand) {
	t.Helper()
	gpus := 1 + rng.Uint32N(3)
	d := newDesk(t, gpus)
	var all []*spotter
	byLease := map[market.LeaseID]*spotter{}
	for n := range uint64(2 + rng.IntN(5)) {
		s := newSpotter(t, 2+n, 1, 100_000, money.Rate(100_000+rng.Uint64N(400_000)))
		all, byLease[s.bid.ID()] = append(all, s), s
	}
	bidAll(t, d, after(0), all...)
	for second := range 1_500 {
		now := after(time.Duration(second) * time.Second)
		for _, a := range acts(t, d, now) {
			s := byLease[a.Lease]
			switch a.Do {
			case negotiate.SpotStart:
				s.runs, s.noticed = true, time.Time{}
			case negotiate.SpotNotice:
				s.outbid(d, a.Raw, now)
			case negotiate.SpotAnswer:
				s.raises(d, a.Rate, now)
			case negotiate.SpotStop:
				if s.runs = false; s.noticed.IsZero() || now.Sub(s.noticed) < auction.SpotNotice || now.Before(s.until) {
					t.Fatal("stopped without its notice")
				}
			}
		}
		running := uint32(0)
		for _, s := range all {
			if s.runs {
				running++
			} else if second%20 == 0 && second > 0 {
				s.raises(d, d.Price(1), now) // a waiting agent looks at the price
			}
		}
		if running > gpus {
			t.Fatalf("%d of %d GPUs run", running, gpus)
		}
	}
	for _, w := range all {
		for _, r := range all {
			if !w.runs && r.runs && w.limit >= auction.ToBeat(r.limit) {
				t.Fatalf("a limit of %d waits while one of %d runs at %d", w.limit, r.limit, r.bid.Rate)
			}
		}
	}
}

// outbid checks a notice and raises, if the limit allows it.
func (s *spotter) outbid(d *negotiate.SpotDesk, raw []byte, now time.Time) {
	s.t.Helper()
	o, ch, err := auction.ReadOutbid(raw)
	if err != nil {
		s.t.Fatal(err)
	}
	again := !s.noticed.IsZero() && now.Before(s.until)
	if err := auction.CheckOutbid(o, ch, s.bid, again); err != nil {
		s.t.Fatal(err)
	}
	if !again {
		s.noticed = now
	}
	s.until = now.Add(time.Duration(o.Notice) * time.Second)
	if next, ok := auction.Raise(ch.Rate, s.limit); ok {
		s.raises(d, next, now)
	}
}
