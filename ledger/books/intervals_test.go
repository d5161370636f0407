package books

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/statement"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/p2p/wire"
)

// readInterval is evidence that is a number of billed milliseconds.
func readInterval(raw []byte) (out statement.Interval, err error) {
	_, err = fmt.Sscanf(string(raw), "%d", &out.BillableTotalMs)
	return out, err
}

func (p *party) lines(lane ledger.Lane) (out []statement.Interval) {
	p.tb.Helper()
	p.view(func(r *Reader) error {
		return r.ShowIntervals(lane, readInterval, func(v statement.Interval) (bool, error) { out = append(out, v); return true, nil })
	})
	return out
}

// payFor pays a lane up to an amount; the receipt names evidence, and the renter's and the provider's interval at has kept.
func (p pairOf) payFor(lane ledger.Lane, amount money.Micro, at uint64, evidence, kept string) {
	p.provider.tb.Helper()
	raw := p.promise(lane, amount)
	v, err := voucher.Open(raw)
	must(p.provider.tb, err)
	var a Accepted
	p.provider.update(func(t *Tx) (err error) {
		if a, err = t.AcceptVoucher(raw, voucher.EvidenceHash([]byte(evidence))); err == nil && kept != "" {
			err = t.KeepInterval(lane, Interval{At: at, Evidence: []byte(kept), Voucher: v.Seq})
		}
		return err
	})
	p.renter.update(func(t *Tx) error { _, err := t.RecordReceipt(a.Receipt); return err })
}

// TestIntervals: a statement has every voucher once and sums up to the newest, whatever came without evidence, twice or late.
func TestIntervals(t *testing.T) {
	p := newPair(t)
	lane, other := p.sell(1, 0), p.sell(2, 0)
	p.pay(other, 55)
	keep := func(at uint64, raw string) {
		p.provider.update(func(t *Tx) error { return t.KeepInterval(lane, Interval{At: at, Evidence: []byte(raw)}) })
	}
	p.payFor(lane, 100, 5, "100", "100")
	keep(10, "150")                        // nobody paid it
	p.payFor(lane, 170, 15, "170", "170")  //
	p.pay(lane, 200)                       // came with a settlement: no claim, no evidence
	p.payFor(lane, 230, 25, "lies", "230") //
	keep(25, "230")                        // again: it keeps its voucher
	keep(30, "220")                        // a credit
	p.promise(lane, 240)                   // not accepted: the provider does not have it
	want := []statement.Interval{
		{BillableMs: 100, BillableTotalMs: 100, Amount: "0.0001", Cumulative: "0.0001", Voucher: 1, Receipt: true, Evidence: "fits"},
		{BillableMs: 50, BillableTotalMs: 150, Amount: "0", Cumulative: "0.0001", Evidence: "unsigned"},
		{BillableMs: 20, BillableTotalMs: 170, Amount: "0.00007", Cumulative: "0.00017", Voucher: 2, Receipt: true, Evidence: "fits"},
		{BillableTotalMs: 170, Amount: "0.00003", Cumulative: "0.0002", Voucher: 3, Receipt: true, Evidence: "none"},
		{BillableMs: 60, BillableTotalMs: 230, Amount: "0.00003", Cumulative: "0.00023", Voucher: 4, Receipt: true, Evidence: "differs"},
		{BillableMs: -10, BillableTotalMs: 220, Amount: "0", Cumulative: "0.00023", Evidence: "unsigned"},
	}
	got := p.provider.lines(lane)
	var sum money.Micro
	for i, line := range got {
		amount, err := money.Parse(line.Amount)
		must(t, err)
		sum += amount
		line.Rate, line.Devices = "", 0
		if i < len(want) && line != want[i] {
			t.Errorf("line %d: %+v, want %+v", i, line, want[i])
		}
	}
	if l := p.provider.lane(lane); len(got) != len(want) || sum != l.Amount {
		t.Errorf("%d lines sum up to %v, the newest voucher promises %v", len(got), sum, l.Amount)
	}
	if mine := p.renter.lines(lane); len(mine) != 5 || mine[4].Cumulative != "0.00024" || mine[4].Receipt { // no evidence here: a line for each voucher
		t.Errorf("the renter's: %+v", mine)
	}
	p.provider.verified(ResultOK)
}

// TestEvidenceStays: evidence is never changed, has a bound, and belongs to a lane.
func TestEvidenceStays(t *testing.T) {
	p := newPair(t)
	lane := p.sell(1, 0)
	keep := func(lane ledger.Lane, raw string) error {
		return p.provider.Update(t.Context(), func(t *Tx) error { return t.KeepInterval(lane, Interval{At: 1, Evidence: []byte(raw)}) })
	}
	must(t, keep(lane, "100"))
	must(t, keep(lane, "100"))
	for _, c := range []struct {
		lane ledger.Lane
		raw  string
		want error
	}{{lane, "101", ErrConflict}, {lane, string(make([]byte, MaxEvidence+1)), wire.ErrTooLarge}, {ledger.Lane{9}, "1", ErrNoLane}} {
		if err := keep(c.lane, c.raw); !errors.Is(err, c.want) {
			t.Errorf("%.10q: %v, want %v", c.raw, err, c.want)
		}
	}
}

// TestDropIntervals: the evidence of what ended long ago goes, in as many transactions as it takes; everything else stays.
func TestDropIntervals(t *testing.T) { synctest.Test(t, dropIntervals) }

func dropIntervals(t *testing.T) {
	p := newPair(t)
	open, ended, later := p.sell(1, 0), p.sell(2, 0), p.sell(3, 0)
	const many = 3000 // over dropAtOnce
	for _, lane := range []ledger.Lane{open, ended, later} {
		for from := range many / 1000 {
			p.provider.update(func(t *Tx) error {
				for i := range 1000 {
					if err := t.KeepInterval(lane, Interval{At: uint64(from*1000 + i), Evidence: []byte("1")}); err != nil {
						return err
					}
				}
				return nil
			})
		}
	}
	p.provider.update(func(t *Tx) error { _, err := t.CloseLane(ended, 0); return err })
	time.Sleep(time.Hour)
	before := time.Now()
	p.provider.update(func(t *Tx) error { _, err := t.CloseLane(later, 0); return err })
	n, err := p.provider.DropIntervals(t.Context(), before)
	must(t, err)
	if again, err := p.provider.DropIntervals(t.Context(), before); n != many || again != 0 || err != nil {
		t.Errorf("dropped %d, then %d: %v", n, again, err)
	}
	for lane, want := range map[ledger.Lane]int{open: n, ended: 0, later: n} {
		if got := len(p.provider.lines(lane)); got != want {
			t.Errorf("lane %s has %d intervals, want %d", lane.Short(), got, want)
		}
	}
}
