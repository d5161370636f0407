package announce

import (
	"context"
	"maps"
	"time"

	"github.com/gpufair/gpufair/p2p/identity"
)

const (
	listenEvery = 5 * time.Second // a third of the shortest heartbeat: a silent offer is asked after twice before it is taken for dead
	goneEvery   = time.Minute     // between exchanges with a peer whose offer is gone
	goneTries   = 10              // after so many it has stopped selling
)

// seller is a connected peer of which the book holds an offer, or held one.
type seller struct {
	next time.Time // when it may be asked again
	gone int       // exchanges since its offer went
}

type sellers map[identity.PeerID]seller

// askSilent makes the offers of connected peers independent of gossip, whose paths can break while connections hold: a peer unheard for
// one and a half heartbeats is probed, once per heartbeat; one whose offer is gone even so is asked for its book a few times.
func (b *Board) askSilent(known sellers, now time.Time) {
	up := map[identity.PeerID]bool{}
	for _, p := range b.net.Peers() {
		up[p.Peer] = true
		s, met := known[p.Peer]
		e, offers := b.book.Get(p.Peer, now)
		beat := time.Duration(e.Heartbeat) * time.Second
		switch {
		case offers:
			s.gone = 0
			if now.Sub(e.Heard) > beat*3/2 && !now.Before(s.next) {
				s.next = now.Add(beat)
				b.probes.add(p.Peer)
			}
			known[p.Peer] = s
		case met && s.gone < goneTries && !now.Before(s.next):
			s.gone, s.next = s.gone+1, now.Add(goneEvery)
			known[p.Peer] = s
			b.syncs.add(p.Peer)
		}
	}
	maps.DeleteFunc(known, func(p identity.PeerID, _ seller) bool { return !up[p] })
}

// probeWorker asks silent peers whether their offers still stand; a heartbeat in the answer keeps the offer in the book.
func (b *Board) probeWorker(ctx context.Context) error {
	const patience = 10 * time.Second // within a heartbeat; a busy line is slow, and no person waits
	for {
		device, ok := b.probes.next(ctx)
		if !ok {
			return nil
		}
		probeCtx, cancel := context.WithTimeout(ctx, patience)
		_, err := b.Probe(probeCtx, device)
		cancel()
		if err != nil {
			b.log.Debug("silent offer not confirmed", "device", device, "err", err)
		}
	}
}
