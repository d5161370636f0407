package benchmark_test

import (
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gpufair/gpufair/benchmark"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

func TestFiguresTable(t *testing.T) {
	names := map[string]bool{}
	for i, f := range benchmark.Figures() {
		if f.ID != benchmark.FigureID(i+1) || f.Scale == 0 || f.Unit == "" || f.Help == "" {
			t.Errorf("line %d: %+v", i, f)
		}
		for _, name := range append(f.Aliases, f.Name) {
			if names[name] || strings.ToLower(name) != name || strings.ContainsAny(name, " -") {
				t.Errorf("name %q: taken, or not a name for queries", name)
			}
			names[name] = true
			if got, ok := benchmark.FigureByName(name); !ok || got.ID != f.ID {
				t.Errorf("%q finds %v", name, got.ID)
			}
		}
	}
	// ids and names are on the wire and in people's scripts
	if benchmark.FigureFP32Matmul.String() != "fp32_matmul" || benchmark.FigureMemTriad.String() != "mem_triad" {
		t.Error("a figure was renamed")
	}
	if _, ok := benchmark.Info(0); ok || benchmark.FigureID(999).String() != "figure 999" {
		t.Error("unknown figures")
	}
	if _, ok := benchmark.FigureByName("nothing"); ok {
		t.Error("found nothing")
	}
}

func TestFigureText(t *testing.T) {
	for _, c := range []struct {
		f    benchmark.Figure
		want string
	}{
		{benchmark.Figure{ID: 1, Value: 87_340, Kernel: benchmark.KernelOpenBLAS}, "fp32_matmul 87.3 GFLOPS (openblas)"},
		{benchmark.Figure{ID: 2, Value: 3_136, Kernel: benchmark.KernelGonum}, "fp64_matmul 3.14 GFLOPS (gonum)"},
		{benchmark.Figure{ID: 1, Value: 1_920_000}, "fp32_matmul 1.92 TFLOPS"},
		{benchmark.Figure{ID: 5, Value: 412_400, Kernel: benchmark.KernelGo}, "mem_copy 412 GB/s (go)"},
		{benchmark.Figure{ID: 999, Value: 7, Kernel: 77}, "figure 999 7 (kernel 77)"},
	} {
		if got := c.f.String(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

func TestFigureJSON(t *testing.T) {
	b, err := json.Marshal(benchmark.Figure{ID: 1, Value: 5, Kernel: benchmark.KernelGonum})
	if err != nil || string(b) != `{"id":1,"value":5,"kernel":"gonum"}` {
		t.Errorf("%s, %v", b, err)
	}
	var f benchmark.Figure
	if err := json.Unmarshal([]byte(`{"id":1,"value":5,"kernel":"from the future"}`), &f); err != nil || f.Kernel != benchmark.KernelUnknown {
		t.Errorf("%+v, %v", f, err)
	}
}

func TestProfiles(t *testing.T) {
	for _, p := range []benchmark.Profile{benchmark.Quick, benchmark.Standard, benchmark.Soak} {
		got, err := benchmark.ParseProfile(string(p))
		if err != nil || got != p || p.Repeats() < 10 || p.Limit() < 2*p.Sustained()+time.Minute {
			t.Errorf("%s: %v, %v", p, got, err)
		}
	}
	if _, err := benchmark.ParseProfile("fast"); err == nil || !strings.Contains(err.Error(), "quick, standard or soak") {
		t.Errorf("%v", err)
	}
}

func TestCores(t *testing.T) {
	for in, want := range map[string]string{"0": "0", "3,1,2": "1-3", "0-3,8": "0-3,8", " 0, 2-2 ": "0,2", "1023": "1023"} {
		if c, err := benchmark.ParseCores(in); err != nil || c.String() != want {
			t.Errorf("%q: %s, %v", in, c, err)
		}
	}
	for _, in := range []string{"", ",", "-1", "3-1", "1,1", "0-3,2", "a", "1-2-3", "1024", "99999999999", "0-4294967295", "+1", "1 - 2"} {
		if c, err := benchmark.ParseCores(in); !errors.Is(err, benchmark.ErrCores) {
			t.Errorf("%q: %s, %v", in, c, err)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		c := benchmark.Cores(rapid.SliceOfNDistinct(rapid.Uint32Range(0, 1023), 1, 100, rapid.ID[uint32]).Draw(t, "cores"))
		slices.Sort(c)
		got, err := benchmark.ParseCores(c.String())
		if err != nil || !slices.Equal(got, c) {
			t.Fatalf("%v by way of %q: %v, %v", c, c, got, err)
		}
	})
}

func FuzzParseCores(f *testing.F) {
	f.Add("0-3,8")
	f.Fuzz(func(t *testing.T, s string) {
		c, err := benchmark.ParseCores(s)
		if err != nil {
			return
		}
		again, err := benchmark.ParseCores(c.String())
		if err != nil || !slices.Equal(c, again) {
			t.Errorf("%q: %v and %v, %v", s, c, again, err)
		}
	})
}

func TestDeviceIDs(t *testing.T) {
	id, err := benchmark.ParseMachineID("00112233445566778899aabbccddeeff\n")
	if err != nil {
		t.Fatal(err)
	}
	cores := benchmark.Cores{0, 1, 2, 5}
	// the bytes of docs/protocol.md: domain, 16 bytes, the list as text
	want := wire.Sum("gpufair/cpu-device/1\x00\x11\x22\x33\x44\x55\x66\x77\x88\x99\xaa\xbb\xcc\xdd\xee\xff" + "0-2,5")
	if got := benchmark.CPUDevice(id, cores); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if benchmark.CPUDevice(id, cores[:3]) == want || benchmark.CPUDevice(benchmark.MachineID{1}, cores) == want {
		t.Error("other devices have the same id")
	}
	if benchmark.GPUDevice("GPU-1") == benchmark.GPUDevice("GPU-2") {
		t.Error("two cards have the same id")
	}
	for _, s := range []string{"", "xyz", "00112233445566778899aabbccddee", strings.Repeat("0", 32), strings.Repeat("1", 34)} {
		if _, err := benchmark.ParseMachineID(s); err == nil {
			t.Errorf("machine id %q was taken", s)
		}
	}
}

func TestSummarise(t *testing.T) {
	samples := func(ms ...int) (out []benchmark.Sample) {
		for _, m := range ms {
			out = append(out, benchmark.Sample{Work: 1e9, Elapsed: time.Duration(m) * time.Millisecond})
		}
		return out
	}
	// 10^9 units in 100 ms are 10,000 x 10^6 a second
	got := benchmark.Summarise(samples(100, 100, 80, 125, 100))
	want := benchmark.Stats{Median: 10_000, P5: 8_400, P95: 12_000, Spread: 0, N: 5}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if got := benchmark.Summarise(samples(100, 50)); got.Median != 15_000 || got.Spread != 333_333 || got.Percent() != "33.3%" {
		t.Errorf("%+v", got)
	}
	if got := benchmark.Summarise(nil); got != (benchmark.Stats{}) {
		t.Errorf("%+v", got)
	}
	if got := benchmark.Summarise(samples(0, 0)); got.Median != 0 || got.Spread != math.MaxUint32 {
		t.Errorf("%+v", got)
	}
	rapid.Check(t, func(t *rapid.T) {
		rates := rapid.SliceOfN(rapid.IntRange(50, 5000), 1, 60).Draw(t, "ms")
		s := benchmark.Summarise(samples(rates...))
		low, high := uint64(1e6/slices.Max(rates)), uint64(1e6/slices.Min(rates))+1
		if s.P5 < low || s.P5 > s.Median || s.Median > s.P95 || s.P95 > high || s.N != uint32(len(rates)) {
			t.Fatalf("%v: %+v, outside %d to %d", rates, s, low, high)
		}
		slices.Reverse(rates)
		if benchmark.Summarise(samples(rates...)) != s {
			t.Fatal("the order of the intervals counts")
		}
	})
}

func now() time.Time { return time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC) }

func report() benchmark.Report {
	return benchmark.Report{
		Device: benchmark.Device{
			Hash: benchmark.GPUDevice("any"), Kind: benchmark.KindCPU, Model: "AMD EPYC", Cores: benchmark.Cores{0, 1}, MemoryMiB: 1, OS: "linux 6.18 amd64",
		},
		Profile: benchmark.Quick, KernelSet: benchmark.KernelSet, Started: now().Add(-time.Minute), Finished: now(),
		Measurements: []benchmark.Measurement{
			measured(benchmark.FigureFP32Matmul, 170_000), measured(benchmark.FigureFP64Matmul, 90_000), measured(benchmark.FigureMemCopy, 40_000),
		},
	}
}

func measured(id benchmark.FigureID, value uint64) benchmark.Measurement {
	return benchmark.Measurement{
		Figure: id, Kernel: benchmark.KernelOpenBLAS, KernelName: "openblas 0.3.21 (Zen)", Size: "n=1024",
		Stats: benchmark.Stats{Median: value, P5: value - 1, P95: value + 1, Spread: 4000, N: 10},
	}
}

func signer(t testing.TB) *identity.Device {
	t.Helper()
	_, _, dev, err := identity.Generate()
	if err != nil {
		t.Fatal(err)
	}
	return dev
}

func TestPassportTravels(t *testing.T) {
	dev := signer(t)
	p := report().Passport(dev.Header(1), dev.DelegationHash())
	raw, err := dev.Seal(benchmark.DomainPassport, p)
	if err != nil {
		t.Fatal(err)
	}
	got, err := benchmark.OpenPassport(raw)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(p, got); diff != "" {
		t.Error(diff)
	}
	if err := got.Valid(now().Add(29 * 24 * time.Hour)); err != nil {
		t.Error(err)
	}
	if err := got.Describes(report().Device); err != nil {
		t.Error(err)
	}
	want := benchmark.Figure{ID: benchmark.FigureFP32Matmul, Value: 170_000, Kernel: benchmark.KernelOpenBLAS}
	if f := got.Figures(); len(f) != 3 || f[0] != want {
		t.Errorf("%v", f)
	}
	raw[len(raw)/2] ^= 1
	if _, err := benchmark.OpenPassport(raw); err == nil {
		t.Error("a changed passport was opened")
	}
	if _, err := benchmark.OpenPassport(make([]byte, benchmark.MaxPassport+1)); !errors.Is(err, wire.ErrTooLarge) {
		t.Errorf("too large: %v", err)
	}
	other, err := dev.Seal("gpufair/other/1", p)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := benchmark.OpenPassport(other); !errors.Is(err, identity.ErrSignature) {
		t.Errorf("signed for another domain: %v", err)
	}
}

func TestLargestPassportFits(t *testing.T) {
	dev := signer(t)
	r := report()
	r.Device.Cores = nil
	for c := range uint32(1024) {
		r.Device.Cores = append(r.Device.Cores, c)
	}
	long := strings.Repeat("x", benchmark.MaxText)
	r.Device.Model, r.Device.OS, r.Measurements = long, long, nil
	for i := range benchmark.MaxMeasurements {
		m := measured(benchmark.FigureID(60_000+i), math.MaxUint64-1)
		m.KernelName, m.Size = long, long
		r.Measurements = append(r.Measurements, m)
	}
	raw, err := dev.Seal(benchmark.DomainPassport, r.Passport(dev.Header(1), dev.DelegationHash()))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := benchmark.OpenPassport(raw); err != nil {
		t.Errorf("%d bytes: %v", len(raw), err)
	}
}

func TestPassportRefused(t *testing.T) {
	type P = benchmark.Passport
	first := func(p *P) *benchmark.Measurement { return &p.Measurements[0] }
	for _, c := range []struct {
		name string
		f    func(p *P)
		want error
	}{
		{"expired", func(p *P) {
			life := benchmark.PassportLife.Milliseconds()
			p.Started, p.Finished, p.Expires = p.Started-life, p.Finished-life, p.Expires-life
		}, benchmark.ErrExpired},
		{"from the future", func(p *P) { p.Finished += 3_600_000; p.Expires += 3_600_000 }, benchmark.ErrFuture},
		{"lives too long", func(p *P) { p.Expires++ }, benchmark.ErrPassport},
		{"ends before it starts", func(p *P) { p.Started = p.Finished + 1 }, benchmark.ErrPassport},
		{"no time", func(p *P) { p.Started = 0 }, benchmark.ErrPassport},
		{"dead at birth", func(p *P) { p.Expires = p.Finished }, benchmark.ErrPassport},
		{"no device", func(p *P) { p.DeviceHash = wire.Hash{} }, benchmark.ErrPassport},
		{"kind", func(p *P) { p.Kind = "tpu" }, benchmark.ErrPassport},
		{"gpu with cores", func(p *P) { p.Kind = benchmark.KindGPU }, benchmark.ErrPassport},
		{"no cores", func(p *P) { p.Cores = nil }, benchmark.ErrPassport},
		{"cores twice", func(p *P) { p.Cores = benchmark.Cores{1, 1} }, benchmark.ErrPassport},
		{"no figures", func(p *P) { p.Measurements = nil }, benchmark.ErrPassport},
		{"figure twice", func(p *P) { p.Measurements[1] = p.Measurements[0] }, benchmark.ErrPassport},
		{"too many", func(p *P) { p.Measurements = make([]benchmark.Measurement, benchmark.MaxMeasurements+1) }, benchmark.ErrPassport},
		{"long text", func(p *P) { p.Model = strings.Repeat("x", benchmark.MaxText+1) }, benchmark.ErrPassport},
		{"long kernel", func(p *P) { first(p).KernelName = strings.Repeat("x", benchmark.MaxText+1) }, benchmark.ErrPassport},
		{"no intervals", func(p *P) { first(p).Stats.N = 0 }, benchmark.ErrPassport},
		{"median above p95", func(p *P) { first(p).Stats.P95 = first(p).Stats.Median - 1 }, benchmark.ErrPassport},
		{"p5 above median", func(p *P) { first(p).Stats.P5 = first(p).Stats.Median + 1 }, benchmark.ErrPassport},
		{"faster than any two cores", func(p *P) { *first(p) = measured(benchmark.FigureFP32Matmul, 900_000) }, benchmark.ErrFalse},
		{"fp64 as fast as fp32", func(p *P) {
			*first(p) = measured(benchmark.FigureFP64Matmul, 500_000)
			p.Measurements = p.Measurements[:1]
		}, benchmark.ErrFalse},
		{"memory from the cache", func(p *P) { *first(p) = measured(benchmark.FigureMemRead, 300_000) }, benchmark.ErrFalse},
	} {
		p := report().Passport(identity.Header{Version: 1}, wire.Hash{})
		p.Measurements = slices.Clone(p.Measurements)
		if err := p.Valid(now()); err != nil {
			t.Fatal(err)
		}
		c.f(&p)
		if err := p.Valid(now()); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
}

func TestPassportOfAChangedDevice(t *testing.T) {
	p := report().Passport(identity.Header{Version: 1}, wire.Hash{})
	for name, f := range map[string]func(d *benchmark.Device){
		"id":     func(d *benchmark.Device) { d.Hash[0]++ },
		"model":  func(d *benchmark.Device) { d.Model = "other" },
		"driver": func(d *benchmark.Device) { d.Driver = "550.1" },
	} {
		d := report().Device
		f(&d)
		if err := p.Describes(d); !errors.Is(err, benchmark.ErrChanged) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	p.KernelSet++
	if err := p.Describes(report().Device); !errors.Is(err, benchmark.ErrChanged) {
		t.Errorf("kernel set: %v", err)
	}
}

func TestCaps(t *testing.T) {
	for _, c := range []struct {
		kind  benchmark.Kind
		cores int
		id    benchmark.FigureID
		want  uint64
	}{
		{benchmark.KindCPU, 1, benchmark.FigureFP32Matmul, 416_000},
		{benchmark.KindCPU, 2, benchmark.FigureFP64Matmul, 416_000},
		{benchmark.KindCPU, 1, benchmark.FigureMemRead, 130_000},
		{benchmark.KindCPU, 1024, benchmark.FigureMemTriad, 3_000_000},
		{benchmark.KindCPU, 1, 999, 0},
		{benchmark.KindGPU, 0, benchmark.FigureFP32Matmul, 0},
	} {
		if got, ok := benchmark.Cap(c.kind, c.cores, c.id); got != c.want || ok != (c.want != 0) {
			t.Errorf("%+v: %d, %t", c, got, ok)
		}
	}
}

// What a stranger sends as a passport must not crash us, and what opens must be within its limits.
func FuzzOpenPassport(f *testing.F) {
	dev := signer(f)
	raw, err := dev.Seal(benchmark.DomainPassport, report().Passport(dev.Header(1), dev.DelegationHash()))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		if p, err := benchmark.OpenPassport(b); err == nil && p.Validate() != nil {
			t.Error("an impossible passport was opened")
		}
	})
}

// The same behind a true signature: strangers sign whatever they like.
func FuzzPassportBody(f *testing.F) {
	body, err := wire.Marshal(report().Passport(identity.Header{Version: 1}, wire.Hash{}))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(body)
	f.Fuzz(func(_ *testing.T, b []byte) {
		var p benchmark.Passport
		if wire.Unmarshal(b, &p) == nil && p.Valid(now()) == nil {
			for _, m := range p.Measurements {
				_ = m.String()
			}
		}
	})
}
