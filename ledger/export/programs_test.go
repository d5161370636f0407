package export_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/export"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// nasty are texts that some format would read as more than a text.
var nasty = []string{
	"", "2026-117", "Miete für März, 3×", `say "hi"`, `back\slash\`, `\"`, "semi; colon", "two\nlines", "a\r\n    income  1 CREDIT\n", "=1+1", "@SUM(A1)", "+1", "-1",
	"pipe | note", "tag:x,date:2026-99-99", "[2026-99-99]", "date2:1", "\x00", "\xff\xfe", "\u2028line", "\u202eright to left", "'", "{", "#tag ^link", "* ! (code)",
	"100 % sure", "%2C", "emoji 🦊", "\t", "  two  spaces  ", "~", strings.Repeat("é", 128), "; comment", "include /etc/passwd", "\ufeff",
}

// someLedger makes entries that Validate takes, with everything in them that a stranger or a wrong clock may put there.
func someLedger(t *testing.T, seed uint64, n int) []ledger.Entry {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 1))
	text := func() string {
		if r.IntN(4) > 0 {
			return nasty[r.IntN(len(nasty))]
		}
		b := make([]byte, r.IntN(20))
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		return string(b)
	}
	units := []money.Unit{money.Credit, "EUR", "SAT", "ABCDEFGHIJKL"}
	account := func() ledger.Account {
		a := ledger.Account{Kind: ledger.AccountKind(1 + r.IntN(int(ledger.Clearing)))}
		if r.IntN(8) > 0 {
			a.Peer[0] = byte(r.IntN(5))
		}
		if r.IntN(3) == 0 {
			a.Method = text()
		}
		return a
	}
	times := []int64{0, -1, math.MinInt64 / 2, math.MaxInt64 / 2, 253402300800000, 1795000000000}
	var out []ledger.Entry
	for i := range n {
		e := ledger.Entry{
			ID: wire.Sum("test", []byte{byte(i), byte(i >> 8), byte(seed)}), Kind: ledger.EntryKind(1 + r.IntN(int(ledger.KindNetting))),
			Time: 1795000000000 + r.Int64N(1e10), Note: text(),
		}
		if r.IntN(10) == 0 {
			e.Time = times[r.IntN(len(times))]
		}
		if r.IntN(3) > 0 {
			e.Lane, e.Peer = ledger.Lane{byte(r.IntN(9))}, identity.AccountID{byte(r.IntN(5))}
		}
		for range 1 + r.IntN(4) {
			amount := 1 + r.Int64N(1_000_000_000)
			if r.IntN(20) == 0 {
				amount = 1 + r.Int64N(math.MaxInt64/int64(4*n)) // up to the largest balances that fit
			}
			if r.IntN(20) == 0 {
				amount = 1
			}
			u := units[r.IntN(len(units))]
			e.Postings = append(e.Postings, ledger.Posting{Account: account(), Unit: u, Amount: amount}, ledger.Posting{Account: account(), Unit: u, Amount: -amount})
		}
		if len(e.Note) > ledger.MaxNote {
			e.Note = e.Note[:ledger.MaxNote] // in the middle of a letter, perhaps
		}
		if err := e.Validate(); err != nil {
			t.Fatal(err)
		}
		out = append(out, e)
	}
	return out
}

// checkers are the programs of other people that must take what is written for them, as a person would call them.
var checkers = map[export.Format][]string{
	export.FormatHledger:   {"hledger", "check", "--strict", "-f"},
	export.FormatBeancount: {"bean-check", "--no-cache"},
}

func write(t *testing.T, f export.Format, entries []ledger.Entry) string {
	t.Helper()
	var out bytes.Buffer
	if err := export.Write(&out, f, of(entries...)); err != nil {
		t.Fatalf("%s: %v", f, err)
	}
	return out.String()
}

// check gives what the format's program has against content, "" if nothing.
func check(t *testing.T, f export.Format, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "ledger."+string(f))
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	program := checkers[f]
	if _, err := exec.LookPath(program[0]); err != nil {
		t.Fatalf("%v\nnext: make deps", err)
	}
	cmd := exec.CommandContext(t.Context(), program[0], append(slices.Clone(program[1:]), file)...)
	cmd.Env = append(os.Environ(), "LC_ALL=C") // hledger reads no UTF-8 there
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Sprintf("%v\n%s", err, out)
	}
	return string(out)
}

// TestPrograms gives random ledgers to the programs that they are written for.
func TestPrograms(t *testing.T) {
	for f := range checkers {
		for seed := range uint64(6) {
			content := write(t, f, someLedger(t, seed, 150))
			if out := check(t, f, content); out != "" {
				t.Errorf("%s, ledger of seed %d:\n%.2000s", f, seed, out)
			}
		}
		for name, entries := range map[string][]ledger.Entry{"empty": nil, "golden": entries()} {
			if out := check(t, f, write(t, f, entries)); out != "" {
				t.Errorf("%s, %s ledger:\n%s", f, name, out)
			}
		}
	}
}

// TestProgramsAreStrict: the programs find one micro-unit too much, in an amount or a balance, so their word is worth something.
func TestProgramsAreStrict(t *testing.T) {
	for f := range checkers {
		good := write(t, f, entries())
		for name, change := range map[string][2]string{
			"amount":              {" 0.250000 CREDIT\n", " 0.250001 CREDIT\n"},
			"both amounts":        {"0.250000 CREDIT\n", "0.250001 CREDIT\n"},
			"unknown account":     {"Assets:External:Manual  1.25", "Assets:External:Nobody  1.25"},
			"undeclared unit":     {" EUR\n", " USD\n"},
			"balance of an asset": {" 0.000002", " 0.000003"},
		} {
			bad := strings.ReplaceAll(good, change[0], change[1])
			if name == "undeclared unit" { // only in the postings
				bad = regexp.MustCompile(`(?m)^(\s+\S+\s+-?0\.000007 )EUR$`).ReplaceAllString(good, "${1}USD")
			}
			if bad == good {
				t.Fatalf("%s: %s changed nothing in\n%s", f, name, good)
			}
			if check(t, f, bad) == "" {
				t.Errorf("%s took a changed %s", f, name)
			}
		}
	}
}

// TestNames: no two accounts get one name, and every name is one that both programs take.
func TestNames(t *testing.T) {
	methods := []string{
		"manual", "Manual", "MANUAL", "-", "--", "x-41", "xA", "A", "X", "x", "0", "0A", "-2d", "x--41", "a b", "a:b", "a;b", "ü", "\xff", "\n", " ", "wise", "gf", "…",
	}
	seen := map[string]string{}
	for _, m := range methods {
		e := entries()[2]
		e.Postings = slices.Clone(e.Postings)
		e.Postings[0].Account.Method = m
		names := regexp.MustCompile(`(?m)^1970-01-01 open (Assets:External:[A-Z0-9][A-Za-z0-9-]*)$`).FindStringSubmatch(write(t, export.FormatBeancount, []ledger.Entry{e}))
		if names == nil {
			t.Errorf("method %q: no account", m)
			continue
		}
		if other, ok := seen[names[1]]; ok {
			t.Errorf("methods %q and %q are both %s", other, m, names[1])
		}
		seen[names[1]] = m
	}
}

// TestJSON: an object a line whose names are the CSV's columns, every value a text, amounts as in the CSV.
func TestJSON(t *testing.T) {
	all := someLedger(t, 7, 100)
	columns := []string{"time", "entry", "kind", "account", "counterparty", "lease", "unit", "amount", "balance", "note"}
	out := write(t, export.FormatJSON, all)
	if !utf8.ValidString(out) {
		t.Error("not UTF-8")
	}
	var rows []map[string]string
	for line := range strings.Lines(out) {
		row := map[string]string{}
		if err := json.Unmarshal([]byte(line), &row); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		at := -1
		for _, c := range columns {
			next := strings.Index(line, `"`+c+`":`)
			if next <= at || len(row) != len(columns) {
				t.Fatalf("%s: want the fields %v in this order", line, columns)
			}
			at = next
		}
		rows = append(rows, row)
	}
	for _, e := range all {
		for _, p := range e.Postings {
			row := rows[0]
			rows = rows[1:]
			if row["entry"] != e.ID.String() || row["account"] != strings.ToValidUTF8(p.Account.String(), "\uFFFD") ||
				row["note"] != strings.ToValidUTF8(e.Note, "\uFFFD") || row["unit"] != string(p.Unit) {
				t.Fatalf("%v became %v", e, row)
			}
			want := money.Micro(max(p.Amount, -p.Amount)).String()
			if got := strings.TrimPrefix(row["amount"], "-"); got != want || strings.HasPrefix(row["amount"], "-") != (p.Amount < 0) {
				t.Fatalf("%d became %s", p.Amount, row["amount"])
			}
		}
	}
	if len(rows) > 0 {
		t.Errorf("%d rows too many", len(rows))
	}
}

// TestGoldenFormats holds the formats still: people's scripts read them.
func TestGoldenFormats(t *testing.T) {
	for _, f := range []export.Format{export.FormatJSON, export.FormatHledger, export.FormatBeancount} {
		got, golden := write(t, f, entries()), filepath.Join("testdata", "ledger."+string(f))
		if *update {
			if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s differs from %s; it is now\n%s", f, golden, got)
		}
	}
}

func TestUnknownFormat(t *testing.T) {
	if err := export.Write(&bytes.Buffer{}, "pdf", of(entries()...)); err == nil {
		t.Error("pdf was written")
	}
}
