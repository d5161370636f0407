package negotiate_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market/auction"
	"github.com/gpufair/gpufair/market/markettest"
	"github.com/gpufair/gpufair/market/negotiate"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

var opensAt = time.Unix(1_800_000_000, 0)

// after is so long after the Open.
func after(d time.Duration) time.Time { return opensAt.Add(d) }

// anAuction is an open auction of one GPU, its seller, and the Open's envelope.
func anAuction(t testing.TB) (*negotiate.Auctioneer, []byte) {
	t.Helper()
	a, err := negotiate.NewAuctioneer(person(t, 1), auction.Open{
		Offer: markettest.Hash("offer"), Lot: 1, K: 1, MinTerm: 300, MaxTerm: 86400, Unit: money.Credit, Reserve: 200_000, Mode: auction.First,
		Bond: 16_666, Commit: 20, Grace: 3, Reveal: 10, Decline: 60, Rules: auction.RulesVersion, Nonce: markettest.Hash("nonce"),
	}, opensAt)
	if err != nil {
		t.Fatal(err)
	}
	return a, a.Transcript().Open
}

// sealedBid is a bid of account n for one GPU.
func sealedBid(t testing.TB, open []byte, n uint64, rate money.Rate, seq uint64, group string) negotiate.Sealed {
	t.Helper()
	b := auction.Bid{
		Options: []auction.Option{{Quantity: 1, Rate: rate}}, Unit: money.Credit, Term: 3600, Needs: markettest.Hash("needs"),
		Use: markettest.Hash("use"), Voucher: markettest.Hash("voucher"),
	}
	if group != "" {
		b.Group = markettest.Hash(group)
	}
	s, err := negotiate.PrepareBid(person(t, n), open, b, wire.Sum("gpufair/test", []byte{byte(n), byte(seq)}), seq, 1_000_000)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func opening(t testing.TB, s negotiate.Sealed) []byte {
	t.Helper()
	raw, err := auction.Opening{Commit: s.Commit, Bid: s.Bid, Nonce: s.Nonce}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func admit(t testing.TB, a *negotiate.Auctioneer, n uint64, s negotiate.Sealed, now time.Time) []byte {
	t.Helper()
	receipt, _, _, err := a.Admit(s.Commit, person(t, n).Delegation(), now)
	if err != nil {
		t.Fatal(err)
	}
	return receipt
}

func ticks(t testing.TB, a *negotiate.Auctioneer, now time.Time) []byte {
	t.Helper()
	raw, err := a.Tick(now)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func refused(t *testing.T, what string, err error, code reason.Code) {
	t.Helper()
	if !reason.Is(err, code) {
		t.Errorf("%s: got %v, want %s", what, err, code)
	}
}

func TestAuctioneerTakesCommits(t *testing.T) {
	a, open := anAuction(t)
	delegation := person(t, 2).Delegation()
	first, second := sealedBid(t, open, 2, 300_000, 1, ""), sealedBid(t, open, 2, 310_000, 2, "")
	receipt := admit(t, a, 2, first, after(time.Second))
	_, err := a.Check(first.Commit, delegation, after(2*time.Second))
	refused(t, "again", err, reason.Duplicate)
	again, err := a.Receipt(identity.Hash(first.Commit))
	if err != nil || !bytes.Equal(again, receipt) {
		t.Error("a repeat gets another receipt", err)
	}
	_, replaced, was, err := a.Admit(second.Commit, delegation, after(3*time.Second))
	if err != nil || !was || replaced != 0 {
		t.Error(replaced, was, err)
	}
	third := sealedBid(t, open, 2, 320_000, 3, "")
	_, err = a.Check(sealedBid(t, open, 2, 320_000, 2, "").Commit, delegation, after(3*time.Second))
	refused(t, "an old sequence", err, reason.BidReplaced)
	_, err = a.Check(third.Commit, person(t, 3).Delegation(), after(3*time.Second))
	refused(t, "another's delegation", err, reason.DelegationPowers)
	_, err = a.Check([]byte("junk"), delegation, after(3*time.Second))
	refused(t, "junk", err, reason.BidVoid)
	_, err = a.Check(third.Commit, delegation, after(23*time.Second))
	refused(t, "the closing instant", err, reason.AuctionClosed)
	if _, err = a.Check(third.Commit, delegation, after(23*time.Second-1)); err != nil {
		t.Error("before the closing instant:", err)
	}
	other, err := negotiate.NewAuctioneer(person(t, 1), auction.Open{
		Offer: markettest.Hash("offer"), Lot: 1, K: 1, MinTerm: 300, MaxTerm: 86400, Unit: money.Credit, Mode: auction.First, Commit: 20, Grace: 3,
		Reveal: 10, Rules: auction.RulesVersion, Nonce: markettest.Hash("other"),
	}, opensAt)
	if err != nil {
		t.Fatal(err)
	}
	_, err = other.Check(third.Commit, delegation, after(time.Second))
	refused(t, "another auction", err, reason.AuctionUnknown)
	for seq := uint64(3); seq <= 16; seq++ {
		admit(t, a, 2, sealedBid(t, open, 2, 300_000, seq, ""), after(4*time.Second))
	}
	_, err = a.Check(sealedBid(t, open, 2, 300_000, 17, "").Commit, delegation, after(4*time.Second))
	refused(t, "a 17th commit", err, reason.AuctionClosed)
	ticks(t, a, after(23*time.Second))
	_, err = a.Check(sealedBid(t, open, 4, 300_000, 1, "").Commit, person(t, 4).Delegation(), after(time.Second))
	refused(t, "once sealed, whatever the clock", err, reason.AuctionClosed)
}

func TestAuctioneerTakesOpenings(t *testing.T) {
	a, open := anAuction(t)
	old, counts := sealedBid(t, open, 2, 300_000, 1, ""), sealedBid(t, open, 2, 310_000, 2, "")
	late, never := sealedBid(t, open, 3, 500_000, 1, ""), sealedBid(t, open, 4, 900_000, 1, "")
	for _, s := range []struct {
		n uint64
		s negotiate.Sealed
	}{{2, old}, {2, counts}, {3, late}} {
		admit(t, a, s.n, s.s, after(time.Second))
	}
	_, err := a.Opening(opening(t, counts), after(time.Second))
	refused(t, "before the seal", err, reason.BidVoid)
	if ticks(t, a, after(23*time.Second-1)) != nil || ticks(t, a, after(23*time.Second)) == nil || a.Stage() != negotiate.Revealing {
		t.Fatal("it is sealed when commits are over")
	}
	_, err = a.Opening(opening(t, old), after(24*time.Second))
	refused(t, "a replaced commit", err, reason.BidReplaced)
	_, err = a.Opening(opening(t, never), after(24*time.Second))
	refused(t, "no commit of the log", err, reason.AuctionUnknown)
	_, err = a.Opening([]byte("junk"), after(24*time.Second))
	refused(t, "junk", err, reason.BidVoid)
	receipt, err := a.Opening(opening(t, counts), after(24*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	if ticks(t, a, after(33*time.Second-1)) != nil {
		t.Error("awarded while somebody may still open")
	}
	_, err = a.Opening(opening(t, late), after(33*time.Second))
	refused(t, "at the window's last instant", err, reason.RevealOver)
	award := ticks(t, a, after(33*time.Second))
	_, err = a.Opening(opening(t, late), after(34*time.Second))
	refused(t, "after the award", err, reason.RevealOver)
	if again, err := a.Opening(opening(t, counts), after(35*time.Second)); err != nil || !bytes.Equal(again, receipt) {
		t.Error("a repeated opening gets its receipt again, whenever:", err)
	}
	r, err := auction.Verify(a.Transcript())
	if err != nil || r.Verdict() != auction.Kept || r.Bids[2].Reason.Code != reason.RevealOver || !r.Bids[1].Won || len(r.Dues.Posted) != 1 {
		t.Errorf("%s, %+v, %v", r.Verdict(), r.Bids, err)
	}
	if !bytes.Equal(a.Transcript().Awards[0], award) {
		t.Error("a late opening changed the award")
	}
}

// TestAwardAtOnce: when every bidder has opened there is nothing to wait for.
func TestAwardAtOnce(t *testing.T) {
	a, open := anAuction(t)
	s := sealedBid(t, open, 2, 300_000, 1, "")
	admit(t, a, 2, s, after(time.Second))
	ticks(t, a, after(23*time.Second))
	if _, err := a.Opening(opening(t, s), after(24*time.Second)); err != nil || ticks(t, a, after(24*time.Second)) == nil || a.Stage() != negotiate.Declining {
		t.Error(a.Stage(), err)
	}
}

// TestEveryStepCanBeResumed: a seller that is killed after every single step ends with the same bytes as one that never was; and winners
// that decline are replaced.
func TestEveryStepCanBeResumed(t *testing.T) {
	run := func(killed bool) auction.Transcript {
		a, open := anAuction(t)
		kill := func() {
			if !killed {
				return
			}
			var err error
			if a, err = negotiate.ResumeAuctioneer(person(t, 1), a.Transcript(), a.Times()); err != nil {
				t.Fatal(err)
			}
		}
		kill()
		bids := map[uint64]negotiate.Sealed{}
		for n := uint64(2); n < 6; n++ {
			bids[n] = sealedBid(t, open, n, money.Rate(n)*100_000, 1, "group")
			admit(t, a, n, bids[n], after(time.Duration(n)*time.Second))
			kill()
		}
		ticks(t, a, after(23*time.Second))
		kill()
		for _, n := range []uint64{4, 2, 5} {
			if _, err := a.Opening(opening(t, bids[n]), after(25*time.Second)); err != nil {
				t.Fatal(err)
			}
			kill()
		}
		award := ticks(t, a, after(33*time.Second))
		kill()
		decline := func(n uint64, leaf uint32) error {
			dev := person(t, n)
			return a.Decline(markettest.Seal(t, dev, auction.DomainDecline, auction.Decline{
				Header: dev.Header(auction.Version), Delegation: dev.DelegationHash(), Auction: a.ID(), Award: identity.Hash(award), Leaf: leaf,
			}), dev.Delegation(), after(34*time.Second))
		}
		refused(t, "a loser declines", decline(4, 2), reason.BidVoid)
		refused(t, "for another", decline(4, 3), reason.BidVoid)
		for range 2 { // a repeat changes nothing
			if err := decline(5, 3); err != nil {
				t.Fatal(err)
			}
			kill()
		}
		ticks(t, a, after(38*time.Second))
		kill()
		if a.Stage() != negotiate.Over || !a.Due().IsZero() || ticks(t, a, after(time.Hour)) != nil {
			t.Error("it is not over")
		}
		refused(t, "too late", decline(5, 3), reason.RevealOver)
		return a.Transcript()
	}
	whole, killed := run(false), run(true)
	x, err1 := whole.Encode()
	y, err2 := killed.Encode()
	if err1 != nil || err2 != nil || !bytes.Equal(x, y) {
		t.Fatal("a crash changed what was signed", err1, err2)
	}
	r, err := auction.Verify(whole)
	if err != nil || r.Verdict() != auction.Kept || len(r.Price) != 1 || r.Price[0].Leaf != 2 || r.Bids[3].Reason.Code != reason.WinDeclined {
		t.Errorf("%s, %q, %+v, %v", r.Verdict(), r.Missing, r.Price, err)
	}
}

// TestWhoMayDecline: the winner itself, once, and only for a bid of a group. Nobody else undoes a win or fills the file.
func TestWhoMayDecline(t *testing.T) {
	for _, group := range []string{"", "group"} {
		a, open := anAuction(t)
		s := sealedBid(t, open, 2, 300_000, 1, group)
		admit(t, a, 2, s, after(time.Second))
		ticks(t, a, after(23*time.Second))
		if _, err := a.Opening(opening(t, s), after(24*time.Second)); err != nil {
			t.Fatal(err)
		}
		award := ticks(t, a, after(24*time.Second))
		decline := func(dev *identity.Device) error {
			return a.Decline(markettest.Seal(t, dev, auction.DomainDecline, auction.Decline{
				Header: dev.Header(auction.Version), Delegation: dev.DelegationHash(), Auction: a.ID(), Award: identity.Hash(award),
			}), dev.Delegation(), after(25*time.Second))
		}
		refused(t, "who never bid", decline(person(t, 9)), reason.BidVoid)
		if group == "" {
			refused(t, "a bid of no group", decline(person(t, 2)), reason.BidVoid)
			continue
		}
		for _, dev := range []*identity.Device{person(t, 2), deviceOf(t, 2, 20), deviceOf(t, 2, 21)} {
			if err := decline(dev); err != nil {
				t.Fatal(err)
			}
		}
		if n := len(a.Transcript().Declines); n != 1 {
			t.Errorf("%d declines of one winner are kept", n)
		}
	}
}

// TestAbort: before the Seal nobody is owed anything, after it the bond; an awarded auction cannot be taken back.
func TestAbort(t *testing.T) {
	for _, sealed := range []bool{false, true} {
		a, open := anAuction(t)
		s := sealedBid(t, open, 2, 300_000, 1, "")
		admit(t, a, 2, s, after(time.Second))
		if sealed {
			ticks(t, a, after(23*time.Second))
			if _, err := a.Opening(opening(t, s), after(24*time.Second)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := a.Abort(reason.New(reason.OwnerUsing, "")); err != nil || a.Stage() != negotiate.Over {
			t.Fatal(err)
		}
		r, err := auction.Verify(a.Transcript())
		if err != nil || r.Has(auction.Aborted) != sealed || (len(r.Dues.Credits) == 1) != sealed {
			t.Errorf("sealed %v: %+v, %v", sealed, r.Dues, err)
		}
		if _, err := a.Abort(reason.New(reason.OwnerUsing, "")); err == nil {
			t.Error("aborted twice")
		}
	}
}
