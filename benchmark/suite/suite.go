// Package suite owns how a device is measured: the Device and Kernel that every kind of device fulfils, the rules of a run (warm-up,
// intervals, repeats, spread), and the CPU as a device. It knows no network, no market and no driver of GPUs, and keeps no results.
package suite

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/gpufair/gpufair/benchmark"
)

// Device is something that can be measured. It belongs to one goroutine.
type Device interface {
	// Describe says what the device is.
	Describe() benchmark.Device
	// Kernels are what to measure, in order.
	Kernels() []Kernel
	// Sustained is the kernel of the long load and the figure it gives; a nil kernel if the device has none.
	Sustained() (Kernel, benchmark.FigureID)
	// Close gives back what the device holds.
	Close() error
}

// Watched is a device that is looked at while its kernels run.
type Watched interface {
	Device
	// Watch looks at the device until stop is called, which tells what was seen. Where the device fails meanwhile the context ends, and
	// stop gives the reason.
	Watch(ctx context.Context) (watched context.Context, stop func() (*benchmark.Conditions, error))
	// Judge says whether the device can honestly have reached what was measured; if not, it is [benchmark.ErrFalse].
	Judge(m benchmark.Measurement) error
}

// Kernel is one piece of work that is measured to one figure. Calls come in this order: Open, Run many times, Check, Close.
type Kernel interface {
	// Name is the figure, the kernel's family, its name with version, and the size of the work.
	Name() (figure benchmark.FigureID, family benchmark.KernelID, name, size string)
	// Open makes the data, random where its values could matter for speed.
	Open(ctx context.Context) error
	// Run does the work n times and times it by the device's own clock, from the first operation to the last result.
	Run(ctx context.Context, n int) (benchmark.Sample, error)
	// Check finds out whether the last result is right. A wrong one is [ErrWrong].
	Check(ctx context.Context) error
	// Close frees the data. It may follow a failed Open.
	Close() error
}

var (
	// ErrWrong says that a device computed a wrong result: a broken library, or broken hardware.
	ErrWrong = errors.New("wrong result")
	// ErrClock says that a kernel's work takes no time, so that nothing can be measured.
	ErrClock = errors.New("work without elapsed time")
)

// Progress tells how far a run is.
type Progress struct {
	Figure benchmark.FigureID `json:"figure"`
	Step   string             `json:"step"`   // "warm up", "measure", "check" or "sustain"
	Series int                `json:"series"` // 1 to benchmark.MaxSeries: an unsteady figure is measured again
	Done   int                `json:"done"`   // kernels finished
	Total  int                `json:"total"`  // kernels of the run
}

// Run measures dev by profile p and calls on (may be nil) as it goes, in the same goroutine. An error names the figure it stopped at;
// ctx ends the run between two intervals.
func Run(ctx context.Context, dev Device, p benchmark.Profile, on func(Progress)) ([]benchmark.Measurement, error) {
	if on == nil {
		on = func(Progress) {}
	}
	kernels := dev.Kernels()
	long, id := dev.Sustained()
	total := len(kernels)
	if p.Sustained() == 0 {
		long = nil
	}
	if long != nil {
		total++
	}
	var out []benchmark.Measurement
	for i, k := range kernels {
		r := run{dev: dev, kernel: k, profile: p, on: on, at: Progress{Done: i, Total: total}}
		m, err := r.measure(ctx)
		if err != nil {
			return nil, fmt.Errorf("measure %s: %w", m.Figure, err)
		}
		out = append(out, m)
	}
	if long != nil {
		r := run{dev: dev, kernel: long, profile: p, on: on, at: Progress{Done: len(kernels), Total: total}}
		m, err := r.sustain(ctx, id)
		if err != nil {
			return nil, fmt.Errorf("measure %s: %w", id, err)
		}
		out = append(out, m)
	}
	return out, nil
}

// run is the measuring of one kernel.
type run struct {
	dev     Device
	kernel  Kernel
	profile benchmark.Profile
	on      func(Progress)
	at      Progress
	n       int // runs of the kernel in one interval
}

func (r *run) open(ctx context.Context) (m benchmark.Measurement, err error) {
	m.Figure, m.Kernel, m.KernelName, m.Size = r.kernel.Name()
	r.at.Figure, r.at.Series = m.Figure, 1
	if err := r.kernel.Open(ctx); err != nil {
		return m, errors.Join(err, r.kernel.Close())
	}
	return m, nil
}

func (r *run) step(name string) {
	r.at.Step = name
	r.on(r.at)
}

func (r *run) measure(ctx context.Context) (m benchmark.Measurement, err error) {
	if m, err = r.open(ctx); err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, r.kernel.Close()) }()
	if err := r.warmUp(ctx); err != nil {
		return m, err
	}
	m.Conditions, err = r.watched(ctx, func(ctx context.Context) error { return r.steady(ctx, &m) })
	if err != nil {
		return m, err
	}
	r.step("check")
	return m, errors.Join(r.kernel.Check(ctx), r.judge(m))
}

// watched does a part of the run while the device is looked at, if it can be.
func (r *run) watched(ctx context.Context, part func(context.Context) error) (*benchmark.Conditions, error) {
	w, ok := r.dev.(Watched)
	if !ok {
		return nil, part(ctx)
	}
	ctx, stop := w.Watch(ctx)
	err := part(ctx)
	seen, fault := stop()
	if fault != nil {
		err = fault // the part failed because of it, or will
	}
	return seen, err
}

func (r *run) judge(m benchmark.Measurement) error {
	if w, ok := r.dev.(Watched); ok {
		return w.Judge(m)
	}
	return nil
}

// steady measures series until one is steady enough, and keeps the steadiest.
func (r *run) steady(ctx context.Context, m *benchmark.Measurement) error {
	m.Stats.Spread = math.MaxUint32
	for series := 1; series <= benchmark.MaxSeries; series++ {
		r.at.Series = series
		r.step("measure")
		samples, err := r.series(ctx)
		if err != nil {
			return err
		}
		if s := benchmark.Summarise(samples); s.Spread < m.Stats.Spread || series == 1 {
			m.Stats = s
		}
		if m.Stats.Spread <= benchmark.MaxSpread {
			break
		}
	}
	m.Stats.Unstable = m.Stats.Spread > benchmark.MaxSpread
	return nil
}

// warmUp runs the kernel until it ran often and long enough, and finds how many runs make an interval.
func (r *run) warmUp(ctx context.Context) error {
	r.step("warm up")
	r.n = 1
	var spent time.Duration
	for runs := 0; runs < benchmark.WarmUpRuns || spent < benchmark.WarmUpTime; runs++ {
		s, err := r.interval(ctx)
		if err != nil {
			return err
		}
		spent += s.Elapsed
	}
	return nil
}

// series is one series of timed intervals, each of at least [benchmark.MinInterval].
func (r *run) series(ctx context.Context) ([]benchmark.Sample, error) {
	samples := make([]benchmark.Sample, 0, r.profile.Repeats())
	for len(samples) < r.profile.Repeats() {
		s, err := r.interval(ctx)
		if err != nil {
			return nil, err
		}
		if s.Elapsed >= benchmark.MinInterval {
			samples = append(samples, s)
		}
	}
	return samples, nil
}

// maxRuns of a kernel in an interval: one that needs more has no clock.
const maxRuns = 1 << 28

// interval runs the kernel once for the current count. A too short interval raises the count for the next.
func (r *run) interval(ctx context.Context) (benchmark.Sample, error) {
	if err := ctx.Err(); err != nil {
		return benchmark.Sample{}, context.Cause(ctx)
	}
	s, err := r.kernel.Run(ctx, r.n)
	if err != nil {
		return s, err
	}
	if s.Elapsed >= benchmark.MinInterval {
		return s, nil
	}
	if r.n >= maxRuns {
		return s, fmt.Errorf("%w: %d runs in %s", ErrClock, r.n, s.Elapsed)
	}
	// aim a fifth above the limit, and never jump more than tenfold on the word of one short interval
	aim := 1.2 * float64(benchmark.MinInterval) / float64(max(s.Elapsed, 1))
	r.n = max(r.n+1, int(float64(r.n)*min(aim, 10)))
	return s, nil
}

// sustain holds the device under load and gives the figure of the last half, when it is hot. The result is checked at the end of
// every tenth interval, since heat makes errors too.
func (r *run) sustain(ctx context.Context, id benchmark.FigureID) (m benchmark.Measurement, err error) {
	if m, err = r.open(ctx); err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, r.kernel.Close()) }()
	m.Figure, r.at.Figure = id, id
	if err := r.warmUp(ctx); err != nil {
		return m, err
	}
	m.Conditions, err = r.watched(ctx, func(ctx context.Context) error { return r.hold(ctx, &m) })
	if err != nil {
		return m, err
	}
	return m, errors.Join(r.kernel.Check(ctx), r.judge(m))
}

func (r *run) hold(ctx context.Context, m *benchmark.Measurement) error {
	var samples []benchmark.Sample
	var spent time.Duration
	half := 0
	for i := 1; spent < r.profile.Sustained(); i++ {
		s, err := r.interval(ctx)
		if err != nil {
			return err
		}
		spent += s.Elapsed
		if spent < r.profile.Sustained()/2 {
			half = len(samples) + 1
		}
		samples = append(samples, s)
		if i%10 == 0 {
			r.step("sustain")
			if err := r.kernel.Check(ctx); err != nil {
				return err
			}
		}
	}
	m.Stats = benchmark.Summarise(samples[half:])
	m.Stats.Unstable = m.Stats.Spread > benchmark.MaxSpread
	return nil
}
