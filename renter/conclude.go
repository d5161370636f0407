package renter

import (
	"context"
	"os"
	"time"

	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/renter/control/api"
)

// conclude ends the job in this side's books, whether the provider ended the lease or this side gives it up. The lane is closed for good
// in the transaction that makes the job final: a crash before it concludes again, after it nothing is left to do but to deliver.
func (j *job) conclude(ctx context.Context) error {
	if j.ending() && j.record().End == nil {
		if err := j.letGo(ctx); err != nil {
			return err
		}
	}
	j.land(ctx)
	c, err := j.finalClaim(j.record())
	if err != nil {
		return err
	}
	err = j.update(ctx, func(r *record) {
		r.Final, r.State, r.Metering = true, work.Ended, false
		if r.Ended == 0 {
			r.Ended = time.Now().UnixMilli()
		}
		if r.Results == "" || r.Results == resultsFetching {
			r.Results = resultsNone
		}
		if r.Release != nil && !r.Told {
			r.Deliver = true
		}
	}, func(tx *books.Tx, r *record) error { return j.closeLane(tx, r, c) })
	if err != nil {
		return err
	}
	j.dropResults()
	if j.record().Deliver {
		j.a.undelivered(j.offer.Device, j.id)
	}
	j.tell(api.RunEvent{Step: api.StepDone})
	return nil
}

// letGo signs the release and tells the provider, if it is there; else the signed record is delivered when it comes back.
func (j *job) letGo(ctx context.Context) error {
	rec := j.record()
	j.mu.Lock()
	why := *j.giveUp
	j.mu.Unlock()
	if rec.Bid != nil && !rec.Bid.Won { // nothing was sold: there is no lease to release
		return j.update(ctx, func(r *record) { r.State, r.Reason, r.Ended = work.Ended, why, time.Now().UnixMilli() }, nil)
	}
	if rec.Release == nil {
		dev := j.a.Device
		raw, err := dev.Seal(market.DomainRelease, market.Release{
			Header: dev.Header(market.Version), Delegation: dev.DelegationHash(), Lease: j.id, Beat: rec.Beat, Charge: rec.Charge, Reason: why.Clean(),
		})
		if err != nil {
			return err
		}
		err = j.update(ctx, func(r *record) {
			r.Release, r.State, r.Reason = raw, work.Ended, why
			if r.Ended == 0 {
				r.Ended = time.Now().UnixMilli()
			}
		}, nil)
		if err != nil {
			return err
		}
		rec = j.record()
	}
	if rec.Told {
		return nil
	}
	within, cancel := context.WithTimeout(ctx, work.Suspected*time.Second)
	defer cancel()
	status, err := j.ask(within, work.Ask{Action: work.ActRelease, Signed: rec.Release})
	for rec.Lease == nil && p2p.KindOf(err) == p2p.KindNotFound && within.Err() == nil {
		select {
		case <-within.Done():
		case <-time.After(saleAgain):
		}
		status, err = j.ask(within, work.Ask{Action: work.ActRelease, Signed: rec.Release}) // the sale may be under way at this moment
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	told := answered(err)
	if err != nil {
		j.log.Info("release not taken", "err", err, "later", !told && rec.Lease != nil)
	}
	return j.update(ctx, func(r *record) {
		r.Told = told || r.Lease == nil // an order that nobody answered was never acknowledged, and is withdrawn by itself
		takeEnd(r, status, err)
	}, nil)
}

// saleAgain is the pause before asking again about an order that the provider may be selling just now.
const saleAgain = 200 * time.Millisecond

// answered reports whether the provider gave its last word on a question: an answer, or a refusal that another try meets too.
func answered(err error) bool { return err == nil || !transient(err) }

// takeEnd takes a signed end out of the answer to a release; it can only lower what is owed.
func takeEnd(r *record, s work.Status, err error) {
	if err == nil && r.Lease != nil && s.State == work.Ended && len(s.End) > 0 && checkEnd(*r, s.End) == nil {
		r.End = s.End
		if r.Exit == nil && s.Exit != nil && len(s.Exit.Signal) <= maxSignal {
			r.Exit = s.Exit
		}
	}
}

// dropResults frees what was fetched, unless it is kept for a folder to come.
func (j *job) dropResults() {
	if j.record().Results == resultsKept {
		return
	}
	if err := os.RemoveAll(j.a.resultsDir(j.id)); err != nil {
		j.log.Warn("fetched results not dropped", "err", err)
	}
}
