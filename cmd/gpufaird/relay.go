package main

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/cmd/internal/wire"
	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/p2p/libp2p"
)

// relayConfig is what `gpufaird relay` gives to others.
type relayConfig struct {
	Slots           int          `toml:"slots" comment:"peers behind routers that may be reached through this machine"`
	SlotsPerIP      int          `toml:"slots_per_ip" comment:"of them, behind one address"`
	Circuits        int          `toml:"circuits" comment:"relayed connections at once; each may take 40KiB of memory"`
	CircuitsPerPeer int          `toml:"circuits_per_peer" comment:"of one peer, at either end"`
	CircuitData     cli.Size     `toml:"circuit_data" comment:"that one connection may carry each way; then it is cut, and the peers go on over a new one"`
	CircuitTime     cli.Duration `toml:"circuit_time" comment:"that one connection may last"`
	Rate            cli.Size     `toml:"rate" comment:"that all connections together may carry in a second, shared equally among those that are busy"`
}

func defaultRelay() relayConfig {
	c := libp2p.DefaultRelay()
	return relayConfig{
		Slots: c.Slots, SlotsPerIP: c.SlotsPerIP, Circuits: c.Circuits, CircuitsPerPeer: c.CircuitsPerPeer, CircuitData: cli.Size(c.CircuitBytes),
		CircuitTime: cli.Duration(c.CircuitTime), Rate: cli.Size(c.Rate),
	}
}

// limits are the same in the network's words.
func (r relayConfig) limits() libp2p.RelayConfig {
	return libp2p.RelayConfig{
		Slots: r.Slots, SlotsPerIP: r.SlotsPerIP, Circuits: r.Circuits, CircuitsPerPeer: r.CircuitsPerPeer,
		CircuitBytes: int64(r.CircuitData), CircuitTime: r.CircuitTime.Std(), Rate: int64(r.Rate),
	}
}

// Validate says what is wrong, by key.
func (r relayConfig) Validate() error {
	if err := r.limits().Validate(); err != nil {
		key, text, _ := strings.Cut(err.Error(), ": ") // the network names its fields as this file does
		return cli.KeyErrorf("relay."+key, "%s", text)
	}
	return nil
}

func relayCommand(p *cli.Program) *cobra.Command {
	return &cobra.Command{
		Use: "relay", Short: "help a network's peers to meet: bootstrap, relay and index on any small server", Args: cobra.NoArgs,
		Long: "Runs in the foreground until SIGTERM or Ctrl-C, as any user. It rents nothing out and needs no containers. On a machine with a public\n" +
			"address it is where peers behind home routers meet (its `invite` is what they join with), find out how others reach them, punch holes\n" +
			"through their routers, and trade through it where no hole can be punched, within the limits under [relay] in the settings. It reads\n" +
			"nothing of what it carries. It also keeps and gives all offers that it hears. Several make a network independent of each one.\n\n" +
			"Behind a router or a cloud's own addresses set `announce` to the outside ones. `doctor` says what is in use, /metrics counts it.\n\n" +
			"Exit codes: 0 after a clean stop, 3 for a mistake in the settings, 9 if this machine lacks something (a free port).",
		Example: "  gpufaird relay\n  gpufaird relay --home /srv/relay --set relay.rate=50MiB\n  gpufaird invite --home /srv/relay      # in another terminal",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return relay(cmd.Context(), p)
		},
	}
}

func relay(ctx context.Context, p *cli.Program) error {
	c := defaults()
	if err := cli.LoadConfig(p, &c); err != nil {
		return err
	}
	log, _, err := p.Logger(c.Log)
	if err != nil {
		return err
	}
	logLibraries(log)
	ctx, stop := cli.Stop(ctx)
	defer stop()
	dirs, state, socket, err := place(p, &c)
	if err != nil {
		return err
	}
	limits := c.Relay.limits()
	net := c.net()
	net.Relay = &limits
	b, err := wire.Open(ctx, wire.Config{
		Program: "gpufaird relay", Title: "gpufaird relay", Dirs: dirs, State: state, Socket: socket, Network: net, Unit: c.Unit,
		Role: ledger.AsProvider, Ledger: c.Ledger, Log: log,
	})
	if err != nil {
		return err
	}
	b.Register(wire.Agent{})
	ready := func(ctx context.Context) error {
		if err := cli.Ready("relaying"); err != nil {
			log.Warn("systemd not told", "err", err)
		}
		log.Info("ready", "network", c.Network, "socket", b.Socket, "addrs", b.Network.Addrs())
		<-ctx.Done()
		return cli.Stopping()
	}
	healthy := func(context.Context) error {
		b.Network.Peers() // a network that hangs does not come back from this
		return nil
	}
	err = errors.Join(b.Run(ctx, wire.Part{Name: "watchdog", Run: cli.Watchdog(healthy)}, wire.Part{Name: "systemd", Run: ready}), b.Close())
	if err != nil {
		return cli.Fail(cli.ExitFailure, "run the relay", err, "the log above says more")
	}
	log.Info("stopped", "after", time.Since(b.Since).Round(time.Second))
	return nil
}
