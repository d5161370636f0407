package query

import (
	"strings"
	"unique"

	"github.com/gpufair/gpufair/benchmark"
	"github.com/gpufair/gpufair/market"
)

// Number fields of [Facts], by position.
const (
	numPrice = iota
	numGPUs
	numFree
	numDevices
	numCores
	numRAM
	numDisk
	numVRAM
	numMinTerm
	numMaxTerm
	numDriver
	numReliability
	numbers
)

// Text fields of [Facts], by position.
const (
	textKind = iota
	textModel
	textRegion
	textSandbox
	textEgress
	textArch
	textUnit
	textProvider
	texts
)

// Facts is what a lot states, in the form that conditions are judged on: made once when an offer arrives, so that a search only
// compares integers. Use it by pointer; SetFree must not run beside Match.
type Facts struct {
	known uint32 // bit i: num[i] is stated
	num   [numbers]uint64
	text  [texts]word // as the field's values are compared
	figs  []benchmark.Figure
}

// word is a text that compares as a pointer, so that a scan of many facts leaves the letters alone. The zero word is not stated.
type word struct{ h unique.Handle[string] }

func wordOf(s string) word {
	if s == "" {
		return word{}
	}
	return word{unique.Make(s)}
}

func (w word) String() string {
	if w == (word{}) {
		return ""
	}
	return w.h.Value()
}

var wordGPU = wordOf(string(market.KindGPU))

// FactsOf are the facts of one lot of an offer. The lot must be one of o's.
func FactsOf(o *market.Offer, l *market.Lot) Facts {
	f := Facts{figs: l.Figures}
	f.set(numPrice, uint64(l.Price))
	f.set(numDevices, uint64(len(l.Slots)))
	f.set(numCores, uint64(l.Cores))
	f.set(numRAM, l.MemoryMiB)
	f.set(numDisk, l.DiskMiB)
	if l.VRAMMiB > 0 {
		f.set(numVRAM, l.VRAMMiB)
	}
	f.set(numMinTerm, uint64(l.MinTerm))
	f.set(numMaxTerm, uint64(l.MaxTerm))
	if v, _, ok := parseVersion(l.Driver); ok {
		f.set(numDriver, v)
	}
	for i, s := range [texts]string{
		textKind: string(l.Kind), textModel: ModelName(l.Model), textRegion: lower(o.Region), textSandbox: o.Terms.Sandbox,
		textEgress: o.Terms.Egress, textArch: o.Terms.Arch, textUnit: lower(string(o.Unit)), textProvider: o.Account.String(),
	} {
		f.text[i] = wordOf(s)
	}
	f.SetFree(l.Free())
	return f
}

func (f *Facts) set(i int, v uint64) {
	f.num[i] = v
	f.known |= 1 << i
}

// SetFree says how many of the lot's devices are free.
func (f *Facts) SetFree(n int) {
	f.set(numFree, uint64(n))
	gpus := 0
	if f.text[textKind] == wordGPU {
		gpus = n
	}
	f.set(numGPUs, uint64(gpus))
}

// SetReliability states the share of leases that went well, in millionths.
func (f *Facts) SetReliability(millionths uint64) { f.set(numReliability, min(millionths, 1_000_000)) }

// Free is how many devices are free.
func (f *Facts) Free() int { return int(f.num[numFree]) }

func lower(s string) string { return strings.ToLower(strings.ReplaceAll(s, " ", "_")) }

// ModelName is a driver's name of a model as queries write it: "NVIDIA GeForce RTX 4090" is RTX_4090. Blanks and dashes are
// underscores, and the maker's name is left out, as Vast does it.
func ModelName(s string) string {
	s = strings.Join(strings.FieldsFunc(strings.ToUpper(s), func(r rune) bool { return r == ' ' || r == '-' || r == '_' }), "_")
	for _, maker := range []string{"NVIDIA_", "GEFORCE_", "TESLA_"} {
		s = strings.TrimPrefix(s, maker)
	}
	return s
}
