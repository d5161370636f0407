package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/danielgtaylor/huma/v2"

	"github.com/gpufair/gpufair/benchmark"
	"github.com/gpufair/gpufair/benchmark/lock"
	"github.com/gpufair/gpufair/benchmark/probe"
	"github.com/gpufair/gpufair/benchmark/suite"
	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/cmd/internal/wire"
	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/p2p/identity"
	wirehash "github.com/gpufair/gpufair/p2p/wire"
	"github.com/gpufair/gpufair/provider"
	"github.com/gpufair/gpufair/provider/containerd"
	"github.com/gpufair/gpufair/provider/control"
	"github.com/gpufair/gpufair/provider/control/api"
	"github.com/gpufair/gpufair/provider/fetch"
	"github.com/gpufair/gpufair/provider/jobnet"
	"github.com/gpufair/gpufair/provider/mounts"
	"github.com/gpufair/gpufair/provider/reach"
)

var (
	_ provider.Runtime = (*containerd.Client)(nil)
	_ provider.Mounts  = (*mounts.Mounts)(nil)
	_ provider.Network = (*jobnet.Network)(nil)
	_ control.Agent    = (*provider.Agent)(nil)
)

// apiTitle heads the description of the local API.
const apiTitle = "gpufaird, the owner's local API"

// probeVerb is the hidden verb of the child that measures.
const probeVerb = "probe-child"

// jobnetVerb is the hidden verb of the child that holds one job's network.
const jobnetVerb = "jobnet-child"

// initName is the program that starts every job.
const initName = "gpufair-init"

// daemon is a gpufaird that is open.
type daemon struct {
	*wire.Base
	p       *cli.Program
	level   *slog.LevelVar
	machine benchmark.MachineID
	devices *devices
	runtime *containerd.Client
	folders *mounts.Mounts
	agent   *provider.Agent
	income  income

	mu      sync.Mutex
	conf    config // guarded by mu
	closers []func() error
}

// place is where a daemon of these settings keeps its state and listens.
func place(p *cli.Program, c *config) (dirs cli.Dirs, state, socket string, err error) {
	if dirs, err = p.Dirs(); err != nil {
		return dirs, "", "", err
	}
	if state = c.State; state == "" {
		state = dirs.State
	}
	if socket = c.Socket; socket == "" {
		socket, err = dirs.Socket(wire.SocketName)
	}
	return dirs, state, socket, err
}

// openDaemon makes everything; nothing runs yet.
func openDaemon(ctx context.Context, p *cli.Program, c config, log *slog.Logger, level *slog.LevelVar) (*daemon, error) {
	d := &daemon{p: p, level: level, conf: c}
	if err := d.open(ctx, c, log); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

func (d *daemon) open(ctx context.Context, c config, log *slog.Logger) error {
	if os.Geteuid() != 0 {
		return cli.Fail(cli.ExitSystem, "start the daemon", errors.New("it starts containers, which takes root"), "run it as root: sudo gpufaird run")
	}
	self, err := os.Executable()
	if err != nil {
		return cli.Fail(cli.ExitSystem, "find this program", err, "start it by its full path")
	}
	initPath, err := findInit(c.Runtime.Init, self)
	if err != nil {
		return err
	}
	if d.machine, err = suite.ReadMachineID(); err != nil {
		return cli.Fail(cli.ExitSystem, "read the machine's id", err, "systemd-machine-id-setup makes one")
	}
	if err := d.claimNamespace(c); err != nil {
		return err
	}
	if d.runtime, err = openRuntime(ctx, c, self); err != nil {
		return err
	}
	d.closers = append(d.closers, d.runtime.Close)
	dirs, state, socket, err := place(d.p, &c)
	if err != nil {
		return err
	}
	d.Base, err = wire.Open(ctx, wire.Config{
		Program: "gpufaird", Title: apiTitle, Dirs: dirs, State: state, Socket: socket, Network: c.net(), Unit: c.Unit,
		Role: ledger.AsProvider, Ledger: c.Ledger, Rail: c.Settlement.RailConfig, Methods: c.Settlement.Methods, InvoiceAfter: c.Settlement.InvoiceAfter.Std(),
		Needs: identity.PowerProvide, Log: log,
	})
	if err != nil {
		return err
	}
	d.closers = append(d.closers, d.Base.Close)
	d.devices = newDevices(d.machine, c.Locks, probe.Config{Command: []string{self, probeVerb}, Log: log.With("part", "probe")}, log)
	d.closers = append(d.closers, d.devices.Close)
	if err := d.devices.Configure(c.CPU, func(wirehash.Hash) bool { return false }); err != nil {
		return err
	}
	if err := d.openAgent(ctx, c, initPath, self); err != nil {
		return err
	}
	d.register(ctx)
	return nil
}

func (d *daemon) openAgent(ctx context.Context, c config, initPath, self string) error {
	folders, err := mounts.Open(filepath.Join(d.State, "jobs"))
	if err != nil {
		return cli.Fail(cli.ExitSystem, "open the folder of jobs", err, "it must be this user's alone")
	}
	d.closers = append(d.closers, folders.Close)
	network, err := jobnet.Open(jobnet.Config{
		Dir: filepath.Join(d.State, "net"), Flows: filepath.Join(d.State, "flows"), Command: []string{self, jobnetVerb},
	})
	if err != nil {
		return cli.Fail(cli.ExitSystem, "open the folder of jobs' networks", err, "it must be this user's alone")
	}
	d.folders = folders
	conf, err := c.provider(d.machine)
	if err != nil {
		return err
	}
	d.agent, err = provider.New(ctx, provider.Deps{
		Device: d.Device, Network: d.Dealing, Books: d.Books, Board: d.Board, Delegations: d.Delegations, Runtime: d.runtime,
		Jobnet: network, Resolv: network.Resolv(), Mounts: folders, Registries: fetch.New(fetch.Config{Policy: reach.New}), Devices: d.devices,
		Inbox: filepath.Join(d.State, "inbox"), InboxBytes: int64(c.Runtime.Inbox), Init: initPath, Log: d.Log.With("part", "provider"),
	}, conf)
	if err != nil {
		return cli.Fail(cli.ExitConfig, "set the provider up", err, "gpufaird config check explains the settings")
	}
	return nil
}

func (d *daemon) register(ctx context.Context) {
	d.operations(d.Server.API())
	d.gauges(ctx)
}

// operations are the owner's local API. Those of a zero daemon can be described, but not called.
func (d *daemon) operations(a huma.API) {
	d.Operations(a, wire.Agent{PeerOf: d.agent.PeerOf, Origin: d.origin, Records: d.agent.Records, Checks: d.checks})
	control.RegisterEarnings(a, d.earnings)
	control.Register(a, d.agent, d.money, control.Program{Version: cli.ThisBuild().Version, Since: d.Since, Reload: d.reload})
}

// run serves until ctx ends. Jobs that run then go on.
func (d *daemon) run(ctx context.Context) error {
	ready := func(ctx context.Context) error {
		if err := cli.Ready("serving as " + d.Device.Account().Short()); err != nil {
			d.Log.Warn("systemd not told", "err", err)
		}
		d.Log.Info("ready", "account", d.Device.Account(), "socket", d.Socket, "addrs", d.Network.Addrs())
		<-ctx.Done()
		return cli.Stopping()
	}
	return d.Run(ctx,
		wire.Part{Name: "provider", Run: d.agent.Run},
		d.Claiming(),
		d.Paying(),
		wire.Part{Name: "device locks", Run: func(ctx context.Context) error { return d.devices.watch(ctx, d.nudge) }},
		wire.Part{Name: "reload on SIGHUP", Run: d.hangups},
		wire.Part{Name: "watchdog", Run: cli.Watchdog(func(ctx context.Context) error { _, err := d.agent.Status(ctx); return err })},
		wire.Part{Name: "systemd", Run: ready},
	)
}

// nudge lets the agent look at its devices again.
func (d *daemon) nudge() {
	d.mu.Lock()
	defer d.mu.Unlock()
	conf, err := d.conf.provider(d.machine)
	if err == nil {
		err = d.agent.Reload(conf)
	}
	if err != nil {
		d.Log.Error("devices not looked at again", "err", err)
	}
}

// reload reads the settings again and takes over what can change.
func (d *daemon) reload() error {
	c := defaults()
	if err := cli.LoadConfig(d.p, &c); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if keys := c.fixed(&d.conf); len(keys) > 0 {
		return fmt.Errorf("%q can't change while the daemon runs: restart it", keys)
	}
	conf, err := c.provider(d.machine)
	if err != nil {
		return err
	}
	if err := conf.Validate(); err != nil {
		return err
	}
	if err := d.devices.Configure(c.CPU, d.busy); err != nil {
		return err
	}
	if err := d.agent.Reload(conf); err != nil {
		return err
	}
	if err := d.level.UnmarshalText([]byte(c.Log.Level)); err != nil {
		return err
	}
	d.SetNetting(c.Ledger.Netting)
	d.conf = c
	d.Log.Info("settings reloaded")
	return nil
}

// busy reports whether a device is leased or being measured.
func (d *daemon) busy(h wirehash.Hash) bool {
	return slices.ContainsFunc(d.agent.Devices(), func(v api.Device) bool {
		return v.ID == h.String() && (v.State == api.DeviceLeased || v.State == api.DeviceMeasuring)
	})
}

// Close closes everything in reverse.
func (d *daemon) Close() error {
	var errs []error
	for i := len(d.closers) - 1; i >= 0; i-- {
		errs = append(errs, d.closers[i]())
	}
	d.closers = nil
	return errors.Join(errs...)
}

// findInit finds the program that starts every job: the configured one, or the one beside this program.
func findInit(path, self string) (string, error) {
	if path == "" {
		if real, err := filepath.EvalSymlinks(self); err == nil {
			self = real
		}
		path = filepath.Join(filepath.Dir(self), initName)
	}
	info, err := os.Stat(path)
	if err == nil && (!info.Mode().IsRegular() || info.Mode()&0o111 == 0) {
		err = fmt.Errorf("%s is no program", path)
	}
	if err != nil {
		return "", cli.Fail(cli.ExitSystem, "find "+initName+", which starts every job", err, "install it beside gpufaird, or set runtime.init to its path")
	}
	return path, nil
}

// claimNamespace makes sure that no other daemon of this machine works in the same namespace of containerd: each removes the containers
// there that it does not know.
func (d *daemon) claimNamespace(c config) error {
	h := wirehash.Sum("gpufair/runtime-lock/1", []byte(c.Runtime.Address), []byte{0}, []byte(c.Runtime.Namespace))
	held, err := lock.Acquire(c.Locks, lockName, []lock.Key{lock.Key("runtime-" + h.Short())})
	var taken *lock.HeldError
	switch {
	case errors.As(err, &taken):
		return cli.Fail(cli.ExitSystem, fmt.Sprintf("use containerd's namespace %q", c.Runtime.Namespace),
			fmt.Errorf("process %d (%s) uses it", taken.PID, taken.Holder),
			"stop the other daemon; or, to run two on this machine, give this one a runtime.namespace of its own and another --home")
	case err != nil:
		return cli.Fail(cli.ExitSystem, "lock containerd's namespace", err, "`locks` in the settings names the folder")
	}
	d.closers = append(d.closers, held.Release)
	return nil
}

// openRuntime connects to containerd and asks whether it is there.
func openRuntime(ctx context.Context, c config, self string) (*containerd.Client, error) {
	client, err := containerd.New(containerd.Config{
		Address: c.Runtime.Address, Namespace: c.Runtime.Namespace, RuntimeRoot: c.Runtime.Root, Logger: self,
	})
	if err != nil {
		return nil, cli.Fail(cli.ExitConfig, "set containerd up", err, "correct [runtime] in the settings")
	}
	ctx, cancel := context.WithTimeout(ctx, runtimeWithin)
	defer cancel()
	if _, err := client.Info(ctx); err != nil {
		return nil, errors.Join(cli.Fail(cli.ExitSystem, "reach containerd at "+c.Runtime.Address, err,
			startContainerd(systemdRuns())), client.Close())
	}
	return client, nil
}

// systemdRuns reports whether systemd is this machine's init, as sd_booted(3) does: in a container and often in WSL 2 it is not.
func systemdRuns() bool {
	info, err := os.Lstat("/run/systemd/system")
	return err == nil && info.IsDir()
}

// startContainerd is how to get containerd on this machine.
func startContainerd(systemd bool) string {
	if systemd {
		return "apt-get install containerd && systemctl start containerd; or set runtime.address"
	}
	return "apt-get install containerd, then start it by hand, since no systemd runs here: containerd &; or set runtime.address"
}
