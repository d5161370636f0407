package rail

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"
)

// Limits of a run.
const (
	maxStdout = 64 << 10        // bytes; more ends the program
	maxStderr = 16 << 10        // bytes that are kept; the rest is thrown away
	grace     = 2 * time.Second // until the pipes of an ended program are closed, whoever else holds them

	// MinTimeout and MaxTimeout bound the time that a program may take; DefaultTimeout is what it has if nobody says.
	MinTimeout, DefaultTimeout, MaxTimeout = time.Second, 30 * time.Second, 10 * time.Minute

	// DefaultUser is as whom a daemon of root runs the program.
	DefaultUser = "nobody"

	exitLater = 75 // EX_TEMPFAIL (sysexits.h)
)

// Command is the program and how it runs. Safe for concurrent use.
type Command struct {
	Args    []string      // the program's absolute path and its arguments; no shell reads them
	User    string        // as whom, if this process is root's; empty: DefaultUser. Else it runs as this process does
	Timeout time.Duration // after which it is killed; 0: DefaultTimeout
	Env     []string      // name=value of what every program of this system needs, as on Windows; the rest of its environment is fixed
}

// Validate checks c's fields, and nothing on this machine: that is Check.
func (c Command) Validate() error {
	switch {
	case len(c.Args) == 0 || !filepath.IsAbs(c.Args[0]):
		return errors.New("want the program's whole path, then its arguments")
	case c.Timeout != 0 && (c.Timeout < MinTimeout || c.Timeout > MaxTimeout):
		return fmt.Errorf("a time limit of %v: want %v to %v", c.Timeout, MinTimeout, MaxTimeout)
	case os.Geteuid() != 0 && c.User != "":
		return fmt.Errorf("to run as %q takes root: leave it empty, and it runs as this user", c.User)
	}
	return nil
}

// Do runs the program once and reads its answer. An error says what the program did wrong, with the last line of what it wrote to its
// standard error. [ErrLater] is no failure.
func (c Command) Do(ctx context.Context, r Request) (Answer, error) {
	r.Version = Version
	in, err := json.Marshal(r)
	if err != nil {
		return Answer{}, err
	}
	limit := c.Timeout
	if limit == 0 {
		limit = DefaultTimeout
	}
	within, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := exec.CommandContext(within, c.Args[0], c.Args[1:]...)
	if err := c.confine(cmd); err != nil {
		return Answer{}, fmt.Errorf("run %s: %w", c.Args[0], err)
	}
	runtime.LockOSThread() // see bind
	defer runtime.UnlockOSThread()
	out, errs := &capped{most: maxStdout, full: cancel}, &capped{most: maxStderr}
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = bytes.NewReader(append(in, '\n')), out, errs, grace
	err = cmd.Run()
	if cmd.Process != nil {
		reap(cmd.Process.Pid)
	}
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil // it ended well, and what it started held its pipes: that is killed, and the answer counts
	}
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return Answer{}, ctx.Err()
	case out.over():
		err = fmt.Errorf("%w: more than %d bytes", ErrAnswer, maxStdout)
	case errors.Is(within.Err(), context.DeadlineExceeded):
		err = fmt.Errorf("no answer within %v", limit)
	case errors.As(err, &exit) && exit.ExitCode() == exitLater:
		err = ErrLater
	case err == nil:
		var a Answer
		if a, err = read(r, out.bytes()); err == nil {
			return a, nil
		}
	}
	return Answer{}, fmt.Errorf("run %s: %w%s", c.Args[0], err, said(errs.bytes()))
}

// said is the last line that a program wrote to its standard error.
func said(errs []byte) string {
	lines := strings.Split(strings.TrimSpace(string(bytes.ToValidUTF8(errs, []byte("?")))), "\n")
	last := strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f {
			return ' '
		}
		return c
	}, lines[len(lines)-1])
	if last == "" {
		return ""
	}
	return fmt.Sprintf(" (it said %q)", strings.ToValidUTF8(last[:min(len(last), maxWhy)], ""))
}

// capped keeps the first bytes of what is written to it. With full, the first byte too many is an error and calls it.
type capped struct {
	most int
	full func()

	mu   sync.Mutex
	kept []byte // guarded by mu
	much bool   // guarded by mu
}

var errFlood = errors.New("too much output")

// Write fulfils io.Writer.
func (w *capped) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	room := w.most - len(w.kept)
	w.kept = append(w.kept, p[:min(room, len(p))]...)
	if len(p) > room && w.full != nil {
		w.much = true
		w.full()
		return 0, errFlood
	}
	return len(p), nil
}

func (w *capped) over() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.much
}

func (w *capped) bytes() []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.kept
}
