package renter

import (
	"testing"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/statement"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p/wire"
)

// evident makes the owner tell what its job used, in each beat as change says.
func (s *stranger) evident(change func(*work.Beat, *work.Evidence)) {
	s.beat = func(b *work.Beat) *work.Beat {
		e := work.Evidence{Beat: b.Seq, From: 1, To: 2, Billable: b.Billable, Charge: b.Charge, State: b.State, CPUMillis: 7}
		if b.State == work.Ended {
			e.Why = reason.Completed
		}
		if change != nil {
			change(b, &e)
		}
		raw, err := wire.Marshal(e)
		must(s.t, err)
		if b.Claim || change != nil {
			b.Evidence = raw
		}
		s.claimed = voucher.EvidenceHash(raw)
		return b
	}
}

// lines is what the renter's statement says of the evidence, line by line.
func (r *rig) lines(id market.LeaseID) (out []statement.Interval) {
	r.t.Helper()
	read := func(raw []byte) (v statement.Interval, err error) {
		e, err := work.OpenEvidence(raw)
		v.CPUMs = e.CPUMillis
		return v, err
	}
	must(r.t, r.books.View(r.t.Context(), func(b *books.Reader) error {
		return b.ShowIntervals(ledger.Lane(id), read, func(v statement.Interval) (bool, error) { out = append(out, v); return true, nil })
	}))
	return out
}

// What a job used is kept with the voucher that paid it, and the receipt for that voucher names it.
func TestEvidenceIsKept(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.owner.evident(nil)
		id := r.order(plenty)
		r.runs(id)
		time.Sleep(62 * time.Second)
		r.owner.ends()
		r.ends(id, 30*time.Second)
		lines := r.lines(id)
		if len(lines) < 6 {
			t.Fatalf("%d lines", len(lines))
		}
		for i, l := range lines[:6] {
			if l.Evidence != statement.EvidenceFits || l.CPUMs != 7 || l.Voucher != uint64(i+1) {
				t.Errorf("line %d: %+v", i, l)
			}
		}
	})
}

// A provider that signs for other evidence than it sent is told of, and shown; what is paid stays paid.
func TestEvidenceDiffers(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.owner.evident(nil)
		beat := r.owner.beat
		r.owner.beat = func(b *work.Beat) *work.Beat {
			b = beat(b)
			r.owner.claimed[0] ^= 1
			return b
		}
		id := r.order(plenty)
		r.runs(id)
		j := r.agent.find(id)
		r.until("a finding", 30*time.Second, func() bool { j.mu.Lock(); defer j.mu.Unlock(); return j.finding != nil })
		if j.finding.Code != reason.EvidenceDiffers {
			t.Errorf("%v", j.finding)
		}
		r.owner.ends()
		rec := r.ends(id, 30*time.Second)
		if lines := r.lines(id); lines[0].Evidence != statement.EvidenceDiffers || !lines[0].Receipt || rec.Reason.Code != reason.Completed {
			t.Errorf("%+v", lines[0])
		}
	})
}

// Evidence that can't be true breaks the lane like any other lie, and a provider can't fill this side's disk with it.
func TestEvidenceLies(t *testing.T) {
	for name, lie := range map[string]func(*work.Beat, *work.Evidence){
		"of another beat":  func(_ *work.Beat, e *work.Evidence) { e.Beat++ },
		"of more money":    func(_ *work.Beat, e *work.Evidence) { e.Charge++ },
		"of more time":     func(_ *work.Beat, e *work.Evidence) { e.Billable++ },
		"of another state": func(_ *work.Beat, e *work.Evidence) { e.State = work.Paused },
		"impossible":       func(_ *work.Beat, e *work.Evidence) { e.GPU = &work.GPUUse{Percent: 101} },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				r.owner.evident(lie)
				r.owner.t = t
				id := r.order(plenty)
				if rec := r.ends(id, time.Minute); rec.Reason.Code != reason.ProviderGone || rec.Paid > 0 {
					t.Errorf("ended with %v, %v paid", rec.Reason, rec.Paid)
				}
			})
		})
	}
	bubble(t, func(t *testing.T, r *rig) { // nor its memory, by never claiming
		r.owner.evident(func(b *work.Beat, e *work.Evidence) { b.Claim, e.Why = false, reason.Code(make([]byte, b.Seq%30)) })
		id := r.order(plenty)
		r.runs(id)
		time.Sleep(20 * time.Minute)
		r.owner.ends()
		r.ends(id, time.Minute)
		if got := len(r.lines(id)); got > evidencedBurst+1 { // and the last voucher
			t.Errorf("%d intervals waited", got)
		}
	})
	bubble(t, func(t *testing.T, r *rig) {
		n := 0
		r.owner.evident(func(_ *work.Beat, e *work.Evidence) { // another reason in each beat
			n++
			e.Why = reason.Code(make([]byte, n%30))
		})
		id := r.order(plenty)
		r.runs(id)
		time.Sleep(20 * time.Minute)
		most := evidencedBurst + int(20*time.Minute/evidencedEach) // and one for each of 120 vouchers
		if got := len(r.lines(id)); got > most+120 || got < 200 {
			t.Errorf("%d intervals are kept in 20 minutes", got)
		}
		r.owner.ends()
		r.ends(id, time.Minute)
	})
}
