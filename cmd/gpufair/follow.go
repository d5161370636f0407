package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/renter/control/api"
)

const (
	actWithin     = 20 * time.Second       // for an answer to a signal: the agent asks the provider
	lastLines     = 10 * time.Second       // for output that is still on its way when the job is over
	withdrawnPoll = 100 * time.Millisecond // the agent notices within a round trip on this machine that a request was withdrawn
	withdrawnFor  = 10                     // polls
)

// runAgent is what a run asks of the agent; [api.Client] fulfils it.
type runAgent interface {
	Run(ctx context.Context, req api.RunRequest, f func(api.RunEvent) error) error
	Logs(ctx context.Context, id string, req api.LogsRequest, f func(api.LogLine) error) error
	Signal(ctx context.Context, id string, req api.SignalRequest) (api.Job, error)
	Jobs(ctx context.Context, all bool) (api.Jobs, error)
}

// follower follows one run to its end. All of it belongs to the goroutine of follow, which alone writes to the terminal.
type follower struct {
	*app
	agent      runAgent
	req        api.RunRequest
	detached   bool
	quietPlan  bool
	interrupts <-chan cli.Interrupt

	phase     phase
	silent    bool         // the provider, as was told last
	state     string       // of the job, as was told last
	last      api.RunEvent // newest with a job or an error
	step      string       // last that was told
	bar       *cli.Progress
	barStep   string
	barDone   int64
	cancelled bool // before anything was bought
	leave     bool // end the command, though the job goes on
	logsOf    string
	lines     chan api.LogLine
	logsDone  chan error
	acted     chan error
}

func newFollower(a *app, agent runAgent, req api.RunRequest, detached bool, interrupts <-chan cli.Interrupt) *follower {
	return &follower{
		app: a, agent: agent, req: req, detached: detached, interrupts: interrupts,
		lines: make(chan api.LogLine), acted: make(chan error, 4),
	}
}

// follow starts the run and follows it. The error has the exit code of the command.
func (f *follower) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	asked, withdraw := context.WithCancel(ctx)
	defer withdraw()
	events, ended := make(chan api.RunEvent), make(chan error, 1)
	go func() {
		ended <- f.agent.Run(asked, f.req, func(e api.RunEvent) error {
			select {
			case events <- e:
				return nil
			case <-asked.Done():
				return asked.Err()
			}
		})
	}()
	defer func() { f.bar.Done() }()
	for {
		select {
		case e := <-events:
			if err := f.event(ctx, e); err != nil {
				return err
			}
		case l := <-f.lines:
			if err := f.print(l); err != nil {
				return err
			}
		case i, ok := <-f.interrupts:
			if !ok {
				f.interrupts = nil
				continue
			}
			f.interrupted(ctx, i, withdraw)
		case err := <-f.acted:
			if err != nil {
				f.Note("gpufair: the job was not reached: %s", cli.Clean(err.Error()))
			}
		case err := <-ended:
			return f.conclude(ctx, err)
		}
		if f.leave {
			return f.left()
		}
	}
}

// event takes one step of the run.
func (f *follower) event(ctx context.Context, e api.RunEvent) error {
	if e.Step == "" && e.Job != nil {
		e.Step = api.StepBuy // stored; its first step is not told yet
		if e.Job.State == "bidding" {
			e.Step, e.Detail = api.StepBid, "a sealed bid is stored"
		}
	}
	f.phase = max(phaseOf(e), f.phase)
	if e.Step == api.StepPlan && f.phase == preparing {
		f.phase, f.last = planning, api.RunEvent{} // that offer was taken: the next is tried
	}
	if e.Job != nil || e.Error != nil {
		f.last = e
	}
	if e.Job != nil && e.Job.Started != nil && f.logsOf == "" && !f.detached {
		f.startLogs(ctx, e.Job.ID)
	}
	if f.JSON && !f.detached {
		if e.Step == api.StepDone && e.Error == nil {
			return nil // the last line, after the last of the output: conclude prints it
		}
		return f.PrintJSON(e)
	}
	if f.detached && e.Error == nil && e.Job != nil && e.Step != api.StepBuy && e.Step != api.StepBid {
		f.leave = true
		return nil
	}
	f.tell(e)
	return nil
}

// tell says what goes on, for people.
func (f *follower) tell(e api.RunEvent) {
	f.progress(e)
	if e.Step == api.StepPlan {
		f.tellPlan(e)
	}
	if e.Job != nil {
		f.tellState(*e.Job)
	}
	step := e.Step
	switch {
	case step == api.StepBid:
		step += e.Detail // an auction has steps of its own
	case e.Quote != nil:
		f.tellQuote(*e.Quote)
	}
	if step == f.step || f.JSON {
		return
	}
	f.step = step
	switch {
	case e.Job == nil:
	case e.Step == api.StepBuy:
		f.Note("gpufair: buying from %s", shortAccount(e.Job.Provider))
	case e.Step == api.StepBid:
		f.Note("gpufair: job %s: %s", shortID(e.Job.ID), cli.Clean(e.Detail))
	case e.Step == api.StepLease:
		f.Note("gpufair: job %s: both have signed", shortID(e.Job.ID))
	case e.Step == api.StepPush:
		f.Note("gpufair: pushing %s", cli.Bytes(uint64(max(e.Total, 0))))
	case e.Step == api.StepPull:
		f.Note("gpufair: the provider gets the image from its registry")
	case e.Step == api.StepRunning:
		f.Note("gpufair: job %s runs; Ctrl-C goes to it, twice releases the lease", shortID(e.Job.ID))
	case e.Step == api.StepFetch:
		f.Note("gpufair: the job has ended; bringing its results home")
	}
}

// tellState says what a person should hear of beside the steps.
func (f *follower) tellState(j api.Job) {
	if j.Suspected != f.silent {
		f.silent = j.Suspected
		if f.silent {
			f.Note("gpufair: the provider is silent; the job is given up if it stays so, and nothing is paid for that time")
		} else {
			f.Note("gpufair: the provider is back")
		}
	}
	if j.State != f.state {
		if j.State == "paused" {
			f.Note("gpufair: the provider has paused the job, and the meter with it")
		} else if f.state == "paused" && j.State == "running" {
			f.Note("gpufair: the job goes on")
		}
		f.state = j.State
	}
}

// tellQuote says what an offer answered.
func (f *follower) tellQuote(q api.Quote) {
	who := fmt.Sprintf("%s of %s", q.Offer, shortAccount(q.Provider))
	switch {
	case f.JSON:
	case q.Price == "":
		f.Note("gpufair: no quote from %s: %s", cli.Clean(who), cli.Clean(q.Detail))
	case q.Firm:
		f.Note("gpufair: %s quotes %s %s an hour", cli.Clean(who), cli.Clean(q.Price), cli.Clean(q.Unit))
	default:
		f.Note("gpufair: %s gives no quotes; its price is %s %s an hour", cli.Clean(who), cli.Clean(q.Price), cli.Clean(q.Unit))
	}
}

func (f *follower) tellPlan(e api.RunEvent) {
	if e.Detail != "" {
		f.Note("gpufair: %s", cli.Clean(e.Detail))
	}
	switch {
	case e.Plan == nil || f.JSON:
	case f.quietPlan, f.detached:
		for _, w := range e.Plan.Warnings {
			f.Note("gpufair: beware: %s", cli.Clean(w))
		}
	default:
		for _, line := range planLines(*e.Plan, f.req) {
			f.Note("%s", line)
		}
	}
}

// progress moves the bar of push or fetch.
func (f *follower) progress(e api.RunEvent) {
	if e.Step != f.barStep {
		f.bar.Done()
		f.bar, f.barStep, f.barDone = nil, e.Step, 0
	}
	if e.Total <= 0 {
		return
	}
	if f.bar == nil {
		what := "push"
		if e.Step == api.StepFetch {
			what = "fetch"
		}
		f.bar = f.Progress(what, e.Total)
	}
	f.bar.Total(e.Total)
	f.bar.Add(e.Done - f.barDone)
	f.barDone = e.Done
}

// startLogs begins to follow the job's output.
func (f *follower) startLogs(ctx context.Context, id string) {
	f.logsOf = id
	f.logsDone = make(chan error, 1)
	go func() {
		f.logsDone <- f.agent.Logs(ctx, id, api.LogsRequest{Follow: true}, func(l api.LogLine) error {
			select {
			case f.lines <- l:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
}

func (f *follower) print(l api.LogLine) error {
	if f.JSON {
		return f.PrintJSON(jsonLine("log", l))
	}
	return f.printLog(l)
}

// interrupted does what a Ctrl-C asks for.
func (f *follower) interrupted(ctx context.Context, i cli.Interrupt, withdraw func()) {
	const again = "once more leaves at once, and the agent goes on without this command"
	switch decide(f.phase, i) {
	case actCancel:
		f.cancelled = true
		withdraw()
	case actSignal:
		f.Note("gpufair: SIGINT goes to the job; once more releases the lease")
		f.send(ctx, api.SignalRequest{Signal: "SIGINT"})
	case actStop:
		f.Note("gpufair: stopping the job; once more releases the lease")
		f.send(ctx, api.SignalRequest{})
	case actRelease:
		f.Note("gpufair: releasing the lease; %s", again)
		f.send(ctx, api.SignalRequest{Release: true})
	case actWarn:
		f.Note("gpufair: the job has ended and its results are on their way; %s", again)
	case actLeave:
		f.leave = true
	}
}

// send asks the agent, beside everything else: the provider may be slow to answer.
func (f *follower) send(ctx context.Context, req api.SignalRequest) {
	if f.last.Job == nil {
		return
	}
	id := f.last.Job.ID
	go func() {
		ctx, cancel := context.WithTimeout(ctx, actWithin)
		defer cancel()
		_, err := f.agent.Signal(ctx, id, req)
		select {
		case f.acted <- err:
		case <-ctx.Done():
		}
	}()
}

// left ends the command while the job goes on.
func (f *follower) left() error {
	if f.last.Job == nil {
		return &cli.Error{Code: cli.ExitInterrupted, What: "run: stopped"}
	}
	if !f.detached {
		return cli.Fail(cli.ExitInterrupted, "run: left job "+shortID(f.last.Job.ID)+" to the agent", nil,
			"gpufair ps shows it, gpufair logs -f "+shortID(f.last.Job.ID)+" follows it")
	}
	if f.JSON {
		return f.PrintJSON(f.last.Job)
	}
	_, err := fmt.Fprintln(f.Out, shortID(f.last.Job.ID))
	return err
}

// conclude ends the command once the run is over: after the last of its output.
func (f *follower) conclude(ctx context.Context, err error) error {
	f.bar.Done()
	f.bar = nil
	switch {
	case f.cancelled:
		return f.withdrawn(ctx)
	case f.last.Error != nil:
		return failure(f.last.Error)
	case f.last.Step == api.StepDone && f.last.Job != nil:
		f.drain()
		if f.JSON {
			if err := f.PrintJSON(f.last); err != nil {
				return err
			}
		}
		return f.outcome(*f.last.Job)
	case f.last.Job != nil:
		if err == nil {
			err = errors.New("the agent has stopped")
		}
		return cli.Fail(cli.ExitRun, "run: follow job "+shortID(f.last.Job.ID), err,
			"its provider goes on for a while; any command starts the agent again: gpufair ps")
	case err != nil:
		return explained("run", err)
	}
	return cli.Fail(cli.ExitRun, "run", errors.New("the agent has stopped before anything was bought"), "try again")
}

// drain prints the output that is still on its way.
func (f *follower) drain() {
	if f.logsDone == nil {
		return
	}
	late := time.NewTimer(lastLines)
	defer late.Stop()
	for {
		select {
		case l := <-f.lines:
			if f.print(l) != nil {
				return
			}
		case err := <-f.logsDone:
			if err != nil {
				f.Note("gpufair: the output may be incomplete: %s", cli.Clean(err.Error()))
			}
			return
		case <-late.C:
			f.Note("gpufair: the last of the output is late; gpufair logs %s shows it", shortID(f.logsOf))
			return
		case _, ok := <-f.interrupts:
			if ok {
				return
			}
			f.interrupts = nil
		}
	}
}

// withdrawn makes sure that nothing was bought: the request may have crossed with the Ctrl-C.
func (f *follower) withdrawn(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, actWithin)
	defer cancel()
	for range withdrawnFor {
		list, err := f.agent.Jobs(ctx, false)
		if err != nil {
			return cli.Fail(cli.ExitInterrupted, "run: stopped, but the agent does not say whether something was bought", err, "gpufair ps")
		}
		for _, j := range list.Jobs {
			if j.Output != f.req.Output {
				continue
			}
			if _, err := f.agent.Signal(ctx, j.ID, api.SignalRequest{Release: true}); err != nil {
				return cli.Fail(cli.ExitInterrupted, "run: stopped, but job "+shortID(j.ID)+" was ordered", err, "gpufair stop --release "+shortID(j.ID))
			}
			return &cli.Error{Code: cli.ExitInterrupted, What: "run: stopped; the order was just sent, and its lease is released"}
		}
		select {
		case <-ctx.Done():
		case <-time.After(withdrawnPoll):
		}
	}
	return interruptedEarly(context.Canceled)
}
