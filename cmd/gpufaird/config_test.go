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
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/provider"
)

const everything = `
network = "trial"
region = "Berlin"
announce = ["/ip4/192.0.2.7/tcp/4701"]
[serve]
accounts = ["ACCOUNT"]
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
		Network: "trial", Unit: "CREDIT", Region: "Berlin", Accounts: []identity.AccountID{account}, Notice: 5 * time.Second,
		Reclaim: 2 * time.Minute, DueDays: 7, Methods: []string{"manual", "bank"}, UseTerms: "be kind",
		Credit: provider.CreditConfig{Stranger: &stranger, KnownPercent: &percent}, LogBytes: 1 << 20, Addrs: []string{"/ip4/192.0.2.7/tcp/4701"},
		Lots: []provider.Lot{{
			Device: benchmark.CPUDevice(machine, benchmark.Cores{0, 1, 3}), Price: 250_000, Prepare: 50_000, MinTerm: time.Minute,
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
