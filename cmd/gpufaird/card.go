package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/gpufair/gpufair/benchmark"
	"github.com/gpufair/gpufair/benchmark/lock"
	"github.com/gpufair/gpufair/benchmark/probe"
	"github.com/gpufair/gpufair/benchmark/suite"
	"github.com/gpufair/gpufair/cmd/internal/cli"
)

// cardStep is a line of `benchmark --device UUID --json`: steps, then the report.
type cardStep struct {
	Progress *suite.Progress   `json:"progress,omitempty"`
	Report   *benchmark.Report `json:"report,omitempty"`
}

// measureCard measures a card in a child of this process, with or without a running daemon, and prints the report. It is not signed: cards
// are not offered yet.
func measureCard(ctx context.Context, p *cli.Program, child probe.Config, uuid, profile string) error {
	what := "measure card " + cli.Clean(uuid)
	chosen, err := benchmark.ParseProfile(profile)
	if err != nil {
		return cli.Fail(cli.ExitUsage, what, err, "gpufaird benchmark --help")
	}
	c := defaults()
	if err := cli.LoadConfig(p, &c); err != nil {
		return err
	}
	held, err := lock.Acquire(c.Locks, "gpufaird benchmark", []lock.Key{lock.GPUKey(uuid)})
	if err != nil {
		return cli.Fail(cli.ExitFailure, what, err, "one program at a time may measure a card")
	}
	report, err := probe.MeasureGPU(ctx, child, held, uuid, chosen, func(s suite.Progress) {
		switch {
		case p.JSON:
			p.PrintJSON(cardStep{Progress: &s})
		case p.ErrTTY:
			p.Note("%3.0f %%  %s: %s", 100*float64(s.Done)/float64(max(s.Total, 1)), s.Figure, s.Step)
		}
	})
	if err = errors.Join(err, held.Release()); err != nil {
		return cli.Fail(cli.ExitFailure, "measure", err, "gpufaird doctor says what is wrong with the driver and each card")
	}
	if p.JSON {
		return p.PrintJSON(cardStep{Report: &report})
	}
	return printCard(p, report)
}

// printCard is the report for people. "-" is what the card did not tell.
func printCard(p *cli.Program, r benchmark.Report) error {
	tab := p.Table("FIGURE", ">VALUE", ">P5", ">P95", ">SPREAD", ">MHZ", ">WATT", ">°C", "LINK", "SLOWED BY", "WORK")
	for _, m := range r.Measurements {
		info, _ := benchmark.Info(m.Figure)
		c := benchmark.Conditions{}
		if m.Conditions != nil {
			c = *m.Conditions
		}
		spread := m.Stats.Percent()
		if m.Stats.Unstable {
			spread += " unstable"
		}
		link := "-"
		if c.PCIeGen > 0 && c.PCIeWidth > 0 {
			link = fmt.Sprintf("gen %d x%d", c.PCIeGen, c.PCIeWidth)
		}
		tab.Row(m.Figure.String(), info.Format(m.Stats.Median), info.Format(m.Stats.P5), info.Format(m.Stats.P95), spread,
			told(c.SMClockMHz), told(c.PowerMW/1000), told(c.TempMaxC), link, (c.Reasons &^ benchmark.ReasonIdle).String(), m.Size)
	}
	if err := tab.Print(); err != nil {
		return err
	}
	for _, line := range remarks(r) {
		if _, err := fmt.Fprintln(p.Out, line); err != nil {
			return err
		}
	}
	return nil
}

func told(v uint32) string {
	if v == 0 {
		return "-"
	}
	return fmt.Sprint(v)
}

// throttles is the share of its short rate below which a card that is held under load is said to throttle (spec: gpu, 3).
const throttles = 0.85

// remarks are what the table does not say.
func remarks(r benchmark.Report) []string {
	out := []string{fmt.Sprintf("%s, driver %s, %s profile. Measured by this machine itself; not offered: cards are not offered yet.",
		cli.Clean(r.Device.Model), cli.Clean(r.Device.Driver), r.Profile)}
	for _, s := range r.Skipped {
		out = append(out, "not measured: "+cli.Clean(s))
	}
	for _, s := range r.Unread {
		out = append(out, "not told: "+cli.Clean(s))
	}
	for short, long := range map[benchmark.FigureID]benchmark.FigureID{
		benchmark.FigureBF16Matmul: benchmark.FigureBF16Sustained, benchmark.FigureFP32Matmul: benchmark.FigureFP32Sustained,
	} {
		a, b := figureOf(r, short), figureOf(r, long)
		if a == nil || b == nil || a.Stats.Median == 0 {
			continue
		}
		share := float64(b.Stats.Median) / float64(a.Stats.Median)
		line := fmt.Sprintf("held under load it kept %.0f %% of its short rate", 100*share)
		if share < throttles {
			why := "for a reason that the driver does not tell"
			if b.Conditions != nil && b.Conditions.Reasons&^benchmark.ReasonIdle != 0 {
				why = "by " + (b.Conditions.Reasons &^ benchmark.ReasonIdle).String()
			}
			line += ": it throttles, " + why
		}
		out = append(out, line)
	}
	return out
}

func figureOf(r benchmark.Report, id benchmark.FigureID) *benchmark.Measurement {
	i := slices.IndexFunc(r.Measurements, func(m benchmark.Measurement) bool { return m.Figure == id })
	if i < 0 {
		return nil
	}
	return &r.Measurements[i]
}
