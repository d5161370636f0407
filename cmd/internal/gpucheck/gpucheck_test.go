package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpufair/gpufair/benchmark"
)

const uuid = "GPU-fa4e0000-0000-0000-0000-000000001000" // the fake driver's first card

// build makes in a folder what make gpu-check makes in bin, and the fake driver beside it.
func build(t *testing.T) (bin string) {
	t.Helper()
	bin = t.TempDir()
	const gpu = "../../../benchmark/gpu"
	at := func(name string) string { return filepath.Join(bin, name) }
	kernels := []string{"c++", "-DHOST_EMU", "-O1", "-std=c++20", "-w", "-shared", "-fPIC", "-o", at("emulation.so"), gpu + "/testdata/fakecuda.cpp"}
	for _, argv := range [][]string{
		{"go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-X github.com/gpufair/gpufair/benchmark/gpu.sysRoot=" + at("sys"), "-o", at("gpufaird"), "../../gpufaird"},
		{"go", "test", "-c", "-o", at("gpu.test"), gpu},
		{"cc", "-shared", "-fPIC", "-o", at("libnvidia-ml.so.1"), gpu + "/testdata/fakenvml.c"},
		kernels,
		{"cp", at("emulation.so"), at("libcuda.so.1")},
	} {
		cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", argv[0], err, out)
		}
	}
	return bin
}

// machine is a check of a machine whose driver answers as a scenario says.
func machine(t *testing.T, bin string, scenario ...string) (c *check, said *strings.Builder) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "scenario"), []byte(strings.Join(scenario, "\n")+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	env := []string{
		"/usr/bin/env", "LD_LIBRARY_PATH=" + bin, "FAKE_NVML=" + filepath.Join(dir, "scenario"), "GPUFAIR_HOME=" + filepath.Join(dir, "home"),
		"GPUFAIR_LOCKS=" + filepath.Join(dir, "locks"),
	}
	said = &strings.Builder{}
	return &check{
		gpufaird: append(env[:len(env):len(env)], filepath.Join(bin, "gpufaird")), kernels: append(env[:len(env):len(env)], filepath.Join(bin, "gpu.test")),
		emulation: filepath.Join(bin, "emulation.so"), out: filepath.Join(dir, "results"), profiles: []benchmark.Profile{benchmark.Quick},
		patience: 10 * time.Minute, say: said, // the CPU computes the card's part too, beside other tests
	}, said
}

// written are the results of a card.
func written(t *testing.T, c *check) (r record, text string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(c.out, "nvidia-geforce-rtx-4090.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &r); err != nil {
		t.Fatal(err)
	}
	md, err := os.ReadFile(filepath.Join(c.out, "nvidia-geforce-rtx-4090.md"))
	if err != nil {
		t.Fatal(err)
	}
	if all := string(b) + string(md); strings.Contains(all, uuid) || strings.Contains(all, "0000:01:00") {
		t.Error("the results tell which card it is")
	}
	return r, string(md)
}

// The whole check, by the real gpufaird on the fake driver, whose CUDA computes.
func TestCheck(t *testing.T) {
	bin := build(t)
	t.Run("healthy", func(t *testing.T) {
		c, said := machine(t, bin, "gen 4")
		c.profiles = append(c.profiles, benchmark.Standard)
		if err := c.run(t.Context()); err != nil {
			t.Fatalf("%v\n%s", err, said)
		}
		r, text := written(t, c)
		if len(r.Kernels) != 20 || len(r.Reports) != 2 || len(r.Reports[0].Measurements) != 18 || len(r.Reports[1].Measurements) != 19 || r.Wrong != nil || r.NotRun != nil {
			t.Errorf("%+v", r)
		}
		for _, want := range []string{"| sgemm |", "| agrees |", "Profile quick", "Profile standard", "gen 4 x16", "| bf16_matmul |"} {
			if !strings.Contains(text, want) {
				t.Errorf("no %q in %s", want, text)
			}
		}
	})
	t.Run("a wrong kernel", func(t *testing.T) {
		c, said := machine(t, bin, "cuda.wrong.sgemm 1")
		if err := c.run(t.Context()); !errors.Is(err, errWrong) {
			t.Fatalf("%v\n%s", err, said)
		}
		r, text := written(t, c)
		if len(r.Wrong) != 2 || !strings.HasPrefix(r.Wrong[0], "kernel sgemm: off by") || !strings.HasPrefix(r.Wrong[1], "profile quick: ") || !strings.Contains(text, "**wrong**") {
			t.Errorf("%q\n%s", r.Wrong, text)
		}
	})
	t.Run("a lost card", func(t *testing.T) {
		c, said := machine(t, bin, "lost 1")
		if err := c.run(t.Context()); !errors.Is(err, errWrong) || !strings.Contains(said.String(), "fallen off the bus") {
			t.Fatalf("%v\n%s", err, said)
		}
	})
	t.Run("a slow comparison", func(t *testing.T) { testSlow(t, bin) })
	t.Run("short of time", func(t *testing.T) { testShort(t, bin) })
	t.Run("interrupted", func(t *testing.T) {
		c, _ := machine(t, bin)
		ctx, cancel := context.WithCancel(t.Context())
		c.say = writer(cancel)
		if err := c.run(ctx); !errors.Is(err, errInterrupted) {
			t.Error(err)
		}
		if _, err := os.Stat(c.out); err == nil {
			t.Error("results were written")
		}
	})
	for scenario, want := range map[string]string{"count 0": "", "err.nvmlInit_v2 18": "reboot", "err.nvmlInit_v2 9": "modprobe"} {
		t.Run(scenario, func(t *testing.T) {
			c, said := machine(t, bin, scenario)
			err := c.run(t.Context())
			if want == "" && (err != nil || !strings.HasPrefix(said.String(), "no card: nothing checked")) {
				t.Errorf("%v, %s", err, said)
			}
			if want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
				t.Errorf("%v, want %s", err, want)
			}
		})
	}
	t.Run("a card that its driver does not find", func(t *testing.T) { testUnfound(t, bin) })
}

func testShort(t *testing.T, bin string) {
	c, said := machine(t, bin)
	c.profiles = []benchmark.Profile{benchmark.Soak}
	ctx, cancel := context.WithTimeout(t.Context(), 11*time.Minute)
	defer cancel()
	if err := c.run(ctx); err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	if r, text := written(t, c); len(r.NotRun) != 1 || len(r.Reports) != 0 || !strings.Contains(text, "not run: profile soak: it may take 12m0s") {
		t.Errorf("%q\n%s", r.NotRun, text)
	}
}

func testSlow(t *testing.T, bin string) {
	c, said := machine(t, bin)
	c.patience, c.profiles = time.Nanosecond, nil
	if err := c.run(t.Context()); !errors.Is(err, errWrong) || !strings.Contains(said.String(), "it took more than 1ns") {
		t.Fatalf("%v\n%s", err, said)
	}
}

// testUnfound puts a card into the sysfs that gpufaird was built to read.
func testUnfound(t *testing.T, bin string) {
	device := filepath.Join(bin, "sys/bus/pci/devices/0000:01:00.0")
	if err := os.MkdirAll(device, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"vendor": "0x10de", "class": "0x030000"} {
		if err := os.WriteFile(filepath.Join(device, name), []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	c, said := machine(t, bin, "count 0")
	if err := c.run(t.Context()); err == nil || !strings.Contains(err.Error(), "its driver does not find it") {
		t.Errorf("%v, %s", err, said)
	}
}

// writer calls f at the first thing that is said: the card's name.
type writer func()

func (f writer) Write(b []byte) (int, error) {
	f()
	return len(b), nil
}

func TestSlug(t *testing.T) {
	for name, want := range map[string]string{"NVIDIA GeForce RTX 4090": "nvidia-geforce-rtx-4090", "../../etc": "etc", "": "card"} {
		if got := slug(name); got != want {
			t.Errorf("%q: %q", name, got)
		}
	}
}

func TestWhatWasNotToldIsADash(t *testing.T) {
	m := benchmark.Measurement{Figure: benchmark.FigureMemRead, Size: "1 | 2", Conditions: &benchmark.Conditions{PCIeWidth: 16}}
	if got := row(m); !strings.HasSuffix(got, "| - | - | - | - | none | 1   2 |") {
		t.Error(got)
	}
	m.Conditions = nil
	if got := row(m); !strings.HasSuffix(got, "| - | - | - | - | - | 1   2 |") {
		t.Error(got)
	}
}
