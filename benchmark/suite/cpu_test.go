package suite

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpufair/gpufair/benchmark"
)

// Binding is for a whole process, so its test does it in another: this binary again.
const bindEnv = "GPUFAIR_TEST_BIND"

func TestMain(m *testing.M) {
	mode, list, ok := strings.Cut(os.Getenv(bindEnv), " ")
	if !ok {
		os.Exit(m.Run())
	}
	cores, err := benchmark.ParseCores(list)
	if err == nil && mode == "bind" {
		err = boundEverywhere(cores)
	} else if err == nil {
		err = everyKernelOnce(cores)
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(0)
}

// everyKernelOnce runs all kernels of a real device, each once.
func everyKernelOnce(cores benchmark.Cores) (err error) {
	ctx := context.Background()
	dev, err := OpenCPU(cores)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	long, _ := dev.Sustained()
	kernels := append(dev.Kernels(), long)
	if len(kernels) != 7 {
		return fmt.Errorf("%d kernels", len(kernels))
	}
	for i, k := range kernels {
		figure, _, name, size := k.Name()
		if err := k.Open(ctx); err != nil {
			return err
		}
		s, err := k.Run(ctx, 1)
		if err := errors.Join(err, k.Check(ctx), k.Close()); err != nil {
			return err
		}
		if limit, ok := benchmark.Cap(benchmark.KindCPU, len(cores), figure); !ok || s.Rate() <= 0 || s.Rate() > float64(limit) {
			return fmt.Errorf("%s by %s of %s: %.0f, cap %d", figure, name, size, s.Rate(), limit)
		}
		if i < 6 && figure != benchmark.FigureID(i+1) {
			return fmt.Errorf("kernel %d is of figure %s", i, figure)
		}
	}
	return nil
}

func boundEverywhere(cores benchmark.Cores) error {
	if err := bind(cores); err != nil {
		return err
	}
	team, err := newTeam(slices.Concat(cores, cores, cores)) // more threads, all born after the binding
	if err != nil {
		return err
	}
	defer team.close()
	tids, err := threads()
	if err != nil {
		return err
	}
	for _, tid := range tids {
		var set unix.CPUSet
		if err := unix.SchedGetaffinity(tid, &set); err != nil {
			return err
		}
		if set != *maskOf(cores) {
			return fmt.Errorf("thread %d of %d may run elsewhere", tid, len(tids))
		}
	}
	if n := runtime.GOMAXPROCS(0); n != len(cores) || len(tids) < 3 {
		return fmt.Errorf("GOMAXPROCS %d, %d threads", n, len(tids))
	}
	return nil
}

// oneCore is a core that this process may use: the last, since others crowd on the first.
func oneCore(t testing.TB) benchmark.Cores {
	t.Helper()
	cpu, err := DetectCPU()
	if err != nil {
		t.Fatal(err)
	}
	return cpu.Cores[len(cpu.Cores)-1:]
}

func TestBindBindsEveryThread(t *testing.T) { inChild(t, "bind") }

func TestEveryKernelOfThisMachine(t *testing.T) { inChild(t, "kernels") }

func inChild(t *testing.T, mode string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), bindEnv+"="+mode+" "+oneCore(t).String())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

func TestDescribeCPU(t *testing.T) {
	cores := oneCore(t)
	d, err := DescribeCPU(cores)
	if err != nil {
		t.Fatal(err)
	}
	machine, err := ReadMachineID()
	if err != nil {
		t.Fatal(err)
	}
	if d.Hash != benchmark.CPUDevice(machine, cores) || d.Kind != benchmark.KindCPU || d.Model == "" || d.MemoryMiB == 0 ||
		!strings.HasPrefix(d.OS, "linux ") {
		t.Errorf("%+v", d)
	}
	if _, err := DescribeCPU(benchmark.Cores{1023}); !errors.Is(err, ErrCoreAbsent) || !strings.Contains(err.Error(), "core 1023") {
		t.Errorf("a core that is not there: %v", err)
	}
	if _, err := OpenCPU(benchmark.Cores{1023}); !errors.Is(err, ErrCoreAbsent) {
		t.Errorf("a core that is not there: %v", err)
	}
	if _, err := DescribeCPU(nil); !errors.Is(err, benchmark.ErrCores) {
		t.Errorf("no cores: %v", err)
	}
}

func TestBufferSize(t *testing.T) {
	cores := oneCore(t)
	size, err := bufferSize(cores)
	if err != nil {
		t.Fatal(err)
	}
	if uint64(size)+blockBytes < min(4*lastLevelCache(cores), maxBuffer) || size%blockBytes != 0 {
		t.Errorf("buffers of %d bytes for caches of %d", size, lastLevelCache(cores))
	}
}

func fakeBLAS(t *testing.T, flags ...string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), openBLASLibrary)
	args := append([]string{"-shared", "-fPIC", "-O2", "-Wall", "-o", file, "testdata/fakeblas.c"}, flags...)
	if out, err := exec.Command("cc", args...).CombinedOutput(); err != nil {
		t.Fatalf("cc: %v\n%s", err, out)
	}
	return file
}

func checkProduct[T float](t *testing.T, lib library, gemm func(n int, a, b, c []T), tolerance float64) error {
	t.Helper()
	m := newMatmul(benchmark.FigureFP32Matmul, lib, gemm, 96, tolerance)
	if err := m.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	s, err := m.Run(t.Context(), 2)
	if err != nil || s.Work != 2*2*96*96*96 || s.Elapsed <= 0 {
		t.Fatalf("run: %+v, %v", s, err)
	}
	err = m.Check(t.Context())
	if err == nil { // the check itself: one wrong element is found
		m.c[7*96+5] += T(math.Max(tolerance*1e4, 1e-3))
		if m.Check(t.Context()) == nil {
			t.Error("a wrong element passes the check")
		}
	}
	return err
}

func TestLibraries(t *testing.T) {
	for _, c := range []struct {
		file   string
		family benchmark.KernelID
		name   string
		wrong  bool
	}{
		{fakeBLAS(t), benchmark.KernelOpenBLAS, "openblas 9.9.9 (Nothing)", false},
		{fakeBLAS(t, "-DSKIP"), benchmark.KernelOpenBLAS, "openblas 9.9.9 (Nothing)", true},
		{fakeBLAS(t, "-DNAN"), benchmark.KernelOpenBLAS, "openblas 9.9.9 (Nothing)", true},
		{fakeBLAS(t, "-DBARE"), benchmark.KernelGonum, "gonum", false},
		{"libnosuchblas.so.0", benchmark.KernelGonum, "gonum", false},
	} {
		lib := loadLibrary(c.file, 1)
		if lib.family != c.family || !strings.HasPrefix(lib.name, c.name) {
			t.Errorf("%s: %s %q, want %s %q", c.file, lib.family, lib.name, c.family, c.name)
			continue
		}
		err32, err64 := checkProduct(t, lib, lib.sgemm, tolerance32), checkProduct(t, lib, lib.dgemm, tolerance64)
		if errors.Is(err32, ErrWrong) != c.wrong || errors.Is(err64, ErrWrong) != c.wrong {
			t.Errorf("%s: FP32 %v, FP64 %v, want wrong = %t", c.file, err32, err64, c.wrong)
		}
	}
	// whichever this machine has must be right
	lib := loadLibrary(openBLASLibrary, 1)
	t.Log("this machine has", lib.name)
	if err := errors.Join(checkProduct(t, lib, lib.sgemm, tolerance32), checkProduct(t, lib, lib.dgemm, tolerance64)); err != nil {
		t.Error(err)
	}
}

// A product made in FP32 must not pass as one in FP64.
func TestNarrowArithmeticIsFound(t *testing.T) {
	lib := goBLAS()
	narrow := func(n int, a, b, c []float64) {
		a32, b32, c32 := make([]float32, n*n), make([]float32, n*n), make([]float32, n*n)
		for i := range a {
			a32[i], b32[i] = float32(a[i]), float32(b[i])
		}
		lib.sgemm(n, a32, b32, c32)
		for i := range c {
			c[i] = float64(c32[i])
		}
	}
	if err := checkProduct(t, lib, narrow, tolerance64); !errors.Is(err, ErrWrong) {
		t.Errorf("FP64 product made in FP32: %v", err)
	}
	half := func(n int, a, b, c []float32) {
		a16, b16 := slices.Clone(a), slices.Clone(b)
		for i := range a16 { // bfloat16's eight bits
			a16[i] = math.Float32frombits(math.Float32bits(a16[i]) &^ 0xffff)
			b16[i] = math.Float32frombits(math.Float32bits(b16[i]) &^ 0xffff)
		}
		lib.sgemm(n, a16, b16, c)
	}
	if err := checkProduct(t, lib, half, tolerance32); !errors.Is(err, ErrWrong) {
		t.Errorf("FP32 product made in bfloat16: %v", err)
	}
}

func TestMemoryKernels(t *testing.T) {
	core := oneCore(t)
	team, err := newTeam(slices.Concat(core, core))
	if err != nil {
		t.Fatal(err)
	}
	defer team.close()
	const size = 16 * blockBytes
	for figure, buffers := range map[benchmark.FigureID]int{
		benchmark.FigureMemRead: 1, benchmark.FigureMemWrite: 1, benchmark.FigureMemCopy: 2, benchmark.FigureMemTriad: 3,
	} {
		m := &memory{figure: figure, team: team, bytes: size}
		if err := m.Open(t.Context()); err != nil {
			t.Fatal(err)
		}
		s, err := m.Run(t.Context(), 3)
		if err != nil || s.Work != uint64(3*buffers*size) || s.Elapsed <= 0 {
			t.Errorf("%s: %+v, %v", figure, s, err)
		}
		if err := m.Check(t.Context()); err != nil {
			t.Errorf("%s: %v", figure, err)
		}
		m.raw[0][size-3] ^= 0x40 // a bit flips in the last block
		if figure == benchmark.FigureMemRead {
			if _, err := m.Run(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
		}
		if err := m.Check(t.Context()); !errors.Is(err, ErrWrong) {
			t.Errorf("%s with a flipped bit: %v", figure, err)
		}
		if err := errors.Join(m.Close(), m.Close()); err != nil {
			t.Errorf("%s: close: %v", figure, err)
		}
	}
}

func TestSideGrowsWithCores(t *testing.T) {
	blas, gonum := library{family: benchmark.KernelOpenBLAS}, goBLAS()
	for cores, want := range map[int]int{1: 1024, 2: 1024, 8: 2048, 64: 4096} {
		if blas.side(cores) != want || gonum.side(cores) != want/2 {
			t.Errorf("%d cores: %d and %d, want %d and half", cores, blas.side(cores), gonum.side(cores), want)
		}
	}
}

func TestOpenBLASName(t *testing.T) {
	for config, want := range map[string]string{
		"OpenBLAS 0.3.21 NO_LAPACKE DYNAMIC_ARCH NO_AFFINITY Zen MAX_THREADS=64": "openblas 0.3.21 (Zen)",
		"":                                     "openblas of unknown version (Zen)",
		"OpenBLAS " + strings.Repeat("9", 500): "openblas " + strings.Repeat("9", benchmark.MaxText-len("openblas ")),
	} {
		if got := openBLASName(config, "Zen"); got != want {
			t.Errorf("%.40q: %q", config, got)
		}
	}
}

// The benchmarks run the kernels of a device without the rules around them.
func BenchmarkMatmul(b *testing.B) {
	for _, lib := range []library{loadLibrary(openBLASLibrary, 1), goBLAS()} {
		b.Run("fp32/"+lib.family.String(), func(b *testing.B) { benchKernel(b, newMatmul(0, lib, lib.sgemm, 512, tolerance32)) })
		b.Run("fp64/"+lib.family.String(), func(b *testing.B) { benchKernel(b, newMatmul(0, lib, lib.dgemm, 512, tolerance64)) })
	}
}

func BenchmarkMemory(b *testing.B) {
	core := oneCore(b)
	size, err := bufferSize(core)
	if err != nil {
		b.Fatal(err)
	}
	team, err := newTeam(core)
	if err != nil {
		b.Fatal(err)
	}
	defer team.close()
	for _, f := range []benchmark.FigureID{benchmark.FigureMemRead, benchmark.FigureMemWrite, benchmark.FigureMemCopy, benchmark.FigureMemTriad} {
		b.Run(f.String(), func(b *testing.B) { benchKernel(b, &memory{figure: f, team: team, bytes: size}) })
	}
}

func benchKernel(b *testing.B, k Kernel) {
	if err := k.Open(b.Context()); err != nil {
		b.Fatal(err)
	}
	defer k.Close()
	total := benchmark.Sample{}
	for b.Loop() {
		s, err := k.Run(b.Context(), 1)
		if err != nil {
			b.Fatal(err)
		}
		total.Work += s.Work
		total.Elapsed += s.Elapsed
	}
	b.ReportMetric(total.Rate()/1000, "G/s") // FLOP or bytes
	if err := k.Check(b.Context()); err != nil {
		b.Fatal(err)
	}
}
