package provider

import (
	"context"
	"testing"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/statement"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/market/work"
)

// line is an interval with what its evidence says.
type line struct {
	told statement.Interval
	ev   work.Evidence
}

// lines is a lease's statement.
func (r *rig) lines(id market.LeaseID) (out []line) {
	r.t.Helper()
	var e work.Evidence
	read := func(raw []byte) (v statement.Interval, err error) {
		e, err = work.OpenEvidence(raw)
		v.BillableTotalMs = e.Billable
		return v, err
	}
	must(r.t, r.a.books.View(context.Background(), func(b *books.Reader) error {
		return b.ShowIntervals(ledger.Lane(id), read, func(v statement.Interval) (bool, error) {
			out = append(out, line{v, e})
			e = work.Evidence{}
			return true, nil
		})
	}))
	return out
}

// sums checks that the lines of a lease add up to its newest voucher and to what was billed, and that they are without a gap.
func (r *rig) sums(id market.LeaseID) []line {
	r.t.Helper()
	var paid money.Micro
	var billed int64
	lines := r.lines(id)
	for i, l := range lines {
		amount, err := money.Parse(l.told.Amount)
		must(r.t, err)
		paid, billed = paid+amount, billed+l.told.BillableMs
		if i > 0 && l.ev.From != lines[i-1].ev.To {
			r.t.Errorf("line %d is from %d, the one before to %d", i, l.ev.From, lines[i-1].ev.To)
		}
		if l.told.BillableMs > l.ev.To-l.ev.From+1 {
			r.t.Errorf("line %d bills %d ms of %d", i, l.told.BillableMs, l.ev.To-l.ev.From)
		}
	}
	rec := r.stored(id)
	must(r.t, r.a.books.View(context.Background(), func(b *books.Reader) error {
		lane, err := b.Lane(ledger.Lane(id))
		if err == nil && (paid != lane.Amount || uint64(billed) != rec.Billable) {
			r.t.Errorf("the lines sum up to %v for %d ms; the newest voucher says %v, the lease %d ms", paid, billed, lane.Amount, rec.Billable)
		}
		return err
	}))
	return lines
}

// A statement tells a lease from the start of its job to its end: what was billed, what was not and why, and what the job used.
func TestStatement(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.paying.Store(true)
		k := r.run()
		began := time.Now()
		time.Sleep(time.Minute)
		r.paying.Store(false)
		r.await(k.id, work.Paused, 45*time.Second)
		time.Sleep(20 * time.Second)
		r.paying.Store(true)
		r.await(k.id, work.Running, 5*time.Second)
		time.Sleep(15 * time.Second)
		r.runtime.exit(0, time.Now())
		r.over(k.id, "completed")
		lines := r.sums(k.id)
		first, last := lines[0], lines[len(lines)-1]
		if from := time.UnixMilli(first.ev.From); from.After(began) || began.Sub(from) > time.Second || first.ev.State != work.Running {
			t.Errorf("the first line begins at %v, the job at %v", from, began)
		}
		if last.ev.State != work.Ended || last.ev.Why != reason.Completed || last.told.Evidence != statement.EvidenceFits {
			t.Errorf("the last line: %+v", last)
		}
		paused, unbilled := 0, int64(0)
		for i, l := range lines {
			if l.ev.Why == reason.RenterGone {
				paused, unbilled = paused+1, unbilled+l.ev.To-l.ev.From-l.told.BillableMs
			}
			if l.told.Evidence == statement.EvidenceDiffers || l.told.Voucher > 0 && l.told.Evidence != statement.EvidenceFits {
				t.Errorf("line %d: %s", i, l.told.Evidence)
			}
			if i > 0 && i < 5 && (l.ev.GPU == nil || l.ev.GPU.Percent != 50 || l.ev.ClockMHz != 1500 || l.ev.EnergyJ < 8 || l.ev.EnergyJ > 12) {
				t.Errorf("line %d: what the card did is %+v, %d MHz, %d J", i, l.ev.GPU, l.ev.ClockMHz, l.ev.EnergyJ)
			}
		}
		if paused < 2 || unbilled < 19_000 || unbilled > 27_000 {
			t.Errorf("%d lines tell of the pause, with %d ms not billed", paused, unbilled)
		}
	})
}

// After a crash the statement goes on, and says for which time nobody saw the job run.
func TestStatementOverACrash(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.paying.Store(true)
		k := r.run()
		time.Sleep(31 * time.Second)
		r.crash()
		k = r.keeper(k.id)
		r.attend(k)
		time.Sleep(21 * time.Second)
		r.runtime.exit(0, time.Now())
		r.over(k.id, "completed")
		told := false
		for _, l := range r.sums(k.id) {
			told = told || l.ev.Why == reason.ProviderRestarted && l.told.BillableMs < l.ev.To-l.ev.From
		}
		if !told {
			t.Errorf("the restart is not in %+v", r.lines(k.id))
		}
	})
}

// The receipt for a voucher names the evidence of the claim that the voucher answers, not of a later one.
func TestReceiptNamesItsInterval(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		k := r.run()
		time.Sleep(11 * time.Second)
		var claim uint64
		var charge money.Micro
		var ms uint64
		must(t, k.do(context.Background(), func() error {
			for _, v := range k.ev.recent {
				e, err := work.OpenEvidence(v.raw)
				must(t, err)
				if claim == 0 && e.Charge > 0 {
					claim, charge, ms = v.at, e.Charge, e.Billable
				}
			}
			return nil
		}))
		time.Sleep(11 * time.Second) // another claim is under way
		v := r.voucher(k.id, charge, ms)
		must(t, k.do(context.Background(), func() error { return k.onUp(k.a.ctx, work.LaneUp{Beat: claim, Voucher: v}) }))
		lines := r.lines(k.id)
		if len(lines) < 2 || lines[0].told.Voucher != 1 || lines[0].told.Evidence != statement.EvidenceFits || lines[0].ev.Beat != claim || lines[1].told.Voucher != 0 {
			t.Fatalf("%+v", lines)
		}
	})
}

// A lease-hour of evidence is small: what it takes is told in docs/protocol.md.
func TestEvidenceIsSmall(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.paying.Store(true)
		k := r.run()
		time.Sleep(10 * time.Minute)
		bytes, n := 0, 0
		must(t, r.a.books.View(context.Background(), func(b *books.Reader) error {
			return b.Intervals(ledger.Lane(k.id), func(v books.Interval) (bool, error) {
				bytes, n = bytes+len(v.Evidence), n+1
				return true, nil
			})
		}))
		if perHour := bytes * 6; n < 59 || n > 62 || perHour > 36_000 {
			t.Errorf("%d intervals with %d bytes in ten minutes: %d bytes per leased hour", n, bytes, perHour)
		}
		t.Logf("%d bytes of evidence per leased hour", bytes*6)
	})
}
