// Command gpucheck checks a machine's NVIDIA cards as they are, in a bounded time: it asks the driver for them, runs each kernel on the card
// and on the CPU and compares the results, measures each card with `gpufaird benchmark --device`, and writes what it saw as JSON and as text.
// It refuses to judge a rate: it writes down what was measured, what was not, and why.
//
//	make gpu-check                                  # builds what it needs in bin/ first
//	bin/gpucheck [-out FOLDER] [-profiles quick,standard,soak] [-limit 8m30s]
//
// It ends with 0 if all that was checked is right, and where there is no card; with 1 if something is wrong; with 2 on a wrong argument.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/gpufair/gpufair/benchmark"
	"github.com/gpufair/gpufair/benchmark/probe"
)

func main() {
	bin := flag.String("bin", "bin", "folder of gpufaird, gpu.test and emulation.so, as make gpu-check builds them")
	out := flag.String("out", "docs/benchmarks", "folder for the results: two files a card")
	profiles := flag.String("profiles", "quick,standard", "what to measure each card by; soak takes a -limit of 15m or more")
	limit := flag.Duration("limit", 8*time.Minute+30*time.Second, "how long all of it may take; what does not fit is left out, and said so")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	wanted, err := parse(*profiles)
	if err == nil && flag.NArg() > 0 {
		err = errors.New("it takes flags only")
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "gpucheck: arguments %q: %v\n  next: gpucheck -help\n", os.Args[1:], err)
		os.Exit(2)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, *limit, fmt.Errorf("the time of %v was used up", *limit))
	defer cancel()
	c := check{
		gpufaird: []string{filepath.Join(*bin, "gpufaird")}, kernels: []string{filepath.Join(*bin, "gpu.test")},
		emulation: filepath.Join(*bin, "emulation.so"), out: *out, profiles: wanted,
		patience: 2 * time.Minute, say: os.Stdout,
	}
	if err := c.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "gpucheck:", err)
		if errors.Is(err, errInterrupted) {
			os.Exit(130)
		}
		os.Exit(1)
	}
}

func parse(list string) (out []benchmark.Profile, err error) {
	for name := range strings.SplitSeq(list, ",") {
		p, err := benchmark.ParseProfile(name)
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, nil
}

// check is one run.
type check struct {
	gpufaird, kernels []string // argv's begin
	emulation         string   // the library of the kernels for the CPU
	out               string
	profiles          []benchmark.Profile
	patience          time.Duration // how long the comparison of one card with the CPU may take
	say               io.Writer
}

var (
	// errWrong says that something that was checked is not as it must be; what, has been said.
	errWrong = errors.New("something is wrong, see above")
	// errInterrupted says that a person stopped the check.
	errInterrupted = errors.New("interrupted; nothing was written")
)

func (c *check) run(ctx context.Context) error {
	found, err := probe.Detect(ctx, probe.Config{Command: append(c.gpufaird, "probe-child"), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return fmt.Errorf("look for cards: %w", err)
	}
	g := found.GPUs
	if p := g.Problem; p != nil {
		switch p.Code {
		case "no_library", "no_card":
			c.note("no card: nothing checked (%s)", p.Text)
			return nil
		}
		return fmt.Errorf("look for cards: %w", p)
	}
	records := make([]*record, len(g.Cards))
	for i, card := range g.Cards {
		c.note("card %d: %s, %d MiB, driver %s, CUDA %s", i, card.Name, card.MemoryMiB, g.Driver, g.CUDA)
		records[i] = newRecord(g, card)
		if card.Problem != nil {
			c.fail(records[i], "the card", card.Problem)
			continue
		}
		c.compare(ctx, records[i])
	}
	for _, p := range c.profiles { // the shorter of all cards before the longer of the first
		for i, r := range records {
			if r.Card.Problem == nil {
				c.measure(ctx, i, r, p)
			}
		}
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return errInterrupted
	}
	return c.finish(records)
}

func (c *check) note(format string, args ...any) { fmt.Fprintf(c.say, format+"\n", args...) }

// fail notes what is wrong with a card.
func (c *check) fail(r *record, what string, err error) {
	text := what + ": " + err.Error()
	if r.uuid != "" {
		text = strings.ReplaceAll(text, r.uuid, "UUID")
	}
	r.Wrong = append(r.Wrong, text)
	c.note("  WRONG %s", text)
}

// finish writes the files.
func (c *check) finish(records []*record) error {
	var errs []error
	names := map[string]int{}
	for _, r := range records {
		name := slug(r.Card.Name)
		if names[name]++; names[name] > 1 {
			name = fmt.Sprintf("%s-%d", name, names[name])
		}
		if err := r.write(filepath.Join(c.out, name)); err != nil {
			errs = append(errs, fmt.Errorf("write the results: %w", err))
			continue
		}
		c.note("written: %s.json and .md", filepath.Join(c.out, name))
		if len(r.Wrong) > 0 {
			errs = append(errs, fmt.Errorf("%s: %w", r.Card.Name, errWrong))
		}
	}
	return errors.Join(errs...)
}
