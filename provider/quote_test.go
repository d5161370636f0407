package provider

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/markettest"
	"github.com/gpufair/gpufair/market/negotiate"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p/identity"
)

// quoteOf is a quote of the rig's owner for its only lot, as the quoter seals it.
func (r *rig) quoteOf(nonce string) negotiate.KeptQuote {
	r.t.Helper()
	lot := r.sale().Lot
	lot.Kind, lot.Model, lot.Cores, lot.MemoryMiB, lot.Passport = market.KindCPU, "cpu", 1, 64, markettest.Hash("passport")
	o := markettest.Offer(r.owner, 1, time.Now())
	o.Lots, o.Terms.Use = []market.Lot{lot}, r.conf.Use()
	needs := work.Needs{Kind: market.KindCPU, Devices: 1}
	hash, err := needs.Hash()
	must(r.t, err)
	k := negotiate.KeptQuote{Offer: markettest.Sealed(r.t, r.owner, o)}
	k.Quote = market.Quote{
		Header: r.owner.Header(market.Version), Delegation: r.owner.DelegationHash(), Demand: markettest.Hash("demand"), Renter: r.renter.Account(),
		Offer: k.Offer.Hash, Lot: 1, Quantity: 1, Rate: rigRate / 2, Unit: money.Credit, Term: 3600, Needs: hash, Use: r.conf.Use(),
		IssuedAt: time.Now().UnixMilli(), Valid: 20, Nonce: markettest.Hash(nonce),
	}
	k.Raw = markettest.Seal(r.t, r.owner, market.DomainQuote, k.Quote)
	return k
}

// stands counts the quotes that the store has, and those that hold devices.
func (r *rig) stands() [2]int {
	r.t.Helper()
	stored, err := quoteBook{r.a}.Quotes(r.t.Context())
	must(r.t, err)
	r.a.mu.Lock()
	defer r.a.mu.Unlock()
	return [2]int{len(stored), len(r.a.quoted)}
}

// A quote keeps its device from others until it is sold, over a kill of the daemon; its sale forgets it in one transaction.
func TestQuoteHoldsItsDevice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		defer r.close()
		book := func() quoteBook { return quoteBook{r.a} }
		q := r.quoteOf("a")
		must(t, book().Hold(t.Context(), q))
		taken := func(what string, err error) {
			t.Helper()
			if !reason.Is(err, reason.DeviceTaken) {
				t.Errorf("%s: %v", what, err)
			}
		}
		_, err := r.a.Sell(t.Context(), r.sale())
		taken("buy now", err)
		taken("another quote", book().Hold(t.Context(), r.quoteOf("b")))
		if got := r.stands(); got != [2]int{1, 1} {
			t.Fatalf("stored and held: %v", got)
		}
		r.crash()
		stored, err := book().Quotes(t.Context())
		must(t, err)
		if len(stored) != 1 || identity.Hash(stored[0].Raw) != identity.Hash(q.Raw) || stored[0].Offer.Hash != q.Offer.Hash {
			t.Fatalf("%d quotes after the kill", len(stored))
		}
		must(t, book().HoldAgain(stored[0]))
		_, err = r.a.Sell(t.Context(), r.sale())
		taken("buy now, after the kill", err)
		s := r.sale()
		s.Quote = identity.Hash(q.Raw)
		lease, err := r.a.Sell(t.Context(), s)
		must(t, err)
		if got := r.stands(); got != [2]int{0, 1} {
			t.Fatalf("stored and held after the sale: %v", got)
		}
		must(t, book().Free(t.Context(), s.Quote))
		if state, _ := r.a.capacity.Look(r.conf.Lots[0].Device); state.Lease == nil || *state.Lease != s.ID || state.Blocked != "" {
			t.Errorf("%+v", state)
		}
		r.crash()
		if again, err := r.a.Sold(t.Context(), s.ID); err != nil || string(again) != string(lease) || r.stands() != [2]int{} {
			t.Errorf("after the sale and a kill: %v, %v", r.stands(), err)
		}
	})
}

// A quote that can't be stored holds nothing, and one that is freed gives its device back.
func TestQuoteGivesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		defer r.close()
		q := r.quoteOf("a")
		r.disk.full.Store(true)
		if err := (quoteBook{r.a}).Hold(t.Context(), q); err == nil {
			t.Fatal("it was stored on a full disk")
		}
		r.disk.full.Store(false)
		if state, _ := r.a.capacity.Look(r.conf.Lots[0].Device); !state.Available() {
			t.Fatalf("%+v", state)
		}
		must(t, quoteBook{r.a}.Hold(t.Context(), q))
		must(t, quoteBook{r.a}.Free(t.Context(), identity.Hash(q.Raw)))
		if state, _ := r.a.capacity.Look(r.conf.Lots[0].Device); !state.Available() || r.stands() != [2]int{} {
			t.Fatalf("%+v %v", state, r.stands())
		}
	})
}

// The price of a quote is the owner's, down to the floor where there is one; whom the owner does not serve, and who has no credit, is told.
func TestQuotePrice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		defer r.close()
		q := r.quoteOf("a")
		lot, _ := q.Offer.Lot(1)
		by, err := identity.OpenDelegation(r.renter.Delegation())
		must(t, err)
		ask := func(floor, most money.Rate) (money.Rate, error) {
			r.conf.Lots[0].Floor = floor
			must(t, r.a.Reload(r.conf))
			return quoteBook{r.a}.Price(t.Context(), negotiate.Demanded{
				Demand: negotiate.Demand{Quantity: 1, Most: most, Unit: money.Credit}, Delegation: by, Offer: q.Offer, Lot: lot,
			})
		}
		for _, tt := range []struct{ floor, most, want money.Rate }{
			{0, rigRate / 2, rigRate},
			{0, 2 * rigRate, rigRate},
			{rigRate / 2, rigRate / 4, rigRate / 2},
			{rigRate / 2, rigRate / 4 * 3, rigRate / 4 * 3},
			{rigRate / 2, 2 * rigRate, rigRate},
		} {
			if got, err := ask(tt.floor, tt.most); err != nil || got != tt.want {
				t.Errorf("floor %v, most %v: %v, %v, want %v", tt.floor, tt.most, got, err, tt.want)
			}
		}
		none := money.Micro(0)
		r.conf.Credit.Stranger = &none
		if _, err := ask(0, rigRate); !reason.Is(err, reason.CreditLimit) {
			t.Errorf("no credit: %v", err)
		}
		r.conf.Accounts = nil
		if _, err := ask(0, rigRate); !reason.Is(err, reason.NotServed) {
			t.Errorf("not served: %v", err)
		}
		r.conf.Lots[0].Floor = r.conf.Lots[0].Price + 1
		if err := r.a.Reload(r.conf); err == nil {
			t.Error("a floor above the price")
		}
	})
}
