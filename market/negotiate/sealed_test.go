package negotiate_test

import (
	"container/heap"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market/auction"
	"github.com/gpufair/gpufair/market/markettest"
	"github.com/gpufair/gpufair/market/negotiate"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// event is something to happen: the machines take a time and give records, so a network is a queue of functions.
type event struct {
	at time.Time
	n  int
	do func()
}

type queue []event

func (q queue) Len() int { return len(q) }
func (q queue) Less(i, j int) bool {
	return q[i].at.Before(q[j].at) || (q[i].at.Equal(q[j].at) && q[i].n < q[j].n)
}
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(x any)   { *q = append(*q, x.(event)) }
func (q *queue) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}

// faults is how bad a network is, in per cent.
type faults struct{ drop, double, crash int }

// street is sellers and bidders on a faulty network in virtual time.
type street struct {
	t      *testing.T
	rng    *rand.Rand
	now    time.Time
	queue  queue
	count  int
	faults faults
}

func newStreet(t *testing.T, seed uint64, f faults) *street {
	return &street{t: t, rng: rand.New(rand.NewPCG(seed, 1)), now: time.Unix(1_800_000_000, 0), faults: f}
}

func (s *street) at(when time.Time, do func()) {
	s.count++
	heap.Push(&s.queue, event{when, s.count, do})
}

func (s *street) chance(percent int) bool { return s.rng.IntN(100) < percent }

// sends delivers a message after up to 800 ms, which reorders; it may get lost or come twice.
func (s *street) sends(do func()) {
	if s.chance(s.faults.drop) {
		return
	}
	for range 1 + map[bool]int{true: 1}[s.chance(s.faults.double)] {
		s.at(s.now.Add(time.Duration(5+s.rng.IntN(795))*time.Millisecond), do)
	}
}

func (s *street) run() {
	for s.queue.Len() > 0 {
		e := heap.Pop(&s.queue).(event)
		if e.at.After(s.now) {
			s.now = e.at
		}
		e.do()
	}
}

// stall is a seller: its machine, and what it has stored.
type stall struct {
	*street
	dev     *identity.Device
	machine *negotiate.Auctioneer
	stored  auction.Transcript
	times   negotiate.Times
	holds   map[identity.AccountID]money.Micro
	lie     func(auction.Transcript) auction.Transcript // what it hands out
	bidders []*customer
	alarm   time.Time // for which a tick is in the queue
}

// keep is the durable write before anything is sent; then the process may die.
func (s *stall) keep() {
	s.stored, s.times = s.machine.Transcript(), s.machine.Times()
}

func (s *stall) mayCrash() {
	s.t.Helper()
	if !s.chance(s.faults.crash) {
		return
	}
	again, err := negotiate.ResumeAuctioneer(s.dev, s.stored, s.times)
	if err != nil {
		s.t.Fatal(err)
	}
	s.machine = again
}

func (s *stall) tick() {
	s.mayCrash()
	for {
		raw, err := s.machine.Tick(s.now)
		if err != nil {
			s.t.Fatal(err)
		}
		if raw == nil {
			break
		}
		s.keep()
		s.gossips(raw)
		s.mayCrash()
	}
	if due := s.machine.Due(); !due.IsZero() && !due.Equal(s.alarm) {
		s.alarm = due
		s.at(due, s.tick)
	}
}

// gossips tells everybody what the seller signed.
func (s *stall) gossips(raw []byte) {
	if _, err := auction.ReadSeal(raw); err != nil {
		return // an Award is fetched with its transcript
	}
	for _, c := range s.bidders {
		s.sends(func() { c.sees(raw, s.dev.Peer()) })
	}
}

// sees takes a Seal that somebody showed.
func (c *customer) sees(seal []byte, from identity.PeerID) {
	c.must(c.machine.Seal(seal, from, c.now))
	if c.seal == nil {
		c.seal = seal
	}
	c.step()
}

func (s *stall) commits(c *customer) {
	s.mayCrash()
	commit, err := s.machine.Check(c.bid.Commit, c.dev.Delegation(), s.now)
	var receipt []byte
	switch {
	case reason.Is(err, reason.Duplicate):
		receipt, err = s.machine.Receipt(identity.Hash(c.bid.Commit))
	case err == nil:
		receipt, _, _, err = s.machine.Admit(c.bid.Commit, c.dev.Delegation(), s.now)
		s.holds[commit.Account] = commit.Hold
		s.keep()
	}
	if err != nil {
		return // refused: the bidder asks again or gives up
	}
	s.mayCrash()
	s.sends(func() { c.must(c.machine.Receipt(receipt)); c.step() })
}

// opened takes an opening that asker sent, which may have crashed since: an answer reaches only the life that asked.
func (s *stall) opened(c *customer, asker *negotiate.Bidder, raw []byte) {
	s.mayCrash()
	receipt, err := s.machine.Opening(raw, s.now)
	s.keep()
	s.tick()
	if err == nil {
		s.sends(func() {
			if c.machine == asker {
				c.must(asker.Receipt(receipt))
			}
			c.step()
		})
	}
}

func (s *stall) asksSeal(c *customer) {
	seal, leaf, path, err := s.machine.Inclusion(identity.Hash(c.bid.Commit))
	if err != nil {
		return
	}
	s.sends(func() {
		c.must(c.machine.Seal(seal, s.dev.Peer(), s.now))
		_ = c.machine.Inclusion(leaf, path) // of another Seal than the bidder saw first it is none
		c.sees(seal, s.dev.Peer())
	})
}

// customer is a bidder.
type customer struct {
	*stall
	dev     *identity.Device
	machine *negotiate.Bidder
	bid     negotiate.Sealed
	began   time.Time
	seal    []byte
	report  auction.Report
	alarm   time.Time // for which a step is in the queue
}

func (c *customer) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *customer) start() {
	m, err := negotiate.NewBidder(c.bid, c.began)
	c.must(err)
	m.Others(len(c.bidders) - 1)
	c.machine = m
}

func (c *customer) step() {
	if c.chance(c.faults.crash) {
		c.start()
	}
	asks, again := c.machine.Next(c.now)
	for _, a := range asks {
		switch a {
		case negotiate.SendCommit:
			c.sends(func() { c.stall.commits(c) })
		case negotiate.FetchSeal:
			c.sends(func() { c.stall.asksSeal(c) })
			for range 2 {
				o := c.bidders[c.rng.IntN(len(c.bidders))]
				c.sends(func() {
					if seal := o.seal; o != c && seal != nil {
						c.sends(func() { c.sees(seal, o.dev.Peer()) })
					}
				})
			}
		case negotiate.SendOpening:
			asker := c.machine
			raw, err := asker.Opening()
			c.must(err)
			c.sends(func() { c.stall.opened(c, asker, raw) })
		case negotiate.FetchAward:
			c.sends(func() {
				if c.stall.machine.Stage() == negotiate.Over {
					t := c.stall.stored
					if c.lie != nil {
						t = c.lie(t)
					}
					c.sends(func() {
						var err error
						c.report, err = c.machine.Transcript(t)
						c.must(err)
					})
				}
			})
		}
	}
	if !again.IsZero() && again.Sub(c.began) < 5*time.Minute && (!c.alarm.After(c.now) || again.Before(c.alarm)) {
		c.alarm = again
		c.at(again, c.step)
	}
}

func person(t testing.TB, n uint64) *identity.Device { return deviceOf(t, n, n) }

// deviceOf is a device of account n.
func deviceOf(t testing.TB, n, which uint64) *identity.Device {
	t.Helper()
	key := func(what byte, n uint64) ed25519.PrivateKey {
		seed := sha256.Sum256(binary.BigEndian.AppendUint64([]byte{what}, n))
		return ed25519.NewKeyFromSeed(seed[:])
	}
	account, device := key(1, n), key(2, which)
	raw, err := identity.Delegate(account, identity.PeerID(device.Public().(ed25519.PublicKey)), 1, identity.AllPowers, identity.DefaultCap)
	if err != nil {
		t.Fatal(err)
	}
	dev, err := identity.NewDevice(device, raw)
	if err != nil {
		t.Fatal(err)
	}
	return dev
}

// opens puts a seller with bidders on the street.
func (s *street) opens(n uint64, mode auction.Mode, bidders int) *stall {
	s.t.Helper()
	k := 1 + s.rng.Uint32N(4)
	o := auction.Open{
		Offer: markettest.Hash("offer"), Lot: 1, K: k, MinTerm: 300, MaxTerm: 86400, Unit: money.Credit, Reserve: 200_000, Mode: mode,
		Commit: auction.DefaultCommit, Grace: auction.DefaultGrace, Reveal: auction.DefaultReveal, Decline: auction.DefaultDecline,
		Rules: auction.RulesVersion, Nonce: wire.Sum("gpufair/test", binary.BigEndian.AppendUint64(nil, n)),
	}
	bond, err := o.FullBond()
	if err != nil {
		s.t.Fatal(err)
	}
	o.Bond = bond
	st := &stall{street: s, dev: person(s.t, 1_000_000+n), holds: map[identity.AccountID]money.Micro{}}
	if st.machine, err = negotiate.NewAuctioneer(st.dev, o, s.now); err != nil {
		s.t.Fatal(err)
	}
	st.keep()
	for i := range bidders {
		c := &customer{stall: st, dev: person(s.t, n*100+uint64(i)), began: s.now.Add(time.Duration(s.rng.IntN(3000)) * time.Millisecond)}
		q := uint32(1)
		if mode != auction.KPlus1 {
			q += s.rng.Uint32N(k)
		}
		b := auction.Bid{
			Options: []auction.Option{{Quantity: q, Rate: money.Rate(150_000 + s.rng.Uint64N(600_000))}}, Unit: money.Credit, Term: 3600,
			Needs: markettest.Hash("needs"), Use: markettest.Hash("use"), Voucher: markettest.Hash("voucher"),
		}
		nonce := wire.Sum("gpufair/test", binary.BigEndian.AppendUint64(nil, n), []byte{byte(i)})
		if c.bid, err = negotiate.PrepareBid(c.dev, st.stored.Open, b, nonce, 1, 1_000_000); err != nil {
			s.t.Fatal(err)
		}
		st.bidders = append(st.bidders, c)
		c.start()
		s.at(c.began, func() { c.start(); c.step() })
	}
	s.at(st.machine.Due(), st.tick)
	return st
}

// checkHonest wants one result that every participant has checked, and every hold accounted for.
func (s *stall) checkHonest() (opened, bids int) {
	s.t.Helper()
	r, err := auction.Verify(s.stored)
	if err != nil || r.Verdict() != auction.Kept {
		s.t.Fatalf("%s, missing %q, %v, %v", r.Verdict(), r.Missing, r.Notes, err)
	}
	if len(s.stored.Seals) != 1 || len(s.stored.Awards) != 1 || len(s.stored.Leaves) != len(s.holds) {
		s.t.Fatalf("%d seals, %d awards, %d commits with %d holds", len(s.stored.Seals), len(s.stored.Awards), len(s.stored.Leaves), len(s.holds))
	}
	for _, b := range r.Bids {
		if s.holds[b.Account] != b.Hold {
			s.t.Fatalf("leaf %d holds %v, the seller %v", b.Leaf, b.Hold, s.holds[b.Account])
		}
	}
	for i, c := range s.bidders {
		if c.report.Verdict() != auction.Kept || !slices.Equal(c.report.Outcome.Wins, r.Outcome.Wins) {
			s.t.Fatalf("bidder %d has %s, %+v; the seller %+v, missing %q", i, c.report.Verdict(), c.report.Outcome.Wins, r.Outcome.Wins, c.report.Missing)
		}
	}
	return r.Counts.Opened, r.Counts.Leaves
}

// TestSealedAuctions runs auctions side by side in virtual time: on a good network, and on ones that lose, double and reorder messages
// while both sides crash at any step. All see one result, cleared again by each of them.
func TestSealedAuctions(t *testing.T) {
	for name, c := range map[string]struct {
		f        faults
		auctions int
		least    int // per cent of commits that are opened
	}{
		"calm":  {faults{}, 8, 100},
		"lossy": {faults{drop: 20, double: 20}, 12, 97},
		"awful": {faults{drop: 30, double: 30, crash: 5}, 12, 90},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStreet(t, uint64(len(name)), c.f)
			var stalls []*stall
			for n := range uint64(c.auctions) {
				mode := []auction.Mode{auction.First, auction.KPlus1, auction.VCG}[n%3]
				stalls = append(stalls, s.opens(n, mode, s.rng.IntN(8)))
			}
			s.run()
			opened, bids := 0, 0
			for _, st := range stalls {
				o, b := st.checkHonest()
				opened, bids = opened+o, bids+b
			}
			if bids == 0 || opened*100 < bids*c.least {
				t.Errorf("%d of %d commits were opened", opened, bids)
			}
			t.Logf("%d auctions, %d commits, %d opened", c.auctions, bids, opened)
		})
	}
}
