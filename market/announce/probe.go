package announce

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/book"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
)

// ProbeWithin is how long [Board.ProbeAll] waits: a person is never shown an offer that has been dead for longer.
const ProbeWithin = 2 * time.Second

// Probe asks the provider of a device's offer in the book whether it still stands, and brings the book up to date. The entry is what
// the provider offers now, which may be a newer offer. A [reason.Error] of code offer_unknown says that it offers nothing any more;
// any other error that it did not answer.
func (b *Board) Probe(ctx context.Context, device identity.PeerID) (book.Entry, error) {
	e, ok := b.book.Get(device, time.Now())
	if !ok {
		return book.Entry{}, reason.Errorf(reason.OfferUnknown, "no live offer of device %s", device.Short())
	}
	if err := b.revoked(e.Header, e.DelegationRaw); err != nil { // heard of since the offer came
		b.book.Remove(device, time.Now())
		return book.Entry{}, reason.Errorf(reason.OfferUnknown, "%v", err)
	}
	if len(e.Addrs) > 0 {
		// An offer heard by gossip may be of a peer that we never met. Where this fails the call says so.
		_ = b.net.Connect(ctx, p2p.PeerAddr{Peer: device, Addrs: e.Addrs})
	}
	var answer ProbeAnswer
	err := p2p.Call(ctx, b.net, device, b.protocol(work.ProtoProbe), ProbeAsk{Offer: e.Prefix()}, &answer, maxProbe)
	if err != nil {
		return book.Entry{}, fmt.Errorf("probe device %s: %w", device.Short(), err)
	}
	if len(answer.Heartbeat) == 0 {
		b.book.Remove(device, time.Now())
		return book.Entry{}, reason.Errorf(reason.OfferUnknown, "device %s offers nothing now", device.Short())
	}
	if err := b.takeProbe(device, answer); err != nil {
		return book.Entry{}, fmt.Errorf("probe device %s: %w", device.Short(), err)
	}
	e, ok = b.book.Get(device, time.Now())
	if !ok {
		return book.Entry{}, reason.Errorf(reason.OfferExpired, "the offer of device %s lapsed", device.Short())
	}
	return e, nil
}

// takeProbe checks the answer and puts it into the book.
func (b *Board) takeProbe(device identity.PeerID, answer ProbeAnswer) error {
	now := time.Now()
	h, err := market.OpenHeartbeat(answer.Heartbeat)
	if err != nil {
		return err
	}
	if h.Device != device {
		return fmt.Errorf("it answered with a heartbeat of device %s: %w", h.Device.Short(), identity.ErrSigner)
	}
	b.clocks.note(device, h.Issued(), now)
	r := book.Unknown
	if len(answer.Offer) == 0 {
		r = b.book.Heartbeat(h, answer.Heartbeat, now)
	} else {
		o, err := market.OpenSealedOffer(answer.Offer, answer.Delegation)
		if err != nil {
			return err
		}
		if o.Device != device {
			return fmt.Errorf("it answered with the offer of device %s: %w", o.Device.Short(), identity.ErrSigner)
		}
		r = b.book.PutBeating(o, h, answer.Heartbeat, now)
	}
	if r == book.Unknown || r == book.WrongOwner || r == book.Full {
		return errors.New("its heartbeat is for an offer that it did not send")
	}
	return nil // stale: gossip was faster
}

// ProbeAll probes the devices of found at once, each once, for at most [ProbeWithin], and gives those lots that still stand, in order,
// as they are now. It leaves out who did not answer; the search may ask for more lots than it shows, so that a page stays full.
func (b *Board) ProbeAll(ctx context.Context, found []book.Found) []book.Found {
	ctx, cancel := context.WithTimeout(ctx, ProbeWithin)
	defer cancel()
	var mu sync.Mutex
	now := map[identity.PeerID]book.Entry{} // guarded by mu
	var wg sync.WaitGroup
	asked := map[identity.PeerID]bool{}
	for _, f := range found {
		if device := f.Entry.Device; !asked[device] {
			asked[device] = true
			wg.Go(func() {
				e, err := b.Probe(ctx, device)
				if err != nil {
					b.log.Debug("offer left out", "device", device, "err", err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				now[device] = e
			})
		}
	}
	wg.Wait()
	var out []book.Found
	for _, f := range found {
		e, ok := now[f.Entry.Device]
		if !ok {
			continue
		}
		if lot, ok := e.Current().Lot(f.Lot.ID); ok {
			out = append(out, book.FoundOf(e, lot))
		}
	}
	return out
}
