package statement

import "time"

// Results of asking one counterparty what was lost.
const (
	Found       = "recovered"   // something was lost, and is back
	Unchanged   = "unchanged"   // it has nothing that is not here
	Unreachable = "unreachable" // it is asked again until it answers or is given up
	NotOurs     = "refused"     // it gave back what no check bears out
)

// Recovered is what came of asking one counterparty.
type Recovered struct {
	Account     string `json:"account"`
	Result      string `json:"result" enum:"recovered,unchanged,unreachable,refused"`
	Leases      int    `json:"leases" doc:"of which something was lost and is back"`
	Settlements int    `json:"settlements" doc:"that were lost and are back"`
	Skipped     int    `json:"skipped,omitempty" doc:"records of other devices of this account, which have ledgers of their own"`
	Detail      string `json:"detail,omitempty"`
}

// OtherDevice is a device of this account with leases that peers gave back and that are not in this ledger.
type OtherDevice struct {
	Device string `json:"device"`
	Leases int    `json:"leases"`
}

// Recovery says how far a restored ledger has got back what it lost.
type Recovery struct {
	Epoch    uint32      `json:"epoch"`
	Restored time.Time   `json:"restored,omitzero" doc:"missing: this ledger was never restored"`
	Asked    []Recovered `json:"asked" doc:"what came of those that were asked now"`
	Waiting  []Waiting   `json:"waiting" doc:"who has not answered; nothing is signed for them on older leases"`

	Others []OtherDevice `json:"others,omitempty" doc:"whose leases peers gave back and stay out: each has a ledger of its own"`
}

// Waiting is a counterparty that has not answered since the restore.
type Waiting struct {
	Account string    `json:"account"`
	Leases  int       `json:"leases" doc:"whose newest voucher is not known for sure"`
	Tried   time.Time `json:"tried,omitzero"`
	Detail  string    `json:"detail,omitempty"`
}

// Backup is a backup that was written.
type Backup struct {
	File    string    `json:"file"`
	Made    time.Time `json:"made"`
	Account string    `json:"account"`
	Peer    string    `json:"peer"`
	Epoch   uint32    `json:"epoch"`
	Entries uint64    `json:"entries"`
	Root    string    `json:"root"`
	Records uint64    `json:"records"`
	Bytes   uint64    `json:"bytes"`
}
