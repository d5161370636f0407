package renter

import (
	"testing"

	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// TestRestoredFinal: a job whose meter is as old as a backup ends with what was signed since, and with no more than the provider takes.
func TestRestoredFinal(t *testing.T) {
	_, _, dev, err := identity.Generate()
	if err != nil {
		t.Fatal(err)
	}
	end := func(charge money.Micro) []byte {
		raw, err := dev.Seal(market.DomainEnd, market.End{
			Header: dev.Header(market.Version), Delegation: dev.DelegationHash(), Lease: market.LeaseID{1},
			Slots: []market.SlotGeneration{{Device: wire.Hash{1}, Generation: 1}}, Reason: reason.New(reason.TermOver, ""), Charge: charge, Billable: 1,
		})
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	for name, c := range map[string]struct {
		restored bool
		end      []byte
		want     money.Micro
	}{
		"never restored":              {false, end(700), 100},
		"ended with what was signed":  {true, end(700), 700},
		"ended with less":             {true, end(650), 650},
		"ended with more":             {true, end(900), 700},
		"no end: signed is signed":    {true, nil, 100},
		"ended with less than agreed": {true, end(50), 100},
	} {
		got, err := restoredFinal(books.Lane{Amount: 700, Restored: c.restored}, c.end, 100)
		if err != nil || got != c.want {
			t.Errorf("%s: %v, %v; want %v", name, got, err, c.want)
		}
	}
	if _, err := restoredFinal(books.Lane{Restored: true}, []byte("x"), 1); err == nil {
		t.Error("an end that can't be read")
	}
}
