// Package statement is what people are told of a ledger: balances, entries, credit, settlements and the verdict of a check, as values
// with JSON names. Amounts are decimal texts, never numbers. It computes nothing. Standard library only.
package statement

import "time"

// Balance is how this account stands with one counterparty in one unit.
type Balance struct {
	Account   string    `json:"account" doc:"the counterparty"`
	Name      string    `json:"name,omitempty" doc:"what the owner calls it"`
	Unit      string    `json:"unit"`
	OwedToMe  string    `json:"owed_to_me" doc:"by vouchers, less settled"`
	IOwe      string    `json:"i_owe" doc:"by vouchers, less settled"`
	Held      string    `json:"held" doc:"on open leases"`
	Prepaid   string    `json:"prepaid" doc:"paid beyond what was owed"`
	Settled   string    `json:"settled" doc:"in all"`
	Leases    int       `json:"leases"`
	LastEntry time.Time `json:"last_entry"`
}

// Entry is one transaction of the ledger, as seen from this account.
type Entry struct {
	Index    uint64    `json:"index" doc:"place in the log"`
	ID       string    `json:"id"`
	Time     time.Time `json:"time"`
	Kind     string    `json:"kind"`
	Account  string    `json:"account,omitempty" doc:"the counterparty"`
	Lease    string    `json:"lease,omitempty"`
	Unit     string    `json:"unit"`
	Amount   string    `json:"amount"`
	Postings []Posting `json:"postings"`
	Ref      string    `json:"ref,omitempty" doc:"outside reference of a settlement"`
}

// Posting is one side of an entry; the amounts of an entry sum to zero.
type Posting struct {
	Account string `json:"account"`
	Amount  string `json:"amount" doc:"with a sign"`
}

// Ledger is the answer to GET /ledger.
type Ledger struct {
	Account    string    `json:"account" doc:"mine"`
	Entries    uint64    `json:"entries"`
	Root       string    `json:"root" doc:"of the log, in hex"`
	ReadOnly   string    `json:"read_only,omitempty" doc:"why, if it is"`
	Balances   []Balance `json:"balances"`
	Due        []Debt    `json:"due,omitempty" doc:"what is late, and what I was reminded of"`
	Signatures int       `json:"signatures,omitempty"`
}

// Statement is the answer to GET /ledger/leases/{id}: what a lease cost and the proof of it.
type Statement struct {
	Lease    string   `json:"lease"`
	Account  string   `json:"account" doc:"the counterparty"`
	Role     string   `json:"role" enum:"provider,renter"`
	Unit     string   `json:"unit"`
	Amount   string   `json:"amount" doc:"cumulative, by the newest voucher"`
	Sequence uint64   `json:"sequence" doc:"of the newest voucher"`
	Voucher  string   `json:"voucher" doc:"hash of the newest voucher"`
	Receipt  string   `json:"receipt,omitempty" doc:"hash of its receipt"`
	Signed   []string `json:"signed" doc:"whose signatures on it were checked just now"`
	Settled  bool     `json:"settled"`
	Entries  []Entry  `json:"entries"`
}

// Verdict is the result of verifying the ledger.
type Verdict struct {
	Result  string `json:"result" enum:"ok,behind,corrupt,forged"`
	Detail  string `json:"detail"`
	Entry   string `json:"entry,omitempty" doc:"the first entry that is wrong"`
	Entries uint64 `json:"entries"`
	Checked uint64 `json:"checked" doc:"signatures"`
	Root    string `json:"root"`
	Forks   int    `json:"forks,omitempty" doc:"proofs here that a counterparty's device signed two histories"`
}

// SetCredit is the request of PUT /credit/{account}.
type SetCredit struct {
	Limit string `json:"limit" doc:"an amount; empty: back to the rule"`
}

// SettleRequest records a payment that was made outside.
type SettleRequest struct {
	Account   string `json:"account" doc:"the counterparty"`
	Amount    string `json:"amount,omitempty" doc:"empty: all that is owed"`
	Unit      string `json:"unit,omitempty" doc:"empty: CREDIT"`
	Method    string `json:"method,omitempty" doc:"how it was paid; empty: manual"`
	Reference string `json:"reference" doc:"invoice or transfer number"`
	PaidBy    string `json:"paid_by,omitempty" enum:"me,them" doc:"who paid; empty: whoever rents, by the dealings with that account"`
	Force     bool   `json:"force,omitempty" doc:"although an invoice of the same debt is being paid at this moment"`
}

// Settlement is a payment made outside and who has signed for it.
type Settlement struct {
	ID        string    `json:"id"`
	Account   string    `json:"account" doc:"the counterparty"`
	Unit      string    `json:"unit"`
	Amount    string    `json:"amount"`
	Method    string    `json:"method"`
	Reference string    `json:"reference"`
	Time      time.Time `json:"time"`
	ByMe      bool      `json:"by_me" doc:"this account paid"`
	State     string    `json:"state" enum:"proposed,waiting,signed,refused"`
	Signed    []string  `json:"signed" doc:"accounts whose signatures it bears"`
	Why       string    `json:"why,omitempty" doc:"of a refusal"`
	RefusedBy string    `json:"refused_by,omitempty" enum:"me,other" doc:"who said no; of a proposal of mine, me: it was dropped"`
	Overdue   bool      `json:"overdue,omitempty" doc:"one side signed it over 7 days ago, and the other has not answered"`
	// Undelivered is known of what was never sent; the answer to what was just said tells it of that.
	Undelivered bool `json:"undelivered,omitempty" doc:"the other side was not reached: it is told when it connects"`
}

// Settlements is the answer to GET /settlements.
type Settlements struct {
	Settlements []Settlement `json:"settlements"`
}

// Proof is what the check of a proof file says: who owes whom how much for one lease, and what shows it.
type Proof struct {
	Result       string            `json:"result" enum:"ok,behind,corrupt,forged"`
	Record       string            `json:"record,omitempty" doc:"the first that is wrong"`
	Detail       string            `json:"detail,omitempty" doc:"what is wrong with it"`
	Lease        string            `json:"lease,omitempty"`
	Renter       string            `json:"renter,omitempty" doc:"account that owes"`
	Provider     string            `json:"provider,omitempty" doc:"account that is owed"`
	MadeBy       string            `json:"made_by,omitempty" doc:"account whose ledger made the file"`
	Unit         string            `json:"unit,omitempty"`
	Promised     string            `json:"promised,omitempty" doc:"cumulative, by the newest voucher"`
	Sequence     uint64            `json:"sequence" doc:"of the newest voucher"`
	Voucher      string            `json:"voucher,omitempty" doc:"hash of the newest voucher"`
	Received     string            `json:"received,omitempty" doc:"cumulative, by the newest receipt; empty: no receipt"`
	Allowed      string            `json:"allowed,omitempty" doc:"cumulative, that the renter promised to sign for what ran in its absence"`
	AllowedUntil *time.Time        `json:"allowed_until,omitempty"`
	Evidence     string            `json:"evidence,omitempty" doc:"what the job used in the interval of the newest receipt"`
	Booked       string            `json:"booked,omitempty" doc:"by the entries of the account that made the file; empty: not all of them are in it"`
	PaidAtLeast  string            `json:"paid_at_least,omitempty" doc:"for this lease, by settlements that both signed"`
	PaidAtMost   string            `json:"paid_at_most,omitempty"`
	LeftAtLeast  string            `json:"left_at_least,omitempty" doc:"that the renter still owes for this lease"`
	LeftAtMost   string            `json:"left_at_most,omitempty"`
	Rates        []ProofRate       `json:"rates,omitempty" doc:"from which the newest voucher was computed"`
	Settlements  []ProofSettlement `json:"settlements,omitempty"`
	Clearings    []ProofClearing   `json:"clearings,omitempty"`
	Attachments  []ProofAttachment `json:"attachments,omitempty"`
	Origin       string            `json:"origin,omitempty" doc:"of the log of the account that made the file"`
	Entries      uint64            `json:"entries" doc:"of that log"`
	Root         string            `json:"root,omitempty" doc:"of that log"`
	Cosigned     uint64            `json:"cosigned,omitempty" doc:"entries of that log which the other side cosigned"`
	CosignedAt   time.Time         `json:"cosigned_at,omitzero" doc:"by the other side's clock"`
	Proven       []string          `json:"proven,omitempty"`
	NotProven    []string          `json:"not_proven,omitempty"`
}

// ProofRate is a stretch of billable time at one rate.
type ProofRate struct {
	Rate    string `json:"rate" doc:"per device-hour"`
	Devices uint32 `json:"devices"`
	Millis  uint64 `json:"ms" doc:"billable"`
	Charge  string `json:"charge"`
}

// ProofSettlement is a payment that lists the lease.
type ProofSettlement struct {
	ID        string    `json:"id"`
	Amount    string    `json:"amount" doc:"paid on the whole channel"`
	Listed    string    `json:"listed" doc:"what both knew to be promised for this lease then"`
	Method    string    `json:"method"`
	Reference string    `json:"reference"`
	Time      time.Time `json:"time" doc:"by the proposer's clock"`
	Signed    []string  `json:"signed" doc:"accounts"`
}

// ProofClearing is a circle of debts in which a part of the lease was cleared.
type ProofClearing struct {
	ID      string    `json:"id"`
	Amount  string    `json:"amount" doc:"cleared on the whole channel"`
	Part    string    `json:"part" doc:"of the lease that counts as paid with it, by the books of the account that made the file"`
	Members int       `json:"members"`
	Before  time.Time `json:"before" doc:"all signed by then, or soon after"`
}

// PaymentProof is what the check of a payment's file says.
type PaymentProof struct {
	Result    string       `json:"result" enum:"ok,behind,corrupt,forged"`
	Record    string       `json:"record,omitempty" doc:"the first that is wrong"`
	Detail    string       `json:"detail,omitempty" doc:"what is wrong with it"`
	ID        string       `json:"id,omitempty" doc:"of the settlement"`
	Renter    string       `json:"renter,omitempty" doc:"account that paid"`
	Provider  string       `json:"provider,omitempty" doc:"account that was paid"`
	MadeBy    string       `json:"made_by,omitempty" doc:"account whose ledger made the file"`
	Unit      string       `json:"unit,omitempty"`
	Amount    string       `json:"amount,omitempty"`
	Method    string       `json:"method,omitempty"`
	Reference string       `json:"reference,omitempty"`
	Time      time.Time    `json:"time,omitzero" doc:"by the proposer's clock"`
	Signed    []string     `json:"signed,omitempty" doc:"accounts; with both it counts"`
	Leases    []ProofLease `json:"leases,omitempty" doc:"what both knew to be promised then"`
	Entry     *uint64      `json:"entry,omitempty" doc:"place in the log of the account that made the file"`
	Origin    string       `json:"origin,omitempty" doc:"of that log"`
	Entries   uint64       `json:"entries" doc:"of that log"`
	Root      string       `json:"root,omitempty" doc:"of that log"`
	Proven    []string     `json:"proven,omitempty"`
	NotProven []string     `json:"not_proven,omitempty"`
}

// ProofLease is a lease that a payment lists.
type ProofLease struct {
	Lease  string `json:"lease"`
	Listed string `json:"listed" doc:"cumulative"`
}

// ProofAttachment is a record of the market that the ledger does not read.
type ProofAttachment struct {
	Name   string `json:"name"`
	Hash   string `json:"hash"`
	Signed string `json:"signed" doc:"account"`
	Says   string `json:"says,omitempty" doc:"in words; empty: this release does not know such records"`
}
