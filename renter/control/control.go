// Package control is the renter's local API: it serves an agent's offers and jobs to the command and scripts on the same machine. It
// decides nothing and knows no socket.
package control

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/query"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/p2p/local/serve"
	"github.com/gpufair/gpufair/renter"
	"github.com/gpufair/gpufair/renter/control/api"
)

// Agent is what the API shows and steers; [renter.Agent] fulfils it.
type Agent interface {
	Search(ctx context.Context, req api.SearchRequest) (api.SearchResult, error)
	Why(ctx context.Context, req api.WhyRequest) (api.WhyResult, error)
	Show(ctx context.Context, id string) (api.Explanation, error)
	Submit(ctx context.Context, req api.RunRequest, send func(api.RunEvent) error) error
	Watch(ctx context.Context, id market.LeaseID, send func(api.RunEvent) error) error
	Jobs(ctx context.Context, all bool) ([]api.Job, error)
	FindJob(ctx context.Context, name string) (market.LeaseID, api.Job, error)
	Logs(ctx context.Context, id market.LeaseID, since time.Time, follow bool, f func(api.LogLine) error) error
	Signal(ctx context.Context, id market.LeaseID, req api.SignalRequest) error
	Away(ctx context.Context, id market.LeaseID, req api.AwayRequest) error
	Results(ctx context.Context, id market.LeaseID, output string) (string, error)
}

// Program is what the agent's main knows.
type Program struct {
	// Status fills in everything.
	Status func(ctx context.Context) (api.Status, error)
	// Shutdown ends the agent after this answer. Live jobs are for the caller to have checked.
	Shutdown func()
}

type server struct {
	agent   Agent
	program Program
}

// JobPath names a job in a path. It is exported since huma sees no fields of an embedded type that is not.
type JobPath struct {
	ID string `path:"id" doc:"id of a job, an unambiguous start of it, or its name"`
}

// Register puts the renter's operations on an API.
func Register(a huma.API, agent Agent, program Program) {
	s := server{agent, program}
	serve.Get(a, "/status", "How the agent stands", program.Status)
	serve.Post(a, "/search", "Search live offers", func(ctx context.Context, in api.SearchRequest) (api.SearchResult, error) {
		r, err := agent.Search(ctx, in)
		return r, fail(err)
	})
	serve.Post(a, "/why", "Why offers do not match, from the book", func(ctx context.Context, in api.WhyRequest) (api.WhyResult, error) {
		r, err := agent.Why(ctx, in)
		return r, fail(err)
	})
	huma.Register(a, serve.Op(http.MethodPost, "/shutdown", "End the agent"), s.shutdown)
	huma.Register(a, serve.Op(http.MethodGet, "/offers/{id}", "One offer in full"), func(ctx context.Context, in *struct {
		ID string `path:"id" doc:"as search shows it"`
	},
	) (*serve.Body[api.Explanation], error) {
		e, err := agent.Show(ctx, in.ID)
		return &serve.Body[api.Explanation]{Body: e}, fail(err)
	})
	s.jobs(a)
	s.away(a)
	s.streams(a)
}

func (s server) shutdown(ctx context.Context, in *struct {
	Force bool `query:"force" doc:"although jobs run: their providers pause and then end them"`
},
) (*struct{}, error) {
	jobs, err := s.agent.Jobs(ctx, false)
	if err != nil {
		return nil, fail(err)
	}
	if len(jobs) > 0 && !in.Force {
		return nil, serve.Fail(http.StatusConflict, errors.New("stop agent: jobs run, and without it their providers pause and end them"),
			"wait for them (gpufair ps), stop them (gpufair stop), or force it with --force: what has an allowance (gpufair away) runs on meanwhile")
	}
	s.program.Shutdown()
	return nil, nil
}

func (s server) jobs(a huma.API) {
	huma.Register(a, serve.Op(http.MethodGet, "/jobs", "Jobs, newest first"), func(ctx context.Context, in *struct {
		All bool `query:"all" doc:"ended ones too"`
	},
	) (*serve.Body[api.Jobs], error) {
		list, err := s.agent.Jobs(ctx, in.All)
		return &serve.Body[api.Jobs]{Body: api.Jobs{Jobs: list}}, fail(err)
	})
	huma.Register(a, serve.Op(http.MethodGet, "/jobs/{id}", "One job"), func(ctx context.Context, in *JobPath) (*serve.Body[api.Job], error) {
		_, j, err := s.agent.FindJob(ctx, in.ID)
		return &serve.Body[api.Job]{Body: j}, fail(err)
	})
	huma.Register(a, serve.Op(http.MethodPost, "/jobs/{id}/signal", "Stop a job, or send it a signal"), func(ctx context.Context, in *struct {
		JobPath
		Body api.SignalRequest
	},
	) (*serve.Body[api.Job], error) {
		id, _, err := s.agent.FindJob(ctx, in.ID)
		if err != nil {
			return nil, fail(err)
		}
		if err := s.agent.Signal(ctx, id, in.Body); err != nil {
			return nil, fail(err)
		}
		_, j, err := s.agent.FindJob(ctx, in.ID)
		return &serve.Body[api.Job]{Body: j}, fail(err)
	})
}

// away puts allowances on the API.
func (s server) away(a huma.API) {
	huma.Register(a, serve.Op(http.MethodPost, "/jobs/{id}/away", "Let a job run on while this side is not there"), func(ctx context.Context, in *struct {
		JobPath
		Body api.AwayRequest
	},
	) (*serve.Body[api.Job], error) {
		id, _, err := s.agent.FindJob(ctx, in.ID)
		if err != nil {
			return nil, fail(err)
		}
		if err := s.agent.Away(ctx, id, in.Body); err != nil {
			return nil, fail(err)
		}
		_, j, err := s.agent.FindJob(ctx, in.ID)
		return &serve.Body[api.Job]{Body: j}, fail(err)
	})
}

func (s server) streams(a huma.API) {
	huma.Register(a, serve.Op(http.MethodPost, "/run", "Run a job, with its steps, a line each"),
		func(_ context.Context, in *serve.Body[api.RunRequest]) (*huma.StreamResponse, error) {
			return serve.Lines(func(ctx context.Context, send func(any) error) error {
				return tell(send, s.agent.Submit(ctx, in.Body, func(e api.RunEvent) error { return send(e) }))
			}), nil
		})
	huma.Register(a, serve.Op(http.MethodGet, "/jobs/{id}/watch", "A job's steps from now on, a line each"),
		func(ctx context.Context, in *JobPath) (*huma.StreamResponse, error) {
			id, _, err := s.agent.FindJob(ctx, in.ID)
			if err != nil {
				return nil, fail(err)
			}
			return serve.Lines(func(ctx context.Context, send func(any) error) error {
				return tell(send, s.agent.Watch(ctx, id, func(e api.RunEvent) error { return send(e) }))
			}), nil
		})
	huma.Register(a, serve.Op(http.MethodGet, "/jobs/{id}/logs", "A job's output, a piece a line"), s.logs)
	huma.Register(a, serve.Op(http.MethodPost, "/jobs/{id}/results", "Copy a job's results to another folder"), s.results)
}

func (s server) logs(ctx context.Context, in *struct {
	JobPath
	Follow bool      `query:"follow" doc:"go on until the job is over"`
	Since  time.Time `query:"since"`
	Tail   int       `query:"tail" minimum:"0" maximum:"100000" doc:"only the last lines; 0: all"`
},
) (*huma.StreamResponse, error) {
	id, _, err := s.agent.FindJob(ctx, in.ID)
	if err != nil {
		return nil, fail(err)
	}
	return serve.Lines(func(ctx context.Context, send func(any) error) error {
		since := in.Since
		if in.Tail > 0 {
			t := newTail(in.Tail)
			if err := s.agent.Logs(ctx, id, since, false, t.add); err != nil {
				return err
			}
			for _, l := range t.lines() {
				if err := send(l); err != nil {
					return err
				}
				since = l.Time.Add(1)
			}
			if !in.Follow {
				return nil
			}
			since = t.newest(since)
		}
		return s.agent.Logs(ctx, id, since, in.Follow, func(l api.LogLine) error { return send(l) })
	}), nil
}

func (s server) results(ctx context.Context, in *struct {
	JobPath
	Body api.ResultsRequest
},
) (*huma.StreamResponse, error) {
	id, _, err := s.agent.FindJob(ctx, in.ID)
	if err != nil {
		return nil, fail(err)
	}
	output, err := s.agent.Results(ctx, id, in.Body.Output)
	if err != nil {
		return nil, fail(err)
	}
	return serve.Lines(func(ctx context.Context, send func(any) error) error {
		_, j, err := s.agent.FindJob(ctx, in.ID)
		if err != nil {
			return err
		}
		j.Output = output
		return send(api.RunEvent{Step: api.StepDone, Job: &j})
	}), nil
}

// tell sends a failure as the stream's last line: its head is on the way already.
func tell(send func(any) error, err error) error {
	if err == nil || errors.Is(err, context.Canceled) {
		return err
	}
	f := api.Failed{Detail: err.Error(), Next: renter.Next(err), Paid: "0"}
	if r, ok := reason.Of(err); ok {
		advice, _ := r.Code.Advice()
		f.Code, f.Detail, f.Next = string(r.Code), r.String(), advice.Renter
	}
	return send(api.RunEvent{Error: &f})
}

// fail makes an error one for the renter.
func fail(err error) error {
	if err == nil {
		return nil
	}
	if r, ok := reason.Of(err); ok {
		advice, _ := r.Code.Advice()
		return serve.FailCode(http.StatusConflict, string(r.Code), errors.New(r.String()), advice.Renter)
	}
	var syntax *query.SyntaxError
	switch {
	case errors.Is(err, renter.ErrNoJob):
		return serve.Fail(http.StatusNotFound, err, "gpufair ps --all lists every job")
	case errors.As(err, &syntax):
		return serve.Fail(http.StatusUnprocessableEntity, err, "gpufair search --help shows the language")
	case errors.Is(err, renter.ErrDiskFull):
		return serve.Fail(http.StatusInsufficientStorage, err, renter.Next(err))
	case errors.Is(err, renter.ErrRequest), errors.Is(err, renter.ErrAmbiguous):
		return serve.Fail(http.StatusUnprocessableEntity, err, renter.Next(err))
	case errors.Is(err, renter.ErrSilent):
		return serve.Fail(http.StatusBadGateway, err, "wait until it is back, or give the lease up: gpufair stop --release JOB")
	}
	return serve.Fail(http.StatusInternalServerError, err, "the agent's log says more")
}
