package auction_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/auction"
	"github.com/gpufair/gpufair/market/markettest"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// reasons is what became of each leaf, "" for a winner.
func reasons(r auction.Report) (out []reason.Code) {
	for _, s := range r.Bids {
		out = append(out, s.Reason.Code)
	}
	return out
}

func TestVerifyFirst(t *testing.T) {
	h := newHall(t, auction.First, 4)
	h.bids(1, opt(2, 500_000))
	h.bids(2, opt(1, 300_000))
	h.bids(3, opt(2, 450_000), opt(4, 460_000))
	h.bids(4, opt(1, 100_000)) // below the reserve
	h.bids(5, opt(1, 250_000)) // stays sealed
	h.opensAll(4)
	h.awards(h.honest())
	r := h.kept()
	want := []auction.Win{{Leaf: 0, Quantity: 2, Pay: 1_000_000}, {Leaf: 2, Quantity: 2, Pay: 900_000}}
	if !slices.Equal(r.Outcome.Wins, want) || r.Outcome.Revenue != 1_900_000 {
		t.Errorf("%+v", r.Outcome)
	}
	if got, want := reasons(r), []reason.Code{"", reason.Outbid, "", reason.BidBelowReserve, reason.BidUnopened}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if (r.Counts != auction.Counts{Leaves: 5, Opened: 4, Unopened: 1}) {
		t.Errorf("%+v", r.Counts)
	}
	// The bond is the lot at the reserve for five minutes: 4 x 0.2 / 12. Winners share it by what they pay.
	if want := []auction.Due{{0, 35_087}, {2, 31_578}}; h.open.Bond != 66_666 || !slices.Equal(r.Dues.Discounts, want) {
		t.Errorf("bond %d, %+v", h.open.Bond, r.Dues)
	}
	if want := []auction.Due{{4, 20_833}}; !slices.Equal(r.Dues.Posted, want) {
		t.Errorf("%+v", r.Dues.Posted)
	}
	text := r.Text(r.Bids[1].Account)
	for _, want := range []string{
		"4 GPUs for at least 5 minutes, reserve 0.2 CREDIT", "5 commits: 4 opened, 1 stayed sealed", "(leaf 0): 2 GPUs for 1 CREDIT an hour in all: its own bid",
		"Lost: you (leaf 1): others bid more: it bid 0.3, the lowest that won is 0.45", "deducts 0.035087 CREDIT", "Verdict: the rules were kept.",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

func TestVerifyKPlus1AndVCG(t *testing.T) {
	h := newHall(t, auction.KPlus1, 2)
	for i, rate := range []money.Rate{500_000, 300_000, 400_000, 300_000} {
		h.bids(i+1, opt(1, rate))
	}
	h.opensAll()
	h.awards(h.honest())
	r := h.kept()
	if len(r.Price) != 2 || r.Outcome.Losing != 300_000 || r.Price[0].Pay != 300_000 || r.Price[1].Pay != 300_000 {
		t.Errorf("%+v", r.Price)
	}
	if text := r.Text(identity.AccountID{}); !strings.Contains(text, "the highest bid that lost, 0.3; its own was 0.5") {
		t.Error(text)
	}

	h = newHall(t, auction.VCG, 3)
	h.bids(1, opt(2, 500_000))
	h.bids(2, opt(2, 400_000)) // would have had 2 GPUs without the first
	h.bids(3, opt(1, 250_000))
	h.opensAll()
	h.awards(h.honest())
	r = h.kept()
	want := []auction.Win{{Leaf: 0, Quantity: 2, Pay: 800_000}, {Leaf: 2, Quantity: 1, Pay: 200_000}}
	if !slices.Equal(r.Outcome.Wins, want) {
		t.Errorf("%+v", r.Outcome)
	}
	text := r.Text(identity.AccountID{})
	for _, want := range []string{"the reserve and 0.4/h that the others would have bid more without it", "the reserve, since nobody lost a GPU to it"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

// TestTies: equal bids go by the Seal's hash, and the loser is told so.
func TestTies(t *testing.T) {
	h := newHall(t, auction.First, 1)
	h.bids(1, opt(1, 300_000))
	h.bids(2, opt(1, 300_000))
	h.opensAll()
	h.awards(h.honest())
	r := h.kept()
	_, root := h.log.Head()
	a, b := auction.Rank(root, identity.Hash(h.t.Leaves[0])), auction.Rank(root, identity.Hash(h.t.Leaves[1]))
	winner := uint32(0)
	if string(b[:]) < string(a[:]) {
		winner = 1
	}
	if r.Outcome.Wins[0].Leaf != winner || r.Bids[1-winner].Reason.Code != reason.TieLost {
		t.Errorf("%+v, %+v", r.Outcome, r.Bids)
	}
}

// TestReplacedAndVoid: the newest commit of an account counts, whatever the order in which the seller wrote them down.
func TestReplacedAndVoid(t *testing.T) {
	h := newHall(t, auction.First, 2)
	a, b := party(t, 1, identity.AllPowers), party(t, 2, identity.AllPowers)
	h.commits(a, aBid(opt(1, 300_000)), 2)
	h.commits(a, aBid(opt(1, 900_000)), 1)                                // older, written later
	h.commits(a, aBid(opt(1, 910_000)), 2)                                // of the same sequence: the first in the log counts
	dear := aBid(opt(1, 800_000))                                         //
	raw, _ := dear.Encode()                                               //
	h.commitsTo(b, raw, 10, 1)                                            // not backed
	h.commitsTo(party(t, 3, identity.AllPowers), []byte("no bid"), 10, 1) // not a bid
	h.commits(party(t, 4, identity.AllPowers), aBid(opt(3, 400_000)), 1)  // more GPUs than there are
	other := aBid(opt(1, 400_000))
	other.Unit = "EUR"
	h.commits(party(t, 5, identity.AllPowers), other, 1)
	short := aBid(opt(1, 400_000))
	short.Term = 10
	h.commits(party(t, 6, identity.AllPowers), short, 1)
	h.append([]byte("junk that the seller let in"), hidden{})
	h.commits(party(t, 7, identity.PowerPay), aBid(opt(1, 400_000)), 1) // may not trade
	h.opensAll(9)
	h.awards(h.honest())
	r := h.kept()
	want := []reason.Code{
		"", reason.BidReplaced, reason.BidReplaced, reason.BidUnbacked, reason.BidVoid, reason.BidVoid, reason.UnknownUnit, reason.TermOutOfRange,
		reason.BidVoid, reason.BidVoid,
	}
	if got := reasons(r); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if (r.Counts != auction.Counts{Leaves: 10, Replaced: 2, Opened: 6, Void: 5, Unopened: 2}) {
		t.Errorf("%+v", r.Counts)
	}
	if want := []auction.Due{{0, 2 * h.open.Bond}}; !slices.Equal(r.Dues.Discounts, want) || len(r.Dues.Posted) != 0 {
		t.Errorf("the seller answers for junk: %+v", r.Dues)
	}
}

// TestDeclined: a winner with another win in its group withdraws for the fee, and the rest clear once more.
func TestDeclined(t *testing.T) {
	h := newHall(t, auction.First, 1)
	dev := party(t, 1, identity.AllPowers)
	b := aBid(opt(1, 600_000))
	b.Group = markettest.Hash("group")
	h.commits(dev, b, 1)
	h.bids(2, opt(1, 500_000))
	h.opensAll()
	first := h.awards(h.honest())
	decline := markettest.Seal(t, dev, auction.DomainDecline, auction.Decline{
		Header: dev.Header(auction.Version), Delegation: dev.DelegationHash(), Auction: h.id, Award: identity.Hash(first), Leaf: 0,
	})
	second := h.honest()
	second.Before, second.Declined = identity.Hash(first), []uint32{0}
	second.Wins = []auction.Win{{Leaf: 1, Quantity: 1, Pay: 500_000}}
	h.awards(second)
	if r := h.verify(); r.Verdict() != auction.Incomplete || !slices.Contains(r.Missing, "the decline of leaf 0") {
		t.Errorf("without the decline: %s, %q", r.Verdict(), r.Missing)
	}
	h.t.Declines = [][]byte{decline}
	r := h.kept()
	if !slices.Equal(r.Outcome.Wins, second.Wins) || r.Bids[0].Reason.Code != reason.WinDeclined {
		t.Errorf("%+v, %+v", r.Outcome, r.Bids)
	}
	if want := []auction.Due{{0, 10_000}}; !slices.Equal(r.Dues.Fees, want) { // a minute at 0.6 an hour
		t.Errorf("%+v", r.Dues)
	}
	// The seller may not let winners go on its own, nor one that is of no group, nor clear the rest wrongly.
	wrong := second
	wrong.Wins = []auction.Win{{Leaf: 1, Quantity: 1, Pay: 400_000}}
	h.t.Awards[1] = markettest.Seal(t, h.seller, auction.DomainAward, wrong)
	h.finds(auction.WrongAward)
	wrong = second
	wrong.Declined = []uint32{1}
	h.t.Awards[1] = markettest.Seal(t, h.seller, auction.DomainAward, wrong)
	h.finds(auction.WrongAward)
}

// TestLateOpening never changes the result; the hold comes back only if the bid would have lost.
func TestLateOpening(t *testing.T) {
	h := newHall(t, auction.First, 1)
	h.bids(1, opt(1, 500_000))
	h.bids(2, opt(1, 600_000))
	h.bids(3, opt(1, 400_000))
	h.opensAll(1, 2)
	h.awards(h.honest())
	h.opens(1, 2)
	r := h.kept()
	if r.Outcome.Wins[0].Leaf != 0 || r.Bids[1].Reason.Code != reason.RevealOver || r.Bids[2].Reason.Code != reason.RevealOver {
		t.Errorf("%+v, %+v", r.Outcome, r.Bids)
	}
	if want := []auction.Due{{1, 50_000}}; !slices.Equal(r.Dues.Posted, want) {
		t.Errorf("%+v", r.Dues.Posted)
	}
}

// TestIncomplete: what is not in the file is never held against the seller, and no verdict is given without it.
func TestIncomplete(t *testing.T) {
	full := func() *hall {
		h := newHall(t, auction.First, 2)
		h.bids(1, opt(1, 300_000))
		h.bids(2, opt(1, 400_000))
		h.bids(3, opt(1, 350_000))
		h.opensAll()
		h.awards(h.honest())
		return h
	}
	full().kept()
	for name, spoil := range map[string]func(*auction.Transcript){
		"no seal":                func(t *auction.Transcript) { t.Seals = nil },
		"no award":               func(t *auction.Transcript) { t.Awards = nil },
		"no opening":             func(t *auction.Transcript) { t.Shown = t.Shown[:2] },
		"no openings":            func(t *auction.Transcript) { t.Shown = nil },
		"no leaf":                func(t *auction.Transcript) { t.Leaves, t.Shown = t.Leaves[:2], t.Shown[:2] },
		"leaves in other order":  func(t *auction.Transcript) { t.Leaves[0], t.Leaves[1] = t.Leaves[1], t.Leaves[0] },
		"no delegation of one":   func(t *auction.Transcript) { t.Delegations = t.Delegations[:3] },
		"none of the seller":     func(t *auction.Transcript) { t.Delegations = t.Delegations[1:] },
		"another's opening":      func(t *auction.Transcript) { t.Shown[0].Bid, t.Shown[0].Nonce = t.Shown[1].Bid, t.Shown[1].Nonce },
		"a changed opening":      func(t *auction.Transcript) { t.Shown[0].Nonce[0]++ },
		"nothing but the open":   func(t *auction.Transcript) { *t = auction.Transcript{Open: t.Open, Delegations: t.Delegations} },
		"an open and no account": func(t *auction.Transcript) { *t = auction.Transcript{Open: t.Open} },
	} {
		h := full()
		spoil(&h.t)
		if r := h.verify(); r.Verdict() != auction.Incomplete || !strings.Contains(r.Text(identity.AccountID{}), "Missing: ") {
			t.Errorf("%s: %s, %+v", name, r.Verdict(), r.Faults)
		}
	}
}

// TestMissingDelegationFramesNobody: without the delegation that shows a newer commit to be none, the older one must not seem replaced.
func TestMissingDelegationFramesNobody(t *testing.T) {
	h := newHall(t, auction.First, 1)
	account, weak := party(t, 1, identity.AllPowers), party(t, 1, identity.PowerPay) // one device with two delegations
	h.commits(account, aBid(opt(1, 300_000)), 1)
	h.commits(weak, aBid(opt(1, 400_000)), 2)
	h.opensAll(1)
	h.awards(h.honest())
	h.kept()
	h.t.Delegations = slices.DeleteFunc(h.t.Delegations, func(d []byte) bool { return identity.Hash(d) == weak.DelegationHash() })
	if r := h.verify(); r.Verdict() != auction.Incomplete {
		t.Errorf("%s: %+v", r.Verdict(), r.Faults)
	}
}

// TestStrangersRecordsAreLeftOut: nobody can speak for the seller, and of its own devices only those that may provide.
func TestStrangersRecordsAreLeftOut(t *testing.T) {
	h := newHall(t, auction.First, 1)
	h.bids(1, opt(1, 300_000))
	h.opensAll()
	h.awards(h.honest())
	for _, liar := range []*identity.Device{party(t, 66, identity.AllPowers), party(t, sellerNumber, identity.PowerTrade|identity.PowerPay)} {
		h.knows(liar)
		seal := auction.Seal{Header: liar.Header(auction.Version), Delegation: liar.DelegationHash(), Auction: h.id, Root: markettest.Hash("root")}
		h.t.Seals = append(h.t.Seals, markettest.Seal(t, liar, auction.DomainSeal, seal))
		award := h.honest()
		award.Header, award.Delegation, award.Wins = liar.Header(auction.Version), liar.DelegationHash(), nil
		h.t.Awards = append(h.t.Awards, markettest.Seal(t, liar, auction.DomainAward, award))
		h.t.Aborts = append(h.t.Aborts, markettest.Seal(t, liar, auction.DomainAbort, auction.Abort{
			Header: liar.Header(auction.Version), Delegation: liar.DelegationHash(), Auction: h.id, Reason: reason.New(reason.OwnerPaused, ""),
		}))
	}
	if r := h.kept(); len(r.Notes) != 6 {
		t.Errorf("%q", r.Notes)
	}
}

func TestWitnesses(t *testing.T) {
	h := newHall(t, auction.First, 1)
	h.bids(1, opt(1, 300_000))
	h.bids(2, opt(1, 400_000))
	h.opensAll(1)
	h.awards(h.honest())
	h.opens(1)
	saw := func(n int, e auction.Event, subject wire.Hash, after uint32) {
		dev := party(t, n, identity.PowerTrade)
		h.knows(dev)
		h.t.Witnesses = append(h.t.Witnesses, markettest.Seal(t, dev, auction.DomainWitness, auction.Witness{
			Header: dev.Header(auction.Version), Delegation: dev.DelegationHash(), Auction: h.id, Event: e, Subject: subject, After: after,
		}))
	}
	seal, leaf := identity.Hash(h.t.Seals[0]), identity.Hash(h.t.Leaves[1])
	saw(11, auction.SawSeal, seal, 21_000) // not early: two seconds are forgiven
	saw(11, auction.SawOpening, leaf, 10_000)
	saw(11, auction.SawCommit, wire.Hash{9}, 20_000)
	saw(11, auction.SawCommit, leaf, 19_999)
	if r := h.kept(); len(r.Notes) != 0 {
		t.Errorf("%q", r.Notes)
	}
	for n := 11; n < 13; n++ {
		saw(n, auction.SawSeal, seal, 20_999)
		saw(n, auction.SawOpening, leaf, 9_999)
		saw(n, auction.SawCommit, wire.Hash{9}, 19_999)
	}
	saw(12, auction.SawSeal, seal, 1)
	r := h.kept()
	for _, want := range []string{
		"2 peers saw the Seal more than 2 s before its time", "2 peers saw a commit in time that is not under the Seal",
		"2 peers saw an opening in time that the Award does not count",
	} {
		if !slices.ContainsFunc(r.Notes, func(n string) bool { return strings.HasPrefix(n, want) }) {
			t.Errorf("no %q in %q", want, r.Notes)
		}
	}
}

// TestLeases: the winner's lease carries the opening as its accept.
func TestLeases(t *testing.T) {
	h := newHall(t, auction.First, 2)
	h.bids(1, opt(2, 300_001))
	h.opensAll()
	h.awards(h.honest())
	r := h.kept()
	lot := market.Lot{Slots: []market.Slot{{Device: markettest.Hash("a")}, {Device: markettest.Hash("b")}}}
	slots := []market.SlotGeneration{{Device: markettest.Hash("a"), Generation: 7}, {Device: markettest.Hash("b"), Generation: 1}}
	opening, w := h.t.Opening(h.t.Shown[0]), r.Outcome.Wins[0]
	l, err := auction.Lease(h.seller, h.open, opening, w, slots, 1_000_000)
	if err != nil {
		t.Fatal(err)
	}
	raw := markettest.Seal(t, h.seller, market.DomainLease, l)
	if l, err = market.OpenLease(raw); err != nil {
		t.Fatal(err)
	}
	if err := auction.CheckLease(h.open, lot, opening, w, l); err != nil || l.ID != r.Price[0].Lease || l.Hold != 50_000 {
		t.Fatal(err, l.ID, r.Price[0].Lease, l.Hold)
	}
	for name, spoil := range map[string]func(*market.Lease){
		"id": func(l *market.Lease) { l.ID[0]++ }, "accept": func(l *market.Lease) { l.Accept = []byte("x") },
		"account": func(l *market.Lease) { l.Account[0]++ }, "device": func(l *market.Lease) { l.Device[0]++ },
		"fewer devices": func(l *market.Lease) { l.Slots = l.Slots[:1] }, "hold": func(l *market.Lease) { l.Hold++ },
		"a device of another lot": func(l *market.Lease) {
			l.Slots = []market.SlotGeneration{slots[0], {Device: markettest.Hash("c"), Generation: 1}}
		},
	} {
		bad := l
		spoil(&bad)
		if err := auction.CheckLease(h.open, lot, opening, w, bad); !reason.Is(err, reason.LeaseInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	h.t.Leases = [][]byte{raw}
	if r := h.kept(); len(r.Notes) != 0 {
		t.Errorf("%q", r.Notes)
	}
	l.Hold++
	h.t.Leases = [][]byte{markettest.Seal(t, h.seller, market.DomainLease, l)}
	if r := h.kept(); len(r.Notes) != 1 || !strings.Contains(r.Notes[0], "is not what it won") {
		t.Errorf("%q", r.Notes)
	}
}
