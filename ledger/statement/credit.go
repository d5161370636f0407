package statement

// Credit is the answer to GET /credit: limits and what is used of them.
type Credit struct {
	Unit           string           `json:"unit"`
	Stranger       string           `json:"stranger" doc:"limit for one account without settled history"`
	StrangersTotal string           `json:"strangers_total" doc:"limit for all of them together"`
	StrangersUsed  string           `json:"strangers_used" doc:"of that: what accounts owe beyond their history, and debts written off"`
	WrittenOff     string           `json:"written_off" doc:"of that, debts written off"`
	KnownPercent   uint32           `json:"known_percent" doc:"of what an account has settled"`
	KnownCap       string           `json:"known_cap"`
	KnownUsed      string           `json:"known_used" doc:"what accounts owe that their own history, or the owner's hand, covers"`
	Origin         CreditOrigin     `json:"origin" doc:"where the limits come from"`
	Accounts       []CreditLimit    `json:"accounts" doc:"that owe me, or have a limit of their own"`
	Standings      []CreditStanding `json:"standings" doc:"mine with others"`
}

// CreditOrigin says where each limit comes from: a key of the settings, or the default with what it was computed from.
type CreditOrigin struct {
	Stranger       string `json:"stranger"`
	StrangersTotal string `json:"strangers_total"`
	Known          string `json:"known"`
}

// CreditLimit is one account's credit.
type CreditLimit struct {
	Account    string `json:"account"`
	Limit      string `json:"limit" doc:"by its own history"`
	Used       string `json:"used" doc:"owed, held and metered"`
	Prepaid    string `json:"prepaid" doc:"paid beyond that"`
	Room       string `json:"room" doc:"how much more it may come to owe"`
	Why        string `json:"why" doc:"what ends its room" enum:"limit,by hand,strangers_total,late,written off,dispute"`
	Settled    string `json:"settled" doc:"in all"`
	WrittenOff string `json:"written_off"`
	Known      bool   `json:"known" doc:"has settled history"`
	ByHand     bool   `json:"by_hand" doc:"set by the owner"`
	Late       bool   `json:"late" doc:"a payment is over a day past its due time"`
}

// CreditStanding is what I have with one provider, in one unit. How much more it lets me owe is its own to know.
type CreditStanding struct {
	Account string `json:"account" doc:"the provider"`
	Unit    string `json:"unit"`
	Owed    string `json:"owed" doc:"by vouchers, less settled"`
	Held    string `json:"held" doc:"on open leases"`
	Prepaid string `json:"prepaid" doc:"paid beyond what was owed"`
	Settled string `json:"settled" doc:"in all: what my credit there grows by"`
	Late    bool   `json:"late" doc:"a payment is over a day past its due time: no credit"`
}
