//go:build linux && cgo

package gpu

import (
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/gpufair/gpufair/benchmark"
	"github.com/gpufair/gpufair/benchmark/suite"
)

// gemm is the product of two random square matrices. Their numbers follow from a seed, so that the host knows them without a copy.
type gemm struct {
	kernel  string // "sgemm" or "bf16_gemm", whose B is transposed
	n       uint64
	a, b, c uint64
	x       []float64  // random signs
	rows    []knownRow // of the product
}

// knownRow is a row of the product with what it must be, times x.
type knownRow struct {
	row  uint64
	want float64
}

const (
	gemmRows  = 16   // that are checked (spec: gpu, 4)
	gemmLimit = 1e-4 // of the RMS of their residuals over sqrt(n), at n = 1024; FP16 sums give 1e-2
	gemmTile  = 128  // n is a multiple
)

// gemmSize is the side of the matrices: 8192 on cards with 8 GiB free, less where memory is short.
func (c *Card) gemmSize() uint64 {
	n := uint64(8192)
	if c.free < 8<<30 {
		n = 4096
	}
	for n > gemmTile && 3*4*n*n > c.free/2 {
		n /= 2
	}
	return n
}

func (c *Card) gemm(id benchmark.FigureID, kernel string) *job {
	n := c.gemmSize()
	return &job{card: c, figure: id, size: fmt.Sprintf("n=%d", n), work: &gemm{kernel: kernel, n: n}}
}

// products are the matrix products that this card's kernels have.
func (c *Card) products() []suite.Kernel {
	out := []suite.Kernel{c.gemm(benchmark.FigureFP32Matmul, "sgemm")}
	if _, ok := c.mods.find("bf16_gemm"); ok {
		out = append(out, c.gemm(benchmark.FigureBF16Matmul, "bf16_gemm"))
	}
	return out
}

// Kernels are what is measured, in order.
func (c *Card) Kernels() []suite.Kernel {
	out := append(c.streams(), c.links()...)
	out = append(out, c.rates()...)
	out = append(out, c.products()...)
	return append(out, c.memTest())
}

// Sustained is the product of BF16 for minutes, or of FP32 on cards that have none.
func (c *Card) Sustained() (suite.Kernel, benchmark.FigureID) {
	if _, ok := c.mods.find("bf16_gemm"); ok {
		return c.gemm(benchmark.FigureBF16Matmul, "bf16_gemm"), benchmark.FigureBF16Sustained
	}
	return c.gemm(benchmark.FigureFP32Matmul, "sgemm"), benchmark.FigureFP32Sustained
}

func (g *gemm) open(j *job) (err error) {
	fill, size := "fill_f32", uint64(4)
	if g.kernel == "bf16_gemm" {
		fill, size = "fill_bf16", 2
	}
	count := g.n * g.n
	for i, p := range []*uint64{&g.a, &g.b} {
		if *p, err = j.alloc(count * size); err != nil {
			return err
		}
		if err := j.each(fill, *p, count, uint64(i+1)); err != nil {
			return err
		}
	}
	if g.c, err = j.alloc(count * 4); err != nil {
		return err
	}
	g.know()
	return nil
}

// number i of matrix seed, as the card has it.
func (g *gemm) number(seed, i uint64) float64 {
	v := unit(seed, i)
	if g.kernel != "bf16_gemm" {
		return v
	}
	bits := math.Float32bits(float32(v))
	return float64(math.Float32frombits((bits + 0x7fff + bits>>16&1) &^ 0xffff))
}

// know makes the rows that are checked: A(Bx) for a random x of signs is n^2 work (R. Freivalds, 1977).
func (g *gemm) know() {
	n := g.n
	g.x, g.rows = make([]float64, n), nil
	for i := range g.x {
		g.x[i] = float64(2*rand.IntN(2) - 1)
	}
	y := make([]float64, n) // Bx
	for r := range n {
		for c := range n {
			v := g.number(2, r*n+c)
			if g.kernel == "bf16_gemm" {
				y[c] += v * g.x[r]
			} else {
				y[r] += v * g.x[c]
			}
		}
	}
	for range gemmRows {
		row := knownRow{row: rand.Uint64N(n)}
		for k := range n {
			row.want += g.number(1, row.row*n+k) * y[k]
		}
		g.rows = append(g.rows, row)
	}
}

func (g *gemm) run(j *job, n int) (uint64, error) {
	tiles := uint32(g.n / gemmTile)
	for range n {
		if err := j.launch(g.kernel, tiles, tiles, 256, g.a, g.b, g.c, uint32(g.n)); err != nil {
			return 0, err
		}
	}
	return uint64(n) * 2 * g.n * g.n * g.n, nil
}

func (g *gemm) check(j *job) error {
	sum := 0.0
	for _, r := range g.rows {
		b, err := j.card.read(g.c+r.row*g.n*4, int(g.n*4))
		if err != nil {
			return err
		}
		got := 0.0
		for i, v := range view[float32](b) {
			got += float64(v) * g.x[i]
		}
		sum += (got - r.want) * (got - r.want) / float64(g.n)
	}
	rms := math.Sqrt(sum / gemmRows)
	if limit := gemmLimit * math.Sqrt(float64(g.n)) / 32; !(rms <= limit) { // a NaN is wrong too
		return fmt.Errorf("%w: the product by %s is off by %.2g, %.2g is allowed; the card is broken or set too fast: take back its overclocking",
			suite.ErrWrong, g.kernel, rms, limit)
	}
	return nil
}
