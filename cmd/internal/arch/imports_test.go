package arch

import (
	"slices"
	"strings"
)

// level is how high a package stands; it may import what stands lower, and its own level as the other rules allow.
type level int

const (
	contracts     level = iota + 1 // p2p, wire, identity, money: what everybody speaks
	domains                        // market, ledger, benchmark
	conversations                  // what two peers say to each other
	agents                         // provider and renter
	commands                       // cmd
)

var levelNames = map[level]string{
	contracts: "a contract", domains: "a domain", conversations: "a conversation", agents: "an agent", commands: "a command",
}

func levelOf(dir string) level {
	top, _, _ := strings.Cut(dir, "/")
	switch dir {
	case "p2p", "p2p/wire", "p2p/identity", "ledger/money":
		return contracts
	case "market/announce", "market/negotiate", "ledger/settle", "ledger/local", "p2p/blob", "p2p/tunnel":
		return conversations
	}
	switch top {
	case "cmd":
		return commands
	case "provider", "renter":
		return agents
	case "p2p":
		return contracts
	default:
		return domains
	}
}

// adapters fulfil a contract with an outside system. The list is what of our own they may import.
var adapters = map[string][]string{
	"p2p/libp2p":          {"p2p", "p2p/identity", "p2p/wire"},
	"ledger/badger":       {"ledger/kv"},
	"benchmark/gpu":       {"benchmark", "benchmark/suite", "benchmark/probe"},
	"benchmark/opencl":    {"benchmark", "benchmark/suite"},
	"provider/containerd": {"provider"},
	"provider/fetch":      {"provider", "provider/reach"},
	"provider/jobnet":     {"provider", "provider/reach"}, // one judge of addresses for jobs and for what is fetched for them
	"provider/mounts":     {"provider"},
	"provider/presence":   {"provider"},
}

// soleImporters says who alone may import an outside system, as directories ("cmd/" is everything below cmd). "except" names single
// packages of the system that a second importer needs.
var soleImporters = []struct {
	system string
	by     []string
	except map[string][]string
}{
	{system: "github.com/dgraph-io/", by: []string{"ledger/badger"}},
	{system: "github.com/libp2p/", by: []string{"p2p/libp2p"}, except: map[string][]string{
		"p2p/identity": {"github.com/libp2p/go-libp2p/core/crypto", "github.com/libp2p/go-libp2p/core/peer", "github.com/libp2p/go-libp2p/core/record"},
	}},
	{system: "github.com/multiformats/", by: []string{"p2p/libp2p"}},
	{system: "github.com/containerd/containerd", by: []string{"provider/containerd"}},
	{system: "github.com/containerd/typeurl", by: []string{"provider/containerd"}},
	{system: "github.com/containerd/errdefs", by: []string{"provider/containerd"}},
	{system: "github.com/opencontainers/runtime-spec", by: []string{"provider/sandbox", "provider/containerd"}},
	{system: "tags.cncf.io/container-device-interface", by: []string{"provider/containerd", "benchmark/gpu"}},
	{system: "github.com/NVIDIA/", by: []string{"benchmark/gpu"}},
	{system: "github.com/ebitengine/purego", by: []string{"benchmark/gpu", "benchmark/opencl", "benchmark/suite"}},
	{system: "gvisor.dev/gvisor", by: []string{"provider/jobnet"}},
	{system: "fyne.io/systray", by: []string{"cmd/gpufair-tray"}},
	{system: "github.com/google/go-containerregistry", by: []string{"renter/image"}},
	{system: "github.com/godbus/dbus", by: []string{"provider/presence"}},
	{system: "github.com/jezek/xgb", by: []string{"provider/presence"}},
	{system: "github.com/spf13/", by: []string{"cmd/"}},
	{system: "github.com/pelletier/go-toml", by: []string{"cmd/"}},
	{system: "github.com/schollz/progressbar", by: []string{"cmd/"}},
	{system: "github.com/lmittmann/tint", by: []string{"cmd/"}},
	{system: "github.com/coreos/go-systemd", by: []string{"cmd/"}},
}

// forTests are libraries that no program links.
var forTests = []string{
	"testing", "pgregory.net/rapid", "go.uber.org/goleak", "github.com/google/go-cmp", "github.com/rogpeppe/go-internal/testscript",
	"github.com/rogpeppe/go-internal/txtar", "github.com/rogpeppe/go-internal/gotooltest",
	"github.com/marcopolo/simnet", "github.com/libp2p/go-libp2p/x/simlibp2p",
}

func importRules() []rule {
	return []rule{
		{"directions", "imports go downward only: cmd, agents, conversations, domains, contracts. " +
			"What is imported from above cannot be tested or replaced alone.", directions},
		{"wings", "the wings meet in few places: provider and renter are strangers to each other; ledger knows no market and no GPU; market " +
			"takes from ledger only money and history and from benchmark only its root; benchmark knows neither; p2p carries bytes for all " +
			"and knows none of them.", wings},
		{"adapters", "an adapter imports only the contract it fulfils and is chosen only in cmd, so that an outside system can be replaced " +
			"in one place.", adapterRule},
		{"systems", "an outside system has one importer, so that its next version costs one package.", systems},
		{"testonly", "what exists for tests must not be linked into a program: packages that end in \"test\" and test libraries are for test " +
			"files and for each other.", testOnly},
		{"standard", "the local API's types and the init of every job import the standard library only: the tray stays small, and what runs " +
			"as PID 1 in a stranger's container can be read in one sitting.", standard},
		{"cgo", "cgo lives in benchmark/gpu and nowhere else, so that everything but the measuring child builds without a C compiler.", cgoRule},
	}
}

// edges calls yield for every import of one of our packages by a file that is no test.
func (t *tree) edges(yield func(p *pkg, f *file, to string)) {
	for _, p := range t.packages {
		for _, f := range p.code() {
			for _, i := range f.imports() {
				if to, ok := internal(i); ok {
					yield(p, f, to)
				}
			}
		}
	}
}

func directions(t *tree) (found []string) {
	t.edges(func(p *pkg, f *file, to string) {
		from, into := levelOf(p.dir), levelOf(to)
		// An adapter and a package for tests have rules of their own.
		if into > from && !p.supports() {
			found = append(found, violation(f.path, "%s (%s) imports %s (%s)", p.dir, levelNames[from], to, levelNames[into]))
		}
		if from == conversations && into == conversations && p.dir != to && wing(p.dir) != wing(to) {
			found = append(found, violation(f.path, "the conversation %s imports the conversation %s of another wing", p.dir, to))
		}
	})
	return found
}

func wing(dir string) string {
	top, _, _ := strings.Cut(dir, "/")
	return top
}

// forbidden says why the package from may not import to, or "".
func forbidden(from, to string) string {
	f, t := wing(from), wing(to)
	switch {
	case f == "provider" && t == "renter", f == "renter" && t == "provider":
		return "provider and renter never import each other"
	case f == "ledger" && t == "market":
		return "nothing in ledger imports market"
	case f == "ledger" && t == "benchmark":
		return "ledger knows no GPU"
	case f == "market" && t == "ledger" && to != "ledger/money" && to != "ledger/history":
		return "market takes from ledger only money and history"
	case f == "market" && t == "benchmark" && to != "benchmark":
		return "market takes from benchmark only the names of figures in its root"
	case f == "benchmark" && (t == "market" || t == "ledger"):
		return "benchmark imports neither market nor ledger"
	case f == "p2p" && t != "p2p" && t != "cmd":
		return "p2p knows no other wing"
	case t == "cmd" && f != "cmd":
		return "nothing imports cmd"
	}
	return ""
}

func wings(t *tree) (found []string) {
	t.edges(func(p *pkg, f *file, to string) {
		if why := forbidden(p.dir, to); why != "" {
			found = append(found, violation(f.path, "%s imports %s: %s", p.dir, to, why))
		}
	})
	return found
}

func adapterRule(t *tree) (found []string) {
	t.edges(func(p *pkg, f *file, to string) {
		if allowed, ok := adapters[adapterOf(p.dir)]; ok && adapterOf(to) != adapterOf(p.dir) && !slices.Contains(allowed, to) {
			found = append(found, violation(f.path, "the adapter %s imports %s; it may import only %s", p.dir, to, strings.Join(allowed, ", ")))
		}
		if a := adapterOf(to); a != "" && a != adapterOf(p.dir) && wing(p.dir) != "cmd" {
			found = append(found, violation(f.path, "%s imports the adapter %s; only cmd may", p.dir, to))
		}
	})
	return found
}

// adapterOf is the adapter that dir is or lies in, or "".
func adapterOf(dir string) string {
	for a := range adapters {
		if within(dir, a) {
			return a
		}
	}
	return ""
}

func systems(t *tree) (found []string) {
	for _, p := range t.packages {
		for _, f := range p.code() {
			for _, i := range f.imports() {
				for _, s := range soleImporters {
					if !prefixed(i, s.system) || slices.ContainsFunc(s.by, func(d string) bool { return p.within(strings.TrimSuffix(d, "/")) }) ||
						slices.Contains(s.except[p.dir], i) {
						continue
					}
					found = append(found, violation(f.path, "%s imports %s, which only %s may", p.dir, i, strings.Join(s.by, ", ")))
				}
			}
		}
	}
	return found
}

func testOnly(t *tree) (found []string) {
	for _, p := range t.packages {
		if p.supports() {
			continue
		}
		for _, f := range p.code() {
			for _, i := range f.imports() {
				to, ours := internal(i)
				switch {
				case ours && servesTests(to):
					found = append(found, violation(f.path, "imports %s, which serves tests", to))
				case slices.ContainsFunc(forTests, func(lib string) bool { return prefixed(i, lib) }):
					found = append(found, violation(f.path, "imports %s, which serves tests", i))
				}
			}
		}
	}
	return found
}

// onlyStandard are the packages that import the standard library and each other only. p2p/local is the socket that both local APIs
// share.
var onlyStandard = []string{"provider/control/api", "renter/control/api", "p2p/local", "cmd/gpufair-init"}

func standard(t *tree) (found []string) {
	for _, p := range t.packages {
		if !slices.Contains(onlyStandard, p.dir) {
			continue
		}
		for _, f := range p.code() {
			for _, i := range f.imports() {
				to, ours := internal(i)
				if !isStandard(i) && (!ours || !slices.Contains(onlyStandard, to)) {
					found = append(found, violation(f.path, "%s imports %s, which is not of the standard library", p.dir, i))
				}
			}
		}
	}
	return found
}

// isStandard says that a path has no dot in its first element, as the Go command itself tells it.
func isStandard(importPath string) bool {
	first, _, _ := strings.Cut(importPath, "/")
	return !strings.Contains(first, ".")
}

func cgoRule(t *tree) (found []string) {
	for _, p := range t.packages {
		if p.within("benchmark/gpu") {
			continue
		}
		for _, f := range p.files {
			if slices.Contains(f.imports(), "C") {
				found = append(found, violation(f.path, "imports \"C\""))
			}
		}
	}
	return found
}
