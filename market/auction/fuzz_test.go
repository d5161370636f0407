package auction_test

import (
	"testing"

	"github.com/gpufair/gpufair/market/auction"
	"github.com/gpufair/gpufair/p2p/wire"
)

// FuzzDecode: no bytes of a stranger panic a decoder, what opens is valid, and what was read writes the same bytes.
func FuzzDecode(f *testing.F) {
	h := threeBids(f)
	cheats[auction.TwoSeals][0](h)
	h.t.Receipts = [][]byte{h.receipt(auction.OfCommit, 0)}
	fraud, err := h.finds(auction.TwoSeals).Proof.Encode()
	if err != nil {
		f.Fatal(err)
	}
	file, err := h.t.Encode()
	if err != nil {
		f.Fatal(err)
	}
	opening, err := h.t.Opening(h.t.Shown[0]).Encode()
	if err != nil {
		f.Fatal(err)
	}
	for _, b := range [][]byte{h.t.Open, h.t.Leaves[0], h.t.Seals[0], h.t.Receipts[0], h.t.Shown[0].Bid, opening, file, fraud} {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if o, err := auction.ReadOpen(b); err == nil && o.Validate() != nil {
			t.Fatal("an invalid open was read")
		}
		if a, err := auction.ReadAward(b); err == nil && a.Validate() != nil {
			t.Fatal("an invalid award was read")
		}
		if bid, err := auction.DecodeBid(b); err == nil {
			if _, err := bid.Encode(); err != nil {
				t.Fatal(err)
			}
		}
		if o, _, err := auction.DecodeOpening(b); err == nil {
			if _, err := o.Encode(); err != nil {
				t.Fatal(err)
			}
		}
		if tr, err := auction.DecodeTranscript(b); err == nil {
			if again, err := tr.Encode(); err != nil || string(again) != string(b) {
				t.Fatal("a transcript has two files", err)
			}
			_, _ = auction.Verify(tr)
		}
		if fr, err := auction.DecodeFraud(b); err == nil {
			if again, err := fr.Encode(); err != nil || string(again) != string(b) {
				t.Fatal("a fraud has two spellings", err)
			}
			_, _ = auction.CheckFraud(b)
		}
		_, _ = auction.ReadCommit(b)
		_, _ = auction.ReadReceipt(b)
		_, _ = auction.ReadSeal(b)
		_, _ = auction.ReadDecline(b)
		_, _ = auction.ReadAbort(b)
		_, _ = auction.ReadWitness(b)
		_, _ = auction.ReadSpotBid(b)
		_, _, _ = auction.ReadOutbid(b)
	})
}

// FuzzBody: bodies and bids that a stranger signs with a key of its own reach the verifier; it never panics, and never blames a seller that
// did nothing.
func FuzzBody(f *testing.F) {
	h := threeBids(f)
	for _, s := range h.hidden {
		f.Add(s.bid, uint64(300_000), uint64(1))
	}
	f.Fuzz(func(t *testing.T, bid []byte, hold, seq uint64) {
		h := newHall(t, auction.First, 1)
		dev := party(t, 1, 7)
		if len(bid) > auction.MaxBid {
			bid = bid[:auction.MaxBid]
		}
		h.commitsTo(dev, bid, moneyOf(hold), seq)
		h.bids(2, opt(1, 250_000))
		h.opensAll()
		r := h.verify()
		if r.Verdict() == auction.Broken {
			t.Fatal(r.Faults[0].Words)
		}
		if _, err := wire.Marshal(h.t); err != nil {
			t.Fatal(err)
		}
		_ = r.Text(dev.Account())
	})
}
