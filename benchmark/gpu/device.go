//go:build linux && cgo

package gpu

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"unsafe"

	"github.com/gpufair/gpufair/benchmark"
	"github.com/gpufair/gpufair/benchmark/suite"
)

var (
	// ErrIdentity says that NVML and CUDA tell different things of one card: one of the libraries is not NVIDIA's, or not of this driver.
	ErrIdentity = errors.New("NVML and CUDA disagree about the card")
	// ErrInUse says that somebody else uses the card: no figure would be the card's own.
	ErrInUse = errors.New("the card is in use")
	// ErrHot says that the card came near the temperature where it slows itself down.
	ErrHot = errors.New("the card is too hot to go on")
)

// hotMargin is how near to that temperature a card may come, in degrees (spec: gpu, 3).
const hotMargin = 3

// hostBytes of pinned memory, half for each direction.
const hostBytes = 64 << 20

// Card is an NVIDIA card as a device that can be measured. Its driver context is one of the thread: it belongs to the goroutine that
// opened it, which stays on its thread until Close.
type Card struct {
	cuda    *cuda
	mods    *modules
	dev     int32
	stream  uintptr
	events  [2]uintptr
	host    unsafe.Pointer // hostBytes of pinned memory
	monitor *monitor

	device benchmark.Device
	info   benchmark.GPU
	facts  benchmark.GPUFacts
	l2     uint64 // bytes of cache
	free   uint64 // bytes, when it was opened
	undo   []func() error

	looks, blind, unexplained int // at the card while it was measured; of them without its temperature, without the throttle reasons
}

var _ suite.Watched = (*Card)(nil)

func open(uuid string) (suite.Device, error) {
	c, err := OpenCard(uuid)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// OpenCard makes the card of uuid a device. It is refused when it has a problem, is in use, is split into MIG slices, or when NVML and
// CUDA disagree about it.
func OpenCard(uuid string) (*Card, error) {
	g := list()
	if g.Problem != nil {
		return nil, g.Problem
	}
	c := &Card{}
	for _, info := range g.Cards {
		if info.UUID == uuid || c.info.UUID == "" && info.UUID == "" { // a lost card may not even tell its UUID
			c.info = info
		}
	}
	if err := usable(c.info, uuid); err != nil {
		return nil, err
	}
	os, err := suite.DetectCPU()
	if err != nil {
		return nil, err
	}
	c.device = benchmark.Device{
		Hash: c.info.Device, Kind: benchmark.KindGPU, Model: c.info.Name, MemoryMiB: c.info.MemoryMiB, Driver: g.Driver, OS: os.OS,
	}
	runtime.LockOSThread()
	c.undo = append(c.undo, func() error { runtime.UnlockOSThread(); return nil })
	if err := c.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", c.info.Name, err), c.Close())
	}
	return c, nil
}

func usable(g benchmark.GPU, uuid string) error {
	switch {
	case g.Problem != nil:
		return g.Problem
	case g.UUID == "":
		return &benchmark.Problem{Code: "no_card", Text: "no card has the UUID " + uuid, Advice: "gpufaird doctor lists the cards"}
	case g.MIG == "on":
		return fmt.Errorf("%s is split into MIG slices, which are not measured yet; nvidia-smi -mig 0 joins them", g.Name)
	case len(g.Processes) > 0:
		p := g.Processes[0]
		return fmt.Errorf("%w: process %d (%s) and %d others have it open; stop them, then measure again", ErrInUse, p.PID, p.Name, len(g.Processes)-1)
	}
	for _, u := range g.Unread {
		if strings.Contains(u, "RunningProcesses") {
			return &benchmark.Problem{
				Code: "processes_unread", Text: "the driver did not tell who uses the card (" + u + ")",
				Advice: "measure as root; if that fails too, see what nvidia-smi and dmesg say, then reboot",
			}
		}
	}
	return nil
}

func (c *Card) open() (err error) {
	if c.cuda, err = openCUDA(); err != nil {
		return err
	}
	if err := c.find(); err != nil {
		return err
	}
	var ctx uintptr
	if err := c.cuda.check("cuDevicePrimaryCtxRetain", c.cuda.Retain(&ctx, c.dev)); err != nil {
		return err
	}
	c.later("cuDevicePrimaryCtxRelease", func() int32 { return c.cuda.Release(c.dev) })
	if err := c.cuda.check("cuCtxSetCurrent", c.cuda.SetCurrent(ctx)); err != nil {
		return err
	}
	if err := c.agree(); err != nil {
		return err
	}
	version, err := c.cuda.version()
	if err != nil {
		return err
	}
	if c.mods, err = loadModules(c.cuda, c.facts.ComputeCapability, version); err != nil {
		return err
	}
	c.undo = append(c.undo, c.mods.close)
	if err := c.workplace(); err != nil {
		return err
	}
	if c.monitor, err = openMonitor(c.info.UUID); err != nil {
		return err
	}
	c.undo = append(c.undo, func() error { c.monitor.close(); return nil })
	return nil
}

// later has a call of the driver done by Close.
func (c *Card) later(call string, f func() int32) {
	c.undo = append(c.undo, func() error { return c.cuda.check(call, f()) })
}

// find looks for the device that CUDA has under the card's UUID.
func (c *Card) find() error {
	var n int32
	if err := c.cuda.check("cuDeviceGetCount", c.cuda.Count(&n)); err != nil {
		return err
	}
	for i := range n {
		var d int32
		var id [16]byte
		if err := errors.Join(c.cuda.check("cuDeviceGet", c.cuda.Device(&d, i)), c.cuda.check("cuDeviceGetUuid", c.cuda.UUID(&id, d))); err != nil {
			return err
		}
		if fmt.Sprintf("GPU-%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:]) == c.info.UUID {
			c.dev = d
			return nil
		}
	}
	return fmt.Errorf("%w: CUDA shows %d devices and none with the UUID %s; unset CUDA_VISIBLE_DEVICES, or reboot after a driver update",
		ErrIdentity, n, c.info.UUID)
}

// agree compares what the two libraries say of the card. What NVML did not tell is not compared.
func (c *Card) agree() error {
	var v [5]uint32
	for i, a := range []int32{attrMajor, attrMinor, attrSMs, attrBusWidth, attrL2} {
		var err error
		if v[i], err = c.cuda.attribute(c.dev, a); err != nil {
			return err
		}
	}
	pci := make([]byte, 32)
	var free, total uint64
	if err := errors.Join(
		c.cuda.check("cuDeviceGetPCIBusId", c.cuda.PCI(&pci[0], int32(len(pci)), c.dev)),
		c.cuda.check("cuMemGetInfo", c.cuda.MemInfo(&free, &total)), c.cuda.check("cuDeviceTotalMem", c.cuda.TotalMem(&total, c.dev)),
	); err != nil {
		return err
	}
	c.facts = benchmark.GPUFacts{ComputeCapability: int(v[0]*10 + v[1]), SMs: v[2], BusWidth: v[3]}
	c.l2, c.free = uint64(v[4]), free
	for _, f := range []struct{ what, nvml, cuda string }{
		{"compute capability", c.info.ComputeCapability, fmt.Sprintf("%d.%d", v[0], v[1])},
		{"PCI address", shortPCI(c.info.PCIAddress), shortPCI(cBytes(pci))},
		{"memory bus", number(uint64(c.info.BusWidth)), number(uint64(v[3]))},
	} {
		if f.nvml != "" && f.nvml != f.cuda {
			return fmt.Errorf("%w: its %s is %s by NVML and %s by CUDA; reinstall the driver and reboot", ErrIdentity, f.what, f.nvml, f.cuda)
		}
	}
	// what the driver keeps for itself is in one of the two numbers only: up to a tenth on small cards
	if mib := total >> 20; c.info.MemoryMiB > 0 && (mib > c.info.MemoryMiB || mib < c.info.MemoryMiB*9/10) {
		return fmt.Errorf("%w: its memory is %d MiB by NVML and %d MiB by CUDA; reinstall the driver and reboot", ErrIdentity, c.info.MemoryMiB, mib)
	}
	return nil
}

func number(v uint64) string {
	if v == 0 {
		return ""
	}
	return strconv.FormatUint(v, 10)
}

// shortPCI is "01:00.0" with the last four digits of its domain, which NVML writes with eight.
func shortPCI(s string) string { return strings.ToLower(s[max(0, len(s)-len("0000:01:00.0")):]) }

// workplace makes what every kernel needs.
func (c *Card) workplace() error {
	if err := c.cuda.check("cuStreamCreate", c.cuda.StreamCreate(&c.stream, 1)); err != nil { // 1: not ordered with the default stream
		return err
	}
	c.later("cuStreamDestroy", func() int32 { return c.cuda.StreamDestroy(c.stream) })
	for i := range c.events {
		if err := c.cuda.check("cuEventCreate", c.cuda.EventCreate(&c.events[i], 0)); err != nil {
			return err
		}
		c.later("cuEventDestroy", func() int32 { return c.cuda.EventDestroy(c.events[i]) })
	}
	if err := c.cuda.check("cuMemHostAlloc", c.cuda.HostAlloc(&c.host, hostBytes, 0)); err != nil {
		return err
	}
	c.later("cuMemFreeHost", func() int32 { return c.cuda.HostFree(c.host) })
	return nil
}

// Describe says what the device is.
func (c *Card) Describe() benchmark.Device { return c.device }

// Skipped are the kernels that this card or driver can't run, each with the reason.
func (c *Card) Skipped() []string { return c.mods.skipped }

// Unread is what the driver did not tell while they ran, each with what that means for the figures.
func (c *Card) Unread() (out []string) {
	if c.info.ProcessesHidden {
		out = append(out, "other programs on the card: the driver does not list them all, so one may have slowed it")
	}
	if c.monitor.events == nil {
		out = append(out, "faults: the driver does not tell Xid errors as they come, so none could have ended the run; dmesg has them")
	}
	if c.blind > 0 {
		out = append(out, fmt.Sprintf("heat: the temperature was not read at %d of %d looks, at which heat could not have ended the run", c.blind, c.looks))
	}
	if c.info.SlowdownC <= hotMargin {
		out = append(out, "heat: the driver does not tell from which temperature the card slows down, so heat could not have ended the run")
	}
	if c.unexplained > 0 {
		out = append(out, fmt.Sprintf("what slows the card: the driver did not tell it at %d of %d looks, so another reason may have", c.unexplained, c.looks))
	}
	for _, u := range c.monitor.info.Unread {
		out = append(out, "a part of the conditions: the driver did not tell "+u)
	}
	return out
}

// Close gives back what the card's context holds, and its thread.
func (c *Card) Close() error {
	var errs []error
	for i := len(c.undo) - 1; i >= 0; i-- {
		errs = append(errs, c.undo[i]())
	}
	c.undo = nil
	return errors.Join(errs...)
}

// Watch looks at the card ten times a second. An Xid error, a lost card and heat end the context.
func (c *Card) Watch(ctx context.Context) (watched context.Context, stop func() (*benchmark.Conditions, error)) {
	watched, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	var samples []benchmark.Telemetry
	var fault error
	go func() { // ends when stop is called, at the next look
		defer close(done)
		t, err := c.monitor.look() // at least once: the card has just been warmed up
		for ; ; t, err = c.monitor.next(watched) {
			if err == nil && c.info.SlowdownC > hotMargin && t.TemperatureC >= c.info.SlowdownC-hotMargin {
				err = fmt.Errorf("%w: %d °C, it slows down from %d °C on; look at its fans, dust and the room", ErrHot, t.TemperatureC, c.info.SlowdownC)
			}
			if err != nil {
				if errors.Is(err, ErrFault) || errors.Is(err, ErrHot) { // else it was stopped
					fault = err
					cancel(err)
				}
				return
			}
			samples = append(samples, t)
			c.looks++
			if t.TemperatureC == 0 {
				c.blind++
			}
			if !c.monitor.reasonsRead {
				c.unexplained++
			}
		}
	}()
	return watched, func() (*benchmark.Conditions, error) {
		cancel(nil)
		<-done
		return benchmark.Summary(samples), fault
	}
}

// capMargin is how far above its cap a median may be, in parts of 100: the clock is sampled, and moves in steps between two looks.
const capMargin = 2

// Judge holds a figure against its cap ([benchmark.GPUFacts.Cap]). Where the conditions were not reported there is none.
func (c *Card) Judge(m benchmark.Measurement) error {
	if m.Conditions == nil {
		return nil
	}
	limit, ok := c.facts.Cap(m.Figure, *m.Conditions)
	if !ok || m.Stats.Median <= limit*(100+capMargin)/100 {
		return nil
	}
	return fmt.Errorf("%w: %s: at the clocks seen this card can't pass %s; the driver, or what stands in for it, lies about one of the two",
		benchmark.ErrFalse, m.Value(), benchmark.Figure{ID: m.Figure, Value: limit})
}
