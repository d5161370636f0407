package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/renter/control/api"
)

// budget makes sure that there is one: it is asked for on a terminal; else an hour of the offer's price is the cap, and that is said.
func (a *app) budget(ctx context.Context, c api.Client, f *runFlags) error {
	if f.req.Budget != "" {
		return nil
	}
	o, err := likely(ctx, c, f.req)
	if err != nil {
		return err
	}
	switch {
	case f.req.Bid != "":
		o.Price = f.req.Bid
	case f.req.MaxPrice != "" && !f.req.Buy:
		o.Price = f.req.MaxPrice
	}
	amount, err := anHour(o, f.req.Devices)
	if err != nil {
		return err
	}
	f.req.Budget = amount.String()
	if !a.asks(*f) {
		a.Note("gpufair: no --budget: the job may cost %s %s, an hour of offer %s", f.req.Budget, o.Unit, o.ID)
		return nil
	}
	answer, err := a.Ask(ctx, fmt.Sprintf("The most that the job may cost, in %s (offer %s: %s an hour)", o.Unit, o.ID, o.Price), f.req.Budget, "--budget")
	if err != nil {
		return interruptedEarly(err)
	}
	f.req.Budget = answer
	return f.measures()
}

// likely is the offer that a run would take now.
func likely(ctx context.Context, c api.Client, req api.RunRequest) (api.Offer, error) {
	if req.Offer != "" {
		e, err := c.Offer(ctx, req.Offer)
		return e.Offer, explained("run", err)
	}
	found, err := c.Search(ctx, api.SearchRequest{Query: req.Query, Order: req.Order})
	if err != nil {
		return api.Offer{}, explained("run", err)
	}
	for _, o := range found.Offers {
		if o.Free >= req.Devices {
			return o, nil
		}
	}
	next := "gpufair search shows what there is"
	if !strings.Contains(req.Query, "kind") {
		next += "; only GPUs are looked for unless -q says kind=cpu"
	}
	return api.Offer{}, cli.Fail(cli.ExitNothing, fmt.Sprintf("run: no live offer matches %q with %s", req.Query, cli.Count(req.Devices, "free device")),
		errors.New(orElse(found.Note, "known: "+cli.Count(found.Known, "offer"))), next)
}

// anHour is what an hour of an offer costs, or its shortest term if that is longer.
func anHour(o api.Offer, devices int) (money.Micro, error) {
	rate, err := money.ParseRate(o.Price)
	if err != nil {
		return 0, fmt.Errorf("price of offer %s: %w", o.ID, err)
	}
	term := max(time.Hour, time.Duration(o.MinTerm)*time.Second)
	amount, err := money.Charge(rate, uint32(devices), uint64(term.Milliseconds()))
	if err != nil {
		return 0, fmt.Errorf("price of offer %s: %w", o.ID, err)
	}
	return amount, nil
}

// planOf asks what a run would buy.
func planOf(ctx context.Context, c api.Client, req api.RunRequest) (api.Plan, error) {
	req.DryRun = true
	var plan *api.Plan
	var failed *api.Failed
	err := c.Run(ctx, req, func(e api.RunEvent) error {
		if e.Plan != nil {
			plan = e.Plan
		}
		if e.Error != nil {
			failed = e.Error
		}
		return nil
	})
	switch {
	case failed != nil:
		return api.Plan{}, failure(failed)
	case err != nil:
		return api.Plan{}, explained("run", err)
	case plan == nil:
		return api.Plan{}, cli.Fail(cli.ExitRun, "run", errors.New("the agent made no plan"), "gpufair agent status")
	}
	return *plan, nil
}

// dryRun shows the plan as a result.
func (a *app) dryRun(ctx context.Context, c api.Client, req api.RunRequest) error {
	plan, err := planOf(ctx, c, req)
	if err != nil {
		return err
	}
	if a.JSON {
		return a.PrintJSON(plan)
	}
	for _, line := range planLines(plan, req) {
		if _, err := fmt.Fprintln(a.Out, line); err != nil {
			return err
		}
	}
	return nil
}

// confirm shows the plan and asks whether to pay for it. The offer that was shown is the one that is bought, unless quotes decide.
func (a *app) confirm(ctx context.Context, c api.Client, f *runFlags) error {
	plan, err := planOf(ctx, c, f.req)
	if err != nil {
		return interruptedEarly(err)
	}
	for _, line := range planLines(plan, f.req) {
		a.Note("%s", line)
	}
	ok, err := a.Confirm(ctx, "Buy it?", "--yes")
	if err != nil {
		return interruptedEarly(err)
	}
	if !ok {
		return &cli.Error{Code: cli.ExitInterrupted, What: "run: not bought, nothing is held"}
	}
	if !plan.Asks {
		f.req.Offer, f.req.Query, f.req.Order = plan.Offer.ID, "", ""
	}
	return nil
}

// interruptedEarly says what a Ctrl-C before the order means.
func interruptedEarly(err error) error {
	if !errors.Is(err, context.Canceled) {
		return err
	}
	return &cli.Error{Code: cli.ExitInterrupted, What: "run: stopped before anything was bought: nothing is held"}
}

// planLines is a plan for people.
func planLines(p api.Plan, req api.RunRequest) []string {
	o := p.Offer
	files := "image " + cli.Bytes(uint64(p.ImageBytes))
	if req.Input != "" {
		files += ", inputs " + cli.Bytes(uint64(p.InputBytes))
	}
	rows := [][2]string{
		{"offer", fmt.Sprintf("%s: %s at %s %s per device-hour, of %s", o.ID, modelOf(o), o.Price, o.Unit, shortAccount(o.Provider))},
		{"device", fmt.Sprintf("%d of %d free, with %s, %s RAM, %s disk each", o.Free, o.Devices, cli.Count(o.Cores, "core"), mib(o.MemoryMiB), mib(o.DiskMiB))},
		{"measured", measured(o, 4)},
		{"hold", fmt.Sprintf("%s %s, for the shortest term of %s", p.Hold, p.Unit, cli.Span(time.Duration(o.MinTerm)*time.Second))},
		{"budget", fmt.Sprintf("%s %s at the most, which %s", p.Budget, p.Unit, pays(p.BudgetEnds))},
		{"credit", "by the offer it lasts " + lasts(p.CreditEnds) + "; the owner may have set you another limit"},
		{"push", files},
		{"results", req.Output},
	}
	if p.Bid != "" {
		rows[0] = [2]string{"bid", fmt.Sprintf("%s %s per device-hour, sealed, for offer %s: %s of %s", p.Bid, o.Unit, o.ID, modelOf(o), shortAccount(o.Provider))}
		rows[3][1] += "; until the result more of your credit, so that it does not tell the bid"
	}
	if p.Asks {
		rows[0] = [2]string{"quotes", fmt.Sprintf("%s %s per device-hour at most, of the offers that match; now %s of %s, %s, comes first at %s", p.MaxPrice, o.Unit,
			o.ID, shortAccount(o.Provider), modelOf(o), o.Price)}
		rows[3][1] += "; less if less is quoted"
	}
	for _, w := range p.Warnings {
		rows = append(rows, [2]string{"beware", w})
	}
	lines := make([]string, len(rows))
	for i, r := range rows {
		lines[i] = fmt.Sprintf("  %-9s %s", r[0], cli.Clean(r[1]))
	}
	return lines
}

// pays is how long a budget pays, for people.
func pays(s float64) string {
	if text := lasts(s); text != forEver {
		return "pays for " + text
	}
	return "never runs out"
}

const forEver = "for ever"

// lasts is a number of seconds for people; what outlasts a century is without an end.
func lasts(s float64) string {
	if s > 100*365*24*3600 {
		return forEver
	}
	return cli.Span(seconds(s))
}
