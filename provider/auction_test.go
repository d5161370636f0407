package provider

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/announce"
	"github.com/gpufair/gpufair/market/auction"
	"github.com/gpufair/gpufair/market/book"
	"github.com/gpufair/gpufair/market/negotiate"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/p2ptest"
	"github.com/gpufair/gpufair/p2p/wire"
	"github.com/gpufair/gpufair/provider/control/api"
)

// sale by auction: the rig's provider on an in-memory network, and its renter as a bidder.
type hammer struct {
	*rig
	net   *p2ptest.Net
	node  *p2ptest.Node // the owner's
	floor *negotiate.Floor
	own   *p2ptest.Node // the bidder's
	offer market.SealedOffer
	life  sync.WaitGroup
	stop  context.CancelFunc
	bids  uint8
	group wire.Hash   // of the next bids
	lane  ledger.Lane // for which the next opening vouchers are signed; zero: their own
}

const rigReserve = money.Rate(1_800_000)

func newHammer(t *testing.T) *hammer {
	t.Helper()
	h := &hammer{rig: newRig(t), net: p2ptest.NewNet(t)}
	h.node, h.own = h.net.Join(h.owner), h.net.Join(h.renter)
	h.conf.Lots[0].Reserve = rigReserve
	h.conf.Auction.Bond = 100
	must(t, h.a.Reload(h.conf))
	var err error
	h.floor, err = negotiate.NewFloor(h.own, h.renter, "t", quiet())
	must(t, err)
	h.life.Go(func() { h.floor.Run(t.Context()) })
	h.begin()
	h.net.Mesh()
	return h
}

// begin runs the auctions of the rig's agent, which has an offer.
func (h *hammer) begin() {
	h.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	h.stop = cancel
	must(h.t, h.a.openAuctions(h.node, "t"))
	offers, err := book.New(book.Config{})
	must(h.t, err)
	board, err := announce.New(h.node, offers, announce.Config{Network: "t", Log: quiet()})
	must(h.t, err)
	h.a.publisher, err = announce.NewPublisher(board, h.owner, seqStore{h.a})
	must(h.t, err)
	must(h.t, h.a.resumeAuctions(ctx))
	for _, run := range []func(context.Context) error{board.Run, h.a.publisher.Run, h.a.auctions.floor.Run, h.a.auctions.house.Run} {
		h.life.Go(func() { run(ctx) })
	}
	lot := h.conf.Lots[0]
	must(h.t, h.a.publisher.Set(market.Offer{
		Region: "x", Unit: money.Credit, Terms: h.conf.terms("runc"), Addrs: h.node.Addrs(), Credit: market.Credit{KnownPercent: 50},
		Lots: []market.Lot{{
			ID: 1, Kind: market.KindCPU, Model: "cpu", Slots: []market.Slot{{Device: lot.Device, Free: true}}, Cores: 1, MemoryMiB: 64, DiskMiB: 64,
			Price: lot.Price, MinTerm: 10, MaxTerm: 3600, Passport: wire.Sum("", []byte("passport")),
		}},
	}))
	for {
		synctest.Wait()
		if o, ok := h.a.publisher.Current(); ok {
			if h.offer.Raw == nil {
				h.offer = o
			}
			return
		}
		time.Sleep(time.Second)
	}
}

func (h *hammer) end() {
	h.stop()
	h.own.Close()
	h.node.Close()
	h.life.Wait()
	h.close()
}

// bid makes a bid at a rate, with its opening voucher in the renter's ledger.
func (h *hammer) bid(rate money.Rate) (negotiate.Bidding, error) {
	h.t.Helper()
	called, err := h.floor.Call(h.t.(*testing.T).Context(), h.offer, 1)
	if err != nil {
		return negotiate.Bidding{}, err
	}
	h.bids++
	needs := work.Needs{Kind: market.KindCPU, Devices: 1}
	hash, err := needs.Hash()
	must(h.t, err)
	nonce := wire.Sum("", []byte{'n', h.bids})
	lane := ledger.Lane(negotiate.Sealed{Open: called.Raw, Nonce: nonce}.Lease(h.renter.Account()))
	if h.lane != (ledger.Lane{}) {
		lane = h.lane
	}
	var voucher []byte
	must(h.t, h.theirs.Update(context.Background(), func(tx *books.Tx) (err error) {
		voucher, err = tx.Promise(books.Opening{
			Channel: h.theirs.Channel(h.owner.Account(), money.Credit), Lane: lane, Rate: rate, Devices: 1,
		})
		return err
	}))
	sealed, err := negotiate.PrepareBid(h.renter, called.Raw, auction.Bid{
		Options: []auction.Option{{Quantity: 1, Rate: rate}}, Unit: money.Credit, Term: 600, Needs: hash, Use: h.conf.Use(), Voucher: identity.Hash(voucher),
		Group: h.group,
	}, nonce, uint64(h.bids), 1_000_000)
	return negotiate.Bidding{
		Sealed: sealed, Began: called.Since, Seller: p2p.PeerAddr{Peer: h.owner.Peer(), Addrs: h.node.Addrs()}, Voucher: voucher, Needs: needs,
	}, err
}

// held is what the owner's ledger holds of the renter's credit for bids and lanes.
func (h *hammer) held() (held money.Micro) {
	h.t.Helper()
	must(h.t, h.a.books.View(context.Background(), func(r *books.Reader) error {
		a, err := r.Account(ledger.AsProvider, money.Credit, h.renter.Account())
		held = a.Open
		return err
	}))
	return held
}

// owed is what the renter owes.
func (h *hammer) owed() (owed int64) {
	h.t.Helper()
	must(h.t, h.a.books.View(context.Background(), func(r *books.Reader) error {
		a, err := r.Account(ledger.AsProvider, money.Credit, h.renter.Account())
		owed = a.Owed
		return err
	}))
	return owed
}

// follow takes a bid to its end and gives its win.
func (h *hammer) follow(b negotiate.Bidding) (negotiate.Followed, auction.Winner) {
	h.t.Helper()
	got, err := h.floor.Follow(h.t.(*testing.T).Context(), b)
	must(h.t, err)
	if got.Report.Verdict() != auction.Kept || len(got.Report.Price) != 1 {
		h.t.Fatal(got.Report.Text(h.renter.Account()))
	}
	return got, got.Report.Price[0]
}

// TestWonBidBecomesALease: from the call to a job that runs and is paid at the bid's price.
func TestWonBidBecomesALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHammer(t)
		b, err := h.bid(2_400_000)
		must(t, err)
		if state, _ := h.a.capacity.Look(h.conf.Lots[0].Device); state.Available() {
			t.Error("a device in an auction is for sale")
		}
		if _, err := h.a.Sell(t.Context(), h.sale()); !reason.Is(err, reason.DeviceTaken) {
			t.Error("sold while in an auction:", err)
		}
		_, win := h.follow(b)
		lot, _ := h.offer.Lot(1)
		sold, lease, err := h.floor.FetchLease(t.Context(), b.Seller, b.Sealed, win.Win, lot)
		must(t, err)
		if lease.ID != b.Lease(h.renter.Account()) || win.Pay != 2_400_000 {
			t.Error(lease.ID, win)
		}
		if want, _ := market.Hold(2_400_000, 1, 10); h.held() != want {
			t.Errorf("the lane holds %v, want %v", h.held(), want)
		}
		k := h.keeper(lease.ID)
		h.paying.Store(true)
		h.prepare(k)
		h.attend(k)
		_, err = h.ask(work.Ask{Lease: k.id, Action: work.ActStart})
		must(t, err)
		h.await(k.id, work.Running, time.Second)
		time.Sleep(9 * time.Second)
		synctest.Wait()
		if got, _ := k.rentFor(3_600_000); got != 2_400_000 {
			t.Errorf("an hour costs %v", got)
		}
		must(t, k.do(t.Context(), func() error {
			full, err := k.metered()
			k.rec.Discount = 1000
			less, again := k.metered()
			k.rec.Discount = 0
			if full-less != 1000 {
				t.Errorf("%v less a discount of 0.001 is %v", full, less)
			}
			return errors.Join(err, again)
		}))
		if raw, err := h.a.Sold(t.Context(), lease.ID); err != nil || string(raw) != string(sold.Lease) {
			t.Error("another lease is stored", err)
		}
		h.checkShown(win)
		if records, err := h.a.Records(t.Context(), ledger.Lane(lease.ID)); err != nil || len(records) < 2 {
			t.Error(records, err)
		}
		h.end()
	})
}

// checkShown wants the owner to see the one auction with its winning bid, and its transcript to be whole.
func (h *hammer) checkShown(win auction.Winner) {
	h.t.Helper()
	list, err := h.a.Auctions(context.Background())
	must(h.t, err)
	if len(list) != 1 || list[0].State != api.AuctionAwarded || len(list[0].Bids) != 1 {
		h.t.Fatal("the owner sees", list)
	}
	b := list[0].Bids[0]
	if b.State != api.BidWon || b.Account != h.renter.Account().String() || b.Price != "2.4" || b.Pays != "2.4" || b.Lease != win.Lease.String() {
		h.t.Error("the owner sees the bid", b)
	}
	raw, err := h.a.AuctionFile(context.Background(), list[0].ID[:8])
	must(h.t, err)
	transcript, err := auction.DecodeTranscript(raw)
	must(h.t, err)
	if r, err := auction.Verify(transcript); err != nil || r.Verdict() != auction.Kept {
		h.t.Error(r.Verdict(), err)
	}
	if _, err := h.a.AuctionFile(context.Background(), "ffff00"); !errors.Is(err, ErrNotFound) {
		h.t.Error(err)
	}
}

// TestSellerRestartsInAuction kills the owner's process at every stage: the auction goes on from its store, and sells once.
func TestSellerRestartsInAuction(t *testing.T) {
	for name, at := range map[string]time.Duration{"committing": 10 * time.Second, "revealing": 23*time.Second + 100*time.Millisecond, "sold": 24 * time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHammer(t)
				h.net.Faults(h.owner.Peer(), h.renter.Peer(), p2ptest.Faults{Latency: 60 * time.Millisecond})
				b, err := h.bid(2_400_000)
				must(t, err)
				var over sync.WaitGroup
				var win auction.Winner
				over.Go(func() { _, win = h.follow(b) })
				time.Sleep(at)
				h.stop()
				h.node.Close()
				h.crash()
				h.node = h.net.Join(h.owner)
				h.begin()
				h.net.Mesh()
				if state, _ := h.a.capacity.Look(h.conf.Lots[0].Device); state.Available() {
					t.Error("the device is for sale after the restart")
				}
				over.Wait()
				lot, _ := h.offer.Lot(1)
				_, lease, err := h.floor.FetchLease(t.Context(), b.Seller, b.Sealed, win.Win, lot)
				must(t, err)
				if h.keeper(lease.ID) == nil || lease.Slots[0].Generation != 1 {
					t.Error("no keeper, or leased twice", lease.Slots)
				}
				h.end()
			})
		})
	}
}

// TestUnopenedBidIsOwed: what a sealed bid holds is posted if it is never opened, and the device is free again.
func TestUnopenedBidIsOwed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHammer(t)
		b, err := h.bid(2_400_000)
		must(t, err)
		ctx, die := context.WithTimeout(t.Context(), 5*time.Second)
		defer die()
		_, _ = h.floor.Follow(ctx, b)
		c, err := auction.ReadCommit(b.Commit)
		must(t, err)
		if h.held() != c.Hold || c.Hold == 0 {
			t.Errorf("held %v, the commit says %v", h.held(), c.Hold)
		}
		time.Sleep(40 * time.Second)
		synctest.Wait()
		if state, _ := h.a.capacity.Look(h.conf.Lots[0].Device); !state.Available() {
			t.Error("the device is still kept back:", state.Blocked)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if h.held() != 0 || h.owed() != int64(c.Hold) {
			t.Errorf("held %v, owed %v, want %v", h.held(), h.owed(), c.Hold)
		}
		h.end()
	})
}

// TestPauseAbortsAuction: the owner outranks the bidders, and their holds are void.
func TestPauseAbortsAuction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHammer(t)
		b, err := h.bid(2_400_000)
		must(t, err)
		var over sync.WaitGroup
		var got negotiate.Followed
		over.Go(func() { got, err = h.floor.Follow(t.Context(), b) })
		time.Sleep(10 * time.Second)
		must(t, h.a.Pause(t.Context(), 0))
		over.Wait()
		synctest.Wait()
		if !got.Report.Aborted || h.held() != 0 || h.owed() != 0 {
			t.Error("aborted:", got.Report.Aborted, err, h.held(), h.owed())
		}
		if _, err := h.bid(2_400_000); !reason.Is(err, reason.OwnerPaused) {
			t.Error(err)
		}
		h.end()
	})
}

// TestWinnerWithABadVoucher: it gets no lease and is told why, the device is free, and its hold is void.
func TestWinnerWithABadVoucher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHammer(t)
		h.lane = ledger.Lane(wire.Sum("", []byte("another")))
		b, err := h.bid(2_400_000)
		must(t, err)
		_, win := h.follow(b)
		lot, _ := h.offer.Lot(1)
		if _, _, err := h.floor.FetchLease(t.Context(), b.Seller, b.Sealed, win.Win, lot); !reason.Is(err, reason.LaneMismatch) {
			t.Error("the winner is told", err)
		}
		synctest.Wait()
		if state, _ := h.a.capacity.Look(h.conf.Lots[0].Device); !state.Available() {
			t.Error("the device is kept back:", state.Blocked)
		}
		time.Sleep(auction.LateWithin)
		synctest.Wait()
		if h.held() != 0 || h.owed() != 0 {
			t.Errorf("held %v, owed %v", h.held(), h.owed())
		}
		h.end()
	})
}

// TestOfferOfAnEarlierDelegation: the owner's own stored offer is good after its device got another delegation.
func TestOfferOfAnEarlierDelegation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHammer(t)
		b, err := h.bid(2_400_000)
		must(t, err)
		id := auction.IDOf(b.Open)
		o, err := auction.ReadOpen(b.Open)
		must(t, err)
		c, err := auction.ReadCommit(b.Commit)
		must(t, err)
		shown, err := auction.DecodeBid(b.Bid)
		must(t, err)
		h.a.dev = device(t)
		sale, err := h.a.wonSale(t.Context(), negotiate.Won{
			Open: o, Opening: auction.Opening{Commit: b.Commit, Bid: b.Bid, Nonce: b.Nonce}, Commit: c, Bid: shown, Needs: b.Needs,
			Win: auction.Win{Quantity: 1, Pay: 2_400_000}, Lease: b.Lease(h.renter.Account()), Delegation: h.renter.Delegation(),
		})
		if err != nil || sale.Offer.Hash != h.offer.Hash {
			t.Error(id.Short(), err)
		}
		h.a.dev = h.owner
		h.end()
	})
}

// TestPauseAfterTheAward: what is awarded can't be aborted, and is not sold either.
func TestPauseAfterTheAward(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHammer(t)
		h.group = wire.Sum("", []byte("group")) // its winner may decline for a while
		b, err := h.bid(2_400_000)
		must(t, err)
		var over sync.WaitGroup
		var win auction.Winner
		over.Go(func() { _, win = h.follow(b) })
		time.Sleep(26 * time.Second)
		synctest.Wait()
		if list := h.a.auctions.house.Auctions(); len(list) != 1 || list[0].Stage != negotiate.Declining {
			t.Fatal("it is not awarded yet, or over:", list)
		}
		must(t, h.a.Pause(t.Context(), 0))
		over.Wait()
		lot, _ := h.offer.Lot(1)
		if _, _, err := h.floor.FetchLease(t.Context(), b.Seller, b.Sealed, win.Win, lot); !reason.Is(err, reason.OwnerPaused) {
			t.Error("sold after the pause:", err)
		}
		h.end()
	})
}

// TestAuctionRefusals: who may call, bid and be trusted is the owner's word.
func TestAuctionRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHammer(t)
		call := func() error { _, err := h.floor.Call(t.Context(), h.offer, 1); return err }
		conf := h.conf
		conf.Accounts = nil
		must(t, h.a.Reload(conf))
		if err := call(); !reason.Is(err, reason.NotServed) {
			t.Error("a stranger called for an auction:", err)
		}
		conf = h.conf
		conf.Lots = []Lot{h.conf.Lots[0]}
		conf.Lots[0].Reserve = 0
		must(t, h.a.Reload(conf))
		if err := call(); !reason.Is(err, reason.AuctionUnknown) {
			t.Error("a lot without a reserve was put up for auction:", err)
		}
		none := money.Micro(0)
		conf = h.conf
		conf.Credit = CreditConfig{Stranger: &none, StrangersTotal: &none}
		must(t, h.a.Reload(conf))
		b, err := h.bid(2_400_000)
		must(t, err)
		if _, err := h.floor.Follow(t.Context(), b); !reason.Is(err, reason.CreditLimit) && !reason.Is(err, reason.StrangersTotal) {
			t.Error("a commit without credit was taken:", err)
		}
		conf = h.conf
		conf.Auction.Commit = 5 * time.Second
		must(t, h.a.Reload(conf))
		time.Sleep(30 * time.Second)
		busy := 0
		for range callBurst + 3 { // each auction is over before the next call
			time.Sleep(9 * time.Second)
			synctest.Wait()
			if p2p.KindOf(call()) == p2p.KindBusy {
				busy++
			}
		}
		if busy == 0 {
			t.Error("an account may open auctions without end")
		}
		h.end()
	})
}
