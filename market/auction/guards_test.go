package auction_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/gpufair/gpufair/market/auction"
	"github.com/gpufair/gpufair/market/markettest"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/p2p/identity"
)

// TestCommitOfAnotherAuction: it is signed and well made, and no bid here; the seller that lets it in answers for it.
func TestCommitOfAnotherAuction(t *testing.T) {
	other := newHall(t, auction.First, 1, func(o *auction.Open) { o.Nonce[0]++ })
	other.bids(1, opt(1, 900_000))
	h := newHall(t, auction.First, 1)
	h.bids(2, opt(1, 300_000))
	h.append(other.t.Leaves[0], other.hidden[0])
	h.opensAll()
	h.awards(h.honest())
	r := h.kept()
	if r.Bids[1].Reason.Code != reason.BidVoid || r.Counts.Unopened != 1 || len(r.Dues.Discounts) != 1 || len(r.Dues.Posted) != 0 {
		t.Errorf("%+v, %+v", r.Bids[1], r.Dues)
	}
}

// TestWhatIsWrongInAnAward is said in words.
func TestWhatIsWrongInAnAward(t *testing.T) {
	for want, spoil := range map[string]func(*auction.Award){
		"it lets leaf 1 pay 0.45/h, and the bids come to 0.5/h": func(a *auction.Award) { a.Wins[0].Pay = 450_000 },
		"it gives leaf 2 1 GPUs, and the bids give it none":     func(a *auction.Award) { a.Wins[0].Leaf = 2 },
		"it gives leaf 1 2 GPUs, and the bids give it 1":        func(a *auction.Award) { a.Wins[0].Quantity = 2 },
		"it leaves out leaf 1, which wins 1 GPUs at 0.5/h":      func(a *auction.Award) { a.Wins = nil },
		"0 bytes of opened leaves for 3 leaves":                 func(a *auction.Award) { a.Opened = nil },
		"bits beyond leaf 3 are set":                            func(a *auction.Award) { a.Opened[0] |= 8 },
	} {
		h := threeBids(t)
		h.spoils(spoil)
		if f := h.finds(auction.WrongAward); !strings.HasSuffix(f.Words, want) {
			t.Errorf("want %q, got %q", want, f.Words)
		}
	}
}

// declined is an auction in which the first bidder won, with the Award's hash.
func declined(t *testing.T, group string) (h *hall, second auction.Award, decline func(*identity.Device) []byte) {
	t.Helper()
	h = newHall(t, auction.First, 1)
	b := aBid(opt(1, 600_000))
	if group != "" {
		b.Group = markettest.Hash(group)
	}
	h.commits(party(t, 1, identity.AllPowers), b, 1)
	h.bids(2, opt(1, 500_000))
	h.bids(3, opt(1, 400_000))
	h.opensAll(2)
	first := h.awards(h.honest())
	second = h.honest()
	second.Before, second.Declined, second.Wins = identity.Hash(first), []uint32{0}, []auction.Win{{Leaf: 1, Quantity: 1, Pay: 500_000}}
	return h, second, func(dev *identity.Device) []byte {
		h.knows(dev)
		return markettest.Seal(t, dev, auction.DomainDecline, auction.Decline{
			Header: dev.Header(auction.Version), Delegation: dev.DelegationHash(), Auction: h.id, Award: identity.Hash(first), Leaf: 0,
		})
	}
}

// TestDeclineGuards: only a winner declines, only in a group, and the second Award counts what the first did.
func TestDeclineGuards(t *testing.T) {
	winner, other, weak := party(t, 1, identity.AllPowers), party(t, 2, identity.AllPowers), party(t, 1, identity.PowerPay)

	h, second, decline := declined(t, "group")
	h.awards(second)
	for name, dev := range map[string]*identity.Device{"another account": other, "a device that may not trade": weak} {
		h.t.Declines = [][]byte{decline(dev)}
		if r := h.verify(); r.Verdict() != auction.Incomplete {
			t.Errorf("declined by %s: %s", name, r.Verdict())
		}
	}
	h.t.Declines = [][]byte{decline(winner)}
	h.kept()

	h, second, decline = declined(t, "")
	h.awards(second)
	h.t.Declines = [][]byte{decline(winner)}
	if f := h.finds(auction.WrongAward); !strings.Contains(f.Words, "of no group") {
		t.Error(f.Words)
	}

	h, second, decline = declined(t, "group")
	second.Opened = []byte{7} // and counts one more
	h.awards(second)
	h.t.Declines = [][]byte{decline(winner)}
	if f := h.finds(auction.WrongAward); !strings.Contains(f.Words, "other openings than the first") {
		t.Error(f.Words)
	}
}

// TestOnlyTheSellerIsProven: a fraud is by its own account's records, signed by a device that may provide.
func TestOnlyTheSellerIsProven(t *testing.T) {
	h := threeBids(t)
	h.seals()
	stranger, laptop := party(t, 66, identity.AllPowers), party(t, sellerNumber, identity.PowerTrade)
	for name, dev := range map[string]*identity.Device{"a stranger": stranger, "a device that may not provide": laptop} {
		seal := markettest.Seal(t, dev, auction.DomainSeal, auction.Seal{
			Header: dev.Header(auction.Version), Delegation: dev.DelegationHash(), Auction: h.id, Root: markettest.Hash("root"),
		})
		for _, records := range [][][]byte{{h.t.Seals[0], seal}, {seal, h.t.Seals[0]}} {
			f := auction.Fraud{
				Kind: auction.TwoSeals, Open: h.t.Open, Records: records, Delegations: [][]byte{h.seller.Delegation(), dev.Delegation()},
			}
			raw, err := f.Encode()
			if err != nil {
				t.Fatal(err)
			}
			if found, err := auction.CheckFraud(raw); !errors.Is(err, auction.ErrFraud) {
				t.Errorf("%s framed %s", name, found.Seller.Short())
			}
		}
	}
}

// TestReceiptsSayOfWhat: a receipt for a commit promises no opening, and one for an opening no leaf.
func TestReceiptsSayOfWhat(t *testing.T) {
	h := threeBids(t)
	commit := h.receipt(auction.OfCommit, 2)
	h.opensAll(2) // its bidder never opens
	h.t.Receipts = [][]byte{commit}
	award := h.awards(h.honest())
	h.kept()
	beyond := markettest.Seal(t, h.seller, auction.DomainReceipt, auction.Receipt{
		Header: h.seller.Header(auction.Version), Delegation: h.seller.DelegationHash(), Auction: h.id, Of: auction.OfOpening,
		Commit: markettest.Hash("x"), Index: 7, Size: 8,
	})
	for kind, records := range map[auction.Kind][][]byte{auction.IgnoredOpening: {commit, award}, auction.MissingLeaf: {beyond, h.t.Seals[0]}} {
		f := auction.Fraud{Kind: kind, Open: h.t.Open, Records: records, Delegations: h.t.Delegations[:1]}
		raw, err := f.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if found, err := auction.CheckFraud(raw); !errors.Is(err, auction.ErrFraud) {
			t.Errorf("%s was believed: %s", kind, found.Words)
		}
	}
}

// TestOtherAuctionsOfTheSeller: what the seller signed for another auction is no second Seal, Award or receipt of this one.
func TestOtherAuctionsOfTheSeller(t *testing.T) {
	other := newHall(t, auction.First, 1, func(o *auction.Open) { o.Nonce[0]++ })
	other.bids(5, opt(1, 900_000))
	receipt := other.receipt(auction.OfCommit, 0)
	other.opensAll()
	other.awards(other.honest())
	h := threeBids(t)
	h.opensAll()
	h.awards(h.honest())
	h.t.Seals, h.t.Awards = append(h.t.Seals, other.t.Seals[0]), append(h.t.Awards, other.t.Awards[0])
	h.t.Receipts = [][]byte{receipt}
	if r := h.kept(); len(r.Notes) != 3 || !strings.Contains(r.Notes[0], "it is of another auction") {
		t.Errorf("%q", r.Notes)
	}
}
