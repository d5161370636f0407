package benchmark

import (
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpufair/gpufair/p2p/wire"
)

// Kind is what a device is: "gpu" or "cpu", as in offers.
type Kind string

// The kinds of device.
const (
	KindGPU Kind = "gpu"
	KindCPU Kind = "cpu"
)

// MaxCores is the most cores of one CPU device; the largest machines of two sockets have 768 threads.
const MaxCores = 1024

// maxCore is the highest number of a core: the affinity masks of x/sys/unix end there.
const maxCore = 1023

// Cores is a list of cores by their Linux numbers, ascending and without repeats. Its text is the kernel's own list format: "0-3,8".
type Cores []uint32

// ErrCores says that a text is not a list of cores.
var ErrCores = errors.New("not a list of cores such as 0-3,8")

// ParseCores reads the kernel's list format, in any order; repeats are an error, since one of the two was meant to be another core.
func ParseCores(s string) (Cores, error) {
	var cores Cores
	for part := range strings.SplitSeq(s, ",") {
		first, last, ranged := strings.Cut(strings.TrimSpace(part), "-")
		if !ranged {
			last = first
		}
		lo, err1 := strconv.ParseUint(first, 10, 32)
		hi, err2 := strconv.ParseUint(last, 10, 32)
		if err1 != nil || err2 != nil || lo > hi || hi > maxCore {
			return nil, fmt.Errorf("cores %q: %w", s, ErrCores)
		}
		for c := lo; c <= hi; c++ {
			cores = append(cores, uint32(c))
		}
	}
	slices.Sort(cores)
	if err := cores.Validate(); err != nil {
		return nil, fmt.Errorf("cores %q: %w", s, err)
	}
	return cores, nil
}

// Validate checks that c is ascending, without repeats, not empty and within [MaxCores].
func (c Cores) Validate() error {
	if len(c) == 0 || len(c) > MaxCores {
		return fmt.Errorf("%w: %d cores, want 1 to %d", ErrCores, len(c), MaxCores)
	}
	for i := range c {
		if c[i] > maxCore || i > 0 && c[i] <= c[i-1] {
			return fmt.Errorf("%w: core %d repeats, is out of order or above %d", ErrCores, c[i], maxCore)
		}
	}
	return nil
}

// String is the list in its one canonical form: "0-3,8".
func (c Cores) String() string {
	var b strings.Builder
	for i := 0; i < len(c); {
		j := i
		for j+1 < len(c) && c[j+1] == c[j]+1 {
			j++
		}
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.FormatUint(uint64(c[i]), 10))
		if j > i {
			b.WriteByte('-')
			b.WriteString(strconv.FormatUint(uint64(c[j]), 10))
		}
		i = j + 1
	}
	return b.String()
}

// MarshalText gives [Cores.String], for JSON and config files.
func (c Cores) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText reads what [ParseCores] reads; an empty text is no cores.
func (c *Cores) UnmarshalText(b []byte) (err error) {
	if len(b) == 0 {
		*c = nil
		return nil
	}
	*c, err = ParseCores(string(b))
	return err
}

// Device is what a device is, before anything of it is measured.
type Device struct {
	Hash      wire.Hash `json:"device"` // of its UUID: what offers and leases call it
	Kind      Kind      `json:"kind"`
	Model     string    `json:"model"` // as the driver or /proc/cpuinfo names it
	Cores     Cores     `json:"cores,omitempty"`
	MemoryMiB uint64    `json:"memory_mib"`       // of the card; of the machine for a CPU
	Driver    string    `json:"driver,omitempty"` // of a card
	OS        string    `json:"os"`               // "linux 6.18.44 amd64"
}

// MachineID is the 128-bit id of a machine's installation (machine-id(5)). It is a secret of the machine: only hashes of it travel.
type MachineID [16]byte

// ParseMachineID reads the 32 hex digits of /etc/machine-id.
func ParseMachineID(s string) (MachineID, error) {
	b, err := hex.DecodeString(strings.TrimSpace(s))
	if err != nil || len(b) != len(MachineID{}) || MachineID(b) == (MachineID{}) {
		return MachineID{}, errors.New("machine id: want 32 hex digits as systemd-machine-id-setup writes them")
	}
	return MachineID(b), nil
}

// CPUDevice is the UUID of a CPU device: SHA-256("gpufair/cpu-device/1" | machine id, 16 bytes | core list as "0-3,8").
func CPUDevice(machine MachineID, cores Cores) wire.Hash {
	return wire.Sum("gpufair/cpu-device/1", machine[:], []byte(cores.String()))
}

// GPUDevice is the hash of a card's UUID: SHA-256("gpufair/gpu-device/1" | the UUID's text as NVML gives it).
func GPUDevice(uuid string) wire.Hash { return wire.Sum("gpufair/gpu-device/1", []byte(uuid)) }

// CPU is what Linux says of the machine's processor.
type CPU struct {
	Model     string `json:"model"`
	Cores     Cores  `json:"cores"` // online and allowed for this process
	MemoryMiB uint64 `json:"memory_mib"`
	CacheMiB  uint64 `json:"cache_mib"` // all last-level caches together
	OS        string `json:"os"`
}

// Detection is all that was found on a machine.
type Detection struct {
	CPU  CPU  `json:"cpu"`
	GPUs GPUs `json:"gpus"`
}
