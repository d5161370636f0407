package suite

import "github.com/gpufair/gpufair/benchmark"

// CPU is the configured cores of this machine as one device.
type CPU struct{}

// DetectCPU says what Linux says of the processor and of the cores this process may use.
func DetectCPU() (benchmark.CPU, error) { return benchmark.CPU{}, nil }

// ReadMachineID reads this machine's id. A machine without one is told how to get it.
func ReadMachineID() (benchmark.MachineID, error) { return benchmark.MachineID{}, nil }

// DescribeCPU says what the device of cores is, without measuring it.
func DescribeCPU(cores benchmark.Cores) (benchmark.Device, error) { return benchmark.Device{}, nil }

// OpenCPU binds this whole process to cores and makes them a device. The process is good for nothing else afterwards: call it in
// the supervised child.
func OpenCPU(cores benchmark.Cores) (*CPU, error) { return &CPU{}, nil }
