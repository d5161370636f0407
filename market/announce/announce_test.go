package announce

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/book"
	"github.com/gpufair/gpufair/market/markettest"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/p2ptest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// seqStore is the durable counter; it outlives the publishers of a test.
type seqStore struct {
	mu   sync.Mutex
	next uint64 // guarded by mu
}

func (s *seqStore) ReserveSeq(_ context.Context, n uint64) (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	first := s.next + 1
	s.next += n
	return first, nil
}

// machine is one member of the market: a board, and a publisher if it offers something.
type machine struct {
	dev   *identity.Device
	node  *p2ptest.Node
	board *Board
	pub   *Publisher
	stop  func() // ends both Runs and waits
}

func newMachine(t *testing.T, net *p2ptest.Net, dev *identity.Device, store *seqStore) *machine {
	t.Helper()
	b, err := book.New(book.Config{})
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{dev: dev, node: net.Join(dev)}
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	if m.board, err = New(m.node, b, Config{Network: "test", Log: log}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	if store != nil {
		if m.pub, err = NewPublisher(m.board, dev, store); err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			if err := m.pub.Run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	boardCtx, cancelBoard := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := m.board.Run(boardCtx); err != nil {
			t.Error(err)
		}
	}()
	m.stop = sync.OnceFunc(func() {
		cancel() // the publisher first: its farewell needs the topic
		wg.Wait()
		cancelBoard()
		<-done
	})
	t.Cleanup(m.stop)
	return m
}

func (m *machine) sees(dev *identity.Device) (book.Entry, bool) {
	return m.board.book.Get(dev.Peer(), time.Now())
}

// after lets the bubble's clock go on by d, and everything that is due happen.
func after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func offer(dev *identity.Device) market.Offer { return markettest.Offer(dev, 1, time.Now()) }

func TestAJoinerGetsTheBook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := p2ptest.NewNet(t)
		old := newMachine(t, net, p2ptest.Device(t), nil)
		var devices []*identity.Device
		for i := range 150 {
			dev := p2ptest.Device(t)
			devices = append(devices, dev)
			o := markettest.Sealed(t, dev, offer(dev))
			old.board.book.Put(o, time.Now())
			if i%2 == 0 { // an old offer that beats
				h, raw := markettest.Beat(t, dev, o, 9, 0b1, time.Now())
				old.board.book.Heartbeat(h, raw, time.Now())
			}
		}
		joiner := newMachine(t, net, p2ptest.Device(t), nil)
		net.Mesh()
		after(5 * time.Second)
		for i, dev := range devices {
			e, ok := joiner.sees(dev)
			if !ok || (i%2 == 0) != (e.Free == 0b1) {
				t.Fatal("offer", i, ok, e.Free)
			}
		}
		if n, err := joiner.board.Sync(t.Context(), old.dev.Peer()); err != nil || n != 0 {
			t.Fatal("a second exchange brought", n, err)
		}
		for _, m := range []*machine{old, joiner} {
			m.stop()
			m.node.Close()
		}
	})
}

func TestASnapshotDoesNotReviveTheDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := p2ptest.NewNet(t)
		m := newMachine(t, net, p2ptest.Device(t), nil)
		dev := p2ptest.Device(t)
		o := markettest.Sealed(t, dev, offer(dev))
		_, oldBeat := markettest.Beat(t, dev, o, 2, 0, time.Now())
		other := p2ptest.Device(t)
		_, foreign := markettest.Beat(t, other, o, 9, 0, time.Now())
		after(market.Skew + time.Second)
		for name, it := range map[string]Item{
			"no proof of life":   {Offer: o.Raw, Delegation: o.DelegationRaw},
			"an old heartbeat":   {Offer: o.Raw, Delegation: o.DelegationRaw, Heartbeat: oldBeat},
			"another's beat":     {Offer: o.Raw, Delegation: o.DelegationRaw, Heartbeat: foreign},
			"another delegation": {Offer: o.Raw, Delegation: other.Delegation()},
			"garbage":            {Offer: []byte("x"), Delegation: []byte("y")},
			"nothing":            {},
		} {
			if m.board.take(it) {
				t.Error(name, "is taken")
			}
		}
		_, fresh := markettest.Beat(t, dev, o, 3, 0, time.Now())
		if !m.board.take(Item{Offer: o.Raw, Delegation: o.DelegationRaw, Heartbeat: fresh}) {
			t.Error("a fresh heartbeat is no proof of life")
		}
		after(time.Minute)
		m.board.book.Expire(time.Now())
		if m.board.take(Item{Offer: o.Raw, Delegation: o.DelegationRaw, Heartbeat: fresh}) {
			t.Error("a replay after its death brings it back")
		}
		m.stop()
		m.node.Close()
	})
}

func TestAHeartbeatForAnUnknownOfferFetchesIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := p2ptest.NewNet(t)
		owner := newMachine(t, net, p2ptest.Device(t), &seqStore{})
		renter := newMachine(t, net, p2ptest.Device(t), nil)
		net.Mesh()
		after(5 * time.Second) // the exchange at connecting is over, with nothing to exchange
		net.Faults(owner.dev.Peer(), renter.dev.Peer(), p2ptest.Faults{Drop: 1})
		if err := owner.pub.Set(offer(owner.dev)); err != nil {
			t.Fatal(err)
		}
		after(2 * time.Second)
		if _, ok := renter.sees(owner.dev); ok {
			t.Fatal("the offer was not lost")
		}
		net.Faults(owner.dev.Peer(), renter.dev.Peer(), p2ptest.Faults{})
		after(20 * time.Second) // one heartbeat
		if _, ok := renter.sees(owner.dev); !ok {
			t.Fatal("not fetched")
		}
		for _, m := range []*machine{owner, renter} {
			m.stop()
			m.node.Close()
		}
	})
}

// TestAnOfferOutlivesGossip: the connection stands, but no gossip comes through, and for a time no probe either.
func TestAnOfferOutlivesGossip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := p2ptest.NewNet(t)
		owner := newMachine(t, net, p2ptest.Device(t), &seqStore{})
		renter := newMachine(t, net, p2ptest.Device(t), nil)
		net.Mesh()
		if err := owner.pub.Set(offer(owner.dev)); err != nil {
			t.Fatal(err)
		}
		after(3 * time.Second)
		net.Faults(owner.dev.Peer(), renter.dev.Peer(), p2ptest.Faults{Drop: 1})
		for range 600 {
			after(time.Second)
			if e, ok := renter.sees(owner.dev); !ok || time.Since(e.Heard) > time.Duration(e.Heartbeat)*2*time.Second {
				t.Fatal("the offer of a connected provider fades:", ok, time.Since(e.Heard))
			}
		}
		stalled := p2ptest.Faults{Drop: 1, Latency: time.Hour}
		net.Faults(owner.dev.Peer(), renter.dev.Peer(), stalled)
		after(2 * time.Minute)
		if _, ok := renter.sees(owner.dev); ok {
			t.Fatal("an offer that nobody confirms stands")
		}
		net.Faults(owner.dev.Peer(), renter.dev.Peer(), p2ptest.Faults{Drop: 1})
		after(2 * goneEvery)
		if _, ok := renter.sees(owner.dev); !ok {
			t.Fatal("the provider is back, and its offer is not")
		}
		for _, m := range []*machine{owner, renter} {
			m.stop()
			m.node.Close()
		}
	})
}

// TestASellerThatStoppedIsLeftAlone counts the questions to a peer whose offer is gone for good.
func TestASellerThatStoppedIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := p2ptest.NewNet(t)
		m := newMachine(t, net, p2ptest.Device(t), nil)
		dev := p2ptest.Device(t)
		peer := net.Join(dev)
		var asked atomic.Int32
		peer.Handle(m.board.protocol(work.ProtoOffers), p2p.Limits{},
			p2p.Answer(maxAnswer, func(context.Context, identity.PeerID, OffersAsk) (OffersAnswer, error) {
				asked.Add(1)
				return OffersAnswer{Now: time.Now().UnixMilli()}, nil
			}))
		net.Mesh()
		m.board.book.Put(markettest.Sealed(t, dev, offer(dev)), time.Now())
		after(5 * time.Minute)
		if n := asked.Load(); n < 3 {
			t.Error("a peer whose offer is gone was asked only", n, "times")
		}
		after(time.Hour)
		if n := asked.Load(); n > 1+goneTries+int32(time.Hour/resyncEvery)+1 {
			t.Error("a peer that stopped selling was asked", n, "times")
		}
		m.stop()
		m.node.Close()
		peer.Close()
	})
}

func TestProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := p2ptest.NewNet(t)
		owner := newMachine(t, net, p2ptest.Device(t), &seqStore{})
		dead := newMachine(t, net, p2ptest.Device(t), &seqStore{})
		renter := newMachine(t, net, p2ptest.Device(t), nil)
		net.Mesh()
		for _, m := range []*machine{owner, dead} {
			if err := m.pub.Set(offer(m.dev)); err != nil {
				t.Fatal(err)
			}
		}
		after(3 * time.Second)
		var found []book.Found
		for _, m := range []*machine{owner, dead} {
			e, ok := renter.sees(m.dev)
			if !ok {
				t.Fatal("not seen")
			}
			found = append(found, book.FoundOf(e, e.Lots[0]), book.FoundOf(e, e.Lots[1]))
		}
		if still := renter.board.ProbeAll(t.Context(), found); len(still) != 4 {
			t.Fatal(len(still))
		}
		// The owner's cards fill up while gossip is lost, and the other machine is killed.
		net.Faults(owner.dev.Peer(), renter.dev.Peer(), p2ptest.Faults{Drop: 1})
		if err := owner.pub.Set(offer(owner.dev).WithFree(0b10000)); err != nil {
			t.Fatal(err)
		}
		dead.node.Close()
		before := time.Now()
		still := renter.board.ProbeAll(t.Context(), found)
		if time.Since(before) > ProbeWithin || len(still) != 2 {
			t.Fatal(time.Since(before), len(still))
		}
		if still[0].Lot.Free() != 0 || still[1].Lot.Free() != 1 || still[0].Facts.Free() != 0 {
			t.Fatal("the probe did not bring the free devices:", still[0].Lot)
		}
		// A newer offer comes with the answer.
		changed := offer(owner.dev)
		changed.Lots[0].Price = 7
		if err := owner.pub.Set(changed); err != nil {
			t.Fatal(err)
		}
		after(40 * time.Second)
		if e, err := renter.board.Probe(t.Context(), owner.dev.Peer()); err != nil || e.Lots[0].Price != 7 {
			t.Fatal(e.Lots, err)
		}
		owner.pub.Clear()
		after(time.Second)
		if _, err := renter.board.Probe(t.Context(), owner.dev.Peer()); !reason.Is(err, reason.OfferUnknown) {
			t.Fatal(err)
		}
		if _, ok := renter.sees(owner.dev); ok {
			t.Fatal("an offer that its provider denies stays in the book")
		}
		dead.stop()
		for _, m := range []*machine{owner, renter} {
			m.stop()
			m.node.Close()
		}
	})
}

// TestAnOfferHeardThroughOthersIsReachedByItsAddress: owner and renter only meet through a third peer.
func TestAnOfferHeardThroughOthersIsReachedByItsAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := p2ptest.NewNet(t)
		owner := newMachine(t, net, p2ptest.Device(t), &seqStore{})
		between := newMachine(t, net, p2ptest.Device(t), nil)
		renter := newMachine(t, net, p2ptest.Device(t), nil)
		for _, m := range []*machine{owner, renter} {
			if err := m.node.Connect(t.Context(), between.node.PeerAddr()); err != nil {
				t.Fatal(err)
			}
		}
		after(time.Second) // gossip passes by who joins the topic after it
		o := offer(owner.dev)
		o.Addrs = owner.node.Addrs()
		if err := owner.pub.Set(o); err != nil {
			t.Fatal(err)
		}
		after(3 * time.Second)
		if _, err := renter.board.Probe(t.Context(), owner.dev.Peer()); err != nil {
			t.Fatal(err)
		}
		for _, m := range []*machine{owner, between, renter} {
			m.stop()
			m.node.Close()
		}
	})
}

func TestProbesDoNotSilenceGossip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := p2ptest.NewNet(t)
		owner := newMachine(t, net, p2ptest.Device(t), &seqStore{})
		renter := newMachine(t, net, p2ptest.Device(t), nil)
		watcher := newMachine(t, net, p2ptest.Device(t), nil)
		net.Mesh()
		if err := owner.pub.Set(offer(owner.dev)); err != nil {
			t.Fatal(err)
		}
		after(3 * time.Second)
		for range 60 {
			after(3 * time.Second)
			if _, err := renter.board.Probe(t.Context(), owner.dev.Peer()); err != nil {
				t.Fatal(err)
			}
		}
		if e, ok := watcher.sees(owner.dev); !ok || time.Since(e.Heard) > 20*time.Second {
			t.Fatal("the watcher hears no heartbeats")
		}
		for _, m := range []*machine{owner, renter, watcher} {
			m.stop()
			m.node.Close()
		}
	})
}

func TestBothSidesAreToldOfAWrongClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := p2ptest.NewNet(t)
		m := newMachine(t, net, p2ptest.Device(t), nil)
		peer := net.Join(p2ptest.Device(t))
		net.Mesh()
		after(time.Second)
		ask := OffersAsk{Now: time.Now().Add(-3 * time.Hour).UnixMilli()}
		var answer OffersAnswer
		if err := p2p.Call(t.Context(), peer, m.dev.Peer(), m.board.protocol(work.ProtoOffers), ask, &answer, maxAnswer); err != nil {
			t.Fatal(err)
		}
		if got := m.board.Skew().String(); got != "clock 3 h ahead of 1 peer" {
			t.Fatal(got)
		}
		var theirs clocks // what the peer makes of the answer
		theirs.note(m.dev.Peer(), time.UnixMilli(answer.Now), time.UnixMilli(ask.Now))
		if got := theirs.skew().String(); got != "clock 3 h behind 1 peer" {
			t.Fatal(got)
		}
		m.stop()
		m.node.Close()
		peer.Close()
	})
}

func TestQuestionsHaveLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := p2ptest.NewNet(t)
		m := newMachine(t, net, p2ptest.Device(t), nil)
		peer := net.Join(p2ptest.Device(t))
		net.Mesh()
		after(time.Second)
		protocol := m.board.protocol(work.ProtoOffers)
		var answer OffersAnswer
		err := p2p.Call(t.Context(), peer, m.dev.Peer(), protocol, OffersAsk{Want: make([][16]byte, maxWant+1)}, &answer, maxAsk)
		if p2p.KindOf(err) != p2p.KindBadRequest {
			t.Fatal(err)
		}
		err = p2p.Call(t.Context(), peer, m.dev.Peer(), protocol, OffersAsk{Have: make([]book.Have, maxHave+1)}, &answer, maxAsk)
		if p2p.KindOf(err) != p2p.KindBadRequest {
			t.Fatal(err)
		}
		busy := 0
		for range 2 * pageBurst {
			if p2p.KindOf(p2p.Call(t.Context(), peer, m.dev.Peer(), protocol, OffersAsk{}, &answer, maxAsk)) == p2p.KindBusy {
				busy++
			}
		}
		if busy < pageBurst/2 {
			t.Fatal("no limit on questions:", busy)
		}
		m.stop()
		m.node.Close()
		peer.Close()
	})
}
