package benchmark_test

import (
	"testing"

	"github.com/gpufair/gpufair/benchmark"
)

// The caps against published peaks (white papers; spec: gpu, 3), at the rated boost. A cap is never below one, nor far above.
func TestGPUCaps(t *testing.T) {
	type card struct {
		name string
		g    benchmark.GPUFacts
		seen benchmark.Conditions
	}
	rtx4090 := card{"4090", benchmark.GPUFacts{ComputeCapability: 89, SMs: 128, BusWidth: 384}, benchmark.Conditions{SMClockMax: 2520, MemClockMHz: 10501, PCIeGen: 4, PCIeWidth: 16}}
	a100 := card{"A100", benchmark.GPUFacts{ComputeCapability: 80, SMs: 108, BusWidth: 5120}, benchmark.Conditions{SMClockMax: 1410, MemClockMHz: 1593, PCIeGen: 4, PCIeWidth: 16}}
	h100 := card{"H100", benchmark.GPUFacts{ComputeCapability: 90, SMs: 132, BusWidth: 5120}, benchmark.Conditions{SMClockMax: 1830, MemClockMHz: 2619, PCIeGen: 5, PCIeWidth: 16}}
	t4 := card{"T4", benchmark.GPUFacts{ComputeCapability: 75, SMs: 40, BusWidth: 256}, benchmark.Conditions{SMClockMax: 1590, MemClockMHz: 5001, PCIeGen: 3, PCIeWidth: 16}}
	for _, c := range []struct {
		card
		id   benchmark.FigureID
		peak float64 // in the figure's unit
	}{
		{rtx4090, benchmark.FigureFP32Rate, 82_600},
		{rtx4090, benchmark.FigureFP16AccTensor, 330_300},
		{rtx4090, benchmark.FigureInt8Tensor, 660_600},
		{rtx4090, benchmark.FigureMemCopy, 1008},
		{rtx4090, benchmark.FigureToDevice, 31.5},
		{a100, benchmark.FigureFP32Matmul, 19_500},
		{a100, benchmark.FigureFP64Rate, 9_700},
		{a100, benchmark.FigureFP64Tensor, 19_500},
		{a100, benchmark.FigureBF16Matmul, 312_000},
		{a100, benchmark.FigureTF32Tensor, 156_000},
		{a100, benchmark.FigureInt8Tensor, 624_000},
		{a100, benchmark.FigureMemRead, 2039},
		{h100, benchmark.FigureBF16Sustained, 989_400},
		{h100, benchmark.FigureFP8Tensor, 1_978_900},
		{h100, benchmark.FigureMemTest, 3352},
		{t4, benchmark.FigureFP16Tensor, 65_000},
		{t4, benchmark.FigureMemTriad, 320},
	} {
		got, ok := c.g.Cap(c.id, c.seen)
		if v := float64(got) / 1000; !ok || v < 0.995*c.peak || v > 1.06*c.peak {
			t.Errorf("%s %s: cap %.0f, %t; published %.0f", c.name, c.id, v, ok, c.peak)
		}
	}
	if got, ok := t4.g.Cap(benchmark.FigureBF16Matmul, t4.seen); !ok || got != 0 {
		t.Errorf("a Turing with bf16: %d, %t", got, ok)
	}
	for name, c := range map[string]card{
		"clock not reported": {g: rtx4090.g, seen: benchmark.Conditions{}},
		"unknown kind":       {g: benchmark.GPUFacts{ComputeCapability: 999, SMs: 1}, seen: rtx4090.seen},
		"future link":        {g: rtx4090.g, seen: benchmark.Conditions{SMClockMax: 0, PCIeGen: 99, PCIeWidth: 16}},
	} {
		for _, id := range []benchmark.FigureID{benchmark.FigureFP32Rate, benchmark.FigureToDevice} {
			if got, ok := c.g.Cap(id, c.seen); ok && !(name == "unknown kind" && id == benchmark.FigureToDevice) {
				t.Errorf("%s: %s has a cap of %d", name, id, got)
			}
		}
	}
	if _, ok := rtx4090.g.Cap(999, rtx4090.seen); ok {
		t.Error("a cap on an unknown figure")
	}
}
