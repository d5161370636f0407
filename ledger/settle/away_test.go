package settle_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/settle"
	"github.com/gpufair/gpufair/p2p/identity"
)

// What either side says of a payment while the other is away is kept, and goes out by itself soon after the other side is back.
func TestSettleWhileAway(t *testing.T) {
	for name, role := range map[string]ledger.Role{"the renter is away": ledger.AsProvider, "the provider is away": ledger.AsRenter} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, renter, provider := world(t, always(settle.Accept))
				c := owe(t, renter, provider, 1, 1000)
				must(t, renter.Exchange(t.Context(), provider.dev.Peer(), c))
				says, other := renter, provider
				if role == ledger.AsProvider {
					says, other = provider, renter
				}
				says.billing(t, role, nil, other)
				n.Partition(renter.dev.Peer(), provider.dev.Peer())
				pass(time.Second)
				id, state, err := says.Settle(t.Context(), other.dev.Peer(), books.Payment{Channel: c, Amount: 1000, Method: "manual"})
				if !settle.Away(err) || id.IsZero() || state != books.Proposed {
					t.Fatalf("%s %s, %v", id.Short(), state, err)
				}
				pass(time.Hour)
				if got := says.settlements(t); len(got) != 1 || !got[0].Undelivered || got[0].State != "proposed" {
					t.Fatalf("%+v", got)
				}
				n.Heal(renter.dev.Peer(), provider.dev.Peer())
				n.Mesh()
				pass(10 * time.Second)
				same(t, renter, provider, 0, 1000)
				if got := says.settlements(t); got[0].Undelivered {
					t.Errorf("%+v", got)
				}
			})
		})
	}
}

// A signature that went out can't be taken back, for the other side can sign at any time; one that never did is dropped for good.
func TestRefuseOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, renter, provider := world(t, nil)
		c := owe(t, renter, provider, 1, 1000)
		pay := books.Payment{Channel: c, Amount: 5000, Method: "manual", Reference: "a mistake"}
		id, _, err := renter.Settle(t.Context(), provider.dev.Peer(), pay)
		must(t, err)
		if err := renter.Refuse(t.Context(), id, ""); !errors.Is(err, books.ErrGiven) {
			t.Errorf("taken back what went out: %v", err)
		}
		must(t, provider.Accept(t.Context(), id))
		_, err = renter.Send(t.Context(), provider.dev.Peer(), id)
		must(t, err)
		same(t, renter, provider, -4000, 5000)

		pay.Reference = "another"
		id, _, err = renter.Settle(t.Context(), identity.PeerID{}, pay)
		if !settle.Away(err) {
			t.Fatal(err)
		}
		must(t, renter.Refuse(t.Context(), id, ""))
		state, err := renter.Send(t.Context(), provider.dev.Peer(), id)
		if err != nil || state != books.Refused {
			t.Fatalf("%s, %v", state, err)
		}
		if got := provider.settlements(t); len(got) != 1 {
			t.Errorf("the provider was told: %+v", got)
		}
		for _, got := range renter.settlements(t) {
			if dropped := got.ID == id.String(); dropped != (got.RefusedBy == "me") || dropped != (got.Why != "") {
				t.Errorf("%+v", got)
			}
		}
	})
}

// What is signed after it was refused is signed, and no word of the refusal is left; and who refused is known on both sides.
func TestWhoRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, renter, provider := world(t, nil)
		c := owe(t, renter, provider, 1, 1000)
		id, _, err := renter.Settle(t.Context(), provider.dev.Peer(), books.Payment{Channel: c, Amount: 5000, Method: "manual"})
		must(t, err)
		must(t, provider.Refuse(t.Context(), id, "no money came"))
		_, err = provider.Send(t.Context(), renter.dev.Peer(), id)
		must(t, err)
		if got := provider.settlements(t)[0]; got.RefusedBy != "me" || got.Why != "no money came" {
			t.Errorf("%+v", got)
		}
		if got := renter.settlements(t)[0]; got.RefusedBy != "other" || got.Why != "no money came" {
			t.Errorf("%+v", got)
		}
	})
}

// Nothing is signed for an account that was never dealt with; and what the other side will never take is no proposal any more.
func TestSettleInVain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, renter, provider := world(t, nil)
		c := owe(t, renter, provider, 1, 1000)
		euros := c
		euros.Unit = "EUR"
		pay := books.Payment{Channel: euros, Amount: 5, Method: "manual"}
		if _, _, err := renter.Settle(t.Context(), provider.dev.Peer(), pay); !errors.Is(err, books.ErrNoDealings) {
			t.Errorf("never dealt with in that unit: %v", err)
		}
		if got := renter.settlements(t); len(got) != 0 {
			t.Errorf("signed all the same: %+v", got)
		}
		renter.update(t, func(tx *books.Tx) error { // the provider never hears of this lease
			_, err := tx.Promise(books.Opening{Channel: euros, Lane: ledger.Lane{9}, Rate: 3_600_000, Devices: 1})
			return err
		})
		if _, state, err := renter.Settle(t.Context(), provider.dev.Peer(), pay); err != nil || state != books.Refused {
			t.Errorf("%s, %v", state, err)
		}
		if got := renter.settlements(t); len(got) != 1 || got[0].State != "refused" || got[0].RefusedBy != "other" || !strings.Contains(got[0].Why, "no dealings") {
			t.Errorf("%+v", got)
		}
		if got := provider.account(t, ledger.AsProvider, renter); got.Settled != money.Micro(0) {
			t.Errorf("%+v", got)
		}
	})
}
