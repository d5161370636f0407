package statement

import "time"

// What the evidence of an interval is, against the receipt of the voucher that paid it.
const (
	EvidenceFits     = "fits"     // the receipt has its hash
	EvidenceDiffers  = "differs"  // the receipt has another hash: what the provider said and what it signed for are not the same
	EvidenceUnsigned = "unsigned" // no voucher paid the interval, or its receipt has not come
	EvidenceNone     = "none"     // a voucher without an interval here: delivered later, or the evidence was dropped
)

// Interval is one line of a lease's statement: what was metered between two claims, what it was paid with, and what the job used.
type Interval struct {
	Beat            uint64    `json:"beat,omitempty" doc:"of the claim; empty: a voucher that came later"`
	From            time.Time `json:"from" doc:"by the provider's clock"`
	To              time.Time `json:"to" doc:"by the provider's clock"`
	BillableMs      int64     `json:"billable_ms" doc:"in this interval; below 0: a credit"`
	BillableTotalMs uint64    `json:"billable_total_ms"`
	State           string    `json:"state,omitempty" doc:"at the end of the interval"`
	Why             string    `json:"why,omitempty" doc:"of a pause or end, or why not all of the time was billed"`
	Rate            string    `json:"rate" doc:"per device-hour"`
	Devices         uint32    `json:"devices"`
	Metered         string    `json:"metered,omitempty" doc:"cumulative, as the provider claimed"`
	Amount          string    `json:"amount" doc:"promised by this interval's voucher beyond the one before"`
	Cumulative      string    `json:"cumulative" doc:"promised in all; of the last line: by the newest voucher"`
	Voucher         uint64    `json:"voucher,omitempty" doc:"sequence"`
	Receipt         bool      `json:"receipt"`
	Evidence        string    `json:"evidence" enum:"fits,differs,unsigned,none"`
	Away            bool      `json:"away,omitempty" doc:"metered under an allowance: the renter was not there"`
	CPUMs           uint64    `json:"cpu_ms" doc:"time that the job's processes ran, over all cores"`
	MemoryMiB       uint64    `json:"memory_mib"`
	GPUPercent      *uint32   `json:"gpu_percent,omitempty" doc:"empty: no GPU"`
	VRAMMiB         *uint64   `json:"vram_mib,omitempty" doc:"empty: no GPU"`
	EnergyJ         uint64    `json:"energy_j,omitempty" doc:"empty: the device does not tell"`
	ClockMHz        uint32    `json:"clock_mhz,omitempty" doc:"empty: the device does not tell"`
}

// Intervals is the answer to GET /ledger/leases/{id}/intervals.
type Intervals struct {
	Lease     string     `json:"lease" doc:"its whole id"`
	Intervals []Interval `json:"intervals"`
	More      bool       `json:"more" doc:"ask again with skip"`
}
