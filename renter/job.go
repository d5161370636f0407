package renter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/meter"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p/blob"
	"github.com/gpufair/gpufair/renter/control/api"
)

// job is one lease on the renter's side, from the moment its order is stored. Its goroutines are all under run and end with it.
type job struct {
	a      *Agent
	id     market.LeaseID
	accept market.Accept
	offer  market.SealedOffer
	log    *slog.Logger
	files  *files    // image and inputs; the job has one of its users
	begun  time.Time // in this process

	writing sync.Mutex // one writer of rec at a time; held over the durable write, never taken by readers

	mu        sync.Mutex
	rec       record         // guarded by mu; as stored. Read it by record, which adds live
	live      live           // guarded by mu
	store     *blob.Store    // guarded by mu; results on their way; nil until they are needed
	step      api.RunEvent   // guarded by mu; what is being done
	status    work.Status    // guarded by mu; as the provider said last
	suspected bool           // guarded by mu
	lastBeat  time.Time      // guarded by mu
	ended     time.Time      // guarded by mu; when this process heard of the end
	news      chan struct{}  // guarded by mu; closed at each change
	logNews   chan struct{}  // guarded by mu; closed when output arrived
	logDone   bool           // guarded by mu; nothing more comes
	giveUp    *reason.Reason // guarded by mu; why the lease is being released
	finding   *reason.Reason // guarded by mu; what the provider's own records contradict
	stop      chan struct{}  // closed once giveUp is set

	// Of the lane's goroutine, and after it of the one that closes the job:
	meter   *meter.Meter
	ev      evidenced
	ticks   uint64 // the meter's clock: elapsed milliseconds, of each silence at most maxUnseen
	sampled uint64 // of Agent.clock, at the newest tick
}

// live is what changes too often to be stored each time: it goes to the store with the record's next change.
type live struct {
	beat     uint64      // last acknowledged
	charge   money.Micro // what this side agrees to of that beat's charge
	billable uint64      // milliseconds, as that beat claimed
	own      uint64      // milliseconds, by this side's meter
	log      uint64      // bytes of output
}

// maxUnseen is the most of a silence that this side's meter counts, in milliseconds: a job whose provider goes without vouchers is
// paused when 30 s of rent are unpaid, so no honest claim has more.
const maxUnseen = 1000 * (work.PauseUnpaid + 2*work.BeatInterval)

func (a *Agent) newJob(rec record, f *files) (*job, error) {
	accept, err := rec.order()
	if err != nil {
		return nil, err
	}
	offer, err := market.OpenSealedOffer(rec.Offer, rec.OfferProof)
	if err != nil {
		return nil, err
	}
	j := &job{
		a: a, id: rec.ID, accept: accept, offer: offer, log: a.Log.With("job", rec.ID.Short()), files: f, rec: rec, begun: time.Now(),
		live:     live{beat: rec.Beat, charge: rec.Charge, billable: rec.Billable},
		lastBeat: time.Now(), news: make(chan struct{}), logNews: make(chan struct{}), stop: make(chan struct{}),
		meter: meter.New(math.MaxUint64), sampled: a.clock(),
	}
	if rec.GivenUp == nil && rec.Release != nil {
		rec.GivenUp = &rec.Reason
	}
	if rec.GivenUp != nil { // an earlier process gave it up
		why := *rec.GivenUp
		j.giveUp = &why
		close(j.stop)
	}
	if rec.Meter == nil {
		return j, nil
	}
	if j.meter, err = meter.Decode(rec.Meter); err != nil {
		return nil, err
	}
	if rec.Metering { // the job may have run on while this side was away; this machine's own clock says how long at most
		j.ticks = j.unseen(uint64(max(time.Now().UnixMilli()-rec.Sampled, 0)))
		err = j.meter.Resume(0)
	}
	j.live.own = j.meter.Billable()
	return j, err
}

// record is a copy of the job's record as it is now.
func (j *job) record() record {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.now()
}

// now is the record with what is newer than the store. The caller holds mu.
func (j *job) now() record {
	r := j.rec
	r.Beat, r.Charge, r.Billable, r.LogOffset = j.live.beat, j.live.charge, j.live.billable, j.live.log
	return r
}

func (j *job) over() bool { return j.record().Final }

// update changes the record, together with what f writes, in one durable transaction. f may change the record, too.
func (j *job) update(ctx context.Context, change func(*record), f func(*books.Tx, *record) error) error {
	j.writing.Lock()
	defer j.writing.Unlock()
	var next record
	err := j.a.Books.Update(ctx, func(tx *books.Tx) error {
		next = j.record()
		change(&next)
		if f != nil {
			if err := f(tx, &next); err != nil {
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
	if next.State == work.Ended && j.ended.IsZero() {
		j.ended = time.Now()
	}
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
	defer j.closeFiles()
	err := j.drive(ctx)
	switch {
	case err == nil:
	case ctx.Err() != nil:
		j.log.Info("job goes on at its provider", "state", j.record().State)
	default: // the ledger can't be written: the next process goes on
		j.log.Error("job not concluded", "err", err)
	}
}

// drive takes the job through its steps; each is skipped if an earlier process did it.
func (j *job) drive(ctx context.Context) error {
	working, cancel := context.WithCancel(ctx) // ends when the lease is given up, too
	defer cancel()
	go func() { // ends with working
		select {
		case <-j.stop:
			cancel()
		case <-working.Done():
		}
	}()
	if err := j.obtain(ctx, working); err != nil {
		return err
	}
	if j.record().Lease != nil {
		if err := j.useLease(ctx, working); err != nil {
			return err
		}
	}
	return j.conclude(ctx)
}

// obtain gets the lease, at the offer's price or by the bid. Without one the job is given up; the error is ctx's.
func (j *job) obtain(ctx, working context.Context) error {
	var err error
	switch rec := j.record(); {
	case rec.Lease != nil || rec.State == work.Ended:
		return nil
	case rec.Bid != nil:
		err = j.win(ctx)
	case !j.ending():
		err = j.buy(working)
	}
	if err != nil && ctx.Err() != nil {
		return ctx.Err() // the next process asks what became of it
	}
	if err != nil {
		j.release(reasonOf(err))
	}
	return nil
}

// useLease runs the job under the lease until one side ends it, and brings home what it made.
func (j *job) useLease(ctx, working context.Context) error {
	var beside sync.WaitGroup
	defer beside.Wait()
	held, cancel := context.WithCancel(ctx)
	defer cancel() // before the wait
	j.a.Network.Protect(j.offer.Device, j.id.String())
	defer j.a.Network.Unprotect(j.offer.Device, j.id.String())
	beside.Go(func() { j.keepLane(held) })
	beside.Go(func() { j.keepWatch(held) })
	beside.Go(func() { j.keepLog(held) })
	beside.Go(func() { j.keepAllowance(held) })
	syncing, enough := context.WithCancel(working)
	defer enough()
	var synced sync.WaitGroup
	synced.Go(func() { j.keepResults(syncing) })
	if err := j.prepare(working); err != nil && ctx.Err() == nil && !j.ending() {
		j.log.Warn("job not started", "err", err)
		if !j.asksState(working) { // the provider may have ended it, for a better reason
			j.release(reasonOf(err))
		}
	}
	err := j.wait(ctx, func() bool { return j.ending() || j.complete() })
	enough()
	synced.Wait() // one at a time fetches results, and drops what it does not need
	if err != nil {
		return err
	}
	if !j.ending() {
		j.bringHome(working)
	}
	return ctx.Err()
}

// reasonOf is why a job could not go on, by the code of whoever refused it.
func reasonOf(err error) reason.Reason {
	if why, ok := reason.Of(err); ok {
		return why.Clean()
	}
	if unknown(err) && !errors.Is(err, blob.ErrNotFound) && !errors.Is(err, blob.ErrForbidden) {
		return reason.New(reason.ProviderGone, "the provider says that it has no such lease")
	}
	return reason.New(reason.StartFailed, "%v", err).Clean()
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

// complete reports whether the provider has ended the lease and packed its results.
func (j *job) complete() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.rec.State == work.Ended && j.status.Complete
}

// ending reports whether this side is giving the lease, or what is left of it, up.
func (j *job) ending() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.giveUp != nil
}

// release begins to give the lease up; the first reason counts. Of a lease that its provider ended, it gives up what is not home yet.
func (j *job) release(why reason.Reason) {
	j.mu.Lock()
	first := j.giveUp == nil
	if first {
		j.giveUp = &why
		close(j.stop)
	}
	j.mu.Unlock()
	if first {
		j.log.Info("giving the lease up", "reason", why.Code, "detail", why.Detail)
		j.changed()
	}
}

func (j *job) closeFiles() {
	j.files.drop()
	j.mu.Lock()
	store := j.store
	j.mu.Unlock()
	if store != nil {
		if err := store.Close(); err != nil {
			j.log.Warn("store of results", "err", err)
		}
	}
}

// lane names the job's lane in the ledger.
func (j *job) lane() ledger.Lane { return ledger.Lane(j.id) }

// channel names the account with the provider in the ledger.
func (j *job) channel() ledger.Channel { return j.a.Books.Channel(j.offer.Account, j.offer.Unit) }

// errBooks tells a fault of this side's ledger from one of the provider.
func errBooks(err error) bool {
	return errors.Is(err, books.ErrReadOnly) || errors.Is(err, books.ErrUnknownOutcome) || errors.Is(err, books.ErrClosed)
}
