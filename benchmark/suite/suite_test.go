package suite

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpufair/gpufair/benchmark"
)

// plan is a kernel whose times are written down: the device's own clock is part of the kernel, so no real time passes.
type plan struct {
	each    func(run int) time.Duration // of one run of the kernel, by the number of its interval
	openErr error
	wrong   error
	calls   []string
	runs    []int           // n of each interval
	took    []time.Duration // of each interval
}

func (p *plan) Name() (figure benchmark.FigureID, family benchmark.KernelID, name, size string) {
	return benchmark.FigureFP32Matmul, benchmark.KernelGo, "plan 1", "n=1"
}

func (p *plan) Open(context.Context) error {
	p.calls = append(p.calls, "open")
	return p.openErr
}

func (p *plan) Run(_ context.Context, n int) (benchmark.Sample, error) {
	d := time.Duration(n) * p.each(len(p.runs))
	p.runs, p.took = append(p.runs, n), append(p.took, d)
	return benchmark.Sample{Work: uint64(n) * 1e6, Elapsed: d}, nil
}

func (p *plan) Check(context.Context) error {
	p.calls = append(p.calls, "check")
	return p.wrong
}

func (p *plan) Close() error {
	p.calls = append(p.calls, "close")
	return nil
}

type planned struct {
	kernels []Kernel
	long    Kernel
}

func (p planned) Describe() benchmark.Device { return benchmark.Device{} }
func (p planned) Kernels() []Kernel          { return p.kernels }
func (p planned) Close() error               { return nil }
func (p planned) Sustained() (Kernel, benchmark.FigureID) {
	return p.long, benchmark.FigureFP32Sustained
}

func always(d time.Duration) func(int) time.Duration { return func(int) time.Duration { return d } }

func TestWarmUpThenIntervals(t *testing.T) {
	for _, each := range []time.Duration{time.Microsecond, 7 * time.Millisecond, 40 * time.Millisecond, 50 * time.Millisecond, 2 * time.Second} {
		k := &plan{each: always(each)}
		var steps []string
		ms, err := Run(t.Context(), planned{kernels: []Kernel{k}}, benchmark.Quick, func(p Progress) { steps = append(steps, p.Step) })
		if err != nil {
			t.Fatal(err)
		}
		warm := len(k.took) - 10
		sum := time.Duration(0)
		for _, d := range k.took[:warm] {
			sum += d
		}
		if warm < 3 || sum < time.Second || sum > time.Second+3*2*time.Second {
			t.Errorf("each %s: warm up of %d runs and %s", each, warm, sum)
		}
		if low := slices.Min(k.took[warm:]); low < 50*time.Millisecond {
			t.Errorf("each %s: an interval of %s", each, low)
		}
		m := ms[0]
		if want := uint64(1/each.Seconds() + 0.5); m.Stats.Median != want || m.Stats.N != 10 || m.Stats.Spread != 0 || m.Stats.Unstable {
			t.Errorf("each %s: %+v, want median %d", each, m.Stats, want)
		}
		if !slices.Equal(steps, []string{"warm up", "measure", "check"}) || !slices.Equal(k.calls, []string{"open", "check", "close"}) {
			t.Errorf("each %s: steps %q, calls %q", each, steps, k.calls)
		}
		if m.Kernel != benchmark.KernelGo || m.KernelName != "plan 1" || m.Size != "n=1" {
			t.Errorf("%+v", m)
		}
	}
}

// noisy gives series of 10 intervals of 100 ms or so after a warm-up of 10, with the spreads given in per cent.
func noisy(spreads ...int) func(int) time.Duration {
	return func(run int) time.Duration {
		d := 100 * time.Millisecond
		if run < 10 {
			return d
		}
		spread := spreads[min((run-10)/10, len(spreads)-1)]
		return d + time.Duration((run%3-1)*spread)*time.Millisecond
	}
}

func TestUnsteadyFiguresAreMeasuredAgain(t *testing.T) {
	for _, c := range []struct {
		name     string
		spreads  []int
		series   int
		unstable bool
	}{
		{"steady", []int{1}, 1, false},
		{"at first", []int{20, 1}, 2, false},
		{"twice", []int{20, 20, 1}, 3, false},
		{"always", []int{20, 9, 30, 1}, 3, true},
	} {
		k := &plan{each: noisy(c.spreads...)}
		ms, err := Run(t.Context(), planned{kernels: []Kernel{k}}, benchmark.Quick, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := (len(k.runs) - 10) / 10; got != c.series || ms[0].Stats.Unstable != c.unstable {
			t.Errorf("%s: %d series, %+v", c.name, got, ms[0].Stats)
		}
		if c.unstable && (ms[0].Stats.Spread > 100_000 || ms[0].Stats.Spread < 50_000) {
			t.Errorf("%s: kept a spread of %d, the steadiest series has 9 %%", c.name, ms[0].Stats.Spread)
		}
	}
}

func TestSustainedLoadIsJudgedHot(t *testing.T) {
	k := &plan{}
	k.each = func(run int) time.Duration { // cool for a minute, then half as fast
		spent := time.Duration(0)
		for _, d := range k.took {
			spent += d
		}
		if spent < 59*time.Second {
			return 100 * time.Millisecond
		}
		return 200 * time.Millisecond
	}
	first := &plan{each: always(time.Second)}
	ms, err := Run(t.Context(), planned{kernels: []Kernel{first}, long: k}, benchmark.Standard, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(ms) != 2 || ms[1].Figure != benchmark.FigureFP32Sustained || ms[1].Stats.Median != 5 || ms[1].Stats.Unstable {
		t.Fatalf("%+v", ms)
	}
	spent := time.Duration(0)
	for _, d := range k.took {
		spent += d
	}
	checks := 0
	for _, c := range k.calls {
		if c == "check" {
			checks++
		}
	}
	if spent < 121*time.Second || spent > 125*time.Second || checks < len(k.runs)/11 {
		t.Errorf("held for %s with %d checks in %d intervals", spent, checks, len(k.runs))
	}
	// quick holds nothing
	k.calls = nil
	if ms, err := Run(t.Context(), planned{kernels: []Kernel{first}, long: k}, benchmark.Quick, nil); err != nil || len(ms) != 1 || k.calls != nil {
		t.Errorf("quick: %v %v %v", ms, err, k.calls)
	}
}

func TestRunStops(t *testing.T) {
	gone := errors.New("the owner is back")
	ctx, cancel := context.WithCancelCause(t.Context())
	for _, c := range []struct {
		name string
		ctx  context.Context
		k    *plan
		want error
	}{
		{"wrong result", t.Context(), &plan{each: always(time.Second), wrong: ErrWrong}, ErrWrong},
		{"no clock", t.Context(), &plan{each: always(0)}, ErrClock},
		{"no memory", t.Context(), &plan{each: always(time.Second), openErr: context.DeadlineExceeded}, context.DeadlineExceeded},
		{"cancelled", ctx, &plan{each: func(run int) time.Duration {
			if run == 5 {
				cancel(gone)
			}
			return time.Second
		}}, gone},
	} {
		other := &plan{each: always(time.Second)}
		ms, err := Run(c.ctx, planned{kernels: []Kernel{c.k, other}}, benchmark.Quick, nil)
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), "fp32_matmul") || ms != nil {
			t.Errorf("%s: %v, %v", c.name, ms, err)
		}
		if c.k.calls[len(c.k.calls)-1] != "close" || other.calls != nil {
			t.Errorf("%s: calls %q, of the next kernel %q", c.name, c.k.calls, other.calls)
		}
		if c.name == "cancelled" && len(c.k.runs) != 6 {
			t.Errorf("went on for %d intervals after the end", len(c.k.runs)-6)
		}
	}
}
