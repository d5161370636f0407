package verbs

import (
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/cmd/internal/wire"
	"github.com/gpufair/gpufair/ledger/statement"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/local"
)

// TestRecoverVerb: who has not answered is said, and the exit code with it.
func TestRecoverVerb(t *testing.T) {
	done := statement.Recovery{Epoch: 9, Restored: time.Now(), Asked: []statement.Recovered{{Account: "gfa", Result: statement.Found, Leases: 2}}}
	waiting := done
	waiting.Waiting = []statement.Waiting{{Account: "gfbcdefghijklm", Leases: 3}}
	for name, c := range map[string]struct {
		answer any
		code   cli.ExitCode
		says   string
	}{
		"all answered":   {done, cli.ExitOK, "everybody has answered"},
		"one has not":    {waiting, cli.ExitBehind, "3 unsure leases"},
		"never restored": {statement.Recovery{Epoch: 1}, cli.ExitOK, "never restored"},
		"nobody to ask":  {statement.Recovery{Epoch: 9, Restored: time.Now()}, cli.ExitOK, "everybody has answered"},
	} {
		mux := http.NewServeMux()
		mux.HandleFunc("POST /v1/ledger/recover", answer(c.answer))
		code, out, errs := verb(t, mux, "ledger", "recover")
		if code != c.code || !strings.Contains(out+errs, c.says) {
			t.Errorf("%s: %d\n%s%s", name, code, out, errs)
		}
		if asked := len(c.answer.(statement.Recovery).Asked); asked == 0 && out != "" {
			t.Errorf("%s: a table of nobody:\n%s", name, out)
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/ledger/recover/gfa/forget", answer(done))
	if code, _, errs := verb(t, mux, "ledger", "recover", "--forget", "gfa"); code != cli.ExitOK {
		t.Errorf("forget: %d %s", code, errs)
	}
	mux = http.NewServeMux()
	mux.HandleFunc("POST /v1/ledger/recover", refuse(local.Error{Status: 409, Detail: "read-only", Next: "stop it"}))
	if code, _, errs := verb(t, mux, "ledger", "recover"); code != cli.ExitRefused || !strings.Contains(errs, "next: stop it") {
		t.Errorf("read-only: %d %s", code, errs)
	}
}

// TestBackupVerb: what the daemon sends counts only if it is a whole backup.
func TestBackupVerb(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ledger.backup")
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/ledger/backup", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("gpufair backup 1\nhalf of it")) })
	code, _, errs := verb(t, mux, "ledger", "backup", file)
	if code != cli.ExitFailure || !strings.Contains(errs, "next:") {
		t.Errorf("half a backup: %d %s", code, errs)
	}
	list, err := os.ReadDir(filepath.Dir(file))
	if err != nil || len(list) != 0 {
		t.Errorf("left: %v, %v", list, err)
	}
	if code, _, errs := verb(t, mux, "ledger", "restore", file); code != cli.ExitNotFound || !strings.Contains(errs, "next: `identity import`") {
		t.Errorf("restore on a PC without keys: %d %s", code, errs)
	}
}

// TestBackupOfNoLedger: a daemon that never ran has none, and FILE is not to blame.
func TestBackupOfNoLedger(t *testing.T) {
	p := cli.NewProgram(cli.Pipe(strings.NewReader(""), io.Discard, io.Discard), "gpufaird", "", "")
	state := t.TempDir()
	d := &Daemon{Program: p, Title: "gpufaird", Start: "gpufaird run", Place: func() (string, string, error) { return state, filepath.Join(state, "none.sock"), nil }}
	code := p.Main(t.Context(), p.Root(d.Ledger()), []string{"ledger", "backup", filepath.Join(state, "ledger.backup")})
	if code != cli.ExitNotFound {
		t.Errorf("exit code %d", code)
	}
}

// TestVerifyStopped: a ledger that keeps its daemon from starting is checked where it lies, with the documented exit codes.
func TestVerifyStopped(t *testing.T) {
	state := t.TempDir()
	none := filepath.Join(state, "none.sock")
	if _, _, err := identity.LoadOrCreate(wire.IdentityDir(state), time.Now()); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := verbAt(t, state, none, "ledger", "verify"); code != cli.ExitNoDaemon || !strings.Contains(errs, "start it") {
		t.Errorf("without a ledger: %d %s", code, errs)
	}
	_, err := wire.Restore(t.Context(), wire.RestoreConfig{State: state, Release: "v0.0.1", Log: slog.New(slog.DiscardHandler), Now: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	if code, out, errs := verbAt(t, state, none, "ledger", "verify"); code != cli.ExitOK || !strings.Contains(out, "ok") {
		t.Errorf("a sound ledger: %d %s%s", code, out, errs)
	}
	manifest := filepath.Join(wire.StoreDir(state), "badger", "MANIFEST")
	if err := os.WriteFile(manifest, []byte("gone"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, out, errs := verbAt(t, state, none, "ledger", "verify"); code != cli.ExitCorrupt || !strings.Contains(out, "corrupt") || !strings.Contains(errs, "ledger recover") {
		t.Errorf("a damaged one: %d %s%s", code, out, errs)
	}
}
