package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpufair/gpufair/benchmark"
	"github.com/gpufair/gpufair/cmd/internal/wire"
	"github.com/gpufair/gpufair/p2p/local"
)

func healthyCard() benchmark.GPU {
	return benchmark.GPU{
		Name: "NVIDIA A100-SXM4-80GB", MemoryMiB: 81920, ECC: "on", MIG: "off", Persistence: "on", PCIeGen: 1, PCIeMaxGen: 4, PCIeWidth: 16, PCIeMaxWidth: 16,
		ECCErrors: &benchmark.ECCErrors{}, Rows: &benchmark.RemappedRows{}, Throttle: benchmark.ReasonIdle,
	}
}

// Gen 1 at rest is no finding; each fault is one, with its level and what to do.
func TestDoctorOnCards(t *testing.T) {
	for _, c := range []struct {
		name       string
		f          func(c *benchmark.GPU)
		level, say string
	}{
		{"healthy", func(*benchmark.GPU) {}, "", ""},
		{"riser", func(c *benchmark.GPU) { c.PCIeWidth = 1 }, wire.LevelNote, "1 of 16 lanes"},
		{"broken rows", func(c *benchmark.GPU) { c.Rows.Failure = true }, wire.LevelFail, "replaced"},
		{"row to come", func(c *benchmark.GPU) { c.Rows.Pending = true }, wire.LevelNote, "--gpu-reset"},
		{"old errors", func(c *benchmark.GPU) { c.ECCErrors.UncorrectedLifetime = 3 }, wire.LevelNote, "3 errors in its life"},
		{"recovery", func(c *benchmark.GPU) { c.Recovery = "drain_and_reset" }, wire.LevelFail, "asks for a reset"},
		{"hot", func(c *benchmark.GPU) { c.Throttle = benchmark.ReasonHWThermal }, wire.LevelWarn, "hw_thermal"},
		{"power cap", func(c *benchmark.GPU) { c.Throttle = benchmark.ReasonPowerCap }, "", ""},
		{"persistence", func(c *benchmark.GPU) { c.Persistence = "off" }, wire.LevelNote, "nvidia-smi -pm 1"},
		{"unread", func(c *benchmark.GPU) { c.Unread = []string{"GetEccMode: error 999"} }, wire.LevelNote, "GetEccMode: error 999"},
	} {
		card := healthyCard()
		c.f(&card)
		got := cardFindings("gpu 0", card)
		if c.level == "" {
			if len(got) != 1 || !strings.Contains(got[0].Detail, "link x16 (gen 1 now, gen 4 at most)") {
				t.Errorf("%s: %+v", c.name, got)
			}
			continue
		}
		if len(got) != 2 || got[1].Level != c.level || !strings.Contains(got[1].Detail+got[1].Next, c.say) {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
	dim := healthyCard()
	dim.PCIeGen, dim.MemoryMiB, dim.ProcessesHidden = 0, 0, true
	if got := cardLine(dim); strings.Contains(got, " 0 ") || strings.Contains(got, "link") || !strings.Contains(got, "not all its users shown") {
		t.Errorf("of a card that tells little: %s", got)
	}
	lost := cardFindings("gpu 0", benchmark.GPU{Name: "card 0", Problem: &benchmark.Problem{Code: "lost", Text: "gone", Advice: "reboot"}})
	if len(lost) != 1 || lost[0].Level != wire.LevelFail || lost[0].Next != "reboot" {
		t.Errorf("%+v", lost)
	}
}

func TestDoctorOnDrivers(t *testing.T) {
	got := gpuFindings(benchmark.GPUs{WSL2: true, Problem: &benchmark.Problem{Code: "version_mismatch", Text: "updated", Advice: "reboot this machine"}})
	if len(got) != 2 || got[0].Level != wire.LevelWarn || !strings.Contains(got[1].Detail, "WSL2") {
		t.Errorf("%+v", got)
	}
	got = gpuFindings(benchmark.GPUs{Cards: []benchmark.GPU{healthyCard()}, Compute: &benchmark.Problem{Code: "no_jit", Text: "no compiler", Advice: "apt install it"}})
	if len(got) != 3 || got[1].Level != wire.LevelWarn || !strings.Contains(got[1].Detail, "no compiler") || got[1].Next != "apt install it" {
		t.Errorf("%+v", got)
	}
	for code, level := range map[string]string{"no_library": wire.LevelNote, "not_installed": wire.LevelWarn} {
		if got := gpuFindings(benchmark.GPUs{Problem: &benchmark.Problem{Code: code}}); len(got) != 1 || got[0].Level != level {
			t.Errorf("%s: %+v", code, got)
		}
	}
	got = gpuFindings(benchmark.GPUs{Driver: "580.1", Cards: []benchmark.GPU{healthyCard()}})
	if len(got) != 2 || !slices.ContainsFunc(got, func(c local.Check) bool { return strings.Contains(c.Detail, gpuNotYet) }) {
		t.Errorf("%+v", got)
	}
}
