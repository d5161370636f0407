package arch

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// binary is a program and what it must not link, whoever imports it.
type binary struct {
	dir    string
	cgo    bool
	os     []string // on which it must build
	banned map[string]string
}

const (
	noRuntime = "only the owner's daemon runs containers"
	noGPU     = "only the daemon's measuring child touches a GPU, and NVML needs cgo"
	smallTray = "the tray is always in memory: it reads the daemon's API and nothing else"
)

var binaries = []binary{
	{dir: "cmd/gpufair", os: []string{"linux", "darwin", "windows"}, banned: map[string]string{
		"github.com/containerd/containerd": noRuntime, "github.com/NVIDIA/": noGPU, "fyne.io/systray": "a command has no tray", "runtime/cgo": noGPU,
		module + "/provider": "the renter's program holds nothing of the owner's",
	}},
	{dir: "cmd/gpufair-tray", os: []string{"linux", "darwin", "windows"}, banned: map[string]string{
		"github.com/containerd/": noRuntime, "github.com/NVIDIA/": noGPU, "github.com/libp2p/": smallTray, "github.com/dgraph-io/": smallTray,
		"runtime/cgo": smallTray,
	}},
	{dir: "cmd/gpufair-init", os: []string{"linux"}, banned: map[string]string{
		"net": "what runs as PID 1 in a stranger's container has no network of its own", "runtime/cgo": "it must be static",
	}},
	{dir: "cmd/gpufaird", cgo: true, os: []string{"linux"}, banned: map[string]string{
		"fyne.io/systray": "a daemon has no screen", module + "/renter": "the owner's daemon holds nothing of the renter's",
	}},
}

// always are linked by none. (expvar is linked by badger; it publishes on the default mux, which nothing of ours serves.)
var always = map[string]string{"testing": "test code in a program", "net/http/pprof": "it serves profiles on the default mux"}

// forced are what a library links whatever we want; that no code of ours does, the rule "testonly" sees.
var forced = map[string]string{"testing": "github.com/libp2p/go-libp2p-kad-dht"} // an option for its own tests takes a *testing.T

// bannedFor is always without what is forced on a binary.
func bannedFor(packages []string) map[string]string {
	out := maps.Clone(always)
	for p, by := range forced {
		if slices.Contains(packages, by) {
			delete(out, p)
		}
	}
	return out
}

const growth = 10 // per cent that a binary's count of packages may grow before somebody must look

const golden = "testdata/links.golden"

// deps lists what a binary links, by import path.
func deps(dir, goos string, cgo bool) ([]string, error) {
	cmd := exec.Command("go", "list", "-mod=readonly", "-deps", "-f", "{{.ImportPath}}", "./"+dir)
	cmd.Dir = root
	enabled := "CGO_ENABLED=0"
	if cgo {
		enabled = "CGO_ENABLED=1"
	}
	cmd.Env = append(os.Environ(), "GOOS="+goos, "GOARCH=amd64", enabled, "GOFLAGS=")
	out, err := cmd.Output()
	if err != nil {
		stderr := ""
		if e, ok := err.(*exec.ExitError); ok {
			stderr = string(e.Stderr)
		}
		return nil, fmt.Errorf("list what %s links on %s: %w\n%s", dir, goos, err, stderr)
	}
	return nonEmpty(string(out)), nil
}

// linked gives a line for every banned package among those that a binary links.
func linked(dir string, packages []string, banned map[string]string) (found []string) {
	for _, p := range packages {
		for _, ban := range slices.Sorted(maps.Keys(banned)) {
			if prefixed(p, ban) {
				found = append(found, violation(dir, "links %s\n\twhy not: %s", p, banned[ban]))
			}
		}
	}
	return found
}

// outgrown compares counts with the recorded ones.
func outgrown(counts, recorded map[string]int) (found []string) {
	for _, dir := range slices.Sorted(maps.Keys(counts)) {
		switch n, was := counts[dir], recorded[dir]; {
		case was == 0:
			found = append(found, violation(dir, "links %d packages, and no count is recorded", n))
		case n*100 > was*(100+growth):
			found = append(found, violation(dir, "links %d packages, over %d %% more than the recorded %d", n, growth, was))
		}
	}
	return found
}

func readGolden(text string) (map[string]int, error) {
	counts := map[string]int{}
	for _, line := range nonEmpty(text) {
		dir, n, _ := strings.Cut(line, " ")
		v, err := strconv.Atoi(n)
		if err != nil {
			return nil, fmt.Errorf("read %s: %q: %w", golden, line, err)
		}
		counts[dir] = v
	}
	return counts, nil
}

// TestLinks asks the Go command what each binary links, on every system it is for.
func TestLinks(t *testing.T) {
	counts := map[string]int{}
	for _, b := range binaries {
		if _, err := os.Stat(filepath.Join(root, b.dir)); err != nil {
			continue // comes with a later change; TestBinaries wants every command in the list
		}
		for _, goos := range b.os {
			packages, err := deps(b.dir, goos, b.cgo)
			if err != nil {
				t.Error(err)
				continue
			}
			if goos == "linux" {
				counts[b.dir] = len(packages)
			}
			for _, v := range slices.Concat(linked(b.dir, packages, b.banned), linked(b.dir, packages, bannedFor(packages))) {
				t.Errorf("on %s: %s", goos, v)
			}
		}
	}
	if *update {
		var text strings.Builder
		for _, dir := range slices.Sorted(maps.Keys(counts)) {
			fmt.Fprintf(&text, "%s %d\n", dir, counts[dir])
		}
		if err := os.WriteFile(golden, []byte(text.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	text, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	recorded, err := readGolden(string(text))
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range outgrown(counts, recorded) {
		t.Errorf("%s\n\twhy: every package is code that somebody must trust and update; if it is meant, run go test ./cmd/internal/arch -update", v)
	}
	for dir := range recorded {
		if counts[dir] == 0 {
			t.Errorf("%s records %s, which does not exist", golden, dir)
		}
	}
}

// TestBinaries wants every command in the list above.
func TestBinaries(t *testing.T) {
	for _, p := range repository(t).packages {
		if p.within("cmd") && !p.within("cmd/internal") && p.name == "main" &&
			!slices.ContainsFunc(binaries, func(b binary) bool { return b.dir == p.dir }) {
			t.Errorf("%s: is a program of which links_test.go does not say what it may link", p.dir)
		}
	}
}

// TestLinkRules plants what TestLinks must find.
func TestLinkRules(t *testing.T) {
	for _, b := range binaries {
		for ban := range b.banned {
			planted := strings.TrimSuffix(ban, "/") + "/x/v2"
			if got := linked(b.dir, []string{"fmt", planted}, b.banned); len(got) != 1 || !strings.Contains(got[0], planted) {
				t.Errorf("%s links %s: found %q", b.dir, planted, got)
			}
		}
	}
	compare(t, outgrown(map[string]int{"a": 111, "b": 110, "c": 5}, map[string]int{"a": 100, "b": 100}),
		[]string{"a: links 111 packages, over 10 % more", "c: links 5 packages, and no count"})
	if _, err := readGolden("a x"); err == nil {
		t.Error("a golden file without a number was read")
	}
}
