package main

import (
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/gpufair/gpufair/benchmark"
	"github.com/gpufair/gpufair/benchmark/probe"
	"github.com/gpufair/gpufair/benchmark/suite"
	"github.com/gpufair/gpufair/p2p/wire"
	"github.com/gpufair/gpufair/provider"
)

// machineDevices are the devices of this machine under locks of their own; the probe child is this program.
func machineDevices(t *testing.T, locks string) *devices {
	t.Helper()
	machine, err := suite.ReadMachineID()
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	d := newDevices(machine, locks, probe.Config{Command: []string{self, probeVerb}, Log: log}, log)
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func cores(lists ...string) []cpuConfig {
	var out []cpuConfig
	for _, l := range lists {
		c, err := benchmark.ParseCores(l)
		if err != nil {
			panic(err)
		}
		out = append(out, cpuConfig{Cores: c})
	}
	return out
}

func idle(wire.Hash) bool { return false }

// problems lists each device's cores and why it is not offered, in the order of List.
func problems(t *testing.T, d *devices) string {
	t.Helper()
	list, err := d.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, v := range list {
		if v.Kind == benchmark.KindCPU {
			out = append(out, v.Cores.String()+" "+v.Problem)
		}
	}
	return strings.Join(out, "\n")
}

// TestDevices locks what is configured, through reloads and beside another daemon.
func TestDevices(t *testing.T) {
	locks := t.TempDir()
	a, b := machineDevices(t, locks), machineDevices(t, locks)
	if err := a.Configure(cores("0"), idle); err != nil {
		t.Fatal(err)
	}
	if got := problems(t, a); got != "0 " {
		t.Errorf("a device of its own: %q", got)
	}
	if err := b.Configure(cores("1000", "0"), idle); err != nil {
		t.Fatal(err)
	}
	if got := problems(t, b); !strings.HasPrefix(got, "1000 describe cpu: core is not available: core 1000") || !strings.Contains(got, "\n0 lock devices: core 0 is in use by process") {
		t.Errorf("a core that is not there, and one that another has: %q", got)
	}
	h := benchmark.CPUDevice(b.machine, benchmark.Cores{0})
	if _, err := b.Measure(t.Context(), h, benchmark.Quick, nil); !errors.Is(err, probe.ErrUnlocked) {
		t.Errorf("measuring what another has: %v", err)
	}
	if _, err := b.Measure(t.Context(), wire.Hash{1}, benchmark.Quick, nil); !errors.Is(err, provider.ErrNotFound) {
		t.Errorf("measuring what is not configured: %v", err)
	}
	if b.Retry() {
		t.Error("a lock was got that another holds")
	}
	if err := a.Configure(nil, func(x wire.Hash) bool { return x == h }); err == nil || !strings.Contains(err.Error(), "a lease has them") {
		t.Errorf("a leased device was given up: %v", err)
	}
	if b.Retry() {
		t.Error("the lock of a leased device was given back")
	}
	if err := a.Configure(nil, idle); err != nil {
		t.Fatal(err)
	}
	if !b.Retry() || !strings.HasSuffix(problems(t, b), "\n0 ") {
		t.Errorf("the lock was not got when it was free: %q", problems(t, b))
	}
	if err := b.Configure(cores("0"), idle); err != nil { // the same device keeps its lock
		t.Fatal(err)
	}
	if got := problems(t, b); got != "0 " {
		t.Errorf("after a reload: %q", got)
	}
}
