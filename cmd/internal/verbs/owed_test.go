package verbs

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/statement"
)

// TestOwedTable has one table for each direction, and a column of an age only if something is that old.
func TestOwedTable(t *testing.T) {
	due := time.Now().Add(-40 * 24 * time.Hour)
	zero := statement.Debt{NotDue: "0", Due: "0", Overdue30: "0", Overdue60: "0", Overdue90: "0", Overdue: "0", Prepaid: "0", WrittenOff: "0"}
	late := zero
	late.Account, late.Role, late.Unit, late.Owed, late.DueAt, late.Late, late.Overdue60, late.Reminders = "gfdebtor", "provider", "CREDIT", "2.5", &due, true, "2.5", 3
	mine := zero
	mine.Account, mine.Role, mine.Unit, mine.Owed, mine.NotDue = "gfowner", "renter", "EUR", "7", "7"
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/ledger/owed", answer(statement.Owed{Owed: []statement.Debt{late, mine}}))
	code, out, errs := verb(t, mux, "ledger", "owed")
	parts := strings.Split(out, "\n\n")
	if code != cli.ExitOK || len(parts) != 2 {
		t.Fatalf("code %d, %d tables: %s%s", code, len(parts), out, errs)
	}
	for i, want := range [][]string{{"OWES ME", "31-60 D", "gfdebtor", " late"}, {"I OWE", "NOT DUE", "gfowner", "EUR"}} {
		for _, w := range want {
			if !strings.Contains(parts[i], w) {
				t.Errorf("table %d has no %q:\n%s", i, w, parts[i])
			}
		}
	}
	if strings.Contains(out, "PREPAID") || strings.Contains(parts[0], "NOT DUE") {
		t.Errorf("columns of nothing:\n%s", out)
	}
	if code, out, _ := verb(t, mux, "ledger", "owed", "--json"); code != cli.ExitOK || strings.Count(out, "\n") != 2 {
		t.Errorf("%d: %s", code, out)
	}
}

// TestLedgerSaysWhatIsLate tells a renter of its own late payment where it looks first.
func TestLedgerSaysWhatIsLate(t *testing.T) {
	at := time.Now()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/ledger", answer(statement.Ledger{Due: []statement.Debt{{Account: "gfowner", Role: "renter", Late: true, DueAt: &at}}}))
	if code, _, errs := verb(t, mux, "ledger"); code != cli.ExitOK || !strings.Contains(errs, "late with a payment to gfowner") {
		t.Errorf("%d: %s", code, errs)
	}
}

func TestCreditSaysWhy(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/credit", answer(statement.Credit{
		Unit: "CREDIT", Stranger: "0.2", Origin: statement.CreditOrigin{Stranger: "default: 30 min"},
		Accounts:  []statement.CreditLimit{{Account: "gflate", Why: "late"}, {Account: "gfnew", Why: "strangers_total"}},
		Standings: []statement.CreditStanding{{Account: "gfowner", Unit: "CREDIT", Owed: "3"}},
	}))
	_, out, _ := verb(t, mux, "credit")
	for _, want := range []string{"default: 30 min", "a late payment", "the limit for all strangers", "gfowner"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q:\n%s", want, out)
		}
	}
}

// TestProofOfAnAccount writes a proof for each unpaid lease into a new folder.
func TestProofOfAnAccount(t *testing.T) {
	lane := ledger.Lane{0x3f, 0xa9}
	raw := proofOf(t, lane)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/ledger/accounts/gfabc/unpaid", answer(statement.Claim{Leases: []statement.UnpaidLease{{Lease: lane.String(), Amount: "1", Unit: "CREDIT"}}}))
	mux.HandleFunc("GET /v1/ledger/accounts/gfnobody/unpaid", answer(statement.Claim{}))
	mux.HandleFunc("GET /v1/ledger/leases/"+lane.String()+"/proof", func(w http.ResponseWriter, _ *http.Request) { w.Write(raw) })
	folder := filepath.Join(t.TempDir(), "debt")
	code, out, errs := verb(t, mux, "ledger", "proof", "--account", "gfabc", "-o", folder)
	if code != cli.ExitOK || !strings.Contains(out, "ok") {
		t.Fatalf("%d: %s%s", code, out, errs)
	}
	file := filepath.Join(folder, "lease-"+short(lane.String())+".proof")
	if got, err := os.ReadFile(file); err != nil || string(got) != string(raw) {
		t.Errorf("%s: %v", file, err)
	}
	if code, _, _ := verb(t, mux, "ledger", "proof", "--account", "gfabc", "-o", folder); code != cli.ExitSystem {
		t.Errorf("over an old folder: %d", code)
	}
	if code, _, _ := verb(t, mux, "ledger", "proof", "--account", "gfnobody"); code != cli.ExitNotFound {
		t.Errorf("of nobody: %d", code)
	}
	if code, _, _ := verb(t, mux, "ledger", "proof", "3fa9", "--account", "gfabc"); code != cli.ExitUsage {
		t.Errorf("of both: %d", code)
	}
}

// TestDisputeShows how one dispute stands, and who must act.
func TestDisputeShows(t *testing.T) {
	v := statement.Dispute{
		Lease: "3fa9", Account: "gfowner", Role: "renter", Unit: "CREDIT", By: "both", Reason: "too slow\x1b[2J", TheirReason: "it was not", State: "open", Amount: "3",
		TheyOffer: "2", Turn: "me", Until: time.Now().Add(time.Hour),
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/ledger/leases/3fa9/dispute", func(w http.ResponseWriter, r *http.Request) { answer(v)(w, r) })
	code, out, _ := verb(t, mux, "ledger", "dispute", "3fa9")
	for _, want := range []string{"too slow", "it was not", "then 3 CREDIT stand", "--close --amount 2` agrees", "who acts"} {
		if code != cli.ExitOK || !strings.Contains(out, want) || strings.Contains(out, "\x1b") {
			t.Errorf("no %q: %d\n%s", want, code, out)
		}
	}
	if code, out, _ = verb(t, mux, "ledger", "dispute", "3fa9", "--json"); code != cli.ExitOK || !strings.Contains(out, `"turn":"me"`) {
		t.Errorf("%d: %s", code, out)
	}
	for turn, want := range map[string]string{"other": "the other side", "both": "either of you", "nobody": "nobody yet"} {
		v.Turn = turn
		if _, out, _ := verb(t, mux, "ledger", "dispute", "3fa9"); !strings.Contains(out, want) {
			t.Errorf("%s: no %q:\n%s", turn, want, out)
		}
	}
	if code, _, _ := verb(t, mux, "ledger", "dispute", "beef"); code != cli.ExitNotFound {
		t.Errorf("of another lease: %d", code)
	}
}

// TestDisputeUsage asks for nothing that the words do not say.
func TestDisputeUsage(t *testing.T) {
	for _, args := range [][]string{
		{"3fa9", "--days", "3"},
		{"3fa9", "--amount", "1"},
		{"3fa9", "--close"},
		{"3fa9", "--close", "--amount", "1", "--reason", "x"},
		{"3fa9", "--reason", "x", "--amount", "1"},
		{"--reason", "x"},
		{"--close"},
	} {
		if code, _, _ := verb(t, http.NewServeMux(), append([]string{"ledger", "dispute"}, args...)...); code != cli.ExitUsage {
			t.Errorf("%q: %d", args, code)
		}
	}
}
