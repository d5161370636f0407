//go:build linux && cgo

package gpu

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpufair/gpufair/benchmark"
)

// ErrFault says that the card failed while it was watched: it fell off the bus or told an Xid error. It wraps a [benchmark.Problem]
// where there is one.
var ErrFault = errors.New("the card failed")

// sampleEvery is how often a card is looked at while it is measured (spec: gpu, 3).
const sampleEvery = 100 * time.Millisecond

// monitor watches one card. It belongs to one goroutine.
type monitor struct {
	card
	events      nvml.EventSet // nil: this driver or card tells no Xid errors
	reasonsRead bool          // at the last look
}

// openMonitor opens NVML for the card of uuid, which may be a MIG slice's.
func openMonitor(uuid string) (*monitor, error) {
	d, p := openDriver()
	if p != nil {
		return nil, p
	}
	m := &monitor{card: card{driver: d}}
	var r nvml.Return
	m.dev, r = call(d, "nvmlDeviceGetHandleByUUID", func() (nvml.Device, nvml.Return) { return d.api.DeviceGetHandleByUUID(uuid) })
	if r != nvml.SUCCESS {
		d.close()
		if r == nvml.ERROR_NOT_FOUND || r == nvml.ERROR_INVALID_ARGUMENT {
			return nil, &benchmark.Problem{Code: "no_card", Text: "no card has the UUID " + uuid, Advice: "gpufaird doctor lists the cards"}
		}
		return nil, problem(r)
	}
	m.watch()
	return m, nil
}

// watch asks to be told of Xid errors. They can't be asked for where any of these functions is missing.
func (m *monitor) watch() {
	for _, symbol := range []string{"nvmlDeviceRegisterEvents", "nvmlEventSetWait_v2", "nvmlEventSetFree"} {
		if !m.has(symbol) {
			return
		}
	}
	set, r := call(m.driver, "nvmlEventSetCreate", m.api.EventSetCreate)
	if r != nvml.SUCCESS {
		return
	}
	if r := m.dev.RegisterEvents(nvml.EventTypeXidCriticalError, set); r != nvml.SUCCESS {
		_ = set.Free()
		return
	}
	m.events = set
}

// next waits for one sampling interval and reads the card. An Xid error within it, or a card that is lost, is [ErrFault].
func (m *monitor) next(ctx context.Context) (benchmark.Telemetry, error) {
	if err := m.wait(ctx); err != nil {
		return benchmark.Telemetry{}, err
	}
	return m.look()
}

// look reads the card. One that is lost is [ErrFault].
func (m *monitor) look() (benchmark.Telemetry, error) {
	t := m.read()
	if m.lost != nvml.SUCCESS {
		return t, fmt.Errorf("%w: %w", ErrFault, problem(m.lost))
	}
	return t, nil
}

func (m *monitor) wait(ctx context.Context) error {
	if m.events == nil {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(sampleEvery):
			return nil
		}
	}
	e, r := m.events.Wait(uint32(sampleEvery.Milliseconds()))
	switch {
	case r == nvml.SUCCESS && e.EventType == nvml.EventTypeXidCriticalError: // told even if nobody waits any more
		return fmt.Errorf("%w: %w", ErrFault, Xid(e.EventData))
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case r == nvml.SUCCESS || r == nvml.ERROR_TIMEOUT:
		return nil
	}
	return fmt.Errorf("%w: %w", ErrFault, problem(r))
}

// Xid is an error that the card told the driver, by NVIDIA's number.
type Xid uint64

// Error names the number, under which NVIDIA's catalogue and the kernel log have it, and what it means.
func (x Xid) Error() string {
	v := benchmark.XidVerdict(uint64(x))
	if v.Advice == "" {
		v.Advice = "dmesg says more"
	}
	return fmt.Sprintf("Xid %d: %s; %s", uint64(x), v.Text, v.Advice)
}

// read is how the card is now. What it does not tell stays 0; what it failed to tell is kept in Unread, for the report.
func (m *monitor) read() benchmark.Telemetry {
	var t benchmark.Telemetry
	t.SMClockMHz, _ = field(&m.card, "nvmlDeviceGetClockInfo", func() (uint32, nvml.Return) { return m.dev.GetClockInfo(nvml.CLOCK_SM) })
	t.MemClockMHz, _ = field(&m.card, "nvmlDeviceGetClockInfo", func() (uint32, nvml.Return) { return m.dev.GetClockInfo(nvml.CLOCK_MEM) })
	t.PowerMW, _ = field(&m.card, "nvmlDeviceGetPowerUsage", m.dev.GetPowerUsage)
	t.TemperatureC, _ = field(&m.card, "nvmlDeviceGetTemperature", func() (uint32, nvml.Return) { return m.dev.GetTemperature(nvml.TEMPERATURE_GPU) })
	t.MemoryC, _ = field(&m.card, "nvmlDeviceGetFieldValues", func() (uint32, nvml.Return) { return fieldValue(m.dev, nvml.FI_DEV_MEMORY_TEMP) })
	t.Reasons, m.reasonsRead = m.reasons()
	m.link()
	t.PCIeGen, t.PCIeWidth = m.info.PCIeGen, m.info.PCIeWidth
	if v, ok := field(&m.card, "nvmlDeviceGetPcieReplayCounter", m.dev.GetPcieReplayCounter); ok {
		t.Replays = new(uint32(v))
	}
	return t
}

func (m *monitor) close() {
	if m.events != nil {
		_ = m.events.Free()
	}
	m.driver.close()
}
