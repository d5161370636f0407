package negotiate_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/markettest"
	"github.com/gpufair/gpufair/market/negotiate"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/p2ptest"
	"github.com/gpufair/gpufair/p2p/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// shop is a provider's agent reduced to what a sale is: one slot counter and the leases by id, under one lock as its transaction.
type shop struct {
	dev   *identity.Device
	offer market.SealedOffer

	mu     sync.Mutex
	taken  map[wire.Hash]uint64       // guarded by mu; generation of taken slots
	leases map[market.LeaseID][]byte  // guarded by mu
	calls  int                        // guarded by mu; of Sell
	spoil  func(*market.Lease)        // what a cheating provider changes
	sell   func(negotiate.Sale) error // refuses, if set
	signer *identity.Device           // instead of dev
	after  func()                     // when sold, before the answer
}

func (s *shop) Own(h wire.Hash) (market.SealedOffer, bool) { return s.offer, h == s.offer.Hash }

func (s *shop) Sold(_ context.Context, id market.LeaseID) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leases[id], nil
}

func (s *shop) Sell(_ context.Context, o negotiate.Sale) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	if raw := s.leases[o.ID]; raw != nil {
		return raw, nil
	}
	if s.sell != nil {
		if err := s.sell(o); err != nil {
			return nil, err
		}
	}
	var slots []market.SlotGeneration
	for _, slot := range o.Lot.Slots {
		if _, taken := s.taken[slot.Device]; !taken && len(slots) < int(o.Accept.Quantity) {
			slots = append(slots, market.SlotGeneration{Device: slot.Device, Generation: 1})
		}
	}
	if len(slots) < int(o.Accept.Quantity) {
		return nil, reason.Errorf(reason.DeviceTaken, "%d of %d devices free", len(slots), len(o.Lot.Slots))
	}
	l, err := negotiate.Lease(s.dev, o, slots, 1_000_000)
	if err != nil {
		return nil, err
	}
	signer := s.dev
	if s.spoil != nil {
		s.spoil(&l)
	}
	if s.signer != nil {
		signer = s.signer
	}
	raw, err := signer.Seal(market.DomainLease, l)
	if err != nil {
		return nil, err
	}
	for _, slot := range slots {
		s.taken[slot.Device] = 1
	}
	s.leases[o.ID] = raw
	if s.after != nil {
		s.after()
	}
	return raw, nil
}

type world struct {
	net           *p2ptest.Net
	owner, renter *identity.Device
	shop          *shop
	node          *p2ptest.Node // the renter's
	ownerNode     *p2ptest.Node
	seller        *negotiate.Seller
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{net: p2ptest.NewNet(t), owner: p2ptest.Device(t), renter: p2ptest.Device(t)}
	w.ownerNode = w.net.Join(w.owner)
	o := markettest.Offer(w.owner, 1, time.Now())
	o.Addrs = w.ownerNode.Addrs()
	w.shop = &shop{
		dev: w.owner, offer: markettest.Sealed(t, w.owner, o),
		taken: map[wire.Hash]uint64{}, leases: map[market.LeaseID][]byte{},
	}
	var err error
	if w.seller, err = negotiate.NewSeller(w.owner, w.shop, w.shop, nil); err != nil {
		t.Fatal(err)
	}
	w.ownerNode.Handle(protocol, negotiate.Limits(), w.seller.Handler())
	w.node = w.net.Join(w.renter)
	w.net.Mesh()
	return w
}

func (w *world) close() {
	w.node.Close()
	w.ownerNode.Close()
}

var protocol = p2p.ProtocolID("test", work.ProtoTrade)

func needs(quantity uint32) work.Needs { return work.Needs{Kind: market.KindGPU, Devices: quantity} }

func prepare(t testing.TB, dev *identity.Device, o market.SealedOffer, nonce string, quantity uint32) negotiate.Purchase {
	t.Helper()
	p, err := negotiate.Prepare(dev, o, negotiate.Order{
		Lot: markettest.GPULot, Quantity: quantity, Term: 600, Needs: needs(quantity), Nonce: markettest.Hash(nonce),
	}, time.Now(), func(id market.LeaseID) ([]byte, error) { return fmt.Append(nil, "voucher 0 of ", id), nil })
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestBuyNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := prepare(t, w.renter, w.shop.offer, "n", 2)
		w.shop.sell = func(s negotiate.Sale) error {
			switch {
			case s.ID != p.ID || s.Peer != w.renter.Peer() || s.Delegation.Account != w.renter.Account():
				t.Error("the sale is another one", s.ID)
			case string(s.VoucherRaw) != string(p.VoucherRaw) || string(s.AcceptRaw) != string(p.AcceptRaw) || s.Needs != p.Needs:
				t.Error("bytes were lost on the way")
			case s.Lot.ID != markettest.GPULot || s.Offer.Hash != w.shop.offer.Hash:
				t.Error("another lot or offer")
			}
			return nil
		}
		deal, err := negotiate.Buy(t.Context(), w.node, "test", w.renter, p)
		if err != nil {
			t.Fatal(err)
		}
		want, err := market.Hold(420_000, 2, 300)
		if err != nil || deal.Lease.ID != p.ID || len(deal.Lease.Slots) != 2 || deal.Lease.Hold != want || want != money.Micro(70_000) {
			t.Fatal(deal.Lease, want, err)
		}
		// The same bytes again, after the offer is gone: the same lease, and nothing is sold twice.
		w.shop.offer = markettest.Sealed(t, w.owner, markettest.Offer(w.owner, 2, time.Now()))
		again, err := negotiate.Buy(t.Context(), w.node, "test", w.renter, p)
		if err != nil || string(again.LeaseRaw) != string(deal.LeaseRaw) || w.shop.calls != 1 {
			t.Fatal(err, w.shop.calls)
		}
		w.close()
	})
}

func TestTwoRentersWantOneDevice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		other := p2ptest.Device(t)
		node := w.net.Join(other)
		w.net.Mesh()
		first, second := prepare(t, w.renter, w.shop.offer, "a", 3), prepare(t, other, w.shop.offer, "b", 3)
		var wg sync.WaitGroup
		errs := make([]error, 2)
		wg.Go(func() { _, errs[0] = negotiate.Buy(t.Context(), w.node, "test", w.renter, first) })
		wg.Go(func() { _, errs[1] = negotiate.Buy(t.Context(), node, "test", other, second) })
		wg.Wait()
		if (errs[0] == nil) == (errs[1] == nil) {
			t.Fatal("one gets it, the other a reason:", errs)
		}
		r, ok := reason.Of(errors.Join(errs...))
		if !ok || r != reason.New(reason.DeviceTaken, "1 of 4 devices free") {
			t.Fatal(r, ok)
		}
		node.Close()
		w.close()
	})
}

func TestALostAnswerIsAskedForAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := prepare(t, w.renter, w.shop.offer, "n", 1)
		once := sync.OnceFunc(func() { w.net.Disconnect(w.owner.Peer(), w.renter.Peer()) })
		w.shop.after = once
		if err := w.node.Keep(p2p.PeerAddr{Peer: w.owner.Peer(), Addrs: w.ownerNode.Addrs()}); err != nil {
			t.Fatal(err)
		}
		deal, err := negotiate.Buy(t.Context(), w.node, "test", w.renter, p)
		if err != nil {
			t.Fatal(err)
		}
		if len(w.shop.leases) != 1 || deal.Lease.ID != p.ID {
			t.Fatal("sold", len(w.shop.leases), "times")
		}
		w.close()
	})
}

func TestTheOutcomeMayStayUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := prepare(t, w.renter, w.shop.offer, "n", 1)
		w.shop.after = func() { w.net.Partition(w.owner.Peer(), w.renter.Peer()) }
		_, err := negotiate.Buy(t.Context(), w.node, "test", w.renter, p)
		if !errors.Is(err, negotiate.ErrOutcome) {
			t.Fatal(err)
		}
		w.net.Heal(w.owner.Peer(), w.renter.Peer())
		if err := w.node.Connect(t.Context(), p2p.PeerAddr{Peer: w.owner.Peer(), Addrs: w.ownerNode.Addrs()}); err != nil {
			t.Fatal(err)
		}
		if _, err := negotiate.Buy(t.Context(), w.node, "test", w.renter, p); err != nil || len(w.shop.leases) != 1 {
			t.Fatal("the same purchase settles it:", err)
		}
		w.close()
	})
}

func TestNobodyThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := prepare(t, w.renter, w.shop.offer, "n", 1)
		w.ownerNode.Close()
		_, err := negotiate.Buy(t.Context(), w.node, "test", w.renter, p)
		if !errors.Is(err, p2p.ErrUnreachable) || errors.Is(err, negotiate.ErrOutcome) {
			t.Fatal(err)
		}
		w.close()
	})
}

func TestACheatingProviderIsCaught(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, cheat := range map[string]func(*world){
			"hold":            func(w *world) { w.shop.spoil = func(l *market.Lease) { l.Hold++ } },
			"another device":  func(w *world) { w.shop.spoil = func(l *market.Lease) { l.Slots[0].Device[0]++ } },
			"another id":      func(w *world) { w.shop.spoil = func(l *market.Lease) { l.ID[0]++ } },
			"no free minutes": func(w *world) { w.shop.spoil = func(l *market.Lease) { l.ReadyIn = 0 } },
			"another delegation": func(w *world) {
				w.shop.spoil = func(l *market.Lease) { l.Delegation[0]++ }
			},
			"another's signature": func(w *world) {
				thief := p2ptest.Device(t)
				w.shop.signer = thief
				w.shop.spoil = func(l *market.Lease) { l.Header = thief.Header(market.Version) }
			},
		} {
			w := newWorld(t)
			cheat(w)
			_, err := negotiate.Buy(t.Context(), w.node, "test", w.renter, prepare(t, w.renter, w.shop.offer, "n", 1))
			if err == nil {
				t.Errorf("%s: not caught", name)
			} else if !reason.Is(err, reason.LeaseInvalid) {
				t.Errorf("%s: %v", name, err)
			}
			w.close()
		}
	})
}

// badOrder is an order that breaks one rule, and what the peer is told.
type badOrder struct {
	peer *identity.Device
	o    work.Order
	kind p2p.Kind
	code reason.Code
}

func orderOf(p negotiate.Purchase, dev *identity.Device) work.Order {
	return work.Order{Accept: p.AcceptRaw, Voucher: p.VoucherRaw, Delegation: dev.Delegation(), Needs: p.Needs}
}

// resigned is a purchase with another accept, well signed.
func resigned(t *testing.T, w *world, p negotiate.Purchase, change func(*market.Accept)) work.Order {
	t.Helper()
	change(&p.Accept)
	p.AcceptRaw = markettest.Seal(t, w.renter, market.DomainAccept, p.Accept)
	return orderOf(p, w.renter)
}

func badOrders(t *testing.T, w *world, good negotiate.Purchase, weak *identity.Device) map[string]badOrder {
	t.Helper()
	stranger := p2ptest.Device(t)
	resign := func(change func(*market.Accept)) work.Order { return resigned(t, w, good, change) }
	edit := func(change func(*work.Order)) work.Order {
		o := orderOf(good, w.renter)
		change(&o)
		return o
	}
	return map[string]badOrder{
		"garbage":             {w.renter, edit(func(o *work.Order) { o.Accept = []byte("x") }), p2p.KindBadRequest, ""},
		"no delegation":       {w.renter, edit(func(o *work.Order) { o.Delegation = nil }), p2p.KindRefused, reason.DelegationPowers},
		"other delegation":    {w.renter, edit(func(o *work.Order) { o.Delegation = stranger.Delegation() }), p2p.KindRefused, reason.DelegationPowers},
		"other voucher":       {w.renter, edit(func(o *work.Order) { o.Voucher = []byte("x") }), p2p.KindBadRequest, ""},
		"huge voucher":        {w.renter, edit(func(o *work.Order) { o.Voucher = make([]byte, negotiate.MaxVoucher+1) }), p2p.KindBadRequest, ""},
		"other needs":         {w.renter, edit(func(o *work.Order) { o.Needs.DiskMiB = 1 }), p2p.KindBadRequest, ""},
		"senseless needs":     {w.renter, edit(func(o *work.Order) { o.Needs.Kind = "tpu" }), p2p.KindBadRequest, ""},
		"another's accept":    {stranger, orderOf(good, w.renter), p2p.KindForbidden, ""},
		"beyond its powers":   {weak, orderOf(prepare(t, weak, w.shop.offer, "w", 1), weak), p2p.KindRefused, reason.DelegationPowers},
		"out of limits":       {w.renter, resign(func(a *market.Accept) { a.Quantity = 99 }), p2p.KindBadRequest, ""},
		"unknown offer":       {w.renter, resign(func(a *market.Accept) { a.Offer[0]++ }), p2p.KindRefused, reason.OfferUnknown},
		"other provider":      {w.renter, resign(func(a *market.Accept) { a.Provider[0]++ }), p2p.KindRefused, reason.OfferUnknown},
		"too cheap":           {w.renter, resign(func(a *market.Accept) { a.Rate-- }), p2p.KindRefused, reason.PriceBelow},
		"too long":            {w.renter, resign(func(a *market.Accept) { a.Term = market.MaxTerm }), p2p.KindRefused, reason.TermOutOfRange},
		"other unit":          {w.renter, resign(func(a *market.Accept) { a.Unit = "EURO" }), p2p.KindRefused, reason.UnknownUnit},
		"other use terms":     {w.renter, resign(func(a *market.Accept) { a.Use[0]++ }), p2p.KindRefused, reason.TermsChanged},
		"needs of the cpu":    {w.renter, resign(func(a *market.Accept) { a.Lot = markettest.CPULot; a.Term = 60 }), p2p.KindRefused, reason.ResourcesExceeded},
		"more than is needed": {w.renter, resign(func(a *market.Accept) { a.Quantity = 2 }), p2p.KindRefused, reason.ResourcesExceeded},
	}
}

// TestSellerRefuses gives the seller orders that break one rule each.
func TestSellerRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		weakAccount, weakKey, _, err := identity.Generate()
		if err != nil {
			t.Fatal(err)
		}
		weak := limited(t, weakAccount, weakKey, identity.PowerPay)
		good := prepare(t, w.renter, w.shop.offer, "n", 1)
		for name, tt := range badOrders(t, w, good, weak) {
			_, err := w.seller.Answer(t.Context(), tt.peer.Peer(), tt.o, time.Now())
			wired := negotiate.Refusal(err)
			r, _ := reason.Of(negotiate.Typed(wired))
			if p2p.KindOf(wired) != tt.kind || r.Code != tt.code {
				t.Errorf("%s: %v: kind %v, code %q; want %v, %q", name, err, p2p.KindOf(wired), r.Code, tt.kind, tt.code)
			}
		}
		if w.shop.calls != 0 {
			t.Fatal("a bad order reached the shop")
		}
		if _, err := w.seller.Answer(t.Context(), w.renter.Peer(), orderOf(good, w.renter), time.Now()); err != nil {
			t.Fatal(err)
		}
		reused := resigned(t, w, good, func(a *market.Accept) { a.Term++ }) // the same nonce and so the same id
		if _, err := w.seller.Answer(t.Context(), w.renter.Peer(), reused, time.Now()); p2p.KindOf(err) != p2p.KindConflict {
			t.Fatal("another accept with the id of a sold one:", err)
		}
		if _, err := w.seller.Answer(t.Context(), w.renter.Peer(), orderOf(prepare(t, w.renter, w.shop.offer, "m", 1), w.renter),
			time.Now().Add(3*time.Hour)); !reason.Is(err, reason.OfferExpired) {
			t.Fatal("a lapsed offer:", err)
		}
		w.close()
	})
}

func limited(t *testing.T, account, key []byte, powers identity.Powers) *identity.Device {
	t.Helper()
	id := identity.PeerID(key[32:])
	d, err := identity.Delegate(account, id, 1, powers, identity.DefaultCap)
	if err != nil {
		t.Fatal(err)
	}
	dev, err := identity.NewDevice(key, d)
	if err != nil {
		t.Fatal(err)
	}
	return dev
}

func TestPrepareRefusesBeforeAnythingIsSigned(t *testing.T) {
	dev, renter := p2ptest.Device(t), p2ptest.Device(t)
	o := markettest.Sealed(t, dev, markettest.Offer(dev, 1, time.Now()))
	good := negotiate.Order{Lot: markettest.GPULot, Quantity: 1, Term: 600, Needs: needs(1), Nonce: markettest.Hash("n")}
	voucher := func(market.LeaseID) ([]byte, error) { return []byte("v"), nil }
	for name, tt := range map[string]struct {
		change func(*negotiate.Order)
		want   reason.Code
	}{
		"no such lot":   {func(w *negotiate.Order) { w.Lot = 9 }, reason.OfferUnknown},
		"too many":      {func(w *negotiate.Order) { w.Quantity, w.Needs = 5, needs(5) }, reason.ResourcesExceeded},
		"too short":     {func(w *negotiate.Order) { w.Term = 1 }, reason.TermOutOfRange},
		"much memory":   {func(w *negotiate.Order) { w.Needs.MemoryMiB = 1 << 20 }, reason.ResourcesExceeded},
		"no nonce":      {func(w *negotiate.Order) { w.Nonce = wire.Hash{} }, ""},
		"invalid needs": {func(w *negotiate.Order) { w.Needs.Devices = 0 }, ""},
	} {
		w := good
		tt.change(&w)
		_, err := negotiate.Prepare(renter, o, w, time.Now(), voucher)
		if r, _ := reason.Of(err); err == nil || r.Code != tt.want {
			t.Errorf("%s: %v", name, err)
		}
	}
	broken := errors.New("no key")
	if _, err := negotiate.Prepare(renter, o, good, time.Now(), func(market.LeaseID) ([]byte, error) { return nil, broken }); !errors.Is(err, broken) {
		t.Fatal(err)
	}
}

func TestRefusalsCrossTheWire(t *testing.T) {
	err := negotiate.Refusal(fmt.Errorf("sell: %w", reason.Errorf(reason.CreditLimit, "owes 7")))
	var wired *p2p.Error
	if !errors.As(err, &wired) || wired.Kind != p2p.KindRefused || wired.Code != "credit_limit" || wired.Detail != "owes 7" {
		t.Fatal(err)
	}
	if r, ok := reason.Of(negotiate.Typed(fmt.Errorf("call: %w", err))); !ok || r != reason.New(reason.CreditLimit, "owes 7") {
		t.Fatal(r, ok)
	}
	if negotiate.Refusal(nil) != nil || negotiate.Typed(nil) != nil {
		t.Fatal("nil is no refusal")
	}
	plain := errors.New("x")
	if negotiate.Refusal(plain) != plain || negotiate.Typed(plain) != plain {
		t.Fatal("other errors pass through")
	}
}
