package announce

import (
	"context"
	"fmt"
	"time"

	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/p2p/identity"
)

// publishOffer signs and spreads a full offer.
func (p *Publisher) publishOffer(ctx context.Context, o market.Offer) error {
	seq, err := p.nextSeq(ctx)
	if err != nil {
		return err
	}
	now := time.Now()
	raw, err := p.dev.Seal(market.DomainOffer, p.dress(o, seq, now))
	if err != nil {
		return err
	}
	sealed, err := market.OpenSealedOffer(raw, p.dev.Delegation())
	if err != nil {
		return fmt.Errorf("own offer: %w", err)
	}
	p.board.book.Put(sealed, now)
	p.mu.Lock()
	p.cur, p.told, p.free, p.last = &sealed, false, sealed.FreeBits(), beat{}
	p.offered, p.beaten, p.nextIn = now, now, p.interval(sealed)
	if len(p.kept) == keptOffers {
		p.kept = p.kept[1:]
	}
	p.kept = append(p.kept, sealed)
	p.mu.Unlock()
	select {
	case p.word <- struct{}{}:
	default:
	}
	peers, err := p.board.publish(ctx, Message{Kind: KindOffer, Envelope: raw, Delegation: p.dev.Delegation()})
	if err != nil {
		return err
	}
	p.mu.Lock()
	p.told = peers > 0
	p.mu.Unlock()
	return nil
}

func (p *Publisher) interval(o market.SealedOffer) time.Duration {
	return jitter(time.Duration(o.Heartbeat) * time.Second)
}

// publishBeat signs and spreads a heartbeat.
func (p *Publisher) publishBeat(ctx context.Context, free uint64) error {
	b, err := p.signBeat(ctx, free)
	if err != nil || b.raw == nil {
		return err
	}
	p.mu.Lock()
	p.free, p.beaten, p.nextIn = free, b.at, p.interval(b.of)
	p.mu.Unlock()
	peers, err := p.board.publish(ctx, Message{Kind: KindHeartbeat, Envelope: b.raw})
	if err != nil {
		return err
	}
	if peers == 0 {
		p.mu.Lock()
		p.told = false // whoever comes next knows nothing of us
		p.mu.Unlock()
	}
	return nil
}

// beat is a heartbeat of ours.
type beat struct {
	raw  []byte // nil: there is none
	of   market.SealedOffer
	free uint64
	at   time.Time
}

// signBeat signs a heartbeat of the current offer. It is put into our own book, from which we serve others.
func (p *Publisher) signBeat(ctx context.Context, free uint64) (beat, error) {
	seq, err := p.nextSeq(ctx)
	if err != nil {
		return beat{}, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cur == nil {
		return beat{}, nil
	}
	now := time.Now()
	h := market.Heartbeat{
		Header: p.dev.Header(market.Version), Seq: seq, IssuedAt: now.UnixMilli(), Offer: p.cur.Prefix(), Free: free,
	}
	raw, err := p.dev.Seal(market.DomainHeartbeat, h)
	if err != nil {
		return beat{}, err
	}
	p.board.book.Heartbeat(h, raw, now)
	p.last = beat{raw: raw, of: *p.cur, free: free, at: now}
	return p.last, nil
}

// withdraw spreads a tombstone, if something is published.
func (p *Publisher) withdraw(ctx context.Context) error {
	p.mu.Lock()
	cur := p.cur
	p.cur, p.last = nil, beat{}
	p.mu.Unlock()
	if cur == nil {
		return nil
	}
	seq, err := p.nextSeq(ctx)
	if err != nil {
		return err
	}
	now := time.Now()
	t := market.Tombstone{Header: p.dev.Header(market.Version), Seq: seq, IssuedAt: now.UnixMilli()}
	raw, err := p.dev.Seal(market.DomainTombstone, t)
	if err != nil {
		return err
	}
	p.board.book.Tombstone(t, now)
	_, err = p.board.publish(ctx, Message{Kind: KindTombstone, Envelope: raw})
	return err
}

// answerProbe says whether an offer of ours stands, with a heartbeat at most a second old.
func (p *Publisher) answerProbe(ctx context.Context, _ identity.PeerID, ask ProbeAsk) (ProbeAnswer, error) {
	p.mu.Lock()
	cur, want, last, free := p.cur, p.want, p.last, p.free
	p.mu.Unlock()
	if cur == nil || want == nil {
		return ProbeAnswer{}, nil
	}
	free = freeOf(*cur, *want, free)
	if last.raw == nil || last.free != free || time.Since(last.at) > freshBeat {
		var err error
		if last, err = p.signBeat(ctx, free); err != nil || last.raw == nil {
			return ProbeAnswer{}, err
		}
	}
	answer := ProbeAnswer{Heartbeat: last.raw}
	if last.of.Prefix() != ask.Offer {
		answer.Offer, answer.Delegation = last.of.Raw, last.of.DelegationRaw
	}
	return answer, nil
}
