package negotiate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/time/rate"

	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/auction"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// What a floor remembers of strangers' auctions.
const (
	maxHeard    = 2048      // auctions of others; an ended one makes room first
	maxSeller   = 512       // of them by one device
	maxCommits1 = 4096      // commits of one auction that are told from repeats
	maxTold     = 256 << 10 // and of all together
	maxBidders  = 64        // devices of one auction that may be asked for the Seal
	maxFrauds   = 256
	fraudEvery  = 10 * time.Second // a proof that is new here is checked, told on and logged, after maxFrauds at once
	maxPeers    = 1024             // rate limits, about the connections of a machine
)

// patience is how much longer than its windows an auction may take before its bidders give it up. A seller back from a crash aborts what
// would end later than that.
const patience = 5 * time.Minute

// Floor is this machine among those who take part in auctions: it hears what is announced on the topic, keeps what is fresh, and answers
// peers. [NewFloor] starts nothing. A seller's [House] and a bidder's [Floor.Follow] work on it. Safe for concurrent use.
type Floor struct {
	net     p2p.Network
	dev     *identity.Device
	network string
	log     *slog.Logger
	joined  chan struct{} // closed once topic is set
	topic   p2p.Topic     // set before joined is closed
	proofs  chan []byte   // to be told
	house   *House        // set before Run; nil: this machine sells by no auction

	mu     sync.Mutex
	heard  map[auction.ID]*heard                      // guarded by mu
	told   int                                        // guarded by mu; commits of all of heard
	frauds *lru.Cache[wire.Hash, auction.Finding]     // guarded by mu
	asks   *lru.Cache[identity.PeerID, *rate.Limiter] // guarded by mu
	said   *lru.Cache[identity.PeerID, *rate.Limiter] // guarded by mu
	opens  *lru.Cache[identity.PeerID, *rate.Limiter] // guarded by mu
	proven *rate.Limiter                              // of all peers together: anybody makes a seller that breaks the rules
}

// heard is one auction as the topic told it.
type heard struct {
	open       auction.Open
	raw        []byte
	delegation []byte
	mine       bool      // of this machine, or called by it: strangers' leave no less room for it
	since      time.Time // first sight of the Open
	seals      [][]byte  // two are a fraud
	awards     [][]byte
	aborted    bool
	commits    map[wire.Hash]bool
	bidders    []identity.PeerID
	news       chan struct{} // closed at the next Seal, Award or Abort
}

// NewFloor makes the floor of a device on a network; "" is [p2p.DefaultNetwork], a nil log [slog.Default].
func NewFloor(n p2p.Network, dev *identity.Device, network string, log *slog.Logger) (*Floor, error) {
	if n == nil || dev == nil {
		return nil, errors.New("negotiate: a floor needs a network and a device")
	}
	if network == "" {
		network = p2p.DefaultNetwork
	}
	if log == nil {
		log = slog.Default()
	}
	f := &Floor{
		net: n, dev: dev, network: network, log: log, joined: make(chan struct{}), proofs: make(chan []byte, 16), heard: map[auction.ID]*heard{},
		proven: rate.NewLimiter(rate.Every(fraudEvery), maxFrauds),
	}
	var err error
	if f.frauds, err = lru.New[wire.Hash, auction.Finding](maxFrauds); err != nil {
		return nil, fmt.Errorf("negotiate: %w", err)
	}
	for _, c := range []**lru.Cache[identity.PeerID, *rate.Limiter]{&f.asks, &f.said, &f.opens} {
		cache, err := lru.New[identity.PeerID, *rate.Limiter](maxPeers)
		if err != nil {
			return nil, fmt.Errorf("negotiate: %w", err)
		}
		*c = cache
	}
	return f, nil
}

// Run joins the topic and answers peers until ctx ends; the error is nil then. It is called once.
func (f *Floor) Run(ctx context.Context) error {
	topic, err := f.net.Join(AuctionsTopic(f.network), maxNews, f.validate)
	if err != nil {
		return fmt.Errorf("join auctions topic: %w", err)
	}
	defer topic.Leave() // the network ends: nothing to tell
	f.topic = topic
	close(f.joined)
	f.net.Handle(f.protocol(), auctionLimits(), p2p.Answer(maxAsk, f.answer))
	var telling sync.WaitGroup
	defer telling.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	telling.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case raw := <-f.proofs:
				f.say(ctx, newsFraud, raw, nil)
			}
		}
	})
	for {
		data, _, err := topic.Next(ctx)
		if err != nil && ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read auctions topic: %w", err)
		}
		f.pass(ctx, data)
	}
}

func (f *Floor) protocol() p2p.Protocol { return p2p.ProtocolID(f.network, work.ProtoAuction) }

// pass gives a gossiped commit to the house that it is for: its stream may have failed.
func (f *Floor) pass(ctx context.Context, data []byte) {
	var n news
	if f.house == nil || wire.Unmarshal(data, &n) != nil || n.Kind != newsCommit {
		return
	}
	c, err := identity.PeekAdvert[auction.Commit](auction.DomainCommit, n.Envelope)
	if err != nil {
		return
	}
	if _, err := f.house.commit(ctx, floorAsk{Auction: c.Auction, Record: n.Envelope, Delegation: n.Delegation}); err != nil {
		f.log.Debug("gossiped commit not taken", "auction", c.Auction.Short(), "err", err)
	}
}

// say publishes; nobody there is no error, since every step is asked for by stream as well.
func (f *Floor) say(ctx context.Context, kind newsKind, envelope, delegation []byte) {
	data, err := wire.Marshal(news{Kind: kind, Envelope: envelope, Delegation: delegation})
	if err != nil || len(data) > maxNews { // an Award over thousands of commits: it is fetched
		return
	}
	select {
	case <-ctx.Done():
		return
	case <-f.joined:
	}
	if err := f.topic.Publish(ctx, data); err != nil {
		f.log.Debug("auction news not published", "kind", kind, "err", err)
	}
}

// allow takes one from a peer's bucket.
func (f *Floor) allow(c *lru.Cache[identity.PeerID, *rate.Limiter], p identity.PeerID, r rate.Limit, burst int, now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	l, ok := c.Get(p)
	if !ok {
		l = rate.NewLimiter(r, burst)
		c.Add(p, l)
	}
	return l.AllowN(now, 1)
}

// validate judges a message of the topic in the order of what it costs: size, rate of the forwarder, form, whether it is of an auction that
// is known and live, then the signature. What is good is remembered at once.
func (f *Floor) validate(_ context.Context, from identity.PeerID, data []byte) p2p.Verdict {
	now := time.Now()
	if from != f.net.Self() && !f.allow(f.said, from, newsRate, newsBurst, now) {
		return p2p.Ignore
	}
	var n news
	if len(data) > maxNews || wire.Unmarshal(data, &n) != nil {
		return p2p.Reject
	}
	switch n.Kind {
	case newsOpen:
		return f.hearOpen(n, now)
	case newsCommit:
		return f.hearCommit(n, now)
	case newsSeal, newsAward, newsAbort:
		return f.hearSeller(n.Kind, n.Envelope, now)
	case newsFraud:
		return f.hearFraud(n.Envelope, now)
	}
	return p2p.Ignore // of a later release
}

// hearOpen remembers an auction that it did not know.
func (f *Floor) hearOpen(n news, now time.Time) p2p.Verdict {
	id := auction.IDOf(n.Envelope)
	if f.find(id) != nil {
		return p2p.Ignore
	}
	return f.remember(id, n.Envelope, n.Delegation, now, now, false)
}

// remember checks an Open and keeps it, first seen at since; called: this machine asked for it.
func (f *Floor) remember(id auction.ID, raw, delegation []byte, since, now time.Time, called bool) p2p.Verdict {
	o, err := auction.ReadOpen(raw)
	if err != nil {
		return p2p.Reject
	}
	if _, err := market.OpenDelegation(delegation, o.Delegation, o.Header, identity.PowerProvide); err != nil {
		return p2p.Reject
	}
	mine := called || o.Device == f.net.Self()
	if !mine && !f.allow(f.opens, o.Device, openRate, openBurst, now) {
		return p2p.Ignore
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if h := f.heard[id]; h != nil {
		h.mine = h.mine || mine
		return p2p.Ignore
	}
	if room := f.makeRoom(o.Device, now); !room && !mine {
		return p2p.Ignore
	}
	f.heard[id] = &heard{open: o, raw: raw, delegation: delegation, mine: mine, since: since, commits: map[wire.Hash]bool{}, news: make(chan struct{})}
	return p2p.Accept
}

// makeRoom forgets what is long over, and where that is not enough what has ended; false if there is no room for an auction of seller. mu
// is held.
func (f *Floor) makeRoom(seller identity.PeerID, now time.Time) bool {
	for id, h := range f.heard {
		age, windows := now.Sub(h.since), h.open.SealAfter()+h.open.RevealFor()
		if age > windows+patience || h.ended() && age > windows+auction.LateWithin {
			f.forget(id, h)
		}
	}
	if len(f.heard) >= maxHeard {
		for id, h := range f.heard {
			if h.ended() && !h.mine {
				f.forget(id, h)
			}
		}
	}
	all, own := 0, 0
	for _, h := range f.heard {
		if !h.mine {
			all++
		}
		if h.open.Device == seller {
			own++
		}
	}
	return all < maxHeard && own < maxSeller
}

func (h *heard) ended() bool { return h.aborted || len(h.awards) > 0 }

func (f *Floor) forget(id auction.ID, h *heard) {
	f.told -= len(h.commits)
	delete(f.heard, id)
}

func (f *Floor) find(id auction.ID) *heard {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.heard[id]
}

// hearCommit forwards a commit to an auction that still takes it, once, and notes who bids.
func (f *Floor) hearCommit(n news, now time.Time) p2p.Verdict {
	c, err := identity.PeekAdvert[auction.Commit](auction.DomainCommit, n.Envelope)
	if err != nil {
		return p2p.Reject
	}
	hash := identity.Hash(n.Envelope)
	f.mu.Lock()
	h := f.heard[c.Auction]
	stale := h == nil || h.commits[hash] || len(h.commits) >= maxCommits1 || f.told >= maxTold && !h.mine || len(h.seals) > 0 ||
		now.Sub(h.since) >= h.open.SealAfter()
	f.mu.Unlock()
	if stale {
		return p2p.Ignore
	}
	if c, err = auction.ReadCommit(n.Envelope); err != nil {
		return p2p.Reject
	}
	if _, err := market.OpenDelegation(n.Delegation, c.Delegation, c.Header, identity.PowerTrade); err != nil {
		return p2p.Reject
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.heard[c.Auction] != h || h.commits[hash] { // meanwhile
		return p2p.Ignore
	}
	h.commits[hash] = true
	f.told++
	if len(h.bidders) < maxBidders && !slices.Contains(h.bidders, c.Device) {
		h.bidders = append(h.bidders, c.Device)
	}
	return p2p.Accept
}

// hearSeller keeps a Seal, Award or Abort of a known auction by its seller; of Seals and Awards two at most, since two tell all.
func (f *Floor) hearSeller(kind newsKind, raw []byte, now time.Time) p2p.Verdict {
	id, head, err := sellerRecord(kind, raw)
	if err != nil {
		return p2p.Reject
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	h := f.heard[id]
	if h == nil {
		return p2p.Ignore
	}
	if head.Account != h.open.Account || head.Device != h.open.Device {
		return p2p.Reject
	}
	list := &h.seals
	switch kind {
	case newsAward:
		list = &h.awards
	case newsAbort:
		if h.aborted {
			return p2p.Ignore
		}
		h.aborted = true
		h.changed()
		return p2p.Accept
	}
	for _, have := range *list {
		if bytes.Equal(have, raw) {
			return p2p.Ignore
		}
	}
	if len(*list) >= 2 {
		return p2p.Ignore
	}
	*list = append((*list)[:len(*list):len(*list)], raw)
	h.changed()
	if kind == newsSeal && len(h.seals) == 2 {
		f.prove(h)
	}
	return p2p.Accept
}

// sellerRecord checks the signature of a seller's record and says which auction it is of.
func sellerRecord(kind newsKind, raw []byte) (auction.ID, identity.Header, error) {
	switch kind {
	case newsSeal:
		s, err := auction.ReadSeal(raw)
		return s.Auction, s.Header, err
	case newsAward:
		a, err := auction.ReadAward(raw)
		return a.Auction, a.Header, err
	}
	a, err := auction.ReadAbort(raw)
	return a.Auction, a.Header, err
}

// changed wakes whoever follows the auction; the floor's mu is held.
func (h *heard) changed() {
	close(h.news)
	h.news = make(chan struct{})
}

// prove keeps and tells the proof that a seller signed two Seals; mu is held.
func (f *Floor) prove(h *heard) {
	records := slices.Clone(h.seals)
	slices.SortFunc(records, bytes.Compare) // so that all make the same proof
	raw, err := auction.Fraud{Kind: auction.TwoSeals, Open: h.raw, Records: records, Delegations: [][]byte{h.delegation}}.Encode()
	if err != nil {
		f.log.Warn("two seals make no proof", "auction", auction.IDOf(h.raw).Short(), "err", err)
		return
	}
	select {
	case f.proofs <- raw: // a validator must not wait
	default:
	}
}

// hearFraud checks a proof and keeps it, so that it is gossiped once, and at most one in fraudEvery.
func (f *Floor) hearFraud(raw []byte, now time.Time) p2p.Verdict {
	hash := identity.Hash(raw)
	f.mu.Lock()
	known := f.frauds.Contains(hash)
	f.mu.Unlock()
	if known || !f.proven.AllowN(now, 1) {
		return p2p.Ignore
	}
	found, err := auction.CheckFraud(raw)
	if err != nil {
		return p2p.Reject
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.frauds.Add(hash, found)
	f.log.Warn("a seller broke the rules of an auction", "seller", found.Seller.Short(), "auction", found.Auction.Short(), "what", found.Words)
	return p2p.Accept
}

// Frauds are the proofs heard since the start: the newest 256, the oldest first.
func (f *Floor) Frauds() []auction.Finding {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.frauds.Values()
}

// answer serves work.ProtoAuction: a house for what it sells, and anybody the Seal that it heard.
func (f *Floor) answer(ctx context.Context, from identity.PeerID, ask floorAsk) (floorAnswer, error) {
	if !f.allow(f.asks, from, askRate, askBurst, time.Now()) {
		return floorAnswer{}, p2p.Errorf(p2p.KindBusy, "too many questions: at most %d a second", askRate)
	}
	if f.house != nil {
		if a, mine, err := f.house.answer(ctx, from, ask); mine {
			return a, Refusal(err)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if h := f.heard[ask.Auction]; ask.Want == wantSeal && h != nil && len(h.seals) > 0 {
		return floorAnswer{Record: h.seals[0]}, nil
	}
	return floorAnswer{}, Refusal(reason.Errorf(reason.AuctionUnknown, "auction %s is not held here", ask.Auction.Short()))
}
