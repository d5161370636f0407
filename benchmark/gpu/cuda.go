//go:build linux && cgo

package gpu

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"
	"unsafe"

	"github.com/ebitengine/purego"

	"github.com/gpufair/gpufair/benchmark"
)

// cudaLibrary is what the driver installs; the name without ".1" is a toolkit's link.
const cudaLibrary = "libcuda.so.1"

// The codes of the driver API (cuda.h) that are told apart.
const (
	cudaNoDevice       = 100
	cudaInvalidImage   = 200
	cudaNoBinary       = 209
	cudaInvalidPTX     = 218
	cudaNoJIT          = 221
	cudaUnsupportedPTX = 222
	cudaOS             = 304
	cudaSystemMismatch = 803
	cudaCompatMismatch = 804
	cudaUnknown        = 999
)

// The attributes of a device (cuda.h, CUdevice_attribute) that are asked for.
const (
	attrSMs      = 16
	attrBusWidth = 37
	attrL2       = 38
	attrMajor    = 75
	attrMinor    = 76
)

// cuda is the driver API by its functions' names in libcuda.so.1. Where a name has a suffix the plain one is of CUDA 3, with sizes of 32
// bits. Its context is one of the thread, so that all calls for a device come from one locked thread.
type cuda struct {
	Init          func(flags uint32) int32                                                                                                       `cu:"cuInit"`
	Version       func(v *int32) int32                                                                                                           `cu:"cuDriverGetVersion"`
	ErrorName     func(e int32, s *unsafe.Pointer) int32                                                                                         `cu:"cuGetErrorName"`
	Count         func(n *int32) int32                                                                                                           `cu:"cuDeviceGetCount"`
	Device        func(d *int32, i int32) int32                                                                                                  `cu:"cuDeviceGet"`
	UUID          func(u *[16]byte, d int32) int32                                                                                               `cu:"cuDeviceGetUuid_v2"`
	PCI           func(b *byte, n int32, d int32) int32                                                                                          `cu:"cuDeviceGetPCIBusId"`
	Attribute     func(v *int32, a int32, d int32) int32                                                                                         `cu:"cuDeviceGetAttribute"`
	TotalMem      func(n *uint64, d int32) int32                                                                                                 `cu:"cuDeviceTotalMem_v2"`
	Retain        func(c *uintptr, d int32) int32                                                                                                `cu:"cuDevicePrimaryCtxRetain"`
	Release       func(d int32) int32                                                                                                            `cu:"cuDevicePrimaryCtxRelease_v2"`
	SetCurrent    func(c uintptr) int32                                                                                                          `cu:"cuCtxSetCurrent"`
	LoadModule    func(m *uintptr, image unsafe.Pointer, n uint32, options *int32, values *unsafe.Pointer) int32                                 `cu:"cuModuleLoadDataEx"`
	UnloadModule  func(m uintptr) int32                                                                                                          `cu:"cuModuleUnload"`
	Function      func(f *uintptr, m uintptr, name *byte) int32                                                                                  `cu:"cuModuleGetFunction"`
	MemInfo       func(free, total *uint64) int32                                                                                                `cu:"cuMemGetInfo_v2"`
	Alloc         func(p *uint64, n uint64) int32                                                                                                `cu:"cuMemAlloc_v2"`
	Free          func(p uint64) int32                                                                                                           `cu:"cuMemFree_v2"`
	HostAlloc     func(p *unsafe.Pointer, n uint64, flags uint32) int32                                                                          `cu:"cuMemHostAlloc"`
	HostFree      func(p unsafe.Pointer) int32                                                                                                   `cu:"cuMemFreeHost"`
	ToDevice      func(d uint64, s unsafe.Pointer, n uint64, stream uintptr) int32                                                               `cu:"cuMemcpyHtoDAsync_v2"`
	ToHost        func(d unsafe.Pointer, s uint64, n uint64, stream uintptr) int32                                                               `cu:"cuMemcpyDtoHAsync_v2"`
	StreamCreate  func(s *uintptr, flags uint32) int32                                                                                           `cu:"cuStreamCreate"`
	StreamSync    func(s uintptr) int32                                                                                                          `cu:"cuStreamSynchronize"`
	StreamDestroy func(s uintptr) int32                                                                                                          `cu:"cuStreamDestroy_v2"`
	EventCreate   func(e *uintptr, flags uint32) int32                                                                                           `cu:"cuEventCreate"`
	EventRecord   func(e, stream uintptr) int32                                                                                                  `cu:"cuEventRecord"`
	EventSync     func(e uintptr) int32                                                                                                          `cu:"cuEventSynchronize"`
	EventElapsed  func(ms *float32, a, b uintptr) int32                                                                                          `cu:"cuEventElapsedTime"`
	EventDestroy  func(e uintptr) int32                                                                                                          `cu:"cuEventDestroy_v2"`
	Launch        func(f uintptr, gx, gy, gz, bx, by, bz, shared uint32, stream uintptr, parameters *unsafe.Pointer, extra unsafe.Pointer) int32 `cu:"cuLaunchKernel"`
}

// cudaError is a call that the driver answered with an error.
type cudaError struct {
	call string
	code int32
	name string
}

// Error names the call and the driver's own name for its code.
func (e *cudaError) Error() string { return fmt.Sprintf("%s: %s (%d)", e.call, e.name, e.code) }

// openCUDA loads and starts the driver API; the problem says what to do where that fails.
func openCUDA() (*cuda, error) {
	lib, err := purego.Dlopen(cudaLibrary, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nil, &benchmark.Problem{
			Code: "no_cuda", Text: "NVIDIA's library " + cudaLibrary + " is not installed", Advice: "install it beside the driver (Debian: apt install libcuda1)",
		}
	}
	c := &cuda{}
	if err := bind(lib, c); err != nil {
		return nil, err
	}
	if err := c.check("cuInit", c.Init(0)); err != nil {
		return nil, cudaProblem(err)
	}
	return c, nil
}

// jitLibrary is what the driver compiles kernels with. Debian has it in a package of its own.
const jitLibrary = "libnvidia-ptxjitcompiler.so.1"

// computePatience is how long the driver API may take to start: a detection takes 15 s at most, and what NVML told must not be lost
// with it.
var computePatience = 8 * time.Second

// computeInTime is compute for as long as there is patience. A start that hangs is left to the end of the process.
func computeInTime() *benchmark.Problem {
	done := make(chan *benchmark.Problem, 1)
	go func() { done <- compute() }()
	select {
	case p := <-done:
		return p
	case <-time.After(computePatience):
		return &benchmark.Problem{
			Code: "cuda_error", Text: fmt.Sprintf("the CUDA driver did not start in %.3g s", computePatience.Seconds()),
			Advice: "turn persistence on (nvidia-smi -pm 1); see dmesg",
		}
	}
}

// compute is why no kernel can run on any card; nil if nothing is in the way. No context is made, so that no card's memory is taken.
func compute() *benchmark.Problem {
	_, err := openCUDA()
	if err == nil {
		jit, missing := purego.Dlopen(jitLibrary, purego.RTLD_LAZY|purego.RTLD_LOCAL)
		if missing == nil {
			_ = purego.Dlclose(jit) // the process ends next: nothing to do about it
			return nil
		}
		err = cudaProblem(&cudaError{"dlopen " + jitLibrary, cudaNoJIT, "not found"})
	}
	var p *benchmark.Problem
	if errors.As(err, &p) {
		return p
	}
	return &benchmark.Problem{Code: "cuda_error", Text: "the CUDA driver does not start: " + err.Error(), Advice: "see what nvidia-smi and dmesg say, then reboot"}
}

// cudaProblem puts the errors of starting the driver API into words for an owner.
func cudaProblem(err error) error {
	e, ok := err.(*cudaError)
	if !ok {
		return err
	}
	p := &benchmark.Problem{Code: "cuda_error", Text: "the CUDA driver does not start: " + err.Error(), Advice: "see what nvidia-smi and dmesg say, then reboot"}
	switch e.code {
	case cudaNoDevice:
		p.Code, p.Text, p.Advice = "no_card", "the CUDA driver works but finds no card", "unset CUDA_VISIBLE_DEVICES; else see what nvidia-smi says"
	case cudaSystemMismatch:
		p.Code, p.Text, p.Advice = "version_mismatch", "the NVIDIA driver was updated while the old one is still loaded", "reboot this machine"
	case cudaCompatMismatch:
		p.Code, p.Text = "cuda_compat", "a compat version of "+cudaLibrary+" shadows the driver's own, and this card does not run with it"
		p.Advice = "take its folder (…/compat) out of LD_LIBRARY_PATH and /etc/ld.so.conf.d"
	case cudaUnknown, cudaOS: // what cuInit says where it can't open /dev/nvidia-uvm
		p.Code, p.Text = "no_uvm", "the CUDA driver does not start ("+err.Error()+"), as where /dev/nvidia-uvm is missing or closed to this user"
		p.Advice = "run modprobe nvidia-uvm and nvidia-modprobe -u -c=0 as root; in a container pass /dev/nvidia-uvm in; then see dmesg"
	case cudaNoJIT:
		p.Code, p.Text, p.Advice = "no_jit", "NVIDIA's compiler for kernels is not installed", "apt install libnvidia-ptxjitcompiler1"
	}
	return p
}

func (c *cuda) check(call string, code int32) error {
	if code == 0 {
		return nil
	}
	name := "unknown error"
	var p unsafe.Pointer
	if c.ErrorName(code, &p) == 0 && p != nil {
		name = cString(p)
	}
	return &cudaError{call, code, name}
}

func cString(p unsafe.Pointer) string {
	n := 0
	for *(*byte)(unsafe.Add(p, n)) != 0 {
		n++
	}
	return string(unsafe.Slice((*byte)(p), n))
}

// cBytes is the text up to its NUL.
func cBytes(b []byte) string {
	s, _, _ := strings.Cut(string(b), "\x00")
	return s
}

// version is the newest CUDA version that the driver speaks, as 12080 for 12.8.
func (c *cuda) version() (int, error) {
	var v int32
	err := c.check("cuDriverGetVersion", c.Version(&v))
	return int(v), err
}

// attribute asks for a number of a device.
func (c *cuda) attribute(d int32, which int32) (uint32, error) {
	var v int32
	err := c.check("cuDeviceGetAttribute", c.Attribute(&v, which, d))
	return uint32(v), err
}

// load hands PTX to the driver, which compiles it for the card. The driver's own words are part of an error.
func (c *cuda) load(ptx string) (module uintptr, err error) {
	image := append([]byte(ptx), 0) // the driver takes text up to a NUL
	words := make([]byte, 4096)
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(&image[0])
	pin.Pin(&words[0])
	options := []int32{5, 6} // CU_JIT_ERROR_LOG_BUFFER and its size
	values := []unsafe.Pointer{unsafe.Pointer(&words[0]), asPointer(uintptr(len(words)))}
	pin.Pin(&options[0])
	pin.Pin(&values[0])
	err = c.check("cuModuleLoadDataEx", c.LoadModule(&module, unsafe.Pointer(&image[0]), uint32(len(options)), &options[0], &values[0]))
	if said := strings.TrimSpace(cBytes(words)); err != nil && said != "" {
		return 0, fmt.Errorf("%w: %s", err, said[:min(len(said), 300)])
	}
	return module, err
}

// asPointer puts an integer where C wants one cast to void*. It is never followed.
func asPointer(n uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&n)) }

// function finds a kernel in a module.
func (c *cuda) function(module uintptr, name string) (f uintptr, err error) {
	b := append([]byte(name), 0)
	err = c.check("cuModuleGetFunction "+name, c.Function(&f, module, &b[0]))
	return f, err
}

// launch starts a kernel on stream. The arguments are numbers of the kernel's own widths: uint32, uint64 (also for addresses on the
// device), float32 or float64.
func (c *cuda) launch(f, stream uintptr, gx, gy, threads uint32, args ...any) error {
	var pin runtime.Pinner // the driver copies the arguments before it returns
	defer pin.Unpin()
	addresses := make([]unsafe.Pointer, len(args))
	for i, a := range args {
		switch v := a.(type) {
		case uint32:
			addresses[i] = unsafe.Pointer(&v)
		case uint64:
			addresses[i] = unsafe.Pointer(&v)
		case float32:
			addresses[i] = unsafe.Pointer(&v)
		case float64:
			addresses[i] = unsafe.Pointer(&v)
		default:
			return fmt.Errorf("launch: argument %d is a %T", i, a)
		}
		pin.Pin(addresses[i])
	}
	pin.Pin(&addresses[0])
	return c.check("cuLaunchKernel", c.Launch(f, gx, gy, 1, threads, 1, 1, 0, stream, &addresses[0], nil))
}
