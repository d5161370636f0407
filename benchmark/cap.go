package benchmark

// What no processor that is sold passes. Wide on purpose: a cap refutes lies, it does not grade.
const (
	cpuClockMHz  = 6500      // the fastest boost sold is 6.2 GHz (Core i9-14900KS)
	cpuFP32Clock = 64        // FLOP a core a clock: two 512-bit FMA units (Intel from Skylake-SP, AMD from Zen 5)
	cpuFP64Clock = 32        // half as many lanes
	coreMBps     = 130_000   // one core to memory: what its miss buffers can keep in flight; the best measured is near 100 GB/s
	machineMBps  = 3_000_000 // all memory of a machine: two sockets with HBM (2 x 1.2 TB/s), rounded up
)

// Cap is the highest stored value of a figure that a device of kind with so many cores can honestly have; false where there is no cap.
//
// A CPU: arithmetic = cores x FLOP per clock x 6.5 GHz, with 64 FLOP (FP32) or 32 (FP64) a clock; memory = cores x 130 GB/s, at most
// 3 TB/s. Neither the model nor the clock that a passport names counts, since whoever lies about one lies about the other. A
// GPU's caps need what was seen in the run: [GPUFacts.Cap].
func Cap(kind Kind, cores int, id FigureID) (uint64, bool) {
	if kind != KindCPU || cores < 0 {
		return 0, false
	}
	n := uint64(cores)
	switch id {
	case FigureFP32Matmul, FigureFP32Sustained:
		return n * cpuFP32Clock * cpuClockMHz, true
	case FigureFP64Matmul:
		return n * cpuFP64Clock * cpuClockMHz, true
	case FigureMemRead, FigureMemWrite, FigureMemCopy, FigureMemTriad:
		return min(n*coreMBps, machineMBps), true
	}
	return 0, false
}
