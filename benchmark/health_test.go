package benchmark_test

import (
	"strings"
	"testing"

	"github.com/gpufair/gpufair/benchmark"
)

// The policy of the spec, line by line.
func TestXidPolicy(t *testing.T) {
	job, note, drain, reset, out := benchmark.ActionJob, benchmark.ActionNote, benchmark.ActionDrain, benchmark.ActionReset, benchmark.ActionOut
	for xid, want := range map[uint64]benchmark.Action{
		13: job, 31: job, 68: job, 69: job, 11: job, 32: job, 43: note, 45: note, 8: job, 39: job, 41: job, 46: reset, 62: reset, 109: reset,
		119: reset, 158: reset, 48: reset, 171: reset, 63: note, 156: reset, 64: out, 157: out, 92: drain, 94: job, 95: reset, 140: reset, 74: drain,
		150: drain, 54: out, 79: out, 99999: drain, 0: drain,
	} {
		got := benchmark.XidVerdict(xid)
		if got.Action != want || got.Text == "" {
			t.Errorf("Xid %d: %+v, want action %d", xid, got, want)
		}
		if got.Action >= drain && got.Advice == "" {
			t.Errorf("Xid %d: the owner is not told what to do", xid)
		}
	}
}

func TestCardVerdicts(t *testing.T) {
	healthy := benchmark.GPU{
		ECC: "on", ECCErrors: &benchmark.ECCErrors{Corrected: 5}, Rows: &benchmark.RemappedRows{Uncorrected: 1}, PCIeGen: 1, PCIeMaxGen: 5,
		PCIeWidth: 16, PCIeMaxWidth: 16, Throttle: benchmark.ReasonIdle | benchmark.ReasonPowerCap,
	}
	if got := healthy.Verdicts(); len(got) != 0 {
		t.Errorf("a healthy card at rest: %+v", got)
	}
	if got := (benchmark.GPU{ECC: "none"}).Verdicts(); len(got) != 0 {
		t.Errorf("a card that tells nothing: %+v", got)
	}
	for _, c := range []struct {
		f    func(g *benchmark.GPU)
		want benchmark.Action
		text string
	}{
		{func(g *benchmark.GPU) { g.Rows = &benchmark.RemappedRows{Failure: true, Pending: true} }, benchmark.ActionOut, "no spare rows"},
		{func(g *benchmark.GPU) { g.Rows = &benchmark.RemappedRows{Pending: true} }, benchmark.ActionNote, "replaced"},
		{func(g *benchmark.GPU) { g.ECCErrors = &benchmark.ECCErrors{Uncorrected: 1, UncorrectedLifetime: 1} }, benchmark.ActionReset, "1 errors since"},
		{func(g *benchmark.GPU) { g.ECCErrors = &benchmark.ECCErrors{UncorrectedLifetime: 2} }, benchmark.ActionNote, "2 errors in its life"},
		{func(g *benchmark.GPU) { g.Recovery = "reset" }, benchmark.ActionReset, "reset"},
		{func(g *benchmark.GPU) { g.Recovery = "reboot" }, benchmark.ActionOut, "reboot"},
		{func(g *benchmark.GPU) { g.Recovery = "action_9" }, benchmark.ActionDrain, "action_9"},
		{func(g *benchmark.GPU) { g.Throttle = benchmark.ReasonHWThermal }, benchmark.ActionDrain, "hw_thermal"},
		{func(g *benchmark.GPU) { g.PCIeWidth = 1 }, benchmark.ActionNote, "1 of 16 lanes"},
	} {
		g := healthy
		c.f(&g)
		if got := g.Verdicts(); len(got) == 0 || got[0].Action != c.want || !strings.Contains(got[0].Text, c.text) {
			t.Errorf("%q: %+v", c.text, got)
		}
	}
}
