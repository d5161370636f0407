package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/provider"
	"github.com/gpufair/gpufair/provider/control/api"
)

// Names of what earnings are sorted by.
const (
	byDay    = "day"
	byCard   = "card"
	byRenter = "renter"
)

// maxEarned bounds the entries that one question looks through: a lease that ticks every 10 s makes 8,640 a day.
const maxEarned = 5_000_000

// earning is one entry of income.
type earning struct {
	lane   ledger.Lane
	renter identity.AccountID
	unit   money.Unit
	at     time.Time
	amount int64 // negative: a credit
}

// earnings tells what was earned since a time, and what became of it.
func (d *daemon) earnings(ctx context.Context, since time.Time, by string) (api.Earnings, error) {
	var list []earning
	var unpaid map[ledger.Lane]books.Unpaid
	err := d.Books.View(ctx, func(r *books.Reader) (err error) {
		if list, err = incomes(r, since); err != nil {
			return err
		}
		unpaid, err = r.UnpaidLanes()
		return err
	})
	if err != nil {
		return api.Earnings{}, err
	}
	sold, err := d.agent.DevicesOf(ctx)
	if err != nil {
		return api.Earnings{}, err
	}
	out := api.Earnings{Since: since, By: by}
	out.Rows, out.Totals = earned(list, unpaid, sold, by)
	return out, nil
}

// incomes gives the entries of income since a time, the newest first.
func incomes(r *books.Reader, since time.Time) ([]earning, error) {
	size, err := r.Size()
	if err != nil {
		return nil, err
	}
	var out []earning
	for i := size; i > 0; i-- {
		if size-i >= maxEarned {
			return nil, fmt.Errorf("earnings: over %d entries since %s: ask for less", maxEarned, since.Format(time.DateOnly))
		}
		e, err := r.Entry(i - 1)
		if err != nil {
			return nil, err
		}
		at := time.UnixMilli(e.Time)
		if at.Before(since) {
			break
		}
		for _, p := range e.Postings {
			if p.Account.Kind == ledger.Income {
				out = append(out, earning{lane: e.Lane, renter: e.Peer, unit: p.Unit, at: at, amount: -p.Amount})
			}
		}
	}
	return out, nil
}

// sums are what a row adds up, in micro-units.
type sums struct {
	earned, open, lost int64
	lanes              map[ledger.Lane]bool
}

// rowKey is what a row is of.
type rowKey struct {
	key, name string
	unit      money.Unit
}

// earned sorts incomes, newest first, into rows, and says what became of each: the newest part of a lease is what is open, before it what
// is written off, and the rest is settled. A credit takes off what its lease earned last.
func earned(list []earning, unpaid map[ledger.Lane]books.Unpaid, sold map[market.LeaseID]provider.SoldDevices, by string) (rows, totals []api.Earned) {
	left := map[ledger.Lane]books.Unpaid{}
	credit := map[ledger.Lane]int64{}
	found := map[rowKey]*sums{}
	add := func(k rowKey, e earning, amount, open, lost int64) {
		if found[k] == nil {
			found[k] = &sums{lanes: map[ledger.Lane]bool{}}
		}
		s := found[k]
		s.earned, s.open, s.lost = s.earned+amount, s.open+open, s.lost+lost
		s.lanes[e.lane] = true
	}
	for _, e := range list {
		if e.amount < 0 {
			credit[e.lane] -= e.amount
			continue
		}
		off := min(credit[e.lane], e.amount)
		credit[e.lane] -= off
		amount := e.amount - off
		rest, seen := left[e.lane]
		if !seen {
			rest = unpaid[e.lane]
		}
		open := min(amount, int64(rest.Open))
		lost := min(amount-open, int64(rest.Lost))
		rest.Open, rest.Lost = rest.Open-money.Micro(open), rest.Lost-money.Micro(lost)
		left[e.lane] = rest
		add(rowKey{unit: e.unit}, e, amount, open, lost)
		k := rowKey{unit: e.unit}
		switch by {
		case byRenter:
			k.key = e.renter.String()
		case byCard:
			k.key, k.name = card(sold, e.lane)
		default:
			k.key = e.at.Local().Format(time.DateOnly)
		}
		add(k, e, amount, open, lost)
	}
	for k, s := range found {
		row := api.Earned{
			Key: k.key, Name: k.name, Unit: string(k.unit), Leases: len(s.lanes), Earned: amount(s.earned), Settled: amount(s.earned - s.open - s.lost),
			Open: amount(s.open), WrittenOff: amount(s.lost),
		}
		if k.key == "" {
			totals = append(totals, row)
		} else {
			rows = append(rows, row)
		}
	}
	order := func(a, b api.Earned) int { return cmp.Or(cmp.Compare(a.Unit, b.Unit), cmp.Compare(a.Key, b.Key)) }
	slices.SortFunc(rows, order)
	slices.SortFunc(totals, order)
	return rows, totals
}

func amount(micro int64) string { return ledger.Positive(micro).String() }

// card names the devices of a lease: those of one lease are one card's row, or a row of several that were rented together.
func card(sold map[market.LeaseID]provider.SoldDevices, lane ledger.Lane) (key, name string) {
	s, ok := sold[market.LeaseID(lane)]
	if !ok {
		return "unknown", ""
	}
	for i, d := range s.Devices {
		if i > 0 {
			key += "+"
		}
		key += d.String()
	}
	return key, s.Model
}
