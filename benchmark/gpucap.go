package benchmark

// GPUFacts are what a card's caps follow from.
type GPUFacts struct {
	ComputeCapability int    // times 10: 89 for 8.9
	SMs               uint32 // multiprocessors
	BusWidth          uint32 // of its memory, bits
}

// flopPerClock are the operations that one multiprocessor can begin in one clock, of the fastest card of each compute capability, dense.
// A product and a sum are two. From NVIDIA's white papers and the CUDA programming guide's table of arithmetic throughput; the GeForce
// cards of 8.6, 8.9 and 12.0 reach half of the fp16 and bf16 (spec: gpu, 3). Zero: the card has no such unit.
type flopPerClock struct {
	cc                                                      int
	fp32, fp64, fp16, fp16acc, bf16, tf32, int8, fp8, fp64t uint64
}

var gpuRates = [...]flopPerClock{
	{75, 128, 4, 1024, 1024, 0, 0, 2048, 0, 0},              // Turing: TU102 white paper
	{80, 128, 64, 2048, 2048, 2048, 1024, 4096, 0, 128},     // A100: GA100 white paper
	{86, 256, 4, 1024, 1024, 1024, 512, 2048, 0, 4},         // GA10x
	{89, 256, 4, 1024, 1024, 1024, 512, 2048, 2048, 4},      // Ada
	{90, 256, 128, 4096, 4096, 4096, 2048, 8192, 8192, 256}, // Hopper: H100 white paper
	{120, 256, 4, 1024, 1024, 1024, 512, 2048, 2048, 4},     // Blackwell, GeForce and RTX PRO
}

// pcieMBps is what one lane carries each way, in 10^6 byte/s, by generation: PCI-SIG's rates less the coding of each.
var pcieMBps = [...]uint64{0, 250, 500, 985, 1969, 3938, 7563}

// Cap is the highest stored value of a figure that a card can honestly have reached under the conditions seen: multiprocessors x
// operations a clock x the highest clock sampled; twice the memory's clock x its width; the link's lanes x their rate. False where the
// card's kind is not in the table or a condition was not reported. The clock is the sampled one since real cards pass their rated boost.
func (g GPUFacts) Cap(id FigureID, seen Conditions) (uint64, bool) {
	switch id {
	case FigureMemRead, FigureMemWrite, FigureMemCopy, FigureMemTriad, FigureMemTest:
		return memoryCap(g.BusWidth, seen.MemClockMHz)
	case FigureToDevice, FigureFromDevice:
		if seen.PCIeGen == 0 || int(seen.PCIeGen) >= len(pcieMBps) || seen.PCIeWidth == 0 {
			return 0, false
		}
		return uint64(seen.PCIeWidth) * pcieMBps[seen.PCIeGen], true
	}
	for _, r := range gpuRates {
		if r.cc == g.ComputeCapability {
			per, ok := r.of(id)
			return uint64(g.SMs) * per * uint64(seen.SMClockMax), ok && seen.SMClockMax > 0
		}
	}
	return 0, false
}

// memoryCap is twice the clock, as NVML tells it for GDDR and HBM, times the width. A twentieth is added for what the cache still holds.
func memoryCap(bits, mhz uint32) (uint64, bool) {
	return uint64(bits) / 8 * 2 * uint64(mhz) * 21 / 20, bits > 0 && mhz > 0
}

func (r flopPerClock) of(id FigureID) (uint64, bool) {
	switch id {
	case FigureFP32Matmul, FigureFP32Rate, FigureFP32Sustained:
		return r.fp32, true
	case FigureFP64Rate, FigureFP64Matmul:
		return r.fp64, true
	case FigureFP16Tensor:
		return r.fp16, true
	case FigureFP16AccTensor:
		return r.fp16acc, true
	case FigureBF16Tensor, FigureBF16Matmul, FigureBF16Sustained:
		return r.bf16, true
	case FigureTF32Tensor:
		return r.tf32, true
	case FigureInt8Tensor:
		return r.int8, true
	case FigureFP8Tensor:
		return r.fp8, true
	case FigureFP64Tensor:
		return r.fp64t, true
	}
	return 0, false
}
