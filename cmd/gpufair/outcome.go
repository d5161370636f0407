package main

import (
	"errors"
	"fmt"

	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/renter/control/api"
)

// failure is a run that came to nothing.
func failure(e *api.Failed) error {
	why := cli.Clean(e.Detail)
	if e.Paid != "" && e.Paid != "0" {
		why += " (it cost " + e.Paid + " all the same)"
	}
	step := cli.Clean(e.Next)
	if e.Code != "" {
		step = next(reason.Code(e.Code))
	}
	return cli.Fail(runCode(e.Code), "run", errors.New(why), step)
}

// runCode is the exit code of a run whose job has none.
func runCode(code string) cli.ExitCode {
	if reason.Code(code) == reason.CommandMissing {
		return cli.ExitNoCommand
	}
	return cli.ExitRun
}

// outcome says how a job ended, and gives its exit code.
func (f *follower) outcome(j api.Job) error {
	if !f.JSON {
		f.Note("gpufair: %s", cli.Clean(summary(j)))
	}
	why := reason.Reason{Code: reason.Code(j.Reason), Detail: j.Detail}
	if j.Exit == nil {
		return cli.Fail(runCode(j.Reason), "run: job "+shortID(j.ID), errors.New(cli.Clean(orElse(why.String(), "it ended without running"))),
			next(why.Code))
	}
	if why.Code != reason.Completed && why.Code != reason.StoppedRenter && !f.JSON {
		f.Note("gpufair: why it ended: %s", cli.Clean(why.String()))
		if n := next(why.Code); n != "" {
			f.Note("  next: %s", n)
		}
	}
	if code := exitCode(*j.Exit); code != 0 {
		return cli.Status(code)
	}
	return nil
}

// next is what a renter can do about a reason; empty if that is nothing.
func next(c reason.Code) string {
	advice, _ := c.Advice()
	if advice.Renter == "nothing to do" {
		return ""
	}
	return advice.Renter
}

// exitCode is what the shell sees of a job, as docker does it. The provider counts 128 + N for signal N.
func exitCode(e api.Exit) cli.ExitCode {
	code := e.Code & 0xff
	if code == 0 && (e.Signal != "" || e.OOM) {
		code = 137 // killed, by a provider that gives no code
	}
	return cli.ExitCode(code)
}

// summary is a job's end in a line: what, where, how long, how much, what is left of it.
func summary(j api.Job) string {
	s := fmt.Sprintf("job %s on %s of %s", shortID(j.ID), device(j), shortAccount(j.Provider))
	if j.Started != nil {
		s += " ran " + cli.Span(seconds(j.Seconds))
	} else {
		s += " never ran"
	}
	s += fmt.Sprintf(", cost %s of %s %s", j.Cost, j.Budget, j.Unit)
	if j.Exit != nil {
		s += ", " + exitText(*j.Exit)
	}
	switch j.Results {
	case "complete":
		return s + "; results in " + j.Output
	case "partial":
		return s + "; what had come home by then is in " + j.Output
	case "kept":
		return s + "; its results are kept, since their folder could not be made: gpufair results " + shortID(j.ID) + " --output DIR"
	}
	return s + "; no results"
}
