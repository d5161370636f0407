package auction_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpufair/gpufair/ledger/history"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/auction"
	"github.com/gpufair/gpufair/market/markettest"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// TestOpenValidate: every figure outside its limits, and a bond that is not full where the rule needs one.
func TestOpenValidate(t *testing.T) {
	seller := party(t, sellerNumber, identity.AllPowers)
	for name, spoil := range map[string]func(*auction.Open){
		"no GPUs": func(o *auction.Open) { o.K = 0 }, "too many GPUs": func(o *auction.Open) { o.K = auction.MaxK + 1 },
		"no term": func(o *auction.Open) { o.MinTerm = 0 }, "terms reversed": func(o *auction.Open) { o.MaxTerm = o.MinTerm - 1 },
		"a long term": func(o *auction.Open) { o.MaxTerm = market.MaxTerm + 1 }, "reserve": func(o *auction.Open) { o.Reserve = market.MaxRate + 1 },
		"mode": func(o *auction.Open) { o.Mode = "second" }, "no commit window": func(o *auction.Open) { o.Commit = 0 },
		"no grace": func(o *auction.Open) { o.Grace = 0 }, "a long grace": func(o *auction.Open) { o.Grace = 61 },
		"no reveal": func(o *auction.Open) { o.Reveal = 0 }, "a long reveal": func(o *auction.Open) { o.Reveal = 24*3600 + 1 },
		"a long commit window": func(o *auction.Open) { o.Commit = 24*3600 + 1 }, "declining dearer than renting": func(o *auction.Open) { o.Decline = o.MinTerm + 1 },
		"other rules": func(o *auction.Open) { o.Rules++ }, "no rules": func(o *auction.Open) { o.Rules = 0 }, "unit": func(o *auction.Open) { o.Unit = "x" },
		"no nonce": func(o *auction.Open) { o.Nonce = wire.Hash{} }, "no offer": func(o *auction.Open) { o.Offer = wire.Hash{} },
		"no delegation": func(o *auction.Open) { o.Delegation = wire.Hash{} }, "bond": func(o *auction.Open) { o.Bond = money.Max + 1 },
		"kplus1 with less than its bond": func(o *auction.Open) { o.Mode = auction.KPlus1; o.Bond-- },
		"vcg with less than its bond":    func(o *auction.Open) { o.Mode = auction.VCG; o.Bond-- },
		"kplus1 without a reserve":       func(o *auction.Open) { o.Mode = auction.KPlus1; o.Reserve = 0 },
	} {
		o := anOpen(t, seller, auction.First, 4)
		spoil(&o)
		if err := o.Validate(); !errors.Is(err, auction.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := auction.ReadOpen(markettest.Seal(t, seller, auction.DomainOpen, o)); !errors.Is(err, auction.ErrInvalid) {
			t.Errorf("%s was read: %v", name, err)
		}
	}
	for name, allow := range map[string]func(*auction.Open){
		"first without a bond or reserve": func(o *auction.Open) { o.Bond, o.Reserve = 0, 0 },
		"the dearest":                     func(o *auction.Open) { o.K, o.Reserve, o.Mode, o.Bond = 16, market.MaxRate, auction.VCG, money.Max },
	} {
		o := anOpen(t, seller, auction.First, 4)
		allow(&o)
		if err := o.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestRecordsValidate: what the other records may not say.
func TestRecordsValidate(t *testing.T) {
	dev := party(t, 1, identity.AllPowers)
	h := markettest.Hash("x")
	head, d, id := dev.Header(auction.Version), dev.DelegationHash(), auction.ID(h)
	commit := auction.Commit{Header: head, Delegation: d, Auction: id, Sealed: h, Hold: 1, Seq: 1}
	receipt := auction.Receipt{Header: head, Delegation: d, Auction: id, Of: auction.OfCommit, Commit: h, Size: 1, Root: h}
	seal := auction.Seal{Header: head, Delegation: d, Auction: id, Size: 1, Root: h}
	award := auction.Award{Header: head, Delegation: d, Auction: id, Seal: h, Opened: []byte{3}, Wins: []auction.Win{{1, 1, 1}, {2, 1, 1}}}
	decline := auction.Decline{Header: head, Delegation: d, Auction: id, Award: h}
	abort := auction.Abort{Header: head, Delegation: d, Auction: id, Reason: reason.New(reason.OwnerUsing, "")}
	witness := auction.Witness{Header: head, Delegation: d, Auction: id, Event: auction.SawSeal, Subject: h}
	outbid := auction.Outbid{Header: head, Delegation: d, Lease: market.LeaseID(h), Challenger: []byte("x"), Notice: 60}
	spot := spotBid(dev, dev, 1)
	for i, good := range []interface{ Validate() error }{commit, receipt, seal, award, decline, abort, witness, outbid, spot} {
		if err := good.Validate(); err != nil {
			t.Errorf("record %d: %v", i, err)
		}
	}
	bad := func(name string, v interface{ Validate() error }) {
		if err := v.Validate(); !errors.Is(err, auction.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	with := func(f func()) { // each change is made on copies, which the closure names
		c, r, s, a, dc, ab, w, o, sp := commit, receipt, seal, award, decline, abort, witness, outbid, spot
		f()
		commit, receipt, seal, award, decline, abort, witness, outbid, spot = c, r, s, a, dc, ab, w, o, sp
	}
	with(func() { commit.Seq = 0; bad("commit without sequence", commit) })
	with(func() { commit.Hold = money.Max + 1; bad("commit with a huge hold", commit) })
	with(func() { commit.Sealed = wire.Hash{}; bad("commit of nothing", commit) })
	with(func() { receipt.Of = 3; bad("receipt of something", receipt) })
	with(func() { receipt.Index = 1; bad("receipt beyond the log", receipt) })
	with(func() { receipt.Size = auction.MaxLeaves + 1; bad("receipt of a huge log", receipt) })
	with(func() { seal.Size = auction.MaxLeaves + 1; bad("huge seal", seal) })
	with(func() { award.Wins = []auction.Win{{2, 1, 1}, {1, 1, 1}}; bad("winners unordered", award) })
	with(func() { award.Wins = []auction.Win{{1, 1, 1}, {1, 1, 1}}; bad("winner twice", award) })
	with(func() { award.Wins = []auction.Win{{1, 0, 1}}; bad("winner of nothing", award) })
	with(func() { award.Wins = make([]auction.Win, auction.MaxK+1); bad("many winners", award) })
	with(func() { award.Opened = make([]byte, auction.MaxLeaves/8+1); bad("many bits", award) })
	with(func() { award.Before = h; bad("second award without declines", award) })
	with(func() { award.Declined = []uint32{1}; bad("first award with declines", award) })
	with(func() { award.Before, award.Declined = h, []uint32{2, 1}; bad("declines unordered", award) })
	with(func() { decline.Leaf = auction.MaxLeaves; bad("decline of no leaf", decline) })
	with(func() { abort.Reason = reason.Reason{}; bad("abort without a reason", abort) })
	with(func() { abort.Reason.Detail = "\x1b[2J"; bad("abort with control characters", abort) })
	with(func() { witness.Event = 0; bad("witness of nothing", witness) })
	with(func() { witness.Event = 5; bad("witness of something", witness) })
	with(func() { outbid.Notice = 0; bad("no notice", outbid) })
	with(func() { outbid.Challenger = nil; bad("no challenger", outbid) })
	with(func() { spot.Quantity = 0; bad("spot bid for nothing", spot) })
	with(func() { spot.Rate = 0; bad("spot bid of nothing", spot) })
	with(func() { spot.MinRun = 299; bad("spot bid for less than the minimum run", spot) })
	with(func() { spot.Seq = 0; bad("spot bid without sequence", spot) })
}

// TestLargestRecordsFit: the largest legal record of each kind is under its limit.
func TestLargestRecordsFit(t *testing.T) {
	dev := party(t, sellerNumber, identity.AllPowers)
	o := anOpen(t, dev, auction.VCG, 16)
	o.Reserve, o.Bond, o.MinTerm, o.MaxTerm, o.Commit, o.Reveal, o.Grace, o.Unit = market.MaxRate, money.Max, market.MaxTerm, market.MaxTerm, 86400, 86400, 60, "TWELVELETTER"
	if _, err := auction.ReadOpen(markettest.Seal(t, dev, auction.DomainOpen, o)); err != nil {
		t.Error(err)
	}
	a := auction.Award{
		Header: dev.Header(1), Delegation: dev.DelegationHash(), Auction: auction.ID(markettest.Hash("a")), Seal: markettest.Hash("s"),
		Opened: bytes.Repeat([]byte{255}, auction.MaxLeaves/8), Before: markettest.Hash("b"),
	}
	b := aBid()
	for i := range uint32(auction.MaxK) {
		a.Wins = append(a.Wins, auction.Win{Leaf: 16_000 + i, Quantity: 16, Pay: money.Max})
		a.Declined = append(a.Declined, 16_000+i)
		b.Options = append(b.Options, opt(i+1, market.MaxRate))
	}
	if _, err := auction.ReadAward(markettest.Seal(t, dev, auction.DomainAward, a)); err != nil {
		t.Error(err)
	}
	b.Term, b.Unit, b.Group = market.MaxTerm, "TWELVELETTER", markettest.Hash("g")
	h := newHall(t, auction.First, 16)
	h.commits(dev, b, 1<<63)
	raw, err := auction.Opening{Commit: h.t.Leaves[0], Bid: h.hidden[0].bid, Nonce: h.hidden[0].nonce}.Encode()
	if err != nil || len(raw) > market.MaxAccept {
		t.Errorf("an opening of %d bytes, a lease takes %d: %v", len(raw), market.MaxAccept, err)
	}
	if _, _, err := auction.DecodeOpening(raw); err != nil {
		t.Error(err)
	}
}

// TestOpeningShowsOneBid: an opening is the commit's and nobody else's.
func TestOpeningShowsOneBid(t *testing.T) {
	h := newHall(t, auction.First, 1)
	h.bids(1, opt(1, 300_000))
	h.bids(2, opt(1, 300_000))
	good := auction.Opening{Commit: h.t.Leaves[0], Bid: h.hidden[0].bid, Nonce: h.hidden[0].nonce}
	for name, spoil := range map[string]func(*auction.Opening){
		"good": func(*auction.Opening) {}, "another nonce": func(o *auction.Opening) { o.Nonce[0]++ }, "another bid": func(o *auction.Opening) { o.Bid = append(slices.Clone(o.Bid), 0) },
		"another's commit": func(o *auction.Opening) { o.Commit = h.t.Leaves[1] }, "no commit": func(o *auction.Opening) { o.Commit = nil },
	} {
		o := good
		spoil(&o)
		raw, err := o.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if _, c, err := auction.DecodeOpening(raw); (err == nil) != (name == "good") || (err == nil && c.Seq != 1) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// The same bid and nonce of another account is another seal, so that a copied commit opens for nobody.
	a, b := party(t, 1, identity.AllPowers), party(t, 2, identity.AllPowers)
	if auction.Seals(h.id, a.Account(), good.Bid, good.Nonce) == auction.Seals(h.id, b.Account(), good.Bid, good.Nonce) {
		t.Error("a commit can be copied")
	}
}

// TestClosingInstant (gridlab-d#403: a market took bids at the instant at which it had cleared): a window's last instant is outside.
func TestClosingInstant(t *testing.T) {
	o := anOpen(t, party(t, sellerNumber, identity.AllPowers), auction.First, 1)
	closing := 23 * time.Second
	if o.SealAfter() != closing || o.CommitFor() != 20*time.Second || o.RevealFor() != 10*time.Second {
		t.Fatal(o.SealAfter(), o.CommitFor(), o.RevealFor())
	}
	for _, c := range []struct {
		after  time.Duration
		sealed bool
		taken  bool
	}{
		{0, false, true}, {closing - 1, false, true}, {closing, false, false}, {closing + 1, false, false}, {0, true, false}, {-time.Hour, false, true},
	} {
		err := o.TakesCommit(c.after, c.sealed)
		if (err == nil) != c.taken || (err != nil && !reason.Is(err, reason.AuctionClosed)) {
			t.Errorf("commit after %v, sealed %v: %v", c.after, c.sealed, err)
		}
	}
	if err := o.TakesOpening(10*time.Second - 1); err != nil {
		t.Error(err)
	}
	if err := o.TakesOpening(10 * time.Second); !reason.Is(err, reason.RevealOver) {
		t.Error(err)
	}
	if o.EarlySeal(21*time.Second) || !o.EarlySeal(21*time.Second-1) {
		t.Error("a Seal is early if it is more than 2 s before its time")
	}
}

// TestHideHold: a hold backs the bid, tells only its order of size, and is never more than the bidder has.
func TestHideHold(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 9))
	for range 10_000 {
		need, top := money.Micro(rng.Uint64N(uint64(money.Max)>>rng.IntN(62)+1)), money.Micro(rng.Uint64N(uint64(money.Max)))
		h := auction.HideHold(need, top)
		if h < need || (need <= top && h > top) || (h != need && h != top && h&(h-1) != 0) {
			t.Fatalf("need %d, credit %d: hold %d", need, top, h)
		}
	}
	if h := auction.HideHold(25_000, 1_000_000); h != 32_768 {
		t.Error(h)
	}
}

// TestLog: every leaf is provable under the root, and nothing else.
func TestLog(t *testing.T) {
	var l auction.Log
	if size, root := l.Head(); size != 0 || root != identity.Hash(nil) {
		t.Error("an empty log", size, root)
	}
	var leaves [][]byte
	for i := range 37 {
		leaves = append(leaves, []byte(strings.Repeat("x", i)))
		if n, err := l.Append(leaves[i]); err != nil || int(n) != i {
			t.Fatal(n, err)
		}
	}
	size, root := l.Head()
	for i := range uint32(37) {
		p, err := l.Prove(i)
		if err != nil {
			t.Fatal(err)
		}
		if err := auction.Included(p, size, root, i, leaves[i]); err != nil {
			t.Fatal(err)
		}
		for _, err := range []error{
			auction.Included(p, size, root, i, []byte("y")), auction.Included(p, size, root, (i+1)%37, leaves[i]),
			auction.Included(p, size, wire.Hash{}, i, leaves[i]), auction.Included(nil, size, root, i, leaves[i]),
		} {
			if !errors.Is(err, history.ErrProof) {
				t.Fatal(i, err)
			}
		}
	}
	if _, err := l.Prove(37); err == nil {
		t.Error("a leaf that is not there was proven")
	}
	for i := size; i < auction.MaxLeaves; i++ {
		if _, err := l.Append(nil); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := l.Append(nil); !errors.Is(err, history.ErrSize) {
		t.Error(err)
	}
}
