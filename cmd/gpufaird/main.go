// Command gpufaird is the owner's daemon and its verbs: it measures this machine's devices, offers them, runs renters' jobs in containers
// and keeps what it is owed. Here its adapters are chosen; it decides nothing that package provider could decide.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"

	"github.com/spf13/cobra"

	"github.com/gpufair/gpufair/benchmark/gpu"
	"github.com/gpufair/gpufair/benchmark/probe"
	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/cmd/internal/verbs"
	"github.com/gpufair/gpufair/p2p/libp2p"
	"github.com/gpufair/gpufair/p2p/local"
	"github.com/gpufair/gpufair/provider/access"
	"github.com/gpufair/gpufair/provider/containerd"
	"github.com/gpufair/gpufair/provider/jobnet"
	"github.com/gpufair/gpufair/provider/reach"
)

func main() {
	// The logger beside each job is started by containerd's shim with a command line of its own, before any flag of ours counts.
	if len(os.Args) == 3 && os.Args[1] == containerd.LoggerVerb {
		os.Exit(report(access.RunLogger(os.Args[2])))
	}
	// So is the child of a job's network, which has no environment and no privileges: no setting and no file of ours is its business.
	if len(os.Args) == 2 && os.Args[1] == jobnetVerb {
		os.Exit(report(jobnet.RunChild(context.Background(), reach.New)))
	}
	p := cli.NewProgram(cli.System(), "gpufaird", "rent your idle machine out", long)
	os.Exit(int(p.Main(context.Background(), root(p), os.Args[1:])))
}

// report is the exit code of a process that has no command line.
func report(err error) int {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return int(cli.ExitFailure)
	}
	return int(cli.ExitOK)
}

const long = `gpufaird rents your idle machine out, on your terms: it measures the devices that you name, offers them to the accounts that you
name, runs their jobs in containers and keeps the signed proof of what you are owed.

First steps, as root:
  gpufaird config init                # writes the commented settings; add a [[cpu]] and serve.accounts
  gpufaird doctor                     # says what is missing, and what to do about it
  gpufaird run                        # the daemon; in another terminal:
  gpufaird status
  gpufaird invite                     # the string that a renter joins with`

// root is the whole command line.
func root(p *cli.Program) *cobra.Command {
	d := &verbs.Daemon{
		Program: p, Title: "gpufaird", Start: "gpufaird run", Lends: true,
		Place:  func() (state, socket string, err error) { return find(p) },
		Static: func(ctx context.Context) []local.Check { return staticChecks(ctx, p, quietProbe()) },
	}
	settings := cli.ConfigCommand(p, defaults, configHeader)
	settings.AddCommand(reloadCommand(p, d))
	r := p.Root(
		runCommand(p), relayCommand(p), statusCommand(p, d), pauseCommand(p, d), resumeCommand(p, d), d.Doctor(), benchmarkCommand(p, d), offersCommand(p, d), auctionsCommand(p, d),
		leasesCommand(p, d), earningsCommand(p, d), d.Ledger(), d.Credit(), d.Settle(), d.Identity(), d.Invite(), d.Join(), d.Peers(), settings, probeCommand(p),
	)
	return r
}

// find is where the daemon's state and socket are. While the settings have mistakes, a running daemon is still found where it listens by
// default: the owner's pause must work whatever was written into the file.
func find(p *cli.Program) (state, socket string, err error) {
	c := defaults()
	mistakes := cli.LoadConfig(p, &c)
	if mistakes != nil {
		c = defaults()
	}
	_, state, socket, err = place(p, &c)
	if mistakes == nil || err != nil {
		return state, socket, err
	}
	if _, err := os.Stat(socket); err != nil {
		return "", "", mistakes
	}
	p.Note("the settings have mistakes (gpufaird config check explains them); asking the daemon on %s", socket)
	return state, socket, nil
}

// probeCommand is the measuring child: it speaks JSON lines with the daemon that started it.
func probeCommand(p *cli.Program) *cobra.Command {
	return &cobra.Command{
		Use: probeVerb, Short: "measure, for the daemon", Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := cli.Stop(cmd.Context())
			defer stop()
			return probe.Serve(ctx, p.In, p.Out, gpu.Driver())
		},
	}
}

// quietProbe is the child for doctor, whose complaints are the finding itself.
func quietProbe() probe.Config {
	self, err := os.Executable()
	if err != nil {
		return probe.Config{} // the probe says that it has no command
	}
	return probe.Config{Command: []string{self, probeVerb}, Log: slog.New(slog.DiscardHandler)}
}

// logLibraries sends what libp2p says to our log.
func logLibraries(log *slog.Logger) { libp2p.LogTo(log.Handler()) }

func reloadCommand(p *cli.Program, d *verbs.Daemon) *cobra.Command {
	return &cobra.Command{
		Use: "reload", Short: "let the running daemon read the settings again",
		Long:    "Prices, devices, terms, credit and accounts change at once; leases that run keep their price and terms. With a mistake nothing changes.",
		Example: "  gpufaird config check && gpufaird config reload",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := client(d)
			if err != nil {
				return err
			}
			st, err := c.Reload(cmd.Context())
			var refused *local.Error
			if errors.As(err, &refused) && refused.Status == http.StatusUnprocessableEntity {
				return cli.Fail(cli.ExitConfig, "reload the settings", refused, refused.Next)
			}
			if err != nil {
				return d.Explain("reload the settings", err)
			}
			if p.JSON {
				return p.PrintJSON(st)
			}
			_, err = fmt.Fprintln(p.Out, "reloaded")
			return err
		},
	}
}
