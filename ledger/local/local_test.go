package local_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/export"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/local"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/proof"
	"github.com/gpufair/gpufair/ledger/settle"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/local/serve"
	"github.com/gpufair/gpufair/p2p/p2ptest"
	"github.com/gpufair/gpufair/p2p/wire"
)

// desk is a renter's, who opened one lane.
func desk(t *testing.T) (d local.Desk, lane ledger.Lane) {
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
	b, err := books.Open(t.Context(), books.Config{Dir: t.TempDir(), Store: store, Device: dev, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	must(err)
	t.Cleanup(func() { b.Close() })
	lane = ledger.Lane{0x3f, 0xa9}
	must(b.Update(t.Context(), func(tx *books.Tx) error {
		_, err := tx.Promise(books.Opening{Channel: b.Channel(identity.AccountID{7}, money.Credit), Lane: lane, Rate: 1, Devices: 1, Hold: 5})
		return err
	}))
	release, err := dev.Seal("gpufair/release/1", struct {
		identity.Header
		Delegation wire.Hash   `cbor:"4,keyasint"`
		Lane       ledger.Lane `cbor:"5,keyasint"`
	}{dev.Header(1), dev.DelegationHash(), lane})
	must(err)
	return local.Desk{
		Books: b, Unit: money.Credit, Role: ledger.AsRenter,
		Lanes: func(_ context.Context, start string) ([]ledger.Lane, error) {
			if strings.HasPrefix(lane.String(), start) {
				return []ledger.Lane{lane}, nil
			}
			return nil, nil
		},
		Records: func(_ context.Context, l ledger.Lane) ([]proof.Attachment, error) {
			return []proof.Attachment{{Name: "gpufair/release/1", Data: release}}, nil
		},
	}, lane
}

func ask(t *testing.T, d local.Desk, path string) *http.Response {
	t.Helper()
	mux := http.NewServeMux()
	local.Register(serve.NewAPI(mux, serve.Config{Title: "x", Version: "1"}), d)
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1"+path, nil))
	return w.Result()
}

func body(t *testing.T, r *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestProof: the answer is the file itself, with the agent's records in it.
func TestProof(t *testing.T) {
	d, lane := desk(t)
	r := ask(t, d, "/ledger/leases/3fa9/proof")
	raw := body(t, r)
	if r.StatusCode != http.StatusOK || r.Header.Get("Content-Type") != "application/octet-stream" {
		t.Fatalf("%s, %s: %.200q", r.Status, r.Header, raw)
	}
	v := proof.Check([]byte(raw))
	if v.Result != proof.OK || v.Lease != lane.String() || len(v.Attachments) != 1 {
		t.Errorf("%+v", v)
	}
	if r := ask(t, d, "/ledger/leases/beef/proof"); r.StatusCode != http.StatusNotFound {
		t.Errorf("another lease: %s", r.Status)
	}
}

// TestExport: every format, and no other.
func TestExport(t *testing.T) {
	d, lane := desk(t)
	for _, f := range export.Formats() {
		r := ask(t, d, "/ledger/export?format="+string(f))
		if got := body(t, r); r.StatusCode != http.StatusOK || !strings.Contains(got, lane.String()) || r.Header.Get("Content-Type") != f.MediaType() {
			t.Errorf("%s: %s, %s: %q", f, r.Status, r.Header, got)
		}
	}
	if r := ask(t, d, "/ledger/export?format=pdf"); r.StatusCode != http.StatusUnprocessableEntity {
		t.Errorf("pdf: %s", r.Status)
	}
}

// TestSettlementByItsStart: the start of an id is enough where it fits one settlement only, as for leases.
func TestSettlementByItsStart(t *testing.T) {
	d, _ := desk(t)
	var asked int
	d.Peer = func(context.Context, identity.AccountID) (identity.PeerID, error) {
		asked++
		return identity.PeerID{}, errors.New("nobody to ask")
	}
	post := func(id string) (int, string) {
		mux := http.NewServeMux()
		local.Register(serve.NewAPI(mux, serve.Config{Title: "x", Version: "1"}), d)
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/settlements/"+id+"/send", nil))
		return w.Code, w.Body.String()
	}
	starts := map[byte]int{} // settlements by the first letter of their id
	var last string
	for n := range money.Micro(17) { // of 16 letters one comes twice
		err := d.Books.Update(t.Context(), func(tx *books.Tx) error {
			id, _, err := tx.Propose(books.Payment{Channel: d.Books.Channel(identity.AccountID{7}, money.Credit), Amount: n + 1, Method: "manual"})
			last = id.String()
			starts[last[0]]++
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range []string{last, last[:40], strings.ToUpper(last[:40])} {
		before := asked
		if code, text := post(id); asked != before+1 || !strings.Contains(text, `"undelivered":true`) || code != http.StatusOK {
			t.Errorf("%s: not found: %d %s", id, code, text)
		}
	}
	for first, n := range starts {
		if n < 2 {
			continue
		}
		if code, text := post(string(first)); code != http.StatusConflict || !strings.Contains(text, "give more of its id") {
			t.Errorf("%c fits %d: %d %s", first, n, code, text)
		}
	}
	if code, text := post("nosuch"); code != http.StatusNotFound || !strings.Contains(text, "settle list") {
		t.Errorf("no such: %d %s", code, text)
	}
}

// TestAcceptOwn: to accept what one proposed oneself is refused, with what to do; it is no fault of the program.
func TestAcceptOwn(t *testing.T) {
	d, _ := desk(t)
	var id wire.Hash
	err := d.Books.Update(t.Context(), func(tx *books.Tx) (err error) {
		id, _, err = tx.Propose(books.Payment{Channel: d.Books.Channel(identity.AccountID{7}, money.Credit), Amount: 1, Method: "manual"})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if d.Settle, err = settle.New(settle.Config{Network: p2ptest.NewNet(t).Join(d.Books.Device()), Protocol: "/gpufair/settle/1", Books: d.Books}); err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	local.Register(serve.NewAPI(mux, serve.Config{Title: "x", Version: "1"}), d)
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/settlements/"+id.String()+"/accept", nil))
	if w.Code != http.StatusConflict || !strings.Contains(w.Body.String(), "the other side must say it") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// TestLeaseNotHere: the next step names what lists ids, on either side.
func TestLeaseNotHere(t *testing.T) {
	d, _ := desk(t)
	for role, want := range map[ledger.Role]string{ledger.AsRenter: "gpufair ps --all", ledger.AsProvider: "gpufaird leases --all"} {
		d.Role = role
		if r := ask(t, d, "/ledger/leases/picture"); r.StatusCode != http.StatusNotFound || !strings.Contains(body(t, r), want) {
			t.Errorf("%v: %s", role, r.Status)
		}
	}
}
