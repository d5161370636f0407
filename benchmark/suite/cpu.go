package suite

import (
	"errors"
	"fmt"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/gpufair/gpufair/benchmark"
)

// ErrCoreAbsent says that a configured core is offline or not allowed for this process.
var ErrCoreAbsent = errors.New("core is not available")

// CPU is the configured cores of this machine as one device.
type CPU struct {
	device benchmark.Device
	blas   library
	team   *team
	buffer int // bytes of each buffer of the memory kernels
}

// DescribeCPU says what the device of cores is, without measuring it or binding the process.
func DescribeCPU(cores benchmark.Cores) (benchmark.Device, error) {
	if err := cores.Validate(); err != nil {
		return benchmark.Device{}, fmt.Errorf("describe cpu: %w", err)
	}
	cpu, err := DetectCPU()
	if err != nil {
		return benchmark.Device{}, err
	}
	for _, c := range cores {
		if !slices.Contains(cpu.Cores, c) {
			return benchmark.Device{}, fmt.Errorf("describe cpu: %w: core %d; this process may use %s, so name only these in the config",
				ErrCoreAbsent, c, cpu.Cores)
		}
	}
	machine, err := ReadMachineID()
	if err != nil {
		return benchmark.Device{}, err
	}
	return benchmark.Device{
		Hash: benchmark.CPUDevice(machine, cores), Kind: benchmark.KindCPU, Model: cpu.Model, Cores: cores, MemoryMiB: cpu.MemoryMiB, OS: cpu.OS,
	}, nil
}

// OpenCPU binds this whole process to cores and makes them a device. The process is good for nothing else afterwards: call it in
// the supervised child.
func OpenCPU(cores benchmark.Cores) (*CPU, error) {
	device, err := DescribeCPU(cores)
	if err != nil {
		return nil, err
	}
	buffer, err := bufferSize(cores)
	if err != nil {
		return nil, err
	}
	if err := bind(cores); err != nil {
		return nil, err
	}
	team, err := newTeam(cores)
	if err != nil {
		return nil, err
	}
	return &CPU{device: device, blas: loadLibrary(openBLASLibrary, len(cores)), team: team, buffer: buffer}, nil
}

// Describe says what the device is.
func (c *CPU) Describe() benchmark.Device { return c.device }

// Kernels are the FP32 and FP64 product and the four ways through memory.
func (c *CPU) Kernels() []Kernel {
	return []Kernel{
		c.matmul32(), newMatmul(benchmark.FigureFP64Matmul, c.blas, c.blas.dgemm, c.blas.side(len(c.device.Cores)), tolerance64),
		&memory{figure: benchmark.FigureMemRead, team: c.team, bytes: c.buffer},
		&memory{figure: benchmark.FigureMemWrite, team: c.team, bytes: c.buffer},
		&memory{figure: benchmark.FigureMemCopy, team: c.team, bytes: c.buffer},
		&memory{figure: benchmark.FigureMemTriad, team: c.team, bytes: c.buffer},
	}
}

func (c *CPU) matmul32() Kernel {
	return newMatmul(benchmark.FigureFP32Matmul, c.blas, c.blas.sgemm, c.blas.side(len(c.device.Cores)), tolerance32)
}

// Sustained is the FP32 product for minutes.
func (c *CPU) Sustained() (Kernel, benchmark.FigureID) {
	return c.matmul32(), benchmark.FigureFP32Sustained
}

// Close ends the workers. The process stays bound.
func (c *CPU) Close() error {
	c.team.close()
	return nil
}

// bind binds every thread of this process to cores, and with them all that they start. It repeats until a pass meets no new thread,
// since one that was not yet bound may have started another.
func bind(cores benchmark.Cores) error {
	set := maskOf(cores)
	bound := map[int]bool{}
	for fresh := true; fresh; {
		tids, err := threads()
		if err != nil {
			return fmt.Errorf("bind to cores %s: %w", cores, err)
		}
		fresh = false
		for _, tid := range tids {
			if bound[tid] {
				continue
			}
			if err := unix.SchedSetaffinity(tid, set); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("bind thread %d to cores %s: %w", tid, cores, err)
			}
			bound[tid], fresh = true, true
		}
	}
	runtime.GOMAXPROCS(len(cores))
	return nil
}

func maskOf(cores benchmark.Cores) *unix.CPUSet {
	var set unix.CPUSet
	for _, c := range cores {
		set.Set(int(c))
	}
	return &set
}
