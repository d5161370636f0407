package benchmark_test

import (
	"strings"
	"testing"

	"github.com/gpufair/gpufair/benchmark"
)

// The policy of the spec, line by line.
func TestXidPolicy(t *testing.T) {
	type want struct {
		first, again benchmark.Action
		refund       bool
	}
	job, note, drain, reset, out := benchmark.ActionJob, benchmark.ActionNote, benchmark.ActionDrain, benchmark.ActionReset, benchmark.ActionOut
	for xid, w := range map[uint64]want{
		13: {job, job, false}, 31: {job, job, false}, 68: {job, job, false}, 69: {job, job, false}, 11: {job, job, false}, 32: {job, job, false},
		43: {note, note, false}, 45: {note, note, false}, 8: {job, reset, true}, 39: {job, reset, true}, 41: {job, reset, true},
		46: {reset, out, true}, 62: {reset, out, true}, 109: {reset, out, true}, 119: {reset, out, true}, 158: {reset, out, true},
		48: {reset, out, true}, 171: {reset, out, true}, 63: {note, note, false}, 156: {reset, out, false}, 64: {out, out, true}, 157: {out, out, true},
		92: {drain, out, false}, 94: {job, reset, true}, 95: {reset, out, true}, 140: {reset, out, true}, 74: {drain, reset, false}, 150: {drain, reset, false},
		54: {out, out, true}, 79: {out, out, true}, 99999: {drain, drain, false}, 0: {drain, drain, false},
	} {
		first, again := benchmark.XidVerdict(xid, 0), benchmark.XidVerdict(xid, 1)
		if first.Action != w.first || again.Action != w.again || first.Refund != w.refund || first.Text == "" {
			t.Errorf("Xid %d: %+v, again %s; want %+v", xid, first, again.Action, w)
		}
		if first.Action >= drain && first.Advice == "" {
			t.Errorf("Xid %d: the owner is not told what to do", xid)
		}
		if again.Action < first.Action {
			t.Errorf("Xid %d: the second is judged milder", xid)
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
	if benchmark.ActionOut.Check() != benchmark.Standard || benchmark.ActionReset.Check() != benchmark.Quick || benchmark.ActionJob.Check() != "" {
		t.Error("what must pass before a card returns")
	}
}
