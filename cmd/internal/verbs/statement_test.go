package verbs

import (
	"encoding/csv"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/ledger/statement"
)

// intervalsOf answers with n intervals of ten seconds, page by page.
func intervalsOf(n int) *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/ledger/leases/3fa9", answer(statement.Statement{Lease: "3fa9", Role: "provider", Amount: "0.01", Unit: "CREDIT", Entries: []statement.Entry{}}))
	mux.HandleFunc("GET /v1/ledger/leases/3fa9/intervals", func(w http.ResponseWriter, r *http.Request) {
		skip, _ := strconv.Atoi(r.FormValue("skip"))
		limit, _ := strconv.Atoi(r.FormValue("limit"))
		out := statement.Intervals{Lease: "3fa9", Intervals: []statement.Interval{}, More: skip+limit < n}
		for i := skip; i < min(skip+limit, n); i++ {
			at := time.Date(2026, 11, 30, 10, 0, 10*i, 0, time.UTC)
			v := statement.Interval{
				Beat: uint64(i), From: at, To: at.Add(10 * time.Second), BillableMs: 10_000, BillableTotalMs: uint64(i+1) * 10_000, State: "running", Rate: "3.6",
				Devices: 1, Amount: "0.01", Cumulative: "0.01", Voucher: uint64(i + 1), Receipt: true, Evidence: "fits", CPUMs: 9_500, MemoryMiB: 512,
			}
			if i == n-1 {
				v.State, v.Why = "ended", "completed"
			}
			out.Intervals = append(out.Intervals, v)
		}
		_ = json.NewEncoder(w).Encode(out)
	})
	return mux
}

// TestStatementLines: people see the newest intervals and what began and ended the charge; programs get all of them, a line each.
func TestStatementLines(t *testing.T) {
	const n = 2*pageOfIntervals + 7
	code, out, errs := verb(t, intervalsOf(n), "ledger", "statement", "3fa9")
	if lines := strings.Count(out, "  fits  "); code != cli.ExitOK || lines != linesShown || !strings.Contains(errs, "before these; --last 0 shows all") {
		t.Errorf("%d, %d lines\n%s%s", code, lines, out, errs)
	}
	for _, want := range []string{"charge began", "2026-11-30 10:00:00: the job ran", "charge ended", ": completed", "95%", "512 MiB"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if _, out, _ = verb(t, intervalsOf(n), "ledger", "statement", "3fa9", "--last", "0", "--intervals"); strings.Count(out, "  fits  ") != n {
		t.Errorf("--last 0 shows %d", strings.Count(out, "  fits  "))
	}
	_, out, errs = verb(t, intervalsOf(n), "ledger", "statement", "3fa9", "--csv")
	rows, err := csv.NewReader(strings.NewReader(out)).ReadAll()
	if err != nil || len(rows) != n+1 || rows[0][0] != "from" || rows[1][5] != "" || rows[n][5] != "completed" || errs != "" {
		t.Errorf("--csv: %d rows, %v\n%s", len(rows), err, errs)
	}
	_, out, _ = verb(t, intervalsOf(n), "ledger", "statement", "3fa9", "--intervals", "--json")
	var v statement.Interval
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) != n || json.Unmarshal([]byte(lines[n-1]), &v) != nil || v.Why != "completed" || v.BillableTotalMs != n*10_000 {
		t.Errorf("--intervals --json: %d lines, the last %+v", len(lines), v)
	}
	if code, _, errs := verb(t, intervalsOf(1), "ledger", "statement", "3fa9", "--last", "-1"); code != cli.ExitUsage || !strings.Contains(errs, "next:") {
		t.Errorf("--last -1: %d %s", code, errs)
	}
}
