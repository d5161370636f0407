package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/gpufair/gpufair/cmd/internal/cli"
)

// here runs a command line in this process, with pipes for a terminal and a home of its own.
func here(t *testing.T, args ...string) (code cli.ExitCode, out, errs string) {
	t.Helper()
	var o, e bytes.Buffer
	home := filepath.Join(t.TempDir(), "h")
	code = execute(t.Context(), cli.Pipe(strings.NewReader(""), &o, &e), append(args, "--home", home))
	if _, err := os.Stat(home); err == nil {
		t.Errorf("%q wrote to the home", args)
	}
	return code, o.String(), e.String()
}

// TestHelp wants every verb to teach: what it does, and lines to copy. None of it starts an agent or writes anything.
func TestHelp(t *testing.T) {
	for line, wants := range map[string][]string{
		"--help":               {"gpufair join STRING", "docs/cli.md"},
		"":                     {"gpufair join STRING"},
		"search --help":        {"kind=cpu finds cores", "gpu_name (model)", "fp32_matmul", "gpufair search kind=cpu"},
		"why --help":           {"gpufair why 'gpu_ram>=80 price<1'", "7 no offer is known"},
		"show --help":          {"gpufair show 8QmxYz1p.1"},
		"run --help":           {"Ctrl-C: before the order is sent", "125 if gpufair could not run it", "gpufair run render.tar", "--budget", "--max-price 0.40"},
		"ps --help":            {"gpufair ps -a --json"},
		"logs --help":          {"gpufair logs -f --since 10m"},
		"stop --help":          {"gpufair stop 3f2a --release"},
		"results --help":       {"gpufair results render --output"},
		"agent --help":         {"gpufair agent stop"},
		"agent run --help":     {"in the foreground"},
		"doctor --help":        {"13 something needs attention"},
		"auction --help":       {"docs/auctions.md"},
		"ledger --help":        {},
		"ledger verify --help": {"10 behind"},
		"settle --help":        {"--amount"},
		"identity --help":      {},
		"join --help":          {},
		"peers --help":         {},
		"config --help":        {},
	} {
		code, out, errs := here(t, strings.Fields(line)...)
		if code != cli.ExitOK || errs != "" {
			t.Errorf("%q: exit %d, %s", line, code, errs)
		}
		for _, want := range wants {
			if !strings.Contains(out, want) {
				t.Errorf("%q does not say %q:\n%s", line, want, out)
			}
		}
	}
}

// TestEveryVerbTeaches walks the tree: no verb without a short line, and none that does something without an example or a long text.
func TestEveryVerbTeaches(t *testing.T) {
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Short == "" {
			t.Errorf("%s has no short text", c.CommandPath())
		}
		if c.Parent() != nil && c.Parent().Parent() == nil && c.Example == "" && c.Long == "" && c.Name() != "version" {
			t.Errorf("%s teaches nothing", c.CommandPath())
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(newApp(cli.Pipe(nil, nil, nil)).root())
}
