package provider

import (
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/auction"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
	"github.com/gpufair/gpufair/provider/capacity"
)

// record is a lease as the store keeps it. It is written with the ledger's entries in one transaction, so a lease and its money never
// disagree. Times are Unix milliseconds by the local clock, for people and for windows that outlive a restart.
type record struct {
	Version   uint16             `cbor:"1,keyasint"`
	Accept    []byte             `cbor:"2,keyasint"` // sealed
	Lease     []byte             `cbor:"3,keyasint"` // sealed
	End       []byte             `cbor:"4,keyasint,omitempty"`
	Peer      identity.PeerID    `cbor:"5,keyasint"`
	Renter    identity.AccountID `cbor:"6,keyasint"`
	State     work.State         `cbor:"7,keyasint"`
	Reason    reason.Reason      `cbor:"8,keyasint"`
	Needs     work.Needs         `cbor:"9,keyasint"`
	Spec      *work.Spec         `cbor:"10,keyasint,omitempty"`
	Agreed    int64              `cbor:"11,keyasint"`
	Ready     int64              `cbor:"12,keyasint,omitempty"`
	Started   int64              `cbor:"13,keyasint,omitempty"`
	Paused    int64              `cbor:"14,keyasint,omitempty"` // start of the pause
	Ended     int64              `cbor:"15,keyasint,omitempty"`
	Meter     []byte             `cbor:"16,keyasint,omitempty"`
	Beat      uint64             `cbor:"17,keyasint"` // no beat up to here will be sent again
	Charge    money.Micro        `cbor:"18,keyasint"`
	Billable  uint64             `cbor:"19,keyasint"`
	Exit      *market.Exit       `cbor:"20,keyasint,omitempty"`
	Outputs   wire.Hash          `cbor:"21,keyasint"`
	Wiped     bool               `cbor:"22,keyasint"`
	Released  []byte             `cbor:"23,keyasint,omitempty"` // sealed market.Release
	Model     string             `cbor:"24,keyasint"`
	Rate      money.Rate         `cbor:"25,keyasint"`
	Unit      money.Unit         `cbor:"26,keyasint"`
	Devices   []wire.Hash        `cbor:"27,keyasint"`
	Term      uint32             `cbor:"28,keyasint"` // seconds
	Folders   Folders            `cbor:"29,keyasint"`
	LogBytes  uint64             `cbor:"30,keyasint"`
	Vouchered money.Micro        `cbor:"31,keyasint"` // by the newest accepted voucher
	Credited  bool               `cbor:"32,keyasint"` // the reclaim credit was taken off
	Fetched   bool               `cbor:"33,keyasint"` // the renter has the results
	LotID     uint8              `cbor:"34,keyasint"`
	Stopping  int64              `cbor:"35,keyasint,omitempty"` // since when the job is being stopped
	Tidy      bool               `cbor:"36,keyasint"`           // the container is gone, the devices are given back, the results packed
	Wait      uint32             `cbor:"37,keyasint"`           // milliseconds that a stopping job may take
	// What the lease comes with, as it was sold: a reload changes nothing of it.
	Cores      []int    `cbor:"38,keyasint"`
	MemoryMiB  uint64   `cbor:"39,keyasint"`
	DiskMiB    uint64   `cbor:"40,keyasint"`
	Pids       int64    `cbor:"41,keyasint"`
	EgressRate uint64   `cbor:"47,keyasint,omitempty"` // bytes a second; 0: no egress
	EgressCap  uint64   `cbor:"48,keyasint,omitempty"`
	Traffic    *Traffic `cbor:"49,keyasint,omitempty"` // of the job's egress, once it has ended
	Lost       string   `cbor:"42,keyasint,omitempty"` // why there are no results, for the renter
	// Signed records that only proofs need.
	Offer       []byte `cbor:"43,keyasint,omitempty"`
	ReadySigned []byte `cbor:"44,keyasint,omitempty"`
	// Auction is the Open of the auction that made the lease: Accept is then the winning opening.
	Auction []byte `cbor:"45,keyasint,omitempty"`
	// Discount is what comes off the charge: the winner's part of the bond for bids that stayed sealed.
	Discount money.Micro `cbor:"46,keyasint,omitempty"`
}

// order is what the lease was sold for: the Accept, or what a winning opening comes to.
func (r *record) order() (market.Accept, error) {
	if len(r.Auction) == 0 {
		return market.OpenAccept(r.Accept)
	}
	o, err := auction.ReadOpen(r.Auction)
	if err != nil {
		return market.Accept{}, err
	}
	opening, _, err := auction.DecodeOpening(r.Accept)
	if err != nil {
		return market.Accept{}, err
	}
	return auction.AcceptOf(o, opening, money.Micro(r.Rate))
}

// take adds a device's share to what the lease comes with.
func (r *record) take(lot Lot) {
	r.Devices = append(r.Devices, lot.Device)
	r.Cores = append(r.Cores, lot.Cores...)
	r.MemoryMiB += lot.MemoryMiB
	r.DiskMiB += lot.DiskMiB
	r.Pids += lot.Pids
}

// memoryBytes and diskBytes are what the job may use: what comes with the devices, or less if it needs less.
func (r *record) memoryBytes() int64 { return int64(needed(r.Needs.MemoryMiB, r.MemoryMiB)) << 20 }

// diskBytes is also what its unpacked image may take.
func (r *record) diskBytes() int64 { return int64(needed(r.Needs.DiskMiB, r.DiskMiB)) << 20 }

func needed(want, has uint64) uint64 {
	if want > 0 && want < has {
		return want
	}
	return has
}

// since is when the record's state began, in Unix milliseconds.
func (r *record) since() int64 {
	switch r.State {
	case work.Agreed:
		return r.Agreed
	case work.Preparing:
		return r.Ready
	case work.Paused:
		return r.Paused
	case work.Stopping:
		return r.Stopping
	case work.Ended:
		return r.Ended
	}
	return r.Started
}

const recordVersion = 1

// Keys in the provider's part of the store.
const (
	keyLease    = "lease/"    // + id: record
	keySlot     = "slot/"     // + device: capacity.Slot
	keyPassport = "passport/" // + device: sealed passport
	keyImage    = "image/"    // + manifest: Unix milliseconds of its last use
	keyPause    = "pause"     // pauseRecord
	keySeq      = "seq"       // last serial number of an offer

	keyAuction = "auction/"       // + id: auctionRecord
	keyLeaf    = "auction-leaf/"  // + id + leaf: leafRecord
	keyShown   = "auction-shown/" // + id + leaf: shownRecord
	keyQuote   = "quote/"         // + hash: quoteRecord
)

func leaseKey(id market.LeaseID) []byte      { return append([]byte(keyLease), id[:]...) }
func deviceKey(p string, h wire.Hash) []byte { return append([]byte(p), h[:]...) }

// freeSlots writes the devices of an ended lease as free, generations kept.
func freeSlots(tx kv.Tx, slots []capacity.Slot) error {
	for _, s := range slots {
		s.Lease = nil
		if err := kv.Save(tx, deviceKey(keySlot, s.Device), s); err != nil {
			return err
		}
	}
	return nil
}
