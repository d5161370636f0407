package disktest

import (
	"errors"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
)

// outcomes runs f on many disks and counts what it gives.
func outcomes(f func(d *Disk) string) map[string]int {
	seen := map[string]int{}
	for seed := range uint64(300) {
		seen[f(New(rand.New(rand.NewPCG(seed, 0)).IntN))]++
	}
	return seen
}

func write(t *testing.T, d *Disk, name, text string, at int64, sync bool) error {
	t.Helper()
	f, err := d.Open(name)
	if err != nil {
		return err
	}
	_, err = f.WriteAt([]byte(text), at)
	if err == nil && sync {
		err = errors.Join(f.Sync(), d.Sync())
	}
	return err
}

func after(d *Disk, name string) string {
	b, err := d.Read(name)
	if err != nil {
		return "none"
	}
	return string(b)
}

// long is of two sectors.
var long = strings.Repeat("a", 2*sector)

// losses are what may become of a file, in words, each by chance.
var losses = map[string]struct {
	run         func(t *testing.T, d *Disk) string
	must, never []string
}{
	"synced stays": {func(t *testing.T, d *Disk) string {
		_ = write(t, d, "f", "x", 0, true)
		return after(d.Cut(), "f")
	}, []string{"x"}, []string{"none", "", "\x00"}},
	"unsynced name": {func(t *testing.T, d *Disk) string {
		_ = write(t, d, "f", "x", 0, false)
		return after(d.Cut(), "f")
	}, []string{"none", "", "\x00", "x"}, nil},
	"a later sector without an earlier one": {func(t *testing.T, d *Disk) string {
		_ = write(t, d, "f", "", 0, true)
		_ = write(t, d, "f", long, 0, false)
		got := after(d.Cut(), "f")
		return map[bool]string{true: "reordered"}[len(got) == len(long) && got[0] == 0 && got[sector] == 'a']
	}, []string{"reordered"}, nil},
	"torn in a sector": {func(t *testing.T, d *Disk) string {
		_ = write(t, d, "f", "bbbb", 0, true)
		_ = write(t, d, "f", "aaaa", 0, false)
		return after(d.Cut(), "f")
	}, []string{"aaaa", "abbb", "aabb", "bbbb"}, []string{"none", "bbba"}},
	"killed": {func(t *testing.T, d *Disk) string {
		_ = write(t, d, "f", "x", 0, false)
		return after(d.Killed(), "f")
	}, []string{"x"}, []string{"none", ""}},
	"renamed, not synced": {func(t *testing.T, d *Disk) string {
		_ = write(t, d, "f", "x", 0, true)
		_ = d.Rename("f", "g")
		next := d.Cut()
		return after(next, "f") + " " + after(next, "g")
	}, []string{"x none", "none x"}, []string{"x x", "none none"}},
	"a Sync that failed": {func(t *testing.T, d *Disk) string {
		_ = write(t, d, "f", "b", 0, true)
		d.Plan(2, Fail)
		if err := write(t, d, "f", "a", 0, true); !errors.Is(err, syscall.EIO) {
			return err.Error()
		}
		seen := after(d, "f")
		_ = write(t, d, "f", "", 0, true) // a later Sync brings nothing back
		return seen + after(d.Cut(), "f")
	}, []string{"ab", "bb", "aa"}, []string{"ba"}},
	"full": {func(t *testing.T, d *Disk) string {
		_ = write(t, d, "f", "b", 0, true)
		d.Plan(1, Full)
		if err := write(t, d, "f", "aaaa", 1, true); !errors.Is(err, syscall.ENOSPC) {
			return "all"
		}
		if write(t, d, "f", "aaaa", 8, true) == nil {
			return "written"
		}
		d.Room()
		if err := write(t, d, "f", "c", 0, true); err != nil {
			return err.Error()
		}
		return after(d.Cut(), "f")[:1]
	}, []string{"c"}, []string{"written"}},
}

// Without it, a test on this disk would prove nothing: every loss that the package promises does happen, and nothing else.
func TestLosses(t *testing.T) {
	for name, c := range losses {
		seen := outcomes(func(d *Disk) string { return c.run(t, d) })
		for _, w := range c.must {
			if seen[w] == 0 {
				t.Errorf("%s: %q never happened: %v", name, w, seen)
			}
		}
		for _, w := range c.never {
			if seen[w] != 0 {
				t.Errorf("%s: %q happened: %v", name, w, seen)
			}
		}
	}
}

// After the power went, nothing answers; the call in which it went may have done anything.
func TestOff(t *testing.T) {
	d := New(func(n int) int { return n - 1 })
	d.Plan(1, Off)
	if err := write(t, d, "f", "x", 0, true); !errors.Is(err, ErrOff) || d.Calls() != 2 {
		t.Fatal(err, d.Calls())
	}
	for _, err := range []error{d.Sync(), d.Rename("f", "g"), write(t, d, "f", "x", 0, false)} {
		if !errors.Is(err, ErrOff) {
			t.Error(err)
		}
	}
}
