package main

import (
	"strings"
	"testing"

	"github.com/gpufair/gpufair/benchmark"
)

func TestCardRemarks(t *testing.T) {
	r := benchmark.Report{
		Device: benchmark.Device{Model: "NVIDIA GeForce RTX 4090", Driver: "580.1"}, Profile: benchmark.Standard, Skipped: []string{"fp8: needs a newer driver"},
		Unread: []string{"heat: the temperature was not read at 2 of 2 looks"},
		Measurements: []benchmark.Measurement{
			{Figure: benchmark.FigureBF16Matmul, Stats: benchmark.Stats{Median: 100_000, N: 1}},
			{
				Figure: benchmark.FigureBF16Sustained, Stats: benchmark.Stats{Median: 80_000, N: 1},
				Conditions: &benchmark.Conditions{Reasons: benchmark.ReasonHWThermal | benchmark.ReasonIdle},
			},
		},
	}
	got := strings.Join(remarks(r), "\n")
	for _, want := range []string{"RTX 4090, driver 580.1", "not offered", "not measured: fp8", "not told: heat: the temp", "80 % of its short rate: it throttles, by hw_thermal"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in %s", want, got)
		}
	}
	r.Measurements[1].Stats.Median = 90_000
	if got := strings.Join(remarks(r), "\n"); strings.Contains(got, "throttles") || !strings.Contains(got, "90 %") {
		t.Error(got)
	}
	r.Measurements = r.Measurements[:1]
	if got := remarks(r); len(got) != 3 {
		t.Error(got)
	}
}
