// Package cli is how every program of gpufair speaks to people and scripts: tables, JSON lines, exit codes, prompts, config files,
// directories, version, signals, logs, progress, and the group that starts and stops a process's parts. It decides nothing about GPUs,
// money or peers, and it must stay small enough for the tray: no libp2p, no badger, no containerd.
//
// Results go to stdout and nothing else does; progress, questions and errors go to stderr.
package cli

import (
	"context"
	"io"
	"os"
	"time"

	"golang.org/x/term"
)

// Terminal is where one invocation of a command reads and writes. It is made once in main, or by a test from buffers, and handed down.
// It is not safe for concurrent use, but for what its methods say.
type Terminal struct {
	In   io.Reader
	Out  io.Writer // results only
	Err  io.Writer // progress, questions, errors, logs
	Zone *time.Location

	InTTY, OutTTY, ErrTTY bool

	// JSON is set by --json: results are one JSON object a line, with the stable names of docs/cli.md.
	JSON bool
	// Color says that results on stdout may be coloured.
	Color bool
}

// System is the terminal of this process. Colour needs a terminal, and neither NO_COLOR (no-color.org) nor TERM=dumb.
func System() *Terminal {
	t := &Terminal{
		In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Zone: time.Local,
		InTTY: isTTY(os.Stdin), OutTTY: isTTY(os.Stdout), ErrTTY: isTTY(os.Stderr),
	}
	t.Color = t.OutTTY && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
	return t
}

// Pipe is a terminal that is none: a script's pipes, or a test's buffers. Times are in UTC.
func Pipe(in io.Reader, out, err io.Writer) *Terminal {
	return &Terminal{In: in, Out: out, Err: err, Zone: time.UTC}
}

func isTTY(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

type terminalKey struct{}

// With puts t into ctx, for commands that are far from main.
func (t *Terminal) With(ctx context.Context) context.Context {
	return context.WithValue(ctx, terminalKey{}, t)
}

// From is the terminal that [Terminal.With] put into ctx, else a terminal that swallows everything.
func From(ctx context.Context) *Terminal {
	if t, ok := ctx.Value(terminalKey{}).(*Terminal); ok {
		return t
	}
	return Pipe(eof{}, io.Discard, io.Discard)
}

type eof struct{}

func (eof) Read([]byte) (int, error) { return 0, io.EOF }
