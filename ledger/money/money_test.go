package money_test

import (
	"errors"
	"math"
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gpufair/gpufair/ledger/money"
)

func TestParse(t *testing.T) {
	for s, want := range map[string]money.Micro{
		"0": 0, "1": 1_000_000, "0.25": 250_000, ".5": 500_000, "0.000001": 1, "12": 12_000_000, "007": 7_000_000,
		"9223372036854.775807": money.Max,
	} {
		if got, err := money.Parse(s); err != nil || got != want {
			t.Errorf("%q: %d, %v; want %d", s, uint64(got), err, uint64(want))
		}
	}
	for s, want := range map[string]error{
		"": money.ErrSyntax, ".": money.ErrSyntax, "1.": money.ErrSyntax, "-1": money.ErrSyntax, "+1": money.ErrSyntax, "1e3": money.ErrSyntax,
		"0.0000001": money.ErrSyntax, "1 ": money.ErrSyntax, "1,5": money.ErrSyntax, "١": money.ErrSyntax, "1.2.3": money.ErrSyntax,
		"9223372036854.775808": money.ErrOverflow, "99999999999999999999": money.ErrOverflow,
	} {
		if got, err := money.Parse(s); !errors.Is(err, want) {
			t.Errorf("%q: %v, %v; want %v", s, got, err, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("0.25")
	f.Fuzz(func(t *testing.T, s string) {
		m, err := money.Parse(s)
		if err != nil {
			return
		}
		if again, err := money.Parse(m.String()); err != nil || again != m || m > money.Max {
			t.Fatalf("%q is %v, then %v, %v", s, m, again, err)
		}
	})
}

func TestAddSub(t *testing.T) {
	if _, err := money.Add(money.Max, 1); !errors.Is(err, money.ErrOverflow) {
		t.Error("Add over Max:", err)
	}
	if _, err := money.Add(math.MaxUint64, math.MaxUint64); !errors.Is(err, money.ErrOverflow) {
		t.Error("Add over uint64:", err)
	}
	if got, err := money.Add(money.Max-1, 1); err != nil || got != money.Max {
		t.Error(got, err)
	}
	if _, err := money.Sub(1, 2); !errors.Is(err, money.ErrOverflow) {
		t.Error("Sub below 0:", err)
	}
}

// Charge is the exact floor, whatever the numbers.
func TestChargeExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r, d, ms := rapid.Uint64().Draw(t, "rate"), rapid.Uint32().Draw(t, "devices"), rapid.Uint64().Draw(t, "ms")
		want := new(big.Int).Mul(new(big.Int).SetUint64(r), new(big.Int).SetUint64(uint64(d)))
		perHour := new(big.Int).Set(want)
		want.Mul(want, new(big.Int).SetUint64(ms)).Div(want, big.NewInt(3_600_000))
		got, err := money.Charge(money.Rate(r), d, ms)
		fits := want.IsInt64() && perHour.IsUint64()
		if fits != (err == nil) || (fits && new(big.Int).SetUint64(uint64(got)).Cmp(want) != 0) {
			t.Fatalf("%d x %d x %d ms: got %d, %v; want %v", r, d, ms, uint64(got), err, want)
		}
	})
}

// Two halves of a segment never cost more than the whole, and at most one micro-unit less.
func TestChargeSplit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r, d := money.Rate(rapid.Uint64Range(0, 1e12).Draw(t, "rate")), rapid.Uint32Range(0, 64).Draw(t, "devices")
		a, b := rapid.Uint64Range(0, 1e9).Draw(t, "a"), rapid.Uint64Range(0, 1e9).Draw(t, "b")
		x, err1 := money.Charge(r, d, a)
		y, err2 := money.Charge(r, d, b)
		z, err3 := money.Charge(r, d, a+b)
		if err := errors.Join(err1, err2, err3); err != nil {
			t.Fatal(err)
		}
		if x+y > z || z-x-y > 1 {
			t.Fatalf("splitting moves %d micro-units", int64(z-x-y))
		}
	})
}

// What an amount lasts for never costs more than it, and one millisecond more does.
func TestLasts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r, d := money.Rate(rapid.Uint64Range(1, 1e12).Draw(t, "rate")), rapid.Uint32Range(1, 64).Draw(t, "devices")
		m := money.Micro(rapid.Uint64Range(0, 1e15).Draw(t, "amount"))
		lasts := money.Lasts(m, r, d)
		if lasts > time.Duration(1<<62) {
			return
		}
		ms := uint64(lasts / time.Millisecond)
		if c, err := money.Charge(r, d, ms); err != nil || c > m {
			t.Fatal(c, err)
		}
		if c, err := money.Charge(r, d, ms+3_600_000); err == nil && c < m {
			t.Fatalf("%v would last longer than %v", m, lasts)
		}
	})
	if money.Lasts(1, 0, 1) != time.Duration(math.MaxInt64) || money.Lasts(5, math.MaxUint64, 2) != 0 {
		t.Error("ends of the range")
	}
}

func TestUnit(t *testing.T) {
	for u, ok := range map[money.Unit]bool{"CREDIT": true, "EUR": true, "EU": false, "eur": false, "": false, "ABCDEFGHIJKLM": false, "A-B": false} {
		if got := u.Validate() == nil; got != ok {
			t.Errorf("%q: %v", u, got)
		}
	}
}

func TestText(t *testing.T) {
	for m, want := range map[money.Micro]string{0: "0", 1: "0.000001", 250_000: "0.25", 12_000_000: "12", 10_000_001: "10.000001"} {
		if m.String() != want {
			t.Errorf("%d is %q, want %q", uint64(m), m.String(), want)
		}
	}
	var r money.Rate
	if err := r.UnmarshalText([]byte("0.4")); err != nil || r != 400_000 || r.String() != "0.4" {
		t.Error(r, err)
	}
}
