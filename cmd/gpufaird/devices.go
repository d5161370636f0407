package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/gpufair/gpufair/benchmark"
	"github.com/gpufair/gpufair/benchmark/lock"
	"github.com/gpufair/gpufair/benchmark/probe"
	"github.com/gpufair/gpufair/benchmark/suite"
	"github.com/gpufair/gpufair/p2p/wire"
	"github.com/gpufair/gpufair/provider"
)

// gpuNotYet is why a card is shown and not offered.
const gpuNotYet = "cards are not offered yet; gpufaird benchmark --device UUID measures one"

// lockName is what this daemon is called in the errors of others.
const lockName = "gpufaird run"

// devices fulfils provider.Devices: the configured cores, each device under a machine-wide lock that this process holds, and the cards
// that the driver shows. Safe for concurrent use.
type devices struct {
	machine benchmark.MachineID
	locks   string // folder
	probe   probe.Config
	log     *slog.Logger

	mu   sync.Mutex
	cpus map[wire.Hash]*cpu // guarded by mu; as configured
	gpus *benchmark.GPUs    // guarded by mu; nil: not asked yet
}

// cpu is one configured device.
type cpu struct {
	cores   benchmark.Cores
	held    *lock.Lock // nil: problem says why
	problem string
	at      int // place in the config
}

var _ provider.Devices = (*devices)(nil)

func newDevices(machine benchmark.MachineID, locks string, p probe.Config, log *slog.Logger) *devices {
	return &devices{machine: machine, locks: locks, probe: p, log: log, cpus: map[wire.Hash]*cpu{}}
}

// Configure takes the devices of the config and locks them. Locks of devices that are no longer there are given back, but for those that
// busy says a lease has.
func (d *devices) Configure(conf []cpuConfig, busy func(wire.Hash) bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	want := map[wire.Hash]*cpu{}
	for i, c := range conf {
		h := benchmark.CPUDevice(d.machine, c.Cores)
		if old, ok := d.cpus[h]; ok {
			old.at = i
			want[h] = old
			continue
		}
		want[h] = &cpu{cores: c.Cores, at: i}
	}
	var errs []error
	for h, old := range d.cpus {
		if want[h] != nil {
			continue
		}
		if busy(h) {
			errs = append(errs, fmt.Errorf("cores %s: a lease has them: stop it or wait for its end, then reload", old.cores))
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	for h, old := range d.cpus {
		if want[h] == nil && old.held != nil {
			errs = append(errs, old.held.Release())
		}
	}
	d.cpus = want
	d.lockAll()
	return errors.Join(errs...)
}

// lockAll tries for the locks that are missing, and says whether one was got. d.mu is held.
func (d *devices) lockAll() (got bool) {
	for _, c := range d.cpus {
		if c.held != nil {
			continue
		}
		held, err := lock.Acquire(d.locks, lockName, lock.CoreKeys(c.cores))
		if err != nil {
			if text := err.Error(); text != c.problem {
				c.problem = text
				d.log.Warn("device not offered", "cores", c.cores, "err", err)
			}
			continue
		}
		c.held, c.problem, got = held, "", true
	}
	return got
}

// Retry tries again for the locks that another process held, and says whether one was got.
func (d *devices) Retry() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.lockAll()
}

// Close gives the locks back.
func (d *devices) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var errs []error
	for _, c := range d.cpus {
		if c.held != nil {
			errs = append(errs, c.held.Release())
			c.held = nil
		}
	}
	return errors.Join(errs...)
}

// List implements provider.Devices.
func (d *devices) List(ctx context.Context) ([]provider.Device, error) {
	gpus := d.cards(ctx)
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make([]provider.Device, len(d.cpus), len(d.cpus)+len(gpus.Cards))
	for h, c := range d.cpus {
		dev, err := suite.DescribeCPU(c.cores)
		v := provider.Device{Device: dev, UUID: h.String(), Problem: c.problem}
		if err != nil { // such as a core that is not there
			v.Device = benchmark.Device{Hash: h, Kind: benchmark.KindCPU, Cores: c.cores}
			v.Problem = err.Error()
		}
		out[c.at] = v
	}
	for _, g := range gpus.Cards {
		v := provider.Device{
			Device: benchmark.Device{Hash: g.Device, Kind: benchmark.KindGPU, Model: g.Name, MemoryMiB: g.MemoryMiB, Driver: gpus.Driver},
			UUID:   g.UUID, Problem: gpuNotYet,
		}
		if g.Problem != nil {
			v.Problem = g.Problem.Error()
		}
		out = append(out, v)
	}
	return out, nil
}

// cards asks the driver, once: a child process costs a second, and cards do not come and go.
func (d *devices) cards(ctx context.Context) benchmark.GPUs {
	d.mu.Lock()
	known := d.gpus
	d.mu.Unlock()
	if known != nil {
		return *known
	}
	found, err := probe.Detect(ctx, d.probe)
	if err != nil {
		d.log.Warn("cards not listed", "err", err)
		return benchmark.GPUs{}
	}
	if p := found.GPUs.Problem; p != nil {
		d.log.Info("no GPU", "why", p.Text)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.gpus = &found.GPUs
	return found.GPUs
}

// Measure implements provider.Devices: in a child, under the lock that this process holds.
func (d *devices) Measure(ctx context.Context, device wire.Hash, profile benchmark.Profile,
	progress func(step string, done float64),
) (benchmark.Report, error) {
	d.mu.Lock()
	c := d.cpus[device]
	var held *lock.Lock
	if c != nil {
		held = c.held
	}
	d.mu.Unlock()
	switch {
	case c == nil:
		return benchmark.Report{}, fmt.Errorf("device %s: %w: the daemon measures only configured cores; %s", device.Short(), provider.ErrNotFound, gpuNotYet)
	case held == nil:
		return benchmark.Report{}, fmt.Errorf("device %s: %w", device.Short(), probe.ErrUnlocked)
	}
	return probe.MeasureCPU(ctx, d.probe, held, c.cores, profile, func(p suite.Progress) {
		done := 0.0
		if p.Total > 0 {
			done = float64(p.Done) / float64(p.Total)
		}
		progress(fmt.Sprintf("%s: %s", p.Figure, p.Step), done)
	})
}

// Read implements provider.Devices: the clock of the cores. What a processor uses of energy is told for all of its cores together, to root
// only, and so not of one lease.
func (d *devices) Read(_ context.Context, leased []wire.Hash) (provider.Reading, error) {
	d.mu.Lock()
	var cores benchmark.Cores
	for _, h := range leased {
		if c := d.cpus[h]; c != nil {
			cores = append(cores, c.cores...)
		}
	}
	d.mu.Unlock()
	mhz, err := suite.ClockMHz(cores)
	return provider.Reading{ClockMHz: mhz}, err
}

// lockEvery is how often locks that another process held are tried again.
const lockEvery = 15 * time.Second

// watch tries for missing locks until ctx ends, and calls got when it has one.
func (d *devices) watch(ctx context.Context, got func()) error {
	t := time.NewTicker(lockEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
			if d.Retry() {
				got()
			}
		}
	}
}
