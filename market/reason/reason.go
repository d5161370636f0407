// Package reason is the closed list of why something was refused or ended, each with what a person can do about it. It decides
// nothing: the packages that refuse choose a code and add the figures.
package reason

import "fmt"

// Code names a reason on the wire and in JSON. Codes are never renamed.
type Code string

// Why an offer was not sold, or a request refused.
const (
	OfferUnknown      Code = "offer_unknown"      // not an offer of this provider, or a withdrawn one
	OfferExpired      Code = "offer_expired"      // its time to live is over
	DeviceTaken       Code = "device_taken"       // somebody else's Accept came first
	PriceBelow        Code = "price_below"        // below the lot's price
	TermOutOfRange    Code = "term_out_of_range"  // shorter or longer than the lot allows
	NotServed         Code = "not_served"         // the owner does not serve this account
	CreditLimit       Code = "credit_limit"       // this account's credit is used up
	StrangersTotal    Code = "strangers_total"    // the owner's credit for all strangers together is used up
	OwnerPaused       Code = "owner_paused"       // the owner stopped renting out
	OwnerUsing        Code = "owner_using"        // the owner is using the card
	Measuring         Code = "measuring"          // the device is being measured
	NotMeasured       Code = "not_measured"       // the device was not measured yet
	TermsChanged      Code = "terms_changed"      // the owner's use terms are not those that were accepted
	DelegationPowers  Code = "delegation_powers"  // the device may not do this for its account
	RuntimeDown       Code = "runtime_down"       // the provider's container runtime does not answer
	DiskFull          Code = "disk_full"          // the provider's disk is at its high-water mark
	ResourcesExceeded Code = "resources_exceeded" // the job asks for more than the lot has
	NotPreparing      Code = "not_preparing"      // the lease is in another state
	ClockSkew         Code = "clock_skew"         // an advert's time is more than 10 minutes off
	Duplicate         Code = "duplicate"          // already have it
	LedgerReadOnly    Code = "ledger_read_only"   // the ledger is behind its own proofs: recover first
	HistoryForked     Code = "history_forked"     // the device signed two histories of its ledger, and the other side holds the proof
	LaneMismatch      Code = "lane_mismatch"      // the voucher does not continue its lane
	UnknownUnit       Code = "unknown_unit"       // another unit of account than the offer's
	Equivocation      Code = "equivocation"       // the renter signed two vouchers with one sequence
	Unanswered        Code = "unanswered"         // too many leases of this account were not acknowledged
	RegistryRefused   Code = "registry_refused"   // the owner does not pull from the image's registry
	LeaseInvalid      Code = "lease_invalid"      // the provider signed something else than what was accepted
	NotStated         Code = "not_stated"         // the offer does not state what the query asks about
	ConditionUnmet    Code = "condition_unmet"    // the offer is not what the query asks for
	QuoteFloor        Code = "quote_floor"        // a demand's highest price is below what the owner quotes
	QuoteLimit        Code = "quote_limit"        // too many quotes of this account hold devices here
	QuoteLapsed       Code = "quote_lapsed"       // the quote stands no more
	QuoteDiffers      Code = "quote_differs"      // a quote or an accept under it says something else than was asked or quoted
	QuoteSilent       Code = "quote_silent"       // no answer to a demand in time
	NoQuote           Code = "no_quote"           // nobody quoted a price that the demand takes
)

// Why a bid was not taken, or did not win.
const (
	AuctionUnknown  Code = "auction_unknown"   // no such auction here, or one of other rules
	AuctionClosed   Code = "auction_closed"    // the commit came at or after the closing instant
	RevealOver      Code = "reveal_over"       // the opening came at or after the end of the reveal window
	BidReplaced     Code = "bid_replaced"      // a later commit of the same account counts instead
	BidUnopened     Code = "bid_unopened"      // sealed and never shown: its hold is posted
	BidVoid         Code = "bid_void"          // opened, and not a bid that this auction takes
	BidUnbacked     Code = "bid_unbacked"      // opened, and dearer than what its commit holds
	BidBelowReserve Code = "bid_below_reserve" // below the auction's reserve or the spot floor
	Outbid          Code = "outbid"            // others bid more
	TieLost         Code = "tie_lost"          // others bid the same and rank before
	WinDeclined     Code = "win_declined"      // it won and withdrew for the fee
	AuctionAborted  Code = "auction_aborted"   // the seller ended the auction without an award
	RaiseTooSmall   Code = "raise_too_small"   // a spot bid that does not beat those that run by the step
	SpotOutbid      Code = "spot_outbid"       // a running spot lease was outbid and not raised
)

// Why a lease ended.
const (
	Completed         Code = "completed"          // the job exited by itself
	StoppedRenter     Code = "stopped_renter"     // the renter stopped the job or released the lease
	NotReady          Code = "not_ready"          // the renter never acknowledged the lease
	PrepareTimeout    Code = "prepare_timeout"    // preparing took longer than the offer allows
	PullFailed        Code = "pull_failed"        // the registry did not give the image
	ImageInvalid      Code = "image_invalid"      // not an image, or not for this machine
	CommandMissing    Code = "command_missing"    // the image has no such command
	StartFailed       Code = "start_failed"       // the runtime could not start the job
	TermOver          Code = "term_over"          // the agreed term is over
	CreditOver        Code = "credit_over"        // credit limit reached: settle or prepay
	Disputed          Code = "disputed"           // one side disputes what a lease comes to: it ends, and nothing new is agreed on meanwhile
	RenterGone        Code = "renter_gone"        // no vouchers, and no allowance
	OwnerReclaimed    Code = "owner_reclaimed"    // the owner took the device back
	RuntimeLost       Code = "runtime_lost"       // the container vanished
	EvidenceDiffers   Code = "evidence_differs"   // a receipt names other evidence than was sent with its claim
	ProviderRestarted Code = "provider_restarted" // what ran while the provider was down is not billed
	DeviceFault       Code = "device_fault"       // the device failed
	ProviderGone      Code = "provider_gone"      // the renter lost the provider and released the lease
	OutOfMemory       Code = "out_of_memory"      // the job went over its memory
)

// Reason is a code with the figures of the case, for people.
type Reason struct {
	Code   Code   `cbor:"1,keyasint" json:"code"`
	Detail string `cbor:"2,keyasint,omitempty" json:"detail,omitempty"`
}

// New makes a reason; the format gives the figures ("2 of 4 GPUs free").
func New(code Code, format string, args ...any) Reason {
	return Reason{Code: code, Detail: fmt.Sprintf(format, args...)}
}
