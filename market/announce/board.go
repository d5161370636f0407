package announce

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gpufair/gpufair/market/book"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
)

// Config sets a board up.
type Config struct {
	Network string       // name of the network; "" is [p2p.DefaultNetwork]
	Log     *slog.Logger // nil: [slog.Default]
	// Revoked is an error if the account of an offer's signer let that device go: the offer is not kept, and not shown. delegation is sealed,
	// and was checked. Nil: nobody is known to be.
	Revoked func(h identity.Header, delegation []byte) error
	Index   p2p.Index // finds those that gossip does not reach; nil: nobody
}

// Board is this machine among those who advertise: it fills a book from gossip, snapshots and probes, and serves what it has to
// others. [New] starts nothing; adverts flow while Run does. Safe for concurrent use.
type Board struct {
	net     p2p.Network
	index   p2p.Index // or nil
	book    *book.Book
	network string
	log     *slog.Logger
	revoked func(identity.Header, []byte) error
	clocks  clocks
	rates   rates
	stats   counters
	syncs   peerQueue
	probes  peerQueue // offers of connected peers that fell silent
	fetches fetchQueue
	looking chan struct{} // capacity 1: full while Discover looks
	looked  time.Time     // guarded by looking; when it last did

	joined chan struct{} // closed once topic is set
	topic  p2p.Topic     // set before joined is closed
}

// Stats counts gossip messages by what became of them since the start.
type Stats struct {
	Accepted uint64 `json:"accepted"`
	Stale    uint64 `json:"stale"`    // repeats, replays, lapsed
	Skewed   uint64 `json:"skewed"`   // issued more than 10 minutes from our clock
	Limited  uint64 `json:"limited"`  // over a rate limit
	Rejected uint64 `json:"rejected"` // malformed or badly signed
}

type counters struct{ accepted, stale, skewed, limited, rejected atomic.Uint64 }

// New makes a board over a network and a book.
func New(n p2p.Network, b *book.Book, c Config) (*Board, error) {
	if n == nil || b == nil {
		return nil, errors.New("announce: a network and a book are needed")
	}
	if c.Network == "" {
		c.Network = p2p.DefaultNetwork
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Revoked == nil {
		c.Revoked = func(identity.Header, []byte) error { return nil }
	}
	rates, err := newRates()
	if err != nil {
		return nil, err
	}
	return &Board{
		net: n, index: c.Index, looking: make(chan struct{}, 1), book: b, network: c.Network, log: c.Log, revoked: c.Revoked, rates: rates, joined: make(chan struct{}),
		syncs: newPeerQueue(), probes: newPeerQueue(), fetches: newFetchQueue(),
	}, nil
}

// Book is where the board keeps what it finds.
func (b *Board) Book() *book.Book { return b.book }

// Skew is how our clock stands against peers'.
func (b *Board) Skew() Skew { return b.clocks.skew() }

// Stats are the counts so far.
func (b *Board) Stats() Stats {
	return Stats{
		Accepted: b.stats.accepted.Load(), Stale: b.stats.stale.Load(), Skewed: b.stats.skewed.Load(),
		Limited: b.stats.limited.Load(), Rejected: b.stats.rejected.Load(),
	}
}

const (
	expireEvery = 10 * time.Second // the dead are hidden at once, this only frees their memory; those of revoked devices are hidden by it
	resyncEvery = 10 * time.Minute // with one peer: heals what gossip and the exchange at connecting missed
	workers     = 4                // exchanges at once
)

// Run joins the topic, answers peers and fills the book until ctx ends. It is called once; the error is nil then.
func (b *Board) Run(ctx context.Context) error {
	topic, err := b.net.Join(p2p.OffersTopic(b.network, "any", "any"), MaxMessage, b.validate)
	if err != nil {
		return fmt.Errorf("join offers topic: %w", err)
	}
	defer topic.Leave() // the network ends: nothing to tell
	b.topic = topic
	close(b.joined)
	b.net.Handle(b.protocol(work.ProtoOffers), p2p.Limits{Streams: 32, PeerStreams: 2, Idle: 30 * time.Second},
		p2p.Answer(maxAnswer, b.answerOffers))
	b.net.Watch(ctx, func(peer identity.PeerID, up bool) {
		if up {
			b.syncs.add(peer)
		}
	})
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return b.drain(ctx) })
	g.Go(func() error { return b.tend(ctx) })
	g.Go(func() error { return b.lookAround(ctx) })
	for range workers {
		g.Go(func() error { return b.syncWorker(ctx) })
		g.Go(func() error { return b.fetchWorker(ctx) })
		g.Go(func() error { return b.probeWorker(ctx) })
	}
	if err := g.Wait(); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}

func (b *Board) protocol(name string) p2p.Protocol { return p2p.ProtocolID(b.network, name) }

// drain takes the accepted messages off the topic. The validator has put them into the book already, so that a repeat over another
// peer is seen as one at once.
func (b *Board) drain(ctx context.Context) error {
	for {
		if _, _, err := b.topic.Next(ctx); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("read offers topic: %w", err)
		}
	}
}

// tend frees the dead, asks after the silent, and now and then compares books with one peer.
func (b *Board) tend(ctx context.Context) error {
	expire, listen, resync := time.NewTicker(expireEvery), time.NewTicker(listenEvery), time.NewTicker(resyncEvery)
	defer expire.Stop()
	defer listen.Stop()
	defer resync.Stop()
	known := sellers{}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-expire.C:
			b.book.Expire(time.Now())
			b.dropRevoked(time.Now())
		case <-listen.C:
			b.askSilent(known, time.Now())
		case <-resync.C:
			if peers := b.net.Peers(); len(peers) > 0 {
				b.syncs.add(peers[pick(len(peers))].Peer)
			}
		}
	}
}

// dropRevoked takes the offers of devices out of the book that were let go since their offers came.
func (b *Board) dropRevoked(now time.Time) {
	for _, s := range b.book.Signers() {
		if err := b.revoked(s.Header, s.Delegation); err != nil {
			b.book.Remove(s.Device, now)
			b.log.Info("offer dropped", "device", s.Device.Short(), "err", err)
		}
	}
}

// publish spreads one advert of ours; it waits for Run to join the topic. It says how many members the topic had.
func (b *Board) publish(ctx context.Context, m Message) (peers int, err error) {
	data, err := m.Encode()
	if err != nil {
		return 0, err
	}
	select {
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	case <-b.joined:
	}
	peers = len(b.topic.Peers())
	if err := b.topic.Publish(ctx, data); err != nil {
		return 0, fmt.Errorf("publish advert: %w", err)
	}
	return peers, nil
}

// peerQueue holds the peers to exchange books with, each once. Safe for concurrent use.
type peerQueue struct {
	mu   *sync.Mutex
	set  map[identity.PeerID]bool // guarded by mu
	wake chan struct{}
}

const maxQueued = 1024 // as many peers as a machine ever has connections

func newPeerQueue() peerQueue {
	return peerQueue{mu: &sync.Mutex{}, set: map[identity.PeerID]bool{}, wake: make(chan struct{}, 1)}
}

func (q peerQueue) add(p identity.PeerID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.set) < maxQueued {
		q.set[p] = true
	}
	q.signal()
}

func (q peerQueue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// next waits for a peer; false when ctx ended.
func (q peerQueue) next(ctx context.Context) (identity.PeerID, bool) {
	for {
		q.mu.Lock()
		for p := range q.set {
			delete(q.set, p)
			if len(q.set) > 0 {
				q.signal()
			}
			q.mu.Unlock()
			return p, true
		}
		q.mu.Unlock()
		select {
		case <-ctx.Done():
			return identity.PeerID{}, false
		case <-q.wake:
		}
	}
}
