package auction_test

import (
	"math/rand/v2"
	"testing"

	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market/auction"
	"github.com/gpufair/gpufair/p2p/identity"
)

func moneyOf(n uint64) money.Micro { return money.Micro(n) }

// crowd is an auction of n bidders on 16 GPUs, opened and awarded.
func crowd(tb testing.TB, mode auction.Mode, n int) *hall {
	tb.Helper()
	h := newHall(tb, mode, 16)
	rng := rand.New(rand.NewPCG(11, 12))
	delegations := [][]byte{h.seller.Delegation()}
	for i := range n {
		dev := party(tb, i, identity.AllPowers)
		q := uint32(1)
		if mode != auction.KPlus1 {
			q += rng.Uint32N(16)
		}
		h.t.Delegations = nil // knows looks at each: with 10,000 that is slow
		h.commits(dev, aBid(opt(q, money.Rate(rng.Uint64N(900_000)))), 1)
		delegations = append(delegations, dev.Delegation())
	}
	h.t.Delegations = delegations
	h.opensAll()
	h.awards(h.honest())
	return h
}

// BenchmarkVerify10k verifies a transcript of 10,000 bids: 20,000 signatures, the log, and clearing.
func BenchmarkVerify10k(b *testing.B) {
	h := crowd(b, auction.VCG, 10_000)
	raw, err := h.t.Encode()
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		t, err := auction.DecodeTranscript(raw)
		if err != nil {
			b.Fatal(err)
		}
		if r, err := auction.Verify(t); err != nil || r.Verdict() != auction.Kept {
			b.Fatal(r.Verdict(), err)
		}
	}
	b.ReportMetric(float64(len(raw))/(1<<20), "MiB")
}

// BenchmarkCheckFraud10k checks the proof of a wrong award with 10,000 bids, as a third peer does.
func BenchmarkCheckFraud10k(b *testing.B) {
	h := crowd(b, auction.VCG, 10_000)
	a := h.honest()
	a.Wins[0].Pay++
	h.t.Awards = nil
	h.awards(a)
	raw, err := h.finds(auction.WrongAward).Proof.Encode()
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := auction.CheckFraud(raw); err != nil {
			b.Fatal(err)
		}
	}
}
