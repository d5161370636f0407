//go:build linux && cgo

package gpu

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpufair/gpufair/benchmark"
)

// A library is loaded once per process and may end it, so each scenario detects in a process of its own: this test binary again.
const childEnv = "GPUFAIR_TEST_DETECT"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		err := json.NewEncoder(os.Stdout).Encode(Detect(context.Background()))
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// buildFake builds the fake driver with a compiler flag and gives its folder.
func buildFake(t *testing.T, flag string) string {
	t.Helper()
	dir := t.TempDir()
	args := []string{"-shared", "-fPIC", "-Wall", "-Werror", "-o", filepath.Join(dir, libraryName), "testdata/fakenvml.c"}
	if flag != "" {
		args = append(args, flag)
	}
	if out, err := exec.Command("cc", args...).CombinedOutput(); err != nil {
		t.Fatalf("cc: %v\n%s", err, out)
	}
	return dir
}

// detectIn detects in a child that finds the driver in dir.
func detectIn(t *testing.T, dir, scenario string) benchmark.GPUs {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"=1", "GORACE=atexit_sleep_ms=0", "LD_LIBRARY_PATH="+dir, "FAKE_NVML="+scenario)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("detect: %v\n%s", err, stderr.String())
	}
	var got benchmark.GPUs
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	return got
}

func uuid(i int) string { return fmt.Sprintf("GPU-fa4e0000-0000-0000-0000-%012d", i) }

func twoCards() benchmark.GPUs {
	return benchmark.GPUs{Driver: "580.95.05", CUDA: "12.8", Cards: []benchmark.GPU{
		{
			Device: benchmark.GPUDevice(uuid(1)), UUID: uuid(1), Name: "NVIDIA GeForce RTX 4090", MemoryMiB: 24564, ComputeCapability: "8.9",
			PCIAddress: "00000000:01:00.0", PCIeGen: 1, PCIeMaxGen: 4, PCIeWidth: 8, PCIeMaxWidth: 16, ECC: "none", PowerLimitMW: 450000, MIG: "none",
		},
		{
			Device: benchmark.GPUDevice(uuid(2)), UUID: uuid(2), Name: "NVIDIA A100-SXM4-80GB", MemoryMiB: 81920, ComputeCapability: "8.0",
			PCIAddress: "00000000:02:00.0", PCIeGen: 1, PCIeMaxGen: 4, PCIeWidth: 16, PCIeMaxWidth: 16, ECC: "on", PowerLimitMW: 450000, MIG: "off",
		},
	}}
}

func TestTwoCards(t *testing.T) {
	if diff := cmp.Diff(twoCards(), detectIn(t, buildFake(t, ""), "")); diff != "" {
		t.Error(diff)
	}
}

func TestLostCardLeavesTheOther(t *testing.T) {
	got := detectIn(t, buildFake(t, ""), "lost=0")
	if len(got.Cards) != 2 || got.Problem != nil {
		t.Fatalf("%+v", got)
	}
	if p := got.Cards[0].Problem; p == nil || p.Code != "lost" || got.Cards[0].PCIAddress != "00000000:01:00.0" {
		t.Errorf("the lost card: %+v", got.Cards[0])
	}
	if diff := cmp.Diff(twoCards().Cards[1], got.Cards[1]); diff != "" {
		t.Error(diff)
	}
}

func TestSharedMemoryIsNoFault(t *testing.T) {
	got := detectIn(t, buildFake(t, ""), "shared_memory=1 count=1")
	if len(got.Cards) != 1 || got.Cards[0].Problem != nil || got.Cards[0].MemoryMiB != 0 || got.Cards[0].ComputeCapability != "8.9" {
		t.Errorf("%+v", got)
	}
}

// A driver without the newer functions: go-nvml would end the process with status 127.
func TestMissingFunctions(t *testing.T) {
	got := detectIn(t, buildFake(t, "-DBARE"), "count=1")
	want := benchmark.GPUs{Cards: []benchmark.GPU{{
		Device: benchmark.GPUDevice(uuid(1)), UUID: uuid(1), Name: "NVIDIA GeForce RTX 4090", MemoryMiB: 24564, ECC: "none", MIG: "none",
	}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if got := detectIn(t, buildFake(t, "-DOLD"), ""); got.Problem == nil || got.Problem.Code != "old_driver" {
		t.Errorf("without a needed function: %+v", got)
	}
}

func TestProblemsSayWhatToDo(t *testing.T) {
	fake := buildFake(t, "")
	empty := t.TempDir()
	if err := os.WriteFile(filepath.Join(empty, libraryName), []byte("not a library"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ dir, scenario, code, advice string }{
		{empty, "", "no_library", "install its driver"},
		{fake, "init=9", "no_driver", "modprobe nvidia"},
		{fake, "init=18", "version_mismatch", "reboot"},
		{fake, "init=4", "no_permission", "root"},
		{fake, "init=8", "power", "attach"},
		{fake, "init=999", "driver_error", "nvidia-smi"},
		{fake, "count=0", "no_card", "lspci"},
	} {
		got := detectIn(t, c.dir, c.scenario)
		if len(got.Cards) != 0 || got.Problem == nil || got.Problem.Code != c.code || !strings.Contains(got.Problem.Advice, c.advice) {
			t.Errorf("%s %q: %+v %+v, want %s with %q", filepath.Base(c.dir), c.scenario, got, got.Problem, c.code, c.advice)
		}
	}
}
