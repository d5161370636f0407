//go:build linux && cgo

package gpu

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gpufair/gpufair/benchmark"
	"github.com/gpufair/gpufair/benchmark/probe"
)

// A library is loaded once per process and may end it, so each scenario has a process of its own: this test binary again, as the
// daemon's child.
const childEnv = "GPUFAIR_TEST_GPU"

func TestMain(m *testing.M) {
	mode, arg, _ := strings.Cut(os.Getenv(childEnv), " ")
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	switch mode {
	case "":
		dir, err := os.MkdirTemp("", "gpufair-fakes")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		built = dir
		result := m.Run()
		os.RemoveAll(dir)
		os.Exit(result)
	case "serve":
		if d, err := time.ParseDuration(arg); err == nil {
			computePatience = d
		}
		sysRoot = sysOf(os.Getenv("FAKE_NVML")) // not the host's
		os.Exit(code(probe.Serve(ctx, os.Stdin, os.Stdout, Driver())))
	case "monitor":
		os.Exit(code(watchCard(ctx, arg)))
	case "compare":
		card, emulation, _ := strings.Cut(arg, " ")
		os.Exit(code(compareCard(os.Stdout, card, emulation)))
	}
	os.Exit(99)
}

func code(err error) int {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// watchCard prints what a monitor sees until that fails.
func watchCard(ctx context.Context, uuid string) error {
	m, err := openMonitor(uuid)
	if err != nil {
		return err
	}
	defer m.close()
	out := json.NewEncoder(os.Stdout)
	for {
		t, err := m.next(ctx)
		if err != nil {
			return err
		}
		if err := out.Encode(t); err != nil {
			return err
		}
	}
}

// fake is a driver that answers as its scenario says.
type fake struct {
	dir, scenario string
}

// built is where the libraries that many tests use lie. Each is built once, by the first test that asks.
var built string

var buildNVML = sync.OnceValues(func() (dir string, err error) {
	dir = filepath.Join(built, "nvml")
	return dir, compileNVML(dir)
})

// newFake is a machine with NVML alone, built for this test if there are compiler flags.
func newFake(t *testing.T, flags ...string) fake {
	t.Helper()
	if len(flags) == 0 {
		return newFakeOf(t, buildNVML)
	}
	return newFakeOf(t, func() (string, error) {
		dir := t.TempDir()
		return dir, compileNVML(dir, flags...)
	})
}

func newFakeOf(t *testing.T, build func() (dir string, err error)) fake {
	t.Helper()
	dir, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return fake{dir: dir, scenario: filepath.Join(t.TempDir(), "scenario")}
}

func compileNVML(dir string, flags ...string) error {
	return compile("cc", append([]string{"-shared", "-fPIC", "-Wall", "-Werror", "-o", filepath.Join(dir, libraryName), "testdata/fakenvml.c"}, flags...)...)
}

// compile runs a compiler whose output goes to the folder of the argument after -o.
func compile(compiler string, args ...string) error {
	if err := os.MkdirAll(filepath.Dir(args[slices.Index(args, "-o")+1]), 0o755); err != nil {
		return err
	}
	if out, err := exec.Command(compiler, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", compiler, err, out)
	}
	return nil
}

// sysOf is the sysfs beside a scenario, which shows no card unless a test puts one there.
func sysOf(scenario string) string { return scenario + ".sys" }

// set writes the scenario as a whole, so that the driver never reads half of one.
func (f fake) set(t *testing.T, lines ...string) {
	t.Helper()
	next := f.scenario + ".next"
	if err := os.WriteFile(next, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, f.scenario); err != nil {
		t.Fatal(err)
	}
}

func (f fake) env(mode string) []string {
	return []string{
		childEnv + "=" + mode, "GORACE=atexit_sleep_ms=0", "LD_LIBRARY_PATH=" + f.dir, "FAKE_NVML=" + f.scenario,
		"FAKE_NVML_LOG=" + f.scenario + ".calls",
	}
}

// child starts the daemon's child on this driver.
func (f fake) child(mode string) probe.Config {
	return probe.Config{
		Command: append(append([]string{"/usr/bin/env"}, f.env(mode)...), os.Args[0]), Log: slog.New(slog.DiscardHandler),
	}
}

// detect asks the driver in a scenario, through the daemon's own child.
func (f fake) detect(t *testing.T, lines ...string) benchmark.GPUs {
	t.Helper()
	f.set(t, lines...)
	got, err := probe.Detect(t.Context(), f.child("serve"))
	if err != nil {
		t.Fatal(err)
	}
	return got.GPUs
}

func uuid(i int) string { return fmt.Sprintf("GPU-fa4e0000-0000-0000-0000-%012x", 0x1000+i) }
