package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/cmd/internal/wire"
	"github.com/gpufair/gpufair/p2p/local"
)

func (a *app) doctorCommand() *cobra.Command {
	return &cobra.Command{
		Use: "doctor", Short: "check what this machine needs to rent, and say what to do about what is missing",
		Long: `Check settings, identity, disk, agent, ledger, network, clock and offers, and say what to do about what is wrong.

Exit codes: 0 all is well, 13 something needs attention.`,
		Example: "  gpufair doctor\n  gpufair doctor --json",
		RunE: func(c *cobra.Command, _ []string) error {
			checks, err := a.examine(c.Context())
			if err != nil {
				return err
			}
			return a.daemon().PrintChecks(local.Checks{Checks: checks})
		},
	}
}

// examine collects findings; without an agent those that need none.
func (a *app) examine(ctx context.Context) ([]local.Check, error) {
	build := cli.ThisBuild()
	checks := []local.Check{wire.Check("program", "gpufair %s", build)}
	s := defaults()
	if err := cli.CheckConfig(a.Program, &s); err != nil {
		return append(checks, wire.Finding(wire.LevelFail, "settings", err.Error(), "gpufair config check")), nil
	}
	file, err := a.ConfigFile()
	if err != nil {
		return nil, err
	}
	dirs, err := a.Dirs()
	if err != nil {
		return nil, err
	}
	checks = append(checks, wire.Check("settings", "%s, or the defaults where it says nothing", file))
	client, err := a.connect(ctx)
	if err != nil {
		checks = append(checks, wire.Finding(wire.LevelFail, "agent", err.Error(), "mend what it says; its log is "+agentLog(dirs)))
		return append(checks, wire.StaticChecks(dirs.State)...), nil
	}
	status, err := client.Status(ctx)
	if err != nil {
		return nil, explained("doctor", err)
	}
	checks = append(checks, wire.Check("agent", "pid %d, release %s, account %s", status.PID, cli.Clean(status.Version), status.Account))
	if status.Version != build.Version {
		checks = append(checks, wire.Finding(wire.LevelWarn, "release", fmt.Sprintf("the agent is %s, this program %s", cli.Clean(status.Version),
			build.Version), "`gpufair agent stop`: the next command starts it anew"))
	}
	var live local.Checks
	if err := client.Get(ctx, "/doctor", &live); err != nil {
		return nil, explained("doctor", err)
	}
	checks = append(checks, live.Checks...)
	if status.Offers == 0 {
		return append(checks, wire.Finding(wire.LevelWarn, "offers", "no live offer is known",
			"join a network with `gpufair join STRING`; offers arrive within some seconds")), nil
	}
	return append(checks, wire.Check("offers", "%d live", status.Offers)), nil
}
