package renter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/settle"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/negotiate"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
)

// Deliveries are tried when the provider connects, and besides ever more seldom: a provider that never comes back costs one dial an hour.
const (
	deliverFirst = 15 * time.Second
	deliverMost  = time.Hour
)

// parcel is what a provider that was not there is to get: the releases of these jobs, and the newest vouchers.
type parcel struct {
	jobs  map[market.LeaseID]bool
	next  time.Time
	pause time.Duration
}

// undelivered remembers that a job's release or newest voucher has not arrived. The job's record says so, too, for the next process.
func (a *Agent) undelivered(peer identity.PeerID, id market.LeaseID) {
	a.mu.Lock()
	p := a.parcels[peer]
	if p == nil {
		p = &parcel{jobs: map[market.LeaseID]bool{}}
		a.parcels[peer] = p
	}
	p.jobs[id], p.next, p.pause = true, time.Time{}, deliverFirst
	a.mu.Unlock()
	a.wake()
}

// wake makes deliver look at once.
func (a *Agent) wake() {
	select {
	case a.nudge <- struct{}{}:
	default:
	}
}

// deliver brings releases and vouchers to their providers until ctx ends (spec: ledger, Rules: offline peer).
func (a *Agent) deliver(ctx context.Context) error {
	a.Network.Watch(ctx, func(peer identity.PeerID, up bool) {
		a.mu.Lock()
		p := a.parcels[peer]
		if p != nil && up {
			p.next = time.Time{}
		}
		a.mu.Unlock()
		if p != nil && up {
			a.wake()
		}
	})
	for {
		peer, ids, wait := a.nextParcel(time.Now())
		if ids != nil {
			if err := a.deliverTo(ctx, peer, ids); err != nil && ctx.Err() == nil {
				a.Log.Debug("not delivered yet", "peer", peer.Short(), "err", err)
			}
			continue
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-a.nudge:
			timer.Stop()
		case <-timer.C:
		}
	}
}

// nextParcel gives a parcel that is due, or how long none is. Its next try is planned, so that a failing one can't be tried at once again.
func (a *Agent) nextParcel(now time.Time) (identity.PeerID, []market.LeaseID, time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	wait := deliverMost
	for peer, p := range a.parcels {
		if d := p.next.Sub(now); d > 0 {
			wait = min(wait, d)
			continue
		}
		p.next, p.pause = now.Add(p.pause), min(2*p.pause, deliverMost)
		ids := make([]market.LeaseID, 0, len(p.jobs))
		for id := range p.jobs {
			ids = append(ids, id)
		}
		return peer, ids, 0
	}
	return identity.PeerID{}, nil, wait
}

// deliverTo brings one provider what is due to it.
func (a *Agent) deliverTo(ctx context.Context, peer identity.PeerID, ids []market.LeaseID) error {
	channels := map[ledger.Channel][]market.LeaseID{}
	for _, id := range ids {
		rec, ok, err := a.load(ctx, id)
		if err != nil {
			return err
		}
		if !ok || !rec.Deliver {
			a.delivered(peer, id)
			continue
		}
		if err := a.deliverRelease(ctx, rec); err != nil {
			return err
		}
		c := a.Books.Channel(rec.Provider, rec.Unit)
		channels[c] = append(channels[c], id)
	}
	for c, jobs := range channels {
		// A voucher that was not taken was heard all the same: its provider has lost the lane.
		if err := a.Deps.Settle.Exchange(ctx, peer, c); err != nil && !errors.Is(err, settle.ErrNotTaken) {
			return err
		}
		for _, id := range jobs {
			if err := a.change(ctx, id, func(_ *books.Tx, r *record) error { r.Deliver = false; return nil }); err != nil {
				return err
			}
			a.delivered(peer, id)
			a.Log.Info("delivered", "job", id.Short(), "peer", peer.Short())
		}
	}
	return nil
}

func (a *Agent) delivered(peer identity.PeerID, id market.LeaseID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if p := a.parcels[peer]; p != nil {
		delete(p.jobs, id)
		if len(p.jobs) == 0 {
			delete(a.parcels, peer)
		}
	}
}

// deliverRelease tells a provider of a release that it has not heard of; its end may lower what the lane owes.
func (a *Agent) deliverRelease(ctx context.Context, rec record) error {
	if rec.Release == nil || rec.Told {
		return nil
	}
	within, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	if o, err := market.OpenSealedOffer(rec.Offer, rec.OfferProof); err == nil && len(o.Addrs) > 0 {
		_ = a.Network.Connect(within, p2p.PeerAddr{Peer: rec.Peer, Addrs: o.Addrs}) // where this fails the call says so
	}
	var status work.Status
	q := work.Ask{Lease: rec.ID, Action: work.ActRelease, Signed: rec.Release}
	err := negotiate.Typed(p2p.Call(within, a.Network, rec.Peer, a.protocol(work.ProtoJob), q, &status, work.MaxMessage))
	if !answered(err) || ctx.Err() != nil {
		return fmt.Errorf("deliver release of job %s: %w", rec.ID.Short(), err)
	}
	return a.change(ctx, rec.ID, func(tx *books.Tx, r *record) error {
		r.Told = true
		takeEnd(r, status, err)
		if r.End == nil {
			return nil
		}
		end, err := market.OpenEnd(r.End)
		if err != nil {
			return err
		}
		lane, err := tx.Lane(ledger.Lane(r.ID))
		if err != nil || lane.Final == nil {
			return err
		}
		if end.Charge < *lane.Final {
			if lane, err = tx.CloseLane(lane.Lane, end.Charge); err != nil {
				return err
			}
		}
		return payAllowed(tx, r, lane, end)
	})
}

// load reads a stored job.
func (a *Agent) load(ctx context.Context, id market.LeaseID) (rec record, ok bool, err error) {
	err = a.Books.View(ctx, func(r *books.Reader) (err error) {
		rec, ok, err = kv.Load[record](r.Of(kv.Renter), jobKey(id))
		return err
	})
	return rec, ok, err
}

// change changes the record of a job that is over; of others the job itself does.
func (a *Agent) change(ctx context.Context, id market.LeaseID, f func(*books.Tx, *record) error) error {
	return a.Books.Update(ctx, func(tx *books.Tx) error {
		rec, ok, err := kv.Load[record](tx.Of(kv.Renter), jobKey(id))
		if err != nil || !ok || !rec.Final {
			return err
		}
		if err := f(tx, &rec); err != nil {
			return err
		}
		return kv.Save(tx.Of(kv.Renter), jobKey(id), rec)
	})
}
