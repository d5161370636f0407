package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/renter/control/api"
)

// TestDecide walks the table of what Ctrl-C and SIGTERM do in each phase.
func TestDecide(t *testing.T) {
	type row struct {
		phase  phase
		count  int
		signal os.Signal
	}
	for r, want := range map[row]act{
		{planning, 1, os.Interrupt}:     actCancel,
		{planning, 2, syscall.SIGTERM}:  actCancel,
		{preparing, 1, os.Interrupt}:    actRelease,
		{preparing, 2, os.Interrupt}:    actRelease,
		{preparing, 1, syscall.SIGTERM}: actRelease,
		{working, 1, os.Interrupt}:      actSignal,
		{working, 1, syscall.SIGTERM}:   actStop,
		{working, 2, os.Interrupt}:      actRelease,
		{working, 2, syscall.SIGTERM}:   actRelease,
		{fetching, 1, os.Interrupt}:     actWarn,
		{fetching, 2, os.Interrupt}:     actLeave,
		{over, 1, syscall.SIGTERM}:      actWarn,
		{over, 2, os.Interrupt}:         actLeave,
	} {
		if got := decide(r.phase, cli.Interrupt{Count: r.count, Signal: r.signal}); got != want {
			t.Errorf("%s, number %d, %v: act %d, want %d", r.phase, r.count, r.signal, got, want)
		}
	}
}

func TestPhaseOf(t *testing.T) {
	running, fetch := &api.Job{State: "running"}, &api.Job{State: "fetching"}
	for want, events := range map[phase][]api.RunEvent{
		planning:  {{Step: api.StepPlan}, {}},
		preparing: {{Step: api.StepBuy}, {Step: api.StepBid}, {Step: api.StepLease}, {Step: api.StepPush}, {Step: api.StepStart, Job: &api.Job{State: "preparing"}}},
		working:   {{Step: api.StepRunning, Job: running}},
		fetching:  {{Step: api.StepFetch}, {Step: api.StepStart, Job: fetch}},
		over:      {{Step: api.StepDone, Job: fetch}},
	} {
		for _, e := range events {
			if got := phaseOf(e); got != want {
				t.Errorf("%+v is in phase %s, want %s", e, got, want)
			}
		}
	}
}

// script is an agent that plays a run: steps are sent one after another, each when its channel says so.
type script struct {
	mu      sync.Mutex
	asked   []string // guarded by mu; what the command wanted
	live    []api.Job
	events  chan api.RunEvent
	logs    chan api.LogLine
	signals error
}

func newScript() *script {
	return &script{events: make(chan api.RunEvent), logs: make(chan api.LogLine)}
}

func (s *script) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, fmt.Sprintf(format, args...))
}

func (s *script) Run(ctx context.Context, _ api.RunRequest, f func(api.RunEvent) error) error {
	for {
		select {
		case e, ok := <-s.events:
			if !ok {
				return nil
			}
			if err := f(e); err != nil {
				return err
			}
		case <-ctx.Done():
			s.note("withdrawn")
			return ctx.Err()
		}
	}
}

func (s *script) Logs(ctx context.Context, id string, _ api.LogsRequest, f func(api.LogLine) error) error {
	for {
		select {
		case l, ok := <-s.logs:
			if !ok {
				return nil
			}
			if err := f(l); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (s *script) Signal(_ context.Context, id string, req api.SignalRequest) (api.Job, error) {
	s.note("signal %s %q release=%t", shortID(id), req.Signal, req.Release)
	return api.Job{}, s.signals
}

func (s *script) Jobs(context.Context, bool) (api.Jobs, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return api.Jobs{Jobs: s.live}, nil
}

// played is a follower at work on a script.
type played struct {
	*script
	out, errs  bytes.Buffer
	interrupts chan cli.Interrupt
	n          int
	err        error
	ended      bool
}

// play starts a follower inside a synctest bubble.
func play(t *testing.T, detached, asJSON bool) *played {
	p := &played{script: newScript(), interrupts: make(chan cli.Interrupt)}
	term := cli.Pipe(strings.NewReader(""), &p.out, &p.errs)
	term.JSON = asJSON
	f := newFollower(newApp(term), p.script, api.RunRequest{Output: "/o"}, detached, p.interrupts)
	go func() {
		p.err = f.follow(t.Context())
		p.ended = true
	}()
	return p
}

func (p *played) interrupt(s os.Signal) {
	p.n++
	p.interrupts <- cli.Interrupt{Count: p.n, Signal: s}
	synctest.Wait()
}

func (p *played) step(step, state string) {
	j := aJob()
	j.State = state
	p.events <- api.RunEvent{Step: step, Job: &j}
	synctest.Wait()
}

// finish is a job's end and the end of its output.
func (p *played) finish(j api.Job) {
	j.State = "ended"
	p.events <- api.RunEvent{Step: api.StepDone, Job: &j}
	close(p.events)
	close(p.logs)
	synctest.Wait()
}

func aJob() api.Job {
	at := time.Now()
	return api.Job{
		ID: strings.Repeat("ab", 32), Provider: "gfprovideraccount", Model: "EPYC", Devices: 1, Budget: "1", Unit: "CREDIT", Cost: "0.25",
		Seconds: 61, Started: &at, Output: "/o", Results: "complete", Reason: "completed", Exit: &api.Exit{},
	}
}

// scene is a run as it is played, and what the command must make of it.
type scene struct {
	play  func(p *played)
	code  cli.ExitCode
	asked []string // of the agent
	errs  []string // in stderr or in the error
}

func altered(change func(*api.Job)) api.Job { j := aJob(); change(&j); return j }

// endings are runs that nobody interrupts.
func endings() map[string]scene {
	return map[string]scene{
		"the journey": {
			play: func(p *played) {
				p.step("", "buying")
				p.step(api.StepLease, "agreed")
				p.step(api.StepRunning, "running")
				p.logs <- api.LogLine{Stream: "out", Data: []byte("result\n")}
				p.logs <- api.LogLine{Stream: "err", Data: []byte("warning\n")}
				p.step(api.StepStart, "fetching")
				p.finish(aJob())
			},
			errs: []string{"buying from gfprovider", "both have signed", "warning\n", "ran 1 m 1 s, cost 0.25 of 1 CREDIT, exit 0; results in /o"},
		},
		"a sealed bid": {
			play: func(p *played) {
				p.step("", "bidding")
				p.step(api.StepLease, "agreed")
				p.finish(aJob())
			},
			errs: []string{"job abababababab: a sealed bid is stored", "both have signed"},
		},
		"the job's code": {
			play: func(p *played) { p.finish(altered(func(j *api.Job) { j.Exit.Code = 42 })) }, code: 42, errs: []string{"exit 42"},
		},
		"a signal's code": {
			play: func(p *played) {
				p.finish(altered(func(j *api.Job) { j.Exit = &api.Exit{Code: 139, Signal: "SIGSEGV"} }))
			},
			code: 139, errs: []string{"killed by SIGSEGV"},
		},
		"out of memory": {
			play: func(p *played) {
				p.finish(altered(func(j *api.Job) { j.Exit, j.Reason = &api.Exit{OOM: true}, "out_of_memory" }))
			},
			code: 137, errs: []string{"out of memory", "next: ask for more memory"},
		},
		"no such command": {
			play: func(p *played) {
				p.finish(altered(func(j *api.Job) { j.Exit, j.Started, j.Reason, j.Results = nil, nil, "command_missing", "none" }))
			},
			code: cli.ExitNoCommand, errs: []string{"never ran", "the image has no such command", "no results"},
		},
		"provider gone": {
			play: func(p *played) {
				p.step(api.StepRunning, "running")
				j := altered(func(j *api.Job) { j.State, j.Suspected = "running", true })
				p.events <- api.RunEvent{Step: api.StepRunning, Job: &j}
				p.finish(altered(func(j *api.Job) { j.Exit, j.Reason, j.Results = nil, "provider_gone", "partial" }))
			},
			code: cli.ExitRun, errs: []string{"the provider is silent", "what had come home by then is in /o", "could not be reached", "run the job elsewhere"},
		},
		"refused": {
			play: func(p *played) {
				p.events <- api.RunEvent{Step: api.StepDone, Error: &api.Failed{Code: "device_taken", Detail: "somebody was first", Paid: "0"}}
				close(p.events)
			},
			code: cli.ExitRun, errs: []string{"somebody was first"},
		},
	}
}

// breaks are runs in which something goes wrong on this machine.
func breaks() map[string]scene {
	return map[string]scene{
		"a signal that fails": {
			play: func(p *played) {
				p.signals = errors.New("provider does not answer")
				p.step(api.StepRunning, "running")
				p.interrupt(os.Interrupt)
				p.finish(aJob())
			},
			asked: []string{`signal abababababab "SIGINT" release=false`}, errs: []string{"provider does not answer"},
		},
		"the agent dies": {
			play: func(p *played) {
				p.step(api.StepRunning, "running")
				close(p.events)
			},
			code: cli.ExitRun, errs: []string{"the agent has stopped", "any command starts the agent again"},
		},
		"output that never ends": {
			play: func(p *played) {
				p.step(api.StepRunning, "running")
				j := aJob()
				p.events <- api.RunEvent{Step: api.StepDone, Job: &j}
				close(p.events)
				time.Sleep(2 * lastLines)
			},
			errs: []string{"the last of the output is late"},
		},
	}
}

// interruptions are runs with a Ctrl-C or SIGTERM at each step.
func interruptions() map[string]scene {
	return map[string]scene{
		"Ctrl-C before the order": {
			play: func(p *played) {
				p.events <- api.RunEvent{Step: api.StepPlan, Plan: &api.Plan{Budget: "1", Unit: "CREDIT", Warnings: []string{"credit ends sooner"}}}
				synctest.Wait()
				p.interrupt(os.Interrupt)
				time.Sleep(2 * withdrawnFor * withdrawnPoll)
			},
			code: cli.ExitInterrupted, asked: []string{"withdrawn"}, errs: []string{"credit ends sooner", "nothing is held"},
		},
		"Ctrl-C that crosses with the order": {
			play: func(p *played) {
				other := aJob()
				other.Output = "/else"
				p.live = []api.Job{other, aJob()}
				p.interrupt(os.Interrupt)
			},
			code: cli.ExitInterrupted, asked: []string{"withdrawn", `signal abababababab "" release=true`}, errs: []string{"its lease is released"},
		},
		"Ctrl-C after an offer was taken": {
			play: func(p *played) {
				p.step(api.StepBuy, "buying")
				p.events <- api.RunEvent{Step: api.StepPlan, Detail: "trying the next"}
				synctest.Wait()
				p.interrupt(os.Interrupt)
				time.Sleep(2 * withdrawnFor * withdrawnPoll)
			},
			code: cli.ExitInterrupted, asked: []string{"withdrawn"}, errs: []string{"trying the next", "nothing is held"},
		},
		"Ctrl-C while preparing": {
			play: func(p *played) {
				p.step(api.StepPush, "preparing")
				p.interrupt(os.Interrupt)
				p.finish(altered(func(j *api.Job) { j.Exit, j.Started, j.Reason, j.Results = nil, nil, "stopped_renter", "none" }))
			},
			code: cli.ExitRun, asked: []string{`signal abababababab "" release=true`}, errs: []string{"releasing the lease"},
		},
		"Ctrl-C twice while it runs": {
			play: func(p *played) {
				p.step(api.StepRunning, "running")
				p.interrupt(os.Interrupt)
				p.interrupt(os.Interrupt)
				p.finish(altered(func(j *api.Job) { j.Exit, j.Reason = nil, "stopped_renter" }))
			},
			code: cli.ExitRun, asked: []string{`signal abababababab "SIGINT" release=false`, `signal abababababab "" release=true`},
			errs: []string{"SIGINT goes to the job", "releasing the lease"},
		},
		"SIGTERM while it runs": {
			play: func(p *played) {
				p.step(api.StepRunning, "running")
				p.interrupt(syscall.SIGTERM)
				p.finish(altered(func(j *api.Job) { j.Exit.Code, j.Reason = 3, "stopped_renter" }))
			},
			code: 3, asked: []string{`signal abababababab "" release=false`}, errs: []string{"stopping the job"},
		},
		"Ctrl-C twice while fetching": {
			play: func(p *played) {
				p.step(api.StepFetch, "fetching")
				p.interrupt(os.Interrupt)
				p.interrupt(os.Interrupt)
			},
			code: cli.ExitInterrupted, asked: []string{"withdrawn"}, errs: []string{"its results are on their way", "left job abababababab to the agent", "gpufair logs -f"},
		},
	}
}

// TestFollow plays runs to their ends.
func TestFollow(t *testing.T) {
	all := endings()
	maps.Copy(all, breaks())
	maps.Copy(all, interruptions())
	for name, c := range all {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := play(t, false, false)
				c.play(p)
				synctest.Wait()
				if !p.ended {
					t.Fatalf("the command goes on; stderr:\n%s", p.errs.String())
				}
				err := failedRun(p.err)
				cli.PrintError(&p.errs, "gpufair", err, false)
				if got := cli.CodeOf(err); got != c.code {
					t.Errorf("exit %d, want %d: %v", got, c.code, err)
				}
				if d := cmp.Diff(c.asked, p.asked); d != "" {
					t.Error("asked of the agent:", d)
				}
				for _, want := range c.errs {
					if !strings.Contains(p.errs.String(), want) {
						t.Errorf("does not say %q:\n%s", want, p.errs.String())
					}
				}
				if out := p.out.String(); out != "" && (name != "the journey" || out != "result\n") {
					t.Errorf("stdout %q", out)
				}
			})
		})
	}
}

func TestDetached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := play(t, true, false)
		p.step(api.StepBuy, "buying")
		p.step(api.StepBid, "bidding")
		if p.ended {
			t.Fatal("left before both had signed")
		}
		p.step(api.StepLease, "agreed")
		if !p.ended || p.err != nil || p.out.String() != "abababababab\n" {
			t.Errorf("%v %q %q", p.err, p.out.String(), p.errs.String())
		}
		if !slices.Equal(p.asked, []string{"withdrawn"}) {
			t.Errorf("asked %q", p.asked)
		}
	})
}

func TestFollowJSON(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := play(t, false, true)
		p.step("", "buying")
		p.step(api.StepRunning, "running")
		p.logs <- api.LogLine{Stream: "out", Data: []byte("a\n")}
		p.logs <- api.LogLine{Stream: "err", Data: []byte{0xff}}
		p.finish(aJob())
		lines := strings.Split(strings.TrimSpace(p.out.String()), "\n")
		for i, want := range []string{
			`{"step":"buy","job":`, `{"step":"running","job":`, `{"step":"log","time":"0001-01-01T00:00:00Z","stream":"out","text":"a\n"}`,
			`"stream":"err","data":"/w=="}`, `{"step":"done","job":`,
		} {
			if i >= len(lines) || !strings.Contains(lines[i], want) {
				t.Errorf("line %d of\n%s\nwant %s", i, p.out.String(), want)
			}
		}
		if len(lines) != 5 || p.errs.Len() > 0 || p.err != nil {
			t.Errorf("%v, %q, %d lines", p.err, p.errs.String(), len(lines))
		}
	})
}
