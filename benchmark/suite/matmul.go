package suite

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/gpufair/gpufair/benchmark"
)

// How far an honest product may be off: RMS of the residual of one random vector, over sqrt(n), at n = 1024 (spec: gpu, 4: honest FP32
// sits near 4e-7, FP16 accumulation at 1e-2). FP64 is 5e8 times finer; its limit still catches a product made in FP32.
const (
	tolerance32 = 1e-4
	tolerance64 = 1e-11
)

type float interface{ float32 | float64 }

// matmul is the product of two random square matrices.
type matmul[T float] struct {
	figure    benchmark.FigureID
	lib       library
	gemm      func(n int, a, b, c []T)
	n         int
	tolerance float64
	a, b, c   []T
}

func newMatmul[T float](figure benchmark.FigureID, lib library, gemm func(n int, a, b, c []T), n int, tolerance float64) *matmul[T] {
	return &matmul[T]{figure: figure, lib: lib, gemm: gemm, n: n, tolerance: tolerance}
}

// Name is the figure and the library.
func (m *matmul[T]) Name() (figure benchmark.FigureID, family benchmark.KernelID, name, size string) {
	return m.figure, m.lib.family, m.lib.name, fmt.Sprintf("n=%d", m.n)
}

// Open makes two matrices of random numbers between -0.5 and 0.5: zeros would flatter (spec: gpu, 3).
func (m *matmul[T]) Open(context.Context) error {
	m.a, m.b, m.c = make([]T, m.n*m.n), make([]T, m.n*m.n), make([]T, m.n*m.n)
	for i := range m.a {
		m.a[i], m.b[i] = T(rand.Float64()-0.5), T(rand.Float64()-0.5)
	}
	return nil
}

// Run multiplies times times: 2n^3 FLOP each.
func (m *matmul[T]) Run(_ context.Context, times int) (benchmark.Sample, error) {
	start := time.Now()
	for range times {
		m.gemm(m.n, m.a, m.b, m.c)
	}
	n := uint64(m.n)
	return benchmark.Sample{Work: 2 * n * n * n * uint64(times), Elapsed: time.Since(start)}, nil
}

// Check compares C*r with A*(B*r) for a random r of signs, in FP64: n^2 work finds nearly every wrong product of n^3 (R. Freivalds,
// Probabilistic machines can use less running time, 1977).
func (m *matmul[T]) Check(context.Context) error {
	r := make([]float64, m.n)
	for i := range r {
		r[i] = float64(2*rand.IntN(2) - 1)
	}
	want, got := product(m.a, product(m.b, r)), product(m.c, r)
	sum := 0.0
	for i := range want {
		d := got[i] - want[i]
		sum += d * d
	}
	residual := math.Sqrt(sum) / float64(m.n)                                      // RMS over sqrt(n)
	if limit := m.tolerance * math.Sqrt(float64(m.n)) / 32; !(residual <= limit) { // a NaN is wrong too
		return fmt.Errorf("%w: the product by %s is off by %.2g, %.2g is allowed; reinstall the library, or test the machine's memory",
			ErrWrong, m.lib.name, residual, limit)
	}
	return nil
}

// Close frees the matrices.
func (m *matmul[T]) Close() error {
	m.a, m.b, m.c = nil, nil, nil
	return nil
}

// product is the square matrix m, row by row, times x.
func product[T float](m []T, x []float64) []float64 {
	n := len(x)
	y := make([]float64, n)
	for i := range y {
		sum := 0.0
		for j, v := range m[i*n : (i+1)*n] {
			sum += float64(v) * x[j]
		}
		y[i] = sum
	}
	return y
}
