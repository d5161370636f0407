package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/gpufair/gpufair/benchmark"
	"github.com/gpufair/gpufair/benchmark/probe"
	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/cmd/internal/wire"
	"github.com/gpufair/gpufair/p2p/local"
)

// checkGPUs are the findings about the driver and each card. Nothing is measured for them.
func checkGPUs(ctx context.Context, p probe.Config) []local.Check {
	found, err := probe.Detect(ctx, p)
	if err != nil {
		return []local.Check{wire.Finding(wire.LevelWarn, "gpu", err.Error(), "")}
	}
	return gpuFindings(found.GPUs)
}

func gpuFindings(g benchmark.GPUs) []local.Check {
	var out []local.Check
	switch {
	case g.Problem != nil:
		level := wire.LevelWarn
		if g.Problem.Code == "no_library" || g.Problem.Code == "no_nvml" {
			level = wire.LevelNote // a machine without a card
		}
		out = append(out, wire.Finding(level, "gpu", g.Problem.Text, g.Problem.Advice))
	case len(g.Cards) == 0:
		out = append(out, wire.Check("gpu", "the driver shows no card"))
	default:
		out = append(out, wire.Finding(wire.LevelNote, "gpu",
			fmt.Sprintf("%s shown by driver %s; %s", cli.Count(len(g.Cards), "card"), g.Driver, gpuNotYet), ""))
	}
	if g.WSL2 {
		out = append(out, wire.Finding(wire.LevelNote, "gpu", "this is WSL2: Windows has the card, and its driver tells neither its load nor its processes here",
			"install Linux itself for a card that strangers rent"))
	}
	for i, c := range g.Cards {
		out = append(out, cardFindings(fmt.Sprintf("gpu %d", i), c)...)
	}
	return out
}

// cardFindings are what is odd about one card (spec: gpu, 5). A link of a low generation is no finding: cards at rest save power.
func cardFindings(name string, c benchmark.GPU) []local.Check {
	if c.Problem != nil {
		return []local.Check{wire.Finding(wire.LevelFail, name, cli.Clean(c.Name)+": "+c.Problem.Text, c.Problem.Advice)}
	}
	out := []local.Check{wire.Check(name, "%s", cardLine(c))}
	add := func(level, text, next string) { out = append(out, wire.Finding(level, name, text, next)) }
	if c.PCIeWidth != 0 && c.PCIeWidth < c.PCIeMaxWidth {
		add(wire.LevelWarn, fmt.Sprintf("its link has %d of %d lanes: copies to the card are slow", c.PCIeWidth, c.PCIeMaxWidth),
			"normal for a riser or a small slot; else reseat the card, or move it to the slot next to the processor")
	}
	if c.Rows != nil && c.Rows.Failure {
		add(wire.LevelFail, "its memory has no spare rows left: it is broken", "have the card replaced")
	}
	if c.Rows != nil && c.Rows.Pending {
		add(wire.LevelWarn, "a broken row of its memory will be replaced at the next reset", "stop what uses the card and run nvidia-smi --gpu-reset, or reboot")
	}
	if c.ECCErrors != nil && c.ECCErrors.UncorrectedLifetime > 0 {
		add(wire.LevelNote, fmt.Sprintf("ECC has counted %d uncorrectable errors in its life", c.ECCErrors.UncorrectedLifetime), "")
	}
	if c.Recovery != "" {
		add(wire.LevelFail, "the driver asks for recovery: "+strings.ReplaceAll(c.Recovery, "_", " "), "stop what uses the card and run nvidia-smi --gpu-reset; if it is asked again, reboot")
	}
	if bad := c.Throttle & (benchmark.ReasonHWSlowdown | benchmark.ReasonHWThermal | benchmark.ReasonPowerBrake); bad != 0 {
		add(wire.LevelWarn, "it slows itself down: "+bad.String(), "look at its fans, dust and power leads")
	}
	if c.Persistence == "off" && c.ECC == "on" {
		add(wire.LevelNote, "persistence is off: the driver forgets its error counters after each job", "nvidia-smi -pm 1 as root, or enable nvidia-persistenced")
	}
	if len(c.Unread) > 0 {
		add(wire.LevelNote, "the driver did not tell "+strings.Join(c.Unread, ", "), "normal in some virtual machines and containers")
	}
	return out
}

// cardLine is a card in a line: "NVIDIA GeForce RTX 4090 GPU-…, 24564 MiB, ECC none, link x16 (gen 1 at rest, gen 4 at most), MIG none".
func cardLine(c benchmark.GPU) string {
	line := fmt.Sprintf("%s %s, %d MiB, ECC %s, MIG %s", cli.Clean(c.Name), cli.Clean(c.UUID), c.MemoryMiB, c.ECC, c.MIG)
	if c.PCIeWidth != 0 {
		line += fmt.Sprintf(", link x%d (gen %d now, gen %d at most)", c.PCIeWidth, c.PCIeGen, c.PCIeMaxGen)
	}
	if n := len(c.Slices); n > 0 {
		line += ", " + cli.Count(n, "MIG slice")
	}
	if n := len(c.Processes); n > 0 {
		line += ", used by " + cli.Count(n, "process")
	}
	return line
}
