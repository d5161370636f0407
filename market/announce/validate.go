package announce

import (
	"context"
	"time"

	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/book"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
)

// validate judges a gossip message and, if it is good, puts it into the book. The order is the spec's (p2p, section 5, Anti-spam):
// size, topic (one validator serves one), rate of the forwarder, sequence and expiry, signature, rate of the signer. So a signature
// is only checked for news, and a forged id cannot empty its victim's bucket.
func (b *Board) validate(_ context.Context, from identity.PeerID, data []byte) p2p.Verdict {
	if from == b.net.Self() {
		return p2p.Accept // the publisher made it and has put it into the book
	}
	now := time.Now()
	if len(data) > MaxMessage {
		b.stats.rejected.Add(1)
		return p2p.Reject
	}
	if !b.rates.forwarder(from, now) {
		b.stats.limited.Add(1)
		return p2p.Ignore
	}
	m, err := DecodeMessage(data)
	if err != nil {
		b.stats.rejected.Add(1)
		return p2p.Reject
	}
	a, err := peek(m)
	if err != nil {
		b.stats.rejected.Add(1)
		return p2p.Reject
	}
	if a.device == b.net.Self() || b.old(a, m.Kind, now) {
		b.stats.stale.Add(1)
		return p2p.Ignore
	}
	if !market.Fresh(a.issued, now) {
		if a.open(m) == nil { // only a true signer's clock counts
			b.clocks.note(a.device, a.issued, now)
		}
		b.stats.skewed.Add(1)
		return p2p.Ignore
	}
	if a.open(m) != nil {
		b.stats.rejected.Add(1)
		return p2p.Reject
	}
	if !b.rates.signer(a.device, m.Kind, now) {
		b.stats.limited.Add(1)
		return p2p.Ignore
	}
	b.clocks.note(a.device, a.issued, now)
	if m.Kind == KindOffer && b.revoked(a.offer.Header, m.Delegation) != nil {
		b.stats.stale.Add(1)
		return p2p.Ignore // whoever forwards it may not have heard of it
	}
	return b.keep(a, m, from, now)
}

// advert is what a message says, first unverified for the cheap checks, then opened.
type advert struct {
	device identity.PeerID
	seq    uint64
	issued time.Time

	offer market.SealedOffer
	beat  market.Heartbeat
	tomb  market.Tombstone
}

func peek(m Message) (advert, error) {
	switch m.Kind {
	case KindOffer:
		o, err := identity.PeekAdvert[market.Offer](market.DomainOffer, m.Envelope)
		return advert{device: o.Device, seq: o.Seq, issued: o.Issued()}, err
	case KindHeartbeat:
		h, err := identity.PeekAdvert[market.Heartbeat](market.DomainHeartbeat, m.Envelope)
		return advert{device: h.Device, seq: h.Seq, issued: h.Issued()}, err
	default:
		t, err := identity.PeekAdvert[market.Tombstone](market.DomainTombstone, m.Envelope)
		return advert{device: t.Device, seq: t.Seq, issued: t.Issued()}, err
	}
}

// old reports whether the advert brings no news, by its unverified sequence.
func (b *Board) old(a advert, kind Kind, now time.Time) bool {
	offer, beat := b.book.Seen(a.device, now)
	if kind == KindOffer {
		return a.seq <= offer
	}
	return a.seq <= beat
}

// open checks signatures and limits.
func (a *advert) open(m Message) (err error) {
	switch m.Kind {
	case KindOffer:
		a.offer, err = market.OpenSealedOffer(m.Envelope, m.Delegation)
	case KindHeartbeat:
		a.beat, err = market.OpenHeartbeat(m.Envelope)
	default:
		a.tomb, err = market.OpenTombstone(m.Envelope)
	}
	return err
}

// keep puts a checked advert into the book and says whether it is worth forwarding.
func (b *Board) keep(a advert, m Message, from identity.PeerID, now time.Time) p2p.Verdict {
	var r book.Result
	switch m.Kind {
	case KindOffer:
		r = b.book.Put(a.offer, now)
	case KindHeartbeat:
		if r = b.book.Heartbeat(a.beat, m.Envelope, now); r == book.Unknown {
			b.fetches.add(from, a.beat.Offer, now)
		}
	default:
		r = b.book.Tombstone(a.tomb, now)
	}
	switch r {
	case book.Stale:
		b.stats.stale.Add(1)
		return p2p.Ignore
	case book.WrongOwner:
		b.stats.rejected.Add(1)
		return p2p.Reject
	}
	b.stats.accepted.Add(1)
	return p2p.Accept
}
