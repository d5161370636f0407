package main

import (
	"os"
	"os/exec"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpufair/gpufair/benchmark"
	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/cmd/internal/wire"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/provider"
)

const everything = `
network = "trial"
region = "Berlin"
disk_reserve = "3GiB"
announce = ["/ip4/192.0.2.7/tcp/4701"]
registries = ["registry.example"]
[serve]
accounts = ["ACCOUNT"]
[auction]
mode = "kplus1"
bond_percent = 100
commit = "30s"
[terms]
use = "be kind"
notice = "5s"
reclaim = "2m"
log_size = "1MiB"
[credit]
stranger = "1.5"
known_percent = 10
[settlement]
methods = ["manual", "bank"]
due_days = 7
[[cpu]]
cores = "0-1,3"
price = "0.25"
prepare_price = "0.05"
reserve = "0.10"
floor = "0.2"
memory = "2GiB"
disk = "1GiB"
min_term = "60s"
max_term = "7d"
max_pids = 99
`

// TestConfig carries every setting of the file over to the agent.
func TestConfig(t *testing.T) {
	var account identity.AccountID
	account[0] = 7
	c := defaults()
	if err := cli.Load(&c, cli.Source{Path: "x.toml", Data: []byte(strings.Replace(everything, "ACCOUNT", account.String(), 1))}); err != nil {
		t.Fatal(err)
	}
	machine := benchmark.MachineID{1}
	got, err := c.provider(machine)
	if err != nil {
		t.Fatal(err)
	}
	percent, stranger := uint32(10), money.Micro(1_500_000)
	want := provider.Config{
		Network: "trial", Unit: "CREDIT", Region: "Berlin", Accounts: []identity.AccountID{account}, Unanswered: provider.DefaultUnanswered, Notice: 5 * time.Second,
		Reclaim: 2 * time.Minute, DueDays: 7, Methods: []string{"manual", "bank"}, UseTerms: "be kind", Registries: []string{"registry.example"},
		Credit: provider.CreditConfig{Stranger: &stranger, KnownPercent: &percent}, LogBytes: 1 << 20, DiskReserve: 3 << 30, Addrs: []string{"/ip4/192.0.2.7/tcp/4701"},
		Auction: provider.AuctionConfig{Mode: "kplus1", Bond: 100, Commit: 30 * time.Second, Reveal: 10 * time.Second},
		Lots: []provider.Lot{{
			Device: benchmark.CPUDevice(machine, benchmark.Cores{0, 1, 3}), Price: 250_000, Prepare: 50_000, Reserve: 100_000, Floor: 200_000, MinTerm: time.Minute,
			MaxTerm: 7 * 24 * time.Hour, Cores: []int{0, 1, 3}, MemoryMiB: 2048, DiskMiB: 1024, Pids: 99,
		}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the agent's settings (-want +got):\n%s", diff)
	}
	if err := got.Validate(); err != nil {
		t.Errorf("the agent refuses what the file's check let through: %v", err)
	}
}

// TestDefaultsAreValid holds what a machine that nobody configured runs with against the agent's own rules.
func TestDefaultsAreValid(t *testing.T) {
	c := defaults()
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
	conf, err := c.provider(benchmark.MachineID{})
	if err != nil {
		t.Fatal(err)
	}
	if err := conf.Validate(); err != nil {
		t.Error(err)
	}
}

// TestConfigOfTheSystem refuses what containerd or the kernel would refuse later, with less to say.
func TestConfigOfTheSystem(t *testing.T) {
	for name, ok := range map[string]bool{
		"gpufair": true, "a": true, "gpu-fair_2x": true, strings.Repeat("x", 63): true, "Gpu": false, "a.b": false, "": false, "../x": false, "a__b": false, "-a": false,
		"a-": false, "a/b": false, "a b": false, "ä": false, "a\n": false, strings.Repeat("x", 64): false,
	} {
		c := defaults()
		c.Runtime.Namespace = name
		if err := c.Validate(); (err == nil) != ok || err != nil && !strings.Contains(err.Error(), "runtime.namespace") {
			t.Errorf("namespace %q: %v", name, err)
		}
	}
	for key, set := range map[string]func(c *config, path string){
		"socket":          func(c *config, path string) { c.Socket = path },
		"runtime.address": func(c *config, path string) { c.Runtime.Address = path },
	} {
		for length, ok := range map[int]bool{107: true, 108: false} {
			c := defaults()
			set(&c, "/"+strings.Repeat("x", length-1))
			if err := c.Validate(); (err == nil) != ok || err != nil && !strings.Contains(err.Error(), key+": a path of 108 bytes") {
				t.Errorf("%s of %d bytes: %v", key, length, err)
			}
		}
	}
}

// TestRoom warns of devices that promise more than the machine has, all together.
func TestRoom(t *testing.T) {
	for name, c := range map[string]struct {
		devices []cpuConfig
		level   string
	}{
		"none": {nil, wire.LevelOK}, "all of it": {[]cpuConfig{{Memory: 3, Disk: 4}, {Memory: 1, Disk: 5}}, wire.LevelOK},
		"memory": {[]cpuConfig{{Memory: 5}}, wire.LevelWarn}, "disk": {[]cpuConfig{{Disk: 10}}, wire.LevelWarn},
		"together": {[]cpuConfig{{Memory: 3}, {Memory: 2}}, wire.LevelWarn}, "a huge one": {[]cpuConfig{{Memory: 1}, {Memory: 1<<64 - 1}}, wire.LevelWarn},
	} {
		if got := roomFor(c.devices, 4, 9); got.Level != c.level || (got.Level != wire.LevelOK) != (got.Next != "") {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// TestFixed knows of every key at the top and in [runtime] whether it can change while the daemon runs.
func TestFixed(t *testing.T) {
	for key, change := range map[string]func(*config){
		"network": func(c *config) { c.Network = "x" }, "listen": func(c *config) { c.Listen = nil }, "peers": func(c *config) { c.Peers = []string{"x"} },
		"mdns": func(c *config) { c.MDNS = !c.MDNS }, "state": func(c *config) { c.State = "/x" }, "socket": func(c *config) { c.Socket = "/x" },
		"locks": func(c *config) { c.Locks = "/x" }, "unit": func(c *config) { c.Unit = "EUR" }, "runtime": func(c *config) { c.Runtime.Namespace = "x" },
		"log.format": func(c *config) { c.Log.Format = cli.LogJSON },
	} {
		c, old := defaults(), defaults()
		change(&c)
		if got := c.fixed(&old); !reflect.DeepEqual(got, []string{key}) {
			t.Errorf("%s: %q need a restart", key, got)
		}
	}
	c, old := defaults(), defaults()
	c.Region, c.Serve.Accounts, c.Log.Level, c.CPU = "x", nil, "debug", []cpuConfig{{}}
	if got := c.fixed(&old); len(got) > 0 {
		t.Errorf("%q need a restart, but can change", got)
	}
}

// TestNotRoot starts the daemon as nobody.
func TestNotRoot(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(self) // nobody may not enter the folder where a test's program lies
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cmd := exec.CommandContext(t.Context(), "/proc/self/fd/3", "run", "--home", "/nonexistent", "--config", os.DevNull)
	cmd.Args[0], cmd.ExtraFiles, cmd.Dir = "gpufaird", []*os.File{f}, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if got := cmd.ProcessState.ExitCode(); got != int(cli.ExitSystem) || !strings.Contains(string(out), "sudo gpufaird run") {
		t.Errorf("as nobody the daemon ends with %d (%v):\n%s", got, err, out)
	}
}
