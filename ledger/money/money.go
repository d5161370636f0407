// Package money counts: amounts in micro-units, prices per device-hour, checked arithmetic, and how people write both.
// It knows no currency rate and no account, and it never touches a float.
package money

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"strings"
	"time"
)

// Micro is an amount in millionths of a unit of account.
type Micro uint64

// Max is the largest amount that fits a ledger posting (a checked int64).
const Max = Micro(math.MaxInt64)

const perUnit = 1_000_000

// Rate is a price in micro-units per device-hour.
type Rate uint64

const msPerHour = uint64(time.Hour / time.Millisecond)

// Unit names a unit of account. An amount means nothing without one, and no two units are ever added.
type Unit string

// Credit is the default unit of account.
const Credit Unit = "CREDIT"

var (
	// ErrOverflow says that a sum or product does not fit an amount. Nothing was counted.
	ErrOverflow = errors.New("amount out of range")
	// ErrSyntax says that a text is not an amount.
	ErrSyntax = errors.New("not an amount")
	// ErrUnit says that a name can't be a unit of account.
	ErrUnit = errors.New("not a unit of account")
)

// Validate checks that u is 3 to 12 capital letters, so that it can be told from an amount in every export format.
func (u Unit) Validate() error {
	if len(u) < 3 || len(u) > 12 {
		return fmt.Errorf("unit %q: %w: want 3 to 12 letters A to Z", string(u), ErrUnit)
	}
	for _, r := range u {
		if r < 'A' || r > 'Z' {
			return fmt.Errorf("unit %q: %w: want 3 to 12 letters A to Z", string(u), ErrUnit)
		}
	}
	return nil
}

// Add is a + b, or ErrOverflow above [Max].
func Add(a, b Micro) (Micro, error) {
	sum, carry := bits.Add64(uint64(a), uint64(b), 0)
	if carry != 0 || Micro(sum) > Max {
		return 0, fmt.Errorf("add %v and %v: %w", a, b, ErrOverflow)
	}
	return Micro(sum), nil
}

// Sub is a - b, or ErrOverflow below 0.
func Sub(a, b Micro) (Micro, error) {
	if b > a {
		return 0, fmt.Errorf("subtract %v from %v: %w", b, a, ErrOverflow)
	}
	return a - b, nil
}

// Charge is floor(rate x devices x ms / 3,600,000): what one rate segment of billable milliseconds costs in all. It is computed from
// the segment's total each time, never summed up from rounded ticks (spec: ledger, Model).
func Charge(r Rate, devices uint32, ms uint64) (Micro, error) {
	hi, perHour := bits.Mul64(uint64(r), uint64(devices))
	if hi != 0 {
		return 0, fmt.Errorf("charge %d devices at %v: %w", devices, r, ErrOverflow)
	}
	hi, lo := bits.Mul64(perHour, ms)
	if hi >= msPerHour {
		return 0, fmt.Errorf("charge %d ms at %v: %w", ms, r, ErrOverflow)
	}
	q, _ := bits.Div64(hi, lo, msPerHour)
	if Micro(q) > Max {
		return 0, fmt.Errorf("charge %d ms at %v: %w", ms, r, ErrOverflow)
	}
	return Micro(q), nil
}

// Lasts is how long amount pays for devices at r, rounded down to the millisecond; for a rate of 0 the longest duration there is.
func Lasts(amount Micro, r Rate, devices uint32) time.Duration {
	const forever = time.Duration(math.MaxInt64)
	hi, perHour := bits.Mul64(uint64(r), uint64(devices))
	if hi != 0 {
		return 0
	}
	if perHour == 0 {
		return forever
	}
	hi, lo := bits.Mul64(uint64(amount), msPerHour)
	if hi >= perHour {
		return forever
	}
	ms, _ := bits.Div64(hi, lo, perHour)
	if ms > uint64(forever/time.Millisecond) {
		return forever
	}
	return time.Duration(ms) * time.Millisecond
}

// String is the amount in units with at most six decimals and no trailing zeros: "0.25", "12", "0.000001".
func (m Micro) String() string { return decimal(uint64(m)) }

// String is the rate in units per device-hour, written as [Micro.String] writes amounts.
func (r Rate) String() string { return decimal(uint64(r)) }

func decimal(v uint64) string {
	s := fmt.Sprintf("%d.%06d", v/perUnit, v%perUnit)
	return strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
}

// Parse reads an amount as people write it: "12", "0.25", ".5". More than six decimals, a sign, an exponent or anything over [Max]
// is an error: money is never rounded on the way in.
func Parse(s string) (Micro, error) {
	whole, frac, dot := strings.Cut(s, ".")
	if (whole == "" && frac == "") || (dot && frac == "") || len(frac) > 6 {
		return 0, fmt.Errorf("amount %q: %w: want digits with at most six decimals, such as 0.25", s, ErrSyntax)
	}
	v := uint64(0)
	for _, c := range whole + frac + strings.Repeat("0", 6-len(frac)) {
		if c < '0' || c > '9' {
			return 0, fmt.Errorf("amount %q: %w: want digits with at most six decimals, such as 0.25", s, ErrSyntax)
		}
		if v > (uint64(Max)-uint64(c-'0'))/10 {
			return 0, fmt.Errorf("amount %q: %w", s, ErrOverflow)
		}
		v = v*10 + uint64(c-'0')
	}
	return Micro(v), nil
}

// ParseRate reads a price per device-hour, written as [Parse] reads amounts.
func ParseRate(s string) (Rate, error) {
	m, err := Parse(s)
	return Rate(m), err
}

// MarshalText gives the amount as [Micro.String], so that JSON and TOML never hold money as a number.
func (m Micro) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText reads what [Parse] reads.
func (m *Micro) UnmarshalText(b []byte) (err error) {
	*m, err = Parse(string(b))
	return err
}

// MarshalText gives the rate as [Rate.String].
func (r Rate) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText reads what [ParseRate] reads.
func (r *Rate) UnmarshalText(b []byte) (err error) {
	*r, err = ParseRate(string(b))
	return err
}
