package benchmark_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpufair/gpufair/benchmark"
)

func TestReasonsHaveNames(t *testing.T) {
	r := benchmark.ReasonPowerCap | benchmark.ReasonHWThermal | 1<<20
	if got := r.String(); got != "power_cap,hw_thermal,0x100000" {
		t.Error(got)
	}
	if benchmark.Reasons(0).String() != "none" {
		t.Error("no reason has a name")
	}
	for bit := range 64 {
		want := benchmark.Reasons(1)<<bit | benchmark.ReasonIdle
		b, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		var got benchmark.Reasons
		if err := json.Unmarshal(b, &got); err != nil || got != want {
			t.Errorf("%s: %v, %v", b, got, err)
		}
	}
	for _, bad := range []string{`["hot"]`, `[1]`, `{}`} {
		if err := json.Unmarshal([]byte(bad), &r); err == nil {
			t.Errorf("%s was read", bad)
		}
	}
}

func TestSummaryOfTelemetry(t *testing.T) {
	if benchmark.Summary(nil) != nil {
		t.Error("conditions of nothing")
	}
	got := benchmark.Summary([]benchmark.Telemetry{
		{SMClockMHz: 300, MemClockMHz: 405, PowerMW: 20_000, TemperatureC: 40, Reasons: benchmark.ReasonIdle, PCIeGen: 1, PCIeWidth: 16},
		{SMClockMHz: 2500, MemClockMHz: 10_000, PowerMW: 430_000, TemperatureC: 61, MemoryC: 70, Reasons: benchmark.ReasonPowerCap, PCIeGen: 4, PCIeWidth: 8, Replays: new(uint32(5))},
		{SMClockMHz: 2400, MemClockMHz: 10_000, PowerMW: 450_000, TemperatureC: 60, Reasons: benchmark.ReasonPowerCap, PCIeGen: 4, PCIeWidth: 16, Replays: new(uint32(9))},
	})
	want := &benchmark.Conditions{
		Samples: 3, SMClockMHz: 2400, SMClockMax: 2500, MemClockMHz: 10_000, PowerMW: 430_000, TempMaxC: 61, MemoryMaxC: 70,
		Reasons: benchmark.ReasonIdle | benchmark.ReasonPowerCap, PCIeGen: 4, PCIeWidth: 8, Replays: new(uint32(4)),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	// a counter that started again is not a count
	if c := benchmark.Summary([]benchmark.Telemetry{{Replays: new(uint32(9))}, {Replays: new(uint32(2))}}); c.Replays == nil || *c.Replays != 0 {
		t.Errorf("%+v", c)
	}
}

// What was not read at a look is no value of it: neither the lowest nor a count.
func TestSummaryLeavesOutWhatWasNotRead(t *testing.T) {
	whole := benchmark.Telemetry{SMClockMHz: 2400, MemClockMHz: 10_000, PowerMW: 450_000, TemperatureC: 60, PCIeGen: 4, PCIeWidth: 16, Replays: new(uint32(70))}
	got := benchmark.Summary([]benchmark.Telemetry{{}, whole, {}, {}, whole, {}})
	want := &benchmark.Conditions{
		Samples: 6, SMClockMHz: 2400, SMClockMax: 2400, MemClockMHz: 10_000, PowerMW: 450_000, TempMaxC: 60, PCIeGen: 4, PCIeWidth: 16, Replays: new(uint32(0)),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	b, err := json.Marshal(benchmark.Summary([]benchmark.Telemetry{{}, {}}))
	if err != nil || string(b) != `{"samples":2,"throttle_reasons":[]}` {
		t.Errorf("%s, %v", b, err)
	}
}
