// Command gpufair-tray shows how the owner's daemon stands, at a glance: as a line for a status bar, as JSON, or at each change. It is one
// more client of the daemon's local API and knows nothing else; the drawn tray comes with the owner's issue.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/p2p/local"
	"github.com/gpufair/gpufair/provider/control/api"
)

func main() {
	p := cli.NewProgram(cli.System(), "gpufair-tray", "the owner's daemon at a glance", "")
	os.Exit(int(p.Main(context.Background(), root(p), os.Args[1:])))
}

func root(p *cli.Program) *cobra.Command {
	var socket string
	var watch, line bool
	r := p.Root()
	r.Long = "Prints how gpufaird stands: one line, or with --json one object; with --watch again at each change, until Ctrl-C.\n\n" +
		"Exit codes: 0 serving or paused, 4 the daemon does not answer, 13 it runs, but can't serve."
	r.Example = "  gpufair-tray --line\n  gpufair-tray --watch               # for a status bar that reads lines\n" +
		"  gpufair-tray --json --watch\n  gpufair-tray --socket /srv/gpufair/a/run/api.sock"
	r.Flags().StringVar(&socket, "socket", "", "the daemon's socket (default that of gpufaird under --home, or of the system's)")
	r.Flags().BoolVar(&watch, "watch", false, "print at each change, until Ctrl-C")
	r.Flags().BoolVar(&line, "line", false, "print one line (the default)")
	r.RunE = func(cmd *cobra.Command, _ []string) error {
		if line && p.JSON {
			return cli.Usagef("give one of them", "--line and --json exclude each other")
		}
		path, err := socketOf(p, socket)
		if err != nil {
			return err
		}
		ctx, stop := cli.Stop(cmd.Context())
		defer stop()
		return show(ctx, p, api.New(path), watch)
	}
	return r
}

// socketOf is the flag, or where gpufaird listens by its defaults.
func socketOf(p *cli.Program, flag string) (string, error) {
	if flag != "" {
		return flag, nil
	}
	dirs, err := cli.SystemDirs("gpufaird", p.Home)
	if err != nil {
		return "", err
	}
	return dirs.Socket("api.sock")
}

func show(ctx context.Context, p *cli.Program, c api.Client, watch bool) error {
	print := func(s api.Status) error {
		if p.JSON {
			return p.PrintJSON(s)
		}
		_, err := fmt.Fprintln(p.Out, cli.Clean(s.Line()))
		return err
	}
	if watch {
		err := c.Watch(ctx, print)
		if ctx.Err() != nil {
			return nil // seen enough
		}
		return explain(err)
	}
	s, err := c.Status(ctx)
	if err != nil {
		return explain(err)
	}
	if err := print(s); err != nil {
		return err
	}
	if s.State == api.Stuck || s.State == api.Idle {
		return cli.Status(cli.ExitUnhealthy)
	}
	return nil
}

func explain(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, local.ErrNotRunning):
		return cli.Fail(cli.ExitNoDaemon, "ask gpufaird", err, "start it: gpufaird run; or give --socket")
	}
	var refused *local.Error
	if errors.As(err, &refused) {
		return cli.Fail(cli.ExitFailure, "ask gpufaird", err, refused.Next)
	}
	return cli.Fail(cli.ExitFailure, "ask gpufaird", err, "")
}
