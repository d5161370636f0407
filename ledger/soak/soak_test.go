package soak

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"
)

var (
	form = flag.String("soak", "", "how much the soak tests do: short or long")
	seed = flag.Uint64("soak.seed", 0, "seed of the soak tests; 0 takes a new one")
	only = flag.Int("soak.case", -1, "run this one case of the suite alone, where a suite can")
)

func TestMain(m *testing.M) {
	if role := os.Getenv(childRole); role != "" {
		if err := child(role); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	flag.Parse()
	os.Exit(m.Run())
}

// suite says how to run a soak test again, and gives its size and its chance. With done it says what was counted, as one line of figures.
// Without -soak n is 0, and a suite is done at once: it is for `make soak-short`. Only that of kills does its thing once in a few seconds, so that
// the processes that all suites start cannot rot.
func suite(t *testing.T, short, long int) (n int, r *rand.Rand, done func(format string, args ...any)) {
	t.Helper()
	switch *form {
	case "":
		n = 0
	case "short":
		n = short
	case "long":
		n = long
	default:
		t.Fatalf("-soak=%s: want short or long", *form)
	}
	s := *seed
	if s == 0 {
		s = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d; again: go test ./ledger/soak -timeout 4h -run '^%s$' -soak=%s -soak.seed=%d", s, t.Name(), *form, s)
	start := time.Now()
	return n, rand.New(rand.NewPCG(s, 1)), func(format string, args ...any) {
		if *form == "" {
			return
		}
		fmt.Printf("soak %s %s seed=%d seconds=%d\n", t.Name(), fmt.Sprintf(format, args...), s, int(time.Since(start).Seconds()))
	}
}

// notRun says loudly that a suite did nothing on this machine, and why.
func notRun(t *testing.T, why string) {
	t.Helper()
	fmt.Printf("soak %s not_run=%q\n", t.Name(), why)
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
