package books

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/meter"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Keys of the books' part of the store. Names are part of the format on disk.
//
//	seq                          last transaction in the journal
//	head                         size and root of the log
//	e/<index>                    leaf of an entry: salt and exact bytes
//	h/<number>                   stored hash of the log
//	id/<entry id>                index of the entry: the idempotency key
//	bal/<unit>/<account>         balance, micro-units
//	acct/<role><unit>/<peer>     [Account]: the counterparty's standing
//	xp/<unit>/<peer>             listed: a renter who owes or holds something
//	lane/<lane>                  [Lane]
//	le/<lane>/<index>            entries of a lane
//	lp/<peer>/<lane>             lanes of a counterparty
//	v/<lane>/<sequence>          voucher as signed
//	vh/<voucher hash>            lane and sequence
//	r/<voucher hash>             receipt as signed
//	seg/<lane>                   rate segments of the newest voucher
//	ev/<lane>/<place>            [Interval]: evidence of an interval and the voucher that paid it
//	al/<lane>                    allowance as signed
//	d/<hash>                     delegation as signed
//	own/<device>                 [ownDevice]: whose leases this ledger books
//	sis/<device><lane>           [skipped]: a lane of another device of this account that a peer gave back
//	rv/<account>/<device>        highest revocation of a device, as signed
//	ky/<account>                 longest list of changes of an account's key
//	fk/<account>                 [TwoKeys]: two that claim to follow one key
//	hold/<id>                    [Held]: a hold that no lane has
//	due/<role><unit>/<peer>/<end><lane>  lanes that have ended, newest first: the end is inverted
//	rem/<role><unit>/<peer>      [Reminder]: the last one that was sent, or as renter that came
//	bill/<role><unit>/<peer>     [Bill]: the newest invoice
//	set/<id>                     [Settled]
//	pay/<payment>                id of the settlement with that outside reference
//	refs                         how far the index of references reaches
//	ref/<reference>/<id>         settlements that this provider signed under that reference
//	wait/<peer>/<id>             settlements that wait for this side's decision
//	prop/<peer>/<id>             settlements that wait for the other side's
//	net/<id>                     [Netted]
//	nw/<id>                      clearings in which something is still to be done
//	nr/<role><unit>/<peer>/<id>  amount that a clearing has set aside of a debt
//	dis/<lane>                   [Dispute]
//	fraud/<lane>                 two vouchers with one sequence
//	wit/<device><epoch>          [witnessed]: what is known of another device's log
//	seen/<device><epoch>/<slot>  heads of it that were not checked yet
//	cos/<device>                 [cosignedBy]: newest head of this log that it cosigned
//	ask/<device>                 it is to be asked about its log soon
//	fork/<device>                two heads of one size with different roots
//	epoch                        of the ledger, see keyEpoch
//	ep/<device>                  highest epoch that a renter's device opened a lane in
//	restored                     time of the newest restore
//	un/<lane>                    [unsure]: its newest voucher is not known since then
//	rec/<account>                [Pending]: it is to be asked what was lost
//	terms/<lane>                 [keptTerms]: records of another wing that came back with a lane
//	stray/<lane>                 account: the lane came back open, and no lease here knows of it
//	want/<lane>                  [wanted]: its trail is to be asked for
const (
	keySeq  = "seq"
	keyHead = "head"
)

func key(prefix string, parts ...[]byte) []byte {
	k := []byte(prefix)
	for _, p := range parts {
		k = append(k, p...)
	}
	return k
}

func be8(v uint64) []byte { return binary.BigEndian.AppendUint64(nil, v) }

// Lane is what the books know of one lane. Both sides have the same amounts.
type Lane struct {
	Channel  ledger.Channel  `cbor:"1,keyasint"`
	Lane     ledger.Lane     `cbor:"2,keyasint"`
	Device   identity.PeerID `cbor:"3,keyasint"` // the renter's, which signs the lane's vouchers
	Proof    wire.Hash       `cbor:"4,keyasint"` // of its delegation
	Rate     money.Rate      `cbor:"5,keyasint"`
	Devices  uint32          `cbor:"6,keyasint"`
	Hold     money.Micro     `cbor:"7,keyasint"`  // as it was opened
	HoldLeft money.Micro     `cbor:"8,keyasint"`  // not yet used by vouchers; 0 once closed
	Seq      uint64          `cbor:"9,keyasint"`  // of the newest voucher
	Amount   money.Micro     `cbor:"10,keyasint"` // of the newest voucher
	Quantity uint64          `cbor:"11,keyasint"` // of the newest voucher
	Voucher  wire.Hash       `cbor:"12,keyasint"` // the newest
	Receipt  wire.Hash       `cbor:"13,keyasint"` // of the newest voucher's receipt; zero: none yet
	Metered  money.Micro     `cbor:"14,keyasint"` // the provider's meter as it last said; the final charge once closed
	Final    *money.Micro    `cbor:"15,keyasint"` // charge with which the lane ended
	Settled  money.Micro     `cbor:"16,keyasint"` // part of the amount that was listed in a settlement
	Opened   int64           `cbor:"17,keyasint"` // Unix milliseconds
	Changed  int64           `cbor:"18,keyasint"` // Unix milliseconds
	Receipts uint64          `cbor:"19,keyasint"` // sequence of the newest voucher that has a receipt; the opening one needs none
	DueDays  uint32          `cbor:"20,keyasint"` // after its end, by the terms of the sale
	Ended    int64           `cbor:"21,keyasint"` // Unix milliseconds; 0 until it is closed
	Disputed int64           `cbor:"23,keyasint"` // Unix milliseconds: the end of the dispute that froze it; 0: none
	Agreed   bool            `cbor:"24,keyasint"` // both signed what it comes to: no later end changes it
	// The newest allowance for the renter's absence.
	Allowed      money.Micro `cbor:"25,keyasint"` // cumulative; 0: none
	AllowedUntil int64       `cbor:"26,keyasint"` // Unix milliseconds
	Lapsed       bool        `cbor:"27,keyasint"` // its time is over

	Restored bool `cbor:"22,keyasint"` // it was open when the ledger was restored: records of it may have been lost
}

// Missing is how many vouchers after the last receipt have none: at two, the renter stops paying (spec: ledger, Rules).
func (l Lane) Missing() uint64 { return l.Seq - min(l.Seq, l.Receipts) }

// Closed reports whether the lane has ended.
func (l Lane) Closed() bool { return l.Final != nil }

// Owed is what the lane's vouchers promise: the newest amount, but not more than the final charge.
func (l Lane) Owed() money.Micro {
	if l.Final != nil {
		return min(l.Amount, *l.Final)
	}
	return l.Amount
}

// Unvouchered is what was metered and not vouchered.
func (l Lane) Unvouchered() money.Micro { return l.Metered - min(l.Metered, l.Amount) }

// Open is the lane's part of the exposure beyond its vouchers: the largest of the hold that is left, what an allowance lets be metered,
// and what was metered and not vouchered, since the former two are there to cover that.
func (l Lane) Open() money.Micro { return max(l.HoldLeft, l.Unvouchered(), l.allowed()) }

// Held is a hold that no lane has: a bid's.
type Held struct {
	Channel ledger.Channel `cbor:"1,keyasint"`
	Amount  money.Micro    `cbor:"2,keyasint"`
	Left    money.Micro    `cbor:"3,keyasint"`
}

// Account is how this account stands with one counterparty in one unit and role. As provider the standing is the counterparty's, as
// renter it is our own with it.
type Account struct {
	ledger.Standing
	Lanes     uint64 `cbor:"20,keyasint"` // ever opened
	LastEntry int64  `cbor:"21,keyasint"` // Unix milliseconds
	// What is needed to know at a glance whether a payment is late: see due.go.
	DueAt    int64       `cbor:"22,keyasint"` // Unix milliseconds: when the oldest unpaid debt is due; 0: none that has a due time
	Running  money.Micro `cbor:"23,keyasint"` // promised by lanes that have not ended
	LastPaid int64       `cbor:"24,keyasint"` // Unix milliseconds
	// DisputedUntil is the end of the last open dispute, in Unix milliseconds: nothing new is agreed on before.
	DisputedUntil int64 `cbor:"25,keyasint"`
}

// SettlementState is where a settlement stands. States are never renumbered.
type SettlementState uint8

// The states.
const (
	Proposed SettlementState = 1 // this account has signed
	Waiting  SettlementState = 2 // the counterparty has signed, this account has not decided
	Signed   SettlementState = 3 // both have: it counts
	Refused  SettlementState = 4
)

var settlementNames = map[SettlementState]string{Proposed: "proposed", Waiting: "waiting", Signed: "signed", Refused: "refused"}

// String is the state's name.
func (s SettlementState) String() string { return settlementNames[s] }

// Settled is a settlement with the signatures that it has so far.
type Settled struct {
	State    SettlementState `cbor:"1,keyasint"`
	Proposal []byte          `cbor:"2,keyasint"`
	Counter  []byte          `cbor:"3,keyasint,omitempty"`
	Why      string          `cbor:"4,keyasint,omitempty"` // of a refusal
	Changed  int64           `cbor:"5,keyasint"`           // Unix milliseconds
	// Held is the ledger's epoch in which this account signed the proposal, until it is sent: [Tx.Sending]. 0: it may have been sent. One of
	// an earlier epoch comes from a backup, and may have been sent since.
	Held    uint32 `cbor:"6,keyasint,omitempty"`
	Dropped bool   `cbor:"7,keyasint,omitempty"` // refused by the account whose proposal it is
}

// head is the log's size and root.
type head struct {
	Size uint64    `cbor:"1,keyasint"`
	Root wire.Hash `cbor:"2,keyasint"`
}

// place is where a voucher is kept.
type place struct {
	Lane ledger.Lane `cbor:"1,keyasint"`
	Seq  uint64      `cbor:"2,keyasint"`
}

// segments is a voucher's rate segments with its hash.
type segments struct {
	Voucher  wire.Hash       `cbor:"1,keyasint"`
	Segments []meter.Segment `cbor:"2,keyasint"`
}

// load reads the record under k; ok is false if there is none.
func load[T any](r kv.Reader, k []byte) (v T, ok bool, err error) {
	b, err := r.Get(k)
	if errors.Is(err, kv.ErrNotFound) {
		return v, false, nil
	}
	if err != nil {
		return v, false, err
	}
	if err := wire.UnmarshalStrict(b, &v); err != nil {
		return v, false, fmt.Errorf("record %q: %w: %w", k, ErrCorrupt, err)
	}
	return v, true, nil
}

// save writes the record under k.
func save(t kv.Tx, k []byte, v any) error {
	b, err := wire.Marshal(v)
	if err != nil {
		return err
	}
	return t.Set(k, b)
}

// raw reads bytes under k, nil if there are none.
func raw(r kv.Reader, k []byte) ([]byte, error) {
	b, err := r.Get(k)
	if errors.Is(err, kv.ErrNotFound) {
		return nil, nil
	}
	return b, err
}

func laneKey(l ledger.Lane) []byte              { return key("lane/", l[:]) }
func voucherKey(l ledger.Lane, s uint64) []byte { return key("v/", l[:], []byte("/"), be8(s)) }
func receiptKey(voucher wire.Hash) []byte       { return key("r/", voucher[:]) }
func delegationKey(h wire.Hash) []byte          { return key("d/", h[:]) }
func settlementKey(id wire.Hash) []byte         { return key("set/", id[:]) }
func peerLane(p identity.AccountID, l ledger.Lane) []byte {
	return key("lp/", p[:], []byte("/"), l[:])
}

func accountKey(r ledger.Role, u money.Unit, p identity.AccountID) []byte {
	return key("acct/", []byte{'0' + byte(r)}, []byte(u), []byte("/"), p[:])
}

func balanceKey(u money.Unit, a ledger.Account) []byte {
	return key("bal/", []byte(u), []byte("/"), []byte{byte(a.Kind)}, a.Peer[:], []byte(a.Method))
}
