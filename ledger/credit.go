package ledger

import (
	"errors"
	"fmt"
	"math"
	"math/bits"

	"github.com/gpufair/gpufair/ledger/money"
)

// AddSigned is a + b, or [money.ErrOverflow].
func AddSigned(a, b int64) (int64, error) {
	sum := a + b
	if (a > 0 && b > 0 && sum <= 0) || (a < 0 && b < 0 && sum >= 0) || sum == math.MinInt64 {
		return 0, fmt.Errorf("add %d and %d micro-units: %w", a, b, money.ErrOverflow)
	}
	return sum, nil
}

// Signed is m as a posting's amount.
func Signed(m money.Micro) (int64, error) {
	if m > money.Max {
		return 0, fmt.Errorf("amount %v: %w", m, money.ErrOverflow)
	}
	return int64(m), nil
}

// Positive is v as an amount, 0 if it is negative.
func Positive(v int64) money.Micro { return money.Micro(max(v, 0)) }

// Limits are the three credit limits of one unit (spec: ledger, Credit between strangers). No default is infinite; a zero is no credit.
type Limits struct {
	Stranger       money.Micro // of one account beyond what its settled history earns it
	StrangersTotal money.Micro // of all accounts together beyond that, bad debts included: the owner's whole Sybil loss
	KnownPercent   uint32      // of what an account has settled, that it may owe again
	KnownCap       money.Micro // of that
}

// Defaults of the limits: half an hour of the offer's price for one stranger, four hours for all of them, half of what was settled.
const (
	StrangerSeconds       = 30 * 60
	StrangersTotalSeconds = 4 * 60 * 60
	DefaultKnownPercent   = 50
	KnownCapHours         = 100
)

// DefaultLimits are the limits for devices offered at rate.
func DefaultLimits(rate money.Rate, devices uint32) (Limits, error) {
	var l Limits
	var errs [3]error
	l.Stranger, errs[0] = money.Charge(rate, devices, StrangerSeconds*1000)
	l.StrangersTotal, errs[1] = money.Charge(rate, devices, StrangersTotalSeconds*1000)
	l.KnownCap, errs[2] = money.Charge(rate, devices, KnownCapHours*60*60*1000)
	l.KnownPercent = DefaultKnownPercent
	return l, errors.Join(errs[:]...)
}

// Standing is what one account has with us in one unit: the input of the credit rule.
type Standing struct {
	Owed    int64        `cbor:"1,keyasint"` // vouchered - settled; negative: prepaid
	Open    money.Micro  `cbor:"2,keyasint"` // over all lanes and holds: the larger of the hold that is left and what was metered and not vouchered
	Settled money.Micro  `cbor:"3,keyasint"` // in all, over settlements that both signed
	BadDebt money.Micro  `cbor:"4,keyasint"` // written off
	Late    bool         `cbor:"-"`          // [Late]: no credit. It follows from due time and clock, and is never stored
	ByHand  *money.Micro `cbor:"6,keyasint"` // the owner's own limit for this account, if any
}

// Exposure is what we would lose if the account vanished now; negative while its prepaid balance is not used up:
// vouchered + metered not yet vouchered + open holds - settled - prepaid.
func (s Standing) Exposure() (int64, error) {
	open, err := Signed(s.Open)
	if err != nil {
		return 0, err
	}
	return AddSigned(s.Owed, open)
}

// Earned is how much of s's exposure its own history (or the owner's hand) covers; only what is beyond counts as a stranger's.
//
// The spec's "accounts without settled history" is read as a sum, not as a flag: else settling one micro-unit would take an account out
// of the strangers' total, and a thousand keys could each do so.
func (l Limits) Earned(s Standing) money.Micro {
	switch {
	case s.Late:
		return 0
	case s.ByHand != nil:
		return min(*s.ByHand, money.Max)
	case s.BadDebt > 0:
		return 0
	}
	hi, lo := bits.Mul64(uint64(s.Settled), uint64(min(l.KnownPercent, 100)))
	share, _ := bits.Div64(hi, lo, 100)
	return min(money.Micro(share), l.KnownCap, money.Max)
}

// Limit is what s may owe by its own limits, whatever the strangers' total is: nothing while a payment is late, and nothing while a debt
// is written off, unless the owner's hand says otherwise.
func (l Limits) Limit(s Standing) money.Micro {
	if s.Late || s.ByHand != nil || s.BadDebt > 0 {
		return l.Earned(s)
	}
	return max(l.Earned(s), min(l.Stranger, money.Max))
}

// Strange is s's part of the strangers' total: its exposure beyond what it has earned, and its bad debt.
func (l Limits) Strange(s Standing) (money.Micro, error) {
	exposure, err := s.Exposure()
	if err != nil {
		return 0, err
	}
	beyond := Positive(exposure)
	beyond -= min(beyond, l.Earned(s))
	return money.Add(beyond, s.BadDebt)
}

var (
	// ErrCreditLimit says that an account would owe more than its own limit.
	ErrCreditLimit = errors.New("credit limit reached: settle or prepay")
	// ErrStrangersTotal says that all strangers together would owe more than the owner's limit for them.
	ErrStrangersTotal = errors.New("the owner's credit for all strangers together is used up: prepay")
	// ErrLate is the [ErrCreditLimit] of an account whose payment is late.
	ErrLate = fmt.Errorf("%w (a payment is late)", ErrCreditLimit)
	// ErrWrittenOff is the [ErrCreditLimit] of an account with a debt that was written off.
	ErrWrittenOff = fmt.Errorf("%w (an older debt was written off)", ErrCreditLimit)
)

// ownLimit is the error of the account's own limit.
func ownLimit(s Standing) error {
	switch {
	case s.Late:
		return ErrLate
	case s.BadDebt > 0 && s.ByHand == nil:
		return ErrWrittenOff
	}
	return ErrCreditLimit
}

// CreditError is an [ErrCreditLimit] or [ErrStrangersTotal] with its figures.
type CreditError struct {
	Cause    error       // one of the two
	Limit    money.Micro // that was reached
	Exposure int64       // of the account before
	Asked    money.Micro // more
	Room     money.Micro // that is left
	ByHand   bool        // Limit is the account's own, set by the owner's hand
}

// Error says which limit, and the figures.
func (e *CreditError) Error() string {
	if e.ByHand {
		return fmt.Sprintf("%v (limit %v, set by hand, %v more asked, %v left)", e.Cause, e.Limit, e.Asked, e.Room)
	}
	return fmt.Sprintf("%v (limit %v, %v more asked, %v left)", e.Cause, e.Limit, e.Asked, e.Room)
}

// Unwrap gives the cause.
func (e *CreditError) Unwrap() error { return e.Cause }

// Room is how much more the account of s may come to owe, when all other accounts together have others as their part of the strangers'
// total ([Limits.Strange]). cause says which limit ends it. Prepaid money gives room whatever the total is.
func (l Limits) Room(s Standing, others money.Micro) (room money.Micro, cause error, err error) {
	exposure, err := s.Exposure()
	if err != nil {
		return 0, nil, err
	}
	own, cause := satSub(int64(l.Limit(s)), exposure), ownLimit(s)
	total := satSub(satSub(int64(min(l.StrangersTotal, money.Max)), int64(min(others, money.Max))), int64(min(s.BadDebt, money.Max)))
	pool := satSub(int64(l.Earned(s)), exposure) // what its history and prepaid money still cover
	if total > 0 {
		pool = satSub(pool, -total)
	}
	if pool < own {
		own, cause = pool, ErrStrangersTotal
	}
	return Positive(own), cause, nil
}

// Check is nil if the account of s may come to owe more, and else a [*CreditError].
func (l Limits) Check(s Standing, others, more money.Micro) error {
	room, cause, err := l.Room(s, others)
	if err != nil {
		return err
	}
	if more <= room {
		return nil
	}
	limit := l.Limit(s)
	if errors.Is(cause, ErrStrangersTotal) {
		limit = l.StrangersTotal
	}
	exposure, err := s.Exposure()
	if err != nil {
		return err
	}
	return &CreditError{Cause: cause, Limit: limit, Exposure: exposure, Asked: more, Room: room, ByHand: cause == ErrCreditLimit && s.ByHand != nil}
}

// satSub is a - b, held at the ends of int64: only for limits, which nobody is paid by.
func satSub(a, b int64) int64 {
	d := a - b
	switch {
	case a >= 0 && b < 0 && d < 0:
		return math.MaxInt64
	case a < 0 && b > 0 && d > 0:
		return math.MinInt64
	}
	return d
}
