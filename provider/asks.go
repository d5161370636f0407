package provider

import (
	"context"
	"errors"

	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/negotiate"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/blob"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/tunnel"
	"github.com/gpufair/gpufair/p2p/wire"
	"github.com/gpufair/gpufair/provider/access"
)

// job answers what a renter asks about its lease.
func (a *Agent) job(ctx context.Context, from identity.PeerID, ask work.Ask) (work.Status, error) {
	if err := ask.Validate(); err != nil {
		return work.Status{}, p2p.Errorf(p2p.KindBadRequest, "%v", err)
	}
	k, err := a.keeperFor(ask.Lease, from)
	if err != nil {
		return a.finished(ctx, ask, from, err)
	}
	if err := k.before(ctx, ask); err != nil {
		return work.Status{}, toPeer(err)
	}
	var status work.Status
	err = k.do(ctx, func() error {
		if err := k.act(ctx, ask); err != nil {
			return err
		}
		status = k.status()
		return nil
	})
	if errors.Is(err, errGone) {
		return a.finished(ctx, ask, from, err)
	}
	if err == nil && status.State == work.Preparing {
		status.Missing, err = k.lackToPush(ctx)
	}
	return status, toPeer(err)
}

// before does what an ask needs that may take long, outside the keeper's goroutine.
func (k *keeper) before(ctx context.Context, ask work.Ask) error {
	switch ask.Action {
	case work.ActPrepare:
		return k.a.wantImage(k.id, ask.Spec.Image)
	case work.ActStart:
		push, pull, err := k.lack(ctx)
		switch {
		case err != nil:
		case len(push) > 0:
			err = reason.Errorf(reason.NotPreparing, "%d blobs of image and inputs are missing", len(push))
		case len(pull) > 0:
			if err = k.pull(ctx); err == nil {
				err = reason.Errorf(reason.NotPreparing, "%d blobs of the image are to come from its registry", len(pull))
			}
		}
		return err
	case work.ActSync:
		return k.sync(ctx)
	}
	return nil
}

// act does what a renter asks, in the keeper's goroutine.
func (k *keeper) act(ctx context.Context, ask work.Ask) error {
	ctx = context.WithoutCancel(ctx) // what is begun is finished, whether or not the renter waits for the answer
	run := k.a.ctx                   // of what goes on after the answer
	switch ask.Action {
	case work.ActReady:
		return k.ready(ctx, ask.Signed)
	case work.ActPrepare:
		return k.prepare(ctx, *ask.Spec)
	case work.ActStart:
		return k.start(run)
	case work.ActSignal:
		switch {
		case k.rec.State != work.Running && k.rec.State != work.Stopping:
			return reason.Errorf(reason.NotPreparing, "the lease is %s: no job hears a signal", k.rec.State)
		case !k.signal(run, ask.Signal, false):
			return p2p.Errorf(p2p.KindBusy, "%d calls of the runtime are waiting already", choresMax)
		}
		return nil
	case work.ActStop:
		k.stop(run, reason.New(reason.StoppedRenter, ""), k.stopWait())
		return nil
	case work.ActRelease:
		return k.release(run, ask.Signed)
	case work.ActAllow:
		return k.allow(ctx, ask.Signed)
	case work.ActFetched:
		if k.rec.State != work.Ended || !k.rec.Tidy {
			return reason.Errorf(reason.NotPreparing, "the lease is %s: its results are not complete", k.rec.State)
		}
		return k.update(ctx, func(r *record) { r.Fetched = true }, nil)
	case work.ActStatus, work.ActSync:
		return nil
	}
	return p2p.Errorf(p2p.KindBadRequest, "unknown action %d", ask.Action)
}

// finished answers about a lease whose keeper is gone: it ended and was wiped. A release caps its charge even then.
func (a *Agent) finished(ctx context.Context, ask work.Ask, from identity.PeerID, err error) (work.Status, error) {
	if ask.Action == work.ActRelease {
		if p2p.KindOf(err) == p2p.KindUnavailable {
			return work.Status{}, toPeer(err) // nothing can be written now; the renter asks again
		}
		if err := a.lateRelease(context.WithoutCancel(ctx), ask.Lease, from, ask.Signed); err != nil {
			return work.Status{}, toPeer(err)
		}
	}
	var rec record
	var ok bool
	viewErr := a.books.View(ctx, func(r *books.Reader) (err error) {
		rec, ok, err = kv.Load[record](r.Of(kv.Provider), leaseKey(ask.Lease))
		return err
	})
	switch {
	case viewErr != nil:
		return work.Status{}, viewErr
	case !ok || rec.State != work.Ended:
		return work.Status{}, toPeer(err)
	case rec.Peer != from:
		return work.Status{}, errNotYours
	}
	return work.Status{
		State: rec.State, Reason: rec.Reason, Progress: rec.Lost, Billable: rec.Billable, Charge: rec.Charge, End: rec.End, Exit: rec.Exit,
		LogBytes: rec.LogBytes, Complete: true, // outputs were wiped
	}, nil
}

// sync packs what /out holds while the job runs, not more often than [packing.sync] allows.
func (k *keeper) sync(ctx context.Context) error {
	s := k.look()
	if st := s.rec.State; st != work.Running && st != work.Paused && st != work.Stopping {
		return nil
	}
	h, err := k.results.sync(ctx, s.rec.Folders.Out)
	if err != nil {
		return err
	}
	return k.do(ctx, func() error {
		if !k.rec.Tidy {
			k.rec.Outputs = h // a snapshot: the pack at the end is what is stored
		}
		return nil
	})
}

// openLog finds a lease's output for its renter.
func (a *Agent) openLog(_ context.Context, peer identity.PeerID, lease wire.Hash) (tunnel.LogSource, error) {
	k, err := a.keeperFor(market.LeaseID(lease), peer)
	if err != nil {
		return nil, toPeer(err)
	}
	folders := k.look().rec.Folders
	if folders.State == "" {
		return nil, p2p.Errorf(p2p.KindNotFound, "the job has not started: there is no output yet")
	}
	return access.Open(logDir(folders), k.over), nil
}

// errNotYours says that a lease is another account's or device's.
var errNotYours = p2p.Errorf(p2p.KindForbidden, "the lease is not yours")

// keeperFor finds the keeper of a lease for the renter's device that bought it.
func (a *Agent) keeperFor(id market.LeaseID, peer identity.PeerID) (*keeper, error) {
	a.mu.Lock()
	k := a.keepers[id]
	a.mu.Unlock()
	if k == nil && a.books.ReadOnly() != nil {
		// Behind or damaged, the ledger may have lost the lease: the renter waits, as for a provider that is away.
		return nil, p2p.Errorf(p2p.KindUnavailable, "the provider's ledger is read-only: its owner must recover it before anything is said of lease %s",
			id.Short())
	}
	if k == nil {
		return nil, p2p.Errorf(p2p.KindNotFound, "no lease %s that has not ended", id.Short())
	}
	if k.accept.Device != peer {
		return nil, errNotYours
	}
	return k, nil
}

// toPeer is err as the other side may see it: refusals with their code.
func toPeer(err error) error {
	switch {
	case errors.Is(err, errGone):
		return p2p.Errorf(p2p.KindNotFound, "the lease is over")
	case isReason(err):
	case errors.Is(err, books.ErrReadOnly):
		err = reason.Errorf(reason.LedgerReadOnly, "the owner must recover the ledger first")
	case errors.Is(err, ErrImage):
		err = reason.Errorf(reason.ImageInvalid, "%v", err)
	case errors.Is(err, ErrUnavailable):
		err = reason.Errorf(reason.RuntimeDown, "the container runtime does not answer")
	case errors.Is(err, blob.ErrQuota):
		err = reason.Errorf(reason.DiskFull, "%v", err)
	}
	return negotiate.Refusal(err)
}
