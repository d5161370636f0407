package reason

import (
	"slices"
	"strings"
)

// Advice is what a code means and what each side can do about it, one line each, for people.
type Advice struct {
	Means  string `json:"means"`
	Renter string `json:"renter"` // what whoever wanted the device can do next
	Owner  string `json:"owner"`  // what the owner of the device can do, or that nothing is needed
}

const nothing = "nothing to do"

// advice has a line for every code; a test holds it to that.
var advice = map[Code]Advice{
	OfferUnknown: {
		"this is not an offer of the provider, or no longer one",
		"search again: the provider's newest offer may differ", nothing,
	},
	OfferExpired: {"the offer's time to live is over", "search again for a live offer", "check that the daemon is online"},
	DeviceTaken: {
		"somebody else's order came first",
		"ask for fewer devices, or take the next offer", nothing,
	},
	PriceBelow:     {"the order's rate is below the lot's price", "accept the offer's price, or search for a cheaper one", "lower the price to sell to it"},
	TermOutOfRange: {"the term is shorter or longer than the lot allows", "choose a term within min_term and max_term", "widen min_term and max_term"},
	NotServed: {
		"the owner does not serve this account",
		"send the owner the account that `gpufair identity show` prints, or search for another offer", "add the account to serve.accounts",
	},
	CreditLimit:    {"this account's credit with the owner is used up", "settle or prepay with `gpufair settle`; if the owner set the limit by hand, only the owner raises it", "raise it with `gpufaird credit`"},
	StrangersTotal: {"the owner's credit for all strangers together is used up", "prepay with `gpufair settle`, or take another offer", "settle old debts, or raise credit.strangers_total"},
	OwnerPaused:    {"the owner stopped renting out", "take another offer, or try later", "`gpufaird resume` rents out again"},
	OwnerUsing:     {"the owner is using the device", "take another offer, or try later", nothing},
	Measuring:      {"the device is being measured", "try again in some minutes", "wait until `gpufaird benchmark` is done"},
	NotMeasured:    {"the device was not measured yet", "take another offer", "run `gpufaird benchmark`"},
	TermsChanged: {
		"the owner's use terms are not those that the order accepted",
		"search again and read the new terms", nothing,
	},
	DelegationPowers: {
		"the account does not let this device do that",
		"use another device of the account, or link this one again with the power it needs", "link the device again with the power it needs",
	},
	RuntimeDown:       {"the provider's container runtime does not answer", "take another offer", "run `gpufaird doctor`"},
	DiskFull:          {"the provider's disk is at its high-water mark", "take another offer", "free disk space, or lower `disk_reserve` in the settings"},
	ResourcesExceeded: {"the job asks for more than the lot has", "lower what the job asks for, or search for a larger lot", nothing},
	NotPreparing:      {"the lease is in another state than the request assumes", "look at `gpufair ps`", nothing},
	ClockSkew:         {"a message's time is more than 10 minutes off", "set this machine's clock", "set this machine's clock"},
	Duplicate:         {"this was already received", nothing, nothing},
	LedgerReadOnly:    {"the ledger is behind its own proofs and takes no entries", "run `gpufair ledger verify`", "run `gpufaird ledger verify`"},
	HistoryForked: {
		"the device signed two histories of its ledger, which the other side can prove", "this device is not served any more: stop the agent, run `gpufair identity rotate --device --force`, and start it again",
		"`gpufaird ledger witness` shows the proof",
	},
	LaneMismatch:   {"the voucher does not continue its lane", "run `gpufair ledger verify`", "compare both sides with `gpufaird ledger show`"},
	UnknownUnit:    {"the order counts in another unit of account than the offer", "order in the offer's unit", nothing},
	NotStated:      {"the offer does not state what the query asks about", "--allow-unknown lets it pass", "measure the device, or state it in the settings"},
	ConditionUnmet: {"the offer is not what the query asks for", "search for another, or drop the condition", nothing},
	LeaseInvalid: {
		"the provider signed something else than what was accepted",
		"take another provider; nothing is owed without a Ready", "both sides should run the same release",
	},

	AuctionUnknown:  {"the seller runs no such auction, or by rules that this release does not know", "look for open auctions again", nothing},
	AuctionClosed:   {"the commit came at or after the closing instant, and no later one is ever taken", "bid in the next auction, and earlier", nothing},
	RevealOver:      {"the opening came after its window, so it changes nothing", "open as soon as the Seal is seen; if the bid would have lost, the hold comes back", nothing},
	BidReplaced:     {"a later commit of the same account counts instead", nothing, nothing},
	BidUnopened:     {"the sealed bid was never shown, so its hold is posted", "keep the agent online until the auction is over", nothing},
	BidVoid:         {"the opened bid is not one that this auction takes", "bid again within what the auction says", nothing},
	BidUnbacked:     {"the bid comes to more over the minimum term than its commit holds", "commit with a larger hold: settle or prepay with `gpufair settle` for more credit", nothing},
	BidBelowReserve: {"the bid is below the lowest price that the owner takes", "bid at least the reserve, or search for a cheaper offer", "lower the reserve to sell to it"},
	Outbid:          {"others bid more", "bid more in the next auction, or take another offer", nothing},
	TieLost:         {"others bid the same and the Seal's hash ranks them first", "bid more in the next auction, or take another offer", nothing},
	WinDeclined:     {"the bid won, and its bidder withdrew for the fee", nothing, nothing},
	AuctionAborted:  {"the seller ended the auction without an award", "bid elsewhere; after a Seal the seller owes its bond to those who would have won", "an abort after the Seal costs the bond and is seen by all"},
	RaiseTooSmall:   {"the spot bid does not beat those that run by the step", "raise the rate, or wait until a lot is free", nothing},
	SpotOutbid:      {"a higher spot bid took the device", "raise the maximum of the standing bid, or buy at the offer's price", nothing},

	Completed:      {"the job exited by itself", "fetch the results with `gpufair results`", nothing},
	StoppedRenter:  {"the renter stopped the job or released the lease", nothing, nothing},
	NotReady:       {"the renter never acknowledged the lease, so it was withdrawn unpaid", "run the job again", nothing},
	PrepareTimeout: {"preparing took longer than the offer allows", "use a smaller image or inputs, or a provider that has them", nothing},
	QuoteFloor:     {"the price asked for is below what the owner quotes", "raise --max-price, or ask others", "lower `floor` or the price of the device to sell to it"},
	QuoteLimit:     {"too many quotes for this account hold devices here", "take or leave those, or wait half a minute", nothing},
	QuoteLapsed:    {"the quote stands no more", "ask again", nothing},
	QuoteDiffers:   {"the quote is not for what was asked", "ask again, or take another provider", nothing},
	QuoteSilent:    {"no quote came in time", "ask again, or buy at the offer's price", "check that the daemon is online"},
	NoQuote:        {"nobody quoted a price within --max-price", "raise --max-price, or drop it to buy at the offer's price", nothing},
	RegistryRefused: {
		"the owner does not pull images from that registry",
		"save the image and give its file, or take an offer with the registry (`gpufair show`)", "add it to `registries` in the settings to pull from there",
	},
	PullFailed: {
		"the image could not be pulled from its registry",
		"save the image and give its file, or try later", "the daemon's log says more",
	},
	ImageInvalid:   {"the file is not an image, or not one for this machine", "build the image for the offer's os and arch", nothing},
	CommandMissing: {"the image has no such command", "check the command's name and path inside the image", nothing},
	StartFailed:    {"the runtime could not start the job", "try another provider", "run `gpufaird doctor`"},
	TermOver:       {"the agreed term is over", "run again with a longer term", nothing},
	CreditOver:     {"the credit limit was reached while the job ran", "settle or prepay with `gpufair settle`", "settle, or raise the limit with `gpufaird credit`"},
	Disputed: {
		"one side disputes what a lease comes to", "`gpufair ledger dispute` shows it; agree on an amount with the owner, or wait until it is over",
		"`gpufaird ledger dispute` shows it; agree on an amount with the renter, or wait until it is over",
	},
	RenterGone:     {"no vouchers came and there is no allowance", "check that the agent runs and is online", nothing},
	OwnerReclaimed: {"the owner took the device back; the promised credit is off the charge", "run the job elsewhere", nothing},
	Equivocation: {
		"two vouchers with one sequence were signed: the provider keeps both as proof", "a key that two machines use signs like that: give each its own, `gpufair identity link`",
		"keep `gpufaird ledger proof` of the lease: it shows both vouchers to anybody",
	},
	Unanswered: {"too many leases of this account were not acknowledged", "wait some minutes; check that the agent stays online while it buys", "raise `serve.unanswered` in the settings if you know the account"},
	EvidenceDiffers: {
		"the provider signed for other evidence than it sent", "the money is not touched by it; keep `gpufair ledger proof` of the lease if you doubt what ran", "run `gpufaird ledger verify`",
	},
	ProviderRestarted: {"the provider's daemon was down; what ran meanwhile is not billed", nothing, nothing},
	RuntimeLost:       {"the container vanished", "run the job elsewhere", "run `gpufaird doctor`"},
	DeviceFault:       {"the device failed; nothing is charged after the fault", "run the job elsewhere", "run `gpufaird doctor` and measure the device again"},
	ProviderGone:      {"the provider could not be reached and the lease was released", "run the job elsewhere", "check the machine's power and network"},
	OutOfMemory:       {"the job went over its memory", "ask for more memory, or use less", nothing},
}

// Advice is the advice for c; ok is false for a code of a newer release.
func (c Code) Advice() (a Advice, ok bool) {
	a, ok = advice[c]
	return a, ok
}

// Known reports whether c is a code of this release.
func (c Code) Known() bool { _, ok := advice[c]; return ok }

// Codes lists every code of this release in order.
func Codes() []Code {
	all := make([]Code, 0, len(advice))
	for c := range advice {
		all = append(all, c)
	}
	slices.Sort(all)
	return all
}

// IsZero reports whether r says nothing.
func (r Reason) IsZero() bool { return r.Code == "" }

// String is what happened: the code's meaning with the figures of the case ("the order's rate is below the lot's price: floor 0.21").
// A code of a newer release is shown as it is.
func (r Reason) String() string {
	means := string(r.Code)
	if a, ok := advice[r.Code]; ok {
		means = a.Means
	}
	switch {
	case r.Detail == "":
		return means
	case means == "":
		return r.Detail
	}
	return means + ": " + r.Detail
}

// Error is [Reason.String] with the renter's next step, since refusals are read by the side that asked.
func (r Reason) Error() string {
	a, ok := advice[r.Code]
	if !ok || a.Renter == nothing {
		return r.String()
	}
	return r.String() + " (" + a.Renter + ")"
}

// MaxDetail is the longest detail of a reason, so that it fits the error of a stream with its code.
const MaxDetail = 256

// Clean is r as it may be shown or stored when a stranger sent it: printable, and not too long.
func (r Reason) Clean() Reason {
	return Reason{Code: Code(clean(string(r.Code), 64)), Detail: clean(r.Detail, MaxDetail)}
}

func clean(s string, limit int) string {
	s = strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f || (c >= 0x80 && c < 0xa0) || c == '\u2028' || c == '\u2029' || (c >= '\u202a' && c <= '\u202e') || (c >= '\u2066' && c <= '\u2069') {
			return -1
		}
		return c
	}, s)
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "")
}
