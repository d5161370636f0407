//go:build linux && cgo

package gpu

import (
	"fmt"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpufair/gpufair/benchmark"
)

// libraryName is what the driver installs; the name without ".1" belongs to developers' packages.
const libraryName = "libnvidia-ml.so.1"

// maxCards bounds what a broken driver may claim; the largest machines have 16.
const maxCards = 64

// needed are the functions without which there is nothing to say. Every driver since 2013 has them. go-nvml ends the whole process
// when it calls one that is missing (NVIDIA/go-nvml#17), so every other one is looked up before it is called, by [field].
func needed() []string {
	return []string{
		"nvmlInit_v2", "nvmlShutdown", "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID", "nvmlDeviceGetName",
		"nvmlDeviceGetMemoryInfo",
	}
}

// driver is an open NVML. It belongs to one goroutine.
type driver struct {
	lib *dl.DynamicLibrary // only to look functions up
	api nvml.Interface
}

// openDriver loads NVML and starts it; the problem says what to do where that fails.
func openDriver() (driver, *benchmark.Problem) {
	d := driver{lib: dl.New(libraryName, dl.RTLD_LAZY|dl.RTLD_GLOBAL), api: nvml.New(nvml.WithLibraryPath(libraryName))}
	if err := d.lib.Open(); err != nil {
		return d, problem(nvml.ERROR_LIBRARY_NOT_FOUND)
	}
	for _, symbol := range needed() {
		if !d.has(symbol) {
			_ = d.lib.Close() // the process ends next: nothing to do about it
			return d, &benchmark.Problem{
				Code: "old_driver", Text: libraryName + " lacks " + symbol, Advice: "install an NVIDIA driver of version 535 or newer and reboot",
			}
		}
	}
	if r := d.api.Init(); r != nvml.SUCCESS {
		_ = d.lib.Close()
		return d, problem(r)
	}
	return d, nil
}

func (d driver) close() {
	_ = d.api.Shutdown() // the process ends next: nothing to do about it
	_ = d.lib.Close()
}

// has reports whether the driver has a function.
func (d driver) has(symbol string) bool { return d.lib.Lookup(symbol) == nil }

// call asks the driver by a function that it may lack: go-nvml's own code for that is given then.
func call[T any](d driver, symbol string, ask func() (T, nvml.Return)) (T, nvml.Return) {
	if !d.has(symbol) {
		var none T
		return none, nvml.ERROR_FUNCTION_NOT_FOUND
	}
	return ask()
}

func detect() benchmark.GPUs {
	g := list()
	if g.Problem == nil && len(g.Cards) > 0 {
		g.Compute = computeInTime()
	}
	if g.WSL2 {
		underWindows(g.Problem)
		underWindows(g.Compute)
	}
	return g
}

// list asks NVML alone.
func list() benchmark.GPUs {
	out := benchmark.GPUs{WSL2: wsl2()}
	d, p := openDriver()
	if p == nil {
		defer d.close()
		out = d.cards()
	} else {
		out.Problem = p
	}
	if out.Problem != nil {
		sysfs(sysRoot).explain(out.Problem)
	}
	return out
}

func (d driver) cards() benchmark.GPUs {
	out := benchmark.GPUs{WSL2: wsl2()}
	if v, r := call(d, "nvmlSystemGetDriverVersion", d.api.SystemGetDriverVersion); r == nvml.SUCCESS {
		out.Driver = v
	}
	if v, r := call(d, "nvmlSystemGetCudaDriverVersion_v2", d.api.SystemGetCudaDriverVersion_v2); r == nvml.SUCCESS {
		out.CUDA = fmt.Sprintf("%d.%d", v/1000, v%1000/10)
	}
	n, r := d.api.DeviceGetCount()
	if r != nvml.SUCCESS {
		out.Problem = problem(r)
		return out
	}
	if n == 0 {
		out.Problem = problem(nvml.ERROR_GPU_NOT_FOUND)
	}
	for i := range min(n, maxCards) {
		out.Cards = append(out.Cards, d.card(i))
	}
	return out
}

// text is a C string in a fixed array.
func text(c []int8) string {
	var b strings.Builder
	for _, v := range c {
		if v == 0 {
			break
		}
		b.WriteByte(byte(v))
	}
	return b.String()
}

// problem puts NVML's error codes into words for an owner (nvml.h, nvmlReturn_t).
func problem(r nvml.Return) *benchmark.Problem {
	switch r {
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return &benchmark.Problem{
			Code: "no_library", Text: "NVIDIA's library " + libraryName + " is not installed",
			Advice: "normal without an NVIDIA card; with one install its driver (Debian: apt install nvidia-driver libcuda1) and reboot",
		}
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return &benchmark.Problem{
			Code: "no_driver", Text: "the NVIDIA driver is installed but its kernel module is not loaded",
			Advice: "run modprobe nvidia as root; if that fails, the kernel is newer than the module (reinstall the driver) or Secure Boot refuses it",
		}
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return &benchmark.Problem{
			Code: "version_mismatch", Text: "the NVIDIA driver was updated while the old one is still loaded", Advice: "reboot this machine",
		}
	case nvml.ERROR_NO_PERMISSION, nvml.ERROR_OPERATING_SYSTEM:
		return &benchmark.Problem{
			Code: "no_permission", Text: "this user may not use the NVIDIA driver",
			Advice: "run gpufaird as root, or add its user to the group that owns /dev/nvidiactl (ls -l /dev/nvidia*)",
		}
	case nvml.ERROR_GPU_NOT_FOUND:
		return &benchmark.Problem{
			Code: "no_card", Text: "the NVIDIA driver works but finds no card", Advice: "check that lspci lists it, and its seat and power leads",
		}
	case nvml.ERROR_GPU_IS_LOST:
		return &benchmark.Problem{
			Code: "lost", Text: "the card has fallen off the bus", Advice: "check its power leads, riser and heat, then reboot",
		}
	case nvml.ERROR_RESET_REQUIRED:
		return &benchmark.Problem{
			Code: "reset_required", Text: "the card must be reset before it can be used", Advice: "stop what uses it and run nvidia-smi --gpu-reset, or reboot",
		}
	case nvml.ERROR_INSUFFICIENT_POWER:
		return &benchmark.Problem{
			Code: "power", Text: "the card's extra power leads are not attached", Advice: "shut down, attach them and start again",
		}
	}
	return &benchmark.Problem{
		Code: "driver_error", Text: fmt.Sprintf("the NVIDIA driver answers with error %d", int(r)),
		Advice: "see what nvidia-smi and dmesg say, then reboot",
	}
}
