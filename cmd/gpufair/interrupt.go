package main

import (
	"os"

	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/renter/control/api"
)

// phase is how far a run is, as far as Ctrl-C cares.
type phase uint8

const (
	planning  phase = iota // nothing is held
	preparing              // the order is on its way or signed; the job does not run yet
	working                // the job runs: what it gets, it may handle
	fetching               // the job has ended; its results come home
	over
)

func (p phase) String() string {
	return [...]string{"planning", "preparing", "working", "fetching", "over"}[p]
}

// phaseOf is the phase in which an event puts a run.
func phaseOf(e api.RunEvent) phase {
	switch {
	case e.Step == api.StepDone:
		return over
	case e.Job != nil && e.Job.State == "fetching": // before its first byte arrives
		return fetching
	}
	switch e.Step {
	case api.StepBuy, api.StepBid, api.StepLease, api.StepPush, api.StepPull, api.StepStart:
		return preparing
	case api.StepRunning:
		return working
	case api.StepFetch:
		return fetching
	}
	return planning
}

// act is what a Ctrl-C does.
type act uint8

const (
	actCancel  act = iota // withdraw the request: nothing was bought
	actSignal             // to the job, as docker does
	actStop               // the job, with its time to end
	actRelease            // give the lease up
	actWarn               // only say what goes on and what the next one does
	actLeave              // end the command; the agent goes on
)

// decide is the table of what the n-th Ctrl-C or SIGTERM does in a phase. The third ends the process whatever it does: see
// [cli.Interrupts].
func decide(p phase, i cli.Interrupt) act {
	switch {
	case p == planning:
		return actCancel
	case p == preparing:
		return actRelease
	case p == working && i.Count == 1 && i.Signal == os.Interrupt:
		return actSignal
	case p == working && i.Count == 1:
		return actStop
	case p == working:
		return actRelease
	case i.Count == 1: // results, or the last lines
		return actWarn
	}
	return actLeave
}
