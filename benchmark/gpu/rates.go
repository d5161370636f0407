//go:build linux && cgo

package gpu

import (
	"fmt"
	"math"

	"github.com/gpufair/gpufair/benchmark"
	"github.com/gpufair/gpufair/benchmark/suite"
)

// rate is a loop in registers: arithmetic without memory.
type rate struct {
	kernel string
	flop   uint64 // of a thread in one round of the loop
	bytes  uint64 // that a thread writes at the end
	// right tells whether the values that the threads of one warp wrote are right after so many rounds
	right func(warp uint64, b []byte, rounds uint32) bool
	out   uint64
	last  uint32 // rounds
}

const (
	rateThreads = 256 // a block
	rateBlocks  = 4   // a multiprocessor
	rateRounds  = 16  // of the loop in one unit of work: even, since the tensor loops add and take away in turn
	// of the chains x = a x + b
	chainA, chainB = -0.96875, 0.75
)

// flop of one mma.sync of m x n x k a thread, 8 of them in a round.
func mmaFLOP(m, n, k uint64) uint64 { return 8 * 2 * m * n * k / 32 }

// rates are the loops that this card's kernels have. On cards without the m16n8k16 of FP16 that of m16n8k8 gives the same figure.
func (c *Card) rates() []suite.Kernel {
	f16 := rate{kernel: "f16_rate", flop: mmaFLOP(16, 8, 16), bytes: 128, right: float32s}
	if _, ok := c.mods.find(f16.kernel); !ok {
		f16.kernel, f16.flop = "f16_k8_rate", mmaFLOP(16, 8, 8)
	}
	var out []suite.Kernel
	for _, r := range []struct {
		id benchmark.FigureID
		rate
	}{
		{benchmark.FigureFP32Rate, rate{kernel: "fp32_rate", flop: 2 * 16, bytes: 4, right: chain32}},
		{benchmark.FigureFP64Rate, rate{kernel: "fp64_rate", flop: 2 * 8, bytes: 8, right: chain64}},
		{benchmark.FigureFP16Tensor, f16},
		{benchmark.FigureFP16AccTensor, rate{kernel: "f16acc_rate", flop: mmaFLOP(16, 8, 16), bytes: 64, right: float16s}},
		{benchmark.FigureBF16Tensor, rate{kernel: "bf16_rate", flop: mmaFLOP(16, 8, 16), bytes: 128, right: float32s}},
		{benchmark.FigureTF32Tensor, rate{kernel: "tf32_rate", flop: mmaFLOP(16, 8, 8), bytes: 128, right: float32s}},
		{benchmark.FigureInt8Tensor, rate{kernel: "s8_rate", flop: mmaFLOP(16, 8, 32), bytes: 128, right: int8Sums}},
		{benchmark.FigureFP8Tensor, rate{kernel: "e4m3_rate", flop: mmaFLOP(16, 8, 32), bytes: 128, right: float32s}},
		{benchmark.FigureFP64Tensor, rate{kernel: "f64_rate", flop: mmaFLOP(8, 8, 4), bytes: 128, right: float64s}},
	} {
		if _, ok := c.mods.find(r.kernel); ok {
			out = append(out, &job{card: c, figure: r.id, size: fmt.Sprintf("%s, %d threads a multiprocessor", r.kernel, rateBlocks*rateThreads), work: &r.rate})
		}
	}
	return out
}

func (r *rate) open(j *job) (err error) {
	r.out, err = j.alloc(uint64(j.blocks(rateBlocks)) * rateThreads * r.bytes)
	return err
}

func (r *rate) run(j *job, n int) (uint64, error) {
	r.last = uint32(min(n, math.MaxUint32/rateRounds)) * rateRounds
	args := []any{r.out, r.last}
	switch r.kernel {
	case "fp32_rate":
		args = append(args, float32(chainA), float32(chainB))
	case "fp64_rate":
		args = append(args, float64(chainA), float64(chainB))
	}
	blocks := j.blocks(rateBlocks)
	return uint64(blocks) * rateThreads * uint64(r.last) * r.flop, j.launch(r.kernel, blocks, 1, rateThreads, args...)
}

// check looks at what 16 random blocks wrote.
func (r *rate) check(j *job) error {
	warp := 32 * r.bytes
	block := rateThreads * r.bytes
	return j.card.windows(r.out, uint64(j.blocks(rateBlocks))*block, func(at uint64, piece []byte) error {
		first := (at + warp - 1) / warp // whole warps only
		for w := first; (w+1)*warp <= at+uint64(len(piece)); w++ {
			b := piece[w*warp-at:]
			if !r.right(w%(rateThreads/32), b[:warp], r.last) {
				return fmt.Errorf("%w: %s gave wrong sums; the card is broken or set too fast: take back its overclocking", suite.ErrWrong, r.kernel)
			}
		}
		return nil
	})
}

func chain32(warp uint64, b []byte, rounds uint32) bool {
	return ended(view[float32](b), warp, rounds, 16)
}

func chain64(warp uint64, b []byte, rounds uint32) bool {
	return ended(view[float64](b), warp, rounds, 8)
}

// ended tells whether each thread's mean of its chains is what x = a x + b comes to after so many rounds.
func ended[T float32 | float64](values []T, warp uint64, rounds uint32, chains uint64) bool {
	power := math.Pow(chainA, float64(rounds))
	for i, v := range values {
		start := 0.0
		for c := range chains {
			start += unit(c, warp*32+uint64(i)) / float64(chains)
		}
		if want := start*power + chainB/(1-chainA)*(1-power); !(math.Abs(float64(v)-want) < 1e-5) {
			return false
		}
	}
	return true
}

// sumSlack is how far sums of the tensor cores may drift: they keep fewer bits than FP32 (spec: gpu, 4), and FP16 sums fewer still.
const sumSlack = 0.25

// near tells whether value i of each group of per values is i+1, where its sums began.
func near[T float32 | float64](values []T, per int) bool {
	for i, v := range values {
		if !(math.Abs(float64(v)-float64(1+i/per%8)) < sumSlack) {
			return false
		}
	}
	return true
}

func float32s(_ uint64, b []byte, _ uint32) bool { return near(view[float32](b), 4) }
func float64s(_ uint64, b []byte, _ uint32) bool { return near(view[float64](b), 2) }

func float16s(_ uint64, b []byte, _ uint32) bool {
	halves := view[uint16](b)
	values := make([]float32, len(halves))
	for i, h := range halves {
		values[i] = half(h)
	}
	return near(values, 4)
}

// half is an FP16 number; what has no finite value is a NaN.
func half(h uint16) float32 {
	exp, frac := int(h>>10&31), float64(h&1023)
	v := math.Ldexp(1+frac/1024, exp-15)
	switch exp {
	case 0:
		v = math.Ldexp(frac, -24)
	case 31:
		v = math.NaN()
	}
	if h&0x8000 != 0 {
		v = -v
	}
	return float32(v)
}

// int8Sums are exact: every two rounds a sum loses the sum of its column of B, which four threads hold (kernels/bench.cu).
func int8Sums(warp uint64, b []byte, rounds uint32) bool {
	out := view[uint32](b)
	for t := range uint64(32) {
		for q := range uint64(4) {
			column := t%4*2 + q%2
			sum := int32(0)
			for lane := range uint64(4) {
				for r := range uint64(2) {
					v := uint32(word(4+r, warp*32+column*4+lane))
					for s := 0; s < 32; s += 8 {
						sum += int32(int8(v >> s))
					}
				}
			}
			for i := range uint64(8) {
				if out[(t*8+i)*4+q] != uint32(i)+1-rounds/2*uint32(sum) {
					return false
				}
			}
		}
	}
	return true
}
