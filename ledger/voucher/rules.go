package voucher

import (
	"errors"
	"fmt"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Why a voucher is not taken. Each wraps none of the others.
var (
	// ErrSigner says that a voucher is signed by another account or device than its lane belongs to.
	ErrSigner = errors.New("the lane belongs to another account or device")
	// ErrLane says that a voucher is for another channel or lane.
	ErrLane = errors.New("another channel or lane")
	// ErrOpening says that an opening voucher is not one: sequence 0, amount 0.
	ErrOpening = errors.New("not an opening voucher")
	// ErrOrder says that sequence or amount do not strictly rise.
	ErrOrder = errors.New("sequence and amount must rise")
	// ErrOld says that a newer voucher of the lane is here already. The same promise is in it: nothing is lost.
	ErrOld = errors.New("a newer voucher is here already")
	// ErrChain says that a voucher names another predecessor than the one that is here.
	ErrChain = errors.New("names another previous voucher")
	// ErrEquivocation says that a device signed two different vouchers with one sequence: proof against it, to be kept for ever.
	ErrEquivocation = errors.New("two vouchers with one sequence")
	// ErrCap says that a lane would go over what the account let the device sign for.
	ErrCap = errors.New("over the cap of the device's delegation")
	// ErrFinal says that a voucher to be signed would promise more than the charge with which its lane ended.
	ErrFinal = errors.New("over the lane's final charge")
)

// Equivocation is an [ErrEquivocation] with both vouchers.
type Equivocation struct {
	Lane      ledger.Lane
	Have, Got []byte
}

// Error names the kind; the proof is in the fields.
func (e *Equivocation) Error() string { return ErrEquivocation.Error() }

// Unwrap gives [ErrEquivocation].
func (e *Equivocation) Unwrap() error { return ErrEquivocation }

// Lane is what a side knows of a lane when a voucher comes: the input of the rules.
type Lane struct {
	Channel ledger.Channel
	Lane    ledger.Lane
	Device  identity.PeerID     // the renter's: a lane belongs to one device
	Powers  identity.Delegation // of that device
	Proof   wire.Hash           // hash of the delegation
	Last    *Signed             // newest voucher; nil before the opening one
}

// Verdict is what a voucher is to its lane.
type Verdict uint8

// The verdicts of a voucher without an error.
const (
	New     Verdict = 1 // it raises the lane, or opens it
	Already Verdict = 2 // the same bytes are here: say so again, count nothing
)

// Next judges a voucher that [Open] read (spec: ledger, Model): the same bytes are already here, the same sequence with other bytes is
// equivocation, and a new one must strictly raise sequence and amount and be signed by the lane's device within its delegation. A lane
// that has ended takes vouchers, too: what counts of them is at most the final charge, for the books to see to. older gives the voucher with a sequence below the newest, or nil if it is not kept. The credit limit over
// all lanes is for [ledger.Limits.Check].
func (l Lane) Next(v Signed, older func(seq uint64) []byte) (Verdict, error) {
	if err := l.identity(v.Voucher); err != nil {
		return 0, fmt.Errorf("voucher %d of lane %s: %w", v.Seq, v.Lane.Short(), err)
	}
	verdict, err := l.order(v, older)
	if err != nil {
		return 0, fmt.Errorf("voucher %d of lane %s: %w", v.Seq, v.Lane.Short(), err)
	}
	return verdict, nil
}

func (l Lane) identity(v Voucher) error {
	switch {
	case v.Channel != l.Channel || v.Lane != l.Lane:
		return ErrLane
	case v.Account != l.Channel.Renter || v.Device != l.Device:
		return ErrSigner
	case v.Delegation != l.Proof:
		return fmt.Errorf("%w: it names delegation %s, the lane's is %s", ErrSigner, v.Delegation.Short(), l.Proof.Short())
	}
	if err := l.Powers.Allows(v.Header, identity.PowerPay); err != nil {
		return err
	}
	if uint64(v.Amount) > l.Powers.Cap {
		return fmt.Errorf("%w: %v of at most %v", ErrCap, v.Amount, money.Micro(l.Powers.Cap))
	}
	return nil
}

func (l Lane) order(v Signed, older func(seq uint64) []byte) (Verdict, error) {
	if l.Last == nil {
		if v.Seq != 0 {
			return 0, ErrOpening
		}
		return New, nil
	}
	if v.Seq <= l.Last.Seq {
		have := l.Last.Raw
		if v.Seq < l.Last.Seq {
			have = older(v.Seq)
		}
		switch {
		case have == nil:
			return 0, ErrOld
		case identity.Hash(have) != v.Hash && !identity.SameBody(have, v.Raw):
			return 0, &Equivocation{Lane: l.Lane, Have: have, Got: v.Raw}
		}
		return Already, nil
	}
	switch {
	case v.Amount <= l.Last.Amount || v.Quantity < l.Last.Quantity:
		return 0, fmt.Errorf("%w: amount %v after %v", ErrOrder, v.Amount, l.Last.Amount)
	case v.Seq == l.Last.Seq+1 && v.Prev != l.Last.Hash:
		return 0, ErrChain
	}
	return New, nil
}
