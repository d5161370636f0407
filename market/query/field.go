package query

import (
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"

	"github.com/gpufair/gpufair/benchmark"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/p2p/identity"
)

// class is how a field's values are read and compared.
type class uint8

const (
	classNumber class = iota
	classFigure
	classText
	classModel
	classVersion
	classAccount
)

type field struct {
	name    string
	aliases []string
	class   class
	index   int                // in Facts.num or Facts.text
	figure  benchmark.FigureID // for classFigure
	per     uint64             // stored integers per unit of a number, at most a million
	unit    string
	suffix  map[string]uint64 // what may follow a number, in units
	values  []string          // of a closed text field
	help    string
}

var (
	sizes     = map[string]uint64{"gib": 1, "gb": 1, "g": 1, "tib": 1024, "tb": 1024, "t": 1024}
	durations = map[string]uint64{"s": 1, "m": 60, "h": 3600, "d": 86400}
	fields    = fieldTable()
)

func fieldTable() []*field {
	const million = 1_000_000
	all := []*field{
		{name: "kind", class: classText, index: textKind, values: []string{"gpu", "cpu"}, help: "gpu, cpu, or any; gpu unless the query says otherwise"},
		{name: "gpu_name", aliases: []string{"model"}, class: classModel, index: textModel, help: "the model, blanks as underscores: RTX_4090"},
		{name: "num_gpus", index: numGPUs, per: 1, help: "GPUs of the lot that are free; 0 for a cpu"},
		{name: "free", index: numFree, per: 1, help: "devices of the lot that are free; >=1 unless the query says otherwise"},
		{name: "devices", index: numDevices, per: 1, help: "devices of the lot, free or not"},
		{name: "price", aliases: []string{"dph", "dph_total"}, index: numPrice, per: million, unit: "/h", help: "per device-hour in the offer's unit"},
		{name: "cpu_cores", aliases: []string{"cores", "cpu_cores_effective"}, index: numCores, per: 1, help: "CPU cores with each device"},
		{name: "ram", aliases: []string{"cpu_ram", "memory"}, index: numRAM, per: 1024, unit: "GiB", suffix: sizes, help: "main memory with each device, GiB"},
		{name: "disk", aliases: []string{"disk_space"}, index: numDisk, per: 1024, unit: "GiB", suffix: sizes, help: "disk of a job, GiB"},
		{name: "vram", aliases: []string{"gpu_ram"}, index: numVRAM, per: 1024, unit: "GiB", suffix: sizes, help: "memory of one GPU, GiB"},
		{name: "min_term", index: numMinTerm, per: 1, unit: "s", suffix: durations, help: "shortest lease; seconds, or 10m, 2h, 1d"},
		{name: "max_term", aliases: []string{"duration"}, index: numMaxTerm, per: 1, unit: "s", suffix: durations, help: "longest lease; seconds, or 10m, 2h, 1d"},
		{name: "driver", aliases: []string{"driver_version"}, class: classVersion, index: numDriver, help: "driver version: >=550 or =550.54.14"},
		{name: "reliability", aliases: []string{"reliability2"}, index: numReliability, per: million, help: "share of leases that went well, 0 to 1"},
		{name: "region", aliases: []string{"geolocation"}, class: classText, index: textRegion, help: "coarse region, as the owner states it"},
		{name: "sandbox", class: classText, index: textSandbox, values: []string{"runc", "gvisor"}, help: "runc or gvisor"},
		{name: "egress", class: classText, index: textEgress, values: []string{"none", "internet"}, help: "none or internet"},
		{name: "arch", aliases: []string{"cpu_arch"}, class: classText, index: textArch, values: []string{"amd64", "arm64"}, help: "amd64 or arm64"},
		{name: "unit", class: classText, index: textUnit, help: "unit of account of the price"},
		{name: "provider", class: classAccount, index: textProvider, help: "the provider's whole account (gf…)"},
	}
	for _, f := range benchmark.Figures() {
		n := &field{name: f.Name, aliases: f.Aliases, class: classFigure, figure: f.ID, per: f.Scale, unit: f.Unit, help: f.Help}
		n.suffix = map[string]uint64{strings.ToLower(f.Unit): 1}
		if rest, ok := strings.CutPrefix(f.Unit, "G"); ok {
			n.suffix["t"+strings.ToLower(rest)] = 1000
		}
		all = append(all, n)
	}
	return all
}

func lookup(name string) *field {
	for _, f := range fields {
		if f.name == name || slices.Contains(f.aliases, name) {
			return f
		}
	}
	return nil
}

// FieldInfo describes a field for help texts and completion.
type FieldInfo struct {
	Name    string   `json:"name"`
	Aliases []string `json:"aliases,omitempty"`
	Unit    string   `json:"unit,omitempty"`
	Values  []string `json:"values,omitempty"` // all that the field can be, if that is a closed list
	Help    string   `json:"help"`
}

// Fields lists every field that queries and orders know.
func Fields() []FieldInfo {
	out := make([]FieldInfo, len(fields))
	for i, f := range fields {
		out[i] = FieldInfo{Name: f.name, Aliases: slices.Clone(f.aliases), Unit: f.unit, Values: slices.Clone(f.values), Help: f.help}
	}
	return out
}

func (f *field) isText() bool {
	return f.class == classText || f.class == classModel || f.class == classAccount
}

// number is the stored integer of a number field, if the lot states it.
func (f *field) number(x *Facts) (uint64, bool) {
	if f.class != classFigure {
		return x.num[f.index], x.known&(1<<f.index) != 0
	}
	for i := range x.figs {
		if x.figs[i].ID == f.figure {
			return x.figs[i].Value, true
		}
	}
	return 0, false
}

// show is the lot's value for people; "" if it is not stated.
func (f *field) show(x *Facts) string {
	if f.isText() {
		return x.text[f.index].String()
	}
	v, ok := f.number(x)
	switch {
	case !ok:
		return ""
	case f.class == classVersion:
		return fmt.Sprintf("%d.%d.%d", v>>40, v>>20&versionPart, v&versionPart)
	case f.class == classFigure:
		info, _ := benchmark.Info(f.figure)
		return info.Format(v)
	case f.index == numGPUs && x.text[textKind] == wordGPU:
		return fmt.Sprintf("%d free of %d", v, x.num[numDevices])
	case f.per == 1_000_000:
		return money.Micro(v).String() + f.unit
	case f.per == 1024:
		return strconv.FormatFloat(float64(v)/1024, 'f', -1, 64) + " " + f.unit
	case f.unit != "":
		return fmt.Sprintf("%d %s", v, f.unit)
	}
	return strconv.FormatUint(v, 10)
}

// span is what a literal means in stored integers: from lo to hi. A literal between two integers has lo = hi + 1, so that every
// operator stays exact without a fraction.
type span struct{ lo, hi uint64 }

// read gives a literal's meaning for the field, or a message of what the field takes.
func (f *field) read(s string) (sp span, text, problem string) {
	switch f.class {
	case classModel:
		return sp, ModelName(s), ""
	case classAccount:
		if _, err := identity.ParseAccount(s); err != nil {
			return sp, "", "want the provider's whole account, as --json prints it (gf…)"
		}
		return sp, s, ""
	case classText:
		s = lower(s)
		if f.values != nil && !slices.Contains(f.values, s) {
			return sp, "", fmt.Sprintf("%s is %s or any", f.name, strings.Join(f.values, ", "))
		}
		return sp, s, ""
	case classVersion:
		lo, hi, ok := parseVersion(s)
		if !ok {
			return sp, "", f.name + " wants a version such as 550 or 550.54.14"
		}
		return span{lo, hi}, "", ""
	}
	digits := strings.TrimRightFunc(s, func(r rune) bool { return r != '.' && (r < '0' || r > '9') })
	times := uint64(1)
	if rest := lower(s[len(digits):]); rest != "" {
		var ok bool
		if times, ok = f.suffix[rest]; !ok {
			return sp, "", f.wants()
		}
	}
	m, err := money.Parse(digits) // any decimal of six places, read exactly
	if err != nil {
		return sp, "", f.wants()
	}
	hi, low := bits.Mul64(uint64(m), f.per*times)
	if hi >= 1_000_000 {
		return sp, "", f.wants()
	}
	q, r := bits.Div64(hi, low, 1_000_000)
	if r != 0 {
		return span{q + 1, q}, "", ""
	}
	return span{q, q}, "", ""
}

func (f *field) wants() string {
	switch {
	case f.per == 1_000_000:
		return f.name + " wants a number with at most six decimals, such as 0.5"
	case f.unit == "s":
		return f.name + " wants seconds, or a number with s, m, h or d"
	case f.unit != "":
		return f.name + " wants a number in " + f.unit
	}
	return f.name + " wants a number"
}

const versionPart = 1<<20 - 1

// parseVersion reads up to three numbers with dots. lo has the missing ones as 0, hi as the largest: "550" is every 550.x.y.
func parseVersion(s string) (lo, hi uint64, ok bool) {
	parts := strings.Split(s, ".")
	if len(parts) > 3 {
		return 0, 0, false
	}
	for i := range 3 {
		part := ""
		if i < len(parts) {
			part = parts[i]
		} else {
			lo, hi = lo<<20, hi<<20|versionPart
			continue
		}
		v, err := strconv.ParseUint(part, 10, 20)
		if err != nil {
			return 0, 0, false
		}
		lo, hi = lo<<20|v, hi<<20|v
	}
	return lo, hi, true
}
