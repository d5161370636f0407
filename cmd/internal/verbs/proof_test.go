package verbs

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/statement"
	"github.com/gpufair/gpufair/p2p/identity"
)

// proofOf gives the bytes of a renter's proof file about a lane that it opened.
func proofOf(t *testing.T, lane ledger.Lane) (raw []byte) {
	t.Helper()
	_, _, dev, err := identity.Generate()
	if err != nil {
		t.Fatal(err)
	}
	schema := kv.Schema{Release: "v0.0.1", Steps: []kv.Step{{Number: 1, Name: "first", Run: func(context.Context, *kv.Txn) error { return nil }}}}
	store, err := kv.Open(t.Context(), &kv.Memory{}, schema)
	if err != nil {
		t.Fatal(err)
	}
	b, err := books.Open(t.Context(), books.Config{Dir: t.TempDir(), Store: store, Device: dev, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	err = b.Update(t.Context(), func(tx *books.Tx) error {
		_, err := tx.Promise(books.Opening{Channel: b.Channel(identity.AccountID{7}, money.Credit), Lane: lane, Rate: 1, Devices: 1, Hold: 5})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	err = b.View(t.Context(), func(r *books.Reader) error {
		f, err := r.Prove(lane, nil)
		if err != nil {
			return err
		}
		raw, err = f.Encode()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// TestProof fetches a file, and checks it with nothing else there.
func TestProof(t *testing.T) {
	raw := proofOf(t, ledger.Lane{0x3f, 0xa9})
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/ledger/leases/3fa9/proof", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(raw) })
	t.Chdir(t.TempDir())
	code, out, errs := verb(t, mux, "ledger", "proof", "3fa9")
	file := "lease-3fa900000000.proof"
	if code != cli.ExitOK || !strings.Contains(out, "ok") || !strings.Contains(errs, file) {
		t.Fatalf("%d\n%s%s", code, out, errs)
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != string(raw) {
		t.Fatalf("the file: %v", err)
	}
	if code, _, errs := verb(t, mux, "ledger", "proof", "3fa9"); code != cli.ExitSystem || !strings.Contains(errs, "next:") {
		t.Errorf("over an old file: %d %s", code, errs)
	}
	none := http.NewServeMux() // a daemon that knows nothing
	code, out, errs = verb(t, none, "ledger", "verify", file)
	if code != cli.ExitOK || errs != "" || !strings.Contains(out, "not proven:") || !strings.Contains(out, "in all, by voucher 0") {
		t.Errorf("verify: %d\n%s%s", code, out, errs)
	}
	var v statement.Proof
	if code, out, _ = verb(t, none, "ledger", "verify", "--json", file); code != cli.ExitOK || json.Unmarshal([]byte(out), &v) != nil || v.Result != "ok" {
		t.Errorf("verify --json: %d\n%s", code, out)
	}
	raw[len(raw)/2]++
	if err := os.WriteFile("bad.proof", raw, 0o600); err != nil {
		t.Fatal(err)
	}
	if code, out, _ = verb(t, none, "ledger", "verify", "bad.proof"); code != cli.ExitCorrupt || !strings.Contains(out, "corrupt") || !strings.Contains(out, "figures") {
		t.Errorf("verify of a damaged file: %d\n%s", code, out)
	}
	if code, _, errs = verb(t, none, "ledger", "verify", filepath.Join("no", "such")); code != cli.ExitNotFound || !strings.Contains(errs, "next:") {
		t.Errorf("verify of no file: %d\n%s", code, errs)
	}
	if code, _, errs = verb(t, none, "ledger", "verify", os.DevNull); code != cli.ExitNotFound || !strings.Contains(errs, "not a plain file") {
		t.Errorf("verify of a device: %d\n%s", code, errs)
	}
}
