package negotiate_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market/auction"
	"github.com/gpufair/gpufair/market/markettest"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/p2ptest"
	"github.com/gpufair/gpufair/p2p/wire"
)

// TestOpeningsWithOneNonce: whoever takes another's nonce takes nothing else from it. Each opening is stored with its own voucher.
func TestOpeningsWithOneNonce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFair(t)
		f.nonce = &wire.Hash{1}
		bidders := []*bidder{f.joins(), f.joins(), f.joins()}
		f.net.Mesh()
		synctest.Wait()
		f.playAll(bidders, nil, 0)
		if checkSame(t, bidders) != 3 {
			t.Error("not all have a lease")
		}
		k := f.book.kept[bidders[0].got.Report.Auction]
		if len(k.Shown) != 3 {
			t.Fatalf("%d openings are stored", len(k.Shown))
		}
		for i, s := range k.Shown {
			bid, err := auction.DecodeBid(s.Bid)
			if err != nil || int(s.Leaf) != i || identity.Hash(s.Voucher) != bid.Voucher {
				t.Errorf("opening %d is of leaf %d, with voucher %q: %v", i, s.Leaf, s.Voucher, err)
			}
		}
		f.ends()
	})
}

// TestLateOpeningIsInTheFile, although the file was sent to a winner before it came.
func TestLateOpeningIsInTheFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFair(t)
		stays, late := f.joins(), f.joins()
		f.net.Mesh()
		synctest.Wait()
		bidding, err := f.bids(late, 250_000, 1)
		if err != nil {
			t.Fatal(err)
		}
		ctx, away := context.WithTimeout(t.Context(), 5*time.Second)
		defer away()
		var wg sync.WaitGroup
		wg.Go(func() { late.floor.Follow(ctx, bidding) })
		f.plays(stays, 300_000, 1)
		wg.Wait()
		if checkSame(t, []*bidder{stays}) != 1 {
			t.Fatal("the one that stayed has no lease")
		}
		f.follows(late, bidding)
		if late.err != nil {
			t.Fatal(late.err)
		}
		raw, err := f.book.house.Transcript(t.Context(), stays.got.Report.Auction)
		if err != nil {
			t.Fatal(err)
		}
		file, err := auction.DecodeTranscript(raw)
		if err != nil || len(file.Shown) != 2 {
			t.Errorf("%d openings are in the file: %v", len(file.Shown), err)
		}
		f.ends()
	})
}

// TestRevealBeginsAnew: the window that a seller begins anew after a restart stays, although its disk then fails once.
func TestRevealBeginsAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFair(t)
		b := f.joins()
		f.net.Mesh()
		synctest.Wait()
		until := time.Now().Add(51 * time.Second) // a second after the seller is back
		f.book.fail = func(what string) error {
			if what == "show" && time.Now().Before(until) {
				return errors.New("the disk is full")
			}
			return nil
		}
		f.playAll([]*bidder{b}, []time.Duration{30 * time.Second}, 20*time.Second)
		if checkSame(t, []*bidder{b}) != 1 {
			t.Error("the bid was not counted")
		}
		f.ends()
	})
}

// TestStartOfAnAuction: a seller's word puts it no further back than what a commit may take, whatever it says.
func TestStartOfAnAuction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFair(t)
		b, liar := f.joins(), p2ptest.Device(t)
		node := f.net.Join(liar)
		o := markettest.Offer(liar, 1, time.Now())
		o.Addrs = node.Addrs()
		offer := markettest.Sealed(t, liar, o)
		open := markettest.Seal(t, liar, auction.DomainOpen, auction.Open{
			Header: liar.Header(auction.Version), Delegation: liar.DelegationHash(), Offer: offer.Hash, Lot: 1, K: 1, MinTerm: 300, MaxTerm: 3600,
			Unit: money.Credit, Reserve: 200_000, Mode: auction.First, Commit: auction.DefaultCommit, Grace: auction.DefaultGrace,
			Reveal: auction.DefaultReveal, Decline: auction.DefaultDecline, Rules: auction.RulesVersion, Nonce: wire.Hash{1},
		})
		node.Handle(p2p.ProtocolID("test", "auction"), p2p.Limits{}, p2p.Answer(4<<10, func(context.Context, identity.PeerID, map[int]any) (map[int]any, error) {
			return map[int]any{1: open, 2: liar.Delegation(), 8: uint64(1) << 62}, nil
		}))
		f.net.Mesh()
		synctest.Wait()
		called, err := b.floor.Call(t.Context(), offer, 1)
		if err != nil {
			t.Fatal(err)
		}
		if age := time.Since(called.Since); age != called.Open.SealAfter() {
			t.Errorf("it began %v ago", age)
		}
		node.Close()
		f.ends()
	})
}
