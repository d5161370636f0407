package export_test

import (
	"bytes"
	"encoding/csv"
	"errors"
	"flag"
	"io"
	"iter"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/export"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

var update = flag.Bool("update", false, "write the golden files anew")

func of[T any](values ...T) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for _, v := range values {
			if !yield(v, nil) {
				return
			}
		}
	}
}

func entry(n byte, kind ledger.EntryKind, note string, postings ...ledger.Posting) ledger.Entry {
	at := time.Date(2026, 11, 30, 12, 0, int(n), 5_000_000, time.FixedZone("CET", 3600))
	return ledger.Entry{
		ID: wire.Hash{n}, Kind: kind, Time: at.UnixMilli(), Peer: identity.AccountID{7}, Lane: ledger.Lane{9}, Postings: postings, Note: note,
	}
}

func post(a ledger.AccountKind, amount int64) ledger.Posting {
	p := ledger.Posting{Account: ledger.Account{Kind: a}, Unit: money.Credit, Amount: amount}
	if a == ledger.Receivable {
		p.Account.Peer = identity.AccountID{7}
	}
	return p
}

func entries() []ledger.Entry {
	method := post(ledger.External, 1_250_000)
	method.Account.Method = "manual"
	opening := entry(4, ledger.KindCorrection, "", post(ledger.Opening, -1), post(ledger.Receivable, 1))
	opening.Peer, opening.Lane = identity.AccountID{}, ledger.Lane{}
	other := entry(5, ledger.KindUsage, "", post(ledger.Receivable, 7), post(ledger.Income, -7))
	for i := range other.Postings {
		other.Postings[i].Unit = "EUR"
	}
	return []ledger.Entry{
		entry(1, ledger.KindUsage, "", post(ledger.Receivable, 250_000), post(ledger.Income, -250_000)),
		entry(2, ledger.KindUsage, "", post(ledger.Receivable, 1_000_001), post(ledger.Income, -1_000_001)),
		entry(3, ledger.KindSettlement, `=HYPERLINK("http://x","pay, ""now""")`, method, post(ledger.Receivable, -1_250_000)),
		opening, other,
	}
}

func TestGolden(t *testing.T) {
	var out bytes.Buffer
	if err := export.CSV(&out, export.Rows(of(entries()...))); err != nil {
		t.Fatal(err)
	}
	golden := filepath.Join("testdata", "ledger.csv")
	if *update {
		if err := os.WriteFile(golden, out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), out.String()); diff != "" {
		t.Errorf("CSV differs from %s (-want +got):\n%s", golden, diff)
	}
}

// cells writes one row and reads it back with the standard reader.
func cells(t fataler, r export.Row) map[string]string {
	var out bytes.Buffer
	if err := export.CSV(&out, of(r)); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(out.String(), "\n"); n != 2 || strings.Count(out.String(), "\r\n") != n {
		t.Fatalf("got %d lines, want 2 that end in CRLF: %q", n, out.String())
	}
	records, err := csv.NewReader(&out).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for i, name := range records[0] {
		got[name] = records[1][i]
	}
	return got
}

type fataler interface {
	Fatal(...any)
	Fatalf(string, ...any)
}

func TestFormulaGuard(t *testing.T) {
	for in, want := range map[string]string{
		"=1+1":              "'=1+1",
		"+1":                "'+1",
		"-1":                "'-1",
		"@SUM(A1)":          "'@SUM(A1)",
		" =1":               "' =1",
		"\t=1":              "' =1",
		"\r\n=1":            "'  =1",
		"\u00a0=1":          "'\u00a0=1",
		"＝1":                "'＝1",
		"a=1":               "a=1",
		"1-1":               "1-1",
		"":                  "",
		" ":                 " ",
		"two\r\nlines":      "two  lines",
		"\x1b[31mred":       " [31mred",
		"bad \xff byte":     "bad \uFFFD byte",
		`says "a, b"; ünït`: `says "a, b"; ünït`,
	} {
		got := cells(t, export.Row{EntryID: in, Kind: in, Account: in, Counterparty: in, Lease: in, Unit: money.Unit(in), Note: in})
		for _, column := range []string{"entry", "kind", "account", "counterparty", "lease", "unit", "note"} {
			if got[column] != want {
				t.Errorf("%s %q: got %q, want %q", column, in, got[column], want)
			}
		}
	}
}

func TestAmounts(t *testing.T) {
	for in, want := range map[int64]string{
		0: "0", 1: "0.000001", -1: "-0.000001", 250_000: "0.25", -12_000_000: "-12",
		math.MaxInt64: "9223372036854.775807", math.MinInt64: "-9223372036854.775808",
	} {
		if got := cells(t, export.Row{Amount: in, Balance: in}); got["amount"] != want || got["balance"] != want {
			t.Errorf("%d: got %s and %s, want %s", in, got["amount"], got["balance"], want)
		}
	}
}

// TestAnyText: whatever a stranger wrote, the file has one line for the row and no cell starts a formula.
func TestAnyText(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		in := string(rapid.SliceOf(rapid.SampledFrom([]byte("=+-@'\",;\r\n\t \x00\xff\xc2\xa0a"))).Draw(rt, "note"))
		got := cells(rt, export.Row{Note: in})["note"]
		if trimmed := strings.TrimSpace(got); !utf8.ValidString(got) || (trimmed != "" && strings.ContainsRune("=+-@", rune(trimmed[0]))) {
			rt.Fatalf("note %q became %q", in, got)
		}
	})
}

func TestErrors(t *testing.T) {
	boom := errors.New("boom")
	failing := func(yield func(ledger.Entry, error) bool) {
		_ = yield(entries()[0], nil) && yield(ledger.Entry{}, boom)
	}
	if err := export.CSV(io.Discard, export.Rows(failing)); !errors.Is(err, boom) {
		t.Errorf("entries that fail: got error %v", err)
	}
	full := entry(1, ledger.KindUsage, "", post(ledger.Receivable, math.MaxInt64), post(ledger.Receivable, 1))
	if err := export.CSV(io.Discard, export.Rows(of(full))); !errors.Is(err, money.ErrOverflow) {
		t.Errorf("balance beyond an int64: got error %v", err)
	}
	r, w := io.Pipe()
	r.CloseWithError(boom)
	if err := export.CSV(w, export.Rows(of(entries()...))); !errors.Is(err, boom) {
		t.Errorf("writer that fails: got error %v", err)
	}
	for range export.Rows(of(entries()...)) {
		break // leaving early is allowed
	}
}
