//go:build linux && cgo

package gpu

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gpufair/gpufair/benchmark"
	"github.com/gpufair/gpufair/benchmark/lock"
	"github.com/gpufair/gpufair/benchmark/probe"
	"github.com/gpufair/gpufair/benchmark/suite"
	"github.com/gpufair/gpufair/p2p/identity"
)

// compileKernels builds what runs the kernels on the CPU.
func compileKernels(args ...string) error {
	for _, name := range []string{"c++", "g++", "clang++-19"} {
		if path, err := exec.LookPath(name); err == nil {
			return compile(path, append([]string{"-DHOST_EMU", "-O1", "-std=c++20", "-w"}, args...)...)
		}
	}
	return errors.New("no C++ compiler, so the kernels can't be run on the CPU: make deps, or apt install g++")
}

var buildBoth = sync.OnceValues(func() (dir string, err error) {
	dir = filepath.Join(built, "both")
	err = compile("cc", "-shared", "-o", filepath.Join(dir, jitLibrary), "-xc", "/dev/null")
	return dir, errors.Join(err, compileNVML(dir), compileKernels("-shared", "-fPIC", "-o", filepath.Join(dir, cudaLibrary), "testdata/fakecuda.cpp"))
})

// newCardFake is a machine with both libraries of the driver; CUDA's computes.
func newCardFake(t *testing.T) fake {
	t.Helper()
	return newFakeOf(t, buildBoth)
}

// measure measures the card in a scenario, through the daemon's own child.
func (f fake) measure(t *testing.T, profile benchmark.Profile, lines ...string) (benchmark.Report, error) {
	t.Helper()
	f.set(t, lines...)
	held, err := lock.Acquire(t.TempDir(), "test", []lock.Key{lock.GPUKey(uuid(0))})
	if err != nil {
		t.Fatal(err)
	}
	defer held.Release()
	return probe.MeasureGPU(t.Context(), f.child("serve"), held, uuid(0), profile, func(suite.Progress) {})
}

func figures(r benchmark.Report) (ids []benchmark.FigureID) {
	for _, m := range r.Measurements {
		ids = append(ids, m.Figure)
	}
	return ids
}

// The whole way: both libraries, the embedded kernels by name, arguments over the calling convention, real results and their checks. Only
// time is not real: each launch takes 30 ms, so that every figure can be foretold.
func TestCard(t *testing.T) {
	f := newCardFake(t)
	t.Run("standard", func(t *testing.T) {
		r, err := f.measure(t, benchmark.Standard, "gen 4")
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Measurements) != 19 || r.Skipped != nil || r.Unread != nil || r.Device.Kind != benchmark.KindGPU || r.Device.Driver != "580.95.05" {
			t.Errorf("%d figures, skipped %q, %+v", len(r.Measurements), r.Skipped, r.Device)
		}
		for id, want := range map[benchmark.FigureID]float64{ // work of one launch in 30 ms
			benchmark.FigureMemTriad:      3 * 512 << 10,
			benchmark.FigureBF16Matmul:    2 * 256 * 256 * 256,
			benchmark.FigureBF16Sustained: 2 * 256 * 256 * 256,
			benchmark.FigureFP32Rate:      1024 * 16 * 32,
			benchmark.FigureInt8Tensor:    32 * 16 * 8 * 2 * 16 * 8 * 32,
			benchmark.FigureFP64Tensor:    32 * 16 * 8 * 2 * 8 * 8 * 4,
			benchmark.FigureToDevice:      512 << 10,
		} {
			i := slices.Index(figures(r), id)
			if i < 0 {
				t.Errorf("%s is missing", id)
				continue
			}
			m := r.Measurements[i]
			if got := float64(m.Stats.Median); got < 0.9*want/0.03/1e6-1 || got > 1.1*want/0.03/1e6+1 {
				t.Errorf("%s: %v, want %.0f", id, m, want/0.03/1e6)
			}
			if c := m.Conditions; c == nil || c.SMClockMax != 2520 || c.PCIeGen != 4 || c.Samples == 0 {
				t.Errorf("%s: %+v", id, c)
			}
		}
		p := r.Passport(identity.Header{Version: 1}, r.Device.Hash)
		if err := p.Validate(); err != nil {
			t.Error(err)
		}
	})
	for name, c := range map[string]struct {
		lines []string
		want  string
	}{
		"other UUID":        {[]string{"cuda.uuid 0x99"}, "none with the UUID"},
		"other kind":        {[]string{"cuda.cc 80"}, "compute capability is 8.9 by NVML and 8.0 by CUDA"},
		"other slot":        {[]string{"cuda.bus_id 9"}, "PCI address"},
		"other bus":         {[]string{"cuda.bus 256"}, "memory bus"},
		"more memory":       {[]string{"cuda.total_mib 49152"}, "memory is 24564 MiB by NVML and 49152"},
		"in use":            {[]string{"computes 1"}, ErrInUse.Error()},
		"users unread":      {[]string{"err.nvmlDeviceGetComputeRunningProcesses_v3 999"}, "did not tell who uses the card (GetComputeRunningProcesses_v3: error 999)"},
		"drawers unread":    {[]string{"err.nvmlDeviceGetGraphicsRunningProcesses_v3 4"}, "did not tell who uses the card"},
		"slices":            {[]string{"model 1", "mig 1"}, "nvidia-smi -mig 0"},
		"lost":              {[]string{"lost 1"}, "fallen off the bus"},
		"no jit":            {[]string{"cuda.err.cuModuleLoadDataEx 221"}, "libnvidia-ptxjitcompiler1"},
		"compat library":    {[]string{"cuda.err.cuInit 804"}, "LD_LIBRARY_PATH"},
		"updated driver":    {[]string{"cuda.err.cuInit 803"}, "reboot"},
		"base refused":      {[]string{"cuda.load.sm_75 222"}, "refused by the fake"},
		"too old a card":    {[]string{"cuda.cc 70", "err.nvmlDeviceGetCudaComputeCapability 3"}, "Turing"},
		"launch fails":      {[]string{"cuda.err.cuLaunchKernel 700"}, "700"},
		"read is wrong":     {[]string{"cuda.wrong.mem_read 1"}, suite.ErrWrong.Error()},
		"faster than light": {[]string{"mem_clock 1", "cuda.launch_us 10000"}, benchmark.ErrFalse.Error()},
		"Xid":               {[]string{"xid 79", "cuda.launch_us 30000"}, "Xid 79"},
		"hot":               {[]string{"temp 91"}, ErrHot.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			if r, err := f.measure(t, benchmark.Quick, c.lines...); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q; %v", err, c.want, r.Measurements)
			}
		})
	}
}

// What the driver does not tell while the card is measured is in the report, and no value of it is.
func TestUnreadIsTold(t *testing.T) {
	f := newCardFake(t)
	for name, c := range map[string]struct {
		lines []string
		want  []string // begins of what is told
		is    func(benchmark.Conditions) bool
	}{
		"temperature fails": {
			[]string{"err.nvmlDeviceGetTemperature 999", "temp 91"},
			[]string{"heat: the temperature was not read at ", "a part of the conditions: the driver did not tell GetTemperature: error 999"},
			func(c benchmark.Conditions) bool { return c.TempMaxC == 0 && c.PCIeWidth == 16 },
		},
		"no sensor": {
			[]string{"err.nvmlDeviceGetTemperature 3"},
			[]string{"heat: the temperature was not read at "},
			func(c benchmark.Conditions) bool { return c.TempMaxC == 0 },
		},
		"no limit": {
			[]string{"err.nvmlDeviceGetTemperatureThreshold 3"},
			[]string{"heat: the driver does not tell from which"},
			func(c benchmark.Conditions) bool { return c.TempMaxC == 41 },
		},
		"replays and width": {
			[]string{"err.nvmlDeviceGetPcieReplayCounter 999", "err.nvmlDeviceGetCurrPcieLinkWidth 999"},
			[]string{
				"a part of the conditions: the driver did not tell GetCurrPcieLinkWidth: error 999",
				"a part of the conditions: the driver did not tell GetPcieReplayCounter: error 999",
			},
			func(c benchmark.Conditions) bool { return c.Replays == nil && c.PCIeWidth == 0 && c.TempMaxC == 41 },
		},
		"no events": {
			[]string{"err.nvmlDeviceRegisterEvents 3"},
			[]string{"faults: the driver does not tell Xid errors"},
			func(c benchmark.Conditions) bool { return c.TempMaxC == 41 },
		},
		"no reasons": {
			[]string{"err.nvmlDeviceGetCurrentClocksEventReasons 3", "err.nvmlDeviceGetCurrentClocksThrottleReasons 3"},
			[]string{"what slows the card: "},
			func(c benchmark.Conditions) bool { return c.Reasons == 0 && c.TempMaxC == 41 },
		},
		"no list of processes": {
			[]string{"err.nvmlDeviceGetGraphicsRunningProcesses_v3 3"},
			[]string{"other programs on the card: "},
			func(c benchmark.Conditions) bool { return c.TempMaxC == 41 },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := f
			g.scenario = filepath.Join(t.TempDir(), "scenario")
			r, err := g.measure(t, benchmark.Quick, c.lines...)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.EqualFunc(r.Unread, c.want, strings.HasPrefix) || r.Skipped != nil {
				t.Errorf("told %q, skipped %q", r.Unread, r.Skipped)
			}
			for _, m := range r.Measurements {
				if m.Conditions == nil || !c.is(*m.Conditions) {
					t.Errorf("%s: %+v", m.Figure, m.Conditions)
				}
			}
		})
	}
}

// Each kernel's result is checked: a turned bit in what it wrote is found, whichever kernel it is.
func TestWrongResultsAreFound(t *testing.T) {
	f := newCardFake(t)
	for _, kernel := range []string{
		"mem_read", "mem_write", "mem_copy", "mem_triad", "sgemm", "bf16_gemm", "fp32_rate", "fp64_rate", "bf16_rate", "f16_rate", "f16acc_rate", "tf32_rate",
		"s8_rate", "e4m3_rate", "f64_rate", "mem_fill",
	} {
		t.Run(kernel, func(t *testing.T) {
			t.Parallel()
			g := f
			g.scenario = filepath.Join(t.TempDir(), "scenario")
			if _, err := g.measure(t, benchmark.Quick, "cuda.wrong."+kernel+" 1"); err == nil || !strings.Contains(err.Error(), suite.ErrWrong.Error()) {
				t.Errorf("%v", err)
			}
		})
	}
}

// Older cards and drivers are measured with what they have.
func TestFallbacks(t *testing.T) {
	f := newCardFake(t)
	for name, c := range map[string]struct {
		lines         []string
		figures, skip int
		without       benchmark.FigureID
	}{
		"Turing":         {[]string{"cuda.cc 75", "err.nvmlDeviceGetCudaComputeCapability 3"}, 11, 2, benchmark.FigureBF16Matmul},
		"driver 11.8":    {[]string{"cuda.version 11080"}, 17, 1, benchmark.FigureFP8Tensor},
		"refused by JIT": {[]string{"cuda.load.sm_89 222"}, 17, 1, benchmark.FigureFP8Tensor},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := f.measure(t, benchmark.Quick, c.lines...)
			if err != nil {
				t.Fatal(err)
			}
			if len(r.Measurements) != c.figures || len(r.Skipped) != c.skip || slices.Contains(figures(r), c.without) || !slices.Contains(figures(r), benchmark.FigureFP16Tensor) {
				t.Errorf("%v, skipped %q", figures(r), r.Skipped)
			}
		})
	}
}

// What the kernels compute is right, by plain arithmetic.
func TestKernelsOnTheCPU(t *testing.T) {
	program := filepath.Join(t.TempDir(), "emutest")
	if err := compileKernels("-o", program, "kernels/emutest.cpp"); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), program).CombinedOutput()
	if err != nil || strings.Count(string(out), "\nok ") < 18 {
		t.Errorf("%v\n%s", err, out)
	}
}

// The committed PTX is what its source gives. clang is too large to be asked of everybody: where it is not there, the test says so.
func TestPTXIsOfItsSource(t *testing.T) {
	if _, err := exec.LookPath("clang-19"); err != nil {
		t.Log("not compared: no clang-19 (apt install clang-19), so the PTX files may be of another source")
		return
	}
	dir := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "sh", "kernels/build.sh", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, f := range ptxFiles() {
		b, err := os.ReadFile(filepath.Join(dir, f.name+".ptx"))
		if err != nil {
			t.Fatal(err)
		}
		if string(b) != f.text {
			t.Errorf("%s.ptx is of another source: run make ptx", f.name)
		}
	}
}
