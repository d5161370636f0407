package benchmark

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Reasons are why a card runs below its highest clock, as the bits of nvml.h (nvmlClocksEventReason*). In JSON they are names.
type Reasons uint64

// The reasons.
const (
	ReasonIdle         Reasons = 0x1  // nothing runs
	ReasonSetClocks    Reasons = 0x2  // somebody set lower clocks
	ReasonPowerCap     Reasons = 0x4  // normal under load: the card's power limit
	ReasonHWSlowdown   Reasons = 0x8  // heat, power brake or a power draw that is too fast
	ReasonSyncBoost    Reasons = 0x10 // waits for another card
	ReasonSWThermal    Reasons = 0x20 // the driver keeps a temperature
	ReasonHWThermal    Reasons = 0x40 // the card protects itself from heat
	ReasonPowerBrake   Reasons = 0x80 // the power supply asks for less
	ReasonDisplayClock Reasons = 0x100
	ReasonBoardLimit   Reasons = 0x200
	ReasonReliability  Reasons = 0x400
)

var reasonNames = [...]string{
	"idle", "set_clocks", "power_cap", "hw_slowdown", "sync_boost", "sw_thermal", "hw_thermal", "power_brake", "display_clock", "board_limit", "reliability",
}

// Names are the reasons' names, in the order of their bits; "0x800" for one of a later driver.
func (r Reasons) Names() []string {
	var out []string
	for bit := range 64 {
		if r&(1<<bit) == 0 {
			continue
		}
		if bit < len(reasonNames) {
			out = append(out, reasonNames[bit])
		} else {
			out = append(out, fmt.Sprintf("%#x", uint64(1)<<bit))
		}
	}
	return out
}

// String is the names with commas, or "none".
func (r Reasons) String() string {
	if r == 0 {
		return "none"
	}
	return strings.Join(r.Names(), ",")
}

// MarshalJSON gives the list of names.
func (r Reasons) MarshalJSON() ([]byte, error) {
	return json.Marshal(append([]string{}, r.Names()...))
}

// UnmarshalJSON reads a list of names.
func (r *Reasons) UnmarshalJSON(b []byte) error {
	var names []string
	if err := json.Unmarshal(b, &names); err != nil {
		return err
	}
	*r = 0
	for _, name := range names {
		bit := slices.Index(reasonNames[:], name)
		if bit < 0 {
			v, err := strconv.ParseUint(strings.TrimPrefix(name, "0x"), 16, 64)
			if err != nil {
				return fmt.Errorf("throttle reason %.40q: unknown", name)
			}
			*r |= Reasons(v)
			continue
		}
		*r |= 1 << bit
	}
	return nil
}

// Telemetry is how a card is at one moment. A zero is "not read": no running card has a clock, temperature, power or link of 0.
type Telemetry struct {
	SMClockMHz   uint32  `json:"sm_clock_mhz"`
	MemClockMHz  uint32  `json:"mem_clock_mhz"`
	PowerMW      uint32  `json:"power_mw"`
	TemperatureC uint32  `json:"temperature_c"`
	MemoryC      uint32  `json:"memory_c,omitempty"` // GeForce cards do not report it
	Reasons      Reasons `json:"throttle_reasons"`
	PCIeGen      uint32  `json:"pcie_gen"`
	PCIeWidth    uint32  `json:"pcie_width"`
	Replays      *uint32 `json:"pcie_replays,omitempty"` // since the driver was loaded; nil: not read
}

// Conditions are what a card was like while a figure was measured: medians of samples, and what matters at its worst. Each is of the
// samples in which it was read; a zero is "never read", which JSON leaves out.
type Conditions struct {
	Samples     uint32  `cbor:"1,keyasint" json:"samples"`
	SMClockMHz  uint32  `cbor:"2,keyasint" json:"sm_clock_mhz,omitempty"` // median
	SMClockMax  uint32  `cbor:"3,keyasint" json:"sm_clock_max_mhz,omitempty"`
	MemClockMHz uint32  `cbor:"4,keyasint" json:"mem_clock_mhz,omitempty"` // median
	PowerMW     uint32  `cbor:"5,keyasint" json:"power_mw,omitempty"`      // median
	TempMaxC    uint32  `cbor:"6,keyasint" json:"temperature_max_c,omitempty"`
	MemoryMaxC  uint32  `cbor:"7,keyasint,omitempty" json:"memory_max_c,omitempty"`
	Reasons     Reasons `cbor:"8,keyasint" json:"throttle_reasons"`                  // all that were seen
	PCIeGen     uint32  `cbor:"9,keyasint" json:"pcie_gen,omitempty"`                // highest: what the link is when it has work
	PCIeWidth   uint32  `cbor:"10,keyasint" json:"pcie_width,omitempty"`             // lowest
	Replays     *uint32 `cbor:"11,keyasint,omitempty" json:"pcie_replays,omitempty"` // during the figure; nil: not read twice
}

// Summary makes the conditions of samples in their order; nil of none.
func Summary(samples []Telemetry) *Conditions {
	if len(samples) == 0 {
		return nil
	}
	read := func(f func(Telemetry) uint32) []uint32 { // at least one, in order
		var out []uint32
		for _, s := range samples {
			if v := f(s); v != 0 {
				out = append(out, v)
			}
		}
		if out == nil {
			out = []uint32{0}
		}
		slices.Sort(out)
		return out
	}
	median := func(v []uint32) uint32 { return v[(len(v)-1)/2] }
	clocks := read(func(t Telemetry) uint32 { return t.SMClockMHz })
	c := Conditions{
		Samples: uint32(len(samples)), SMClockMHz: median(clocks), SMClockMax: clocks[len(clocks)-1],
		MemClockMHz: median(read(func(t Telemetry) uint32 { return t.MemClockMHz })),
		PowerMW:     median(read(func(t Telemetry) uint32 { return t.PowerMW })),
		PCIeWidth:   read(func(t Telemetry) uint32 { return t.PCIeWidth })[0],
		Replays:     replays(samples),
	}
	for _, s := range samples {
		c.TempMaxC, c.MemoryMaxC = max(c.TempMaxC, s.TemperatureC), max(c.MemoryMaxC, s.MemoryC)
		c.Reasons |= s.Reasons
		c.PCIeGen = max(c.PCIeGen, s.PCIeGen)
	}
	return &c
}

// replays are counted from the first sample that tells the counter to the last; nil where there are no two. A counter that started again
// is not a count.
func replays(samples []Telemetry) *uint32 {
	told := slices.DeleteFunc(slices.Clone(samples), func(t Telemetry) bool { return t.Replays == nil })
	if len(told) < 2 {
		return nil
	}
	first, last := *told[0].Replays, *told[len(told)-1].Replays
	return new(max(first, last) - first)
}
