// Package probe owns the child process that detects and measures devices: how it is started, spoken to over a pipe, bounded and ended,
// and what its failures are called. It knows what is asked and answered, but no driver: a hung card or a library that ends its process
// then costs the child, never the daemon.
package probe

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/gpufair/gpufair/benchmark"
	"github.com/gpufair/gpufair/benchmark/lock"
	"github.com/gpufair/gpufair/benchmark/suite"
)

// Config is how the child is started.
type Config struct {
	Command []string      // the child's argv: this program's own path (os.Executable) and its hidden verb
	Grace   time.Duration // between SIGTERM and SIGKILL; 0 is 5 s. A killed NVML client has frozen a card (NVIDIA/dcgm-exporter#84)
	Limit   time.Duration // for a detection; 0 is 15 s. A driver that needs longer hangs (spec: gpu, 5: 10 s for a call of NVML)
	Log     *slog.Logger  // takes the child's stderr, line by line; nil is slog.Default()
}

const (
	defaultGrace = 5 * time.Second
	detectLimit  = 15 * time.Second
)

var (
	// ErrTimeout says that the child did not answer in time.
	ErrTimeout = errors.New("took too long")
	// ErrGarbage says that the child's output is not an answer.
	ErrGarbage = errors.New("no answer that can be read")
	// ErrUnlocked says that a measurement was asked for on devices that others may be using.
	ErrUnlocked = errors.New("device is not locked")
)

// Driver is what the child can do with cards; the daemon's is of benchmark/gpu.
type Driver struct {
	Detect func(ctx context.Context) benchmark.GPUs        // asks the driver for its cards
	Open   func(uuid string) (dev suite.Device, err error) // makes a card a device, for the goroutine that calls
}

// Detect says what the machine has. Linux is asked about the CPU here, the driver about its cards in a child that takes at most 15 s.
// A child that fails is no error: the answer then has its failure as the GPUs' problem, with code "crashed", "hung" or "garbage".
func Detect(ctx context.Context, c Config) (benchmark.Detection, error) {
	cpu, err := suite.DetectCPU()
	if err != nil {
		return benchmark.Detection{}, err
	}
	if c.Limit <= 0 {
		c.Limit = detectLimit
	}
	answer, err := ask(ctx, c, request{Op: opDetect}, c.Limit, nil)
	switch {
	case err == nil && answer.GPUs != nil:
		return benchmark.Detection{CPU: cpu, GPUs: *answer.GPUs}, nil
	case err == nil:
		err = fmt.Errorf("%w: another answer than was asked for", ErrGarbage)
	case ctx.Err() != nil:
		return benchmark.Detection{}, fmt.Errorf("detect devices: %w", err)
	}
	return benchmark.Detection{CPU: cpu, GPUs: benchmark.GPUs{Problem: problem(err)}}, nil
}

func problem(err error) *benchmark.Problem {
	p := &benchmark.Problem{Code: "crashed", Text: "asking the driver for cards: " + err.Error()}
	p.Advice = "run nvidia-smi; if it fails too, reinstall the driver and reboot"
	switch {
	case errors.Is(err, ErrTimeout):
		p.Code, p.Advice = "hung", "a card or its driver hangs: reboot this machine"
	case errors.Is(err, ErrGarbage):
		p.Code = "garbage"
	}
	return p
}

// MeasureCPU starts a child that measures cores as one device by profile, and ends it. held must cover the cores
// ([lock.CoreKeys]): nobody else may use them meanwhile ([ErrUnlocked]). on (may be nil) is called with each step, from one goroutine
// at a time. Failures are [*Crash], [*Failure] (which wraps [suite.ErrWrong] and [suite.ErrCoreAbsent]), [ErrTimeout], [ErrGarbage], or
// ctx's own.
func MeasureCPU(ctx context.Context, c Config, held *lock.Lock, cores benchmark.Cores, profile benchmark.Profile,
	on func(suite.Progress),
) (benchmark.Report, error) {
	if !held.Covers(lock.CoreKeys(cores)) {
		return benchmark.Report{}, fmt.Errorf("measure cores %s: %w: claim its cores first", cores, ErrUnlocked)
	}
	answer, err := ask(ctx, c, request{Op: opMeasureCPU, Cores: cores, Profile: profile}, profile.Limit(), on)
	if err != nil {
		return benchmark.Report{}, fmt.Errorf("measure cores %s: %w", cores, err)
	}
	if answer.Report == nil {
		return benchmark.Report{}, fmt.Errorf("measure cores %s: %w: another answer than was asked for", cores, ErrGarbage)
	}
	return *answer.Report, nil
}

// MeasureGPU starts a child that measures the card of uuid by profile, and ends it. held must cover the card ([lock.GPUKey]). The rest is
// as with [MeasureCPU].
func MeasureGPU(ctx context.Context, c Config, held *lock.Lock, uuid string, profile benchmark.Profile, on func(suite.Progress)) (benchmark.Report, error) {
	if !held.Covers([]lock.Key{lock.GPUKey(uuid)}) {
		return benchmark.Report{}, fmt.Errorf("measure card %s: %w: claim it first", uuid, ErrUnlocked)
	}
	answer, err := ask(ctx, c, request{Op: opMeasureGPU, UUID: uuid, Profile: profile}, profile.Limit(), on)
	if err != nil {
		return benchmark.Report{}, fmt.Errorf("measure card %s: %w", uuid, err)
	}
	if answer.Report == nil {
		return benchmark.Report{}, fmt.Errorf("measure card %s: %w: another answer than was asked for", uuid, ErrGarbage)
	}
	return *answer.Report, nil
}
