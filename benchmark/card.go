package benchmark

import "github.com/gpufair/gpufair/p2p/wire"

// GPU is what the driver says of a card. All of it is the driver's word: nothing is measured. A zero or empty field was not reported.
type GPU struct {
	Device            wire.Hash     `json:"device"`
	UUID              string        `json:"uuid"`
	Name              string        `json:"name"`
	MemoryMiB         uint64        `json:"memory_mib"` // 0 for a chip that shares the machine's memory
	ComputeCapability string        `json:"compute_capability"`
	BusWidth          uint32        `json:"memory_bus_width,omitempty"` // bits
	VBIOS             string        `json:"vbios,omitempty"`
	PCIAddress        string        `json:"pci_address"` // "00000000:01:00.0"
	PCIeGen           uint32        `json:"pcie_gen"`    // now: an idle card shows 1 to save power, which is no fault
	PCIeMaxGen        uint32        `json:"pcie_max_gen"`
	PCIeWidth         uint32        `json:"pcie_width"`
	PCIeMaxWidth      uint32        `json:"pcie_max_width"`
	ECC               string        `json:"ecc"`                  // "on", "off" or "none"
	ECCErrors         *ECCErrors    `json:"ecc_errors,omitempty"` // nil where nothing counts them: never shown as 0
	Rows              *RemappedRows `json:"remapped_rows,omitempty"`
	PowerLimitMW      uint32        `json:"power_limit_mw"`
	SlowdownC         uint32        `json:"slowdown_c,omitempty"`       // from this temperature on the card slows itself down
	Persistence       string        `json:"persistence"`                // "on", "off" or "none"
	Display           bool          `json:"display"`                    // a screen is driven by it
	Recovery          string        `json:"recovery,omitempty"`         // what the driver asks for: "reset", "reboot", "drain_p2p", "drain_and_reset"; "" for nothing
	Throttle          Reasons       `json:"throttle_reasons"`           // now
	Processes         []GPUProcess  `json:"processes,omitempty"`        // that use it now, as far as this user may see
	ProcessesHidden   bool          `json:"processes_hidden,omitempty"` // not all that use it could be asked for
	MIG               string        `json:"mig"`                        // "on", "off" or "none"
	Slices            []MIGSlice    `json:"mig_slices,omitempty"`       // with MIG on
	Unread            []string      `json:"unread,omitempty"`           // what the driver failed to tell, each with its error; absent features are not listed
	Problem           *Problem      `json:"problem,omitempty"`          // why the card can't be used
}

// ECCErrors are the memory errors that a card with ECC counted. The volatile ones start again from 0 whenever the driver is unloaded.
type ECCErrors struct {
	Corrected           uint64 `json:"corrected_volatile"`
	Uncorrected         uint64 `json:"uncorrected_volatile"`
	CorrectedLifetime   uint64 `json:"corrected_lifetime"`
	UncorrectedLifetime uint64 `json:"uncorrected_lifetime"`
}

// RemappedRows are the rows of memory that a card has replaced by spare ones.
type RemappedRows struct {
	Corrected   uint32 `json:"corrected"`
	Uncorrected uint32 `json:"uncorrected"`
	Pending     bool   `json:"pending"` // takes effect at the next reset
	Failure     bool   `json:"failure"` // no spare row was left: the card's memory is broken
}

// GPUProcess is a process that uses a card.
type GPUProcess struct {
	PID       uint32 `json:"pid"`
	Name      string `json:"name,omitempty"`       // as Linux calls it; "" if this user can't see it
	MemoryMiB uint64 `json:"memory_mib,omitempty"` // of the card
}

// MIGSlice is a part of a card that the driver treats as a card (multi-instance GPU).
type MIGSlice struct {
	UUID      string   `json:"uuid"` // "MIG-…"
	Name      string   `json:"name"`
	MemoryMiB uint64   `json:"memory_mib"`
	Problem   *Problem `json:"problem,omitempty"`
}

// Problem is why something was not found, in words for the owner.
type Problem struct {
	Code   string `json:"code"`   // for programs: "no_library", "no_driver", "version_mismatch" …
	Text   string `json:"text"`   // what is wrong
	Advice string `json:"advice"` // what to do next
}

// Error is the text and the advice.
func (p *Problem) Error() string { return p.Text + "; " + p.Advice }

// GPUs is what the driver says of all cards.
type GPUs struct {
	Driver  string   `json:"driver,omitempty"` // version
	CUDA    string   `json:"cuda,omitempty"`   // newest CUDA version that the driver speaks: "13.0"
	WSL2    bool     `json:"wsl2,omitempty"`   // Windows has the card: no utilisation, no ECC, no process list on many drivers
	Cards   []GPU    `json:"cards"`
	Problem *Problem `json:"problem,omitempty"` // why there are no cards, if there is a reason
	Compute *Problem `json:"compute,omitempty"` // why no kernel can run although there are cards
}
