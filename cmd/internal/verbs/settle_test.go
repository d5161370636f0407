package verbs

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/statement"
	"github.com/gpufair/gpufair/p2p/identity"
)

// paymentFile gives the bytes of the proof of a payment that a renter proposed.
func paymentFile(t *testing.T) (raw []byte) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	_, _, dev, err := identity.Generate()
	must(err)
	schema := kv.Schema{Release: "v0.0.1", Steps: []kv.Step{{Number: 1, Name: "first", Run: func(context.Context, *kv.Txn) error { return nil }}}}
	store, err := kv.Open(t.Context(), &kv.Memory{}, schema)
	must(err)
	b, err := books.Open(t.Context(), books.Config{Dir: t.TempDir(), Store: store, Device: dev, Log: slog.New(slog.DiscardHandler)})
	must(err)
	defer b.Close()
	must(b.Update(t.Context(), func(tx *books.Tx) error {
		id, _, err := tx.Propose(books.Payment{Channel: b.Channel(identity.AccountID{7}, money.Credit), Amount: 3_500_000, Method: "bank", Reference: "INV-7"})
		if err != nil {
			return err
		}
		p, err := tx.ProvePayment(id)
		if err == nil {
			raw, err = p.Encode()
		}
		return err
	}))
	return raw
}

// TestSettleProof fetches a payment's file, and checks it with nothing else there.
func TestSettleProof(t *testing.T) {
	raw := paymentFile(t)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/settlements/5c1e/proof", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(raw) })
	t.Chdir(t.TempDir())
	const file = "for-the-judge.proof"
	code, out, errs := verb(t, mux, "settle", "proof", "5c1e", "-o", file)
	if code != cli.ExitOK || !strings.Contains(out, "INV-7") || !strings.Contains(out, "3.5 CREDIT") || !strings.Contains(out, "only one side has signed") || !strings.Contains(errs, "ledger verify "+file) {
		t.Fatalf("%d\n%s%s", code, out, errs)
	}
	if code, _, errs := verb(t, mux, "settle", "proof", "5c1e", "-o", file); code != cli.ExitSystem || !strings.Contains(errs, "next:") {
		t.Errorf("over an old file: %d %s", code, errs)
	}
	none := http.NewServeMux()
	if code, out, errs = verb(t, none, "ledger", "verify", file); code != cli.ExitOK || errs != "" || !strings.Contains(out, "not proven:") {
		t.Errorf("verify: %d\n%s%s", code, out, errs)
	}
	var v statement.PaymentProof
	if code, out, _ = verb(t, none, "ledger", "verify", "--json", file); code != cli.ExitOK || json.Unmarshal([]byte(out), &v) != nil || v.Amount != "3.5" || len(v.Signed) != 1 {
		t.Errorf("verify --json: %d\n%s", code, out)
	}
	raw[len(raw)/2]++
	if err := os.WriteFile("bad.proof", raw, 0o600); err != nil {
		t.Fatal(err)
	}
	if code, out, _ = verb(t, none, "ledger", "verify", "bad.proof"); code != cli.ExitCorrupt || !strings.Contains(out, "none: it does not follow") {
		t.Errorf("verify of a damaged file: %d\n%s", code, out)
	}
	if code, _, _ := verb(t, none, "settle", "proof", "5c1e"); code != cli.ExitNotFound {
		t.Errorf("of no such payment: %d", code)
	}
}

// TestSettleListMarks what nobody has signed for in a week.
func TestSettleListMarks(t *testing.T) {
	old := time.Now().Add(-9 * 24 * time.Hour)
	list := statement.Settlements{Settlements: []statement.Settlement{
		{ID: "aa", Account: "gfsilent", State: "proposed", Amount: "1", Unit: "CREDIT", Time: old, ByMe: true, Overdue: true},
		{ID: "bb", Account: "gfother", State: "proposed", Amount: "2", Unit: "CREDIT", Time: time.Now(), ByMe: true},
		{ID: "cc", Account: "gfother", State: "refused", Why: "no money came", Time: old},
		{ID: "dd", Account: "gfother", State: "refused", RefusedBy: "me", Signed: []string{"gfother"}, Time: old},
		{ID: "ee", Account: "gfother", State: "refused", RefusedBy: "other", Why: "no money", Signed: []string{"gfme"}, Time: old},
		{ID: "ff", Account: "gfother", State: "refused", RefusedBy: "me", Why: "it was never sent", Signed: []string{"gfme"}, Time: old},
		{ID: "gg", Account: "gfaway", State: "proposed", Undelivered: true, Signed: []string{"gfme"}, Time: time.Now()},
	}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/settlements", answer(list))
	code, out, errs := verb(t, mux, "settle", "list")
	if code != cli.ExitOK || strings.Count(out, "not countersigned for") != 1 || !strings.Contains(out, "refused: no money came") ||
		!strings.Contains(errs, "settle proof aa") || strings.Contains(errs, "settle proof bb") {
		t.Errorf("%d\n%s%s", code, out, errs)
	}
	for _, want := range []string{"refused by you", "refused by gfother: no money", "dropped: it was never sent", "not delivered yet: gfaway is not connected"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q:\n%s", want, out)
		}
	}
	if code, out, errs := verb(t, mux, "settle", "list", "--json"); code != cli.ExitOK || strings.Count(out, "\n") != 7 || errs != "" || !strings.Contains(out, `"overdue":true`) {
		t.Errorf("%d\n%s%s", code, out, errs)
	}
}

// TestOwedSaysHowToPay prints an invoice that came with the line that records its payment, and what a program can't do.
func TestOwedSaysHowToPay(t *testing.T) {
	zero := statement.Debt{NotDue: "0", Due: "0", Overdue30: "0", Overdue60: "0", Overdue90: "0", Overdue: "0", Prepaid: "0", WrittenOff: "0"}
	mine, stuck := zero, zero
	mine.Account, mine.Role, mine.Unit, mine.Owed = "gfowner", "renter", "EUR", "7"
	mine.Invoice = &statement.Invoice{State: "open", Amount: "7", Method: "bank", Reference: "it's 7", Pay: "IBAN\x1b[2J XX"}
	stuck.Account, stuck.Role, stuck.Unit, stuck.Owed, stuck.Trouble = "gfdebtor", "provider", "EUR", "2", "x"
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/ledger/owed", answer(statement.Owed{
		Owed: []statement.Debt{mine, stuck}, Troubles: []statement.Trouble{{Account: "gfdebtor", What: "make an invoice", Error: "no answer within 30s", Tries: 3}},
	}))
	code, out, errs := verb(t, mux, "ledger", "owed")
	for _, want := range []string{"--amount 7 --method bank --reference 'it'\\''s 7'", "IBAN", "can't make an invoice of gfdebtor: no answer within 30s (3 tries"} {
		if code != cli.ExitOK || !strings.Contains(errs, want) {
			t.Errorf("no %q: %d\n%s", want, code, errs)
		}
	}
	if strings.Contains(errs, "\x1b") || !strings.Contains(out, "INVOICE") || !strings.Contains(out, "stuck") {
		t.Errorf("%q\n%s", errs, out)
	}
}
