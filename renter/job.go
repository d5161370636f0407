package renter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/meter"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/negotiate"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/blob"
	"github.com/gpufair/gpufair/renter/control/api"
)

// job is one lease on the renter's side, from the moment its order is stored. Its goroutines are all under run.
type job struct {
	a      *Agent
	id     market.LeaseID
	accept market.Accept
	offer  market.SealedOffer
	log    *slog.Logger

	writing sync.Mutex // one writer of rec at a time; held over the durable write, never taken by readers

	mu        sync.Mutex
	rec       record         // guarded by mu
	step      api.RunEvent   // guarded by mu; what is being done
	status    work.Status    // guarded by mu; as the provider said last
	suspected bool           // guarded by mu
	lastBeat  time.Time      // guarded by mu
	news      chan struct{}  // guarded by mu; closed at each change
	logNews   chan struct{}  // guarded by mu; closed when output arrived
	logDone   bool           // guarded by mu; nothing more comes
	giveUp    *reason.Reason // guarded by mu; why the lease is being released
	stop      chan struct{}  // closed once giveUp is set
	meter     *meter.Meter   // of the lane's goroutine
	image     Image          // of the driver; nil after a restart until it is needed
	inputs    *blob.Packed   // of the driver
}

func (a *Agent) newJob(rec record) (*job, error) {
	accept, err := market.OpenAccept(rec.Accept)
	if err != nil {
		return nil, err
	}
	offer, err := market.OpenSealedOffer(rec.Offer, rec.OfferProof)
	if err != nil {
		return nil, err
	}
	m := meter.New(uint64(a.conf.GiveUp/time.Millisecond) + 1000*work.BeatInterval)
	if rec.Meter != nil {
		if m, err = meter.Decode(rec.Meter); err != nil {
			return nil, err
		}
	}
	return &job{
		a: a, id: rec.ID, accept: accept, offer: offer, log: a.Log.With("job", rec.ID.Short()), rec: rec, meter: m, lastBeat: time.Now(),
		news: make(chan struct{}), logNews: make(chan struct{}), stop: make(chan struct{}),
	}, nil
}

// record is a copy of the job's record as it is now.
func (j *job) record() record {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.rec
}

func (j *job) over() bool { return j.record().Final }

// update changes the record, together with what f writes, in one durable transaction.
func (j *job) update(ctx context.Context, change func(*record), f func(*books.Tx) error) error {
	j.writing.Lock()
	defer j.writing.Unlock()
	next := j.record()
	change(&next)
	err := j.a.Books.Update(ctx, func(tx *books.Tx) error {
		if f != nil {
			if err := f(tx); err != nil {
				return err
			}
		}
		return kv.Save(tx.Of(kv.Renter), jobKey(j.id), next)
	})
	if err != nil {
		return fmt.Errorf("job %s: %w", j.id.Short(), err)
	}
	j.mu.Lock()
	j.rec = next
	j.mu.Unlock()
	j.changed()
	return nil
}

// changed wakes watchers.
func (j *job) changed() {
	j.mu.Lock()
	close(j.news)
	j.news = make(chan struct{})
	j.mu.Unlock()
	j.a.changed()
}

// tell says what is being done.
func (j *job) tell(e api.RunEvent) {
	j.mu.Lock()
	j.step = e
	j.mu.Unlock()
	j.changed()
}

// run drives the job to its end. It returns when the job is over, or when ctx ends and the job goes on at its provider.
func (j *job) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer j.closeFiles()
	err := j.drive(ctx)
	switch {
	case ctx.Err() != nil:
		j.log.Info("job goes on at its provider", "state", j.record().State)
	case err != nil:
		j.log.Warn("job failed", "err", err)
		j.fail(ctx, err)
	}
}

// drive takes the job through its steps; each is skipped if an earlier process did it.
func (j *job) drive(ctx context.Context) error {
	if j.record().Lease == nil {
		if err := j.buy(ctx); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var beside sync.WaitGroup
	defer beside.Wait()
	defer cancel() // before the wait
	j.a.Network.Protect(j.offer.Device, j.id.String())
	defer j.a.Network.Unprotect(j.offer.Device, j.id.String())
	beside.Go(func() { j.keepLane(ctx) })
	beside.Go(func() { j.keepLog(ctx) })
	beside.Go(func() { j.keepResults(ctx) })
	if err := j.prepare(ctx); err != nil && !j.ending() {
		return err
	}
	if err := j.wait(ctx, func() bool { return j.ending() || j.ended() }); err != nil {
		return err
	}
	return j.conclude(ctx)
}

// buy sends the stored order. A refusal ends the job; an order without an answer is given up, since the provider withdraws an
// unacknowledged lease unpaid.
func (j *job) buy(ctx context.Context) error {
	j.tell(api.RunEvent{Step: api.StepBuy})
	rec := j.record()
	p := negotiate.Purchase{ID: j.id, Offer: j.offer, Accept: j.accept, AcceptRaw: rec.Accept, VoucherRaw: rec.Voucher, Needs: rec.Needs}
	deal, err := negotiate.Buy(ctx, j.a.Network, j.a.conf.Network, j.a.Device, p)
	if err != nil {
		return err
	}
	err = j.update(ctx, func(r *record) { r.Lease, r.State = deal.LeaseRaw, work.Agreed }, func(tx *books.Tx) error {
		_, _, err := tx.KeepDelegation(deal.DelegationRaw)
		return err
	})
	if err != nil {
		return err
	}
	j.tell(api.RunEvent{Step: api.StepLease})
	return nil
}

// ask sends one question about the lease.
func (j *job) ask(ctx context.Context, q work.Ask) (work.Status, error) {
	q.Lease = j.id
	var status work.Status
	err := p2p.Call(ctx, j.a.Network, j.offer.Device, j.a.protocol(work.ProtoJob), q, &status, work.MaxMessage)
	return status, negotiate.Typed(err)
}

// askAgain is ask that goes on while the provider can't be reached, until the job is given up.
func (j *job) askAgain(ctx context.Context, q work.Ask) (work.Status, error) {
	for pause := 250 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		status, err := j.ask(ctx, q)
		if err == nil || !transient(err) {
			return status, err
		}
		select {
		case <-ctx.Done():
			return status, ctx.Err()
		case <-j.stop:
			return status, err
		case <-time.After(pause):
		}
	}
}

// transient reports whether another try may succeed: the line broke, or the provider is restarting.
func transient(err error) bool {
	if _, ok := reason.Of(err); ok {
		return false
	}
	var wired *p2p.Error
	if errors.As(err, &wired) {
		return wired.Kind == p2p.KindBusy || wired.Kind == p2p.KindTimeout || wired.Kind == p2p.KindUnavailable
	}
	return true
}

// wait returns when cond holds; it looks at each change of the job.
func (j *job) wait(ctx context.Context, cond func() bool) error {
	for {
		j.mu.Lock()
		news := j.news
		j.mu.Unlock()
		if cond() {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-news:
		}
	}
}

// ended reports whether the provider has ended the lease and packed its results.
func (j *job) ended() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.rec.State == work.Ended && j.status.Complete
}

// ending reports whether this side is releasing the lease.
func (j *job) ending() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.giveUp != nil
}

// release begins to give the lease up; the first reason counts.
func (j *job) release(why reason.Reason) {
	j.mu.Lock()
	first := j.giveUp == nil
	if first {
		j.giveUp = &why
		close(j.stop)
	}
	j.mu.Unlock()
	if first {
		j.log.Info("releasing the lease", "reason", why.Code)
		j.changed()
	}
}

// fail ends a job that could not go on: what is still held is let go of.
func (j *job) fail(ctx context.Context, err error) {
	why, ok := reason.Of(err)
	if !ok {
		why = reason.New(reason.StartFailed, "%v", err).Clean()
	}
	j.release(why)
	if cerr := j.conclude(ctx); cerr != nil && ctx.Err() == nil {
		j.log.Error("job not concluded", "err", cerr)
	}
}

func (j *job) closeFiles() {
	if j.image != nil {
		j.image.Close()
	}
	if j.inputs != nil {
		j.inputs.Close()
	}
}

// lane names the job's lane in the ledger.
func (j *job) lane() ledger.Lane { return ledger.Lane(j.id) }
