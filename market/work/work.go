// Package work is what a lease runs, as values that provider and renter share: the job's spec and needs, its states and their legal
// transitions, beats, and the messages and protocol names of the conversations about it. It runs nothing.
package work

import (
	"slices"

	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Names of the conversations, for p2p.ProtocolID. docs/protocol.md has the table.
const (
	ProtoIdentity = "identity" // delegations by hash
	ProtoOffers   = "offers"   // snapshot of live offers
	ProtoProbe    = "probe"    // is this offer alive, and what is free
	ProtoPassport = "passport" // benchmark passports by hash
	ProtoTrade    = "trade"    // Accept -> Lease
	ProtoJob      = "job"      // ready, prepare, start, signal, status, release
	ProtoLane     = "lane"     // beats one way, vouchers the other
	ProtoLogs     = "logs"     // a job's output from an offset on
	ProtoBlob     = "blob"     // chunks by hash, both ways
	ProtoSettle   = "settle"   // newest vouchers, settlements
	ProtoRecover  = "recover"  // what a peer has of our dealings, after a restore
	ProtoWitness  = "witness"  // how each other's ledgers grew, cosignatures
	ProtoClaims   = "claims"   // reminders, disputes, payment details
	ProtoNet      = "net"      // circles of debts: finding and clearing them
	ProtoAuction  = "auction"  // sealed auctions: commits, openings, transcripts
	ProtoQuote    = "quote"    // a demand and the firm price for it
)

// State is where a lease stands (spec: jobs, Life of a lease).
type State uint8

// The states. They are never renumbered.
const (
	Agreed    State = 1 // signed by both; waits for Ready
	Preparing State = 2 // image and inputs on their way
	Running   State = 3 // the job runs and the meter with it
	Paused    State = 4 // the job is frozen; not billed
	Stopping  State = 5 // notice given: the job is ending
	Ended     State = 6
)

var stateNames = map[State]string{
	Agreed: "agreed", Preparing: "preparing", Running: "running", Paused: "paused", Stopping: "stopping", Ended: "ended",
}

// String is the state's name.
func (s State) String() string {
	if n, ok := stateNames[s]; ok {
		return n
	}
	return "unknown"
}

// MarshalText gives the name, for JSON.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads the name; an unknown one becomes 0.
func (s *State) UnmarshalText(b []byte) error {
	*s = 0
	for v, n := range stateNames {
		if n == string(b) {
			*s = v
		}
	}
	return nil
}

// next lists the legal transitions. Every state can end, since either side may vanish in any.
var next = map[State][]State{
	Agreed:    {Preparing, Ended},
	Preparing: {Running, Ended},
	Running:   {Paused, Stopping, Ended},
	Paused:    {Running, Stopping, Ended},
	Stopping:  {Ended},
	Ended:     nil,
}

// Can reports whether a lease may go from s to t.
func (s State) Can(t State) bool {
	return slices.Contains(next[s], t)
}

// Spec is a job. Its image and inputs are named by digest, so that the spec's hash says exactly what runs.
type Spec struct {
	Image    wire.Hash         `cbor:"1,keyasint" json:"image"`             // SHA-256 of the image's manifest (for this platform)
	Name     string            `cbor:"2,keyasint,omitempty" json:"name"`    // the image's name as the renter wrote it; for people
	Command  []string          `cbor:"3,keyasint,omitempty" json:"command"` // empty: the image's own
	Env      []string          `cbor:"4,keyasint,omitempty" json:"env"`     // KEY=value
	Dir      string            `cbor:"5,keyasint,omitempty" json:"dir"`     // working directory; empty: the image's own
	Inputs   wire.Hash         `cbor:"6,keyasint" json:"inputs"`            // of the manifest of /in; zero: none
	User     string            `cbor:"7,keyasint,omitempty" json:"user"`    // empty: the image's own
	Labels   map[string]string `cbor:"8,keyasint,omitempty" json:"labels"`  // the renter's own words; not shown to the job
	StopWait uint32            `cbor:"9,keyasint" json:"stop_wait"`         // seconds from SIGTERM to SIGKILL; 0: 10, at most 30
	// Source is the repository that the provider is to pull Image from ("registry.example.com/debian"); empty: the renter pushes it.
	Source string `cbor:"10,keyasint,omitempty" json:"source,omitempty"`
}

// Needs is what a job takes of a lot. Its hash is in the Accept.
type Needs struct {
	Kind      market.Kind `cbor:"1,keyasint" json:"kind"`
	Devices   uint32      `cbor:"2,keyasint" json:"devices"`
	MemoryMiB uint64      `cbor:"3,keyasint" json:"memory_mib"` // 0: all that comes with the lot
	DiskMiB   uint64      `cbor:"4,keyasint" json:"disk_mib"`   // 0: all that comes with the lot
}

// Limits of a spec, so that a stranger's job can't make the provider hold more.
const (
	MaxSpec    = 64 << 10 // bytes of an encoded spec
	MaxArgs    = 1024
	MaxEnv     = 1024
	MaxMessage = 128 << 10 // bytes of a job or trade message
	MaxBeat    = 16 << 10  // bytes of a lane message
)

// Order is the frame of [ProtoTrade]: an Accept with, beside it, the opening voucher and the renter's delegation.
type Order struct {
	Accept     []byte `cbor:"1,keyasint"` // sealed market.Accept
	Voucher    []byte `cbor:"2,keyasint"` // sealed voucher 0, opaque to market
	Delegation []byte `cbor:"3,keyasint"`
	Needs      Needs  `cbor:"4,keyasint"`
	Quote      []byte `cbor:"5,keyasint,omitempty"` // sealed market.Quote that the Accept is under; none: at the offer's price
}

// Sold is the answer to an [Order]: the signed lease. A repeat of the same Accept gets the same bytes.
type Sold struct {
	Lease      []byte `cbor:"1,keyasint"` // sealed market.Lease
	Delegation []byte `cbor:"2,keyasint"` // the provider's
}

// Action is what a renter asks about a lease on [ProtoJob].
type Action uint8

// The actions.
const (
	ActReady   Action = 1 // Signed holds a sealed market.Ready: agreed -> preparing
	ActPrepare Action = 2 // Spec names image and inputs; the answer lists the blobs that the provider lacks
	ActStart   Action = 3 // everything is there: preparing -> running
	ActSignal  Action = 4 // Signal goes to the job
	ActStop    Action = 5 // SIGTERM, Spec.StopWait, SIGKILL; the lease ends when the job has
	ActStatus  Action = 6
	ActRelease Action = 7  // Signed holds a sealed market.Release
	ActFetched Action = 8  // the renter has the results: the provider may wipe them
	ActSync    Action = 9  // pack what /out holds now, while the job runs; Status.Outputs names it
	ActAllow   Action = 10 // Signed holds a sealed voucher.Allowance, opaque to market
)

// Ask is the request of [ProtoJob]. The peer must be the device that signed the Accept.
type Ask struct {
	Lease  market.LeaseID `cbor:"1,keyasint"`
	Action Action         `cbor:"2,keyasint"`
	Spec   *Spec          `cbor:"3,keyasint,omitempty"`
	Signed []byte         `cbor:"4,keyasint,omitempty"`
	Signal string         `cbor:"5,keyasint,omitempty"` // "SIGINT"
}

// Status is the answer to every [Ask]: how the lease stands.
type Status struct {
	State    State         `cbor:"1,keyasint" json:"state"`
	Reason   reason.Reason `cbor:"2,keyasint" json:"reason"` // of a pause or an end
	Progress string        `cbor:"3,keyasint,omitempty" json:"progress,omitempty"`
	Missing  []wire.Hash   `cbor:"4,keyasint,omitempty" json:"missing,omitempty"` // blobs to push, by SHA-256 of the whole blob or manifest
	Billable uint64        `cbor:"5,keyasint" json:"billable_ms"`
	Charge   money.Micro   `cbor:"6,keyasint" json:"charge"`
	End      []byte        `cbor:"7,keyasint,omitempty" json:"-"` // sealed market.End
	Exit     *market.Exit  `cbor:"8,keyasint,omitempty" json:"exit,omitempty"`
	Outputs  wire.Hash     `cbor:"9,keyasint" json:"outputs"` // manifest of /out as it was last packed; zero: empty
	LogBytes uint64        `cbor:"10,keyasint" json:"log_bytes"`
	Complete bool          `cbor:"11,keyasint" json:"complete"` // ended, the process is gone and Outputs is final
}

// Beat is a provider's sign of life on [ProtoLane], one every [BeatInterval]. Every [TickInterval] and at each end of a rate segment it
// carries a claim, which the renter answers with a voucher.
type Beat struct {
	Seq      uint64      `cbor:"1,keyasint"` // rises with each beat of the lease, over restarts
	State    State       `cbor:"2,keyasint"`
	Billable uint64      `cbor:"3,keyasint"`           // milliseconds in all
	Charge   money.Micro `cbor:"4,keyasint"`           // cumulative
	Claim    bool        `cbor:"5,keyasint"`           // a voucher for Charge is asked for
	Evidence []byte      `cbor:"6,keyasint,omitempty"` // encoded [Evidence] of the interval that ends here, with a claim or at the end of a pause
	Status   *Status     `cbor:"7,keyasint,omitempty"` // at each change of state
}

// LaneOpen is the renter's first frame on [ProtoLane]; the provider's beats follow. The newest lane stream of a lease replaces older ones.
type LaneOpen struct {
	Lease market.LeaseID `cbor:"1,keyasint"`
	Acked uint64         `cbor:"2,keyasint"` // last beat that the renter has
}

// LaneOpened is the provider's answer to a [LaneOpen]; its [LaneDown] frames follow.
type LaneOpened struct {
	Beat uint64 `cbor:"1,keyasint"` // newest of the lease
}

// LaneUp is what the renter sends on a lane: an acknowledgement of each beat, with a voucher if the beat claimed one.
type LaneUp struct {
	Beat    uint64 `cbor:"1,keyasint"`
	Voucher []byte `cbor:"2,keyasint,omitempty"` // sealed
}

// LaneDown is what the provider sends on a lane: a beat, or the receipt for a voucher, or why the voucher was not taken.
type LaneDown struct {
	Beat    *Beat          `cbor:"1,keyasint,omitempty"`
	Receipt []byte         `cbor:"2,keyasint,omitempty"` // sealed
	Refused *reason.Reason `cbor:"3,keyasint,omitempty"`
}

// Times of a lease that both sides know, in seconds.
const (
	BeatInterval = 2    // between beats
	TickInterval = 10   // between claims: the meter's accumulator is persisted as often
	Suspected    = 5    // without a beat: shown to the renter
	ReadyIn      = 30   // from Lease to Ready
	PrepareIn    = 600  // free
	PauseUnpaid  = 30   // seconds of rent metered and not vouchered: the job is paused
	EndPaused    = 120  // after the pause
	KeepResults  = 3600 // after the end, until fetched
)
