package market_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/markettest"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

func TestCheckAccept(t *testing.T) {
	owner, renter := markettest.Device(t), markettest.Device(t)
	o := markettest.Sealed(t, owner, markettest.Offer(owner, 1, now))
	good := markettest.Accept(renter, o, markettest.GPULot)
	for name, tt := range map[string]struct {
		spoil func(*market.Accept)
		late  time.Duration
		want  reason.Code
	}{
		"good":             {func(*market.Accept) {}, 0, ""},
		"above the price":  {func(a *market.Accept) { a.Rate++ }, 0, ""},
		"every device":     {func(a *market.Accept) { a.Quantity = 4 }, 0, ""},
		"longest term":     {func(a *market.Accept) { a.Term = 86400 }, 0, ""},
		"at the last":      {func(*market.Accept) {}, time.Hour + market.Skew, ""},
		"other provider":   {func(a *market.Accept) { a.Provider = renter.Account() }, 0, reason.OfferUnknown},
		"other offer":      {func(a *market.Accept) { a.Offer = wire.Hash{1} }, 0, reason.OfferUnknown},
		"no such lot":      {func(a *market.Accept) { a.Lot = 9 }, 0, reason.OfferUnknown},
		"lapsed":           {func(*market.Accept) {}, time.Hour + market.Skew + 1, reason.OfferExpired},
		"other unit":       {func(a *market.Accept) { a.Unit = "EURO" }, 0, reason.UnknownUnit},
		"other terms":      {func(a *market.Accept) { a.Use = wire.Hash{1} }, 0, reason.TermsChanged},
		"too many devices": {func(a *market.Accept) { a.Quantity = 5 }, 0, reason.ResourcesExceeded},
		"below the price":  {func(a *market.Accept) { a.Rate-- }, 0, reason.PriceBelow},
		"too short":        {func(a *market.Accept) { a.Term = 299 }, 0, reason.TermOutOfRange},
		"too long":         {func(a *market.Accept) { a.Term = 86401 }, 0, reason.TermOutOfRange},
	} {
		a := with(good, tt.spoil)
		err := market.CheckAccept(o, a, now.Add(tt.late))
		if r, _ := reason.Of(err); r.Code != tt.want || (tt.want == "") != (err == nil) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
}

func TestCheckLease(t *testing.T) {
	owner, other, renter := markettest.Device(t), markettest.Device(t), markettest.Device(t)
	o := markettest.Sealed(t, owner, markettest.Offer(owner, 1, now))
	a := with(markettest.Accept(renter, o, markettest.GPULot), func(a *market.Accept) { a.Quantity = 2 })
	raw := markettest.Seal(t, renter, market.DomainAccept, a)
	otherRaw := markettest.Seal(t, renter, market.DomainAccept, with(a, func(a *market.Accept) { a.Nonce[0]++ }))
	good := markettest.Lease(t, owner, o, a, raw, 7)
	for name, spoil := range map[string]func(*market.Lease){
		"other accept":  func(l *market.Lease) { l.Accept = otherRaw },
		"other id":      func(l *market.Lease) { l.ID[0]++ },
		"other account": func(l *market.Lease) { l.Header = other.Header(market.Version) },
		"other device":  func(l *market.Lease) { l.Device = other.Peer() },
		"fewer devices": func(l *market.Lease) { l.Slots = l.Slots[:1] },
		"foreign device": func(l *market.Lease) {
			l.Slots = []market.SlotGeneration{l.Slots[0], {Device: wire.Hash{1}, Generation: 7}}
		},
		"other lot's device": func(l *market.Lease) {
			l.Slots = []market.SlotGeneration{l.Slots[0], {Device: o.Lots[1].Slots[0].Device, Generation: 7}}
		},
		"higher hold": func(l *market.Lease) { l.Hold++ },
		"lower hold":  func(l *market.Lease) { l.Hold-- },
	} {
		if err := market.CheckLease(o, raw, with(good, spoil)); !reason.Is(err, reason.LeaseInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := market.CheckLease(o, raw, good); err != nil {
		t.Fatal(err)
	}
	newer := markettest.Sealed(t, owner, markettest.Offer(owner, 2, now))
	if err := market.CheckLease(newer, raw, good); !reason.Is(err, reason.LeaseInvalid) {
		t.Fatal("a lease for another offer:", err)
	}
	if err := market.CheckLease(o, raw[:10], good); err == nil {
		t.Fatal("a cut accept passes")
	}
}

func TestCheckReadyAndEnd(t *testing.T) {
	owner, other, renter := markettest.Device(t), markettest.Device(t), markettest.Device(t)
	o := markettest.Sealed(t, owner, markettest.Offer(owner, 1, now))
	a := markettest.Accept(renter, o, markettest.GPULot)
	l := markettest.Lease(t, owner, o, a, markettest.Seal(t, renter, market.DomainAccept, a), 7)
	raw := markettest.Seal(t, owner, market.DomainLease, l)
	ready := market.Ready{Header: renter.Header(market.Version), Delegation: a.Delegation, Lease: l.ID, Hash: identity.Hash(raw)}
	if err := market.CheckReady(ready, a, raw); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*market.Ready){
		"other device": func(r *market.Ready) { r.Device = other.Peer() },
		"other lease":  func(r *market.Ready) { r.Lease[0]++ },
		"other bytes":  func(r *market.Ready) { r.Hash[0]++ },
	} {
		if market.CheckReady(with(ready, spoil), a, raw) == nil {
			t.Errorf("ready with %s passes", name)
		}
	}
	end := market.End{Header: owner.Header(market.Version), Delegation: l.Delegation, Lease: l.ID, Slots: l.Slots}
	if err := market.CheckEnd(end, l); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*market.End){
		"other device":     func(e *market.End) { e.Device = other.Peer() },
		"other lease":      func(e *market.End) { e.Lease[0]++ },
		"no slots":         func(e *market.End) { e.Slots = nil },
		"other generation": func(e *market.End) { e.Slots = []market.SlotGeneration{{Device: l.Slots[0].Device, Generation: 8}} },
	} {
		if market.CheckEnd(with(end, spoil), l) == nil {
			t.Errorf("end with %s passes", name)
		}
	}
}

func TestDoubleLease(t *testing.T) {
	owner, other, renter := markettest.Device(t), markettest.Device(t), markettest.Device(t)
	sell := func(dev *identity.Device, nonce string, generation uint64) []byte {
		o := markettest.Sealed(t, owner, markettest.Offer(owner, 1, now))
		a := with(markettest.Accept(renter, o, markettest.GPULot), func(a *market.Accept) { a.Nonce = markettest.Hash(nonce) })
		l := markettest.Lease(t, owner, o, a, markettest.Seal(t, renter, market.DomainAccept, a), generation)
		l.Header = dev.Header(market.Version)
		return markettest.Seal(t, dev, market.DomainLease, l)
	}
	a := sell(owner, "a", 7)
	for name, tt := range map[string]struct {
		b    []byte
		want bool
	}{
		"the same lease":   {a, false},
		"next generation":  {sell(owner, "b", 8), false},
		"another provider": {sell(other, "b", 7), false},
		"sold twice":       {sell(owner, "b", 7), true},
	} {
		slot, got, err := market.DoubleLease(a, tt.b)
		if err != nil || got != tt.want || got && slot.Generation != 7 {
			t.Errorf("%s: %v %v %v", name, slot, got, err)
		}
	}
	if _, _, err := market.DoubleLease(a, []byte("x")); err == nil {
		t.Fatal("garbage is evidence")
	}
}

// TestHoldIsNeverOverTheRate checks the hold against the charge of the same time, over the range of legal records.
func TestHoldIsNeverOverTheRate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rate := money.Rate(rapid.Uint64Range(0, uint64(market.MaxRate)).Draw(t, "rate"))
		n := rapid.Uint32Range(1, market.MaxSlots).Draw(t, "devices")
		term := rapid.Uint32Range(1, market.MaxTerm).Draw(t, "term")
		hold, err := market.Hold(rate, n, term)
		if err != nil {
			t.Fatalf("a legal lease has no hold: %v", err)
		}
		want := wantHold(uint64(rate), uint64(n), uint64(term))
		if uint64(hold) != want {
			t.Fatalf("hold %d, want %d", hold, want)
		}
	})
}

// TestIDBindsOfferRenterAndNonce: two orders have one id only if all three are equal.
func TestIDBindsOfferRenterAndNonce(t *testing.T) {
	a := market.Accept{Offer: wire.Hash{1}, Nonce: wire.Hash{2}}
	a.Account = identity.AccountID{3}
	for name, b := range map[string]market.Accept{
		"offer":   with(a, func(a *market.Accept) { a.Offer[0]++ }),
		"nonce":   with(a, func(a *market.Accept) { a.Nonce[0]++ }),
		"account": with(a, func(a *market.Accept) { a.Account[0]++ }),
	} {
		if a.ID() == b.ID() {
			t.Errorf("another %s, the same id", name)
		}
	}
	if b := with(a, func(a *market.Accept) { a.Term, a.Rate = 7, 7 }); a.ID() != b.ID() {
		t.Error("the id depends on more than offer, renter and nonce")
	}
}
