package work

import (
	"fmt"

	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Evidence is what the job used in the interval of a claim, which ends with that claim's beat and began with the one before. Its hash is in
// the receipt for the claim's voucher (spec: ledger, Model). What a device does not tell is left out, and never guessed.
type Evidence struct {
	Beat      uint64      `cbor:"1,keyasint"`
	From      int64       `cbor:"2,keyasint"`           // Unix milliseconds by the provider's clock; for people
	To        int64       `cbor:"3,keyasint"`           // Unix milliseconds by the provider's clock; for people
	Billable  uint64      `cbor:"4,keyasint"`           // milliseconds in all, at To
	Charge    money.Micro `cbor:"5,keyasint"`           // in all, at To
	State     State       `cbor:"6,keyasint"`           // at To
	Why       reason.Code `cbor:"7,keyasint,omitempty"` // of a pause or end, or why not all of the interval was billed
	CPUMillis uint64      `cbor:"8,keyasint"`           // time that the job's processes ran, over all cores
	MemoryMiB uint64      `cbor:"9,keyasint"`           // at To
	GPU       *GPUUse     `cbor:"10,keyasint,omitempty"`
	ClockMHz  uint32      `cbor:"11,keyasint,omitempty"` // of the cores or of the GPU's SMs, mean at To
	EnergyJ   uint64      `cbor:"12,keyasint,omitempty"` // of the device in the interval
	Away      bool        `cbor:"13,keyasint,omitempty"` // metered under an allowance: the renter was not there
}

// GPUUse is what a card says of itself.
type GPUUse struct {
	Percent uint32 `cbor:"1,keyasint"` // of the interval in which a kernel ran
	VRAMMiB uint64 `cbor:"2,keyasint"` // used, at To
}

// Limits of evidence.
const (
	MaxEvidence  = 512            // bytes; ours has under 100
	KeepEvidence = 90 * 24 * 3600 // seconds after the last change of an ended lane
	maxEvidenced = 10_000_000     // MiB, MHz, joules: a figure over it is none
	maxCPUMillis = 1 << 50        // 35,000 core-years
	maxUnixMs    = 1 << 43        // the year 2248
)

// OpenEvidence reads and checks evidence.
func OpenEvidence(raw []byte) (Evidence, error) {
	var e Evidence
	if len(raw) > MaxEvidence {
		return e, fmt.Errorf("evidence of %d bytes: %w (limit %d)", len(raw), wire.ErrTooLarge, MaxEvidence)
	}
	if err := wire.UnmarshalStrict(raw, &e); err != nil {
		return e, fmt.Errorf("evidence: %w", err)
	}
	return e, e.Validate()
}

// Validate checks that e can be shown.
func (e Evidence) Validate() error {
	switch {
	case e.From < 0 || e.From > maxUnixMs || e.To < 0 || e.To > maxUnixMs:
		return fmt.Errorf("evidence of beat %d: %w: from %d to %d", e.Beat, wire.ErrFormat, e.From, e.To)
	case e.Charge > money.Max || e.Billable > market.MaxTerm*1000:
		return fmt.Errorf("evidence of beat %d: %w: %d for %d ms", e.Beat, wire.ErrFormat, e.Charge, e.Billable)
	case len(e.Why) > 64 || e.State < Agreed || e.State > Ended:
		return fmt.Errorf("evidence of beat %d: %w: state %d", e.Beat, wire.ErrFormat, e.State)
	case max(e.MemoryMiB, uint64(e.ClockMHz), e.EnergyJ) > maxEvidenced || e.CPUMillis > maxCPUMillis:
		return fmt.Errorf("evidence of beat %d: %w: a figure that no machine has", e.Beat, wire.ErrFormat)
	case e.GPU != nil && (e.GPU.Percent > 100 || e.GPU.VRAMMiB > maxEvidenced):
		return fmt.Errorf("evidence of beat %d: %w: GPU at %d %%", e.Beat, wire.ErrFormat, e.GPU.Percent)
	}
	return nil
}
