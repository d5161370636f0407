package arch

import (
	"bytes"
	"fmt"
	"go/doc"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/mod/modfile"
)

const (
	architecture = "docs/architecture.md"
	tableBegin   = "<!-- packages: written by go test ./cmd/internal/arch -update -->"
	tableEnd     = "<!-- /packages -->"

	maxTracked = 1 << 20 // bytes; anything larger is a build output or belongs elsewhere
)

func fileRules(allowed map[string]string) []rule {
	return []rule{
		{"module", "a replace or exclude in go.mod holds for us alone: whoever imports or installs the module gets something else.", moduleRule},
		{"architecture", "the page that newcomers read first lists every package there is, and none that is not.", architectureRule},
		{"portable", "a fresh clone must build anywhere: no path of one machine and no host of one registry or mirror in the repository.", func(t *tree) []string {
			return portable(t, allowed)
		}},
		{"outputs", "build outputs do not belong in history, where they stay for ever.", outputs},
	}
}

func moduleRule(t *tree) (found []string) {
	for _, name := range slices.Sorted(maps.Keys(t.text)) {
		if filepath.Base(name) != "go.mod" && !strings.HasSuffix(name, ".mod") || strings.Contains(name, "testdata/") {
			continue
		}
		f, err := modfile.Parse(name, t.text[name], nil)
		if err != nil {
			found = append(found, violation(name, "does not parse: %v", err))
			continue
		}
		for _, r := range f.Replace {
			found = append(found, violation(fmt.Sprintf("%s:%d", name, r.Syntax.Start.Line), "replaces %s", r.Old.Path))
		}
		for _, e := range f.Exclude {
			found = append(found, violation(fmt.Sprintf("%s:%d", name, e.Syntax.Start.Line), "excludes %s", e.Mod.Path))
		}
		if name == "go.mod" && (f.Module == nil || f.Module.Mod.Path != module) {
			found = append(found, violation(name, "is not the module %s", module))
		}
	}
	return found
}

var tableRow = regexp.MustCompile("(?m)^\\| `([^`]+)` \\|")

func architectureRule(t *tree) (found []string) {
	text, ok := t.text[architecture]
	if !ok {
		return []string{violation(architecture, "does not exist")}
	}
	_, table, ok := strings.Cut(string(text), tableBegin)
	table, _, closed := strings.Cut(table, tableEnd)
	if !ok || !closed {
		return []string{violation(architecture, "has no table between %s and %s", tableBegin, tableEnd)}
	}
	listed := map[string]bool{}
	for _, m := range tableRow.FindAllStringSubmatch(table, -1) {
		listed[m[1]] = true
		if t.find(m[1]) == nil {
			found = append(found, violation(architecture, "lists %s, which does not exist; run go test ./cmd/internal/arch -update", m[1]))
		}
	}
	for _, p := range t.packages {
		if !listed[p.dir] {
			found = append(found, violation(architecture, "does not list %s; run go test ./cmd/internal/arch -update", p.dir))
		}
	}
	return found
}

// replaceTable writes the table of packages: the first sentence of each comment, without "Package x".
func replaceTable(text string, t *tree) (string, error) {
	before, rest, ok := strings.Cut(text, tableBegin)
	_, after, closed := strings.Cut(rest, tableEnd)
	if !ok || !closed {
		return "", fmt.Errorf("write the table: %s has no lines %s and %s", architecture, tableBegin, tableEnd)
	}
	var b strings.Builder
	b.WriteString(before + tableBegin + "\n\n| package | what it is |\n|---|---|\n")
	for _, p := range t.packages {
		sentence := ""
		for _, f := range p.files {
			if f.ast.Doc != nil {
				sentence = new(doc.Package).Synopsis(f.ast.Doc.Text())
				break
			}
		}
		for _, prefix := range []string{"Package " + p.name + " ", "Command " + filepath.Base(p.dir) + " "} {
			sentence = strings.TrimPrefix(sentence, prefix)
		}
		fmt.Fprintf(&b, "| `%s` | %s |\n", p.dir, strings.ReplaceAll(sentence, "|", "\\|"))
	}
	b.WriteString("\n" + tableEnd + after)
	return b.String(), nil
}

// unportable are texts that tie the repository to one machine or one registry. They are written in two parts, or this file would
// break its own rule.
var unportable = []*regexp.Regexp{
	regexp.MustCompile(`(^|[\s"'=:(` + "`" + `])/(work` + `|root)/\w`),
	regexp.MustCompile(`\b(docker` + `\.io|ghcr` + `\.io|quay` + `\.io|gcr` + `\.io|nvcr` + `\.io|registry\.k8s` + `\.io)\b`),
	regexp.MustCompile(`(?i)\b(artifact` + `ory|nexus` + `3)\b|\bGOPROXY=` + `http|proxy\.golang` + `\.org`),
}

func portable(t *tree, allowed map[string]string) (found []string) {
	for _, name := range slices.Sorted(maps.Keys(t.text)) {
		if allowed[name] != "" || name == "go.sum" || bytes.IndexByte(t.text[name], 0) >= 0 {
			continue
		}
		for i, line := range bytes.Split(t.text[name], []byte("\n")) {
			for _, re := range unportable {
				if m := re.Find(line); m != nil {
					found = append(found, violation(fmt.Sprintf("%s:%d", name, i+1), "holds %q", bytes.TrimSpace(m)))
				}
			}
		}
	}
	return found
}

// magics begin ELF, Mach-O and PE files, and archives.
var magics = []string{"\x7fELF", "\xcf\xfa\xed\xfe", "\xca\xfe\xba\xbe", "MZ\x90", "!<arch>\n", "PK\x03\x04", "\x1f\x8b"}

func outputs(t *tree) (found []string) {
	for _, name := range slices.Sorted(maps.Keys(t.text)) {
		data := t.text[name]
		if len(data) > maxTracked {
			found = append(found, violation(name, "has %d bytes, over %d", len(data), maxTracked))
		}
		for _, m := range magics {
			if bytes.HasPrefix(data, []byte(m)) {
				found = append(found, violation(name, "is a binary or an archive"))
			}
		}
	}
	return found
}

// tracked is what git knows or would add, for the rules about the repository's files; all files if there is no git, as in a source
// archive.
func tracked(t *testing.T, all map[string][]byte) map[string][]byte {
	t.Helper()
	cmd := exec.Command("git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "GIT_OPTIONAL_LOCKS=0")
	out, err := cmd.Output()
	if err != nil {
		t.Logf("no list of tracked files, looking at all: %v", err)
		return all
	}
	some := map[string][]byte{}
	for name := range strings.SplitSeq(string(out), "\x00") {
		if data, ok := all[name]; ok {
			some[name] = data
		}
	}
	return some
}
