package negotiate_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

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

// till is the store and the devices of a provider that quotes, as they outlive its process.
type till struct {
	price money.Rate // that the owner wants at least
	free  int        // devices

	mu     sync.Mutex
	stored map[wire.Hash]negotiate.KeptQuote // guarded by mu
	held   map[wire.Hash]bool                // guarded by mu; of this process
}

func (b *till) Price(_ context.Context, d negotiate.Demanded) (money.Rate, error) {
	if b.price > 0 {
		return max(b.price, min(d.Lot.Price, d.Most)), nil
	}
	return d.Lot.Price, nil
}

func (b *till) HoldAgain(q negotiate.KeptQuote) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.held) == b.free {
		return reason.Errorf(reason.DeviceTaken, "0 of %d", b.free)
	}
	b.held[identity.Hash(q.Raw)] = true
	return nil
}

func (b *till) Hold(_ context.Context, q negotiate.KeptQuote) error {
	if err := b.HoldAgain(q); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stored[identity.Hash(q.Raw)] = q
	return nil
}

func (b *till) Free(_ context.Context, h wire.Hash) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.held, h)
	delete(b.stored, h)
	return nil
}

func (b *till) Quotes(context.Context) (out []negotiate.KeptQuote, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, k := range b.stored {
		out = append(out, k)
	}
	return out, nil
}

// holds is how many quotes hold devices, and how many are stored.
func (b *till) holds() [2]int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return [2]int{len(b.held), len(b.stored)}
}

// stand is a provider that quotes.
type stand struct {
	*world
	book   *till
	quoter *negotiate.Quoter
	stop   func()
}

func newStand(t *testing.T) *stand {
	t.Helper()
	s := &stand{world: newWorld(t), book: &till{price: 200_000, free: 4, stored: map[wire.Hash]negotiate.KeptQuote{}}}
	s.start(t)
	return s
}

// start runs the quoter over what an earlier process stored.
func (s *stand) start(t *testing.T) {
	t.Helper()
	s.book.held = map[wire.Hash]bool{}
	var err error
	if s.quoter, err = negotiate.NewQuoter(s.owner, s.shop, s.book); err != nil {
		t.Fatal(err)
	}
	if s.seller, err = negotiate.NewSeller(s.owner, s.shop, s.shop, s.quoter); err != nil {
		t.Fatal(err)
	}
	if err := s.quoter.Resume(t.Context(), time.Now()); err != nil {
		t.Fatal(err)
	}
	s.ownerNode.Handle(protocol, negotiate.Limits(), s.seller.Handler())
	s.ownerNode.Handle(quoteProtocol, negotiate.QuoteLimits(), s.quoter.Handler())
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.quoter.Run(ctx) }()
	s.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func (s *stand) end() {
	s.stop()
	s.close()
}

var quoteProtocol = p2p.ProtocolID("test", work.ProtoQuote)

// demand is one for one GPU.
func demand(nonce string, most money.Rate) negotiate.Demand {
	return negotiate.Demand{Nonce: markettest.Hash(nonce), Lot: markettest.GPULot, Quantity: 1, Most: most, Unit: money.Credit, Term: 600, Needs: needs(1)}
}

func (s *stand) ask(d negotiate.Demand) (negotiate.Quoted, error) {
	return negotiate.AskQuote(context.Background(), s.node, "test", s.renter, s.shop.offer, d)
}

func (s *stand) mustAsk(t *testing.T, d negotiate.Demand) negotiate.Quoted {
	t.Helper()
	q, err := s.ask(d)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// under signs an order under a quote.
func (s *stand) under(t *testing.T, q negotiate.Quoted, voucher string) negotiate.Purchase {
	t.Helper()
	p, err := negotiate.Prepare(s.renter, s.shop.offer, negotiate.Order{
		Lot: q.Quote.Lot, Quantity: q.Quote.Quantity, Term: q.Quote.Term, Needs: needs(q.Quote.Quantity), Quote: &q,
	}, time.Now(), func(market.LeaseID) ([]byte, error) { return []byte(voucher), nil })
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func (s *stand) buy(p negotiate.Purchase) (negotiate.Deal, error) {
	return negotiate.Buy(context.Background(), s.node, "test", s.renter, p)
}

func (s *stand) expect(t *testing.T, what string, held, stored int) {
	t.Helper()
	synctest.Wait()
	if got := s.book.holds(); got != [2]int{held, stored} {
		t.Fatalf("%s: %d quotes hold devices and %d are stored, want %d and %d", what, got[0], got[1], held, stored)
	}
}

// A quote is below the offer's price, holds its device until it is accepted, and makes one lease however often it is.
func TestQuoteMakesOneLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStand(t)
		defer s.end()
		q := s.mustAsk(t, demand("a", 300_000))
		if q.Quote.Rate != 300_000 || q.Quote.Valid < market.MinQuoteValid {
			t.Fatalf("%+v", q.Quote)
		}
		s.expect(t, "quoted", 1, 1)
		if again := s.mustAsk(t, demand("a", 300_000)); !bytes.Equal(again.Raw, q.Raw) {
			t.Error("the same demand got another quote")
		}
		s.expect(t, "asked twice", 1, 1)
		p := s.under(t, q, "voucher")
		first, err := s.buy(p)
		if err != nil {
			t.Fatal(err)
		}
		s.expect(t, "sold", 0, 0)
		second, err := s.buy(p)
		if err != nil || !bytes.Equal(first.LeaseRaw, second.LeaseRaw) || s.shop.calls != 1 {
			t.Fatalf("%d sales, %v", s.shop.calls, err)
		}
		if _, err := s.buy(s.under(t, q, "another voucher")); p2p.KindOf(err) != p2p.KindConflict {
			t.Errorf("another accept of the same quote: %v", err)
		}
		if first.Accept.Rate != 300_000 || len(s.shop.leases) != 1 {
			t.Errorf("%+v", first.Accept)
		}
	})
}

// Who accepts at once, many times and in two ways, gets one lease.
func TestQuoteAcceptedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStand(t)
		defer s.end()
		q := s.mustAsk(t, demand("a", 300_000))
		var all sync.WaitGroup
		leases := make(chan []byte, 8)
		for i := range 8 {
			p := s.under(t, q, fmt.Sprint("voucher ", i%2))
			all.Go(func() {
				if d, err := s.buy(p); err == nil {
					leases <- d.LeaseRaw
				}
			})
		}
		all.Wait()
		close(leases)
		n, first := 0, []byte(nil)
		for raw := range leases {
			if n++; first != nil && !bytes.Equal(raw, first) {
				t.Error("two leases")
			}
			first = raw
		}
		if n == 0 || len(s.shop.leases) != 1 || s.shop.calls != 1 {
			t.Fatalf("%d answers, %d leases of %d sales", n, len(s.shop.leases), s.shop.calls)
		}
	})
}

// What is not accepted lapses, what is left is free at once, and a sale that was refused leaves the quote as it was.
func TestQuoteLapses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStand(t)
		defer s.end()
		left, kept := s.mustAsk(t, demand("a", 300_000)), s.mustAsk(t, demand("b", 300_000))
		if err := negotiate.LeaveQuote(t.Context(), s.node, "test", s.renter, left); err != nil {
			t.Fatal(err)
		}
		s.expect(t, "left", 1, 1)
		s.shop.sell = func(negotiate.Sale) error { return reason.Errorf(reason.OwnerPaused, "") }
		if _, err := s.buy(s.under(t, kept, "voucher")); !reason.Is(err, reason.OwnerPaused) {
			t.Fatal(err)
		}
		s.expect(t, "refused", 1, 1)
		s.shop.sell = nil
		time.Sleep(kept.Quote.Lasts() - time.Second)
		s.expect(t, "still stands", 1, 1)
		time.Sleep(2 * time.Second)
		s.expect(t, "lapsed", 0, 0)
		for what, q := range map[string]negotiate.Quoted{"left": left, "lapsed": kept} {
			if _, err := s.buy(s.under(t, q, "voucher")); !reason.Is(err, reason.QuoteLapsed) {
				t.Errorf("%s: %v", what, err)
			}
		}
		if s.shop.calls != 1 {
			t.Errorf("%d sales", s.shop.calls)
		}
	})
}

// The seller starts again: a quote holds on for what is left of its time, and is accepted as before; another one lapses then.
func TestQuoteOutlivesTheSeller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStand(t)
		defer s.end()
		bought, lapses := s.mustAsk(t, demand("a", 300_000)), s.mustAsk(t, demand("b", 300_000))
		s.stop()
		time.Sleep(5 * time.Second)
		s.start(t)
		s.expect(t, "started again", 2, 2)
		if _, err := s.buy(s.under(t, bought, "voucher")); err != nil {
			t.Fatal(err)
		}
		s.expect(t, "sold", 1, 1)
		time.Sleep(lapses.Quote.Lasts() - 4*time.Second)
		s.expect(t, "its time is over", 0, 0)
		last := s.mustAsk(t, demand("c", 300_000))
		s.stop()
		time.Sleep(last.Quote.Lasts() + time.Second)
		s.start(t)
		s.expect(t, "away for all of its time", 0, 0)
		if _, err := s.buy(s.under(t, last, "voucher")); !reason.Is(err, reason.QuoteLapsed) {
			t.Error(err)
		}
		full := s.mustAsk(t, demand("d", 300_000))
		s.stop()
		s.book.free = 0 // the owner took the device off meanwhile
		s.start(t)
		s.expect(t, "no device for it", 0, 0)
		if _, err := s.buy(s.under(t, full, "voucher")); !reason.Is(err, reason.QuoteLapsed) {
			t.Error(err)
		}
	})
}

// Refusals say why, and hold nothing.
func TestQuoteRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStand(t)
		defer s.end()
		for name, tt := range map[string]struct {
			change func(*negotiate.Demand)
			want   reason.Code
		}{
			"below the floor": {func(d *negotiate.Demand) { d.Most = 199_999 }, reason.QuoteFloor},
			"no such lot":     {func(d *negotiate.Demand) { d.Lot = 9 }, reason.OfferUnknown},
			"too short":       {func(d *negotiate.Demand) { d.Term = 1 }, reason.TermOutOfRange},
			"too many":        {func(d *negotiate.Demand) { d.Quantity, d.Needs = 5, needs(5) }, reason.ResourcesExceeded},
			"other unit":      {func(d *negotiate.Demand) { d.Unit = "EUR" }, reason.UnknownUnit},
			"too much memory": {func(d *negotiate.Demand) { d.Needs.MemoryMiB = 1 << 20 }, reason.ResourcesExceeded},
		} {
			d := demand(name, 300_000)
			tt.change(&d)
			if _, err := s.ask(d); !reason.Is(err, tt.want) {
				t.Errorf("%s: %v, want %s", name, err, tt.want)
			}
		}
		s.expect(t, "refused", 0, 0)
		for i := range 3 {
			s.mustAsk(t, demand(fmt.Sprint(i), 300_000))
		}
		if _, err := s.ask(demand("one more", 300_000)); !reason.Is(err, reason.QuoteLimit) {
			t.Errorf("a fourth quote: %v", err)
		}
		other := p2ptest.Device(t)
		node := s.net.Join(other)
		defer node.Close()
		s.net.Mesh()
		theirs, err := negotiate.AskQuote(t.Context(), node, "test", other, s.shop.offer, demand("theirs", 300_000))
		if err != nil {
			t.Fatal("the limit is another's, too:", err)
		}
		if err := negotiate.LeaveQuote(t.Context(), s.node, "test", s.renter, theirs); err != nil {
			t.Fatal(err)
		}
		s.expect(t, "another's quote is not left", 4, 4)
		if _, err := negotiate.AskQuote(t.Context(), node, "test", other, s.shop.offer, demand("full", 300_000)); !reason.Is(err, reason.DeviceTaken) {
			t.Errorf("no device is free: %v", err)
		}
	})
}

// A quote is for one account: another can't accept it. And none is accepted at another price, whatever the renter signs.
func TestQuoteIsForOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStand(t)
		defer s.end()
		q := s.mustAsk(t, demand("a", 300_000))
		thief := p2ptest.Device(t)
		stolen := q
		stolen.Quote.Renter = thief.Account() // as its own program might believe
		p, err := negotiate.Prepare(thief, s.shop.offer, negotiate.Order{Lot: q.Quote.Lot, Quantity: 1, Term: 600, Needs: needs(1), Quote: &stolen},
			time.Now(), func(market.LeaseID) ([]byte, error) { return []byte("voucher"), nil })
		if err != nil {
			t.Fatal(err)
		}
		order := orderOf(p, thief)
		order.Quote = q.Raw
		if _, err := s.seller.Answer(t.Context(), thief.Peer(), order, time.Now()); !reason.Is(err, reason.QuoteDiffers) {
			t.Errorf("a stolen quote: %v", err)
		}
		cheap := q
		cheap.Quote.Rate = 1
		order = orderOf(s.under(t, cheap, "voucher"), s.renter)
		order.Quote = q.Raw
		if _, err := s.seller.Answer(t.Context(), s.renter.Peer(), order, time.Now()); !reason.Is(err, reason.QuoteDiffers) {
			t.Errorf("a cheaper accept: %v", err)
		}
		if s.shop.calls != 0 {
			t.Errorf("%d sales", s.shop.calls)
		}
		s.expect(t, "it stands", 1, 1)
	})
}

// What a cheating or silent provider answers is caught before anything is signed.
func TestAskQuoteChecks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.close()
		ask := func() error {
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			_, err := negotiate.AskQuote(ctx, w.node, "test", w.renter, w.shop.offer, demand("a", 300_000))
			return err
		}
		if err := ask(); !errors.Is(err, p2p.ErrUnsupported) {
			t.Fatal("it gives no quotes:", err)
		}
		needed, err := needs(1).Hash()
		if err != nil {
			t.Fatal(err)
		}
		good := market.Quote{
			Header: w.owner.Header(market.Version), Delegation: w.owner.DelegationHash(), Demand: markettest.Hash("a"), Renter: w.renter.Account(),
			Offer: w.shop.offer.Hash, Lot: markettest.GPULot, Quantity: 1, Rate: 300_000, Unit: money.Credit, Term: 600, Needs: needed,
			Use: w.shop.offer.Terms.Use, IssuedAt: 1, Valid: 20, Nonce: markettest.Hash("n"),
		}
		type question struct {
			Delegation []byte            `cbor:"1,keyasint"`
			Demand     *negotiate.Demand `cbor:"2,keyasint,omitempty"`
		}
		type answer struct {
			Quote      []byte `cbor:"1,keyasint,omitempty"`
			Delegation []byte `cbor:"2,keyasint,omitempty"`
		}
		spoils := []func(*market.Quote){
			func(q *market.Quote) { q.Rate++ }, func(q *market.Quote) { q.Demand = markettest.Hash("b") }, func(q *market.Quote) { q.Term-- },
			func(q *market.Quote) { q.Renter = w.owner.Account() }, func(q *market.Quote) { q.Lot++ }, func(q *market.Quote) { q.Quantity++ },
			func(q *market.Quote) { q.Needs = markettest.Hash("b") }, func(q *market.Quote) { q.Offer = markettest.Hash("b") },
			func(q *market.Quote) { q.Valid = 3600 }, func(q *market.Quote) { q.Unit = "EUR" }, func(q *market.Quote) { q.Use = markettest.Hash("b") },
		}
		for i, spoil := range slices.Insert(spoils, 0, func(*market.Quote) {}) {
			q := good
			spoil(&q)
			w.ownerNode.Handle(quoteProtocol, negotiate.QuoteLimits(), p2p.Answer(1<<13, func(context.Context, identity.PeerID, question) (answer, error) {
				return answer{markettest.Seal(t, w.owner, market.DomainQuote, q), w.owner.Delegation()}, nil
			}))
			if err := ask(); (err == nil) != (i == 0) || i > 0 && !reason.Is(err, reason.QuoteDiffers) {
				t.Errorf("lie %d: %v", i, err)
			}
		}
		w.ownerNode.Handle(quoteProtocol, negotiate.QuoteLimits(), p2p.Answer(1<<13, func(ctx context.Context, _ identity.PeerID, _ question) (answer, error) {
			<-ctx.Done()
			return answer{}, ctx.Err()
		}))
		if err := ask(); !reason.Is(err, reason.QuoteSilent) {
			t.Errorf("silence: %v", err)
		}
	})
}
