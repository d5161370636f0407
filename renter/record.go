package renter

import (
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// record is a job as the store keeps it, written with the ledger's entries in one transaction. Times are Unix milliseconds.
type record struct {
	Version    uint16             `cbor:"1,keyasint"`
	ID         market.LeaseID     `cbor:"2,keyasint"`
	Accept     []byte             `cbor:"3,keyasint"` // sealed
	Voucher    []byte             `cbor:"4,keyasint"` // sealed opening voucher
	Offer      []byte             `cbor:"5,keyasint"` // sealed
	OfferProof []byte             `cbor:"6,keyasint"` // its delegation
	Needs      work.Needs         `cbor:"7,keyasint"`
	Lease      []byte             `cbor:"8,keyasint,omitempty"` // sealed
	Peer       identity.PeerID    `cbor:"9,keyasint"`
	Provider   identity.AccountID `cbor:"10,keyasint"`
	Spec       work.Spec          `cbor:"11,keyasint"`
	ImagePath  string             `cbor:"12,keyasint"`
	InputPath  string             `cbor:"13,keyasint,omitempty"`
	Output     string             `cbor:"14,keyasint"`
	Name       string             `cbor:"15,keyasint,omitempty"`
	Budget     money.Micro        `cbor:"16,keyasint"`
	Agreed     int64              `cbor:"17,keyasint"`
	Started    int64              `cbor:"18,keyasint,omitempty"`
	Ended      int64              `cbor:"19,keyasint,omitempty"`
	State      work.State         `cbor:"20,keyasint"` // as the provider said last
	Reason     reason.Reason      `cbor:"21,keyasint"`
	Meter      []byte             `cbor:"22,keyasint,omitempty"` // this side's own measure
	Beat       uint64             `cbor:"23,keyasint"`           // last acknowledged
	Charge     money.Micro        `cbor:"24,keyasint"`           // as that beat claimed it
	Billable   uint64             `cbor:"25,keyasint"`           // milliseconds, as claimed
	Paid       money.Micro        `cbor:"26,keyasint"`           // signed for
	End        []byte             `cbor:"27,keyasint,omitempty"` // sealed market.End
	Release    []byte             `cbor:"28,keyasint,omitempty"` // sealed market.Release
	Exit       *market.Exit       `cbor:"29,keyasint,omitempty"`
	Outputs    wire.Hash          `cbor:"30,keyasint"` // manifest of the newest results that are here
	Results    string             `cbor:"31,keyasint"` // none, fetching, complete, partial, kept
	Final      bool               `cbor:"32,keyasint"` // nothing more will be done
	Ready      bool               `cbor:"33,keyasint"` // the lease was acknowledged
	Model      string             `cbor:"34,keyasint"`
	Rate       money.Rate         `cbor:"35,keyasint"`
	Unit       money.Unit         `cbor:"36,keyasint"`
	Devices    uint32             `cbor:"37,keyasint"`
	LogOffset  uint64             `cbor:"38,keyasint"`
	Platform   string             `cbor:"39,keyasint"`
	Asked      bool               `cbor:"40,keyasint,omitempty"` // to start
	Metering   bool               `cbor:"41,keyasint,omitempty"` // Meter ran at Sampled
	Sampled    int64              `cbor:"42,keyasint,omitempty"` // when Meter was stored
	Deliver    bool               `cbor:"43,keyasint,omitempty"` // release or newest voucher have not arrived
	Told       bool               `cbor:"44,keyasint,omitempty"` // the provider answered to the release
	GivenUp    *reason.Reason     `cbor:"46,keyasint,omitempty"` // the renter wants no more of it
	Whole      bool               `cbor:"45,keyasint,omitempty"` // Outputs are the final ones
	// Of the allowance for this side's absence:
	Away         uint32         `cbor:"47,keyasint,omitempty"` // seconds, to be allowed for when the job runs
	AwayMost     money.Micro    `cbor:"48,keyasint,omitempty"` // beyond what it costs then; 0: what the time costs
	Allowance    []byte         `cbor:"49,keyasint,omitempty"` // sealed voucher.Allowance
	Allowed      money.Micro    `cbor:"50,keyasint,omitempty"` // by it; by the one before if it was refused
	AllowedUntil int64          `cbor:"51,keyasint,omitempty"`
	AllowTold    bool           `cbor:"52,keyasint,omitempty"` // the provider answered to it
	AllowRefused *reason.Reason `cbor:"53,keyasint,omitempty"` // it was not taken, or could not be signed
	Taken        money.Micro    `cbor:"54,keyasint,omitempty"` // by the newest that the provider took: it stands when a later one is refused
	TakenUntil   int64          `cbor:"55,keyasint,omitempty"`
	Bid          *bid           `cbor:"56,keyasint,omitempty"` // in place of Accept, if the job is to have its lease by auction
	Quote        []byte         `cbor:"57,keyasint,omitempty"` // sealed, that Accept is under; none: at the offer's price
}

const recordVersion = 1

// States of results.
const (
	resultsNone     = "none"
	resultsFetching = "fetching"
	resultsComplete = "complete"
	resultsPartial  = "partial"
	resultsKept     = "kept" // here, and not in the output folder: somebody made it meanwhile, or its disk is full
)

const keyJob = "job/"

func jobKey(id market.LeaseID) []byte { return append([]byte(keyJob), id[:]...) }

const keyPeer = "peer/"

func peerKey(account identity.AccountID) []byte { return append([]byte(keyPeer), account[:]...) }
