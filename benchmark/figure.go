// Package benchmark says what a device can really do: figures, profiles of a run, passports, and the caps above which a claim is
// false. It measures nothing itself and knows neither market nor ledger.
package benchmark

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// FigureID names a measured quantity. Ids are never reused; the table of names and units is [Figures].
type FigureID uint16

// The figures. Their numbers travel in offers and passports: never renumbered, never reused.
const (
	FigureFP32Matmul    FigureID = 1
	FigureFP64Matmul    FigureID = 2
	FigureMemRead       FigureID = 3
	FigureMemWrite      FigureID = 4
	FigureMemCopy       FigureID = 5
	FigureMemTriad      FigureID = 6
	FigureFP32Sustained FigureID = 7
	FigureBF16Matmul    FigureID = 8
	FigureBF16Sustained FigureID = 9
	FigureFP32Rate      FigureID = 10
	FigureFP64Rate      FigureID = 11
	FigureFP16Tensor    FigureID = 12
	FigureFP16AccTensor FigureID = 13
	FigureBF16Tensor    FigureID = 14
	FigureTF32Tensor    FigureID = 15
	FigureInt8Tensor    FigureID = 16
	FigureFP8Tensor     FigureID = 17
	FigureFP64Tensor    FigureID = 18
	FigureMemTest       FigureID = 19
	FigureToDevice      FigureID = 20
	FigureFromDevice    FigureID = 21
)

// KernelID names the family of code that made a figure: figures of different kernels say as much about the kernel as about the
// device. The full name with its version is in the passport ([Measurement.KernelName]). Never renumbered.
type KernelID uint8

// The kernels.
const (
	KernelUnknown  KernelID = 0
	KernelOpenBLAS KernelID = 1 // the machine's libopenblas.so.0
	KernelGonum    KernelID = 2 // pure Go: a floor, several times below what the cores can do
	KernelGo       KernelID = 3 // gpufair's own loops over memory
	KernelPTX      KernelID = 4 // gpufair's own code for NVIDIA cards
)

// String is the kernel's name: "openblas", "gonum", "go", "ptx".
func (k KernelID) String() string {
	switch k {
	case KernelOpenBLAS:
		return "openblas"
	case KernelGonum:
		return "gonum"
	case KernelGo:
		return "go"
	case KernelPTX:
		return "ptx"
	default:
		return fmt.Sprintf("kernel %d", uint8(k))
	}
}

// MarshalText gives the kernel's name, for JSON.
func (k KernelID) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText reads a kernel's name; a name of a later release is [KernelUnknown].
func (k *KernelID) UnmarshalText(b []byte) error {
	*k = KernelUnknown
	for _, id := range []KernelID{KernelOpenBLAS, KernelGonum, KernelGo, KernelPTX} {
		if id.String() == string(b) {
			*k = id
		}
	}
	return nil
}

// Figure is one measured quantity as an integer in the stored unit of its id, with the kernel that made it.
type Figure struct {
	ID     FigureID `cbor:"1,keyasint" json:"id"`
	Value  uint64   `cbor:"2,keyasint" json:"value"`
	Kernel KernelID `cbor:"3,keyasint,omitempty" json:"kernel,omitempty"`
}

// FigureInfo is a line of the table of figures.
type FigureInfo struct {
	ID      FigureID
	Name    string   // in queries and JSON; never changes
	Aliases []string // other names that queries take: Vast's, where it has one for the same quantity
	Unit    string   // that people and queries use: "GFLOPS", "GB/s" (decimal)
	Scale   uint64   // stored integers per Unit: a stored 87,300 MFLOPS with scale 1000 is 87.3 GFLOPS
	Help    string   // one line for people
}

// Figures is the table of all figures, in the order of their ids. Rates of arithmetic are stored in 10^6 FLOP/s, of memory in 10^6
// byte/s. Bytes are counted as STREAM does: a copy moves two bytes a byte, a triad three.
func Figures() []FigureInfo {
	return []FigureInfo{
		{FigureFP32Matmul, "fp32_matmul", nil, "GFLOPS", 1000, "product of two square FP32 matrices, all cores of the device"},
		{FigureFP64Matmul, "fp64_matmul", nil, "GFLOPS", 1000, "product of two square FP64 matrices, all cores of the device"},
		{FigureMemRead, "mem_read", nil, "GB/s", 1000, "reading memory far bigger than the caches"},
		{FigureMemWrite, "mem_write", nil, "GB/s", 1000, "writing memory far bigger than the caches"},
		{FigureMemCopy, "mem_copy", []string{"mem_bandwidth", "gpu_mem_bw"}, "GB/s", 1000, "copying memory: bytes read plus bytes written"},
		{FigureMemTriad, "mem_triad", nil, "GB/s", 1000, "a = b + s*c over memory: two reads and one write"},
		{FigureFP32Sustained, "fp32_sustained", nil, "GFLOPS", 1000, "FP32 product in the last part of minutes under full load"},
		{FigureBF16Matmul, "bf16_matmul", nil, "GFLOPS", 1000, "product of two square BF16 matrices with FP32 sums, on the tensor cores of a card"},
		{FigureBF16Sustained, "bf16_sustained", nil, "GFLOPS", 1000, "BF16 product in the last part of minutes under full load"},
		{FigureFP32Rate, "fp32_rate", nil, "GFLOPS", 1000, "FP32 multiply-adds in registers: what a card's ordinary cores can reach"},
		{FigureFP64Rate, "fp64_rate", nil, "GFLOPS", 1000, "FP64 multiply-adds in registers"},
		{FigureFP16Tensor, "fp16_tensor", nil, "GFLOPS", 1000, "FP16 products with FP32 sums in registers of the tensor cores"},
		{FigureFP16AccTensor, "fp16_acc_tensor", nil, "GFLOPS", 1000, "FP16 products with FP16 sums, twice as fast on GeForce cards"},
		{FigureBF16Tensor, "bf16_tensor", nil, "GFLOPS", 1000, "BF16 products with FP32 sums in registers of the tensor cores"},
		{FigureTF32Tensor, "tf32_tensor", nil, "GFLOPS", 1000, "TF32 products with FP32 sums in registers of the tensor cores"},
		{FigureInt8Tensor, "int8_tensor", nil, "GOPS", 1000, "products of bytes with 32-bit sums in registers of the tensor cores"},
		{FigureFP8Tensor, "fp8_tensor", nil, "GFLOPS", 1000, "FP8 (E4M3) products with FP32 sums in registers of the tensor cores"},
		{FigureFP64Tensor, "fp64_tensor", nil, "GFLOPS", 1000, "FP64 products in registers of the tensor cores"},
		{FigureMemTest, "mem_test", nil, "GB/s", 1000, "writing a pattern to nearly all of a card's memory and checking it"},
		{FigureToDevice, "pcie_to_device", nil, "GB/s", 1000, "copies from pinned memory of the machine to the card"},
		{FigureFromDevice, "pcie_from_device", nil, "GB/s", 1000, "copies from the card to pinned memory of the machine"},
	}
}

// Info is the table's line of id; false for an id of a later release.
func Info(id FigureID) (FigureInfo, bool) {
	all := Figures()
	if id == 0 || int(id) > len(all) {
		return FigureInfo{}, false
	}
	return all[id-1], true
}

// FigureByName finds a figure by its name or alias, as queries write it.
func FigureByName(name string) (FigureInfo, bool) {
	for _, f := range Figures() {
		if f.Name == name || slices.Contains(f.Aliases, name) {
			return f, true
		}
	}
	return FigureInfo{}, false
}

// String is the id's name, or "figure 99" for one of a later release.
func (id FigureID) String() string {
	if f, ok := Info(id); ok {
		return f.Name
	}
	return fmt.Sprintf("figure %d", uint16(id))
}

// Format is a stored value for people, with three digits or more: "87.3 GFLOPS", "1.92 TFLOPS", "412 GB/s".
func (f FigureInfo) Format(value uint64) string {
	v, unit := float64(value)/float64(max(f.Scale, 1)), f.Unit
	if rest, ok := strings.CutPrefix(unit, "G"); ok && v >= 1000 {
		v, unit = v/1000, "T"+rest
	}
	digits := 0
	switch {
	case v < 10:
		digits = 2
	case v < 100:
		digits = 1
	}
	return strconv.FormatFloat(v, 'f', digits, 64) + " " + unit
}

// String is the figure for people: "fp32_matmul 87.3 GFLOPS (openblas)".
func (f Figure) String() string {
	value := strconv.FormatUint(f.Value, 10)
	if info, ok := Info(f.ID); ok {
		value = info.Format(f.Value)
	}
	if f.Kernel == KernelUnknown {
		return fmt.Sprintf("%s %s", f.ID, value)
	}
	return fmt.Sprintf("%s %s (%s)", f.ID, value, f.Kernel)
}
