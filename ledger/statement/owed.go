package statement

import "time"

// Owed is the answer to GET /ledger/owed: what is owed, by counterparty, unit and direction.
type Owed struct {
	Owed     []Debt    `json:"owed"`
	Troubles []Trouble `json:"troubles,omitempty" doc:"steps towards a payment that do not go on by themselves: the program of settlement.command, or a peer, can't do them"`
}

// Trouble is a step towards a payment that does not go on by itself.
type Trouble struct {
	Account string    `json:"account" doc:"the counterparty"`
	Unit    string    `json:"unit"`
	What    string    `json:"what" doc:"make, send, check or pay an invoice, check or note a payment"`
	Error   string    `json:"error" doc:"of the last try"`
	Tries   uint32    `json:"tries" doc:"in a row that failed"`
	Next    time.Time `json:"next" doc:"when it is tried again"`
}

// Invoice is the newest invoice between an account and me in one unit, made by the program of the provider's settlement.command.
type Invoice struct {
	State     string     `json:"state" enum:"asked,open,paying,paid,closed" doc:"paid: I signed a settlement for it"`
	Amount    string     `json:"amount"`
	Method    string     `json:"method,omitempty"`
	Reference string     `json:"reference,omitempty" doc:"give it with the payment, and to settle"`
	Pay       string     `json:"pay,omitempty" doc:"what the payer needs, as the provider's program wrote it"`
	Made      time.Time  `json:"made" doc:"or came"`
	DueAt     *time.Time `json:"due_at,omitempty"`
	Why       string     `json:"why,omitempty" doc:"it is closed"`
}

// Debt is what one counterparty owes me in one unit, or I owe it, by age. Payments settle the oldest debts first.
type Debt struct {
	Account     string     `json:"account" doc:"the counterparty"`
	Role        string     `json:"role" enum:"provider,renter" doc:"mine: as provider I am owed, as renter I owe"`
	Unit        string     `json:"unit"`
	Owed        string     `json:"owed" doc:"by vouchers, less settled and written off"`
	Since       *time.Time `json:"since,omitempty" doc:"end of the oldest lease that is unpaid; absent: only running leases are"`
	DueAt       *time.Time `json:"due_at,omitempty" doc:"when the first unpaid lease is due"`
	Late        bool       `json:"late" doc:"over a day past its due time: no credit"`
	NotDue      string     `json:"not_due"`
	Due         string     `json:"due" doc:"for less than a day"`
	Overdue30   string     `json:"overdue_30" doc:"for 1 to 30 days"`
	Overdue60   string     `json:"overdue_60" doc:"for 31 to 60 days"`
	Overdue90   string     `json:"overdue_90" doc:"for 61 to 90 days"`
	Overdue     string     `json:"overdue_more" doc:"for more than 90 days"`
	Prepaid     string     `json:"prepaid" doc:"paid beyond what was owed"`
	WrittenOff  string     `json:"written_off" doc:"that the account still owes"`
	LastPayment *time.Time `json:"last_payment,omitempty" doc:"when the last settlement counted"`
	Reminders   uint32     `json:"reminders" doc:"sent for the first unpaid lease, or as renter received"`
	RemindedAt  *time.Time `json:"reminded_at,omitempty"`
	Invoice     *Invoice   `json:"invoice,omitempty" doc:"the newest"`
	Trouble     string     `json:"trouble,omitempty" doc:"why a payment does not go on by itself"`
}

// Claim is the answer to GET /ledger/accounts/{account}/unpaid: the leases that are unpaid, oldest first.
type Claim struct {
	Account string        `json:"account" doc:"the counterparty"`
	Leases  []UnpaidLease `json:"leases"`
}

// UnpaidLease is one lease that has ended and is not paid in full, written off or not.
type UnpaidLease struct {
	Lease  string    `json:"lease"`
	Role   string    `json:"role" enum:"provider,renter" doc:"mine"`
	Unit   string    `json:"unit"`
	Amount string    `json:"amount" doc:"that is unpaid, if payments settle the oldest leases first"`
	Since  time.Time `json:"since" doc:"its end"`
	DueAt  time.Time `json:"due_at"`
}

// WriteOffRequest gives up hope for what an account owes on leases that have ended.
type WriteOffRequest struct {
	Account string `json:"account" doc:"the counterparty"`
	Unit    string `json:"unit,omitempty" doc:"empty: that of the settings"`
	Reason  string `json:"reason" maxLength:"256" doc:"for the ledger's own entry"`
	Force   bool   `json:"force,omitempty" doc:"although some of it is not due yet"`
}

// WriteOff is what was written off.
type WriteOff struct {
	Account string `json:"account" doc:"the counterparty"`
	Unit    string `json:"unit"`
	Amount  string `json:"amount"`
	Reason  string `json:"reason"`
}
