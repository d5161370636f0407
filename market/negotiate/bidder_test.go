package negotiate_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market/auction"
	"github.com/gpufair/gpufair/market/markettest"
	"github.com/gpufair/gpufair/market/negotiate"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/p2p/identity"
)

// fairOne is an auction of one GPU with three bidders of which the first wins, sealed at 23 s, and that bidder with its receipt.
func fairOne(t *testing.T) (*negotiate.Auctioneer, *negotiate.Bidder, []negotiate.Sealed) {
	t.Helper()
	a, open := anAuction(t)
	var bids []negotiate.Sealed
	for n := uint64(2); n < 5; n++ {
		s := sealedBid(t, open, n, money.Rate(300_000+100_000*(n%3)), 1, "")
		admit(t, a, n, s, after(time.Second))
		bids = append(bids, s)
	}
	b, err := negotiate.NewBidder(bids[0], opensAt)
	if err != nil {
		t.Fatal(err)
	}
	b.Others(2)
	receipt, err := a.Receipt(identity.Hash(bids[0].Commit))
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Receipt(receipt); err != nil {
		t.Fatal(err)
	}
	ticks(t, a, after(23*time.Second))
	return a, b, bids
}

func asks(b *negotiate.Bidder, now time.Time) []negotiate.Ask {
	list, _ := b.Next(now)
	return list
}

// sealTo shows the bidder the Seal by the seller and by witnesses, and the proof.
func sealTo(t *testing.T, a *negotiate.Auctioneer, b *negotiate.Bidder, now time.Time, witnesses ...uint64) {
	t.Helper()
	seal, leaf, path, err := a.Inclusion(identity.Hash(b.Commit()))
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range append([]uint64{1}, witnesses...) {
		if err := b.Seal(seal, person(t, n).Peer(), now); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Inclusion(leaf+1, path); err == nil {
		t.Error("a proof of another leaf was taken")
	}
	if err := b.Inclusion(leaf, path); err != nil {
		t.Fatal(err)
	}
}

func TestBidderSendsUntilReceipted(t *testing.T) {
	_, open := anAuction(t)
	b, err := negotiate.NewBidder(sealedBid(t, open, 2, 300_000, 1, ""), opensAt)
	if err != nil {
		t.Fatal(err)
	}
	if got, again := b.Next(after(0)); !slices.Equal(got, []negotiate.Ask{negotiate.SendCommit}) || !again.Equal(after(auction.ReceiptWithin)) {
		t.Error(got, again)
	}
	if got := asks(b, after(time.Second)); got != nil {
		t.Error("asked again at once:", got)
	}
	if got := asks(b, after(2*time.Second)); !slices.Equal(got, []negotiate.Ask{negotiate.SendCommit}) {
		t.Error(got)
	}
	if got, again := b.Next(after(20 * time.Second)); got != nil || !again.Equal(after(23*time.Second)) {
		t.Error("a commit after its window:", got, again)
	}
}

// TestBidderOpensOnlyWhatOthersSee: a Seal with its own leaf, that two others saw, or after a third of the window.
func TestBidderOpensOnlyWhatOthersSee(t *testing.T) {
	at := after(23 * time.Second)
	a, b, _ := fairOne(t)
	if got := asks(b, at); !slices.Equal(got, []negotiate.Ask{negotiate.FetchSeal}) {
		t.Error("without a Seal:", got)
	}
	sealTo(t, a, b, at, 3)
	if got := asks(b, after(24*time.Second)); slices.Contains(got, negotiate.SendOpening) || !b.Unwitnessed() {
		t.Error("one witness of two:", got)
	}
	if got := asks(b, at.Add(10*time.Second/3)); !slices.Equal(got, []negotiate.Ask{negotiate.SendOpening}) {
		t.Error("a third of the window later:", got)
	}
	a, b, _ = fairOne(t)
	sealTo(t, a, b, at, 3, 4)
	if got := asks(b, at); !slices.Equal(got, []negotiate.Ask{negotiate.SendOpening}) || b.Unwitnessed() {
		t.Error("two witnesses:", got)
	}
	if got := asks(b, at.Add(10*time.Second)); !slices.Equal(got, []negotiate.Ask{negotiate.SendOpening, negotiate.FetchAward}) {
		t.Error("after the window a seller that was away may still take it:", got)
	}
}

// TestBidderNeverOpensUnderTwoSeals: whoever shows two logs may have read bids between them.
func TestBidderNeverOpensUnderTwoSeals(t *testing.T) {
	a, b, _ := fairOne(t)
	seller := person(t, 1)
	second := markettest.Seal(t, seller, auction.DomainSeal, auction.Seal{
		Header: seller.Header(auction.Version), Delegation: seller.DelegationHash(), Auction: a.ID(), Size: 3, Root: markettest.Hash("another log"),
	})
	at := after(23 * time.Second)
	sealTo(t, a, b, at, 3, 4)
	if err := b.Seal(second, person(t, 3).Peer(), at); err != nil {
		t.Fatal(err)
	}
	for s := range 10 {
		if got := asks(b, at.Add(time.Duration(s)*time.Second)); slices.Contains(got, negotiate.SendOpening) {
			t.Fatal("it opened")
		}
	}
	r, err := b.Transcript(a.Transcript())
	if err != nil || !r.Has(auction.TwoSeals) || b.Report() == nil {
		t.Errorf("%s, %v", r.Verdict(), err)
	}
	stranger := person(t, 9)
	for _, raw := range [][]byte{nil, a.Transcript().Leaves[0], markettest.Seal(t, stranger, auction.DomainSeal, auction.Seal{
		Header: stranger.Header(auction.Version), Delegation: stranger.DelegationHash(), Auction: a.ID(), Root: markettest.Hash("x"),
	})} {
		if b.Seal(raw, stranger.Peer(), at) == nil {
			t.Error("a stranger's Seal was taken")
		}
	}
}

// TestLyingSellersAreProven by a bidder from the file that the seller hands out and what the bidder holds.
func TestLyingSellersAreProven(t *testing.T) {
	seller := person(t, 1)
	for kind, lie := range map[auction.Kind]func(*testing.T, *auction.Transcript){
		auction.WrongAward: func(t *testing.T, f *auction.Transcript) { // to a friend, for less
			w, err := auction.ReadAward(f.Awards[0])
			if err != nil {
				t.Fatal(err)
			}
			w.Wins = []auction.Win{{Leaf: 2, Quantity: 1, Pay: 200_000}}
			f.Awards = [][]byte{markettest.Seal(t, seller, auction.DomainAward, w)}
		},
		auction.MissingLeaf: func(t *testing.T, f *auction.Transcript) { // a log without the best bid
			f.Leaves, f.Shown = slices.Clone(f.Leaves[1:]), nil
			var l auction.Log
			for _, raw := range f.Leaves {
				if _, err := l.Append(raw); err != nil {
					t.Fatal(err)
				}
			}
			size, root := l.Head()
			f.Seals = [][]byte{markettest.Seal(t, seller, auction.DomainSeal, auction.Seal{
				Header: seller.Header(auction.Version), Delegation: seller.DelegationHash(), Auction: auction.IDOf(f.Open), Size: size, Root: root,
			})}
		},
		auction.IgnoredOpening: func(t *testing.T, f *auction.Transcript) { // "it came late"
			w, err := auction.ReadAward(f.Awards[0])
			if err != nil {
				t.Fatal(err)
			}
			w.Opened, w.Wins = []byte{0b110}, []auction.Win{{Leaf: 2, Quantity: 1, Pay: 400_000}}
			f.Awards = [][]byte{markettest.Seal(t, seller, auction.DomainAward, w)}
		},
	} {
		a, b, bids := fairOne(t)
		for i, s := range bids {
			receipt, err := a.Opening(opening(t, s), after(24*time.Second))
			if err != nil {
				t.Fatal(err)
			}
			if i == 0 {
				takesReceipt(t, a, b, receipt)
			}
		}
		ticks(t, a, after(33*time.Second))
		if r, err := b.Transcript(a.Transcript()); err != nil || r.Verdict() != auction.Kept || !r.Bids[0].Won {
			t.Fatalf("%s, %+v, %v", r.Verdict(), r.Bids[0], err)
		}
		file := a.Transcript()
		lie(t, &file)
		r, err := b.Transcript(file)
		if err != nil || !r.Has(kind) {
			t.Errorf("%s was not found: %s, %q, %v", kind, r.Verdict(), r.Missing, err)
			continue
		}
		for _, f := range r.Faults {
			raw, err := f.Proof.Encode()
			if err != nil {
				t.Fatal(err)
			}
			if found, err := auction.CheckFraud(raw); err != nil || found.Seller != seller.Account() {
				t.Errorf("%s: %v", f.Kind, err)
			}
		}
	}
}

// takesReceipt of an opening: only once the bidder has shown it, or a seller would sign one instead of looking at the bid.
func takesReceipt(t *testing.T, a *negotiate.Auctioneer, b *negotiate.Bidder, receipt []byte) {
	t.Helper()
	if err := b.Receipt(receipt); err == nil {
		t.Error("a receipt of an opening that nobody sent was taken")
	}
	sealTo(t, a, b, after(24*time.Second), 3, 4)
	if got := asks(b, after(24*time.Second)); !slices.Equal(got, []negotiate.Ask{negotiate.SendOpening}) {
		t.Fatal(got)
	}
	if err := b.Receipt(receipt); err != nil {
		t.Fatal(err)
	}
}

// TestPrepareBid refuses what the auction would find void, before anything is signed or held.
func TestPrepareBid(t *testing.T) {
	_, open := anAuction(t)
	dev := person(t, 2)
	good := auction.Bid{
		Options: []auction.Option{{Quantity: 1, Rate: 300_000}}, Unit: "CREDIT", Term: 3600, Needs: markettest.Hash("needs"), Voucher: markettest.Hash("v"),
	}
	for name, c := range map[string]struct {
		spoil  func(*auction.Bid)
		credit uint64
		code   reason.Code
	}{
		"no credit":     {func(*auction.Bid) {}, 24_999, reason.CreditLimit},
		"too many GPUs": {func(b *auction.Bid) { b.Options[0].Quantity = 2 }, 1_000_000, reason.BidVoid},
		"another unit":  {func(b *auction.Bid) { b.Unit = "EUR" }, 1_000_000, reason.UnknownUnit},
		"a short term":  {func(b *auction.Bid) { b.Term = 10 }, 1_000_000, reason.TermOutOfRange},
	} {
		b := good
		b.Options = slices.Clone(good.Options)
		c.spoil(&b)
		_, err := negotiate.PrepareBid(dev, open, b, markettest.Hash("n"), 1, money.Micro(c.credit))
		refused(t, name, err, c.code)
	}
	without := good
	without.Options = nil
	if _, err := negotiate.PrepareBid(dev, open, without, markettest.Hash("n"), 1, 1_000_000); !errors.Is(err, auction.ErrInvalid) {
		t.Error("no option:", err)
	}
	s, err := negotiate.PrepareBid(dev, open, good, markettest.Hash("n"), 1, 25_000)
	if err != nil {
		t.Fatal(err)
	}
	c, err := auction.ReadCommit(s.Commit)
	if err != nil || c.Hold != 25_000 {
		t.Error("the hold is all that is free:", c.Hold, err)
	}
	if s.Lease(dev.Account()) != (auction.Opening{Nonce: s.Nonce}).Lease(auction.IDOf(open), dev.Account()) {
		t.Error("another lease id")
	}
}
