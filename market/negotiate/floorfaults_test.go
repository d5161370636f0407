package negotiate_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market/auction"
	"github.com/gpufair/gpufair/market/markettest"
	"github.com/gpufair/gpufair/market/negotiate"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/p2ptest"
	"github.com/gpufair/gpufair/p2p/wire"
)

// faulty makes every line between the seller and bidders, and among bidders, as bad as f.
func (f *fair) faulty(bidders []*bidder, bad p2ptest.Faults) {
	all := []identity.PeerID{f.owner.Peer()}
	for _, b := range bidders {
		all = append(all, b.dev.Peer())
	}
	for i := range all {
		for j := range i {
			f.net.Faults(all[i], all[j], bad)
		}
	}
}

// TestAuctionSurvives holds auctions on lines that lose, double, delay and cut, while the seller dies at every stage. Every bidder ends
// with the same result, cleared again by itself, and no hold is left.
func TestAuctionSurvives(t *testing.T) {
	for name, c := range map[string]struct {
		bad   p2ptest.Faults
		crash []time.Duration // since the start, one after the other
		away  time.Duration
		store bool // the store fails now and then
	}{
		"bad lines":           {bad: p2ptest.Faults{Latency: 150 * time.Millisecond, Drop: 0.5, Duplicate: 0.5, Reorder: time.Second}},
		"no gossip":           {bad: p2ptest.Faults{Drop: 1}},
		"killed early":        {crash: []time.Duration{5 * time.Second}, away: 3 * time.Second},
		"killed at the seal":  {crash: []time.Duration{22999 * time.Millisecond}, away: 20 * time.Second},
		"killed after":        {crash: []time.Duration{24300 * time.Millisecond}, away: 20 * time.Second, bad: p2ptest.Faults{Latency: 200 * time.Millisecond}},
		"killed at the award": {crash: []time.Duration{24100 * time.Millisecond}, away: 2 * time.Second, bad: p2ptest.Faults{Latency: 200 * time.Millisecond}},
		"killed three times":  {crash: []time.Duration{4 * time.Second, 15 * time.Second, 6 * time.Second}, away: time.Second, bad: p2ptest.Faults{Drop: 0.3}},
		"a bad disk":          {store: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFair(t)
				var bidders []*bidder
				for range 4 {
					bidders = append(bidders, f.joins())
				}
				f.net.Mesh()
				synctest.Wait()
				f.faulty(bidders, c.bad)
				if c.store {
					rng := rand.New(rand.NewPCG(1, 2))
					f.book.fail = func(what string) error {
						if what != "auctions" && rng.IntN(3) == 0 {
							return errors.New("the disk is full")
						}
						return nil
					}
				}
				f.playAll(bidders, c.crash, c.away)
				if won := checkSame(t, bidders); won != 4 {
					t.Errorf("%d won", won)
				}
				time.Sleep(2 * auction.LateWithin)
				synctest.Wait()
				if held, posted := f.book.money(); held+posted != 0 {
					t.Errorf("%d holds are left, %d were posted", held, posted)
				}
				f.ends()
			})
		})
	}
}

// playAll lets all bid, while the seller dies.
func (f *fair) playAll(bidders []*bidder, crash []time.Duration, away time.Duration) {
	f.t.Helper()
	var wg sync.WaitGroup
	for i, b := range bidders {
		wg.Go(func() {
			var bidding negotiate.Bidding
			for range 20 { // a person would try again, too
				if bidding, b.err = f.bids(b, rates(i), 1); b.err == nil {
					f.follows(b, bidding)
					return
				}
				time.Sleep(200 * time.Millisecond)
			}
		})
	}
	for _, after := range crash {
		time.Sleep(after)
		f.crash(away)
	}
	wg.Wait()
}

// TestUnopenedCommitIsPosted: a bidder that vanishes after its commit loses its hold, a minute after the award, and the winners have the
// bond off.
func TestUnopenedCommitIsPosted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFair(t)
		stays, gone := f.joins(), f.joins()
		f.net.Mesh()
		synctest.Wait()
		bidding, err := f.bids(gone, 900_000, 4)
		if err != nil {
			t.Fatal(err)
		}
		ctx, die := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { gone.floor.Follow(ctx, bidding) })
		wg.Go(func() { f.plays(stays, 250_000, 2) })
		time.Sleep(5 * time.Second)
		die()
		gone.node.Close()
		wg.Wait()
		if checkSame(t, []*bidder{stays}) != 1 {
			t.Error("the one that stayed has no lease")
		}
		r := stays.got.Report
		if len(r.Dues.Discounts) != 1 || r.Dues.Discounts[0].Amount != r.Open.Bond || !stays.got.Unwitnessed {
			t.Error(r.Dues, stays.got.Unwitnessed)
		}
		if _, posted := f.book.money(); posted != 0 {
			t.Error("posted before a late opening could come")
		}
		time.Sleep(2 * auction.LateWithin)
		synctest.Wait()
		hash := identity.Hash(bidding.Commit)
		f.book.mu.Lock()
		defer f.book.mu.Unlock()
		if c, _ := auction.ReadCommit(bidding.Commit); f.book.posted[hash] != c.Hold || len(f.book.holds) != 0 {
			t.Error("posted", f.book.posted, "held", f.book.holds)
		}
		f.ends()
	})
}

// TestSellerGoneTooLong: a seller that was away longer than its bidders wait aborts, and nobody's hold stays.
func TestSellerGoneTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFair(t)
		b := f.joins()
		f.net.Mesh()
		synctest.Wait()
		var wg sync.WaitGroup
		wg.Go(func() { f.plays(b, 300_000, 1) })
		time.Sleep(10 * time.Second)
		f.crash(10 * time.Minute)
		wg.Wait()
		synctest.Wait()
		if held, posted := f.book.money(); !errors.Is(b.err, negotiate.ErrSellerGone) || held+posted != 0 {
			t.Error(b.err, held, posted)
		}
		f.ends()
	})
}

// TestBidderStartsAgain: a bidder's process that dies after its commit, and after its opening, goes on from the same stored bid.
func TestBidderStartsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFair(t)
		b := f.joins()
		f.net.Mesh()
		synctest.Wait()
		bidding, err := f.bids(b, 300_000, 1)
		if err != nil {
			t.Fatal(err)
		}
		for _, life := range []time.Duration{time.Second, 20 * time.Second, 3 * time.Second} {
			ctx, die := context.WithTimeout(t.Context(), life)
			if _, err := b.floor.Follow(ctx, bidding); !errors.Is(err, context.DeadlineExceeded) && err != nil {
				t.Fatal(err)
			}
			die()
		}
		f.follows(b, bidding)
		if checkSame(t, []*bidder{b}) != 1 || len(f.book.kept[b.got.Report.Auction].Leaves) != 1 {
			t.Error("no lease, or more than one commit")
		}
		f.ends()
	})
}

// TestSellerWithTwoSeals: who hears two Seals proves it to all, and nobody opens.
func TestSellerWithTwoSeals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFair(t)
		victim, other := f.joins(), f.joins()
		f.net.Mesh()
		synctest.Wait()
		bidding, err := f.bids(victim, 300_000, 1)
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		var wg sync.WaitGroup
		wg.Go(func() { victim.got, victim.err = victim.floor.Follow(ctx, bidding) })
		time.Sleep(10 * time.Second)
		var log auction.Log
		size, root := log.Head()
		lie := markettest.Seal(t, f.owner, auction.DomainSeal, auction.Seal{
			Header: f.owner.Header(auction.Version), Delegation: f.owner.DelegationHash(), Auction: auction.IDOf(bidding.Open), Size: size, Root: root,
		})
		f.shout(lie)
		wg.Wait()
		synctest.Wait()
		for i, b := range []*bidder{victim, other} {
			if found := b.floor.Frauds(); len(found) != 1 || found[0].Kind != auction.TwoSeals || found[0].Seller != f.owner.Account() {
				t.Errorf("bidder %d knows %v", i, found)
			}
		}
		for _, k := range f.book.kept {
			if len(k.Shown) != 0 {
				t.Error("a bid was opened under two Seals")
			}
		}
		f.ends()
	})
}

// shout says a Seal on the topic in the seller's name.
func (f *fair) shout(seal []byte) {
	f.t.Helper()
	stranger := f.net.Join(p2ptest.Device(f.t))
	f.net.Mesh()
	topic, err := stranger.Join(negotiate.AuctionsTopic("test"), 4<<10, nil)
	if err != nil {
		f.t.Fatal(err)
	}
	data, err := wire.Marshal(map[int]any{1: 3, 2: seal})
	if err != nil {
		f.t.Fatal(err)
	}
	if err := topic.Publish(f.t.Context(), data); err != nil {
		f.t.Fatal(err)
	}
	synctest.Wait()
	stranger.Close()
}

// TestAuctionAnswersStrangers: what a peer can't have it is refused with a reason, and a flood is cut.
func TestAuctionAnswersStrangers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFair(t)
		b, stranger := f.joins(), f.joins()
		f.net.Mesh()
		synctest.Wait()
		f.plays(b, 300_000, 1)
		id := b.got.Report.Auction
		proto := p2p.ProtocolID("test", "auction")
		ask := func(who *bidder, question map[int]any) error {
			var answer map[int]any
			return p2p.Call(t.Context(), who.node, f.owner.Peer(), proto, question, &answer, 128<<10)
		}
		file := map[int]any{1: 6, 2: id[:], 7: make([]byte, 32)}
		if err := ask(stranger, file); p2p.KindOf(err) != p2p.KindForbidden {
			t.Error("losing bids are for participants:", err)
		}
		if err := ask(b, file); err != nil {
			t.Error(err)
		}
		unknown := map[int]any{1: 2, 2: make([]byte, 32), 3: []byte("commit"), 7: make([]byte, 32)}
		if err := negotiate.Typed(ask(b, unknown)); !reason.Is(err, reason.AuctionUnknown) {
			t.Error(err)
		}
		if _, err := stranger.floor.Call(t.Context(), f.offer, markettest.CPULot); !reason.Is(err, reason.OfferUnknown) {
			t.Error(err)
		}
		busy := 0
		for range 300 {
			if p2p.KindOf(ask(stranger, unknown)) == p2p.KindBusy {
				busy++
			}
		}
		if busy == 0 {
			t.Error("a flood of questions was answered")
		}
		f.ends()
	})
}

// TestCommitRefused: the seller's store refuses a commit for a reason, and its bidder is told at once.
func TestCommitRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFair(t)
		b := f.joins()
		f.net.Mesh()
		synctest.Wait()
		f.book.fail = func(what string) error {
			if what == "take" {
				return reason.Errorf(reason.CreditLimit, "0 left")
			}
			return nil
		}
		began := time.Now()
		f.plays(b, 300_000, 1)
		if !reason.Is(b.err, reason.CreditLimit) || time.Since(began) > 5*time.Second {
			t.Error(b.err, time.Since(began))
		}
		f.ends()
	})
}

// TestManyAuctions is a simulation: 4 sellers and 16 bidders, each bidding in several auctions at once, on bad lines. No bid gets two
// results, and no GPU two leases.
func TestManyAuctions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const sellers, bidders, rounds = 4, 16, 2
		rng := rand.New(rand.NewPCG(7, 7))
		net := p2ptest.NewNet(t)
		var fairs []*fair
		for range sellers {
			f := &fair{t: t, net: net, owner: p2ptest.Device(t)}
			f.node = net.Join(f.owner)
			o := markettest.Offer(f.owner, 1, time.Now())
			o.Addrs = f.node.Addrs()
			f.offer = markettest.Sealed(t, f.owner, o)
			f.book = newBook(f.owner, f.offer, markettest.GPULot)
			f.live()
			fairs = append(fairs, f)
		}
		var people []*bidder
		for range bidders {
			people = append(people, fairs[0].joins())
		}
		net.Mesh()
		synctest.Wait()
		for _, f := range fairs {
			f.faulty(people, p2ptest.Faults{Latency: 100 * time.Millisecond, Drop: 0.3, Duplicate: 0.2, Reorder: 500 * time.Millisecond})
		}
		for round := range rounds {
			bids := map[*fair][]*bidder{}
			var wg sync.WaitGroup
			for i, p := range people {
				for n := range 2 {
					f := fairs[(i+n*(1+round))%sellers]
					b := &bidder{dev: p.dev, floor: p.floor, node: p.node}
					bids[f] = append(bids[f], b)
					rate, quantity := money.Rate(200_000+rng.Uint64N(400_000)), 1+rng.Uint32N(2)
					wg.Go(func() { f.plays(b, rate, quantity) })
				}
			}
			wg.Wait()
			for _, f := range fairs {
				checkSame(t, bids[f])
			}
			for _, f := range fairs { // the winners of the last round are done
				f.book.mu.Lock()
				if f.book.used > 4 {
					t.Error("a GPU was leased twice")
				}
				f.book.used = 0
				f.book.mu.Unlock()
			}
		}
		time.Sleep(2 * auction.LateWithin)
		synctest.Wait()
		for _, f := range fairs {
			if held, posted := f.book.money(); held+posted != 0 {
				t.Errorf("%d holds are left, %d were posted", held, posted)
			}
			f.ends()
		}
	})
}
