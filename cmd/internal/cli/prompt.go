package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"golang.org/x/term"
)

// maxAnswer is the longest line that a question reads: a recovery phrase of 24 words is under 250 bytes.
const maxAnswer = 4 << 10

// Ask asks a person one question on stderr and reads one line; an empty line is the default answer. Without a terminal nobody can
// answer: that is a usage error which names flag, so that a script never hangs. A cancelled ctx ends the question.
func (t *Terminal) Ask(ctx context.Context, question, def, flag string) (string, error) {
	if !t.InTTY {
		return "", noTerminal(question, flag)
	}
	suffix := ": "
	if def != "" {
		suffix = " [" + def + "]: "
	}
	fmt.Fprint(t.Err, question+suffix)
	line, err := t.readLine(ctx)
	if err != nil {
		fmt.Fprintln(t.Err)
		return "", fmt.Errorf("ask %q: %w", question, err)
	}
	if line == "" {
		return def, nil
	}
	return line, nil
}

// Confirm asks a yes-or-no question; the default is no. Without a terminal it is a usage error that names flag, as in [Terminal.Ask].
func (t *Terminal) Confirm(ctx context.Context, question, flag string) (bool, error) {
	for {
		answer, err := t.Ask(ctx, question+" (y/n)", "n", flag)
		if err != nil {
			return false, err
		}
		switch strings.ToLower(answer) {
		case "y", "yes":
			return true, nil
		case "n", "no":
			return false, nil
		}
		fmt.Fprintln(t.Err, "please answer y or n")
	}
}

// Secret asks for a line that is not shown. Without a terminal it is a usage error that names flag.
func (t *Terminal) Secret(ctx context.Context, question, flag string) (string, error) {
	f, ok := t.In.(interface{ Fd() uintptr })
	if !t.InTTY || !ok {
		return "", noTerminal(question, flag)
	}
	fd := int(f.Fd())
	state, err := term.GetState(fd)
	if err != nil {
		return "", fmt.Errorf("ask %q: %w", question, err)
	}
	fmt.Fprint(t.Err, question+": ")
	defer fmt.Fprintln(t.Err)
	b, err := await(ctx, func() ([]byte, error) { return term.ReadPassword(fd) })
	if err != nil {
		_ = term.Restore(fd, state) // the reader may have been left in the middle with the echo off
		return "", fmt.Errorf("ask %q: %w", question, err)
	}
	return string(b), nil
}

func noTerminal(question, flag string) error {
	return &Error{
		Code: ExitUsage,
		What: fmt.Sprintf("%q must be answered, but there is no terminal to ask on", question),
		Next: "give " + flag,
	}
}

// readLine reads byte by byte, so that nothing behind the line is swallowed.
func (t *Terminal) readLine(ctx context.Context) (string, error) {
	return await(ctx, func() (string, error) {
		line, err := bufio.NewReader(io.LimitReader(oneByOne{t.In}, maxAnswer)).ReadString('\n')
		if err != nil && (line == "" || !errors.Is(err, io.EOF)) {
			return "", err
		}
		return strings.TrimSpace(line), nil
	})
}

// oneByOne hands a bufio.Reader one byte at a time.
type oneByOne struct{ r io.Reader }

func (o oneByOne) Read(p []byte) (int, error) { return o.r.Read(p[:min(1, len(p))]) }

// await runs a read that cannot be cancelled. After a cancelled ctx its goroutine stays until the read returns: the process is on its
// way out then.
func await[T any](ctx context.Context, read func() (T, error)) (T, error) {
	type answer struct {
		v   T
		err error
	}
	ch := make(chan answer, 1)
	go func() {
		v, err := read()
		ch <- answer{v, err}
	}()
	select {
	case a := <-ch:
		return a.v, a.err
	case <-ctx.Done():
		var zero T
		return zero, ctx.Err()
	}
}
