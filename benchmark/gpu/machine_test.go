//go:build linux && cgo

package gpu

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpufair/gpufair/benchmark"
	"github.com/gpufair/gpufair/benchmark/probe"
)

// without is the same driver with one library broken, which the loader takes for missing.
func (f fake) without(t *testing.T, library string) fake {
	t.Helper()
	g := fake{dir: t.TempDir(), scenario: filepath.Join(t.TempDir(), "scenario")}
	for _, name := range []string{libraryName, cudaLibrary, jitLibrary} {
		b := []byte("not a library")
		if name != library {
			var err error
			if b, err = os.ReadFile(filepath.Join(f.dir, name)); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(g.dir, name), b, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return g
}

// What keeps every kernel from running is told by detection, beside the cards.
func TestCompute(t *testing.T) {
	f := newCardFake(t)
	for _, c := range []struct {
		f                      fake
		scenario, code, advice string
	}{
		{f.without(t, cudaLibrary), "", "no_cuda", "libcuda1"},
		{f.without(t, jitLibrary), "", "no_jit", "libnvidia-ptxjitcompiler1"},
		{f, "cuda.err.cuInit 803", "version_mismatch", "reboot"},
		{f, "cuda.err.cuInit 804", "cuda_compat", "LD_LIBRARY_PATH"},
		{f, "cuda.err.cuInit 100", "no_card", "CUDA_VISIBLE_DEVICES"},
		{f, "cuda.err.cuInit 999", "no_uvm", "modprobe nvidia-uvm"},
		{f, "cuda.err.cuInit 304", "no_uvm", "/dev/nvidia-uvm"},
		{f, "cuda.err.cuInit 3", "cuda_error", "dmesg"},
	} {
		got := c.f.detect(t, c.scenario)
		if p := got.Compute; p == nil || p.Code != c.code || !strings.Contains(p.Advice, c.advice) || got.Problem != nil || len(got.Cards) != 1 {
			t.Errorf("%s: %+v of %+v", c.code, p, got)
		}
	}
	if got := f.detect(t); got.Compute != nil {
		t.Errorf("of a sound driver: %+v", got.Compute)
	}
	for _, scenario := range []string{"count 0", "err.nvmlInit_v2 9"} { // without cards there is nothing to compute on
		if got := f.detect(t, scenario, "cuda.err.cuInit 999"); got.Compute != nil {
			t.Errorf("%q: %+v", scenario, got.Compute)
		}
	}
}

// A CUDA that never starts costs neither the cards that NVML told nor the child.
func TestHungCompute(t *testing.T) {
	f := newCardFake(t)
	f.set(t, "cuda.hang.cuInit 1")
	got, err := probe.Detect(t.Context(), f.child("serve 100ms"))
	if err != nil {
		t.Fatal(err)
	}
	p := got.GPUs.Compute
	if p == nil || p.Code != "cuda_error" || !strings.Contains(p.Text, "did not start in 0.1 s") || !strings.Contains(p.Advice, "nvidia-smi -pm 1") ||
		got.GPUs.Problem != nil || len(got.GPUs.Cards) != 1 {
		t.Errorf("%+v of %+v", p, got.GPUs)
	}
}

// putCard puts a device of PCI into a sysfs.
func putCard(t *testing.T, root, vendor, class string) {
	t.Helper()
	device := filepath.Join(root, "bus/pci/devices/0000:01:00.0")
	if err := os.MkdirAll(device, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"vendor": vendor, "class": class} {
		if err := os.WriteFile(filepath.Join(device, name), []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// A driver that is not there is explained by what is in the machine.
func TestMissingDriverIsExplained(t *testing.T) {
	for _, c := range []struct {
		name, vendor, class, code string
		nouveau                   bool
		want, advice              string
	}{
		{"no card", "0x8086", "0x030000", "no_library", true, "no_library", "as before"},
		{"its sound only", "0x10de", "0x040300", "no_library", false, "no_library", "as before"},
		{"a card", "0x10de", "0x030000", "no_library", false, "not_installed", "apt install nvidia-driver"},
		{"a server's card", "0x10de", "0x030200", "no_library", false, "not_installed", "apt install nvidia-driver"},
		{"a card of nouveau", "0x10de", "0x030000", "no_library", true, "not_installed", "blacklist nouveau"},
		{"module not loaded", "0x10de", "0x030000", "no_driver", false, "no_driver", "as before"},
		{"nouveau before it", "0x10de", "0x030000", "no_driver", true, "no_driver", "blacklist nouveau"},
		{"a card that its driver does not find", "0x10de", "0x030000", "no_card", false, "lost", "lspci -k"},
		{"a driver without a card", "0x8086", "0x030000", "no_card", false, "no_card", "as before"},
		{"another fault", "0x10de", "0x030000", "version_mismatch", true, "version_mismatch", "as before"},
	} {
		root := t.TempDir()
		putCard(t, root, c.vendor, c.class)
		if c.nouveau {
			if err := os.MkdirAll(filepath.Join(root, "module/nouveau"), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		p := &benchmark.Problem{Code: c.code, Advice: "as before"}
		sysfs(root).explain(p)
		if p.Code != c.want || !strings.Contains(p.Advice, c.advice) || strings.Contains(p.Text, "nouveau") != strings.Contains(c.advice, "nouveau") {
			t.Errorf("%s: %+v", c.name, p)
		}
	}
}

// In WSL2 a driver of Linux is never the advice.
func TestUnderWindows(t *testing.T) {
	underWindows(nil)
	for code, windows := range map[string]bool{"no_library": true, "no_cuda": true, "no_jit": true, "lost": false, "cuda_compat": false} {
		p := &benchmark.Problem{Code: code, Advice: "apt install"}
		underWindows(p)
		if strings.Contains(p.Advice, "wsl --update") != windows || strings.Contains(p.Advice, "apt") == windows {
			t.Errorf("%s: %s", code, p.Advice)
		}
	}
}
