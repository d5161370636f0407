package negotiate_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/auction"
	"github.com/gpufair/gpufair/market/markettest"
	"github.com/gpufair/gpufair/market/negotiate"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/p2ptest"
	"github.com/gpufair/gpufair/p2p/wire"
)

// ledgerBook is a seller's store with its holds, as one lock that stands for a transaction.
type ledgerBook struct {
	dev   *identity.Device
	offer market.SealedOffer
	lot   uint8
	mode  auction.Mode
	house *negotiate.House // of the life that runs now

	calls  sync.Mutex
	mu     sync.Mutex
	kept   map[auction.ID]*negotiate.KeptAuction // guarded by mu
	holds  map[wire.Hash]money.Micro             // guarded by mu; by commit, open ones
	posted map[wire.Hash]money.Micro             // guarded by mu
	leases map[market.LeaseID][]byte             // guarded by mu
	used   int                                   // guarded by mu; GPUs leased
	fail   func(what string) error               // guarded by mu; nil: the store works
}

func newBook(dev *identity.Device, offer market.SealedOffer, lot uint8) *ledgerBook {
	return &ledgerBook{
		dev: dev, offer: offer, lot: lot, mode: auction.First, kept: map[auction.ID]*negotiate.KeptAuction{}, holds: map[wire.Hash]money.Micro{},
		posted: map[wire.Hash]money.Micro{}, leases: map[market.LeaseID][]byte{},
	}
}

// do runs f unless the store is broken.
func (b *ledgerBook) do(what string, f func()) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fail != nil {
		if err := b.fail(what); err != nil {
			return err
		}
	}
	f()
	return nil
}

// money is how many holds are open, and how many were posted.
func (b *ledgerBook) money() (held, posted int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.holds), len(b.posted)
}

func (b *ledgerBook) Auctions(context.Context) (out []negotiate.KeptAuction, err error) {
	err = b.do("auctions", func() {
		for _, k := range b.kept {
			if !k.Head.Closed {
				out = append(out, negotiate.KeptAuction{Head: k.Head, Leaves: slices.Clone(k.Leaves), Shown: slices.Clone(k.Shown)})
			}
		}
	})
	return out, err
}

func (b *ledgerBook) Auction(_ context.Context, id auction.ID) (out negotiate.KeptAuction, ok bool, err error) {
	err = b.do("auction", func() {
		if k := b.kept[id]; k != nil {
			out, ok = negotiate.KeptAuction{Head: k.Head, Leaves: slices.Clone(k.Leaves), Shown: slices.Clone(k.Shown)}, true
		}
	})
	return out, ok, err
}

func (b *ledgerBook) Turn(_ context.Context, id auction.ID, head negotiate.AuctionHead, post []negotiate.Posted, void []wire.Hash) error {
	return b.do("turn", func() {
		if b.kept[id] == nil {
			b.kept[id] = &negotiate.KeptAuction{}
		}
		b.kept[id].Head = head
		for _, p := range post {
			if _, held := b.holds[p.Commit]; held {
				b.posted[p.Commit] = p.Amount
			}
			delete(b.holds, p.Commit)
		}
		for _, v := range void {
			delete(b.holds, v)
		}
	})
}

func (b *ledgerBook) Take(_ context.Context, c negotiate.TakenCommit) error {
	return b.do("take", func() {
		k := b.kept[c.Auction]
		if int(c.Leaf) != len(k.Leaves) {
			panic(fmt.Sprintf("leaf %d of %d", c.Leaf, len(k.Leaves)))
		}
		k.Leaves = append(k.Leaves, c.Kept)
		b.holds[c.Hash] = c.Commit.Hold
		if c.Replaced != nil {
			delete(b.holds, *c.Replaced)
		}
	})
}

func (b *ledgerBook) Show(_ context.Context, id auction.ID, s negotiate.KeptShown) error {
	return b.do("show", func() {
		k := b.kept[id]
		at, _ := slices.BinarySearchFunc(k.Shown, s.Leaf, func(x negotiate.KeptShown, leaf uint32) int { return int(x.Leaf) - int(leaf) })
		k.Shown = slices.Insert(k.Shown, at, s)
	})
}

func (b *ledgerBook) Sell(_ context.Context, w negotiate.Won) (err error) {
	failed := b.do("sell", func() {
		if b.leases[w.Lease] != nil {
			return
		}
		lot, _ := b.offer.Lot(b.lot)
		var slots []market.SlotGeneration
		for range w.Win.Quantity {
			if b.used == len(lot.Slots) {
				err = reason.Errorf(reason.DeviceTaken, "%d of %d", b.used, len(lot.Slots))
				return
			}
			slots = append(slots, market.SlotGeneration{Device: lot.Slots[b.used].Device, Generation: 1})
			b.used++
		}
		var l market.Lease
		if l, err = auction.Lease(b.dev, w.Open, w.Opening, w.Win, slots, 1_000_000); err != nil {
			return
		}
		b.leases[w.Lease], err = b.dev.Seal(market.DomainLease, l)
		delete(b.holds, identity.Hash(w.Opening.Commit))
	})
	return errors.Join(failed, err)
}

func (b *ledgerBook) Sold(_ context.Context, id market.LeaseID) (raw []byte, err error) {
	err = b.do("sold", func() { raw = b.leases[id] })
	return raw, err
}

func (b *ledgerBook) Called(ctx context.Context, _ identity.AccountID, offer wire.Hash, lot uint8) (auction.ID, error) {
	if offer != b.offer.Hash || lot != b.lot {
		return auction.ID{}, reason.Errorf(reason.OfferUnknown, "offer %s", offer.Short())
	}
	b.calls.Lock()
	defer b.calls.Unlock()
	for _, a := range b.house.Auctions() {
		if a.Stage == negotiate.Committing {
			return a.ID, nil
		}
	}
	return b.house.Open(ctx, b.open())
}

func (b *ledgerBook) open() auction.Open {
	lot, _ := b.offer.Lot(b.lot)
	o := auction.Open{
		Offer: b.offer.Hash, Lot: b.lot, K: uint32(len(lot.Slots)), MinTerm: 300, MaxTerm: 86400, Unit: money.Credit, Reserve: 200_000, Mode: b.mode,
		Commit: auction.DefaultCommit, Grace: auction.DefaultGrace, Reveal: auction.DefaultReveal, Decline: auction.DefaultDecline,
		Rules: auction.RulesVersion, Nonce: markettest.Hash(fmt.Sprint("nonce of ", len(b.kept))),
	}
	o.Bond, _ = o.FullBond()
	return o
}

// market is a seller and bidders on the in-memory network.
type fair struct {
	t     *testing.T
	net   *p2ptest.Net
	book  *ledgerBook
	owner *identity.Device
	stop  context.CancelFunc // of the seller's life
	node  *p2ptest.Node      // the seller's
	over  sync.WaitGroup     // of the seller's life
	all   sync.WaitGroup     // of the bidders
	offer market.SealedOffer
	nonce *wire.Hash // of all bids; nil: each its own
}

func newFair(t *testing.T) *fair {
	t.Helper()
	f := &fair{t: t, net: p2ptest.NewNet(t), owner: p2ptest.Device(t)}
	f.node = f.net.Join(f.owner)
	o := markettest.Offer(f.owner, 1, time.Now())
	o.Addrs = f.node.Addrs()
	f.offer = markettest.Sealed(t, f.owner, o)
	f.book = newBook(f.owner, f.offer, markettest.GPULot)
	f.live()
	return f
}

// live starts the seller on what its book has.
func (f *fair) live() {
	f.t.Helper()
	ctx, cancel := context.WithCancel(f.t.Context())
	f.stop = cancel
	floor, err := negotiate.NewFloor(f.node, f.owner, "test", nil)
	if err != nil {
		f.t.Fatal(err)
	}
	house, err := negotiate.NewHouse(floor, f.book)
	if err != nil {
		f.t.Fatal(err)
	}
	f.book.house = house
	f.over.Go(func() { floor.Run(ctx) })
	f.over.Go(func() { house.Run(ctx) })
}

// crash kills the seller's process and starts it again after a while.
func (f *fair) crash(away time.Duration) {
	f.t.Helper()
	f.stop()
	f.node.Close()
	f.over.Wait()
	time.Sleep(away)
	f.node = f.net.Join(f.owner)
	f.live()
	f.net.Mesh()
}

// bidder is one account that bids once.
type bidder struct {
	dev    *identity.Device
	floor  *negotiate.Floor
	node   *p2ptest.Node
	lease  market.Lease
	seen   []negotiate.BidStage
	got    negotiate.Followed
	err    error
	noSale error
}

func (f *fair) joins() *bidder {
	f.t.Helper()
	b := &bidder{dev: p2ptest.Device(f.t)}
	b.node = f.net.Join(b.dev)
	floor, err := negotiate.NewFloor(b.node, b.dev, "test", nil)
	if err != nil {
		f.t.Fatal(err)
	}
	b.floor = floor
	f.all.Go(func() { floor.Run(f.t.Context()) })
	return b
}

// bids calls for the auction and makes a bid of that many GPUs.
func (f *fair) bids(b *bidder, rate money.Rate, quantity uint32) (negotiate.Bidding, error) {
	called, err := b.floor.Call(f.t.Context(), f.offer, f.book.lot)
	if err != nil {
		return negotiate.Bidding{}, err
	}
	return f.bidsIn(b, called, rate, quantity)
}

func (f *fair) bidsIn(b *bidder, called negotiate.Called, rate money.Rate, quantity uint32) (negotiate.Bidding, error) {
	f.t.Helper()
	n := needs(quantity)
	hash, err := n.Hash()
	if err != nil {
		f.t.Fatal(err)
	}
	voucher := []byte("voucher 0 of " + b.dev.Peer().String())
	nonce := wire.Sum("gpufair/test", []byte(b.dev.Peer().String()))
	if f.nonce != nil {
		nonce = *f.nonce
	}
	sealed, err := negotiate.PrepareBid(b.dev, called.Raw, auction.Bid{
		Options: []auction.Option{{Quantity: quantity, Rate: rate}}, Unit: money.Credit, Term: 3600, Needs: hash, Use: f.offer.Terms.Use,
		Voucher: identity.Hash(voucher),
	}, nonce, 1, 1_000_000)
	return negotiate.Bidding{
		Sealed: sealed, Began: called.Since, Seller: p2p.PeerAddr{Peer: f.owner.Peer(), Addrs: f.offer.Addrs}, Voucher: voucher, Needs: n,
		Progress: func(s negotiate.BidStage) {
			if len(b.seen) == 0 || b.seen[len(b.seen)-1] != s {
				b.seen = append(b.seen, s)
			}
		},
	}, err
}

// plays takes a bid to its end, and to the lease if it won.
func (f *fair) plays(b *bidder, rate money.Rate, quantity uint32) {
	bidding, err := f.bids(b, rate, quantity)
	if err != nil {
		b.err = err
		return
	}
	f.follows(b, bidding)
}

func (f *fair) follows(b *bidder, bidding negotiate.Bidding) {
	if b.got, b.err = b.floor.Follow(f.t.Context(), bidding); b.err != nil {
		return
	}
	for _, w := range b.got.Report.Price {
		if w.Account == b.dev.Account() {
			lot, _ := f.offer.Lot(f.book.lot)
			_, b.lease, b.noSale = b.floor.FetchLease(f.t.Context(), bidding.Seller, bidding.Sealed, w.Win, lot)
		}
	}
}

func (f *fair) ends() {
	f.stop()
	f.over.Wait()
}

// checkSame wants one result for all bidders, by each one's own clearing, and gives how many won.
func checkSame(t *testing.T, bidders []*bidder) (won int) {
	t.Helper()
	for i, b := range bidders {
		if b.err != nil || b.noSale != nil || b.got.Report.Verdict() != auction.Kept {
			t.Fatalf("bidder %d: %v, %v, %s, missing %q, %q, stages %v", i, b.err, b.noSale, b.got.Report.Verdict(), b.got.Report.Missing, b.got.Report.Notes, b.seen)
		}
		if !slices.Equal(b.got.Report.Outcome.Wins, bidders[0].got.Report.Outcome.Wins) {
			t.Fatalf("bidder %d has another result", i)
		}
		if again, err := auction.DecodeTranscript(b.got.File); err != nil {
			t.Fatal(err)
		} else if r, err := auction.Verify(again); err != nil || r.Verdict() != auction.Kept {
			t.Fatal("the file does not show it", r.Verdict(), err)
		}
		if !wire.Hash(b.lease.ID).IsZero() {
			won++
		}
	}
	return won
}

func rates(i int) money.Rate { return money.Rate(250_000 + 10_000*i) }

// TestAuctionOverTheNetwork holds one auction from the call to the leases: five bidders, four GPUs, the dearest win and all clear the same.
func TestAuctionOverTheNetwork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFair(t)
		var bidders []*bidder
		for range 5 {
			bidders = append(bidders, f.joins())
		}
		f.net.Mesh()
		synctest.Wait()
		began := time.Now()
		var wg sync.WaitGroup
		for i, b := range bidders {
			wg.Go(func() { f.plays(b, rates(i), 1) })
		}
		wg.Wait()
		if won := checkSame(t, bidders); won != 4 || !wire.Hash(bidders[0].lease.ID).IsZero() {
			t.Errorf("%d won", won)
		}
		if took := time.Since(began); took < 23*time.Second || took > 26*time.Second {
			t.Errorf("it took %v; all opened, so the award comes right after the seal at 23 s", took)
		}
		want := []negotiate.BidStage{negotiate.BidTaken, negotiate.BidSealed, negotiate.BidCounted, negotiate.BidResulted}
		for i, b := range bidders {
			if b.got.Unwitnessed {
				t.Errorf("bidder %d was unwitnessed among five", i)
			}
			if b.seen[len(b.seen)-1] != negotiate.BidResulted || b.seen[0] != want[0] {
				t.Errorf("stages %v", b.seen)
			}
		}
		time.Sleep(2 * auction.LateWithin)
		synctest.Wait()
		if held, posted := f.book.money(); held+posted != 0 || len(f.book.house.Auctions()) != 0 {
			t.Error("holds are left, or the auction is open", held, posted, f.book.house.Auctions())
		}
		// Whoever took part gets the file of a closed auction; others do not.
		if _, err := f.book.house.Transcript(t.Context(), bidders[0].got.Report.Auction); err != nil {
			t.Error(err)
		}
		f.ends()
	})
}
