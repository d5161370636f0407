package benchmark

import (
	"fmt"
	"slices"
)

// Action is what a signal from a card asks for. A later one of the list is the stronger.
type Action uint8

// The actions.
const (
	ActionNote  Action = iota // keep in mind
	ActionJob                 // end the renter's job; the card stays
	ActionDrain               // no new jobs
	ActionReset               // end the jobs, reset the card or ask the owner to, and measure it by quick before it is offered again
	ActionOut                 // not offered until the owner has acted and standard passes
)

// Verdict is what a signal means and asks for.
type Verdict struct {
	Action Action
	Text   string
	Advice string // for the owner; "" if there is nothing to do
}

// xidRule is a line of the policy on Xid errors: what NVIDIA's catalogue says (docs.nvidia.com/deploy/xid-errors), stricter on 64, 92 and
// 157 since the work is paid for (spec: gpu, 5).
type xidRule struct {
	xids   []uint64
	action Action // for the first of a day
	text   string
	advice string
}

const (
	adviceReset = "run nvidia-smi --gpu-reset with nothing on the card, or reboot"
	adviceBus   = "check its power leads, riser and heat, then reboot"
	adviceRMA   = "have the card replaced"
)

// xidRules is the policy.
func xidRules() []xidRule {
	return []xidRule{
		{[]uint64{11, 13, 31, 32, 68, 69}, ActionJob, "the program on it made an error", ""},
		{[]uint64{43, 45}, ActionNote, "a program on it was ended after another error", ""},
		{[]uint64{8, 39, 40, 41}, ActionJob, "the card did not finish its work", adviceReset},
		{[]uint64{46, 62, 109, 119, 120, 143, 158}, ActionReset, "the card or its firmware hangs", adviceReset},
		{[]uint64{48, 171, 172}, ActionReset, "its memory made an error that ECC could not correct", adviceReset},
		{[]uint64{63}, ActionNote, "a row of its memory will be replaced at the next reset", "reset it between two jobs"},
		{[]uint64{156}, ActionReset, "a part of it was retired", adviceReset},
		{[]uint64{64, 157}, ActionOut, "a broken part of its memory could not be replaced", adviceRMA},
		{[]uint64{92}, ActionDrain, "ECC corrects many errors", "gpufaird benchmark tests its memory"},
		{[]uint64{94}, ActionJob, "a memory error was held within one program", "reset it when it is idle"},
		{[]uint64{95, 140}, ActionReset, "a memory error may have reached every program on it", adviceReset},
		{[]uint64{74, 136, 137, 144, 145, 146, 147, 148, 149, 150}, ActionDrain, "its link to other cards fails", "offer it alone; check the bridge"},
		{[]uint64{54}, ActionOut, "its extra power is missing", "shut down and attach its power leads"},
		{[]uint64{79}, ActionOut, "it fell off the bus", adviceBus},
		{[]uint64{154}, ActionDrain, "the driver asks for recovery", "gpufaird doctor says for which"},
	}
}

// XidVerdict is what Xid n asks for. An Xid that is not in the policy takes no new jobs.
func XidVerdict(n uint64) Verdict {
	for _, r := range xidRules() {
		if slices.Contains(r.xids, n) {
			return Verdict{r.action, r.text, r.advice}
		}
	}
	return Verdict{ActionDrain, "an error that gpufair does not know", "see dmesg and docs.nvidia.com/deploy/xid-errors"}
}

// Verdicts is what the card's own facts ask for, the strongest first. Nothing is said of what the driver does not tell.
func (g GPU) Verdicts() []Verdict {
	var out []Verdict
	add := func(is bool, v Verdict) {
		if is {
			out = append(out, v)
		}
	}
	if r := g.Rows; r != nil {
		add(r.Failure, Verdict{ActionOut, "its memory has no spare rows left: it is broken", adviceRMA})
		add(r.Pending, Verdict{ActionNote, "a broken row of its memory will be replaced at the next reset", adviceReset})
	}
	if e := g.ECCErrors; e != nil {
		add(e.Uncorrected > 0, Verdict{ActionReset, fmt.Sprintf("ECC could not correct %d errors since the driver was loaded", e.Uncorrected), adviceReset})
		add(e.Uncorrected == 0 && e.UncorrectedLifetime > 0, Verdict{ActionNote, fmt.Sprintf("ECC could not correct %d errors in its life", e.UncorrectedLifetime), ""})
	}
	switch g.Recovery {
	case "":
	case "reset", "drain_and_reset":
		out = append(out, Verdict{ActionReset, "the driver asks for a reset", adviceReset})
	case "reboot":
		out = append(out, Verdict{ActionOut, "the driver asks for a reboot", "reboot this machine"})
	default:
		out = append(out, Verdict{ActionDrain, "the driver asks for recovery: " + g.Recovery, adviceReset})
	}
	add(g.Throttle&(ReasonHWSlowdown|ReasonHWThermal|ReasonPowerBrake) != 0,
		Verdict{ActionDrain, "it slows itself down: " + (g.Throttle &^ ReasonIdle).String(), "look at its fans, dust and power leads"})
	add(g.PCIeWidth > 0 && g.PCIeWidth < g.PCIeMaxWidth, Verdict{
		ActionNote, fmt.Sprintf("its link has %d of %d lanes: copies to the card are slow", g.PCIeWidth, g.PCIeMaxWidth),
		"normal for a riser or a small slot; else reseat the card, or move it to the slot next to the processor",
	})
	slices.SortStableFunc(out, func(a, b Verdict) int { return int(b.Action) - int(a.Action) })
	return out
}
