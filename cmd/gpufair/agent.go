package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/spf13/cobra"

	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/cmd/internal/wire"
	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/p2p/local"
	"github.com/gpufair/gpufair/renter"
	"github.com/gpufair/gpufair/renter/control"
	"github.com/gpufair/gpufair/renter/control/api"
	"github.com/gpufair/gpufair/renter/image"
)

func (a *app) agentCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "agent", Short: "the background process that looks after your jobs, keys and ledger",
		Long: `The agent holds your keys and your ledger, listens for offers, and looks after your jobs: it pays by signed vouchers, keeps their
output and brings their results home, also while no command runs. Any command that needs it starts it, and all commands share it.`,
		Example: `  gpufair agent status
  gpufair agent stop
  gpufair agent run        # in this terminal, with its log; or under a service manager`,
	}
	c.AddCommand(a.agentRun(), a.agentStatus(), a.agentStop())
	return c
}

func (a *app) agentRun() *cobra.Command {
	return &cobra.Command{
		Use: "run", Short: "be the agent, in the foreground, until Ctrl-C or SIGTERM",
		Long: `Be the agent, in the foreground, with the log on stderr, until Ctrl-C, SIGTERM or ` + "`gpufair agent stop`" + `. Jobs that run go on at their
providers for as long as credit and patience last there; the next start takes them up again.`,
		RunE: func(c *cobra.Command, _ []string) error {
			s := defaults()
			if err := cli.CheckConfig(a.Program, &s); err != nil {
				return err
			}
			return a.serve(c.Context(), s)
		},
	}
}

// apiTitle names the renter's API in its description.
const apiTitle = "gpufair agent"

// serve is the agent's main.
func (a *app) serve(ctx context.Context, s settings) error {
	log, _, err := a.Logger(s.Log)
	if err != nil {
		return err
	}
	dirs, err := a.Dirs()
	if err != nil {
		return err
	}
	log.Info("agent starts", "version", cli.ThisBuild().Version, "pid", os.Getpid(), "state", dirs.State)
	unlock, err := a.alone(ctx, dirs)
	if err != nil {
		return err
	}
	defer unlock()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	base, err := wire.Open(ctx, wire.Config{
		Program: "gpufair agent", Title: apiTitle, Dirs: dirs, Network: s.NetConfig, Unit: money.Unit(s.Unit), Role: ledger.AsRenter, Ledger: s.Ledger,
		Rail: s.Settlement.RailConfig, Log: log,
	})
	if err != nil {
		return err
	}
	agent, err := renter.New(renter.Deps{
		Device: base.Device, Network: base.Dealing, Books: base.Books, Board: base.Board, Delegations: base.Delegations, Settle: base.Settle,
		Images: image.Opener{}, Log: log,
	}, renter.Config{
		Network: s.Network, Dir: filepath.Join(base.State, "renter"), Results: int64(min(uint64(s.Results), 1<<62)), GiveUp: s.GiveUp.Std(),
	})
	if err != nil {
		return errors.Join(cli.Fail(cli.ExitSystem, "start the agent", err, "the folder "+base.State+" must belong to this user"), base.Close())
	}
	operations(base.Server.API(), base, agent, stop)
	log.Info("agent runs", "account", base.Device.Account(), "socket", base.Socket)
	err = base.Run(ctx, wire.Part{Name: "jobs", Run: agent.Run}, base.Claiming(), base.Paying())
	log.Info("agent stops", "err", err)
	return errors.Join(err, agent.Close(), base.Close())
}

// operations puts everything that the agent answers on its API.
func operations(to huma.API, base *wire.Base, agent *renter.Agent, stop func()) {
	base.Operations(to, wire.Agent{PeerOf: agent.PeerOf, Records: agent.Records})
	control.Register(to, agent, control.Program{Status: statusOf(base, agent), Shutdown: stop})
}

// lifeWithin is how long an agent waits for one that is stopping: its parts have cli.Grace, then its store is closed.
const lifeWithin = 30 * time.Second

var errAnother = errors.New("another agent runs with this state folder")

// alone makes sure that no other agent works in the same folders.
func (a *app) alone(ctx context.Context, dirs cli.Dirs) (unlock func(), err error) {
	client, _, err := a.client()
	if err != nil {
		return nil, err
	}
	if err := dirs.Make(); err != nil {
		return nil, err
	}
	const what, next = "start the agent", "`gpufair agent stop` ends it; --home DIR gives this one folders of its own"
	if _, err := client.Status(ctx); err == nil {
		return nil, cli.Fail(cli.ExitSystem, what, errAnother, next)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, lifeWithin, errAnother)
	defer cancel()
	if unlock, err = lock(ctx, lifeLock(dirs)); err != nil {
		return nil, cli.Fail(cli.ExitSystem, what, err, next)
	}
	return unlock, nil
}

// statusOf tells how the agent stands.
func statusOf(base *wire.Base, agent *renter.Agent) func(context.Context) (api.Status, error) {
	return func(ctx context.Context) (api.Status, error) {
		warnings, err := base.Warnings(ctx, time.Now())
		return api.Status{
			Version: cli.ThisBuild().Version, PID: os.Getpid(), Since: base.Since, Account: base.Device.Account().String(),
			Peer: base.Device.Peer().String(), Network: base.Config.Network.Network, Peers: len(base.Network.Peers()),
			Offers: base.Board.Book().Len(), Jobs: agent.Live(), Skew: base.Board.Skew().String(),
			Warnings: warnings,
		}, err
	}
}

func (a *app) agentStatus() *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "say whether the agent runs, and how it stands; does not start it",
		RunE: func(c *cobra.Command, _ []string) error {
			client, dirs, err := a.client()
			if err != nil {
				return err
			}
			s, err := client.Status(c.Context())
			if errors.Is(err, local.ErrNotRunning) {
				return cli.Fail(cli.ExitNoDaemon, "agent", err, "any command that needs it starts it; its log is "+agentLog(dirs))
			}
			if err != nil {
				return explained("agent status", err)
			}
			if a.JSON {
				return a.PrintJSON(s)
			}
			pairs := [][2]string{
				{"running", fmt.Sprintf("pid %d, for %s, release %s", s.PID, cli.Span(time.Since(s.Since)), cli.Clean(s.Version))},
				{"account", s.Account},
				{"network", cli.Clean(s.Network)},
				{"peers", fmt.Sprintf("%d connected; %s", s.Peers, cli.Count(s.Offers, "live offer"))},
				{"jobs", fmt.Sprintf("%d that have not ended", s.Jobs)},
				{"clock", orElse(cli.Clean(s.Skew), "nobody disagrees")},
				{"socket", client.Socket()},
				{"log", agentLog(dirs)},
			}
			for _, w := range s.Warnings {
				pairs = append(pairs, [2]string{"warning", a.Paint(cli.Warn, cli.Clean(w))})
			}
			return a.Pairs(pairs...)
		},
	}
}

// stopWithin is how long a stop may take: every part has cli.Grace, and a last flush of the store.
const stopWithin = 60 * time.Second

func (a *app) agentStop() *cobra.Command {
	var force bool
	c := &cobra.Command{
		Use: "stop", Short: "end the agent; refused while jobs run, unless --force",
		Long: `End the agent. While jobs run this is refused, since without the agent their providers get no vouchers, pause and then end them.
With --force it ends all the same; a start soon after takes the jobs up again.`,
		RunE: func(c *cobra.Command, _ []string) error {
			client, dirs, err := a.client()
			if err != nil {
				return err
			}
			err = client.Shutdown(c.Context(), force)
			switch {
			case errors.Is(err, local.ErrNotRunning):
				a.Note("gpufair: no agent runs")
				return nil
			case err != nil:
				return explained("", err)
			}
			return gone(c.Context(), client, dirs)
		},
	}
	c.Flags().BoolVar(&force, "force", false, "although jobs run")
	return c
}

// gone waits until nobody answers on the socket any more and the store is closed, so that a start right after is not in the way.
func gone(ctx context.Context, c api.Client, dirs cli.Dirs) error {
	ctx, cancel := context.WithTimeout(ctx, stopWithin)
	defer cancel()
	late := func(err error) error {
		return cli.Fail(cli.ExitFailure, "stop the agent", err, "its log names the part that hangs: "+agentLog(dirs))
	}
	poll := time.NewTicker(startPoll)
	defer poll.Stop()
	for {
		if _, err := c.Status(ctx); errors.Is(err, local.ErrNotRunning) {
			break
		}
		select {
		case <-ctx.Done():
			return late(ctx.Err())
		case <-poll.C:
		}
	}
	unlock, err := lock(ctx, lifeLock(dirs))
	if err != nil {
		return late(err)
	}
	unlock()
	return nil
}

func orElse(s, def string) string {
	if s == "" {
		return def
	}
	return s
}
