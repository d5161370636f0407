package renter

import (
	"context"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/book"
	"github.com/gpufair/gpufair/market/markettest"
	"github.com/gpufair/gpufair/market/negotiate"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
	"github.com/gpufair/gpufair/renter/control/api"
)

// tills is what a stranger that quotes holds.
type tills struct {
	price money.Rate
	mu    sync.Mutex
	held  map[wire.Hash]negotiate.KeptQuote // guarded by mu
}

func (b *tills) Price(context.Context, negotiate.Demanded) (money.Rate, error) { return b.price, nil }
func (b *tills) HoldAgain(negotiate.KeptQuote) error                           { return nil }
func (b *tills) Quotes(context.Context) ([]negotiate.KeptQuote, error)         { return nil, nil }

func (b *tills) Hold(_ context.Context, q negotiate.KeptQuote) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held[identity.Hash(q.Raw)] = q
	return nil
}

func (b *tills) Free(_ context.Context, h wire.Hash) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.held, h)
	return nil
}

func (b *tills) holds() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.held)
}

// quotes lets a stranger quote at a price.
func (s *stranger) quotes(price money.Rate) *tills {
	s.t.Helper()
	b := &tills{price: price, held: map[wire.Hash]negotiate.KeptQuote{}}
	q, err := negotiate.NewQuoter(s.dev, s, b)
	must(s.t, err)
	seller, err := negotiate.NewSeller(s.dev, s, s, q)
	must(s.t, err)
	s.node.Handle(p2p.ProtocolID(testNet, work.ProtoTrade), negotiate.Limits(), seller.Handler())
	s.node.Handle(p2p.ProtocolID(testNet, work.ProtoQuote), negotiate.QuoteLimits(), q.Handler())
	return b
}

// asking is a run that asks strangers for quotes of at most so much.
func (r *rig) asking(most money.Rate, of ...*stranger) *planned {
	r.t.Helper()
	<-r.agent.ready
	f := newFiles()
	f.image = r.image
	p := &planned{
		req: api.RunRequest{Image: "x", Output: filepath.Join(r.dir, "out"), Command: []string{"job"}}, budget: 10_000_000, files: f,
		needs: work.Needs{Kind: market.KindCPU, Devices: 1}, most: most, asks: true,
	}
	for _, s := range of {
		lot, _ := s.offer.Lot(markettest.CPULot)
		p.offers = append(p.offers, book.Found{Entry: book.Entry{SealedOffer: s.offer}, Lot: lot})
	}
	return p
}

// The best quote is bought, under its price and not the offer's; the others are free at once; who does not quote says why.
func TestBestQuote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		dear, plain, proud := newStranger(t, r.net), newStranger(t, r.net), newStranger(t, r.net)
		defer func() {
			r.end()
			for _, s := range []*stranger{dear, plain, proud} {
				s.node.Close()
			}
		}()
		r.net.Mesh()
		best, other, floor := r.owner.quotes(testRate/2), dear.quotes(testRate/3*2), proud.quotes(2*testRate)
		r.owner.claim = func(ms uint64) (money.Micro, uint64) { return money.Micro(ms) / 2, ms }
		p := r.asking(testRate-1, dear, plain, proud, r.owner)
		var said []api.Quote
		must(t, r.agent.quotes(t.Context(), p, func(e api.RunEvent) error { said = append(said, *e.Quote); return nil }))
		if len(said) != 4 || said[0].Price != (testRate/3*2).String() || !said[0].Firm || said[1].Code != string(reason.PriceBelow) ||
			said[2].Code != string(reason.QuoteFloor) || said[3].Price != (testRate/2).String() {
			t.Fatalf("%+v", said)
		}
		if len(p.offers) != 2 || p.offers[0].Entry.Device != r.owner.dev.Peer() || best.holds() != 1 || other.holds() != 1 || floor.holds() != 0 {
			t.Fatalf("%d offers, %d %d %d held", len(p.offers), best.holds(), other.holds(), floor.holds())
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		var id market.LeaseID
		go func() {
			done <- r.agent.tryOffers(ctx, p, func(e api.RunEvent) error {
				if e.Job != nil {
					return id.UnmarshalText([]byte(e.Job.ID))
				}
				return nil
			})
		}()
		r.until("the job runs", time.Minute, func() bool {
			r.owner.mu.Lock()
			defer r.owner.mu.Unlock()
			return r.owner.state == work.Running
		})
		r.until("the other quote is left", time.Minute, func() bool { return other.holds() == 0 })
		r.owner.ends()
		must(t, <-done)
		cancel()
		if rec := r.job(id); rec.Rate != testRate/2 || rec.Quote == nil || best.holds() != 0 || !rec.Final {
			t.Errorf("%v, %d held, final %v", rec.Rate, best.holds(), rec.Final)
		}
		p.files.drop()
	})
}

// Nobody quotes within the price: nothing is ordered, and the error says what the first one said.
func TestNoQuote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		defer r.end()
		r.owner.quotes(testRate)
		p := r.asking(testRate/2, r.owner)
		err := r.agent.quotes(t.Context(), p, func(api.RunEvent) error { return nil })
		if why, _ := reason.Of(err); why.Code != reason.NoQuote || len(p.offers) != 0 {
			t.Fatal(err)
		}
		r.nothingHeld()
		p.files.drop()
	})
}

// An agent that is killed with its order under a quote on the way sends the same order in its next life, and has one lease.
func TestQuoteOutlivesTheAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		defer r.end()
		till := r.owner.quotes(testRate / 2)
		r.owner.claim = func(ms uint64) (money.Micro, uint64) { return money.Micro(ms) / 2, ms }
		p := r.asking(testRate, r.owner)
		must(t, r.agent.quotes(t.Context(), p, func(api.RunEvent) error { return nil }))
		j, err := r.agent.order(t.Context(), p, p.offers[0]) // stored, and never sent by this process
		must(t, err)
		p.files.drop()
		r.stop()
		time.Sleep(5 * time.Second)
		r.start()
		r.runs(j.id)
		r.owner.mu.Lock()
		sold := r.owner.id
		r.owner.mu.Unlock()
		if sold != j.id || till.holds() != 0 {
			t.Errorf("lease %s, want %s; %d quotes held", sold.Short(), j.id.Short(), till.holds())
		}
		r.owner.ends()
		rec := r.ends(j.id, time.Minute)
		if rec.Rate != testRate/2 {
			t.Errorf("at %v", rec.Rate)
		}
		r.nothingHeld()
	})
}
