package verbs

import (
	"encoding/json"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/ledger/history"
	"github.com/gpufair/gpufair/ledger/proof"
	"github.com/gpufair/gpufair/ledger/statement"
	"github.com/gpufair/gpufair/p2p/identity"
)

// TestWitnessList: of each counterparty the worst that is known stands in its line.
func TestWitnessList(t *testing.T) {
	now := time.Now()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/ledger/witnesses", answer(statement.Witnesses{Witnesses: []statement.Witness{
		{Account: "gfgood", Device: "12D3good", Epoch: 1, Checked: 40, CheckedAt: now.Add(-time.Minute), Seen: 42, Cosigned: 17, CosignedAt: now},
		{Account: "gfnew", Device: "12D3new", Epoch: 1, Seen: 3},
		{Account: "gfodd", Device: "12D3odd", Epoch: 2, Checked: 9, CheckedAt: now, Suspicion: "it \x1b[2Jdid not show", SuspectSince: now.Add(-time.Hour)},
		{Account: "gfbad", Device: "12D3bad", Epoch: 2, Checked: 5, CheckedAt: now, Suspicion: "x", Fork: &statement.Fork{Epoch: 2, Entries: 5}},
		{Account: "gfold", Device: "12D3old", Epoch: 3, Checked: 5, CheckedAt: now, Fork: &statement.Fork{Epoch: 2, Entries: 5}},
	}}))
	code, out, errs := verb(t, mux, "ledger", "witness")
	for line, want := range map[string]string{
		"12D3good": "ok, at 42 since", "12D3new": "not checked yet", "12D3odd": "suspect since", "12D3bad": "FORKED at 5", "12D3old": "FORKED in epoch 2",
	} {
		found := false
		for l := range strings.Lines(out) {
			found = found || strings.Contains(l, line) && strings.Contains(l, want)
		}
		if !found {
			t.Errorf("%s is not %q:\n%s", line, want, out)
		}
	}
	if code != cli.ExitOK || !strings.Contains(errs, "did not show") || strings.Contains(errs, "\x1b") {
		t.Errorf("%d, %q", code, errs)
	}
	code, out, _ = verb(t, mux, "ledger", "witness", "--json")
	var first statement.Witness
	if line, _, _ := strings.Cut(out, "\n"); code != cli.ExitOK || json.Unmarshal([]byte(line), &first) != nil || first.Checked != 40 {
		t.Errorf("--json: %d\n%s", code, out)
	}
}

// TestForkFile: the proof against a counterparty is written once, and verifying it says who forged, with the code of a forgery.
func TestForkFile(t *testing.T) {
	t.Chdir(t.TempDir())
	_, _, dev, err := identity.Generate()
	if err != nil {
		t.Fatal(err)
	}
	f := proof.Fork{Device: dev.Peer(), Delegation: dev.Delegation()}
	for i := range f.Notes {
		c := history.Checkpoint{Origin: history.Origin{Peer: dev.Peer(), Epoch: 1}, Size: 7, Root: history.Hash{byte(i)}}
		if f.Notes[i], err = c.Sign(dev.SignNote); err != nil {
			t.Fatal(err)
		}
	}
	raw, err := f.Encode()
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/ledger/witnesses/gfbad/fork", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(raw) })
	code, out, errs := verb(t, mux, "ledger", "witness", "proof", "gfbad", "-o", "fork.txt")
	got, err := os.ReadFile("fork.txt")
	if code != cli.ExitOK || err != nil || string(got) != string(raw) || !strings.Contains(out, dev.Account().String()) || !strings.Contains(errs, "verify fork.txt") {
		t.Errorf("%d, %v\n%s%s", code, err, out, errs)
	}
	if code, _, errs := verb(t, mux, "ledger", "witness", "proof", "gfbad", "-o", "fork.txt"); code != cli.ExitSystem || !strings.Contains(errs, "next:") {
		t.Errorf("written over a file: %d, %s", code, errs)
	}
	none := http.NewServeMux()
	code, out, errs = verb(t, none, "ledger", "verify", "fork.txt")
	if code != cli.ExitForged || !strings.Contains(out, dev.Peer().String()) || !strings.Contains(out, dev.Account().String()) || errs != "" {
		t.Errorf("verify: %d\n%s%s", code, out, errs)
	}
	var v statement.ForkProof
	if code, out, _ = verb(t, none, "ledger", "verify", "--json", "fork.txt"); code != cli.ExitForged || json.Unmarshal([]byte(out), &v) != nil || v.Entries != 7 {
		t.Errorf("verify --json: %d\n%s", code, out)
	}
	if err := os.WriteFile("fork.txt", raw[:len(raw)-9], 0o600); err != nil {
		t.Fatal(err)
	}
	if code, out, _ = verb(t, none, "ledger", "verify", "fork.txt"); code != cli.ExitCorrupt || !strings.Contains(out, "accuses nobody") {
		t.Errorf("verify of a cut file: %d\n%s", code, out)
	}
}
