package announce

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Times of a publisher.
const (
	OfferTTL     = time.Hour        // of each offer; it is renewed at half of it
	changeEvery  = 30 * time.Second // between full offers
	knockEvery   = time.Second      // until the topic has a member: gossip to nobody is lost
	tryAgain     = 5 * time.Second  // after an error of the store or the topic
	farewell     = 2 * time.Second  // for the tombstone at the end
	seqBlock     = 256              // sequences taken from the store at once: one durable write for an hour of heartbeats
	keptOffers   = 16               // own offers remembered for Accepts on their way
	freshBeat    = time.Second      // a probe may be answered by a heartbeat of this age
	beatsAtOnce  = 4                // heartbeats on change before the peers' limit of one in ten seconds bites
	probeStreams = 64
)

// Store keeps the sequence of a device's adverts over restarts.
type Store interface {
	// ReserveSeq takes n sequences durably and gives the first, at least 1. No sequence is given twice.
	ReserveSeq(ctx context.Context, n uint64) (first uint64, err error)
}

// Publisher keeps one device's offer before the market: signs it, repeats it, beats for it, answers probes and withdraws it at the
// end. What is offered comes by Set. Safe for concurrent use.
type Publisher struct {
	board *Board
	dev   *identity.Device
	store Store
	wake  chan struct{}
	word  chan struct{} // capacity 1: an offer went out
	beats *rate.Limiter // of heartbeats on change
	knock *rate.Limiter // of offers repeated because nobody was there

	mu      sync.Mutex
	want    *market.Offer        // guarded by mu; nil: nothing is offered
	cur     *market.SealedOffer  // guarded by mu; nil: nothing is published
	kept    []market.SealedOffer // guarded by mu; own offers, newest last
	told    bool                 // guarded by mu; cur reached a topic with members
	free    uint64               // guarded by mu; as the last publication said
	last    beat                 // guarded by mu; newest heartbeat of cur, published or sent to who probed
	beaten  time.Time            // guarded by mu; when something of cur was last published
	offered time.Time            // guarded by mu; when an offer was last published
	nextIn  time.Duration        // guarded by mu; until the next regular heartbeat
	seq     uint64               // guarded by mu; next to use
	seqEnd  uint64               // guarded by mu; first that is not reserved
}

// NewPublisher makes the publisher of a device on a board. It starts nothing; Run needs the board's Run beside it.
func NewPublisher(b *Board, dev *identity.Device, s Store) (*Publisher, error) {
	if b == nil || dev == nil || s == nil {
		return nil, errors.New("announce: a publisher needs a board, a device and a store")
	}
	if b.net.Self() != dev.Peer() {
		return nil, fmt.Errorf("announce: the network is device %s, the publisher %s", b.net.Self().Short(), dev.Peer().Short())
	}
	return &Publisher{
		board: b, dev: dev, store: s, wake: make(chan struct{}, 1), word: make(chan struct{}, 1),
		beats: rate.NewLimiter(rate.Every(beatEvery), beatsAtOnce), knock: rate.NewLimiter(rate.Every(changeEvery), 2),
	}, nil
}

// Set says what is offered from now on. The publisher fills in header, delegation, sequence, issue time, time to live and heartbeat;
// the rest must be valid and fit [market.MaxOffer], or the error says why and what was offered before stands. A change of free
// devices alone goes out as a heartbeat at once, any other as a new offer at most every 30 seconds.
func (p *Publisher) Set(o market.Offer) error {
	trial := p.dress(o, 1<<62, time.UnixMilli(1<<50))
	if err := trial.Validate(); err != nil {
		return fmt.Errorf("offer: %w", err)
	}
	raw, err := p.dev.Seal(market.DomainOffer, trial)
	if err != nil {
		return fmt.Errorf("offer: %w", err)
	}
	if len(raw) > market.MaxOffer {
		return fmt.Errorf("offer of %d bytes: %w (limit %d): offer fewer lots, or fewer figures of each", len(raw), wire.ErrTooLarge, market.MaxOffer)
	}
	o = o.WithFree(o.FreeBits()) // a copy that the caller cannot change
	p.mu.Lock()
	p.want = &o
	p.mu.Unlock()
	p.signal()
	return nil
}

// Clear withdraws the offer.
func (p *Publisher) Clear() {
	p.mu.Lock()
	p.want = nil
	p.mu.Unlock()
	p.signal()
}

func (p *Publisher) signal() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Own finds an offer of ours by its hash, among the newest that did not lapse: an Accept may name the one before the newest.
func (p *Publisher) Own(h wire.Hash) (market.SealedOffer, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	for _, o := range p.kept {
		if o.Hash == h && !o.Lapsed(now) {
			return o, true
		}
	}
	return market.SealedOffer{}, false
}

// Current is the published offer, with the devices free as last published.
func (p *Publisher) Current() (market.SealedOffer, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cur == nil {
		return market.SealedOffer{}, false
	}
	o := *p.cur
	o.Offer = o.WithFree(p.free)
	return o, true
}

// Told reports whether the published offer was sent while the topic had a member; peers that connect fetch it in any case.
func (p *Publisher) Told() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cur != nil && p.told
}

// Run publishes until ctx ends, and withdraws the offer then. It is called once; the error is nil at the end of ctx.
func (p *Publisher) Run(ctx context.Context) error {
	b := p.board
	b.net.Handle(b.protocol(work.ProtoProbe), p2p.Limits{Streams: probeStreams, PeerStreams: 4, Idle: 10 * time.Second},
		p2p.Answer(maxProbe, p.answerProbe))
	defer p.withdrawLast(ctx)
	var words sync.WaitGroup
	defer words.Wait()
	words.Go(func() { p.leaveWords(ctx) })
	for {
		wait, err := p.step(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			b.log.Warn("offer not published; trying again", "err", err)
			wait = tryAgain
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return nil
		case <-p.wake:
			t.Stop()
		case <-t.C:
		}
	}
}

func (p *Publisher) withdrawLast(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewell)
	defer cancel()
	if err := p.withdraw(ctx); err != nil {
		p.board.log.Debug("offer not withdrawn; it dies with its heartbeats", "err", err)
	}
}

// step does what is due and says how long there is nothing more to do.
func (p *Publisher) step(ctx context.Context) (time.Duration, error) {
	p.mu.Lock()
	want, cur, told, free := p.want, p.cur, p.told, p.free
	beatDue := p.beaten.Add(p.nextIn)
	p.mu.Unlock()
	now := time.Now()
	if want == nil {
		return time.Hour, p.withdraw(ctx)
	}
	wait := p.offerDue(cur, *want, now)
	if wait <= 0 || (!told && p.members() > 0 && p.knock.AllowN(now, 1)) {
		return 0, p.publishOffer(ctx, *want)
	}
	if !told {
		wait = min(wait, knockEvery)
	}
	bits := freeOf(*cur, *want, free)
	if bits != free {
		r := p.beats.ReserveN(now, 1)
		if d := r.DelayFrom(now); d > 0 {
			r.CancelAt(now)
			return min(wait, d), nil
		}
		return 0, p.publishBeat(ctx, bits)
	}
	if !now.Before(beatDue) {
		return 0, p.publishBeat(ctx, bits)
	}
	return min(wait, beatDue.Sub(now)), nil
}

// offerDue is how long it is until a full offer must go out: at once for the first, after half its time to live, and when this
// machine's clock was set; at least 30 s after the one before when something else changed.
func (p *Publisher) offerDue(cur *market.SealedOffer, want market.Offer, now time.Time) time.Duration {
	if cur == nil {
		return 0
	}
	p.mu.Lock()
	age := now.Sub(p.offered) // by the monotonic clock
	p.mu.Unlock()
	stepped := now.Round(0).Sub(cur.Issued()) - age
	switch {
	case stepped.Abs() > market.Skew/2:
		return 0
	case !p.same(*cur, want):
		return changeEvery - age
	}
	return OfferTTL/2 - age
}

// freeOf is what a heartbeat of cur says of the devices that want has free; while another set of devices waits to be published, what it
// said before.
func freeOf(cur market.SealedOffer, want market.Offer, before uint64) uint64 {
	if cur.Devices() != want.Devices() {
		return before
	}
	var ids []wire.Hash
	for _, l := range cur.Lots {
		for _, s := range l.Slots {
			ids = append(ids, s.Device)
		}
	}
	i := 0
	for _, l := range want.Lots {
		for _, s := range l.Slots {
			if ids[i] != s.Device {
				return before
			}
			i++
		}
	}
	return want.FreeBits()
}

// members is how many others the topic has; 0 before the board joined it.
func (p *Publisher) members() int {
	select {
	case <-p.board.joined:
		return len(p.board.topic.Peers())
	default:
		return 0
	}
}

// dress fills in what the publisher answers for.
func (p *Publisher) dress(o market.Offer, seq uint64, now time.Time) market.Offer {
	o.Header = p.dev.Header(market.Version)
	o.Delegation = p.dev.DelegationHash()
	o.Seq, o.IssuedAt = seq, now.UnixMilli()
	o.TTL = uint32(OfferTTL / time.Second)
	o.Heartbeat = uint32(Interval(p.board.book.Len()) / time.Second)
	return o
}

// same reports whether want is what cur says, free devices and a small change of the shard's size aside.
func (p *Publisher) same(cur market.SealedOffer, want market.Offer) bool {
	beat := uint32(Interval(p.board.book.Len()) / time.Second)
	if beat > cur.Heartbeat*5/4 || cur.Heartbeat > beat*5/4 {
		return false
	}
	strip := func(o market.Offer) []byte {
		o = o.WithFree(0)
		o.Header, o.Delegation, o.Seq, o.IssuedAt, o.TTL, o.Heartbeat = identity.Header{}, wire.Hash{}, 0, 0, 0, 0
		b, err := wire.Marshal(o)
		if err != nil {
			return nil
		}
		return b
	}
	return bytes.Equal(strip(cur.Offer), strip(want))
}

// nextSeq gives the next sequence of this device's adverts: offers, heartbeats and tombstones share one counter.
func (p *Publisher) nextSeq(ctx context.Context) (uint64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.seq == p.seqEnd {
		first, err := p.store.ReserveSeq(ctx, seqBlock)
		if err != nil {
			return 0, fmt.Errorf("reserve sequences: %w", err)
		}
		if first == 0 || first < p.seq {
			return 0, fmt.Errorf("reserve sequences: the store gave %d after %d", first, p.seq)
		}
		p.seq, p.seqEnd = first, first+seqBlock
	}
	p.seq++
	return p.seq - 1, nil
}
