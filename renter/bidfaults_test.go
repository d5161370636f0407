package renter

import (
	"bytes"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/meter"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/auction"
	"github.com/gpufair/gpufair/market/negotiate"
	"github.com/gpufair/gpufair/market/reason"
)

// TestBidDropped: a seller whose own signatures show that it had the opening, or that nobody could open, gets no hold; one that never had
// the opening does.
func TestBidDropped(t *testing.T) {
	for name, c := range map[string]struct {
		kind  auction.Kind // that the file proves
		tell  func(t *testing.T, h *hammer, f *auction.Transcript)
		posts bool
	}{
		"dropped": {kind: auction.IgnoredOpening, tell: func(*testing.T, *hammer, *auction.Transcript) {}},
		"sealed twice": {kind: auction.TwoSeals, tell: func(t *testing.T, h *hammer, f *auction.Transcript) {
			s, err := auction.ReadSeal(f.Seals[0])
			must(t, err)
			s.Size++
			second, err := h.dev.Seal(auction.DomainSeal, s)
			must(t, err)
			f.Seals, f.Receipts = append(f.Seals, second), nil
		}},
		"never had it": {posts: true, tell: func(_ *testing.T, _ *hammer, f *auction.Transcript) { f.Receipts = nil }},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				h, end := r.sells()
				defer end()
				id, err := r.bids(testBid)
				must(t, err)
				r.runs(id)
				j := r.agent.find(id)
				got, at := h.lies(t, j.record(), func(f *auction.Transcript) { c.tell(t, h, f) })
				if at == nil || at.Reason.Code != reason.BidUnopened || dueTo(got.Report.Dues.Posted, at.Leaf) == 0 || c.kind != 0 && !got.Report.Has(c.kind) {
					t.Fatalf("%+v, faults %+v, dues %+v", at, got.Report.Faults, got.Report.Dues)
				}
				must(t, j.keepResult(t.Context(), got, at))
				if posted := j.record().Bid.Posted; posted > 0 != c.posts {
					t.Errorf("%v of the hold is lost", posted)
				}
				r.owner.ends()
				r.ends(id, time.Minute)
			})
		})
	}
}

// TestBidOnOtherTerms: an auction that asks for a larger hold than the offer, or leaves no time to show a bid, gets none.
func TestBidOnOtherTerms(t *testing.T) {
	for name, c := range map[string]struct {
		other func(*auction.Open)
		want  func(error) bool
	}{
		"longer least term":   {func(o *auction.Open) { o.MinTerm = 3600 }, func(err error) bool { return reason.Is(err, reason.TermsChanged) }},
		"shorter most term":   {func(o *auction.Open) { o.MinTerm, o.MaxTerm, o.Decline = 1, 1, 1 }, func(err error) bool { return reason.Is(err, reason.TermsChanged) }},
		"no time to show it":  {func(o *auction.Open) { o.Reveal = 4 }, func(err error) bool { return errors.Is(err, ErrRequest) }},
		"a day to show it":    {func(o *auction.Open) { o.Reveal = 24 * 3600 }, func(err error) bool { return errors.Is(err, ErrRequest) }},
		"a day to be sealed":  {func(o *auction.Open) { o.Commit = 24 * 3600 }, func(err error) bool { return errors.Is(err, ErrRequest) }},
		"an owner's shortest": {func(o *auction.Open) { o.Reveal = 5 }, func(err error) bool { return err == nil }},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				h, end := r.sells()
				defer end()
				h.other = c.other
				id, err := r.bids(testBid)
				if !c.want(err) {
					t.Error(err)
				}
				if err == nil {
					r.runsOut(id)
				}
				r.nothingHeld()
			})
		})
	}
}

// TestDiscountAway: what comes off a winner's rent comes off what ran under an allowance, too.
func TestDiscountAway(t *testing.T) {
	won := record{Bid: &bid{Discount: 5_000}, Lease: []byte{1}, Allowed: plenty, Budget: plenty}
	m := meter.New(1 << 63)
	must(t, m.Start(testRate, 1, 0))
	must(t, m.Sample(90_000))
	must(t, m.Pause(90_000))
	if most, err := (&job{meter: m}).most(won); err != nil || most != 85_000 {
		t.Errorf("given up at %v: %v", most, err)
	}
	bubble(t, func(t *testing.T, r *rig) {
		id := r.order(plenty)
		r.runs(id)
		undo := errors.New("undo")
		err := r.books.Update(t.Context(), func(tx *books.Tx) error {
			lane, err := tx.Lane(ledger.Lane(id))
			must(t, err)
			lane.Final = new(money.Micro(plenty))
			must(t, payAllowed(tx, &won, lane, market.End{Billable: 90_000, Charge: 90_000}))
			return undo
		})
		if !errors.Is(err, undo) || won.Paid != 85_000 {
			t.Errorf("%v paid: %v", won.Paid, err)
		}
		r.owner.ends()
		r.ends(id, time.Minute)
	})
}

// lies is the file of an auction with an Award that counts no opening, as tell changes it besides, and what it says of a job's bid.
func (h *hammer) lies(t *testing.T, rec record, tell func(*auction.Transcript)) (negotiate.Followed, *auction.Standing) {
	t.Helper()
	raw, err := os.ReadFile(rec.Bid.File)
	must(t, err)
	f, err := auction.DecodeTranscript(raw)
	must(t, err)
	w, err := auction.ReadAward(f.Awards[0])
	must(t, err)
	w.Opened, w.Wins = bytes.Repeat([]byte{0}, len(w.Opened)), nil
	award, err := h.dev.Seal(auction.DomainAward, w)
	must(t, err)
	f.Shown, f.Awards = nil, [][]byte{award}
	tell(&f)
	var got negotiate.Followed
	got.Report, err = auction.Verify(f)
	must(t, err)
	got.File, err = f.Encode()
	must(t, err)
	at, err := standing(got, rec.Bid.Commit)
	must(t, err)
	return got, at
}
