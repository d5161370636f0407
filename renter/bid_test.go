package renter

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/auction"
	"github.com/gpufair/gpufair/market/book"
	"github.com/gpufair/gpufair/market/markettest"
	"github.com/gpufair/gpufair/market/negotiate"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/p2ptest"
	"github.com/gpufair/gpufair/p2p/wire"
	"github.com/gpufair/gpufair/renter/control/api"
)

const (
	testReserve = testRate / 2
	testBid     = testRate / 3 * 2
)

// hammer sells the stranger's lot by auction. It keeps everything in memory and in the stranger's books, one lock for a transaction.
type hammer struct {
	*stranger
	house *negotiate.House
	life  sync.WaitGroup
	mode  auction.Mode
	other func(*auction.Open) // than an honest seller's; nil: none

	mu    sync.Mutex
	kept  map[auction.ID]*negotiate.KeptAuction // guarded by mu
	holds map[wire.Hash]money.Micro             // guarded by mu; by commit, open ones
	owed  money.Micro                           // guarded by mu; holds that were posted
}

// sells starts the auctions of the rig's owner; call end before the bubble's.
func (r *rig) sells() (h *hammer, end func()) {
	r.t.Helper()
	h = &hammer{stranger: r.owner, mode: auction.First, kept: map[auction.ID]*negotiate.KeptAuction{}, holds: map[wire.Hash]money.Micro{}}
	h.claim = func(ms uint64) (money.Micro, uint64) { return money.Micro(ms) / 3 * 2, ms }
	floor, err := negotiate.NewFloor(h.node, h.dev, testNet, nil)
	must(r.t, err)
	h.house, err = negotiate.NewHouse(floor, h)
	must(r.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	h.life.Go(func() { must(r.t, floor.Run(ctx)) })
	h.life.Go(func() { must(r.t, h.house.Run(ctx)) })
	time.Sleep(time.Second) // all have joined the topic
	return h, func() {
		cancel()
		h.life.Wait()
	}
}

func (h *hammer) Auctions(context.Context) (out []negotiate.KeptAuction, err error) {
	return nil, nil // it never restarts
}

func (h *hammer) Auction(_ context.Context, id auction.ID) (negotiate.KeptAuction, bool, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if k := h.kept[id]; k != nil {
		return *k, true, nil
	}
	return negotiate.KeptAuction{}, false, nil
}

func (h *hammer) Turn(_ context.Context, id auction.ID, head negotiate.AuctionHead, post []negotiate.Posted, void []wire.Hash) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.kept[id] == nil {
		h.kept[id] = &negotiate.KeptAuction{}
	}
	h.kept[id].Head = head
	for _, p := range post {
		h.owed += p.Amount
		delete(h.holds, p.Commit)
	}
	for _, v := range void {
		delete(h.holds, v)
	}
	return nil
}

func (h *hammer) Take(_ context.Context, c negotiate.TakenCommit) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	k := h.kept[c.Auction]
	k.Leaves, h.holds[c.Hash] = append(k.Leaves, c.Kept), c.Commit.Hold
	return nil
}

func (h *hammer) Show(_ context.Context, id auction.ID, s negotiate.KeptShown) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	k := h.kept[id]
	at, _ := slices.BinarySearchFunc(k.Shown, s.Leaf, func(x negotiate.KeptShown, leaf uint32) int { return int(x.Leaf) - int(leaf) })
	k.Shown = slices.Insert(slices.Clone(k.Shown), at, s)
	return nil
}

func (h *hammer) Sell(ctx context.Context, w negotiate.Won) error {
	h.stranger.mu.Lock()
	defer h.stranger.mu.Unlock()
	if h.id == w.Lease {
		return nil
	}
	accept, err := auction.AcceptOf(w.Open, w.Opening, w.Win.Pay)
	if err != nil {
		return err
	}
	lot, _ := h.offer.Lot(w.Open.Lot)
	l, err := auction.Lease(h.dev, w.Open, w.Opening, w.Win, []market.SlotGeneration{{Device: lot.Slots[0].Device, Generation: 1}}, 1<<40)
	if err != nil {
		return err
	}
	if w.Voucher[0] != 0 { // a rival's is none
		err = h.books.Update(ctx, func(tx *books.Tx) error {
			_, err := tx.OpenLane(books.Opening{
				Channel: ledger.Channel{Renter: accept.Account, Provider: h.dev.Account(), Unit: money.Credit, Epoch: 1},
				Lane:    ledger.Lane(w.Lease), Rate: accept.Rate, Devices: accept.Quantity, Hold: l.Hold,
			}, w.Voucher, w.Delegation)
			return err
		})
		if err != nil {
			return err
		}
	}
	raw, err := h.dev.Seal(market.DomainLease, l)
	h.id, h.accept, h.lease, h.raw, h.state = w.Lease, accept, l, raw, work.Agreed
	return err
}

func (h *hammer) Called(ctx context.Context, _ identity.AccountID, offer wire.Hash, lot uint8) (auction.ID, error) {
	if offer != h.offer.Hash || lot != markettest.CPULot {
		return auction.ID{}, reason.Errorf(reason.OfferUnknown, "")
	}
	for _, a := range h.house.Auctions() {
		if a.Stage == negotiate.Committing {
			return a.ID, nil
		}
	}
	o := auction.Open{
		Offer: offer, Lot: lot, K: 1, MinTerm: 10, MaxTerm: 3600, Unit: money.Credit, Reserve: testReserve, Mode: h.mode, Commit: auction.DefaultCommit,
		Grace: auction.DefaultGrace, Reveal: auction.DefaultReveal, Decline: 10, Rules: auction.RulesVersion,
		Nonce: wire.Hash{byte(len(h.kept) + 1)},
	}
	if h.other != nil {
		h.other(&o)
	}
	o.Bond, _ = o.FullBond()
	return h.house.Open(ctx, o)
}

// only is the only auction there was.
func (h *hammer) only() negotiate.KeptAuction {
	h.t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.kept) != 1 {
		h.t.Fatalf("%d auctions were held", len(h.kept))
	}
	for _, k := range h.kept {
		return *k
	}
	panic("unreachable")
}

// money is how many holds are open, and what was posted.
func (h *hammer) money() (held int, owed money.Micro) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.holds), h.owed
}

// bids has the agent bid for the lot.
func (r *rig) bids(rate money.Rate) (market.LeaseID, error) {
	r.t.Helper()
	<-r.agent.ready
	f := newFiles()
	f.image = r.image
	p := &planned{
		req: api.RunRequest{Image: "x", Output: filepath.Join(r.dir, "out"), Command: []string{"job"}}, budget: plenty, files: f, bid: rate,
		needs: work.Needs{Kind: market.KindCPU, Devices: 1},
	}
	defer f.drop()
	lot, _ := r.owner.offer.Lot(markettest.CPULot)
	j, err := r.agent.bidFor(r.t.Context(), p, book.Found{Entry: book.Entry{SealedOffer: r.owner.offer}, Lot: lot})
	if err != nil {
		return market.LeaseID{}, err
	}
	return j.id, r.agent.start(j)
}

// rival bids beside the agent and wins with a higher rate, unless it goes before it shows its bid.
func (h *hammer) rival(rate money.Rate, stays time.Duration) {
	h.t.Helper()
	dev := p2ptest.Device(h.t)
	node := h.net.Join(dev)
	h.net.Mesh()
	floor, err := negotiate.NewFloor(node, dev, testNet, nil)
	must(h.t, err)
	ctx, cancel := context.WithTimeout(context.Background(), stays)
	h.life.Go(func() { floor.Run(ctx) })
	h.life.Go(func() {
		defer node.Close()
		defer cancel()
		called, err := floor.Call(ctx, h.offer, markettest.CPULot)
		must(h.t, err)
		needs := work.Needs{Kind: market.KindCPU, Devices: 1}
		named, err := needs.Hash()
		must(h.t, err)
		voucher := []byte{0}
		s, err := negotiate.PrepareBid(dev, called.Raw, auction.Bid{
			Options: []auction.Option{{Quantity: 1, Rate: rate}}, Unit: money.Credit, Term: 600, Needs: named, Use: h.offer.Terms.Use, Voucher: identity.Hash(voucher),
		}, wire.Hash{7}, 1, 1<<40)
		must(h.t, err)
		_, err = floor.Follow(ctx, negotiate.Bidding{
			Sealed: s, Began: called.Since, Seller: p2p.PeerAddr{Peer: h.dev.Peer(), Addrs: h.offer.Addrs}, Voucher: voucher, Needs: needs,
		})
		if ctx.Err() == nil {
			must(h.t, err)
		}
	})
}

// heldByMe is what the renter's ledger holds.
func (r *rig) heldByMe() (held money.Micro) {
	r.t.Helper()
	must(r.t, r.books.View(r.t.Context(), func(b *books.Reader) error {
		totals, err := b.Totals()
		for _, x := range totals {
			held += x.HeldByMe
		}
		return err
	}))
	return held
}

// auctionFile checks the transcript that a job kept.
func (r *rig) auctionFile(rec record) auction.Report {
	r.t.Helper()
	raw, err := os.ReadFile(rec.Bid.File)
	must(r.t, err)
	file, err := auction.DecodeTranscript(raw)
	must(r.t, err)
	report, err := auction.Verify(file)
	must(r.t, err)
	if report.Verdict() != auction.Kept {
		r.t.Errorf("the file of the auction: %s %q", report.Verdict(), report.Missing)
	}
	return report
}

// TestBidWins: a sealed bid becomes a job that runs and is paid at the bid's price. Until the result all is held that the commit says,
// then what a bought lease would hold.
func TestBidWins(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		h, end := r.sells()
		defer end()
		id, err := r.bids(testBid)
		must(t, err)
		rec := r.job(id)
		c, err := auction.ReadCommit(rec.Bid.Commit)
		must(t, err)
		if held := r.heldByMe(); held != c.Hold || held <= money.Micro(testBid)/360 {
			t.Errorf("%v is held, the commit says %v", held, c.Hold)
		}
		time.Sleep(2 * time.Second)
		if v := r.agent.find(id).view(); v.State != "bidding" || v.Rate != testBid.String() {
			t.Errorf("the job is shown as %s at %s", v.State, v.Rate)
		}
		r.runs(id)
		if held := r.heldByMe(); held != money.Micro(testBid)/360 {
			t.Errorf("%v is held for the lease", held)
		}
		time.Sleep(63 * time.Second)
		r.owner.ends()
		rec = r.ends(id, 30*time.Second)
		signed, err := market.OpenEnd(rec.End)
		must(t, err)
		if rec.Reason.Code != reason.Completed || rec.Paid != signed.Charge || rec.Paid < 40_000 || rec.Paid > 46_000 {
			t.Errorf("%s, %v of %v paid", rec.Reason, rec.Paid, signed.Charge)
		}
		if report := r.auctionFile(rec); len(report.Price) != 1 || report.Price[0].Lease != id {
			t.Error(report.Text(r.dev.Account()))
		}
		if len(h.only().Shown) != 1 {
			t.Error("the bid was not opened")
		}
		r.nothingHeld()
	})
}

// TestBidDiscount: what comes off a winner's rent because a bid stayed sealed is not paid, although the seller claims it.
func TestBidDiscount(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		h, end := r.sells()
		defer end()
		id, err := r.bids(testBid)
		must(t, err)
		h.rival(testRate, 10*time.Second)
		r.runs(id)
		time.Sleep(63 * time.Second)
		r.owner.ends()
		rec := r.ends(id, 30*time.Second)
		signed, err := market.OpenEnd(rec.End)
		must(t, err)
		bond := money.Micro(testReserve) / 360
		tolerance := money.Micro(testBid) / 3600 * 3 // of the two meters
		if rec.Bid.Discount != bond || rec.Paid > signed.Charge-bond+tolerance || rec.Paid < signed.Charge-bond {
			t.Errorf("%v of %v paid, %v should come off, %v is the bond", rec.Paid, signed.Charge, rec.Bid.Discount, bond)
		}
		r.nothingHeld()
	})
}

// TestBidLoses: nothing is owed or held after a dearer bid won, and the file says why.
func TestBidLoses(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		h, end := r.sells()
		defer end()
		id, err := r.bids(testBid)
		must(t, err)
		h.rival(testRate, time.Hour)
		rec := r.ends(id, time.Minute)
		if rec.Reason.Code != reason.Outbid || rec.Paid != 0 || rec.Lease != nil {
			t.Errorf("%s, %v paid", rec.Reason, rec.Paid)
		}
		if report := r.auctionFile(rec); len(report.Bids) != 2 || report.Price[0].Account == r.dev.Account() {
			t.Error(report.Text(r.dev.Account()))
		}
		if r.owner.released != 0 {
			t.Error("a lease was released that there never was")
		}
		r.nothingHeld()
		must(t, os.Chtimes(rec.Bid.File, time.Now(), time.Now())) // the disk's clock is not the bubble's
		must(t, r.agent.tidyOnce(t.Context(), time.Now()))
		r.auctionFile(rec)
		must(t, r.agent.tidyOnce(t.Context(), time.Now().Add(logsFor+time.Hour)))
		if _, err := os.Stat(rec.Bid.File); !errors.Is(err, os.ErrNotExist) {
			t.Error("an old file is kept:", err)
		}
	})
}

// TestBidderKilled: an agent that ends at any moment of an auction, and starts again, bids once and has its lease.
func TestBidderKilled(t *testing.T) {
	for name, after := range map[string]time.Duration{
		"before the commit": 0, "committed": 5 * time.Second, "before the seal": 22900 * time.Millisecond, "sealed": 23100 * time.Millisecond,
		"opened": 25 * time.Second,
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				h, end := r.sells()
				defer end()
				id, err := r.bids(testBid)
				must(t, err)
				time.Sleep(after)
				r.stop()
				time.Sleep(2 * time.Second)
				r.start()
				r.runs(id)
				if k := h.only(); len(k.Leaves) != 1 || len(k.Shown) != 1 {
					t.Errorf("%d commits, %d openings", len(k.Leaves), len(k.Shown))
				}
				r.owner.ends()
				r.ends(id, time.Minute)
				r.nothingHeld()
			})
		})
	}
}

// TestBidGivenUp: a bid that its owner gives up is opened all the same, or its hold would be lost; the lease that it wins is released.
func TestBidGivenUp(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		h, end := r.sells()
		defer end()
		id, err := r.bids(testBid)
		must(t, err)
		time.Sleep(5 * time.Second)
		must(t, r.agent.Signal(t.Context(), id, api.SignalRequest{}))
		rec := r.ends(id, time.Minute)
		if rec.Reason.Code != reason.StoppedRenter || rec.Paid != 0 || r.owner.released != 1 || r.owner.ready != 0 || len(h.only().Shown) != 1 {
			t.Errorf("%s, %v paid, %d released, %d ready", rec.Reason, rec.Paid, r.owner.released, r.owner.ready)
		}
		time.Sleep(2 * auction.LateWithin)
		if held, owed := h.money(); held != 0 || owed != 0 {
			t.Errorf("the seller has %d holds and %v", held, owed)
		}
		r.nothingHeld()
	})
}

// TestBidNeverShown: an agent that was away for the whole reveal owes the hold, and its ledger says so, however late it is back.
func TestBidNeverShown(t *testing.T) {
	for _, away := range []time.Duration{3 * time.Minute, 10 * time.Minute} {
		t.Run(away.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) { neverShown(t, r, away) })
		})
	}
}

func neverShown(t *testing.T, r *rig, away time.Duration) {
	h, end := r.sells()
	defer end()
	id, err := r.bids(testBid)
	must(t, err)
	time.Sleep(5 * time.Second)
	r.stop()
	time.Sleep(away)
	r.start()
	rec := r.ends(id, time.Minute)
	c, err := auction.ReadCommit(rec.Bid.Commit)
	must(t, err)
	if _, owed := h.money(); rec.Reason.Code != reason.BidUnopened || rec.Bid.Posted != c.Hold || owed != c.Hold {
		t.Errorf("%s, %v of %v lost, the seller has %v", rec.Reason, rec.Bid.Posted, c.Hold, owed)
	}
	if owed := r.owes(h); owed != int64(c.Hold) {
		t.Errorf("the ledger owes %v of %v", owed, c.Hold)
	}
	r.nothingHeld()
}

// owes is what the renter's ledger owes the seller.
func (r *rig) owes(h *hammer) (owed int64) {
	r.t.Helper()
	must(r.t, r.books.View(r.t.Context(), func(b *books.Reader) error {
		a, err := b.Account(ledger.AsRenter, money.Credit, h.dev.Account())
		owed = a.Owed
		return err
	}))
	return owed
}

// TestBidShownLate: an agent that is back within a minute of the award shows its bid before it looks at the result, and has its hold back
// where the bid would have lost.
func TestBidShownLate(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		h, end := r.sells()
		defer end()
		id, err := r.bids(testBid)
		must(t, err)
		h.rival(testRate, time.Hour)
		time.Sleep(5 * time.Second)
		r.stop()
		time.Sleep(45 * time.Second)
		r.start()
		rec := r.ends(id, time.Minute)
		if k := h.only(); len(k.Shown) != 2 || rec.Bid.Posted != 0 {
			t.Errorf("%s, %d openings, %v lost", rec.Reason, len(k.Shown), rec.Bid.Posted)
		}
		r.nothingHeld()
	})
}

// TestBidRefused: what makes no sense is refused before anything is held.
func TestBidRefused(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		h, end := r.sells()
		defer end()
		if _, err := r.bids(testReserve - 1); !reason.Is(err, reason.BidBelowReserve) {
			t.Error(err)
		}
		r.nothingHeld()
		id, err := r.bids(testBid)
		must(t, err)
		if _, err := r.bids(testRate); !errors.Is(err, ErrRequest) {
			t.Error("a second bid in one auction:", err)
		}
		r.runsOut(id)
		h.mode = auction.KPlus1
		if _, err := r.bids(testBid); !errors.Is(err, ErrRequest) {
			t.Error(err)
		}
		r.nothingHeld()
	})
}

// runsOut lets a job run to its end.
func (r *rig) runsOut(id market.LeaseID) {
	r.t.Helper()
	r.runs(id)
	r.owner.ends()
	r.ends(id, time.Minute)
}
