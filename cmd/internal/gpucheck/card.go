package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/gpufair/gpufair/benchmark"
)

// kernelsEnv tells the test program of benchmark/gpu to compare a card with the CPU, for which it has the inside of the package.
const kernelsEnv = "GPUFAIR_TEST_GPU"

// grace is how long a program may take to give the card back when the time is up: one that is killed can freeze the card.
const grace = 15 * time.Second

// needs is the time without which a profile is not begun: 19 figures of a second's warm-up and a series or three, and the sustained load.
func needs(p benchmark.Profile) time.Duration {
	if p == benchmark.Quick {
		return time.Minute
	}
	return 2*time.Minute + p.Sustained()
}

// call runs a program until it ends by itself or the time is up, and gives its standard output to read, which it must take to its end.
func (c *check) call(ctx context.Context, env []string, argv []string, read func(out io.Reader) error) error {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = grace
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return cmp.Or(context.Cause(ctx), err) // it is not started once the time is up
	}
	unread := read(out)
	_, _ = io.Copy(io.Discard, out) // what follows a line that can't be read; the end of the program tells the rest
	err = cmd.Wait()
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(said.String()))
	}
	return unread
}

// lines reads JSON objects.
func lines[T any](out io.Reader, each func(T)) error {
	d := json.NewDecoder(out)
	for {
		var v T
		switch err := d.Decode(&v); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("read an answer: %w", err)
		}
		each(v)
	}
}

// kernel is how far a kernel's result on the card is from that on the CPU (benchmark/gpu, compare_test.go).
type kernel struct {
	Name   string  `json:"kernel"`
	Worst  float64 `json:"worst"`
	Limit  float64 `json:"limit"`
	Wrong  bool    `json:"wrong,omitempty"`
	Absent bool    `json:"absent,omitempty"`
}

// compare runs the kernels on the card and on the CPU.
func (c *check) compare(ctx context.Context, r *record) {
	const what = "kernels against the CPU"
	ctx, cancel := context.WithTimeoutCause(ctx, c.patience, fmt.Errorf("it took more than %v", c.patience))
	defer cancel()
	err := c.call(ctx, []string{kernelsEnv + "=compare " + r.uuid + " " + c.emulation}, c.kernels, func(out io.Reader) error {
		return lines(out, func(k kernel) { r.Kernels = append(r.Kernels, k) })
	})
	if err != nil {
		c.fail(r, what, err)
		return
	}
	right := 0
	for _, k := range r.Kernels {
		switch {
		case k.Wrong:
			c.fail(r, "kernel "+k.Name, fmt.Errorf("off by %.3g, %.3g is allowed", k.Worst, k.Limit))
		case !k.Absent:
			right++
		}
	}
	if right == 0 {
		c.fail(r, what, errors.New("none ran"))
		return
	}
	c.note("  %s: %d of %d agree", what, right, len(r.Kernels))
}

// measure measures a card by a profile, if the time is left for it.
func (c *check) measure(ctx context.Context, i int, r *record, p benchmark.Profile) {
	what := fmt.Sprintf("profile %s", p)
	if end, ok := ctx.Deadline(); ok && time.Until(end) < needs(p) {
		r.NotRun = append(r.NotRun, fmt.Sprintf("%s: it may take %v, and less was left; give a longer -limit", what, needs(p)))
		c.note("card %d: %s NOT RUN: it may take %v, and less is left; give a longer -limit", i, what, needs(p))
		return
	}
	c.note("card %d: %s …", i, what)
	var report *benchmark.Report
	argv := append(append([]string{}, c.gpufaird...), "benchmark", "--device", r.uuid, "--profile", string(p), "--json")
	err := c.call(ctx, nil, argv, func(out io.Reader) error {
		return lines(out, func(step struct {
			Report *benchmark.Report `json:"report"`
		},
		) {
			if step.Report != nil {
				report = step.Report
			}
		})
	})
	switch {
	case err != nil:
		c.fail(r, what, err)
	case report == nil:
		c.fail(r, what, errors.New("it ended without a report"))
	default:
		report.Device.Hash = [32]byte{} // it would tell which card of all there are
		r.Reports = append(r.Reports, *report)
		c.note("  %d figures in %v", len(report.Measurements), report.Finished.Sub(report.Started).Round(time.Second))
	}
}
