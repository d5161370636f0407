package statement

import "time"

// NetRequest is the body of POST /ledger/net.
type NetRequest struct {
	DryRun bool   `json:"dry_run,omitempty" doc:"only find circles"`
	Unit   string `json:"unit,omitempty" doc:"empty: that of the settings"`
}

// Circle is a circle of debts that was found, and what became of it.
type Circle struct {
	Accounts []string `json:"accounts" doc:"each owes the next, the last owes the first; mine is the first"`
	Unit     string   `json:"unit"`
	Amount   string   `json:"amount" doc:"by which each of the debts goes down"`
	State    string   `json:"state" doc:"found, cleared, refused, aborted, prepared; skipped: an earlier circle took the debt"`
	ID       string   `json:"id,omitempty" doc:"of the clearing"`
	Booked   int      `json:"booked,omitempty" doc:"devices of members that are known to have booked it; the others will"`
	Why      string   `json:"why,omitempty" doc:"it was not cleared"`
}

// Circles is the answer to POST /ledger/net.
type Circles struct {
	Circles []Circle `json:"circles"`
}

// Clearing is a circle that this account was asked to clear, or asked others to.
type Clearing struct {
	ID       string    `json:"id"`
	Time     time.Time `json:"time" doc:"of its last change"`
	Accounts []string  `json:"accounts" doc:"each owes the next, the last owes the first"`
	Unit     string    `json:"unit"`
	Amount   string    `json:"amount"`
	State    string    `json:"state" doc:"prepared, agreed: set aside; cleared; refused, aborted, released"`
	Deadline time.Time `json:"deadline" doc:"to sign it"`
	Missing  []string  `json:"missing" doc:"accounts whose signature is not here"`
	Liars    []string  `json:"liars,omitempty" doc:"accounts that signed an agreement and a refusal"`
}

// Clearings is the answer to GET /ledger/net.
type Clearings struct {
	Clearings []Clearing `json:"clearings"`
}
