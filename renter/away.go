package renter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/meter"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/renter/control/api"
)

// MaxAway is the longest absence that an allowance is signed for.
const MaxAway = market.MaxTerm * time.Second

// Away signs an allowance for a job, so that it runs on while this side is not there (spec: ledger, Rules), and brings it to the provider.
// Errors: [ErrRequest], a [reason.Error] if the provider does not take it, [ErrSilent] if it does not answer: then it is brought later.
func (a *Agent) Away(ctx context.Context, id market.LeaseID, req api.AwayRequest) error {
	j := a.find(id)
	if j == nil {
		return refuse("job %s has ended already", id.Short())
	}
	span, most, err := awayFor(req.Seconds, req.Most)
	if err != nil {
		return err
	}
	if state := j.record().State; state != work.Running && state != work.Paused {
		return refuse("job %s is %s: there is nothing to pay for yet, or any more; run it with --away, or try again when it runs", id.Short(), state)
	}
	if err := j.allow(ctx, span, most); err != nil {
		return err
	}
	err = j.bringAllowance(ctx, func(q work.Ask) error { _, err := j.ask(ctx, q); return err })
	if err != nil && transient(err) && ctx.Err() == nil {
		return fmt.Errorf("job %s: %w: it gets the allowance when it does", id.Short(), ErrSilent)
	}
	return err
}

// awayFor reads what a person asks for; a most of 0 is as much as the time costs.
func awayFor(seconds int, amount string) (span time.Duration, most money.Micro, err error) {
	span = time.Duration(min(max(seconds, 0), int(MaxAway/time.Second)+1)) * time.Second
	if span < time.Minute || span > MaxAway {
		return 0, 0, refuse("an absence of %d s: want a minute to %d days", seconds, MaxAway/(24*time.Hour))
	}
	if amount == "" {
		return span, 0, nil
	}
	if most, err = money.Parse(amount); err != nil || most == 0 {
		return 0, 0, refuse("an allowance of %q: want an amount above 0, such as 0.5", amount)
	}
	return span, most, nil
}

// allow signs an allowance for an absence that begins now, and stores it. It is within the budget; of what most leaves open it takes what the
// provider's credit allows, and more than that is refused, since the provider would refuse it, too.
func (j *job) allow(ctx context.Context, span time.Duration, most money.Micro) error {
	room, err := j.a.creditWith(ctx, j.offer)
	if err != nil {
		return err
	}
	costs, err := money.Charge(j.accept.Rate, j.accept.Quantity, uint64(span/time.Millisecond))
	if err != nil {
		return refuse("%v costs more than there is: %v", span, err)
	}
	until := time.Now().Add(span).UnixMilli()
	return j.update(ctx, func(*record) {}, func(tx *books.Tx, r *record) error {
		lane, err := tx.Lane(j.lane())
		if err != nil {
			return err
		}
		has := max(lane.Amount, r.Charge)
		free, err := money.Add(room, lane.Open()) // the lane's own part of the credit is used for it
		if err != nil {
			return err
		}
		free -= min(free, has-lane.Amount)
		if most > free {
			return reason.Errorf(reason.CreditLimit, "%v of the provider's credit is left, %v asked", free, most)
		}
		more := most
		if more == 0 {
			more = min(costs, free)
		}
		amount, err := money.Add(has, more)
		if err != nil {
			return err
		}
		amount, until = max(min(amount, r.Budget), lane.Allowed), max(until, lane.AllowedUntil)
		r.Allowance, err = tx.SignAllowance(j.lane(), amount, until)
		if errors.Is(err, voucher.ErrAllowance) {
			return refuse("nothing is left to allow: %v of the budget of %v is used, and %v of credit is left", has, r.Budget, free)
		}
		r.Allowed, r.AllowedUntil, r.AllowTold, r.AllowRefused = amount, until, false, nil
		return err
	})
}

// bringAllowance brings the stored allowance to the provider, once.
func (j *job) bringAllowance(ctx context.Context, ask func(work.Ask) error) error {
	rec := j.record()
	if rec.Allowance == nil || rec.AllowTold {
		return nil
	}
	err := ask(work.Ask{Action: work.ActAllow, Signed: rec.Allowance})
	why, refused := reason.Of(err)
	if err != nil && !refused {
		return err
	}
	return errors.Join(err, j.update(ctx, func(r *record) {
		if !refused {
			r.Taken, r.TakenUntil = max(r.Taken, rec.Allowed), max(r.TakenUntil, rec.AllowedUntil)
		}
		if string(r.Allowance) != string(rec.Allowance) {
			return // a later one is to be brought
		}
		if r.AllowTold = true; refused {
			why = why.Clean()
			r.AllowRefused, r.Allowed, r.AllowedUntil = &why, r.Taken, r.TakenUntil
		}
	}, nil))
}

// keepAllowance signs what the run asked for as soon as the job runs, and brings it; after a restart it goes on.
func (j *job) keepAllowance(ctx context.Context) {
	for ctx.Err() == nil {
		j.mu.Lock()
		news := j.news
		j.mu.Unlock()
		rec := j.record()
		if rec.Away > 0 && rec.Allowance == nil && rec.State == work.Running {
			err := j.allow(ctx, time.Duration(rec.Away)*time.Second, rec.AwayMost)
			if why, ok := reason.Of(err); ok || errors.Is(err, ErrRequest) {
				if !ok {
					why = reason.New(reason.CreditLimit, "%v", err)
				}
				err = j.update(ctx, func(r *record) { r.Away, r.AllowRefused = 0, &why }, nil)
			}
			if err != nil {
				j.log.Warn("allowance not signed", "err", err)
			}
		}
		err := j.bringAllowance(ctx, func(q work.Ask) error { _, err := j.askAgain(ctx, q); return err })
		if err != nil && ctx.Err() == nil {
			j.log.Warn("allowance not taken", "err", err)
		}
		select {
		case <-ctx.Done():
		case <-news:
		}
	}
}

// unseen is how much of a silence this side's own meter counts, in milliseconds: at most maxUnseen, or what an allowance lets run, by its
// time, its amount and the term, whichever is less.
func (j *job) unseen(silence uint64) uint64 {
	rec, began := j.record(), time.Now().Add(-time.Duration(min(silence, 1<<40))*time.Millisecond)
	return min(silence, max(maxUnseen, j.covered(rec.Allowed, rec.AllowedUntil, j.meter.Billable(), began)))
}

// covered is how long a job that ran for own milliseconds may run from a time on under an allowance, in milliseconds.
func (j *job) covered(allowed money.Micro, until int64, own uint64, from time.Time) uint64 {
	charge, err := money.Charge(j.accept.Rate, j.accept.Quantity, own)
	if err != nil || allowed <= charge {
		return 0
	}
	left := max(time.UnixMilli(until).Sub(from), 0)
	pays := money.Lasts(allowed-charge, j.accept.Rate, j.accept.Quantity)
	term := uint64(j.accept.Term) * 1000
	return min(uint64(left/time.Millisecond), uint64(pays/time.Millisecond), term-min(term, own))
}

// patience is how long a silent provider is waited for: an absence that it took an allowance for is none of its.
func (j *job) patience(rec record, silent time.Duration, own uint64) time.Duration {
	return j.a.conf.GiveUp + time.Duration(j.covered(rec.Taken, rec.TakenUntil, own, time.Now().Add(-silent)))*time.Millisecond
}

// most is the most that the lane can still come to when it is given up and the provider has not said what ran meanwhile: what was allowed,
// as far as this side's own measure bears it out.
func (j *job) most(rec record) (money.Micro, error) {
	if rec.End != nil || rec.Lease == nil || rec.Allowed == 0 {
		return 0, nil
	}
	if j.meter.State() == meter.Running {
		if err := j.measure(work.Running); err != nil {
			return 0, err
		}
	}
	charge, err := j.meter.Charge()
	return min(rec.due(charge), rec.Allowed, rec.Budget), err
}

// payAllowed signs for what ran under an allowance, when the provider's end comes after this side gave the lease up.
func payAllowed(tx *books.Tx, r *record, lane books.Lane, end market.End) error {
	segments := []meter.Segment{{Rate: lane.Rate, Devices: lane.Devices, Ms: end.Billable}}
	charge, err := meter.Charge(segments)
	if err != nil {
		return err
	}
	amount := min(r.due(charge), end.Charge, r.Allowed, r.Budget, *lane.Final)
	if amount <= lane.Amount || unreceipted(lane) || lane.Frozen() {
		return nil
	}
	_, err = tx.SignVoucher(lane.Lane, amount, segments)
	r.Paid = amount
	return err
}

// awayOf is a job's allowance for people.
func awayOf(r record) *api.Away {
	if r.Allowance == nil && r.AllowRefused == nil {
		return nil
	}
	v := &api.Away{Told: r.AllowTold, Until: at(r.AllowedUntil)}
	if r.Allowed > 0 {
		v.Most = r.Allowed.String()
	}
	if r.AllowRefused != nil {
		v.Refused = r.AllowRefused.String()
	}
	return v
}
