package wire

import (
	"context"
	"time"

	"github.com/gpufair/gpufair/ledger/statement"
	"github.com/gpufair/gpufair/market/work"
)

// interval puts the evidence of an interval into a line of a statement.
func interval(raw []byte) (statement.Interval, error) {
	e, err := work.OpenEvidence(raw)
	if err != nil {
		return statement.Interval{}, err
	}
	out := statement.Interval{
		Beat: e.Beat, From: time.UnixMilli(e.From).UTC(), To: time.UnixMilli(e.To).UTC(), BillableTotalMs: e.Billable, State: e.State.String(),
		Why: string(e.Why), Metered: e.Charge.String(), Away: e.Away, CPUMs: e.CPUMillis, MemoryMiB: e.MemoryMiB, EnergyJ: e.EnergyJ, ClockMHz: e.ClockMHz,
	}
	if e.GPU != nil {
		out.GPUPercent, out.VRAMMiB = &e.GPU.Percent, &e.GPU.VRAMMiB
	}
	return out, nil
}

const (
	dropEvery    = time.Hour
	keepEvidence = work.KeepEvidence * time.Second
)

// dropEvidence lets go of what jobs used once nobody can be asked about it any more: the vouchers and receipts stay.
func (b *Base) dropEvidence(ctx context.Context) error {
	for {
		n, err := b.Books.DropIntervals(ctx, time.Now().Add(-keepEvidence))
		switch {
		case err != nil && ctx.Err() == nil:
			b.Log.Warn("old evidence not dropped", "err", err)
		case n > 0:
			b.Log.Info("old evidence dropped", "intervals", n, "after", keepEvidence)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(dropEvery):
		}
	}
}
