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
// when it calls one that is missing (NVIDIA/go-nvml#17), so each call below is looked up first, these all at once.
func needed() []string {
	return []string{
		"nvmlInit_v2", "nvmlShutdown", "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID", "nvmlDeviceGetName",
		"nvmlDeviceGetMemoryInfo",
	}
}

// driver is an open NVML.
type driver struct {
	lib *dl.DynamicLibrary // only to look functions up
	api nvml.Interface
}

// has reports whether the driver has a function.
func (d driver) has(symbol string) bool { return d.lib.Lookup(symbol) == nil }

func detect() benchmark.GPUs {
	d := driver{lib: dl.New(libraryName, dl.RTLD_LAZY|dl.RTLD_GLOBAL), api: nvml.New(nvml.WithLibraryPath(libraryName))}
	if err := d.lib.Open(); err != nil {
		return benchmark.GPUs{Problem: problem(nvml.ERROR_LIBRARY_NOT_FOUND)}
	}
	defer func() { _ = d.lib.Close() }() // the process ends next: nothing to do about it
	for _, symbol := range needed() {
		if !d.has(symbol) {
			return benchmark.GPUs{Problem: &benchmark.Problem{
				Code: "old_driver", Text: libraryName + " lacks " + symbol, Advice: "install an NVIDIA driver of version 535 or newer and reboot",
			}}
		}
	}
	if r := d.api.Init(); r != nvml.SUCCESS {
		return benchmark.GPUs{Problem: problem(r)}
	}
	defer func() { _ = d.api.Shutdown() }()
	return d.cards()
}

func (d driver) cards() benchmark.GPUs {
	var out benchmark.GPUs
	if d.has("nvmlSystemGetDriverVersion") {
		if v, r := d.api.SystemGetDriverVersion(); r == nvml.SUCCESS {
			out.Driver = v
		}
	}
	if d.has("nvmlSystemGetCudaDriverVersion_v2") {
		if v, r := d.api.SystemGetCudaDriverVersion_v2(); r == nvml.SUCCESS {
			out.CUDA = fmt.Sprintf("%d.%d", v/1000, v%1000/10)
		}
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
		card, r := d.card(i)
		if r != nvml.SUCCESS {
			card.Problem = problem(r)
		}
		out.Cards = append(out.Cards, card)
	}
	return out
}

// card is what the driver says of card i. The result is of what makes a card usable; the rest stays empty where it does not answer.
func (d driver) card(i int) (benchmark.GPU, nvml.Return) {
	g := benchmark.GPU{Name: fmt.Sprintf("card %d", i), ECC: "none", MIG: "none"}
	dev, r := d.api.DeviceGetHandleByIndex(i)
	if r != nvml.SUCCESS {
		return g, r
	}
	if d.has("nvmlDeviceGetPciInfo_v3") {
		if pci, r := dev.GetPciInfo(); r == nvml.SUCCESS {
			g.PCIAddress = text(pci.BusId[:])
		}
	}
	uuid, r := dev.GetUUID()
	if r != nvml.SUCCESS {
		return g, r
	}
	g.UUID, g.Device = uuid, benchmark.GPUDevice(uuid)
	name, r := dev.GetName()
	if r != nvml.SUCCESS {
		return g, r
	}
	g.Name = name
	memory, r := dev.GetMemoryInfo()
	if r != nvml.SUCCESS && r != nvml.ERROR_NOT_SUPPORTED { // chips that share the machine's memory have none to tell
		return g, r
	}
	g.MemoryMiB = memory.Total >> 20
	d.link(dev, &g)
	d.modes(dev, &g)
	return g, nvml.SUCCESS
}

func (d driver) link(dev nvml.Device, g *benchmark.GPU) {
	for _, c := range []struct {
		symbol string
		ask    func() (int, nvml.Return)
		into   *uint32
	}{
		{"nvmlDeviceGetCurrPcieLinkGeneration", dev.GetCurrPcieLinkGeneration, &g.PCIeGen},
		{"nvmlDeviceGetMaxPcieLinkGeneration", dev.GetMaxPcieLinkGeneration, &g.PCIeMaxGen},
		{"nvmlDeviceGetCurrPcieLinkWidth", dev.GetCurrPcieLinkWidth, &g.PCIeWidth},
		{"nvmlDeviceGetMaxPcieLinkWidth", dev.GetMaxPcieLinkWidth, &g.PCIeMaxWidth},
	} {
		if !d.has(c.symbol) {
			continue
		}
		if v, r := c.ask(); r == nvml.SUCCESS {
			*c.into = uint32(v)
		}
	}
}

func (d driver) modes(dev nvml.Device, g *benchmark.GPU) {
	if d.has("nvmlDeviceGetCudaComputeCapability") {
		if major, minor, r := dev.GetCudaComputeCapability(); r == nvml.SUCCESS {
			g.ComputeCapability = fmt.Sprintf("%d.%d", major, minor)
		}
	}
	if d.has("nvmlDeviceGetEnforcedPowerLimit") {
		if limit, r := dev.GetEnforcedPowerLimit(); r == nvml.SUCCESS {
			g.PowerLimitMW = limit
		}
	}
	if d.has("nvmlDeviceGetEccMode") {
		if now, _, r := dev.GetEccMode(); r == nvml.SUCCESS {
			g.ECC = onOff(now == nvml.FEATURE_ENABLED)
		}
	}
	if d.has("nvmlDeviceGetMigMode") {
		if now, _, r := dev.GetMigMode(); r == nvml.SUCCESS {
			g.MIG = onOff(now == nvml.DEVICE_MIG_ENABLE)
		}
	}
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
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
