package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpufair/gpufair/benchmark/lock"
	"github.com/gpufair/gpufair/benchmark/probe"
	"github.com/gpufair/gpufair/benchmark/suite"
	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/cmd/internal/wire"
	"github.com/gpufair/gpufair/p2p/local"
	wirehash "github.com/gpufair/gpufair/p2p/wire"
	"github.com/gpufair/gpufair/provider"
	"github.com/gpufair/gpufair/provider/control/api"
	"github.com/gpufair/gpufair/provider/jobnet"
)

// staticChecks are the findings that need no running daemon. With the daemon's own settings they say what its start would meet.
func staticChecks(ctx context.Context, p *cli.Program, log probe.Config) []local.Check {
	c := defaults()
	if err := cli.CheckConfig(p, &c); err != nil {
		return []local.Check{wire.Finding(wire.LevelFail, "settings", err.Error(), "gpufaird config check explains each line")}
	}
	_, state, _, err := place(p, &c)
	if err != nil {
		return []local.Check{wire.Finding(wire.LevelFail, "folders", err.Error(), "give --home DIR")}
	}
	out := append(wire.StaticChecks(state), machineChecks(ctx, &c, log)...)
	return append(out, checkLocks(&c), checkRoom(&c, state), checkServe(&c))
}

// machineChecks are the findings about what the machine has for jobs and measuring.
func machineChecks(ctx context.Context, c *config, p probe.Config) []local.Check {
	out := []local.Check{wire.Check("root", "yes")}
	if os.Geteuid() != 0 {
		out[0] = wire.Finding(wire.LevelFail, "root", "this user is not root: the daemon starts containers, which takes root", "sudo gpufaird run")
	}
	self, err := os.Executable()
	if err == nil {
		_, err = findInit(c.Runtime.Init, self)
	}
	if err != nil {
		out = append(out, failed("init", err))
	} else {
		out = append(out, wire.Check("init", "%s is there", initName))
	}
	out = append(append(out, checkRuntime(ctx, c, self)...), checkDenial(ctx, c, self))
	return append(append(out, checkBLAS()), checkGPUs(ctx, p)...)
}

// failed makes a finding of an error that says what to do.
func failed(name string, err error) local.Check {
	var e *cli.Error
	if errors.As(err, &e) {
		return wire.Finding(wire.LevelFail, name, e.Error(), e.Next)
	}
	return wire.Finding(wire.LevelFail, name, err.Error(), "")
}

func checkRuntime(ctx context.Context, c *config, self string) []local.Check {
	if os.Geteuid() != 0 {
		return []local.Check{wire.Finding(wire.LevelNote, "containerd", "not asked: that takes root", "sudo gpufaird doctor")}
	}
	client, err := openRuntime(ctx, *c, self)
	if err != nil {
		return []local.Check{failed("containerd", err)}
	}
	defer client.Close()
	info, err := client.Info(ctx)
	if err != nil {
		return []local.Check{failed("containerd", err)}
	}
	out := []local.Check{wire.Check("containerd", "%s at %s, control groups version %d", info.Version, c.Runtime.Address, info.Cgroup)}
	if !info.UserNamespace {
		return append(out, wire.Finding(wire.LevelWarn, "user ids", "jobs run without ids of their own: a job's root has the number of this machine's, and fewer walls around it",
			"Linux 5.19 or newer, and containerd's folder on a file system with idmapped mounts (ext4, xfs, btrfs)"))
	}
	return append(out, wire.Check("user ids", "each job has its own, which are nobody's here"))
}

// deniedWithin bounds the proof that jobs do not reach the owner's network, on a busy machine too.
const deniedWithin = 30 * time.Second

// checkDenial proves now that a job does not reach the owner's network, with the network that a job would get.
func checkDenial(ctx context.Context, c *config, self string) local.Check {
	const name = "job network"
	if os.Geteuid() != 0 {
		return wire.Finding(wire.LevelNote, name, "not tried whether a job reaches your network: that takes root", "sudo gpufaird doctor")
	}
	ctx, cancel := context.WithTimeout(ctx, deniedWithin)
	defer cancel()
	egress, next := provider.EgressNone, "no job starts while that fails: mend what the text names"
	if c.Egress.Internet {
		egress, next = provider.EgressInternet, next+", or set internet = false under [egress]"
	}
	p, err := jobnet.Prove(ctx, []string{self, jobnetVerb}, egress, c.Egress.Deny)
	switch {
	case errors.Is(err, jobnet.ErrHole):
		return wire.Finding(wire.LevelFail, name, "a job could reach what it must not: "+err.Error(),
			"pause until this is mended: gpufaird pause; with internet = false under [egress] jobs have no network at all")
	case err != nil:
		return wire.Finding(wire.LevelFail, name, "it could not be tried whether a job reaches your network: "+err.Error(), next)
	}
	where := fmt.Sprintf("this machine's %s and %s of it", cli.Count(len(p.Host), "address"), cli.Count(len(p.Neighbours), "neighbour"))
	if egress == provider.EgressNone {
		return wire.Check(name, "jobs have none: a try just now found no way to any of %d addresses, among them %s", p.Tried, where)
	}
	return wire.Check(name, "the internet, and nothing of yours: %d addresses were tried just now, among them %s, and each was denied", p.Tried, where)
}

// checkDisks says what disks jobs get in the folder of a daemon's state.
func checkDisks(ctx context.Context, disks provider.Mounts) local.Check {
	info, err := disks.Info(ctx)
	switch {
	case err != nil:
		return failed("job disks", err)
	case info.Disk == provider.DiskEncrypted:
		return wire.Check("job disks", "encrypted, with quotas; keys go with the lease")
	case info.Disk == provider.DiskQuota:
		return wire.Finding(wire.LevelWarn, "job disks", "with quotas, but not encrypted: what a job wrote may be found on the bare disk ("+info.Why+")", "a kernel with fscrypt (CONFIG_FS_ENCRYPTION)")
	}
	return wire.Finding(wire.LevelWarn, "job disks", "plain folders: no quota that the kernel holds, nothing encrypted ("+info.Why+")", "mkfs.ext4 (apt-get install e2fsprogs) and loop devices (modprobe loop)")
}

// checkBLAS looks for the library that measures a CPU; loading it is for the measuring child.
func checkBLAS() local.Check {
	for _, pattern := range []string{"/usr/lib/*/", "/usr/lib/", "/usr/lib64/", "/usr/local/lib/"} {
		if found, err := filepath.Glob(pattern + "libopenblas.so.0"); err == nil && len(found) > 0 {
			return wire.Check("openblas", "%s", found[0])
		}
	}
	return wire.Finding(wire.LevelNote, "openblas", "not installed: a CPU is measured by a kernel in Go, several times below what it can do",
		"apt-get install libopenblas0-pthread, then gpufaird benchmark")
}

// checkLocks tries the locks of the configured cores for a moment.
func checkLocks(c *config) local.Check {
	for _, d := range c.CPU {
		held, err := lock.Acquire(c.Locks, "gpufaird doctor", lock.CoreKeys(d.Cores))
		if err != nil {
			return wire.Finding(wire.LevelWarn, "cores", err.Error(), "one daemon at a time may use a core")
		}
		if err := held.Release(); err != nil {
			return wire.Finding(wire.LevelWarn, "cores", err.Error(), "")
		}
	}
	if len(c.CPU) == 0 {
		return wire.Finding(wire.LevelWarn, "cores", "no device is configured", "add a [[cpu]] to the settings: gpufaird config init --print shows one")
	}
	return wire.Check("cores", "%s configured, nobody else uses them", cli.Count(len(c.CPU), "device"))
}

// checkRoom compares what the configured devices promise to jobs with what the machine has in all: less is no mistake of the settings,
// which may be written elsewhere, but every job that takes what it was promised would fail.
func checkRoom(c *config, state string) local.Check {
	cpu, err := suite.DetectCPU()
	if err != nil {
		return wire.Finding(wire.LevelWarn, "room", err.Error(), "")
	}
	dir := state
	for _, err := os.Stat(dir); err != nil && dir != filepath.Dir(dir); _, err = os.Stat(dir) {
		dir = filepath.Dir(dir) // the nearest folder that is there
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return wire.Finding(wire.LevelWarn, "room", fmt.Sprintf("measure the disk of %s: %v", dir, err), "")
	}
	return roomFor(c.CPU, cli.Size(cpu.MemoryMiB<<20), cli.Size(uint64(st.Blocks)*uint64(st.Bsize)>>20<<20))
}

func roomFor(devices []cpuConfig, memory, disk cli.Size) local.Check {
	m, d := memory, disk
	for i, dev := range devices {
		if dev.Memory > m || dev.Disk > d {
			return wire.Finding(wire.LevelWarn, "room", fmt.Sprintf("with [[cpu]] number %d the devices promise more than the machine's %v of memory or %v of disk",
				i+1, memory, disk), "lower memory or disk of the [[cpu]] tables in the settings")
		}
		m, d = m-dev.Memory, d-dev.Disk
	}
	return wire.Check("room", "the machine has %v of memory and %v of disk, which is enough for what is configured", memory, disk)
}

func checkServe(c *config) local.Check {
	if len(c.Serve.Accounts) == 0 {
		return wire.Finding(wire.LevelWarn, "serve.accounts", "empty: nobody is served",
			"add the account that `gpufair identity show` prints on the renter's machine")
	}
	return wire.Check("serve.accounts", "%s served", cli.Count(len(c.Serve.Accounts), "account"))
}

// checks are the running daemon's findings beyond those of the base.
func (d *daemon) checks(ctx context.Context) []local.Check {
	d.mu.Lock()
	c := d.conf
	d.mu.Unlock()
	out := append(machineChecks(ctx, &c, d.devices.probe), checkDisks(ctx, d.folders), checkRoom(&c, d.State), checkServe(&c))
	for _, v := range d.agent.Devices() {
		name := "device " + v.ID[:min(8, len(v.ID))]
		switch {
		case v.State != api.DeviceUnoffered:
			out = append(out, wire.Check(name, "%s: %s", v.Model, v.State))
		case v.Kind == "gpu":
			out = append(out, wire.Finding(wire.LevelNote, name, v.Model+": "+v.Detail, ""))
		case v.MeasuredAt == nil:
			out = append(out, wire.Finding(wire.LevelWarn, name, v.Model+": not offered: "+v.Detail, "gpufaird benchmark measures it"))
		default:
			out = append(out, wire.Finding(wire.LevelWarn, name, v.Model+": not offered: "+v.Detail, ""))
		}
	}
	offers := d.agent.Offers()
	switch {
	case offers.NotServed != "":
		out = append(out, wire.Finding(wire.LevelWarn, "offer", "nothing is offered: "+offers.NotServed, ""))
	case offers.Hash == "":
		out = append(out, wire.Finding(wire.LevelNote, "offer", "not published yet", "look again in a moment"))
	case !d.agent.Told():
		out = append(out, wire.Finding(wire.LevelWarn, "offer", "published, but nobody has heard it yet", "a renter must join: gpufaird invite prints the string for it"))
	default:
		out = append(out, wire.Check("offer", "published and told, %s", cli.Count(len(offers.Lots), "lot")))
	}
	if hash, err := wirehash.ParseHash(offers.Hash); err == nil {
		out = append(out, d.CheckVisible(ctx, hash))
	}
	return out
}
