package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
)

// ExitCode is what a command leaves to its caller. docs/cli.md documents every one, and a test compares the two. They are never
// renumbered.
type ExitCode int

// The exit codes. `gpufair run` passes the job's own code on; what is not the job's is 125 to 127 there, as in docker.
const (
	ExitOK            ExitCode = 0   // done
	ExitFailure       ExitCode = 1   // anything that has no code of its own
	ExitUsage         ExitCode = 2   // unknown flag or command, wrong argument
	ExitConfig        ExitCode = 3   // a mistake in a config file, a flag's or a variable's value
	ExitNoDaemon      ExitCode = 4   // the daemon or agent does not answer
	ExitNotFound      ExitCode = 5   // no such offer, lease, job or peer
	ExitRefused       ExitCode = 6   // the other side refused, with a reason
	ExitNothing       ExitCode = 7   // nothing matches the query
	ExitMoney         ExitCode = 8   // over the budget, no credit, or a hold that cannot be met
	ExitSystem        ExitCode = 9   // this machine lacks something: root, containerd, a free port, disk
	ExitBehind        ExitCode = 10  // ledger verify: sound, but older than what was signed
	ExitCorrupt       ExitCode = 11  // ledger verify: bytes are damaged
	ExitForged        ExitCode = 12  // ledger verify: a signature or a rule is broken
	ExitUnhealthy     ExitCode = 13  // doctor, status: it runs, but something needs attention
	ExitRun           ExitCode = 125 // run: gpufair itself could not run the job; the error says why
	ExitCannotExecute ExitCode = 126 // run: the image's command cannot be executed
	ExitNoCommand     ExitCode = 127 // run: the image has no such command
	ExitInterrupted   ExitCode = 130 // stopped by Ctrl-C or SIGTERM before it was done
)

var exitMeanings = map[ExitCode]string{
	ExitOK:            "done",
	ExitFailure:       "anything that has no code of its own",
	ExitUsage:         "unknown flag or command, wrong argument",
	ExitConfig:        "a mistake in a config file, a flag's or a variable's value",
	ExitNoDaemon:      "the daemon or agent does not answer",
	ExitNotFound:      "no such offer, lease, job or peer",
	ExitRefused:       "the other side refused, with a reason",
	ExitNothing:       "nothing matches the query",
	ExitMoney:         "over the budget, no credit, or a hold that cannot be met",
	ExitSystem:        "this machine lacks something: root, containerd, a free port, disk",
	ExitBehind:        "`ledger verify`: sound, but older than what this device signed and a peer holds; `ledger recover`: somebody has not answered yet; `auction verify`: the file lacks something without which nobody can tell",
	ExitCorrupt:       "`ledger verify`, `auction verify`: bytes are damaged",
	ExitForged:        "`ledger verify`, `auction verify`: a signature or a rule is broken",
	ExitUnhealthy:     "`doctor`, `status`: it runs, but something needs attention",
	ExitRun:           "`run`: gpufair itself could not run the job; the error says why",
	ExitCannotExecute: "`run`: the image's command cannot be executed",
	ExitNoCommand:     "`run`: the image has no such command",
	ExitInterrupted:   "stopped by Ctrl-C or SIGTERM before it was done",
}

// String is the code's meaning.
func (c ExitCode) String() string {
	if s, ok := exitMeanings[c]; ok {
		return s
	}
	return fmt.Sprintf("exit code %d", int(c))
}

// Error is an error that a person meets: what went wrong, why, and what to do next.
type Error struct {
	Code ExitCode // ExitFailure if zero
	What string   // the operation and its subject: "start the daemon"
	Why  error    // the cause; may be nil if What says it all
	Next string   // what to do next: a command or a setting; one line a step
}

// Error is "what: why".
func (e *Error) Error() string {
	if e.Why == nil {
		return e.What
	}
	return e.What + ": " + e.Why.Error()
}

// Unwrap is the cause.
func (e *Error) Unwrap() error { return e.Why }

// Fail makes an [Error].
func Fail(code ExitCode, what string, why error, next string) error {
	return &Error{Code: code, What: what, Why: why, Next: next}
}

// Usagef is a wrong argument: exit code 2.
func Usagef(next, format string, args ...any) error {
	return &Error{Code: ExitUsage, What: fmt.Sprintf(format, args...), Next: next}
}

// Status is no error but an exit code that says more than yes or no, as a job's own code or `ledger verify`'s: nothing is printed.
type Status ExitCode

// Error is the code's meaning.
func (s Status) Error() string { return ExitCode(s).String() }

// CodeOf is the exit code that err deserves.
func CodeOf(err error) ExitCode {
	var (
		e *Error
		s Status
	)
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, &s):
		return ExitCode(s)
	case errors.As(err, &e) && e.Code != ExitOK:
		return e.Code
	case errors.Is(err, context.Canceled):
		return ExitInterrupted
	default:
		return ExitFailure
	}
}

// PrintError writes err as a person needs it ("gpufair: what: why", then "  next: …"), or with asJSON as one object with the fields
// error, next and code. A nil error and a bare [Status] print nothing.
func PrintError(w io.Writer, program string, err error, asJSON bool) {
	var (
		e *Error
		s Status
	)
	if err == nil || errors.As(err, &s) {
		return
	}
	next := ""
	if errors.As(err, &e) {
		next = e.Next
	}
	if asJSON {
		writeJSON(w, struct {
			Error string   `json:"error"`
			Next  string   `json:"next,omitempty"`
			Code  ExitCode `json:"code"`
		}{err.Error(), next, CodeOf(err)})
		return
	}
	fmt.Fprintf(w, "%s: %s\n", program, indent(err.Error(), "  "))
	if next != "" {
		fmt.Fprintf(w, "  next: %s\n", indent(next, "        "))
	}
}
