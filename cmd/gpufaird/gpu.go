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
	if g.Compute != nil {
		out = append(out, wire.Finding(wire.LevelWarn, "gpu", "no kernel can run: "+g.Compute.Text, g.Compute.Advice))
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
	for _, v := range c.Verdicts() {
		level := wire.LevelWarn
		switch v.Action {
		case benchmark.ActionNote:
			level = wire.LevelNote
		case benchmark.ActionReset, benchmark.ActionOut:
			level = wire.LevelFail
		}
		add(level, v.Text, v.Advice)
	}
	if c.Persistence == "off" && c.ECC == "on" {
		add(wire.LevelNote, "persistence is off: the driver forgets its error counters after each job", "nvidia-smi -pm 1 as root, or enable nvidia-persistenced")
	}
	if len(c.Unread) > 0 {
		add(wire.LevelNote, "the driver did not tell "+strings.Join(c.Unread, ", "), "normal in some virtual machines and containers")
	}
	return out
}

// cardLine is a card in a line: "NVIDIA GeForce RTX 4090 GPU-…, 24564 MiB, ECC none, MIG none, link x16 (gen 1 now, gen 4 at most)".
func cardLine(c benchmark.GPU) string {
	line := cli.Clean(c.Name) + " " + cli.Clean(c.UUID)
	if c.MemoryMiB != 0 {
		line += fmt.Sprintf(", %d MiB", c.MemoryMiB)
	}
	line += fmt.Sprintf(", ECC %s, MIG %s", c.ECC, c.MIG)
	if c.PCIeWidth != 0 && c.PCIeGen != 0 && c.PCIeMaxGen != 0 {
		line += fmt.Sprintf(", link x%d (gen %d now, gen %d at most)", c.PCIeWidth, c.PCIeGen, c.PCIeMaxGen)
	}
	if n := len(c.Slices); n > 0 {
		line += ", " + cli.Count(n, "MIG slice")
	}
	if n := len(c.Processes); n > 0 {
		line += ", used by " + cli.Count(n, "process")
	}
	if c.ProcessesHidden {
		line += ", not all its users shown"
	}
	return line
}
