// Command gpufair is the renter's program: it searches, rents, runs jobs, follows them and settles, and as `gpufair agent run` it is the
// background agent that owns the renter's store and keys. Every other verb is a client of that agent and starts it when it is not
// running. The verbs know no network, no store and no provider: only the agent's local API.
package main

import (
	"context"
	"os"

	"github.com/spf13/cobra"

	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/cmd/internal/verbs"
	"github.com/gpufair/gpufair/p2p/local"
)

const long = `gpufair rents GPUs and cores of other people's machines. There is no company in between: offers come from peers, prices and measured
figures are signed by those who made them, and what you owe is kept in a ledger that both sides sign.

  gpufair join STRING                  meet a network: STRING is what ` + "`gpufaird invite`" + ` printed on the other side
  gpufair search 'kind=cpu price<0.5'  what is offered, cheapest first
  gpufair run image.tar -q kind=cpu -- python train.py
                                       find, rent, push, run, follow, bring home, pay
  gpufair ps, logs, stop, results      the jobs that you have

An agent in the background holds your keys and ledger and looks after your jobs; any command starts it. docs/cli.md lists exit codes and
what --json prints.`

func main() { os.Exit(run()) }

func run() int {
	t := cli.System()
	ctx, stop := cli.Stop(context.Background())
	defer stop()
	return int(execute(ctx, t, os.Args[1:]))
}

// app is what every verb works with.
type app struct {
	*cli.Program
}

func newApp(t *cli.Terminal) *app {
	return &app{cli.NewProgram(t, "gpufair", "rent GPUs and cores of other people's machines", long)}
}

// execute runs one command line on a terminal.
func execute(ctx context.Context, t *cli.Terminal, args []string) cli.ExitCode {
	a := newApp(t)
	return a.Main(ctx, a.root(), args)
}

func (a *app) root() *cobra.Command {
	d := a.daemon()
	return a.Root(
		a.searchCommand(), a.showCommand(), a.whyCommand(), a.runCommand(), a.psCommand(), a.logsCommand(), a.stopCommand(), a.awayCommand(), a.resultsCommand(),
		a.auctionCommand(),
		d.Ledger(), d.Credit(), d.Settle(), d.Identity(), d.Join(), d.Peers(), a.agentCommand(), a.doctorCommand(),
		cli.ConfigCommand(a.Program, defaults, settingsHeader),
	)
}

// daemon is the agent, for the verbs that both programs share.
func (a *app) daemon() *verbs.Daemon {
	return &verbs.Daemon{
		Program: a.Program, Title: "the agent", Start: "gpufair agent run",
		Place: func() (state, socket string, err error) {
			c, dirs, err := a.client()
			if err != nil {
				return "", "", err
			}
			return dirs.State, c.Socket(), nil
		},
		Client: func(ctx context.Context) (*local.Client, error) {
			c, err := a.connect(ctx)
			return c.Client, err
		},
	}
}
