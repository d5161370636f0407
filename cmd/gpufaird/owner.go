package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/cmd/internal/verbs"
	"github.com/gpufair/gpufair/provider/control/api"
)

// client is the owner's client of the running daemon.
func client(d *verbs.Daemon) (api.Client, error) {
	_, socket, err := d.Place()
	return api.New(socket), err
}

func statusCommand(p *cli.Program, d *verbs.Daemon) *cobra.Command {
	var watch, line bool
	c := &cobra.Command{
		Use: "status", Short: "how the daemon stands, at a glance",
		Long: "Exit codes: 0 serving or paused, 4 the daemon does not answer, 13 it runs, but can't serve, or lacks a device or\n" +
			"an account to serve (the warnings say which).",
		Example: "  gpufaird status\n  gpufaird status --line            # for a status bar\n  gpufaird status --watch --json    # an object at each change",
		RunE: func(cmd *cobra.Command, _ []string) error {
			show := func(s api.Status) error { return printStatus(p, s) }
			switch {
			case p.JSON:
				show = func(s api.Status) error { return p.PrintJSON(s) }
			case line:
				show = func(s api.Status) error { _, err := fmt.Fprintln(p.Out, cli.Clean(s.Line())); return err }
			}
			c, err := client(d)
			if err != nil {
				return err
			}
			if watch {
				ctx, stop := cli.Stop(cmd.Context())
				defer stop()
				err := c.Watch(ctx, show)
				if ctx.Err() != nil {
					return nil // the person has seen enough
				}
				return d.Explain("watch the daemon", err)
			}
			s, err := c.Status(cmd.Context())
			if err != nil {
				return d.Explain("ask the daemon", err)
			}
			if err := show(s); err != nil {
				return err
			}
			if s.State == api.Stuck || s.State == api.Idle {
				return cli.Status(cli.ExitUnhealthy)
			}
			return nil
		},
	}
	c.Flags().BoolVar(&watch, "watch", false, "go on printing it at each change, until Ctrl-C")
	c.Flags().BoolVar(&line, "line", false, "one line")
	return c
}

func printStatus(p *cli.Program, s api.Status) error {
	now := time.Now()
	colour := map[string]cli.Colour{api.Serving: cli.Good, api.Paused: cli.Warn, api.Starting: cli.Warn, api.Idle: cli.Warn, api.Stuck: cli.Bad}[s.State]
	state := p.Paint(colour, cli.Clean(s.State))
	if s.PausedUntil != nil {
		state += " until " + p.Time(*s.PausedUntil, now)
	}
	pairs := [][2]string{
		{"state", state},
		{"account", s.Account},
		{"network", cli.Clean(s.Network) + ", " + cli.Count(s.Peers, "peer")},
		{"up", cli.Ago(s.Since, now) + ", version " + cli.Clean(s.Version)},
		{"earned today", amountsText(s.Today)},
		{"owed", amountsText(s.Owed)},
	}
	for _, w := range s.Warnings {
		pairs = append(pairs, [2]string{"warning", p.Paint(cli.Warn, cli.Clean(w))})
	}
	if err := p.Pairs(pairs...); err != nil {
		return err
	}
	if len(s.Devices) > 0 {
		fmt.Fprintln(p.Out)
		if err := printDevices(p, s.Devices); err != nil {
			return err
		}
	}
	if len(s.Leases) > 0 {
		fmt.Fprintln(p.Out)
		return printLeases(p, s.Leases)
	}
	return nil
}

func amountsText(list []api.Amount) string {
	if len(list) == 0 {
		return "nothing"
	}
	parts := make([]string, len(list))
	for i, a := range list {
		parts[i] = a.Amount + " " + a.Unit
	}
	return strings.Join(parts, ", ")
}

func printDevices(p *cli.Program, list []api.Device) error {
	tab := p.Table("DEVICE", "KIND", "MODEL", "CORES", "STATE", ">PRICE", "FIGURES")
	for _, v := range list {
		state := cli.Cell{Text: v.State, Colour: map[string]cli.Colour{
			api.DeviceFree: cli.Good, api.DeviceLeased: cli.Bold, api.DeviceMeasuring: cli.Warn,
		}[v.State]}
		if v.Detail != "" {
			state.Text += ": " + v.Detail
		}
		price := "-"
		if v.Price != "" {
			price = v.Price + " " + v.Unit + "/h"
		}
		tab.Row(shortID(v.ID), v.Kind, v.Model, orDash(v.Cores), state, price, figuresText(v.Figures))
	}
	return tab.Print()
}

func figuresText(list []api.Figure) string {
	parts := make([]string, 0, 2)
	for _, f := range list[:min(2, len(list))] {
		parts = append(parts, f.Name+" "+f.Text)
	}
	return orDash(strings.Join(parts, ", "))
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func shortID(id string) string { return id[:min(12, len(id))] }

func pauseCommand(p *cli.Program, d *verbs.Daemon) *cobra.Command {
	return &cobra.Command{
		Use: "pause [DURATION]", Short: "stop renting out, now", Args: cobra.MaximumNArgs(1),
		Long: "No new leases, and every device is free within seconds: jobs that run are ended, and their renters get the reclaim credit of the\n" +
			"terms. Without a duration the pause lasts until `resume`, over restarts too.",
		Example: "  gpufaird pause\n  gpufaird pause 2h",
		RunE: func(cmd *cobra.Command, args []string) error {
			var span time.Duration
			if len(args) == 1 {
				var err error
				if span, err = cli.ParseDuration(args[0]); err != nil || span < time.Second {
					return cli.Usagef("give a time such as 30m, 2h or 1d", "pause for %q: not a time span of a second or more", cli.Clean(args[0]))
				}
			}
			c, err := client(d)
			if err != nil {
				return err
			}
			s, err := c.Pause(cmd.Context(), span)
			return printState(p, d, "pause", s, err)
		},
	}
}

func resumeCommand(p *cli.Program, d *verbs.Daemon) *cobra.Command {
	return &cobra.Command{
		Use: "resume", Short: "rent out again", Example: "  gpufaird resume",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := client(d)
			if err != nil {
				return err
			}
			s, err := c.Resume(cmd.Context())
			return printState(p, d, "resume", s, err)
		},
	}
}

func printState(p *cli.Program, d *verbs.Daemon, what string, s api.Status, err error) error {
	switch {
	case err != nil:
		return d.Explain(what, err)
	case p.JSON:
		return p.PrintJSON(s)
	}
	_, err = fmt.Fprintln(p.Out, cli.Clean(s.Line()))
	return err
}

func benchmarkCommand(p *cli.Program, d *verbs.Daemon) *cobra.Command {
	req, card := api.BenchmarkRequest{}, ""
	c := &cobra.Command{
		Use: "benchmark [DEVICE]", Short: "measure a device, or all that are free", Args: cobra.MaximumNArgs(1),
		Long: "While a device is measured nobody can lease it. The signed figures go into the offer.\n" +
			"Profiles: quick (under a minute), standard (some minutes, with a sustained load). With --json one object a step.\n" +
			"--device UUID measures an NVIDIA card (gpufaird doctor lists them; soak holds it under load for ten minutes) in a child of this\n" +
			"command, without the daemon. Its report is printed and not signed: cards are not offered yet.",
		Example: "  gpufaird benchmark\n  gpufaird benchmark 4f0c9a --profile standard\n  gpufaird benchmark --device GPU-5c1f0e6a-8d1f-4c2b-9c9e-0d6f3a7be8c1",
		RunE: func(cmd *cobra.Command, args []string) error {
			if card != "" {
				ctx, stop := cli.Stop(cmd.Context())
				defer stop()
				return measureCard(ctx, p, quietProbe(), card, req.Profile)
			}
			c, err := client(d)
			if err != nil {
				return err
			}
			if len(args) == 1 {
				if req.Device, err = deviceID(cmd.Context(), d, c, args[0]); err != nil {
					return err
				}
			}
			var failed error
			err = c.Benchmark(cmd.Context(), req, func(e api.BenchmarkEvent) error {
				if e.Error != "" {
					failed = cli.Fail(cli.ExitFailure, "measure device "+shortID(e.Device), fmt.Errorf("%s", cli.Clean(e.Error)), "gpufaird doctor says what is missing")
				}
				return printStep(p, e)
			})
			if err != nil {
				return d.Explain("measure", err)
			}
			return failed
		},
	}
	c.Flags().StringVar(&req.Profile, "profile", "quick", "quick or standard; soak for a card")
	c.Flags().StringVar(&card, "device", "", "measure the NVIDIA card of this UUID")
	return c
}

// deviceID finds a device by the start of its id.
func deviceID(ctx context.Context, d *verbs.Daemon, c api.Client, start string) (string, error) {
	list, err := c.Devices(ctx)
	if err != nil {
		return "", d.Explain("list devices", err)
	}
	var found []string
	for _, v := range list.Devices {
		if strings.HasPrefix(v.ID, start) {
			found = append(found, v.ID)
		}
	}
	if len(found) != 1 {
		return "", cli.Fail(cli.ExitNotFound, fmt.Sprintf("device %q", cli.Clean(start)), errors.New("fits "+cli.Count(len(found), "device")), "gpufaird status lists them")
	}
	return found[0], nil
}

// printStep shows a step: to people the figures at the end, and on a terminal what is going on.
func printStep(p *cli.Program, e api.BenchmarkEvent) error {
	switch {
	case p.JSON:
		return p.PrintJSON(e)
	case e.Error != "":
		return nil
	case e.Result == nil:
		if p.ErrTTY {
			p.Note("%s  %3.0f %%  %s", shortID(e.Device), 100*e.Done, cli.Clean(e.Step))
		}
		return nil
	}
	tab := p.Table("DEVICE", "FIGURE", "VALUE")
	for _, f := range e.Result.Figures {
		tab.Row(shortID(e.Device), f.Name, f.Text)
	}
	return tab.Print()
}

func offersCommand(p *cli.Program, d *verbs.Daemon) *cobra.Command {
	return &cobra.Command{
		Use: "offers", Short: "what is advertised now, and to whom", Example: "  gpufaird offers\n  gpufaird offers --json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := client(d)
			if err != nil {
				return err
			}
			o, err := c.Offers(cmd.Context())
			switch {
			case err != nil:
				return d.Explain("show the offer", err)
			case p.JSON:
				return p.PrintJSON(o)
			}
			return printOffers(p, o)
		},
	}
}

func printOffers(p *cli.Program, o api.Offers) error {
	if o.NotServed != "" {
		p.Note("nothing is offered: %s", cli.Clean(o.NotServed))
	}
	if len(o.Lots) == 0 {
		return nil
	}
	if o.Hash != "" {
		p.Note("offer %s, number %d, %d bytes, issued %s, for %s", shortID(o.Hash), o.Seq, o.Bytes, cli.Ago(o.IssuedAt, time.Now()),
			cli.Count(len(o.Accounts), "account"))
	}
	tab := p.Table(">LOT", "KIND", "MODEL", ">FREE", ">PRICE", "TERMS", "FIGURES")
	for _, l := range o.Lots {
		terms := cli.Span(time.Duration(l.MinTerm)*time.Second) + " to " + cli.Span(time.Duration(l.MaxTerm)*time.Second)
		tab.Row(l.ID, l.Kind, l.Model, fmt.Sprintf("%d/%d", l.Free, l.Devices), l.Price+" "+l.Unit+"/h", terms, figuresText(l.Figures))
	}
	return tab.Print()
}

func leasesCommand(p *cli.Program, d *verbs.Daemon) *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use: "leases", Short: "who has what, and what it has come to",
		Long: "With --json one lease a line.", Example: "  gpufaird leases\n  gpufaird leases --all\n  gpufaird leases show 3fa9\n  gpufaird leases stop 3fa9",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := client(d)
			if err != nil {
				return err
			}
			v, err := c.Leases(cmd.Context(), all)
			if err != nil {
				return d.Explain("list leases", err)
			}
			if !p.JSON {
				return printLeases(p, v.Leases)
			}
			for _, l := range v.Leases {
				if err := p.PrintJSON(l); err != nil {
					return err
				}
			}
			return nil
		},
	}
	c.Flags().BoolVar(&all, "all", false, "ended ones too")
	one := func(verb, short, long string, f func(context.Context, api.Client, string) (api.Lease, error)) *cobra.Command {
		return &cobra.Command{
			Use: verb + " LEASE", Short: short, Long: long, Args: cobra.ExactArgs(1), Example: "  gpufaird leases " + verb + " 3fa9",
			RunE: func(cmd *cobra.Command, args []string) error {
				c, err := client(d)
				if err != nil {
					return err
				}
				l, err := f(cmd.Context(), c, args[0])
				switch {
				case err != nil:
					return d.Explain(verb+" lease "+cli.Clean(args[0]), err)
				case p.JSON:
					return p.PrintJSON(l)
				}
				return printLease(p, l)
			},
		}
	}
	c.AddCommand(
		one("show", "one lease", "LEASE is the id or the start of it.", func(ctx context.Context, c api.Client, id string) (api.Lease, error) { return c.Lease(ctx, id) }),
		one("stop", "take a lease's devices back",
			"The job gets the notice of the terms, then it is ended; the renter gets the reclaim credit of the terms.",
			func(ctx context.Context, c api.Client, id string) (api.Lease, error) { return c.StopLease(ctx, id) }),
	)
	return c
}

func printLeases(p *cli.Program, list []api.Lease) error {
	now := time.Now()
	heads := []string{"LEASE", "STATE", "RENTER", "IMAGE", "AGREED", ">BILLED", ">CHARGE", ">SIGNED", "UNIT"}
	allowed := slices.ContainsFunc(list, func(l api.Lease) bool { return l.Away != nil })
	if allowed {
		heads = append(heads, "ALLOWED")
	}
	tab := p.Table(heads...)
	for _, l := range list {
		state := l.State
		if l.Reason != "" {
			state += ": " + l.Reason
		}
		billed := cli.Span(time.Duration(l.Seconds * float64(time.Second)))
		cells := []any{shortID(l.ID), state, shortID(l.Renter), orDash(l.Image), cli.Ago(l.Agreed, now), billed, l.Charge, l.Vouchered, l.Unit}
		if allowed {
			cells = append(cells, allowance(p, l, now))
		}
		tab.Row(cells...)
	}
	return tab.Print()
}

// allowance is what a renter allowed for its absence.
func allowance(p *cli.Program, l api.Lease, now time.Time) string {
	switch {
	case l.Away == nil:
		return "-"
	case l.Away.Over:
		return "over"
	}
	return "to " + l.Away.Most + " until " + p.Time(l.Away.Until, now)
}

func printLease(p *cli.Program, l api.Lease) error {
	now := time.Now()
	pairs := [][2]string{
		{"lease", l.ID},
		{"state", l.State},
		{"renter", l.Renter},
		{"peer", l.Peer},
		{"devices", strings.Join(l.Devices, ", ")},
		{"image", orDash(cli.Clean(l.Image))},
		{"command", orDash(cli.Clean(strings.Join(l.Command, " ")))},
		{"rate", l.Rate + " " + l.Unit + "/h"},
		{"agreed", p.Time(l.Agreed, now)},
		{"billed", cli.Span(time.Duration(l.Seconds * float64(time.Second)))},
		{"charge", l.Charge + " " + l.Unit},
		{"signed for", l.Vouchered + " " + l.Unit},
		{"in use", fmt.Sprintf("%.2f cores, %d MiB", l.CPU, l.MemoryMiB)},
	}
	if l.Away != nil {
		pairs = append(pairs, [2]string{"allowed", allowance(p, l, now)})
	}
	if l.Reason != "" {
		pairs = append(pairs, [2]string{"reason", cli.Clean(l.Reason + " " + l.Detail)})
	}
	if l.EndedAt != nil {
		pairs = append(pairs, [2]string{"ended", p.Time(*l.EndedAt, now)}, [2]string{"wiped", fmt.Sprint(l.Wiped)})
	}
	if t := l.Egress; t != nil {
		text := fmt.Sprintf("%v in, %v out, %s, %d refused", cli.Size(t.In), cli.Size(t.Out), cli.Count(int(t.Flows), "connection"), t.Refused)
		if t.Capped {
			text += ", the byte cap was reached"
		}
		pairs = append(pairs, [2]string{"internet", text})
	}
	if l.Exit != nil {
		pairs = append(pairs, [2]string{"exit", fmt.Sprintf("code %d %s", l.Exit.Code, l.Exit.Signal)})
	}
	return p.Pairs(pairs...)
}
