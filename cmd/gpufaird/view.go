package main

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/provider/control"
	"github.com/gpufair/gpufair/provider/control/api"
)

// maxToday bounds the entries that the first status of a day looks through: a lease that ticks every 10 s makes 8,640 a day.
const maxToday = 200_000

// income remembers what was earned on a day, so that a status reads new entries only.
type income struct {
	mu   sync.Mutex
	day  time.Time            // guarded by mu; its start
	size uint64               // guarded by mu; entries of the ledger that are in net
	net  map[money.Unit]int64 // guarded by mu
}

// money tells what the ledger knows for the status.
func (d *daemon) money(ctx context.Context) (out control.Ledger, err error) {
	err = d.Books.View(ctx, func(r *books.Reader) error {
		totals, err := r.Totals()
		if err != nil {
			return err
		}
		sums := map[money.Unit]money.Micro{}
		for _, t := range totals {
			if sums[t.Unit], err = money.Add(sums[t.Unit], t.OwedToMe); err != nil {
				return err
			}
		}
		out.Owed = amounts(sums)
		out.Today, err = d.income.since(r, startOfDay(time.Now()))
		return err
	})
	if err == nil {
		out.Warnings, err = d.Warnings(ctx, time.Now())
	}
	return out, err
}

func startOfDay(now time.Time) time.Time {
	return time.Date(now.Year(), now.Month(), now.Day(), 0, 0, 0, 0, now.Location())
}

// since adds up the income postings of the entries that are not older than a day's start.
func (c *income) since(r *books.Reader, day time.Time) ([]api.Amount, error) {
	size, err := r.Size()
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !day.Equal(c.day) || size < c.size {
		c.day, c.size, c.net = day, 0, map[money.Unit]int64{}
	}
	for i := size; i > c.size && size-i < maxToday; i-- {
		e, err := r.Entry(i - 1)
		if err != nil {
			c.day = time.Time{} // what was added so far is not all: begin again
			return nil, err
		}
		if time.UnixMilli(e.Time).Before(day) {
			break
		}
		for _, p := range e.Postings {
			if p.Account.Kind == ledger.Income {
				c.net[p.Unit] -= p.Amount // income is a credit
			}
		}
	}
	c.size = size
	sums := map[money.Unit]money.Micro{}
	for unit, amount := range c.net {
		sums[unit] = ledger.Positive(amount)
	}
	return amounts(sums), nil
}

func amounts(sums map[money.Unit]money.Micro) []api.Amount {
	out := []api.Amount{}
	for _, unit := range slices.Sorted(maps.Keys(sums)) {
		if sums[unit] > 0 {
			out = append(out, api.Amount{Unit: string(unit), Amount: sums[unit].String()})
		}
	}
	return out
}

// gauges are the provider's metrics; ctx is the daemon's.
func (d *daemon) gauges(ctx context.Context) {
	gauge := func(name, help string, f func(context.Context) float64) {
		d.Metrics.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "gpufair", Name: name, Help: help}, func() float64 {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			return f(ctx)
		}))
	}
	gauge("leases", "Leases that have not ended; -1 if the store does not answer.", func(ctx context.Context) float64 {
		list, err := d.agent.Leases(ctx, false)
		if err != nil {
			return -1
		}
		return float64(len(list))
	})
	gauge("own_lots", "Lots in the published offer; 0 if nothing is offered.", func(context.Context) float64 {
		return float64(len(d.agent.Offers().Lots))
	})
}
