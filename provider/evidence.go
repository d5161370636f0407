package provider

import (
	"context"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Reading is what a lease's devices say of themselves. What they do not tell is left out.
type Reading struct {
	GPU      *work.GPUUse
	ClockMHz uint32 // mean of them; 0: not told
	EnergyJ  uint64 // joules of all of them since some start; 0: not told
}

// evidenced is what a keeper gathers between two claims, and the intervals that are not stored yet. Of the keeper's goroutine.
type evidenced struct {
	last    work.Evidence // of the newest interval
	cpu     time.Duration // as of the newest interval
	energy  uint64        // as of the newest interval
	reading Reading
	gap     reason.Code // why part of the interval under way was not billed
	mark    bool        // the next beat ends an interval, whether or not it claims
	recent  []interval  // newest last
}

// interval is one that ended lately.
type interval struct {
	at     uint64
	raw    []byte
	stored bool
}

// recentMost is how many intervals a voucher may come late by: more than claims can be under way (laneQueue).
const recentMost = 2 * laneQueue

// begin is when the charge starts.
func (e *evidenced) begin(now time.Time) {
	e.last = work.Evidence{To: now.UnixMilli()}
}

// recall goes on after a restart: from the newest interval that is stored. The time in between belongs to the next one, and is billed only as
// far as the meter ran.
func (k *keeper) recall(r *books.Reader) error {
	return r.Intervals(ledger.Lane(k.id), func(v books.Interval) (bool, error) {
		e, err := work.OpenEvidence(v.Evidence)
		if err != nil {
			return false, err
		}
		k.ev.last = e
		return true, nil
	})
}

// evidence ends an interval with the beat under way and says what the job used in it.
func (k *keeper) evidence() []byte {
	now, s := time.Now(), k.status()
	if k.ev.last.To == 0 { // the lease ends before its job ran
		k.ev.begin(now)
	}
	e := work.Evidence{
		Beat: k.beat, From: k.ev.last.To, To: now.UnixMilli(), Billable: s.Billable, Charge: s.Charge, State: s.State, Why: s.Reason.Code,
		CPUMillis: uint64(max(k.usage.CPU-k.ev.cpu, 0) / time.Millisecond), MemoryMiB: k.usage.MemoryBytes >> 20,
		GPU: k.ev.reading.GPU, ClockMHz: k.ev.reading.ClockMHz, Away: k.away,
	}
	if e.Why == "" {
		e.Why = k.ev.gap
	}
	if k.ev.energy > 0 && k.ev.reading.EnergyJ > k.ev.energy {
		e.EnergyJ = k.ev.reading.EnergyJ - k.ev.energy
	}
	raw, err := wire.Marshal(e)
	if err != nil {
		k.log.Error("evidence", "err", err)
		return nil
	}
	idle := e.Billable == k.ev.last.Billable && e.State == k.ev.last.State && e.Why == k.ev.last.Why
	k.ev.cpu, k.ev.energy, k.ev.gap, k.ev.mark = k.usage.CPU, k.ev.reading.EnergyJ, "", false
	if !idle { // an idle one is kept only if a voucher pays it
		k.ev.last = e
	}
	k.ev.recent = append(k.ev.recent, interval{at: k.beat, raw: raw, stored: idle})
	k.ev.recent = k.ev.recent[max(len(k.ev.recent)-recentMost, 0):]
	return raw
}

// keepIntervals stores what is not stored yet, in whatever transaction comes next.
func (k *keeper) keepIntervals(tx *books.Tx) error {
	for _, v := range k.ev.recent {
		if v.stored {
			continue
		}
		if err := tx.KeepInterval(ledger.Lane(k.id), books.Interval{At: v.at, Evidence: v.raw}); err != nil {
			return err
		}
	}
	return nil
}

func (k *keeper) intervalsKept() {
	for i := range k.ev.recent {
		k.ev.recent[i].stored = true
	}
}

// paidInterval is the evidence of the claim that a voucher answers, and its hash for the receipt.
func (k *keeper) paidInterval(beat uint64) (raw []byte, hash wire.Hash) {
	for _, v := range k.ev.recent {
		if v.at == beat && len(v.raw) > 0 {
			return v.raw, voucher.EvidenceHash(v.raw)
		}
	}
	return nil, wire.Hash{}
}

// intervalPaid is the keeper's turn when a voucher paid an interval: an idle one is kept now, too, and the next begins after it.
func (k *keeper) intervalPaid(raw []byte) {
	if e, err := work.OpenEvidence(raw); err == nil && e.To > k.ev.last.To {
		k.ev.last = e
	}
}

// read asks the devices what they do. It is not for the keeper's goroutine.
func (k *keeper) read(ctx context.Context) Reading {
	got, err := k.a.devices.Read(ctx, k.look().rec.Devices)
	if err != nil && ctx.Err() == nil {
		k.log.Debug("devices not read", "err", err)
	}
	return got
}
