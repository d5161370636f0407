package probe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"github.com/gpufair/gpufair/benchmark/suite"
)

// Limits of the child's stderr: enough for a library's complaint, not for a loop of it.
const (
	maxLogLine  = 1 << 10
	maxLogLines = 100
)

// Crash says that the child ended without an answer.
type Crash struct {
	Signal syscall.Signal // that ended it; 0 if it ended by itself
	Code   int            // its exit status, if no signal ended it
	Stderr string         // the last line it wrote there
}

// Error says how it ended and its last words.
func (c *Crash) Error() string {
	how := fmt.Sprintf("the probe ended with status %d", c.Code)
	if c.Signal != 0 {
		how = fmt.Sprintf("the probe was ended by signal %d (%s)", int(c.Signal), c.Signal)
	}
	if c.Stderr != "" {
		how += ": " + c.Stderr
	}
	return how
}

// conversation is what one child said.
type conversation struct {
	log    *slog.Logger
	on     func(suite.Progress)
	stop   context.CancelCauseFunc
	answer *event
	last   string // line of stderr
	logged int
}

// ask starts a child, gives it r and waits for its answer and its end. After limit, or when ctx ends, it is asked to end with SIGTERM
// and after the grace killed. One that even that does not end, since a driver holds it in the kernel, is left behind.
func ask(ctx context.Context, c Config, r request, limit time.Duration, on func(suite.Progress)) (*event, error) {
	if len(c.Command) == 0 {
		return nil, errors.New("start the probe: no command")
	}
	if c.Grace <= 0 {
		c.Grace = defaultGrace
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("%w: no answer after %s", ErrTimeout, limit))
	defer cancel()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	talk := &conversation{log: c.Log, stop: stop, on: func(p suite.Progress) {
		if on != nil && ctx.Err() == nil {
			on(p)
		}
	}}
	type end struct {
		answer *event
		err    error
	}
	e, ended := follow(ctx, c.Grace+killTime, func() end {
		answer, err := talk.hold(ctx, c, r)
		return end{answer, err}
	})
	if !ended {
		return nil, fmt.Errorf("%w; the probe hangs in the driver and can't be ended: reboot this machine", context.Cause(ctx))
	}
	return e.answer, e.err
}

// killTime is how long a killed process may take to end before it is left behind.
const killTime = 2 * time.Second

// follow does work in a goroutine and gives its result. When ctx ends it waits for patience more and then leaves the work behind.
func follow[T any](ctx context.Context, patience time.Duration, work func() T) (result T, ended bool) {
	done := make(chan T, 1)
	go func() { done <- work() }() // ends with the work: a process that is stuck in the kernel ends with the machine
	select {
	case result = <-done:
		return result, true
	case <-ctx.Done():
	}
	select {
	case result = <-done:
		return result, true
	case <-time.After(patience):
		return result, false
	}
}

// hold starts the child and waits for its end.
func (t *conversation) hold(ctx context.Context, c Config, r request) (*event, error) {
	// The kernel sends Pdeathsig when the *thread* that started the child ends, so it must live as long as the child.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	cmd := exec.CommandContext(ctx, c.Command[0], c.Command[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = c.Grace
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM, Setpgid: true} // own group: Ctrl-C at the daemon is not for it
	cmd.Stdout = &lines{limit: maxLine, take: t.hear}
	stderr := &lines{limit: maxLogLine, split: true, take: t.note}
	cmd.Stderr = stderr
	stdin, err := cmd.StdinPipe() // stays open until the child ended: its end tells the child that we died
	if err != nil {
		return nil, fmt.Errorf("start the probe: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the probe: %w", err)
	}
	if err := send(stdin, r); err != nil {
		t.stop(err)
	}
	err = cmd.Wait()
	if len(stderr.rest) > 0 {
		t.note(stderr.rest) // last words without an end of line
	}
	return t.outcome(ctx, err)
}

func send(w io.Writer, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = w.Write(append(b, '\n'))
	return err
}

// hear takes a line of stdout. One that is no event ends the child.
func (t *conversation) hear(line []byte) error {
	e, err := readEvent(line)
	if err == nil && t.answer != nil {
		err = fmt.Errorf("%w: it goes on after its answer", ErrGarbage)
	}
	if err != nil {
		t.answer = nil
		t.stop(err)
		return err
	}
	if e.Progress == nil {
		t.answer = &e
	} else {
		t.on(*e.Progress)
	}
	return nil
}

// note takes a line of stderr into the log.
func (t *conversation) note(line []byte) error {
	if len(line) == 0 {
		return nil
	}
	t.last = string(line)
	t.logged++
	switch {
	case t.logged <= maxLogLines:
		t.log.Warn("probe says", "line", t.last)
	case t.logged == maxLogLines+1:
		t.log.Warn("probe says more than fits the log", "lines", maxLogLines)
	}
	return nil
}

// outcome judges the end of the child. An answer stands even if the child failed afterwards, as drivers do when they are unloaded.
func (t *conversation) outcome(ctx context.Context, waited error) (*event, error) {
	if t.answer != nil {
		if waited != nil {
			t.log.Warn("probe failed after its answer", "err", waited)
		}
		switch {
		case t.answer.Failure == nil:
			return t.answer, nil
		case ctx.Err() != nil: // it failed because we ended it
			return nil, context.Cause(ctx)
		}
		return nil, t.answer.Failure
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	var exit *exec.ExitError
	switch {
	case errors.As(waited, &exit):
		crash := &Crash{Code: exit.ExitCode(), Stderr: t.last}
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			crash.Signal = status.Signal()
		}
		return nil, crash
	case waited != nil:
		return nil, fmt.Errorf("run the probe: %w", waited)
	}
	return nil, fmt.Errorf("%w: it ended without a word", ErrGarbage)
}
