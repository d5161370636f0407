package local_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/local"
	"github.com/gpufair/gpufair/ledger/meter"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/settle"
	"github.com/gpufair/gpufair/ledger/statement"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/local/serve"
	"github.com/gpufair/gpufair/p2p/p2ptest"
)

// posted asks for a change.
func posted(t *testing.T, d local.Desk, path, body string) *httptest.ResponseRecorder {
	t.Helper()
	mux := http.NewServeMux()
	local.Register(serve.NewAPI(mux, serve.Config{Title: "x", Version: "1"}), d)
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1"+path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	mux.ServeHTTP(w, r)
	return w
}

// post asks for a change and checks how it ends and that the answer says text.
func post(t *testing.T, d local.Desk, path, body string, status int, text string) string {
	t.Helper()
	w := posted(t, d, path, body)
	if w.Code != status || !strings.Contains(w.Body.String(), text) {
		t.Errorf("POST %s %s: %d, want %d with %q: %s", path, body, w.Code, status, text, w.Body)
	}
	return w.Body.String()
}

// shown reads an answer.
func shown[T any](t *testing.T, d local.Desk, path string) (v T) {
	t.Helper()
	r := ask(t, d, path)
	if text := body(t, r); r.StatusCode != http.StatusOK || json.Unmarshal([]byte(text), &v) != nil {
		t.Errorf("GET %s: %s %s", path, r.Status, text)
	}
	return v
}

// indebted is a desk whose lane has come to 111 micro-units.
func indebted(t *testing.T, ended bool) (local.Desk, ledger.Lane) {
	t.Helper()
	d, lane := desk(t)
	err := d.Books.Update(t.Context(), func(tx *books.Tx) error {
		_, err := tx.SignVoucher(lane, 111, []meter.Segment{})
		if err == nil && ended {
			_, err = tx.CloseLane(lane, 111)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return d, lane
}

// TestOwed: what is owed, on which leases, and what can't be written off.
func TestOwed(t *testing.T) {
	provider := identity.AccountID{7}
	d, _ := desk(t)
	if got := shown[statement.Owed](t, d, "/ledger/owed"); got.Owed == nil || len(got.Owed) != 0 {
		t.Errorf("nothing is owed: %+v", got)
	}
	d, lane := indebted(t, true)
	if got := shown[statement.Owed](t, d, "/ledger/owed").Owed; len(got) != 1 || got[0].Account != provider.String() || got[0].Role != "renter" || got[0].Owed != "0.000111" {
		t.Errorf("owed: %+v", got)
	}
	got := shown[statement.Claim](t, d, "/ledger/accounts/"+provider.String()+"/unpaid").Leases
	if len(got) != 1 || got[0].Lease != lane.String() || got[0].Amount != "0.000111" || got[0].Role != "renter" {
		t.Errorf("unpaid leases: %+v", got)
	}
	if got := shown[statement.Claim](t, d, "/ledger/accounts/"+identity.AccountID{8}.String()+"/unpaid").Leases; got == nil || len(got) != 0 {
		t.Errorf("unpaid leases of a stranger: %+v", got)
	}
	if r := ask(t, d, "/ledger/accounts/nobody/unpaid"); r.StatusCode != http.StatusUnprocessableEntity || !strings.Contains(body(t, r), "ledger owed") {
		t.Errorf("no account: %s", r.Status)
	}
	off := func(account, unit, reason string) string {
		b, err := json.Marshal(statement.WriteOffRequest{Account: account, Unit: unit, Reason: reason})
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	post(t, d, "/ledger/write-off", off("nobody", "", "gone"), http.StatusUnprocessableEntity, "ledger owed")
	post(t, d, "/ledger/write-off", off(provider.String(), "no unit", "gone"), http.StatusUnprocessableEntity, "unit")
	post(t, d, "/ledger/write-off", off(provider.String(), "", ""), http.StatusUnprocessableEntity, "want 1 to")
	post(t, d, "/ledger/write-off", off(provider.String(), "", "gone"), http.StatusConflict, "leases that run can't be written off") // it owes me nothing
}

// TestDisputes: one is opened with a reason while the other side is away, shown, and ended by an amount.
func TestDisputes(t *testing.T) {
	d, _ := desk(t)
	d.Peer = func(context.Context, identity.AccountID) (identity.PeerID, error) {
		return identity.PeerID{}, p2p.ErrUnreachable
	}
	post(t, d, "/ledger/leases/3fa9/dispute", `{"reason":"slow"}`, http.StatusConflict, "stop the lease instead")
	d, lane := indebted(t, true)
	d.Peer = func(context.Context, identity.AccountID) (identity.PeerID, error) {
		return identity.PeerID{}, p2p.ErrUnreachable
	}
	if got := shown[statement.Disputes](t, d, "/ledger/disputes").Disputes; got == nil || len(got) != 0 {
		t.Errorf("before any: %+v", got)
	}
	post(t, d, "/ledger/leases/beef/dispute", `{"reason":"slow"}`, http.StatusNotFound, "beef")
	if r := ask(t, d, "/ledger/leases/3fa9/dispute"); r.StatusCode != http.StatusNotFound || !strings.Contains(body(t, r), "opens one") {
		t.Errorf("one that is none: %s", r.Status)
	}
	post(t, d, "/ledger/leases/3fa9/dispute", `{}`, http.StatusUnprocessableEntity, "neither a reason nor an amount")
	post(t, d, "/ledger/leases/3fa9/dispute", `{"amount":"0.00005"}`, http.StatusConflict, "opens one")
	post(t, d, "/ledger/leases/3fa9/dispute", `{"amount":"much"}`, http.StatusUnprocessableEntity, "much")
	post(t, d, "/ledger/leases/3fa9/dispute", `{"reason":"slow","days":61}`, http.StatusUnprocessableEntity, "60")
	post(t, d, "/ledger/leases/3fa9/dispute", `{"reason":"slow"}`, http.StatusOK, `"state":"open"`)
	got := shown[statement.Disputes](t, d, "/ledger/disputes").Disputes
	if len(got) != 1 || got[0].Lease != lane.String() || got[0].By != "me" || got[0].Reason != "slow" || got[0].Told ||
		got[0].Until.Sub(got[0].Opened).Hours() != 24*local.DefaultDisputeDays {
		t.Errorf("open: %+v", got)
	}
	post(t, d, "/ledger/leases/3fa9/dispute", `{"amount":"0.00005"}`, http.StatusOK, `"i_offer":"0.00005"`)
	if got := shown[statement.Dispute](t, d, "/ledger/leases/3fa9/dispute"); got.IOffer != "0.00005" || got.Turn != "other" || got.Reason != "slow" {
		t.Errorf("one: %+v", got)
	}
	post(t, d, "/ledger/leases/3fa9/dispute", `{"reason":"slow"}`, http.StatusOK, `"state":"open"`)
	post(t, d, "/ledger/leases/3fa9/dispute", `{"reason":"hot"}`, http.StatusConflict, `with the reason \"slow\"`)
}

// TestSettleWhilePaying: what the owner's program may be paying is not recorded a second time, unless the person insists.
func TestSettleWhilePaying(t *testing.T) {
	d, _ := indebted(t, true)
	provider := identity.AccountID{7}
	d.Peer = func(context.Context, identity.AccountID) (identity.PeerID, error) { return identity.PeerID{7}, nil }
	service, err := settle.New(settle.Config{Network: p2ptest.NewNet(t).Join(d.Books.Device()), Protocol: "/gpufair/settle/1", Books: d.Books})
	if err != nil {
		t.Fatal(err)
	}
	d.Settle = service
	err = d.Books.Update(t.Context(), func(tx *books.Tx) error {
		err := tx.TakeBill(money.Credit, provider, books.Bill{Amount: 100, Method: "bank", Reference: "INV-7"})
		if err != nil {
			return err
		}
		b, _, err := tx.Bill(ledger.AsRenter, money.Credit, provider)
		if err != nil {
			return err
		}
		ok, err := tx.PayBill(money.Credit, provider, b.Key)
		if err == nil && !ok {
			err = errors.New("not paid")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	pay := func(more string) string { return `{"account":"` + provider.String() + `"` + more + `}` }
	post(t, d, "/settle", pay(`,"reference":"x"`), http.StatusConflict, "INV-7")
	post(t, d, "/settle", pay(`,"reference":"x","amount":"0.000012"`), http.StatusConflict, "--force")
	for _, fine := range []string{`,"reference":"y","amount":"0.000011"`, `,"reference":"z","amount":"0.000012","force":true`, `,"amount":"0.0001","method":"bank","reference":"INV-7"`} {
		if got := posted(t, d, "/settle", pay(fine)); got.Code == http.StatusConflict { // else it is the other side's to say, which is away
			t.Errorf("%s: %s", fine, got.Body)
		}
	}
}

// TestNet: without consent nobody is told of a debt, and with it an account whom nobody owes finds no circle.
func TestNet(t *testing.T) {
	d, _ := indebted(t, true)
	consent := false
	n, err := settle.NewNet(settle.NetConfig{
		Network: p2ptest.NewNet(t).Join(d.Books.Device()), Protocol: "/gpufair/net/1", Books: d.Books, Consent: func() bool { return consent },
		Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	d.Net = n
	if got := shown[statement.Clearings](t, d, "/ledger/net").Clearings; got == nil || len(got) != 0 {
		t.Errorf("clearings: %+v", got)
	}
	post(t, d, "/ledger/net", `{}`, http.StatusConflict, "off until you say so")
	consent = true
	post(t, d, "/ledger/net", `{"unit":"no unit"}`, http.StatusUnprocessableEntity, "unit")
	post(t, d, "/ledger/net", `{"dry_run":true}`, http.StatusOK, `"circles":[]`)
	post(t, d, "/ledger/net/3fa9/release", ``, http.StatusNotFound, "ledger net list")
}
