// Package control is the owner's local API: it serves an agent's state and the owner's wishes to the command, the tray and scripts on
// the same machine. It decides nothing and knows no socket.
package control

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/gpufair/gpufair/benchmark"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/p2p/local/serve"
	"github.com/gpufair/gpufair/p2p/wire"
	"github.com/gpufair/gpufair/provider"
	"github.com/gpufair/gpufair/provider/control/api"
)

// Agent is what the API shows and steers; [provider.Agent] fulfils it.
type Agent interface {
	Status(ctx context.Context) (api.Status, error)
	Changed() <-chan struct{}
	Devices() []api.Device
	Offers() api.Offers
	Leases(ctx context.Context, all bool) ([]api.Lease, error)
	FindLease(ctx context.Context, id string) (api.Lease, error)
	StopLease(ctx context.Context, id string) error
	// Auctions lists sealed auctions, and AuctionFile gives the transcript of one.
	Auctions(ctx context.Context) ([]api.Auction, error)
	AuctionFile(ctx context.Context, id string) ([]byte, error)
	Pause(ctx context.Context, d time.Duration) error
	Resume(ctx context.Context) error
	Measure(ctx context.Context, device wire.Hash, profile benchmark.Profile, progress func(step string, done float64)) error
}

// Ledger is what the ledger knows for the status.
type Ledger struct {
	Owed     []api.Amount // to the owner, by unit
	Today    []api.Amount // earned since local midnight, by unit
	Warnings []string     // what asks for the owner's attention
}

// Money tells what the ledger knows for the status.
type Money func(ctx context.Context) (Ledger, error)

// Program is what the daemon's main knows.
type Program struct {
	Version string
	Since   time.Time
	Reload  func() error // reads the config file again
}

// watchEvery is how often a watcher hears of a daemon in which nothing changes: meters and loads move all the time.
const watchEvery = 2 * time.Second

type server struct {
	agent   Agent
	money   Money
	program Program
}

// Register puts the owner's operations on an API.
func Register(a huma.API, agent Agent, money Money, program Program) {
	s := server{agent, money, program}
	serve.Get(a, "/status", "How the daemon stands", s.status)
	serve.Get(a, "/devices", "Devices of this machine", func(context.Context) (api.Devices, error) {
		return api.Devices{Devices: agent.Devices()}, nil
	})
	serve.Get(a, "/offers", "What is advertised now", func(context.Context) (api.Offers, error) { return agent.Offers(), nil })
	serve.Post(a, "/pause", "Stop renting out", s.pause)
	serve.Post(a, "/resume", "Rent out again", func(ctx context.Context, _ struct{}) (api.Status, error) {
		if err := agent.Resume(ctx); err != nil {
			return api.Status{}, fail(err)
		}
		return s.status(ctx)
	})
	serve.Post(a, "/reload", "Read the config file again", func(ctx context.Context, _ struct{}) (api.Status, error) {
		if err := program.Reload(); err != nil {
			return api.Status{}, serve.Fail(http.StatusUnprocessableEntity, err, "correct the file (gpufaird config check) and reload again; nothing has changed")
		}
		return s.status(ctx)
	})
	s.leases(a)
	s.auctions(a)
	s.streams(a)
}

func (s server) leases(a huma.API) {
	type one struct {
		ID string `path:"id" doc:"id of a lease, or an unambiguous start of it"`
	}
	huma.Register(a, serve.Op(http.MethodGet, "/leases", "Leases, newest first"), func(ctx context.Context, in *struct {
		All bool `query:"all" doc:"ended ones too"`
	},
	) (*serve.Body[api.Leases], error) {
		list, err := s.agent.Leases(ctx, in.All)
		return &serve.Body[api.Leases]{Body: api.Leases{Leases: list}}, fail(err)
	})
	huma.Register(a, serve.Op(http.MethodGet, "/leases/{id}", "One lease"), func(ctx context.Context, in *one) (*serve.Body[api.Lease], error) {
		l, err := s.agent.FindLease(ctx, in.ID)
		return &serve.Body[api.Lease]{Body: l}, fail(err)
	})
	huma.Register(a, serve.Op(http.MethodPost, "/leases/{id}/stop", "Take a lease's devices back"),
		func(ctx context.Context, in *one) (*serve.Body[api.Lease], error) {
			if err := s.agent.StopLease(ctx, in.ID); err != nil {
				return nil, fail(err)
			}
			l, err := s.agent.FindLease(ctx, in.ID)
			return &serve.Body[api.Lease]{Body: l}, fail(err)
		})
}

func (s server) streams(a huma.API) {
	huma.Register(a, serve.Op(http.MethodGet, "/watch", "The status at each change, a line each"),
		func(context.Context, *struct{}) (*huma.StreamResponse, error) { return serve.Lines(s.watch), nil })
	huma.Register(a, serve.Op(http.MethodPost, "/benchmark", "Measure devices, with progress, a line each"),
		func(_ context.Context, in *serve.Body[api.BenchmarkRequest]) (*huma.StreamResponse, error) {
			devices, profile, err := s.toMeasure(in.Body)
			if err != nil {
				return nil, err
			}
			return serve.Lines(func(ctx context.Context, send func(any) error) error { return s.measure(ctx, devices, profile, send) }), nil
		})
}

func (s server) status(ctx context.Context) (api.Status, error) {
	st, err := s.agent.Status(ctx)
	if err != nil {
		return st, fail(err)
	}
	st.Version, st.Since = s.program.Version, s.program.Since
	m, err := s.money(ctx)
	st.Owed, st.Today, st.Warnings = m.Owed, m.Today, append(st.Warnings, m.Warnings...)
	return st, fail(err)
}

func (s server) pause(ctx context.Context, in api.PauseRequest) (api.Status, error) {
	if err := s.agent.Pause(ctx, time.Duration(in.Seconds)*time.Second); err != nil {
		return api.Status{}, fail(err)
	}
	return s.status(ctx)
}

func (s server) watch(ctx context.Context, send func(any) error) error {
	for {
		news := s.agent.Changed()
		st, err := s.status(ctx)
		if err != nil {
			return err
		}
		if err := send(st); err != nil {
			return err
		}
		t := time.NewTimer(watchEvery)
		select {
		case <-ctx.Done():
			t.Stop()
			return nil
		case <-news:
		case <-t.C:
		}
		t.Stop()
	}
}

// toMeasure finds the devices that a request names.
func (s server) toMeasure(in api.BenchmarkRequest) ([]api.Device, benchmark.Profile, error) {
	profile := benchmark.Quick
	if in.Profile != "" {
		p, err := benchmark.ParseProfile(in.Profile)
		if err != nil {
			return nil, "", serve.Fail(http.StatusUnprocessableEntity, err, "")
		}
		profile = p
	}
	var devices []api.Device
	for _, d := range s.agent.Devices() {
		switch {
		case in.Device != "" && d.ID == in.Device, in.Device == "" && d.Kind == string(benchmark.KindCPU) && d.State != api.DeviceLeased:
			devices = append(devices, d)
		}
	}
	if len(devices) == 0 {
		return nil, "", serve.Fail(http.StatusNotFound, errors.New("benchmark: no such device that is free"), "gpufaird status lists the devices")
	}
	return devices, profile, nil
}

func (s server) measure(ctx context.Context, devices []api.Device, profile benchmark.Profile, send func(any) error) error {
	for _, d := range devices {
		h, err := wire.ParseHash(d.ID)
		if err != nil {
			h = benchmark.GPUDevice(d.ID)
		}
		var sendErr error
		err = s.agent.Measure(ctx, h, profile, func(step string, done float64) {
			if err := send(api.BenchmarkEvent{Device: d.ID, Step: step, Done: done}); sendErr == nil {
				sendErr = err
			}
		})
		e := api.BenchmarkEvent{Device: d.ID, Step: "done", Done: 1}
		if err != nil {
			e.Error = err.Error()
		} else {
			for _, now := range s.agent.Devices() {
				if now.ID == d.ID {
					e.Result = &now
				}
			}
		}
		if err := errors.Join(sendErr, send(e)); err != nil {
			return fmt.Errorf("benchmark progress: %w", err)
		}
	}
	return nil
}

// fail makes an error one for the owner.
func fail(err error) error {
	if err == nil {
		return nil
	}
	if r, ok := reason.Of(err); ok {
		advice, _ := r.Code.Advice()
		return serve.FailCode(http.StatusConflict, string(r.Code), errors.New(r.String()), advice.Owner)
	}
	switch {
	case errors.Is(err, provider.ErrNotFound):
		return serve.Fail(http.StatusNotFound, err, "gpufaird leases --all lists every lease")
	case errors.Is(err, provider.ErrUnstored):
		return serve.Fail(http.StatusConflict, err, "free disk space, look at `gpufaird status`, then give the command again")
	case errors.Is(err, provider.ErrAmbiguous):
		return serve.Fail(http.StatusConflict, err, "")
	}
	return serve.Fail(http.StatusInternalServerError, err, "the daemon's log says more")
}
