package main

import (
	"errors"
	"time"

	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/cmd/internal/wire"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market/work"
)

const settingsHeader = `Settings of gpufair, the renter's program. All of them are the agent's: after a change, ` + "`gpufair agent stop`" + `
and the next command starts it anew. Later ones win: this file, variables GPUFAIR_<KEY>, --set key=value.`

// settings is gpufair's config file.
type settings struct {
	wire.NetConfig
	Unit    string            `toml:"unit" comment:"unit of account that ledger and settle show first"`
	Results cli.Size          `toml:"results" comment:"disk that one job's results may take on their way home, before they lie in their output folder"`
	GiveUp  cli.Duration      `toml:"give_up" comment:"a provider that is silent for so long is given up: the lease is released and nothing more is paid"`
	Ledger  wire.LedgerConfig `toml:"ledger" comment:"What you owe and are owed"`
	// Settlement is of the renter: its program pays.
	Settlement settlement    `toml:"settlement" comment:"How you pay"`
	Log        cli.LogConfig `toml:"log" comment:"of the agent; it writes to agent.log in the state folder"`
}

type settlement struct{ wire.RailConfig }

// defaults are the settings of a machine that nobody configured.
func defaults() settings {
	return settings{
		NetConfig: renterNet(), Unit: string(money.Credit), Results: 64 << 30, GiveUp: cli.Duration(2 * time.Minute), Ledger: wire.DefaultLedger(),
		Settlement: settlement{wire.DefaultRail()}, Log: cli.DefaultLog(),
	}
}

// renterNet listens on free ports, so that an agent and a daemon get along on one machine: nobody needs to know a renter's port.
func renterNet() wire.NetConfig {
	c := wire.DefaultNet()
	c.Listen = []string{"0.0.0.0:0", "[::]:0"}
	return c
}

// leastResults is what the renter's store of results needs to hold one file's chunks.
const leastResults = 64 << 20

// Check says what the settings name that is not on this machine, by key.
func (s settings) Check() error { return s.Settlement.Check() }

// Validate says what is wrong, by key.
func (s settings) Validate() error {
	errs := []error{s.Ledger.Validate(), s.Settlement.Validate()}
	if err := money.Unit(s.Unit).Validate(); err != nil {
		errs = append(errs, &cli.KeyError{Key: "unit", Err: err})
	}
	if s.Results < leastResults {
		errs = append(errs, cli.KeyErrorf("results", "%s is too little: want %s or more", s.Results, cli.Size(leastResults)))
	}
	if least := 2 * work.Suspected * time.Second; s.GiveUp.Std() < least {
		errs = append(errs, cli.KeyErrorf("give_up", "%s is too short: a provider counts as silent after %d s; want %s or more", s.GiveUp,
			work.Suspected, cli.Duration(least)))
	}
	return errors.Join(append(errs, s.NetConfig.Validate(), s.Log.Validate())...)
}
