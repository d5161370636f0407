package statement

import "time"

// Disputes is the answer to GET /ledger/disputes.
type Disputes struct {
	Disputes []Dispute `json:"disputes"`
}

// Dispute is a disagreement about what a lease comes to.
type Dispute struct {
	Lease   string `json:"lease"`
	Account string `json:"account" doc:"the counterparty"`
	Role    string `json:"role" enum:"provider,renter" doc:"mine in the lease"`
	Unit    string `json:"unit"`
	By      string `json:"by" enum:"me,other,both" doc:"who opened it"`
	Reason  string `json:"reason" doc:"in the words of who opened it; mine, if both did"`
	// TheirReason is that of the other side, if both opened it.
	TheirReason string `json:"their_reason,omitempty" doc:"the other side's, if both opened it"`

	Opened    time.Time `json:"opened"`
	Until     time.Time `json:"until" doc:"what both signed stands from then on, if nothing else is agreed"`
	State     string    `json:"state" enum:"open,agreed,over"`
	Amount    string    `json:"amount" doc:"that the lease comes to: what both signed, or agreed on"`
	IOffer    string    `json:"i_offer,omitempty" doc:"the amount that I proposed"`
	TheyOffer string    `json:"they_offer,omitempty" doc:"the amount that the other side proposed"`
	Turn      string    `json:"turn" enum:"me,other,both,nobody" doc:"who can end it now, by proposing an amount or agreeing to the other's; nobody: it is over, or the lease still ends"`
	Told      bool      `json:"told" doc:"the other side has my records"`
}

// DisputeRequest opens a dispute, or proposes an amount to end one.
type DisputeRequest struct {
	Reason string `json:"reason,omitempty" maxLength:"256" doc:"to open one"`
	Days   uint32 `json:"days,omitempty" maximum:"60" doc:"to open one: until what both signed stands; 0: the default"`
	Amount string `json:"amount,omitempty" doc:"to end one: what the lease comes to"`
}
