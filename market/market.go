// Package market says what strangers agree on: offers, accepts, leases and their ends, as values with validation and legal
// transitions. It takes values and gives values: no network, no disk, no clock and no randomness of its own.
package market

import (
	"github.com/gpufair/gpufair/benchmark"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Domains of the signed records. docs/protocol.md has the table.
const (
	DomainOffer     identity.Domain = "gpufair/offer/1"
	DomainHeartbeat identity.Domain = "gpufair/heartbeat/1"
	DomainTombstone identity.Domain = "gpufair/tombstone/1"
	DomainAccept    identity.Domain = "gpufair/accept/1"
	DomainLease     identity.Domain = "gpufair/lease/1"
	DomainReady     identity.Domain = "gpufair/ready/1"
	DomainRelease   identity.Domain = "gpufair/release/1"
	DomainEnd       identity.Domain = "gpufair/end/1"
)

// Limits of the records (spec: market, Terms).
const (
	MaxOffer     = 2 << 10 // bytes of a sealed offer
	MaxHeartbeat = 256     // bytes of a sealed heartbeat
	MaxLots      = 8
	MaxFigures   = 16
	MaxAddrs     = 3
	MaxSlots     = 16 // devices of one lot
)

// Kind is what a lot's devices are.
type Kind string

// The kinds of device.
const (
	KindGPU Kind = "gpu"
	KindCPU Kind = "cpu" // never a fake GPU: num_gpus is 0
)

// Offer is a provider's signed, short-lived advertisement: one per provider, its lots inside.
type Offer struct {
	identity.Header
	Delegation wire.Hash  `cbor:"4,keyasint"`
	Seq        uint64     `cbor:"5,keyasint"` // rises with each advert of the device, over restarts: offers, heartbeats and tombstones share it
	IssuedAt   int64      `cbor:"6,keyasint"` // Unix milliseconds; only to drop junk
	TTL        uint32     `cbor:"7,keyasint"` // seconds
	Heartbeat  uint32     `cbor:"8,keyasint"` // seconds between heartbeats; three missed make the offer dead
	Region     string     `cbor:"9,keyasint,omitempty"`
	Unit       money.Unit `cbor:"10,keyasint"`
	Lots       []Lot      `cbor:"11,keyasint"`
	Terms      Terms      `cbor:"12,keyasint"`
	Credit     Credit     `cbor:"13,keyasint"`
	Addrs      []string   `cbor:"14,keyasint,omitempty"` // multiaddresses without /p2p
}

// Lot is k equal devices with a price.
type Lot struct {
	ID        uint8              `cbor:"1,keyasint"` // within the provider, stable over offers
	Kind      Kind               `cbor:"2,keyasint"`
	Model     string             `cbor:"3,keyasint"` // as the driver names it; Vast's spelling in queries: spaces are underscores
	Slots     []Slot             `cbor:"4,keyasint"` // one per device
	Cores     uint32             `cbor:"5,keyasint"` // CPU cores that come with each device
	MemoryMiB uint64             `cbor:"6,keyasint"` // main memory that comes with each device
	DiskMiB   uint64             `cbor:"7,keyasint"` // scratch and outputs of a job
	VRAMMiB   uint64             `cbor:"8,keyasint,omitempty"`
	Driver    string             `cbor:"9,keyasint,omitempty"`
	Price     money.Rate         `cbor:"10,keyasint"`           // per device-hour, instant
	Reserve   money.Rate         `cbor:"11,keyasint,omitempty"` // lowest price of an auction
	SpotFloor money.Rate         `cbor:"12,keyasint,omitempty"`
	Prepare   money.Rate         `cbor:"13,keyasint,omitempty"` // while preparing beyond the free minutes
	MinTerm   uint32             `cbor:"14,keyasint"`           // seconds
	MaxTerm   uint32             `cbor:"15,keyasint"`           // seconds
	Passport  wire.Hash          `cbor:"16,keyasint"`           // of the benchmark passport, fetched on demand
	Figures   []benchmark.Figure `cbor:"17,keyasint,omitempty"`
}

// Slot is one device of a lot: the hash of its UUID and whether it is free.
type Slot struct {
	Device wire.Hash `cbor:"1,keyasint"`
	Free   bool      `cbor:"2,keyasint"`
}

// Terms is what an owner promises and wants besides the price.
type Terms struct {
	Sandbox     string     `cbor:"1,keyasint"` // "runc" or "gvisor"
	Egress      string     `cbor:"2,keyasint"` // "none" or "internet"
	InPerGiB    money.Rate `cbor:"3,keyasint,omitempty"`
	OutPerGiB   money.Rate `cbor:"4,keyasint,omitempty"`
	StorePerGiB money.Rate `cbor:"5,keyasint,omitempty"` // per GiB-hour
	Notice      uint32     `cbor:"6,keyasint"`           // seconds before a reclaim
	Until       int64      `cbor:"7,keyasint,omitempty"` // promised not to reclaim before; Unix seconds, 0: no promise
	Reclaim     uint32     `cbor:"8,keyasint"`           // seconds of rent credited at a reclaim
	Settlement  []string   `cbor:"9,keyasint"`           // methods, such as "manual"
	DueDays     uint32     `cbor:"10,keyasint"`
	Use         wire.Hash  `cbor:"11,keyasint"`           // of the owner's use terms
	OS          string     `cbor:"12,keyasint"`           // of the job: "linux"
	Arch        string     `cbor:"13,keyasint"`           // "amd64" or "arm64"
	EgressRate  uint64     `cbor:"14,keyasint,omitempty"` // bytes a second each way; 0 without egress
	EgressCap   uint64     `cbor:"15,keyasint,omitempty"` // bytes of a lease, both ways together; 0 without egress
	Registries  []string   `cbor:"16,keyasint,omitempty"` // hosts of registries that the owner pulls images from; none: renters push theirs
}

// Credit is the three limits of spec/ledger.md, in micro-units of the offer's unit.
type Credit struct {
	Stranger       money.Micro `cbor:"1,keyasint"` // for one account without settled history
	StrangersTotal money.Micro `cbor:"2,keyasint"` // for all of them together
	KnownPercent   uint32      `cbor:"3,keyasint"` // of what an account has settled
	KnownCap       money.Micro `cbor:"4,keyasint"`
}

// Heartbeat says that an offer still stands, and what is free. It has no delegation: the offer it names does.
type Heartbeat struct {
	identity.Header
	Seq      uint64   `cbor:"5,keyasint"` // see Offer
	IssuedAt int64    `cbor:"6,keyasint"` // Unix milliseconds
	Offer    [16]byte `cbor:"7,keyasint"` // start of the offer's hash
	Free     uint64   `cbor:"8,keyasint"` // bit i: slot i free, slots counted through the lots in order
}

// Tombstone withdraws a device's offers up to Seq.
type Tombstone struct {
	identity.Header
	Seq      uint64 `cbor:"5,keyasint"` // see Offer
	IssuedAt int64  `cbor:"6,keyasint"` // Unix milliseconds
}

// Accept is the renter's binding order at the offer's price.
type Accept struct {
	identity.Header
	Delegation wire.Hash          `cbor:"4,keyasint"`
	Offer      wire.Hash          `cbor:"5,keyasint"`
	Provider   identity.AccountID `cbor:"6,keyasint"` // whose offer it is
	Lot        uint8              `cbor:"7,keyasint"`
	Quantity   uint32             `cbor:"8,keyasint"` // devices
	Rate       money.Rate         `cbor:"9,keyasint"` // per device-hour
	Unit       money.Unit         `cbor:"10,keyasint"`
	Term       uint32             `cbor:"11,keyasint"` // seconds, at most
	Nonce      wire.Hash          `cbor:"12,keyasint"` // random: makes the lease's id
	Needs      wire.Hash          `cbor:"13,keyasint"` // of the job's needs (work.Needs)
	Use        wire.Hash          `cbor:"14,keyasint"` // of the owner's use terms that the renter accepted
	Voucher    wire.Hash          `cbor:"15,keyasint"` // of the opening voucher beside it in the frame
}

// LeaseID names a lease: SHA-256("gpufair/lease/1" | offer hash | renter account | nonce). Both sides know it before the Lease exists.
type LeaseID wire.Hash

// ID is the id of the lease that a makes.
func (a Accept) ID() LeaseID {
	return LeaseID(wire.Sum("gpufair/lease/1", a.Offer[:], a.Account[:], a.Nonce[:]))
}

// String is the id in hex.
func (id LeaseID) String() string { return wire.Hash(id).String() }

// Short is the first 12 hex digits, as people use it.
func (id LeaseID) Short() string { return wire.Hash(id).Short() }

// MarshalText gives the id in hex.
func (id LeaseID) MarshalText() ([]byte, error) { return wire.Hash(id).MarshalText() }

// UnmarshalText reads the id from hex.
func (id *LeaseID) UnmarshalText(b []byte) error { return (*wire.Hash)(id).UnmarshalText(b) }

// UnmarshalCBOR reads exactly 32 bytes.
func (id *LeaseID) UnmarshalCBOR(b []byte) error { return (*wire.Hash)(id).UnmarshalCBOR(b) }

// SlotGeneration is one device of a lease. The generation is a counter in the provider's store that rises with each lease of the
// device: two leases with equal account, slot and generation and different ids prove a double lease.
type SlotGeneration struct {
	Device     wire.Hash `cbor:"1,keyasint"`
	Generation uint64    `cbor:"2,keyasint"`
}

// Lease is the provider's signature under an Accept: the only thing that lets a container start and a meter run.
type Lease struct {
	identity.Header
	Delegation wire.Hash        `cbor:"4,keyasint"`
	ID         LeaseID          `cbor:"5,keyasint"`
	Accept     []byte           `cbor:"6,keyasint"` // the envelope's exact bytes
	Slots      []SlotGeneration `cbor:"7,keyasint"`
	Hold       money.Micro      `cbor:"8,keyasint"`  // rate x minimum term, held on the renter's credit
	Credit     money.Micro      `cbor:"9,keyasint"`  // what the renter may owe on all lanes together at this moment
	ReadyIn    uint32           `cbor:"10,keyasint"` // seconds until the unacknowledged lease is withdrawn
	PrepareIn  uint32           `cbor:"11,keyasint"` // free seconds of preparing
}

// Ready is the renter's acknowledgement of a Lease.
type Ready struct {
	identity.Header
	Delegation wire.Hash `cbor:"4,keyasint"`
	Lease      LeaseID   `cbor:"5,keyasint"`
	Hash       wire.Hash `cbor:"6,keyasint"` // of the Lease's bytes
}

// Release is the renter's end of a lease, in any state. It caps the charge at the last acknowledged beat, whenever it arrives.
type Release struct {
	identity.Header
	Delegation wire.Hash     `cbor:"4,keyasint"`
	Lease      LeaseID       `cbor:"5,keyasint"`
	Beat       uint64        `cbor:"6,keyasint"` // sequence of the last acknowledged beat; 0: none
	Charge     money.Micro   `cbor:"7,keyasint"` // cumulative, as that beat claimed it
	Reason     reason.Reason `cbor:"8,keyasint"`
}

// End is the provider's last word on a lease.
type End struct {
	identity.Header
	Delegation wire.Hash        `cbor:"4,keyasint"`
	Lease      LeaseID          `cbor:"5,keyasint"`
	Slots      []SlotGeneration `cbor:"6,keyasint"`
	Reason     reason.Reason    `cbor:"7,keyasint"`
	Charge     money.Micro      `cbor:"8,keyasint"` // cumulative, after credits
	Billable   uint64           `cbor:"9,keyasint"` // milliseconds
	Exit       *Exit            `cbor:"10,keyasint,omitempty"`
	Wiped      bool             `cbor:"11,keyasint"` // scratch, inputs and outputs were removed
}

// Exit is how a job's process ended.
type Exit struct {
	Code   int32  `cbor:"1,keyasint" json:"code"`
	Signal string `cbor:"2,keyasint,omitempty" json:"signal,omitempty"` // "SIGKILL"
	OOM    bool   `cbor:"3,keyasint,omitempty" json:"oom,omitempty"`
}
