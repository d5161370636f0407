package local_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/history"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/proof"
	"github.com/gpufair/gpufair/ledger/statement"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// TestWitnesses: the provider signed two heads of one size in its receipts; the API lists it and gives the proof.
func TestWitnesses(t *testing.T) {
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	d, _ := desk(t)
	_, _, dev, err := identity.Generate()
	must(err)
	lane := ledger.Lane{9}
	var receipts [][]byte
	must(d.Books.Update(t.Context(), func(tx *books.Tx) error {
		if _, _, err := tx.KeepDelegation(dev.Delegation()); err != nil {
			return err
		}
		_, err := tx.Promise(books.Opening{Channel: d.Books.Channel(dev.Account(), money.Credit), Lane: lane, Rate: 1, Devices: 1})
		return err
	}))
	for i := range 2 {
		must(d.Books.Update(t.Context(), func(tx *books.Tx) error {
			v, err := tx.SignVoucher(lane, money.Micro(10+i), nil)
			if err != nil {
				return err
			}
			head, err := history.Checkpoint{Origin: history.Origin{Peer: dev.Peer(), Epoch: 1}, Size: 5, Root: history.Hash{byte(i)}}.Sign(dev.SignNote)
			if err != nil {
				return err
			}
			r, err := voucher.SignReceipt(dev, voucher.Receipt{Voucher: identity.Hash(v), Checkpoint: head, Evidence: wire.Hash{1}})
			receipts = append(receipts, r)
			return err
		}))
		err := d.Books.Update(t.Context(), func(tx *books.Tx) error { _, err := tx.RecordReceipt(receipts[i]); return err })
		if (err != nil) != (i == 1) {
			t.Fatalf("receipt %d: %v", i, err)
		}
	}
	var out statement.Witnesses
	must(json.Unmarshal([]byte(body(t, ask(t, d, "/ledger/witnesses"))), &out))
	if len(out.Witnesses) != 1 || out.Witnesses[0].Fork == nil || out.Witnesses[0].Account != dev.Account().String() {
		t.Fatalf("%+v", out)
	}
	for _, name := range []string{dev.Peer().String(), dev.Account().String(), dev.Account().String()[:9]} {
		r := ask(t, d, "/ledger/witnesses/"+name+"/fork")
		if v := proof.CheckFork([]byte(body(t, r))); r.StatusCode != http.StatusOK || v.Device != dev.Peer().String() || !strings.HasPrefix(r.Header.Get("Content-Type"), "text/plain") {
			t.Errorf("%s: %d, %+v", name, r.StatusCode, v)
		}
	}
	if r := ask(t, d, "/ledger/witnesses/gfnobody/fork"); r.StatusCode != http.StatusNotFound || !strings.Contains(body(t, r), "ledger witness") {
		t.Errorf("of nobody: %d", r.StatusCode)
	}
}
