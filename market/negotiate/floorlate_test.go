package negotiate_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpufair/gpufair/market/auction"
	"github.com/gpufair/gpufair/p2p/identity"
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
