package negotiate

import (
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

// crowd is a floor with as many live auctions of strangers as it keeps.
func crowd(t *testing.T) *Floor {
	t.Helper()
	dev := p2ptest.Device(t)
	f, err := NewFloor(p2ptest.NewNet(t).Join(dev), dev, "test", nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range maxHeard {
		f.heard[auction.ID{byte(i), byte(i >> 8), 1}] = &heard{
			open: auction.Open{Commit: auction.DefaultCommit, Grace: auction.DefaultGrace, Reveal: auction.DefaultReveal}, since: time.Now(),
			commits: map[wire.Hash]bool{}, news: make(chan struct{}),
		}
	}
	return f
}

func openOf(t *testing.T, seller *identity.Device, n string) []byte {
	t.Helper()
	return markettest.Seal(t, seller, auction.DomainOpen, auction.Open{
		Header: seller.Header(auction.Version), Delegation: seller.DelegationHash(), Offer: markettest.Hash("offer"), Lot: 1, K: 1, MinTerm: 300, MaxTerm: 3600,
		Unit: money.Credit, Reserve: 200_000, Mode: auction.First, Commit: auction.DefaultCommit, Grace: auction.DefaultGrace, Reveal: auction.DefaultReveal,
		Decline: auction.DefaultDecline, Rules: auction.RulesVersion, Nonce: markettest.Hash(n),
	})
}

// TestRoomForOwnAuctions: however many auctions strangers announce, the one that this machine bids in is heard, and its commits are told.
func TestRoomForOwnAuctions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, seller, now := crowd(t), p2ptest.Device(t), time.Now()
		raw := openOf(t, seller, "one")
		if v := f.remember(auction.IDOf(raw), raw, seller.Delegation(), now, now, false); v != p2p.Ignore {
			t.Fatal("a stranger's auction found room:", v)
		}
		if v := f.remember(auction.IDOf(raw), raw, seller.Delegation(), now, now, true); v != p2p.Accept {
			t.Fatal("the auction that was called is not heard:", v)
		}
		f.told = maxTold
		bidder := p2ptest.Device(t)
		commit := markettest.Seal(t, bidder, auction.DomainCommit, auction.Commit{
			Header: bidder.Header(auction.Version), Delegation: bidder.DelegationHash(), Auction: auction.IDOf(raw), Sealed: markettest.Hash("bid"), Hold: 1_000, Seq: 1,
		})
		n := news{Kind: newsCommit, Envelope: commit, Delegation: bidder.Delegation()}
		if v := f.hearCommit(n, now); v != p2p.Accept {
			t.Error("a commit of it is not told:", v)
		}
		if f.told != maxTold+1 {
			t.Error(f.told, "commits are counted")
		}
		f.heard[auction.IDOf(raw)].mine = false
		n.Envelope = markettest.Seal(t, bidder, auction.DomainCommit, auction.Commit{
			Header: bidder.Header(auction.Version), Delegation: bidder.DelegationHash(), Auction: auction.IDOf(raw), Sealed: markettest.Hash("bid"), Hold: 1_000, Seq: 2,
		})
		if v := f.hearCommit(n, now); v != p2p.Ignore {
			t.Error("a commit of a stranger's auction was told beyond the bound:", v)
		}
	})
}

// TestEndedAuctionsMakeRoom, and give back the count of their commits.
func TestEndedAuctionsMakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, seller, now := crowd(t), p2ptest.Device(t), time.Now()
		own := auction.ID{9, 9, 9}
		for _, h := range f.heard {
			h.aborted = true
			h.commits[wire.Hash{}] = true
			f.told++
		}
		mine := *f.heard[auction.ID{1, 0, 1}]
		mine.mine = true
		f.heard[own] = &mine
		f.told++
		raw := openOf(t, seller, "two")
		if v := f.remember(auction.IDOf(raw), raw, seller.Delegation(), now, now, false); v != p2p.Accept {
			t.Fatal("no room:", v)
		}
		if len(f.heard) != 2 || f.heard[own] == nil || f.told != 1 {
			t.Error(len(f.heard), "auctions and", f.told, "commits are kept")
		}
	})
}

// TestNewestFraudsAreKept: a flood of proofs does not keep the next one out.
func TestNewestFraudsAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, seller := crowd(t), p2ptest.Device(t)
		for i := range maxFrauds {
			f.frauds.Add(wire.Hash{byte(i), byte(i >> 8)}, auction.Finding{})
		}
		f.prove(sealedTwice(t, seller))
		if v := f.hearFraud(<-f.proofs, time.Now()); v != p2p.Accept {
			t.Fatal(v)
		}
		if all := f.Frauds(); len(all) != maxFrauds || all[maxFrauds-1].Seller != seller.Account() {
			t.Error(len(all))
		}
	})
}

// sealedTwice is an auction whose seller signed two Seals.
func sealedTwice(t *testing.T, seller *identity.Device) *heard {
	t.Helper()
	raw := openOf(t, seller, "three")
	var seals [][]byte
	for size := range uint32(2) {
		seals = append(seals, markettest.Seal(t, seller, auction.DomainSeal, auction.Seal{
			Header: seller.Header(auction.Version), Delegation: seller.DelegationHash(), Auction: auction.IDOf(raw), Size: 1 + size, Root: markettest.Hash("root"),
		}))
	}
	return &heard{raw: raw, seals: seals, delegation: seller.Delegation()}
}

// TestProofsAreBounded: anybody can make sellers that break the rules; beyond the bound no proof is checked, told on or logged, until one may be
// again.
func TestProofsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, now := crowd(t), time.Now()
		if !f.proven.AllowN(now, maxFrauds) {
			t.Fatal("the first proofs are not heard")
		}
		f.prove(sealedTwice(t, p2ptest.Device(t)))
		raw := <-f.proofs
		if v := f.hearFraud(raw, now.Add(fraudEvery/2)); v != p2p.Ignore || len(f.Frauds()) != 0 {
			t.Error("a proof beyond the bound:", v, len(f.Frauds()))
		}
		if v := f.hearFraud(raw, now.Add(fraudEvery)); v != p2p.Accept || len(f.Frauds()) != 1 {
			t.Error("a proof within it:", v, len(f.Frauds()))
		}
	})
}
