package verbs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/ledger/statement"
	"github.com/gpufair/gpufair/p2p/local"
)

// standIn serves mux as a daemon's local API and gives its home.
func standIn(t *testing.T, mux *http.ServeMux) (state, socket string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "gfv") // short: a socket's path may have 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket = filepath.Join(dir, "api.sock")
	ln, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: mux}
	go func() { _ = srv.Serve(ln) }() // it ends with Close
	t.Cleanup(func() { srv.Close() })
	return dir, socket
}

// verb runs one verb of a daemon that the mux plays.
func verb(t *testing.T, mux *http.ServeMux, args ...string) (code cli.ExitCode, stdout, stderr string) {
	t.Helper()
	state, socket := standIn(t, mux)
	return verbAt(t, state, socket, args...)
}

// verbAt runs one verb of a daemon that has its state and its socket there.
func verbAt(t *testing.T, state, socket string, args ...string) (code cli.ExitCode, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	p := cli.NewProgram(cli.Pipe(strings.NewReader("words from a pipe\n"), &out, &errs), "gpufaird", "", "")
	d := &Daemon{
		Program: p, Title: "gpufaird", Start: "gpufaird run", Lends: true, Place: func() (string, string, error) { return state, socket, nil },
		Static: func(context.Context) []local.Check { return nil },
	}
	commands := []*cobra.Command{d.Ledger(), d.Credit(), d.Settle(), d.Identity(), d.Invite(), d.Join(), d.Peers(), d.Doctor()}
	code = p.Main(t.Context(), p.Root(commands...), args)
	return code, out.String(), errs.String()
}

func answer(v any) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(v) }
}

func refuse(e local.Error) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(e.Status)
		_ = json.NewEncoder(w).Encode(e)
	}
}

// TestVerdicts gives every result of a check its own exit code.
func TestVerdicts(t *testing.T) {
	for result, want := range map[string]cli.ExitCode{
		"ok": cli.ExitOK, "behind": cli.ExitBehind, "corrupt": cli.ExitCorrupt, "forged": cli.ExitForged, "new": cli.ExitCorrupt,
	} {
		mux := http.NewServeMux()
		mux.HandleFunc("POST /v1/ledger/verify", answer(statement.Verdict{Result: result, Detail: "because", Entry: "7"}))
		code, out, errs := verb(t, mux, "ledger", "verify")
		if code != want || !strings.Contains(out, result) || !strings.Contains(out, "because") || errs != "" {
			t.Errorf("%s: %d\n%s%s", result, code, out, errs)
		}
	}
}

// TestRefusals gives what the daemon refuses the exit code and the next step of docs/cli.md.
func TestRefusals(t *testing.T) {
	for want, e := range map[cli.ExitCode]local.Error{
		cli.ExitNotFound: {Status: 404, Detail: "lease x: not found", Next: "look again"},
		cli.ExitUsage:    {Status: 422, Detail: "no such account", Next: "look again"},
		cli.ExitRefused:  {Status: 409, Detail: "paused", Code: "owner_paused", Next: "look again"},
		cli.ExitFailure:  {Status: 500, Detail: "broken", Next: "look again"},
	} {
		mux := http.NewServeMux()
		mux.HandleFunc("GET /v1/peers", refuse(e))
		code, out, errs := verb(t, mux, "peers")
		if code != want || out != "" || !strings.Contains(errs, "list peers: "+e.Detail) || !strings.Contains(errs, "next: look again") {
			t.Errorf("%+v: %d\n%s%s", e, code, out, errs)
		}
	}
	d := &Daemon{Start: "gpufaird run"}
	if err := d.Explain("x", fmt.Errorf("dial: %w", local.ErrNotRunning)); cli.CodeOf(err) != cli.ExitNoDaemon {
		t.Errorf("no daemon: %v", err)
	}
	if err := d.Explain("x", context.Canceled); cli.CodeOf(err) != cli.ExitInterrupted {
		t.Errorf("interrupted: %v", err)
	}
	if d.Explain("x", nil) != nil {
		t.Error("no error became one")
	}
}

// TestEntries reads a long ledger page by page, and no more than was asked for.
func TestEntries(t *testing.T) {
	const total = 2500
	asked := 0
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/ledger/entries", func(w http.ResponseWriter, r *http.Request) {
		asked++
		from, err1 := strconv.Atoi(r.URL.Query().Get("from"))
		limit, err2 := strconv.Atoi(r.URL.Query().Get("limit"))
		if err := errors.Join(err1, err2); err != nil || limit < 1 || limit > pageOfEntries {
			t.Errorf("asked for %s: %v", r.URL, err)
		}
		out := entries{Entries: []statement.Entry{}}
		for i := from; i < min(from+limit, total); i++ {
			out.Entries = append(out.Entries, statement.Entry{Index: uint64(i), Kind: "usage", Time: time.UnixMilli(1)})
		}
		answer(out)(w, r)
	})
	for args, want := range map[string][2]int{ // lines, questions
		"--limit 0":              {2500, 3},
		"--limit 20":             {20, 1},
		"--limit 1500 --from 10": {1500, 2},
		"--from 2490":            {10, 1},
		"--limit 0 --from 1500":  {1000, 2},
		"--limit 0 --from 2500":  {0, 1},
	} {
		asked = 0
		code, out, errs := verb(t, mux, append([]string{"ledger", "entries", "--json"}, strings.Fields(args)...)...)
		if got := strings.Count(out, "\n"); code != cli.ExitOK || got != want[0] || asked != want[1] || errs != "" {
			t.Errorf("%s: code %d, %d lines by %d questions, want %v: %s", args, code, got, asked, want, errs)
		}
	}
	if code, _, _ := verb(t, mux, "ledger", "entries", "--limit", "-1"); code != cli.ExitUsage {
		t.Errorf("a negative limit: %d", code)
	}
}

// TestRequests are the requests that verbs with arguments make.
func TestRequests(t *testing.T) {
	type request struct{ method, path, body string }
	for args, want := range map[string]request{
		"credit set gfabc --limit 25":                       {"PUT", "/v1/credit/gfabc", `{"limit":"25"}`},
		"credit set gfabc --rule":                           {"PUT", "/v1/credit/gfabc", `{"limit":""}`},
		"settle gfabc --amount 3.5 --reference 2026-117":    {"POST", "/v1/settle", `{"account":"gfabc","amount":"3.5","reference":"2026-117"}`},
		"settle accept 5c1e":                                {"POST", "/v1/settlements/5c1e/accept", ""},
		"settle refuse 5c1e":                                {"POST", "/v1/settlements/5c1e/refuse", ""},
		"settle send 5c1e":                                  {"POST", "/v1/settlements/5c1e/send", ""},
		"ledger statement a/b --csv":                        {"GET", "/v1/ledger/leases/a%2Fb/intervals", ""},
		"ledger statement a/b --json":                       {"GET", "/v1/ledger/leases/a%2Fb", ""},
		"invite --credit 2.5":                               {"POST", "/v1/invite", `{"credit":"2.5"}`},
		"join gpufair-invite:x":                             {"POST", "/v1/join", `{"invite":"gpufair-invite:x"}`},
		"join -":                                            {"POST", "/v1/join", `{"invite":"words from a pipe"}`},
		"ledger":                                            {"GET", "/v1/ledger", ""},
		"credit":                                            {"GET", "/v1/credit", ""},
		"ledger owed":                                       {"GET", "/v1/ledger/owed", ""},
		"ledger dispute":                                    {"GET", "/v1/ledger/disputes", ""},
		"ledger dispute 3fa9 --reason slow --days 7":        {"POST", "/v1/ledger/leases/3fa9/dispute", `{"reason":"slow","days":7}`},
		"ledger dispute 3fa9 --close --amount 1.25":         {"POST", "/v1/ledger/leases/3fa9/dispute", `{"amount":"1.25"}`},
		"ledger write-off gfabc --reason gone --unit EUR":   {"POST", "/v1/ledger/write-off", `{"account":"gfabc","unit":"EUR","reason":"gone"}`},
		"settle list":                                       {"GET", "/v1/settlements", ""},
		"ledger net --dry-run --unit EUR":                   {"POST", "/v1/ledger/net", `{"dry_run":true,"unit":"EUR"}`},
		"ledger net list":                                   {"GET", "/v1/ledger/net", ""},
		"ledger net release 5c1e":                           {"POST", "/v1/ledger/net/5c1e/release", ""},
		"settle gfabc --method bank --unit EUR --amount 1 ": {"POST", "/v1/settle", `{"account":"gfabc","amount":"1","unit":"EUR","method":"bank","reference":""}`},
	} {
		var got request
		mux := http.NewServeMux()
		mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
			var b bytes.Buffer
			if _, err := b.ReadFrom(r.Body); err != nil {
				t.Error(err)
			}
			got = request{r.Method, r.URL.EscapedPath(), b.String()}
			answer(struct{}{})(w, r)
		})
		if code, _, errs := verb(t, mux, strings.Fields(args)...); code != cli.ExitOK || got != want {
			t.Errorf("%s: %d, asked for %+v, want %+v\n%s", args, code, got, want, errs)
		}
	}
}

func TestDoctor(t *testing.T) {
	for level, want := range map[string]cli.ExitCode{"ok": cli.ExitOK, "note": cli.ExitOK, "warn": cli.ExitUnhealthy, "fail": cli.ExitUnhealthy} {
		mux := http.NewServeMux()
		mux.HandleFunc("GET /v1/doctor", answer(local.Checks{Checks: []local.Check{{Name: "a", Level: level, Detail: "d\x1b\nmore", Next: "n"}}}))
		code, out, _ := verb(t, mux, "doctor")
		if code != want || !strings.Contains(strings.ToLower(out), level) || !strings.Contains(out, "a: d?\n      more\n      next: n") {
			t.Errorf("%s: %d\n%s", level, code, out)
		}
		if code, out, _ := verb(t, mux, "doctor", "--json"); code != want || !strings.HasPrefix(out, `{"checks":[{"name":"a"`) {
			t.Errorf("%s with --json: %d\n%s", level, code, out)
		}
	}
}

// TestExport writes a new file, and never over an old one.
func TestExport(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/ledger/export", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "time,entry\n") })
	if code, out, _ := verb(t, mux, "ledger", "export"); code != cli.ExitOK || out != "time,entry\n" {
		t.Errorf("export: %d %q", code, out)
	}
	file := filepath.Join(t.TempDir(), "ledger.csv")
	for _, want := range []cli.ExitCode{cli.ExitOK, cli.ExitSystem} {
		if code, out, errs := verb(t, mux, "ledger", "export", "-o", file); code != want || out != "" {
			t.Errorf("export to a file: %d %q %s", code, out, errs)
		}
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "time,entry\n" {
		t.Errorf("the file: %q %v", b, err)
	}
	mux = http.NewServeMux()
	mux.HandleFunc("GET /v1/ledger/export", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, r.URL.Query().Get("format"))
		if r.URL.Query().Get("format") == "json" {
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
	})
	for _, f := range []string{"csv", "hledger", "beancount"} {
		if code, out, _ := verb(t, mux, "ledger", "export", "--format", f); code != cli.ExitOK || out != f+"\n" {
			t.Errorf("export as %s: %d %q", f, code, out)
		}
	}
	if code, _, errs := verb(t, mux, "ledger", "export", "--format", "pdf"); code != cli.ExitUsage || !strings.Contains(errs, "hledger") {
		t.Errorf("export as pdf: %d %s", code, errs)
	}
	cut := filepath.Join(t.TempDir(), "cut.json")
	if code, _, errs := verb(t, mux, "ledger", "export", "--format", "json", "-o", cut); code == cli.ExitOK {
		t.Errorf("a cut answer: %d %s", code, errs)
	}
	if _, err := os.Stat(cut); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("half a file is left: %v", err)
	}
}

func TestReadOnlyOnce(t *testing.T) {
	for _, why := range []string{"ledger is read-only: the disk is full", "the disk is full"} {
		if got := readOnly(why); got != "the ledger is read-only: the disk is full" {
			t.Error(got)
		}
	}
}
