package local_test

import (
	"context"
	"net/http"
	"testing"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/settle"
	"github.com/gpufair/gpufair/ledger/statement"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/p2ptest"
)

// TestSettleOtherSide: a provider whose account owes as a renter, since it took over what a lost PC had rented, pays that debt: nobody takes it
// for money that came in.
func TestSettleOtherSide(t *testing.T) {
	d, _ := indebted(t, true)
	d.Role = ledger.AsProvider
	d.Peer = func(context.Context, identity.AccountID) (identity.PeerID, error) { return identity.PeerID{7}, nil }
	service, err := settle.New(settle.Config{Network: p2ptest.NewNet(t).Join(d.Books.Device()), Protocol: "/gpufair/settle/1", Books: d.Books})
	if err != nil {
		t.Fatal(err)
	}
	d.Settle = service
	provider := identity.AccountID{7}.String()
	post(t, d, "/settle", `{"account":"`+provider+`","reference":"x","paid_by":"them"}`, http.StatusUnprocessableEntity, "nothing is owed")
	post(t, d, "/settle", `{"account":"`+provider+`","reference":"x","paid_by":"us"}`, http.StatusUnprocessableEntity, "paid_by")
	posted(t, d, "/settle", `{"account":"`+provider+`","reference":"half","amount":"0.00005"}`) // the other side is away
	posted(t, d, "/settle", `{"account":"`+provider+`","reference":"rest"}`)
	got := map[string]string{}
	for _, s := range shown[statement.Settlements](t, d, "/settlements").Settlements {
		if s.ByMe {
			got[s.Reference] = s.Amount
		}
	}
	if len(got) != 2 || got["half"] != "0.00005" || got["rest"] != "0.000061" {
		t.Errorf("paid by me: %v", got)
	}
}
