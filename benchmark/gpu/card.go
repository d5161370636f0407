//go:build linux && cgo

package gpu

import (
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpufair/gpufair/benchmark"
)

// card is one card while it is asked. Once the driver says that it is lost, it is asked nothing more: each call could hang.
type card struct {
	driver
	dev  nvml.Device
	info benchmark.GPU
	lost nvml.Return
}

// card is what the driver says of card i.
func (d driver) card(i int) benchmark.GPU {
	c := card{driver: d, info: benchmark.GPU{Name: fmt.Sprintf("card %d", i), ECC: "none", MIG: "none", Persistence: "none"}}
	var r nvml.Return
	if c.dev, r = d.api.DeviceGetHandleByIndex(i); r == nvml.SUCCESS {
		r = c.identity()
	}
	if r == nvml.SUCCESS {
		if c.info.MemoryMiB > 0 { // else it shares the machine's memory and has no link, whatever its driver says (Syllo/nvtop#499)
			c.link()
		}
		c.limits()
		c.memoryErrors()
		c.modes()
		c.processes()
		c.slices()
		r = c.lost
	}
	if r != nvml.SUCCESS {
		c.info.Problem = problem(r)
	}
	return c.info
}

// field asks for one thing of a card. A driver without the function and a card without the thing say nothing, any other failure is
// noted, once. ok tells whether v is the driver's answer.
func field[T any](c *card, symbol string, ask func() (T, nvml.Return)) (v T, ok bool) {
	if c.lost != nvml.SUCCESS {
		return v, false
	}
	v, r := call(c.driver, symbol, ask)
	switch r {
	case nvml.SUCCESS:
		return v, true
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_FUNCTION_NOT_FOUND:
	case nvml.ERROR_GPU_IS_LOST, nvml.ERROR_RESET_REQUIRED:
		c.lost = r
	default:
		if told := fmt.Sprintf("%s: error %d", strings.TrimPrefix(symbol, "nvmlDevice"), int(r)); !slices.Contains(c.info.Unread, told) {
			c.info.Unread = append(c.info.Unread, told)
		}
	}
	var none T
	return none, false
}

// identity is what makes a card usable; the rest of its facts may be missing.
func (c *card) identity() nvml.Return {
	if pci, ok := field(c, "nvmlDeviceGetPciInfo_v3", c.dev.GetPciInfo); ok {
		c.info.PCIAddress = text(pci.BusId[:])
	}
	uuid, r := c.dev.GetUUID()
	if r != nvml.SUCCESS {
		return r
	}
	c.info.UUID, c.info.Device = uuid, benchmark.GPUDevice(uuid)
	name, r := c.dev.GetName()
	if r != nvml.SUCCESS {
		return r
	}
	c.info.Name = name
	memory, r := c.dev.GetMemoryInfo()
	if r != nvml.SUCCESS && r != nvml.ERROR_NOT_SUPPORTED { // chips that share the machine's memory have none to tell
		return r
	}
	c.info.MemoryMiB = memory.Total >> 20
	if v, ok := field(c, "nvmlDeviceGetCudaComputeCapability", func() (string, nvml.Return) {
		major, minor, r := c.dev.GetCudaComputeCapability()
		return fmt.Sprintf("%d.%d", major, minor), r
	}); ok {
		c.info.ComputeCapability = v
	}
	c.info.BusWidth, _ = field(c, "nvmlDeviceGetMemoryBusWidth", c.dev.GetMemoryBusWidth)
	c.info.VBIOS, _ = field(c, "nvmlDeviceGetVbiosVersion", c.dev.GetVbiosVersion)
	return nvml.SUCCESS
}

// link is the way to the card.
func (c *card) link() {
	for _, f := range []struct {
		symbol string
		ask    func() (int, nvml.Return)
		into   *uint32
	}{
		{"nvmlDeviceGetCurrPcieLinkGeneration", c.dev.GetCurrPcieLinkGeneration, &c.info.PCIeGen},
		{"nvmlDeviceGetMaxPcieLinkGeneration", c.dev.GetMaxPcieLinkGeneration, &c.info.PCIeMaxGen},
		{"nvmlDeviceGetCurrPcieLinkWidth", c.dev.GetCurrPcieLinkWidth, &c.info.PCIeWidth},
		{"nvmlDeviceGetMaxPcieLinkWidth", c.dev.GetMaxPcieLinkWidth, &c.info.PCIeMaxWidth},
	} {
		v, _ := field(c, f.symbol, f.ask)
		*f.into = uint32(v)
	}
}

func (c *card) limits() {
	c.info.PowerLimitMW, _ = field(c, "nvmlDeviceGetEnforcedPowerLimit", c.dev.GetEnforcedPowerLimit)
	c.info.SlowdownC, _ = field(c, "nvmlDeviceGetTemperatureThreshold", func() (uint32, nvml.Return) {
		return c.dev.GetTemperatureThreshold(nvml.TEMPERATURE_THRESHOLD_SLOWDOWN)
	})
	c.info.Throttle, _ = c.reasons()
}

// reasons asks by the name of driver 535 and newer, then by the older one. ok tells whether either was answered.
func (c *card) reasons() (r benchmark.Reasons, ok bool) {
	v, ok := field(c, "nvmlDeviceGetCurrentClocksEventReasons", c.dev.GetCurrentClocksEventReasons)
	if !ok {
		v, ok = field(c, "nvmlDeviceGetCurrentClocksThrottleReasons", c.dev.GetCurrentClocksThrottleReasons)
	}
	return benchmark.Reasons(v), ok
}

// memoryErrors asks for counters only where ECC is on: elsewhere there is nothing that counts, and 0 would be a claim.
func (c *card) memoryErrors() {
	mode, ok := field(c, "nvmlDeviceGetEccMode", func() (nvml.EnableState, nvml.Return) {
		now, _, r := c.dev.GetEccMode()
		return now, r
	})
	if !ok {
		return
	}
	c.info.ECC = onOff(mode == nvml.FEATURE_ENABLED)
	if mode != nvml.FEATURE_ENABLED {
		return
	}
	var e benchmark.ECCErrors
	counted := true
	for _, n := range []struct {
		kind    nvml.MemoryErrorType
		counter nvml.EccCounterType
		into    *uint64
	}{
		{nvml.MEMORY_ERROR_TYPE_CORRECTED, nvml.VOLATILE_ECC, &e.Corrected},
		{nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC, &e.Uncorrected},
		{nvml.MEMORY_ERROR_TYPE_CORRECTED, nvml.AGGREGATE_ECC, &e.CorrectedLifetime},
		{nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.AGGREGATE_ECC, &e.UncorrectedLifetime},
	} {
		v, ok := field(c, "nvmlDeviceGetTotalEccErrors", func() (uint64, nvml.Return) { return c.dev.GetTotalEccErrors(n.kind, n.counter) })
		*n.into, counted = v, counted && ok
	}
	if counted {
		c.info.ECCErrors = &e
	}
	if rows, ok := field(c, "nvmlDeviceGetRemappedRows", func() (benchmark.RemappedRows, nvml.Return) {
		cor, unc, pending, failure, r := c.dev.GetRemappedRows()
		return benchmark.RemappedRows{Corrected: uint32(cor), Uncorrected: uint32(unc), Pending: pending, Failure: failure}, r
	}); ok {
		c.info.Rows = &rows
	}
}

func (c *card) modes() {
	if v, ok := field(c, "nvmlDeviceGetPersistenceMode", c.dev.GetPersistenceMode); ok {
		c.info.Persistence = onOff(v == nvml.FEATURE_ENABLED)
	}
	v, _ := field(c, "nvmlDeviceGetDisplayActive", c.dev.GetDisplayActive)
	c.info.Display = v == nvml.FEATURE_ENABLED
	if action, ok := field(c, "nvmlDeviceGetFieldValues", func() (uint32, nvml.Return) { return fieldValue(c.dev, nvml.FI_DEV_GET_GPU_RECOVERY_ACTION) }); ok {
		c.info.Recovery = recoveryName(action)
	}
}

// recoveryName is nvmlDeviceGpuRecoveryAction_t in words; what a later driver adds is told by number.
func recoveryName(action uint32) string {
	names := [...]string{"", "reset", "reboot", "drain_p2p", "drain_and_reset"}
	if int(action) < len(names) {
		return names[action]
	}
	return fmt.Sprintf("action_%d", action)
}

// fieldValue reads one of NVML's numbered fields that are 32 bits wide. Where the call itself fails the field's own code stays 0, so it
// is asked first.
func fieldValue(dev nvml.Device, id uint32) (uint32, nvml.Return) {
	values := []nvml.FieldValue{{FieldId: id}}
	if r := dev.GetFieldValues(values); r != nvml.SUCCESS {
		return 0, r
	}
	if r := nvml.Return(values[0].NvmlReturn); r != nvml.SUCCESS {
		if r == nvml.ERROR_INVALID_ARGUMENT { // a field that this driver does not know
			r = nvml.ERROR_NOT_SUPPORTED
		}
		return 0, r
	}
	return binary.NativeEndian.Uint32(values[0].Value[:4]), nvml.SUCCESS
}

// processes lists who uses the card but this process itself.
func (c *card) processes() {
	for _, name := range []string{"nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"} {
		symbol := name + "_v3"
		if !c.has(symbol) {
			symbol = name + "_v2"
		}
		ask := c.dev.GetComputeRunningProcesses
		if strings.Contains(name, "Graphics") {
			ask = c.dev.GetGraphicsRunningProcesses
		}
		list, ok := field(c, symbol, ask)
		c.info.ProcessesHidden = c.info.ProcessesHidden || !ok
		for _, p := range list {
			c.addProcess(p)
		}
	}
}

// notAvailable is NVML_VALUE_NOT_AVAILABLE.
const notAvailable = ^uint64(0)

func (c *card) addProcess(p nvml.ProcessInfo) {
	if int(p.Pid) == os.Getpid() {
		return
	}
	for _, known := range c.info.Processes { // one that draws and computes is in both lists
		if known.PID == p.Pid {
			return
		}
	}
	out := benchmark.GPUProcess{PID: p.Pid}
	if p.UsedGpuMemory != notAvailable {
		out.MemoryMiB = p.UsedGpuMemory >> 20
	}
	if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", p.Pid)); err == nil {
		out.Name = strings.TrimSpace(string(b))
	}
	c.info.Processes = append(c.info.Processes, out)
}

// maxSlices of a card; the largest have 7.
const maxSlices = 64

// slices lists the parts of a card in MIG mode. A place without a slice is no error.
func (c *card) slices() {
	mode, ok := field(c, "nvmlDeviceGetMigMode", func() (int, nvml.Return) {
		now, _, r := c.dev.GetMigMode()
		return now, r
	})
	if !ok {
		return
	}
	c.info.MIG = onOff(mode == nvml.DEVICE_MIG_ENABLE)
	if mode != nvml.DEVICE_MIG_ENABLE {
		return
	}
	n, _ := field(c, "nvmlDeviceGetMaxMigDeviceCount", c.dev.GetMaxMigDeviceCount)
	for i := range min(n, maxSlices) {
		dev, ok := field(c, "nvmlDeviceGetMigDeviceHandleByIndex", func() (nvml.Device, nvml.Return) {
			dev, r := c.dev.GetMigDeviceHandleByIndex(i)
			if r == nvml.ERROR_NOT_FOUND {
				r = nvml.ERROR_NOT_SUPPORTED
			}
			return dev, r
		})
		if ok {
			c.info.Slices = append(c.info.Slices, slice(dev))
		}
	}
}

func slice(dev nvml.Device) benchmark.MIGSlice {
	var s benchmark.MIGSlice
	uuid, r := dev.GetUUID()
	if r == nvml.SUCCESS {
		s.UUID = uuid
		s.Name, r = dev.GetName()
	}
	if r == nvml.SUCCESS {
		var memory nvml.Memory
		memory, r = dev.GetMemoryInfo()
		s.MemoryMiB = memory.Total >> 20
	}
	if r != nvml.SUCCESS {
		s.Problem = problem(r)
	}
	return s
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}
