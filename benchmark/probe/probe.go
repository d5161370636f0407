// Package probe owns the child process that detects and measures devices: how it is started, spoken to over a pipe, bounded and ended,
// and what its failures are called. It knows what is asked and answered, but no driver: a hung card or a library that ends its process
// then costs the child, never the daemon.
package probe

import (
	"context"
	"io"
	"log/slog"
	"time"

	"github.com/gpufair/gpufair/benchmark"
	"github.com/gpufair/gpufair/benchmark/lock"
	"github.com/gpufair/gpufair/benchmark/suite"
)

// Config is how the child is started.
type Config struct {
	Command []string      // the child's argv: this program's own path (os.Executable) and its hidden verb
	Grace   time.Duration // between SIGTERM and SIGKILL; 0 is 5 s
	Log     *slog.Logger  // takes the child's stderr, line by line; nil is slog.Default()
}

// GPUDetector asks the driver for its cards, in the child. benchmark/gpu.Detect is the one of the daemon.
type GPUDetector func(ctx context.Context) benchmark.GPUs

// Detect starts a child that lists what the machine has, and ends it. It takes at most 15 s.
func Detect(ctx context.Context, c Config) (benchmark.Detection, error) {
	return benchmark.Detection{}, nil
}

// MeasureCPU starts a child that measures cores as one device by profile, and ends it. held must cover the cores
// ([lock.CoreKeys]): nobody else may use them meanwhile. on (may be nil) is called with each step, from one goroutine.
func MeasureCPU(ctx context.Context, c Config, held *lock.Lock, cores benchmark.Cores, profile benchmark.Profile,
	on func(suite.Progress),
) (benchmark.Report, error) {
	return benchmark.Report{}, nil
}

// Serve is the child's main: it answers the one request on in and returns. It ends early when in ends, as it does when the parent
// dies, or when ctx does; the caller ties ctx to SIGTERM.
func Serve(ctx context.Context, in io.Reader, out io.Writer, gpus GPUDetector) error { return nil }
