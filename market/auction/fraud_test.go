package auction_test

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/auction"
	"github.com/gpufair/gpufair/market/markettest"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// threeBids is an auction of one GPU with three bids, before its Seal.
func threeBids(tb testing.TB) *hall {
	h := newHall(tb, auction.First, 1)
	h.bids(1, opt(1, 300_000))
	h.bids(2, opt(1, 500_000))
	h.bids(3, opt(1, 400_000))
	return h
}

// cheats are auctions by a seller that broke one rule each.
var cheats = map[auction.Kind][]func(*hall){
	auction.TwoSeals: {func(h *hall) {
		h.seals()
		h.bids(4, opt(1, 450_000)) // a shill, after bids were shown
		h.seals()
		h.opens(0, 1, 2, 3)
	}},
	auction.MissingLeaf: {
		func(h *hall) { // a log with another commit in its place
			h.t.Receipts = [][]byte{h.receipt(auction.OfCommit, 1)}
			*h = *swapped(h, 1)
			h.opensAll()
		},
		func(h *hall) { // a log cut short
			h.t.Receipts = [][]byte{h.receipt(auction.OfCommit, 2)}
			*h = *without(h, 2)
			h.opensAll()
		},
	},
	auction.TwoReceipts: {
		func(h *hall) { // two commits at one place
			first := h.receipt(auction.OfCommit, 1)
			other := swapped(h, 1)
			h.t.Receipts = [][]byte{first, other.receipt(auction.OfCommit, 1)}
			h.opensAll()
		},
		func(h *hall) { // two logs of one size
			first := h.receipt(auction.OfCommit, 0)
			other := swapped(h, 1)
			h.t.Receipts = [][]byte{first, other.receipt(auction.OfCommit, 0)}
			h.opensAll()
		},
	},
	auction.IgnoredOpening: {func(h *hall) {
		h.opensAll(1)
		h.t.Receipts = [][]byte{h.receipt(auction.OfOpening, 1)}
		h.awards(h.honest())
		h.t.Shown = nil
		h.opens(0, 1, 2)
	}},
	auction.TwoAwards: {func(h *hall) {
		h.opensAll()
		h.awards(h.honest())
		other := h.honest()
		other.Wins = []auction.Win{{Leaf: 0, Quantity: 1, Pay: 300_000}}
		h.awards(other)
	}},
	auction.WrongAward: {
		func(h *hall) { h.spoils(func(a *auction.Award) { a.Wins[0].Pay = 450_000 }) },
		func(h *hall) { h.spoils(func(a *auction.Award) { a.Wins[0].Leaf = 2 }) },
		func(h *hall) { h.spoils(func(a *auction.Award) { a.Wins[0].Quantity = 2 }) },
		func(h *hall) { h.spoils(func(a *auction.Award) { a.Wins = nil }) },
		func(h *hall) { h.spoils(func(a *auction.Award) { a.Opened = nil }) },
		func(h *hall) { h.spoils(func(a *auction.Award) { a.Opened[0] |= 8 }) },
		func(h *hall) { // it counts a commit that was replaced
			dev := party(h.tb, 1, identity.AllPowers)
			h.commits(dev, aBid(opt(1, 600_000)), 2)
			h.opensAll()
			a := h.honest()
			a.Opened[0] |= 1
			h.awards(a)
		},
	},
	auction.Rewritten: {func(h *hall) {
		h.t.Receipts = [][]byte{h.receipt(auction.OfCommit, 0)}
		*h = *swapped(h, 1)
		h.opensAll()
	}},
	auction.Aborted: {func(h *hall) {
		h.opensAll()
		h.t.Aborts = [][]byte{markettest.Seal(h.tb, h.seller, auction.DomainAbort, auction.Abort{
			Header: h.seller.Header(auction.Version), Delegation: h.seller.DelegationHash(), Auction: h.id, Reason: reason.New(reason.OwnerUsing, ""),
		})}
	}},
	auction.DoubleLease: {func(h *hall) {
		h.opensAll()
		h.awards(h.honest())
		for i := range 2 {
			w := auction.Win{Leaf: uint32(i), Quantity: 1, Pay: 300_000}
			slots := []market.SlotGeneration{{Device: markettest.Hash("a"), Generation: 3}}
			l, err := auction.Lease(h.seller, h.open, h.t.Opening(h.t.Shown[i]), w, slots, 1_000_000)
			if err != nil {
				h.tb.Fatal(err)
			}
			h.t.Leases = append(h.t.Leases, markettest.Seal(h.tb, h.seller, market.DomainLease, l))
		}
	}},
}

// spoils is an award with one thing changed.
func (h *hall) spoils(f func(*auction.Award)) {
	h.opensAll()
	a := h.honest()
	f(&a)
	h.awards(a)
}

// swapped is the auction with another commit as leaf i; what the seller signed so far stays in the file.
func swapped(h *hall, i int) *hall { return rebuilt(h, i, true) }

// without is the auction with a log that ends before leaf i.
func without(h *hall, i int) *hall { return rebuilt(h, i, false) }

func rebuilt(h *hall, i int, other bool) *hall {
	n := newHall(h.tb, h.open.Mode, h.open.K)
	n.t.Receipts, n.t.Delegations = h.t.Receipts, slices.Clone(h.t.Delegations)
	for j := range h.t.Leaves {
		switch {
		case j != i:
			n.append(h.t.Leaves[j], h.hidden[j])
		case other:
			n.bids(90+i, opt(1, 444_444))
		}
	}
	return n
}

// TestFrauds: each is found in a transcript, in words, with a proof that a third peer accepts.
func TestFrauds(t *testing.T) {
	for kind, ways := range cheats {
		for i, cheat := range ways {
			h := threeBids(t)
			cheat(h)
			f := h.finds(kind)
			if r := h.verify(); r.Verdict() != auction.Broken || !strings.Contains(r.Text(identity.AccountID{}), "BROKEN ("+kind.String()+"): "+f.Words) {
				t.Errorf("%s %d: %s\n%s", kind, i, r.Verdict(), r.Text(identity.AccountID{}))
			}
			raw, err := f.Proof.Encode()
			if err != nil || (kind != auction.WrongAward && kind != auction.Rewritten && len(raw) > 4<<10) {
				t.Errorf("%s %d: %d bytes, %v", kind, i, len(raw), err)
			}
		}
	}
	if len(cheats) != int(auction.DoubleLease) {
		t.Errorf("%d kinds are tested", len(cheats))
	}
}

// TestBuyersPayTheRightPrice: a wrong award changes nothing of what the report gives as the result.
func TestBuyersPayTheRightPrice(t *testing.T) {
	h := threeBids(t)
	h.spoils(func(a *auction.Award) { a.Wins[0] = auction.Win{Leaf: 0, Quantity: 1, Pay: 300_000} })
	f := h.finds(auction.WrongAward)
	if r := h.verify(); !slices.Equal(r.Outcome.Wins, []auction.Win{{Leaf: 1, Quantity: 1, Pay: 500_000}}) {
		t.Errorf("%+v", r.Outcome)
	}
	if want := "it gives leaf 0 1 GPUs, and the bids give it none"; !strings.Contains(f.Words, want) {
		t.Error(f.Words)
	}
}

// TestAbortCredits: whoever would have won is owed the bond, and nobody's hold is posted.
func TestAbortCredits(t *testing.T) {
	h := threeBids(t)
	cheats[auction.Aborted][0](h)
	h.t.Shown = h.t.Shown[:2]
	r := h.verify()
	if want := []auction.Due{{1, h.open.Bond}}; !r.Aborted || !slices.Equal(r.Dues.Credits, want) || r.Dues.Posted != nil || r.Dues.Discounts != nil {
		t.Errorf("%+v", r.Dues)
	}
	before := threeBids(t) // before the Seal an abort costs nothing
	before.t.Aborts = h.t.Aborts
	if r := before.verify(); len(r.Faults) != 0 {
		t.Errorf("%+v", r.Faults)
	}
}

// TestHonestRecordsProveNothing: what an honest seller signs makes no proof, in any combination and under any kind.
func TestHonestRecordsProveNothing(t *testing.T) {
	h := newHall(t, auction.First, 1)
	h.bids(1, opt(1, 300_000))
	grouped := aBid(opt(1, 500_000))
	grouped.Group = markettest.Hash("group")
	h.commits(party(t, 2, identity.AllPowers), grouped, 1)
	h.bids(3, opt(1, 400_000))
	h.t.Receipts = [][]byte{h.receipt(auction.OfCommit, 0), h.receipt(auction.OfCommit, 2)}
	h.opensAll()
	h.t.Receipts = append(h.t.Receipts, h.receipt(auction.OfOpening, 1))
	first := h.awards(h.honest())
	second := h.honest()
	second.Before, second.Declined, second.Wins = identity.Hash(first), []uint32{1}, []auction.Win{{Leaf: 2, Quantity: 1, Pay: 400_000}}
	h.awards(second)
	file, err := h.t.Encode()
	if err != nil {
		t.Fatal(err)
	}
	path, err := h.log.Prove(2)
	if err != nil {
		t.Fatal(err)
	}
	l := auctionLease(t, h, 1)
	records := slices.Concat(h.t.Receipts, h.t.Seals, h.t.Awards, [][]byte{l, h.t.Open})
	for kind := auction.TwoSeals; kind <= auction.DoubleLease; kind++ {
		for i, a := range records {
			for j, b := range records {
				if (kind == auction.WrongAward || kind == auction.Rewritten) && i+j > 0 {
					continue // they have a transcript and no records
				}
				f := auction.Fraud{Kind: kind, Open: h.t.Open, Records: [][]byte{a, b}, Delegations: h.t.Delegations[:1]}
				switch kind {
				case auction.MissingLeaf:
					f.Leaf, f.Path = h.t.Leaves[2], path
				case auction.DoubleLease:
					f.Open = nil
				case auction.WrongAward, auction.Rewritten:
					f = auction.Fraud{Kind: kind, Transcript: file}
				}
				raw, err := f.Encode()
				if err != nil {
					t.Fatal(err)
				}
				if found, err := auction.CheckFraud(raw); !errors.Is(err, auction.ErrFraud) {
					t.Fatalf("%s: %+v", kind, found)
				}
			}
		}
	}
}

func auctionLease(t testing.TB, h *hall, i int) []byte {
	t.Helper()
	l, err := auction.Lease(h.seller, h.open, h.t.Opening(h.t.Shown[i]), auction.Win{Leaf: uint32(i), Quantity: 1, Pay: 300_000},
		[]market.SlotGeneration{{Device: markettest.Hash("a"), Generation: 3}}, 1_000_000)
	if err != nil {
		t.Fatal(err)
	}
	return markettest.Seal(t, h.seller, market.DomainLease, l)
}

// TestFraudNeedsItsDelegations: without the account's word a device's signature says nothing of the account, so that nobody is framed.
func TestFraudNeedsItsDelegations(t *testing.T) {
	for kind, ways := range cheats {
		if kind == auction.WrongAward || kind == auction.Rewritten {
			continue
		}
		h := threeBids(t)
		ways[0](h)
		f := h.finds(kind).Proof
		weak := party(t, sellerNumber, identity.PowerTrade) // of the same account and device
		for _, d := range [][][]byte{nil, {weak.Delegation()}} {
			f.Delegations = d
			raw, err := f.Encode()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := auction.CheckFraud(raw); !errors.Is(err, auction.ErrFraud) {
				t.Errorf("%s was believed without its delegation", kind)
			}
		}
	}
}

// TestFraudOfAnotherAuction: two auctions of one seller have different Seals, and that is no fraud.
func TestFraudOfAnotherAuction(t *testing.T) {
	a := threeBids(t)
	a.seals()
	b := newHall(t, auction.First, 1, func(o *auction.Open) { o.Nonce[0]++ })
	b.seals()
	for _, open := range [][]byte{a.t.Open, b.t.Open} {
		f := auction.Fraud{Kind: auction.TwoSeals, Open: open, Records: [][]byte{a.t.Seals[0], b.t.Seals[0]}, Delegations: a.t.Delegations[:1]}
		raw, err := f.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if found, err := auction.CheckFraud(raw); !errors.Is(err, auction.ErrFraud) {
			t.Errorf("%+v", found)
		}
	}
}

// TestFraudForm: a proof has one spelling and a size.
func TestFraudForm(t *testing.T) {
	h := threeBids(t)
	cheats[auction.TwoSeals][0](h)
	good := h.finds(auction.TwoSeals).Proof
	for name, spoil := range map[string]func(*auction.Fraud){
		"kind 0":            func(f *auction.Fraud) { f.Kind = 0 },
		"unknown kind":      func(f *auction.Fraud) { f.Kind = auction.DoubleLease + 1 },
		"one record":        func(f *auction.Fraud) { f.Records = f.Records[:1] },
		"three records":     func(f *auction.Fraud) { f.Records = append(f.Records, f.Records[0]) },
		"no open":           func(f *auction.Fraud) { f.Open = nil },
		"a leaf":            func(f *auction.Fraud) { f.Leaf = []byte("x") },
		"a transcript":      func(f *auction.Fraud) { f.Transcript = []byte("x") },
		"only records":      func(f *auction.Fraud) { f.Kind = auction.WrongAward },
		"a large record":    func(f *auction.Fraud) { f.Records[0] = make([]byte, market.MaxLease+1) },
		"a large path":      func(f *auction.Fraud) { f.Kind, f.Path = auction.MissingLeaf, append(f.Path, make([]wire.Hash, 29)...) },
		"many delegations":  func(f *auction.Fraud) { f.Delegations = make([][]byte, 5) },
		"a huge delegation": func(f *auction.Fraud) { f.Delegations = [][]byte{make([]byte, market.MaxDelegation+1)} },
	} {
		f := good
		f.Records, f.Delegations = slices.Clone(good.Records), slices.Clone(good.Delegations)
		spoil(&f)
		if _, err := f.Encode(); !errors.Is(err, auction.ErrFraud) {
			t.Errorf("%s: %v", name, err)
		}
	}
	raw, err := good.Encode()
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range [][]byte{nil, raw[:len(raw)-1], append(slices.Clone(raw), 0), make([]byte, auction.MaxFraud+1)} {
		if _, err := auction.CheckFraud(b); !errors.Is(err, auction.ErrFraud) {
			t.Errorf("%d bytes: %v", len(b), err)
		}
	}
}

// TestNoChangeFramesAnHonestSeller: whatever is cut, doubled, moved or flipped in the transcript of an honest auction, no verdict says that the
// seller broke a rule.
func TestNoChangeFramesAnHonestSeller(t *testing.T) {
	h := newHall(t, auction.First, 2)
	account := party(t, 1, identity.AllPowers)
	h.commits(account, aBid(opt(1, 300_000)), 1)
	h.bids(2, opt(2, 350_000))
	h.commits(account, aBid(opt(1, 360_000), opt(2, 380_000)), 2)
	h.commits(party(t, 3, identity.PowerPay), aBid(opt(1, 900_000)), 1)
	h.bids(4, opt(1, 500_000))
	h.t.Receipts = [][]byte{h.receipt(auction.OfCommit, 2), h.receipt(auction.OfCommit, 4)}
	h.opensAll(3, 4)
	h.t.Receipts = append(h.t.Receipts, h.receipt(auction.OfOpening, 1))
	h.awards(h.honest())
	h.kept()
	whole := h.t
	rapid.Check(t, func(rt *rapid.T) {
		f := whole
		lists := []*[][]byte{&f.Seals, &f.Leaves, &f.Awards, &f.Receipts, &f.Delegations}
		for _, l := range lists {
			*l = slices.Clone(*l)
		}
		f.Shown = slices.Clone(f.Shown)
		for range rapid.IntRange(1, 3).Draw(rt, "changes") {
			l := lists[rapid.IntRange(0, len(lists)-1).Draw(rt, "list")]
			if len(*l) == 0 {
				continue
			}
			i, j := rapid.IntRange(0, len(*l)-1).Draw(rt, "at"), rapid.IntRange(0, len(*l)-1).Draw(rt, "other")
			switch rapid.IntRange(0, 4).Draw(rt, "how") {
			case 0:
				*l = slices.Delete(*l, i, i+1)
			case 1:
				(*l)[i], (*l)[j] = (*l)[j], (*l)[i]
			case 2:
				b := bytes.Clone((*l)[i])
				if len(b) > 0 {
					b[rapid.IntRange(0, len(b)-1).Draw(rt, "byte")] ^= 1 << rapid.IntRange(0, 7).Draw(rt, "bit")
				}
				(*l)[i] = b
			case 3:
				*l = append(*l, (*l)[i])
			case 4:
				if len(f.Shown) > 0 {
					n := rapid.IntRange(0, len(f.Shown)-1).Draw(rt, "opening")
					f.Shown = slices.Delete(f.Shown, n, n+1)
				}
			}
		}
		r, err := auction.Verify(f)
		if err == nil && r.Verdict() == auction.Broken {
			rt.Fatalf("%s: %s", r.Faults[0].Kind, r.Faults[0].Words)
		}
	})
}

// TestTranscriptForm: one auction has one file, and damage is told from anything else.
func TestTranscriptForm(t *testing.T) {
	h := threeBids(t)
	h.opensAll()
	h.awards(h.honest())
	raw, err := h.t.Encode()
	if err != nil {
		t.Fatal(err)
	}
	again, err := auction.DecodeTranscript(raw)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := again.Encode(); err != nil || !bytes.Equal(b, raw) {
		t.Fatal("another file of the same transcript", err)
	}
	for name, b := range map[string][]byte{
		"empty": nil, "cut": raw[:len(raw)-1], "longer": append(slices.Clone(raw), 0), "another format": bytes.Replace(raw, []byte("/1 "), []byte("/2 "), 1),
		"flipped": flip(raw, len(raw)/2), "too large": make([]byte, auction.MaxTranscript+1),
	} {
		if _, err := auction.DecodeTranscript(b); !errors.Is(err, auction.ErrTranscript) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, spoil := range map[string]func(*auction.Transcript){
		"nine seals":         func(t *auction.Transcript) { t.Seals = make([][]byte, 9) },
		"a large leaf":       func(t *auction.Transcript) { t.Leaves = [][]byte{make([]byte, auction.MaxCommit+1)} },
		"openings unordered": func(t *auction.Transcript) { t.Shown[0], t.Shown[1] = t.Shown[1], t.Shown[0] },
		"opening of no leaf": func(t *auction.Transcript) { t.Shown[2].Leaf = 3 },
		"a large bid":        func(t *auction.Transcript) { t.Shown[0].Bid = make([]byte, auction.MaxBid+1) },
	} {
		bad := again
		bad.Shown = slices.Clone(again.Shown)
		spoil(&bad)
		if _, err := bad.Encode(); err == nil {
			t.Errorf("%s was written", name)
		}
		if _, err := auction.Verify(bad); !errors.Is(err, auction.ErrTranscript) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func flip(b []byte, i int) []byte {
	b = bytes.Clone(b)
	b[i] ^= 1
	return b
}

// TestShare: parts of a discount never come to more than it, and none is owed where nobody pays.
func TestShare(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		total := money.Micro(rapid.Uint64Max(uint64(money.Max)).Draw(t, "total"))
		var wins []auction.Win
		paid := uint64(0)
		for range rapid.IntRange(0, auction.MaxK).Draw(t, "winners") {
			w := auction.Win{Quantity: 1, Pay: money.Micro(rapid.Uint64Max(uint64(market.MaxRate)).Draw(t, "pay"))}
			wins, paid = append(wins, w), paid+uint64(w.Pay)
		}
		sum := money.Micro(0)
		for _, d := range auction.Share(total, wins) {
			sum += d.Amount
		}
		if paid > 0 && total > 0 && (sum > total || total-sum >= money.Micro(len(wins))) {
			t.Fatalf("%d of %d among %d", sum, total, len(wins))
		}
		if paid == 0 && sum != 0 {
			t.Fatal(sum)
		}
	})
	if auction.Discounted(5, 7) != 0 || auction.Discounted(7, 5) != 2 {
		t.Error("a discount went below 0")
	}
}
