package statement

import "time"

// Witness is what this side and one device of a counterparty know of each other's ledgers.
type Witness struct {
	Account       string    `json:"account" doc:"the counterparty"`
	Device        string    `json:"device" doc:"that signs its ledger's heads"`
	Epoch         uint64    `json:"epoch" doc:"of its ledger: it rises with a restore"`
	Origin        string    `json:"origin" doc:"name of its log"`
	Checked       uint64    `json:"checked" doc:"entries of its newest head that was checked to extend the one before, and cosigned"`
	Root          string    `json:"root,omitempty" doc:"of that head"`
	CheckedAt     time.Time `json:"checked_at,omitzero"`
	Seen          uint64    `json:"seen,omitempty" doc:"entries of the largest head that it signed since, not checked yet"`
	Cosigned      uint64    `json:"cosigned,omitempty" doc:"entries of the newest head of this ledger that it cosigned"`
	CosignedAt    time.Time `json:"cosigned_at,omitzero" doc:"by its clock"`
	CosignedEpoch uint64    `json:"cosigned_epoch,omitempty" doc:"of this ledger then"`
	Suspicion     string    `json:"suspicion,omitempty" doc:"why its ledger is suspicious; no proof"`
	SuspectSince  time.Time `json:"suspect_since,omitzero"`
	Fork          *Fork     `json:"fork,omitempty" doc:"it signed two histories: proven"`
}

// Fork says where a ledger's two histories part, at the latest.
type Fork struct {
	Epoch   uint64    `json:"epoch"`
	Entries uint64    `json:"entries" doc:"size at which two roots are signed"`
	Found   time.Time `json:"found"`
}

// Witnesses is the answer to GET /ledger/witnesses.
type Witnesses struct {
	Witnesses []Witness `json:"witnesses"`
}

// ForkProof is what the check of a fork's file says.
type ForkProof struct {
	Result  string   `json:"result" enum:"forged,corrupt" doc:"forged: the file shows that the device forged its ledger; corrupt: it shows nothing"`
	Detail  string   `json:"detail"`
	Device  string   `json:"device,omitempty" doc:"that signed two histories"`
	Account string   `json:"account,omitempty" doc:"for which it acted, by its delegation; empty: the file does not show it"`
	Origin  string   `json:"origin,omitempty" doc:"of the log"`
	Entries uint64   `json:"entries,omitempty" doc:"size at which two roots are signed"`
	Roots   []string `json:"roots,omitempty"`
	Key     string   `json:"key,omitempty" doc:"of the notes, for any program that checks signed notes"`
}
