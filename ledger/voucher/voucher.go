// Package voucher holds the signed records that move debts: cumulative vouchers, receipts and settlements, and the pure rules of what a
// side may take from the other. It keeps no state and knows no lease: a lane is an opaque id, and who gathers the facts is ledger/books.
package voucher

import (
	"fmt"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Domains of the signed records. docs/protocol.md has the table.
const (
	DomainVoucher    identity.Domain = "gpufair/voucher/1"
	DomainReceipt    identity.Domain = "gpufair/receipt/1"
	DomainSettlement identity.Domain = "gpufair/settlement/1"
)

// version is of every record here.
const version = 1

// Limits of the records.
const (
	MaxVoucher    = 2 << 10  // bytes of a sealed voucher: 400 without its checkpoint
	MaxReceipt    = 2 << 10  // bytes of a sealed receipt
	MaxSettlement = 24 << 10 // bytes of a sealed settlement: 256 lanes of 46 bytes
	MaxCheckpoint = 1 << 10  // bytes of a signed note: 250 with one signature
	MaxResource   = 32       // bytes of a resource's name
	MaxReference  = 128      // bytes of an outside reference
	MaxMethod     = 32       // bytes of a payment method's name
	MaxLanes      = 256      // of one settlement
)

// Voucher is the renter's promise: on this lane I owe Amount in all. Only the newest of a lane matters.
type Voucher struct {
	identity.Header
	Delegation wire.Hash      `cbor:"4,keyasint"`
	Channel    ledger.Channel `cbor:"5,keyasint"`
	Lane       ledger.Lane    `cbor:"6,keyasint"`
	Seq        uint64         `cbor:"7,keyasint"`  // 0 opens the lane
	Amount     money.Micro    `cbor:"8,keyasint"`  // cumulative; 0 in the opening voucher
	Quantity   uint64         `cbor:"9,keyasint"`  // cumulative, in thousandths of Resource
	Resource   string         `cbor:"10,keyasint"` // "device-second"
	Segments   wire.Hash      `cbor:"11,keyasint"` // of the rate segments that Amount was computed from
	Prev       wire.Hash      `cbor:"12,keyasint"` // of the lane's previous voucher; zero in the opening one
	Checkpoint []byte         `cbor:"13,keyasint"` // of the renter's log, a signed note
}

// Receipt is the provider's word that it has a voucher.
type Receipt struct {
	identity.Header
	Delegation wire.Hash `cbor:"4,keyasint"`
	Voucher    wire.Hash `cbor:"5,keyasint"`
	Checkpoint []byte    `cbor:"6,keyasint"` // of the provider's log, a signed note
	Evidence   wire.Hash `cbor:"7,keyasint"` // of what the job used in the interval; zero: none
}

// EvidenceHash names the evidence of an interval in a receipt.
func EvidenceHash(evidence []byte) wire.Hash { return wire.Sum("gpufair/evidence/1", evidence) }

// Validate checks the fields of v that need no other record.
func (v Voucher) Validate() error {
	switch {
	case v.Channel.Validate() != nil:
		return fmt.Errorf("voucher %d of lane %s: %w", v.Seq, v.Lane.Short(), v.Channel.Validate())
	case v.Channel.Epoch < ledger.FirstEpoch:
		return fmt.Errorf("voucher %d of lane %s: %w: of no epoch", v.Seq, v.Lane.Short(), ErrLane)
	case v.Account != v.Channel.Renter:
		return fmt.Errorf("voucher %d of lane %s: %w: signed for account %s", v.Seq, v.Lane.Short(), ErrSigner, v.Account.Short())
	case v.Amount > money.Max || v.Quantity > uint64(money.Max):
		return fmt.Errorf("voucher %d of lane %s: %w", v.Seq, v.Lane.Short(), money.ErrOverflow)
	case len(v.Resource) > MaxResource || len(v.Checkpoint) > MaxCheckpoint || v.Lane == ledger.Lane{}:
		return fmt.Errorf("voucher %d of lane %s: %w", v.Seq, v.Lane.Short(), wire.ErrFormat)
	case v.Seq == 0 && (v.Amount != 0 || v.Quantity != 0 || !v.Prev.IsZero()):
		return fmt.Errorf("voucher 0 of lane %s: %w: it promises %v", v.Lane.Short(), ErrOpening, v.Amount)
	case v.Seq > 0 && (v.Amount == 0 || v.Prev.IsZero()):
		return fmt.Errorf("voucher %d of lane %s: %w: amount %v", v.Seq, v.Lane.Short(), ErrOrder, v.Amount)
	}
	return nil
}

// Signed is a voucher with the bytes that were signed and their hash. The bytes are kept and never made again.
type Signed struct {
	Voucher
	Raw  []byte
	Hash wire.Hash
}

// Sign makes a voucher of v's fields by dev. The header is filled in, and the delegation where v has none: a lane goes on under the one
// that it was opened with, though the device got another since.
func Sign(dev *identity.Device, v Voucher) (Signed, error) {
	v.Header = dev.Header(version)
	if v.Delegation.IsZero() {
		v.Delegation = dev.DelegationHash()
	}
	if err := v.Validate(); err != nil {
		return Signed{}, err
	}
	raw, err := dev.Seal(DomainVoucher, v)
	if err != nil {
		return Signed{}, err
	}
	return Signed{Voucher: v, Raw: raw, Hash: identity.Hash(raw)}, nil
}

// Open checks a voucher's signature and fields. Whether it continues its lane is for [Lane.Next].
func Open(raw []byte) (Signed, error) {
	v, err := open[Voucher](DomainVoucher, "voucher", MaxVoucher, raw)
	if err != nil {
		return Signed{}, err
	}
	return Signed{Voucher: v, Raw: raw, Hash: identity.Hash(raw)}, nil
}

// open checks the signature and fields of a record of at most that many bytes.
func open[T interface {
	identity.Body
	Validate() error
}](d identity.Domain, name string, most int, raw []byte) (T, error) {
	var none T
	if len(raw) > most {
		return none, fmt.Errorf("open %s of %d bytes: %w (limit %d)", name, len(raw), wire.ErrTooLarge, most)
	}
	v, err := identity.OpenMoney[T](d, version, raw)
	if err != nil {
		return none, err
	}
	return v, v.Validate()
}

// SignReceipt makes a receipt by dev for the voucher with the given hash.
func SignReceipt(dev *identity.Device, r Receipt) ([]byte, error) {
	r.Header, r.Delegation = dev.Header(version), dev.DelegationHash()
	return dev.Seal(DomainReceipt, r)
}

// OpenReceipt checks a receipt's signature and fields. Whose receipt it must be is for the caller: the channel's provider.
func OpenReceipt(raw []byte) (Receipt, error) {
	return open[Receipt](DomainReceipt, "receipt", MaxReceipt, raw)
}

// Validate checks the fields of r that need no other record.
func (r Receipt) Validate() error {
	if r.Voucher.IsZero() || len(r.Checkpoint) > MaxCheckpoint {
		return fmt.Errorf("open receipt: %w", wire.ErrFormat)
	}
	return nil
}
