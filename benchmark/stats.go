package benchmark

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// The rules of measuring (spec: gpu, 3).
const (
	MinInterval = 50 * time.Millisecond // of queued work in each timed interval, so that starts and clocks do not count
	WarmUpRuns  = 3                     // and
	WarmUpTime  = time.Second           // before the first interval: clocks leave their idle state
	MaxSpread   = 30_000                // parts per million of MAD/median: above 3 % the series is repeated
	MaxSeries   = 3                     // series of intervals before a figure is called unstable
)

// Sample is one timed interval: so much work (FLOP or bytes) in so much time.
type Sample struct {
	Work    uint64
	Elapsed time.Duration
}

// Rate is the sample in 10^6 units of work a second, as figures are stored.
func (s Sample) Rate() float64 {
	if s.Elapsed <= 0 {
		return 0
	}
	return float64(s.Work) / 1e6 / s.Elapsed.Seconds()
}

// Stats is what a series of intervals says about one figure, in the figure's stored unit.
type Stats struct {
	Median   uint64 `cbor:"1,keyasint" json:"median"`
	P5       uint64 `cbor:"2,keyasint" json:"p5"`
	P95      uint64 `cbor:"3,keyasint" json:"p95"`
	Spread   uint32 `cbor:"4,keyasint" json:"spread_ppm"` // median absolute deviation / median, in parts per million
	N        uint32 `cbor:"5,keyasint" json:"n"`          // intervals
	Unstable bool   `cbor:"6,keyasint,omitempty" json:"unstable,omitempty"`
}

// Summarise makes the statistics of a series. An empty one gives zeros. It does not judge: Unstable is set by who repeated the series.
func Summarise(samples []Sample) Stats {
	if len(samples) == 0 {
		return Stats{}
	}
	rates := make([]float64, len(samples))
	for i, s := range samples {
		rates[i] = s.Rate()
	}
	slices.Sort(rates)
	mid := quantile(rates, 0.5)
	dev := make([]float64, len(rates))
	for i, r := range rates {
		dev[i] = math.Abs(r - mid)
	}
	slices.Sort(dev)
	spread := uint32(math.MaxUint32)
	if mid > 0 {
		spread = uint32(min(math.Round(quantile(dev, 0.5)/mid*1e6), math.MaxUint32))
	}
	return Stats{
		Median: uint64(math.Round(mid)), P5: uint64(math.Round(quantile(rates, 0.05))), P95: uint64(math.Round(quantile(rates, 0.95))),
		Spread: spread, N: uint32(len(rates)),
	}
}

// quantile of sorted values, linear between neighbours (Hyndman and Fan, type 7).
func quantile(sorted []float64, q float64) float64 {
	at := q * float64(len(sorted)-1)
	i := int(at)
	if i+1 >= len(sorted) {
		return sorted[len(sorted)-1]
	}
	return sorted[i] + (at-float64(i))*(sorted[i+1]-sorted[i])
}

// Percent is the spread for people: "0.4%".
func (s Stats) Percent() string { return fmt.Sprintf("%.1f%%", float64(s.Spread)/1e4) }

// Measurement is one figure with how it came about.
type Measurement struct {
	Figure     FigureID    `cbor:"1,keyasint" json:"figure"`
	Kernel     KernelID    `cbor:"2,keyasint" json:"kernel"`
	KernelName string      `cbor:"3,keyasint" json:"kernel_name"` // with version and target: "openblas 0.3.21 (Zen)"
	Size       string      `cbor:"4,keyasint" json:"size"`        // of the work: "n=1024", "3 x 128 MiB"
	Stats      Stats       `cbor:"5,keyasint" json:"stats"`
	Conditions *Conditions `cbor:"6,keyasint,omitempty" json:"conditions,omitempty"` // of a card
}

// Value is the figure as offers carry it: the median.
func (m Measurement) Value() Figure {
	return Figure{ID: m.Figure, Value: m.Stats.Median, Kernel: m.Kernel}
}

// String is the measurement for people: "fp32_matmul 87.3 GFLOPS, openblas 0.3.21 (Zen), n=1024, spread 0.4%".
func (m Measurement) String() string {
	f := Figure{ID: m.Figure, Value: m.Stats.Median}
	flag := ""
	if m.Stats.Unstable {
		flag = ", unstable"
	}
	return fmt.Sprintf("%s, %s, %s, spread %s%s", f, m.KernelName, m.Size, m.Stats.Percent(), flag)
}
