package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpufair/gpufair/cmd/internal/cli"
)

// runtimeWithin is how long containerd may take to answer at the start: it may be starting, too.
const runtimeWithin = 10 * time.Second

func runCommand(p *cli.Program) *cobra.Command {
	return &cobra.Command{
		Use: "run", Short: "run the daemon in the foreground",
		Long: "Measures the devices of the settings, offers them to the accounts under serve.accounts, runs their jobs and keeps the ledger.\n" +
			"It stops in order on SIGTERM or Ctrl-C; jobs that run then go on, and the next start finds them. SIGHUP reads the settings again.\n" +
			"It needs root and containerd. Logs go to stderr.\n\n" +
			"Exit codes: 0 after a clean stop, 3 for a mistake in the settings, 9 if this machine lacks something (root, containerd, a free port).",
		Example: "  sudo gpufaird run\n  sudo gpufaird run --home /srv/gpufair/a        # everything of it under one folder\n" +
			"  sudo gpufaird run --set listen=0.0.0.0:4801 --set serve.accounts=gf…",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return run(cmd.Context(), p)
		},
	}
}

// Check says what the settings name that is not on this machine, by key: a start and `config check` ask.
func (c *config) Check() error { return c.Settlement.Check() }

func run(ctx context.Context, p *cli.Program) error {
	c := defaults()
	if err := cli.CheckConfig(p, &c); err != nil {
		return err
	}
	log, level, err := p.Logger(c.Log)
	if err != nil {
		return err
	}
	logLibraries(log)
	ctx, stop := cli.Stop(ctx)
	defer stop()
	d, err := openDaemon(ctx, p, c, log, level)
	if err != nil {
		return err
	}
	err = errors.Join(d.run(ctx), d.Close())
	if err != nil {
		return cli.Fail(cli.ExitFailure, "run the daemon", err, "the log above says more")
	}
	log.Info("stopped; jobs that run go on")
	return nil
}

// hangups reloads at each SIGHUP until ctx ends.
func (d *daemon) hangups(ctx context.Context) error {
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-hup:
		}
		err := errors.Join(cli.Reloading(), d.reload(), cli.Ready(""))
		if err != nil {
			d.Log.Error("settings not reloaded, the old ones hold", "err", err)
		}
	}
}
