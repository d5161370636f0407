package local_test

import (
	"context"
	"encoding/json"
	"net/http"
	"testing"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/settle"
	"github.com/gpufair/gpufair/ledger/statement"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/p2ptest"
	"github.com/gpufair/gpufair/p2p/wire"
)

// TestRefuseOwnPayment: what was said while the other side is away is kept, and dropped if its owner takes it back; what may have gone out
// can't be taken back, and the error says who can refuse it.
func TestRefuseOwnPayment(t *testing.T) {
	d, _ := indebted(t, true)
	provider := identity.AccountID{7}
	d.Peer = func(context.Context, identity.AccountID) (identity.PeerID, error) { return identity.PeerID{7}, nil }
	service, err := settle.New(settle.Config{Network: p2ptest.NewNet(t).Join(d.Books.Device()), Protocol: "/gpufair/settle/1", Books: d.Books})
	if err != nil {
		t.Fatal(err)
	}
	d.Settle = service
	pay := `{"account":"` + provider.String() + `","amount":"5","reference":"x"`
	var kept statement.Settlement
	if err := json.Unmarshal([]byte(post(t, d, "/settle", pay+`}`, http.StatusOK, `"undelivered":true`)), &kept); err != nil {
		t.Fatal(err)
	}
	post(t, d, "/settlements/"+kept.ID+"/accept", ``, http.StatusConflict, "the other side must say it")
	post(t, d, "/settlements/"+kept.ID+"/send", ``, http.StatusOK, `"undelivered":true`)
	post(t, d, "/settlements/"+kept.ID+"/refuse", ``, http.StatusOK, `"refused_by":"me"`)
	post(t, d, "/settle", pay+`,"unit":"EUR"}`, http.StatusNotFound, "no dealings")

	var sent wire.Hash
	if err := d.Books.Update(t.Context(), func(tx *books.Tx) (err error) {
		c := ledger.Channel{Renter: d.Books.Self(), Provider: provider, Unit: money.Credit}
		sent, _, err = tx.Propose(books.Payment{Channel: c, Amount: 5, Method: "manual"})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	post(t, d, "/settlements/"+sent.String()+"/refuse", ``, http.StatusConflict, "settle refuse "+sent.String()[:12])
}
