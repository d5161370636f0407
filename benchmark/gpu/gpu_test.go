//go:build linux && cgo

package gpu

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpufair/gpufair/benchmark"
	"github.com/gpufair/gpufair/benchmark/probe"
)

func geforce() benchmark.GPU {
	return benchmark.GPU{
		Device: benchmark.GPUDevice(uuid(0)), UUID: uuid(0), Name: "NVIDIA GeForce RTX 4090", MemoryMiB: 24564, ComputeCapability: "8.9",
		BusWidth: 384, VBIOS: "95.02.3c.40.b8", PCIAddress: "00000000:01:00.0", PCIeGen: 1, PCIeMaxGen: 4, PCIeWidth: 16, PCIeMaxWidth: 16,
		ECC: "none", PowerLimitMW: 450000, SlowdownC: 93, Persistence: "off", Throttle: benchmark.ReasonIdle, MIG: "none",
	}
}

func a100() benchmark.GPU {
	return benchmark.GPU{
		Device: benchmark.GPUDevice(uuid(1)), UUID: uuid(1), Name: "NVIDIA A100-SXM4-80GB", MemoryMiB: 81920, ComputeCapability: "8.0",
		BusWidth: 5120, VBIOS: "95.02.3c.40.b8", PCIAddress: "00000000:02:00.0", PCIeGen: 1, PCIeMaxGen: 4, PCIeWidth: 16, PCIeMaxWidth: 16,
		ECC: "on", ECCErrors: &benchmark.ECCErrors{}, Rows: &benchmark.RemappedRows{}, PowerLimitMW: 450000, SlowdownC: 93,
		Persistence: "off", Throttle: benchmark.ReasonIdle, MIG: "off",
	}
}

// differs compares the cards of an answer.
func differs(t *testing.T, got benchmark.GPUs, cards ...benchmark.GPU) {
	t.Helper()
	got.Compute = nil // NVML is alone
	if diff := cmp.Diff(benchmark.GPUs{Driver: "580.95.05", CUDA: "12.8", Cards: cards}, got); diff != "" {
		t.Error(diff)
	}
}

// A GeForce at rest: gen 1 is power saving and no fault, ECC is "none" and its errors are not 0 but not there.
func TestGeForceAtRest(t *testing.T) {
	f := newFake(t)
	got := f.detect(t)
	differs(t, got, geforce())
	b, err := json.Marshal(got)
	if err != nil || !strings.Contains(string(b), `"ecc":"none"`) || strings.Contains(string(b), "ecc_errors") {
		t.Errorf("%s, %v", b, err)
	}
	calls, err := os.ReadFile(f.scenario + ".calls")
	if err != nil || !strings.HasSuffix(string(calls), "nvmlShutdown\n") {
		t.Errorf("NVML was left open: %v", err)
	}
}

func TestServerCard(t *testing.T) {
	want := a100()
	want.ECCErrors = &benchmark.ECCErrors{Corrected: 2, CorrectedLifetime: 70, UncorrectedLifetime: 1}
	want.Rows = &benchmark.RemappedRows{Uncorrected: 1, Pending: true}
	want.Recovery, want.Persistence, want.Throttle = "drain_and_reset", "on", benchmark.ReasonPowerCap|benchmark.ReasonHWThermal
	f := newFake(t)
	got := f.detect(t, "count 2", "1.model 1", "1.ecc_cor 2", "1.ecc_cor_life 70", "1.ecc_unc_life 1", "1.rows 1", "1.rows_pending 1",
		"1.recovery 4", "1.persistence 1", "1.reasons 0x44")
	differs(t, got, geforce(), want)

	off := a100()
	off.ECC, off.ECCErrors, off.Rows = "off", nil, nil // nothing counts
	differs(t, f.detect(t, "count 2", "1.model 1", "1.ecc 0"), geforce(), off)

	sliced := a100()
	sliced.MIG, sliced.Slices = "on", []benchmark.MIGSlice{
		{UUID: "MIG-51a4e000-0000-0000-0000-000000002100", Name: "NVIDIA A100-SXM4-80GB MIG 3g.40gb", MemoryMiB: 40192},
		{UUID: "MIG-51a4e000-0000-0000-0000-000000002103", Name: "NVIDIA A100-SXM4-80GB MIG 3g.40gb", MemoryMiB: 40192},
	}
	differs(t, f.detect(t, "count 2", "1.model 1", "1.mig 1"), geforce(), sliced)
}

func TestRiser(t *testing.T) {
	want := geforce()
	want.PCIeGen, want.PCIeWidth, want.PCIeMaxGen = 1, 1, 4
	differs(t, newFake(t).detect(t, "width 1"), want)
}

// A chip with the machine's memory says "gen 1 x1", which means nothing.
func TestSharedMemoryIsNoFault(t *testing.T) {
	got := newFake(t).detect(t, "shared_memory 1", "width 1", "width_max 1")
	want := geforce()
	want.MemoryMiB, want.PCIeGen, want.PCIeMaxGen, want.PCIeWidth, want.PCIeMaxWidth = 0, 0, 0, 0, 0
	differs(t, got, want)
}

func TestWhoUsesTheCard(t *testing.T) {
	self := os.Getpid() // alive, and not the child
	name, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		t.Fatal(err)
	}
	want := geforce()
	want.Display, want.Processes = true, []benchmark.GPUProcess{{PID: uint32(self), Name: strings.TrimSpace(string(name)), MemoryMiB: 512}}
	f := newFake(t)
	both := []string{"display 1", fmt.Sprint("computes ", self), fmt.Sprint("draws ", self)}
	differs(t, f.detect(t, both...), want)
	want.Processes[0].MemoryMiB = 0 // Windows does not tell
	differs(t, f.detect(t, append(both, "process_memory -1")...), want)
}

func TestLostCardLeavesTheOther(t *testing.T) {
	for _, scenario := range []string{"0.lost 1", "0.nohandle 1"} {
		got := newFake(t).detect(t, "count 2", "1.model 1", scenario)
		if len(got.Cards) != 2 || got.Problem != nil {
			t.Fatalf("%s: %+v", scenario, got)
		}
		if p := got.Cards[0].Problem; p == nil || p.Code != "lost" {
			t.Errorf("%s: the lost card: %+v", scenario, got.Cards[0])
		}
		if diff := cmp.Diff(a100(), got.Cards[1]); diff != "" {
			t.Error(diff)
		}
	}
}

// A card that is lost in the middle of the questions is asked no more.
func TestLostWhileAsked(t *testing.T) {
	f := newFake(t)
	got := f.detect(t, "err.nvmlDeviceGetMaxPcieLinkWidth 15", "err.nvmlDeviceGetEnforcedPowerLimit 999")
	c := got.Cards[0]
	if c.Problem == nil || c.Problem.Code != "lost" || c.Name != "NVIDIA GeForce RTX 4090" || c.Unread != nil {
		t.Errorf("%+v", c)
	}
	if got := f.detect(t, "err.nvmlDeviceGetDisplayActive 16").Cards[0].Problem; got == nil || got.Code != "reset_required" {
		t.Errorf("%+v", got)
	}
}

// One field that fails is told, and costs no other.
func TestFailedFields(t *testing.T) {
	f := newFake(t)
	for function, unset := range map[string]func(g *benchmark.GPU){
		"nvmlDeviceGetEnforcedPowerLimit":    func(g *benchmark.GPU) { g.PowerLimitMW = 0 },
		"nvmlDeviceGetCurrPcieLinkWidth":     func(g *benchmark.GPU) { g.PCIeWidth = 0 },
		"nvmlDeviceGetCudaComputeCapability": func(g *benchmark.GPU) { g.ComputeCapability = "" },
		"nvmlDeviceGetTotalEccErrors":        func(g *benchmark.GPU) { g.ECCErrors = nil }, // never 0
		"nvmlDeviceGetFieldValues":           func(*benchmark.GPU) {},
		"nvmlDeviceGetMigMode":               func(g *benchmark.GPU) { g.MIG = "none" },
	} {
		want := a100()
		unset(&want)
		c := f.detect(t, "count 2", "1.model 1", "1.err."+function+" 999").Cards[1]
		if len(c.Unread) == 0 || c.Unread[0] != strings.TrimPrefix(function, "nvmlDevice")+": error 999" {
			t.Errorf("%s: told %q", function, c.Unread)
		}
		c.Unread = nil
		if diff := cmp.Diff(want, c); diff != "" {
			t.Errorf("%s: %s", function, diff)
		}
	}
}

// A driver without the newer functions: go-nvml would end the process with status 127.
func TestOldDrivers(t *testing.T) {
	want := benchmark.GPUs{Cards: []benchmark.GPU{{
		Device: benchmark.GPUDevice(uuid(0)), UUID: uuid(0), Name: "NVIDIA GeForce RTX 4090", MemoryMiB: 24564, ECC: "none", MIG: "none", Persistence: "none",
		ProcessesHidden: true,
	}}}
	got := newFake(t, "-DBARE").detect(t)
	got.Compute = nil // NVML is alone
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if got := newFake(t, "-DOLD").detect(t); got.Problem == nil || got.Problem.Code != "old_driver" {
		t.Errorf("without a needed function: %+v", got)
	}
}

// Each function that we can live without is missing in turn: whatever else there is, the child lives and the card is named. The
// monitor, which calls others, must live too.
func TestEachFunctionMissingInTurn(t *testing.T) {
	source, err := os.ReadFile("testdata/fakenvml.c")
	if err != nil {
		t.Fatal(err)
	}
	_, optional, _ := strings.Cut(string(source), "#if !defined BARE")
	names := regexp.MustCompile(`\bnvml[A-Z]\w+`).FindAllString(optional, -1)
	if len(names) < 30 {
		t.Fatalf("found %d functions in the fake", len(names))
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t, "-D"+name+"=absent_"+name)
			got := f.detect(t, "count 2", "1.model 1", "1.mig 1")
			if got.Problem != nil || len(got.Cards) != 2 || got.Cards[0].Name != "NVIDIA GeForce RTX 4090" || got.Cards[1].UUID != uuid(1) {
				t.Errorf("%+v", got)
			}
			f.set(t, "xid 79")
			if name == "nvmlDeviceGetHandleByUUID" {
				return // without it no card can be watched
			}
			looks, last := f.monitor(t, uuid(0), func(looks int) {
				if looks == 1 {
					f.set(t, "lost 1")
				}
			})
			if looks > 3 || !strings.Contains(last, ErrFault.Error()) {
				t.Errorf("%d looks, then %q", looks, last)
			}
		})
	}
}

// monitor runs a child that watches a card until it fails, and gives its last words.
func (f fake) monitor(t *testing.T, uuid string, each func(looks int)) (looks int, last string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), f.env("monitor "+uuid)...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		looks++
		each(looks)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the monitor ended well")
	}
	return looks, stderr.String()
}

// The scenario changes while the child looks at the card: under load the link rises, then the card tells an error or is gone.
func TestFaultsWhileWatched(t *testing.T) {
	for _, c := range []struct{ fault, want string }{
		{"xid 79", "Xid 79"},
		{"lost 1", "fallen off the bus"},
		{"err.nvmlDeviceGetPowerUsage 16", "reset"},
		{"err.nvmlEventSetWait_v2 999", "error 999"},
	} {
		f := newFake(t)
		f.set(t, "gen 1")
		_, last := f.monitor(t, uuid(0), func(looks int) {
			switch looks {
			case 1:
				f.set(t, "gen 4", "temp 70", "power 440000")
			case 3:
				f.set(t, c.fault)
			}
		})
		if !strings.Contains(last, c.want) || !strings.Contains(last, ErrFault.Error()) {
			t.Errorf("%s: %q", c.fault, last)
		}
	}
	if _, last := newFake(t).monitor(t, "GPU-other", func(int) {}); !strings.Contains(last, "no card has the UUID GPU-other") {
		t.Errorf("%q", last)
	}
}

// look is what a monitor sees first.
func (f fake) look(t *testing.T, lines ...string) (got benchmark.Telemetry) {
	t.Helper()
	f.set(t, lines...)
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), f.env("monitor "+uuid(0))...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	err = json.NewDecoder(out).Decode(&got)
	cmd.Process.Kill()
	cmd.Wait() // ends with the kill
	if err != nil {
		t.Error(err)
	}
	return got
}

func TestTelemetry(t *testing.T) {
	f := newFake(t)
	scenario := []string{"model 1", "gen 4", "width 8", "temp 70", "power 440000", "sm_clock 1410", "mem_clock 1593", "reasons 4", "replays 3"}
	want := benchmark.Telemetry{
		SMClockMHz: 1410, MemClockMHz: 1593, PowerMW: 440000, TemperatureC: 70, MemoryC: 55, Reasons: benchmark.ReasonPowerCap, PCIeGen: 4, PCIeWidth: 8, Replays: new(uint32(3)),
	}
	if diff := cmp.Diff(want, f.look(t, scenario...)); diff != "" {
		t.Error(diff)
	}
	want.Replays, want.PCIeWidth, want.TemperatureC = nil, 0, 0
	scenario = append(scenario, "err.nvmlDeviceGetPcieReplayCounter 999", "err.nvmlDeviceGetCurrPcieLinkWidth 3", "err.nvmlDeviceGetTemperature 999")
	if diff := cmp.Diff(want, f.look(t, scenario...)); diff != "" {
		t.Error(diff)
	}
}

// A call that never comes back costs the child, and the owner is told.
func TestHungDriver(t *testing.T) {
	for _, function := range []string{"nvmlInit_v2", "nvmlDeviceGetEccMode"} {
		f := newFake(t)
		f.set(t, "hang."+function+" 1")
		c := f.child("serve")
		c.Limit, c.Grace = 300*time.Millisecond, 100*time.Millisecond
		got, err := probe.Detect(t.Context(), c)
		if err != nil || got.GPUs.Problem == nil || got.GPUs.Problem.Code != "hung" || len(got.CPU.Cores) == 0 {
			t.Errorf("%s: %+v, %v", function, got.GPUs.Problem, err)
		}
	}
}

func TestProblemsSayWhatToDo(t *testing.T) {
	f := newFake(t)
	empty := fake{dir: t.TempDir(), scenario: f.scenario}
	if err := os.WriteFile(filepath.Join(empty.dir, libraryName), []byte("not a library"), 0o644); err != nil {
		t.Fatal(err)
	}
	plugged := newFake(t)
	putCard(t, sysOf(plugged.scenario), "0x10de", "0x030000")
	for _, c := range []struct {
		f                      fake
		scenario, code, advice string
	}{
		{empty, "count 1", "no_library", "install"},
		{f, "err.nvmlInit_v2 9", "no_driver", "modprobe nvidia"},
		{f, "err.nvmlInit_v2 18", "version_mismatch", "reboot"},
		{f, "err.nvmlInit_v2 4", "no_permission", "root"},
		{f, "err.nvmlInit_v2 8", "power", "attach"},
		{f, "err.nvmlInit_v2 999", "driver_error", "nvidia-smi"},
		{f, "err.nvmlDeviceGetCount_v2 999", "driver_error", "nvidia-smi"},
		{f, "count 0", "no_card", "lspci"},
		{plugged, "count 0", "lost", "lspci -k"},
		{plugged, "err.nvmlInit_v2 28", "lost", "lspci -k"},
	} {
		got := c.f.detect(t, c.scenario)
		if len(got.Cards) != 0 || got.Problem == nil || got.Problem.Code != c.code || !strings.Contains(got.Problem.Advice, c.advice) {
			t.Errorf("%q: %+v %+v, want %s with %q", c.scenario, got, got.Problem, c.code, c.advice)
		}
	}
}
