package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/pprof"
	"strings"
	"time"
)

// Grace is how long one part may take to stop before it is named: long enough for a last fsync on a slow disk, short enough for a
// person who waits, and well inside systemd's 90 s.
const Grace = 15 * time.Second

// Group is a process's parts: they start together in the order in which they were added, and stop in reverse, each after those that
// were added behind it and may need it have stopped. Fill it from one goroutine, then call Run once.
type Group struct {
	log   *slog.Logger
	parts []*part
}

type part struct {
	name   string
	run    func(context.Context) error
	cancel context.CancelFunc
	done   chan struct{}
	err    error // set before done is closed
}

// NewGroup makes an empty group that logs to log.
func NewGroup(log *slog.Logger) *Group { return &Group{log: log} }

// Go adds a part. Its run blocks until its context is cancelled and returns nil then.
func (g *Group) Go(name string, run func(context.Context) error) {
	g.parts = append(g.parts, &part{name: name, run: run, done: make(chan struct{})})
}

// errEnded is why a group stops when a part returns nil that nobody had asked to stop.
var errEnded = errors.New("ended by itself")

// Run starts all parts and blocks until ctx is cancelled or a part returns, which ends the group: a daemon without its API or its
// network must not look alive. Then it stops the parts in reverse. A part that still runs 15 s after its cancel is named in the log with the stacks of its
// goroutines, and left behind. Run returns what went wrong, or nil after a clean stop.
func (g *Group) Run(ctx context.Context) error {
	first := make(chan *part, len(g.parts))
	for _, p := range g.parts {
		var own context.Context
		own, p.cancel = context.WithCancel(context.WithoutCancel(ctx))
		go pprof.Do(own, pprof.Labels("part", p.name), func(own context.Context) {
			p.err = p.run(own)
			close(p.done)
			first <- p
		})
	}
	var early *part
	select {
	case <-ctx.Done():
	case early = <-first:
		g.log.Error("a part ended, stopping the others", "part", early.name, "err", or2(early.err, errEnded))
	}
	return g.stop(early)
}

func (g *Group) stop(early *part) error {
	var errs []error
	for i := len(g.parts) - 1; i >= 0; i-- {
		p := g.parts[i]
		asked := p != early
		p.cancel()
		grace := time.NewTimer(Grace)
		select {
		case <-p.done:
			grace.Stop()
		case <-grace.C:
			g.log.Error("a part does not stop, leaving it behind", "part", p.name, "after", Grace, "stacks", stacks(p.name))
			errs = append(errs, fmt.Errorf("stop %s: still running after %s", p.name, Grace))
			continue
		}
		switch {
		case p.err != nil && (!asked || !errors.Is(p.err, context.Canceled)):
			errs = append(errs, fmt.Errorf("%s: %w", p.name, p.err))
		case !asked:
			errs = append(errs, fmt.Errorf("%s: %w", p.name, errEnded))
		}
	}
	return errors.Join(errs...)
}

func or2(err, def error) error {
	if err != nil {
		return err
	}
	return def
}

// stacks is what the goroutines of a part are doing: the goroutine profile groups equal stacks and gives their labels.
func stacks(name string) string {
	var all bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&all, 1); err != nil {
		return "unknown: " + err.Error()
	}
	label := fmt.Sprintf(`"part":%q`, name)
	var of []string
	for block := range strings.SplitSeq(all.String(), "\n\n") {
		if strings.Contains(block, label) {
			of = append(of, block)
		}
	}
	return strings.Join(of, "\n\n")
}
