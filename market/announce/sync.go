package announce

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/book"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
)

const (
	syncTries   = 3 // a peer that has just started may not serve the protocol yet
	syncPause   = 2 * time.Second
	exchangeMax = time.Minute // for one page, with what the peer's limits make us wait
	refetch     = 30 * time.Second
)

// answerOffers serves a page of our book.
func (b *Board) answerOffers(_ context.Context, from identity.PeerID, ask OffersAsk) (OffersAnswer, error) {
	now := time.Now()
	if !b.rates.page(from, now) {
		return OffersAnswer{}, p2p.Errorf(p2p.KindBusy, "too many questions: at most %d a second", pageRate)
	}
	if len(ask.Want) > maxWant || len(ask.Have) > maxHave {
		return OffersAnswer{}, p2p.Errorf(p2p.KindBadRequest, "at most %d offers by name and %d lines of digest", maxWant, maxHave)
	}
	b.clocks.note(from, time.UnixMilli(ask.Now), now)
	answer := OffersAnswer{Now: now.UnixMilli()}
	if len(ask.Want) > 0 {
		for _, prefix := range ask.Want {
			if e, ok := b.book.ByPrefix(prefix, now); ok {
				answer.Items = append(answer.Items, item(e))
			}
		}
		return answer, nil
	}
	page, next, more := b.book.Page(ask.After, ask.Until, ask.Have, pageSize, now)
	for _, e := range page {
		answer.Items = append(answer.Items, item(e))
	}
	answer.Next, answer.More = next, more
	return answer, nil
}

func item(e book.Entry) Item {
	return Item{Offer: e.Raw, Delegation: e.DelegationRaw, Heartbeat: e.Beat}
}

// Sync asks peer for the live offers that our book lacks, and says how many were new. It is done by itself with each peer that
// connects.
func (b *Board) Sync(ctx context.Context, peer identity.PeerID) (int, error) {
	n := 0
	var after [16]byte
	for range maxPages {
		now := time.Now()
		ask := OffersAsk{Now: now.UnixMilli(), After: after, Have: b.book.Digest(after, maxHave, now)}
		if len(ask.Have) == maxHave {
			ask.Until = ask.Have[maxHave-1].ID
		}
		answer, err := b.askOffers(ctx, peer, ask)
		if err != nil {
			return n, fmt.Errorf("exchange offers with %s: %w", peer.Short(), err)
		}
		for _, it := range answer.Items {
			if b.take(it) {
				n++
			}
		}
		switch {
		case answer.More && string(answer.Next[:]) > string(after[:]):
			after = answer.Next
		case !answer.More && ask.Until != [16]byte{}:
			after = ask.Until
		default:
			return n, nil
		}
	}
	return n, nil
}

// askOffers asks one question, and waits a little where the peer is busy.
func (b *Board) askOffers(ctx context.Context, peer identity.PeerID, ask OffersAsk) (OffersAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, exchangeMax)
	defer cancel()
	for pause := time.Second; ; pause *= 2 {
		var answer OffersAnswer
		err := p2p.Call(ctx, b.net, peer, b.protocol(work.ProtoOffers), ask, &answer, maxAnswer)
		if err == nil && len(answer.Items) > max(pageSize, maxWant) {
			return OffersAnswer{}, p2p.Errorf(p2p.KindBadRequest, "a page of %d offers", len(answer.Items))
		}
		if err == nil {
			b.clocks.note(peer, time.UnixMilli(answer.Now), time.Now())
			return answer, nil
		}
		if p2p.KindOf(err) != p2p.KindBusy || !sleep(ctx, pause) {
			return OffersAnswer{}, err
		}
	}
}

// take checks an offer that a peer had in its book and puts it into ours, if the offer or the heartbeat beside it is fresh: nobody
// can revive a dead offer without its device's key. It reports whether the offer was news.
func (b *Board) take(it Item) bool {
	if len(it.Offer) > market.MaxOffer || len(it.Delegation) > market.MaxDelegation || len(it.Heartbeat) > market.MaxHeartbeat {
		return false
	}
	o, err := market.OpenSealedOffer(it.Offer, it.Delegation)
	if err != nil || o.Device == b.net.Self() || b.revoked(o.Header, it.Delegation) != nil {
		return false
	}
	now := time.Now()
	proof := o.Issued()
	var beat market.Heartbeat
	if len(it.Heartbeat) > 0 {
		beat, err = market.OpenHeartbeat(it.Heartbeat)
		if err != nil || beat.Device != o.Device || beat.Account != o.Account || beat.Offer != o.Prefix() {
			return false
		}
		proof = beat.Issued()
	}
	b.clocks.note(o.Device, proof, now)
	if !market.Fresh(proof, now) {
		b.stats.skewed.Add(1)
		return false
	}
	if len(it.Heartbeat) > 0 {
		r := b.book.PutBeating(o, beat, it.Heartbeat, now)
		return r == book.Added || r == book.Updated
	}
	r := b.book.Put(o, now)
	return r == book.Added || r == book.Updated
}

// syncWorker exchanges books with peers as they connect.
func (b *Board) syncWorker(ctx context.Context) error {
	for {
		peer, ok := b.syncs.next(ctx)
		if !ok {
			return nil
		}
		for try := 1; ; try++ {
			n, err := b.Sync(ctx, peer)
			if err == nil {
				b.log.Debug("offers exchanged", "peer", peer, "new", n)
				break
			}
			if try == syncTries || errors.Is(err, p2p.ErrUnreachable) || !sleep(ctx, syncPause*time.Duration(try)) {
				b.log.Debug("offers not exchanged", "peer", peer, "err", err)
				break
			}
		}
	}
}

// fetchQueue holds the offers that heartbeats named and the book lacks. Safe for concurrent use.
type fetchQueue struct {
	mu    *sync.Mutex
	asked map[[16]byte]time.Time // guarded by mu; when it was last wanted
	jobs  chan fetchJob
}

type fetchJob struct {
	from   identity.PeerID
	prefix [16]byte
}

const maxAsked = 4096 // remembered, so that one unknown offer is not asked for at every heartbeat

func newFetchQueue() fetchQueue {
	return fetchQueue{mu: &sync.Mutex{}, asked: map[[16]byte]time.Time{}, jobs: make(chan fetchJob, 64)}
}

// add queues a fetch unless the same was queued shortly before; it never waits, since the validator calls it.
func (q fetchQueue) add(from identity.PeerID, prefix [16]byte, now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if at, ok := q.asked[prefix]; ok && now.Sub(at) < refetch {
		return
	}
	if len(q.asked) >= maxAsked {
		clear(q.asked)
	}
	select {
	case q.jobs <- fetchJob{from, prefix}:
		q.asked[prefix] = now
	default:
	}
}

func (b *Board) fetchWorker(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case job := <-b.fetches.jobs:
			answer, err := b.askOffers(ctx, job.from, OffersAsk{Now: time.Now().UnixMilli(), Want: [][16]byte{job.prefix}})
			if err != nil {
				b.log.Debug("offer not fetched", "peer", job.from, "err", err)
				continue
			}
			for _, it := range answer.Items {
				b.take(it)
			}
		}
	}
}

// sleep waits for d; false if ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
