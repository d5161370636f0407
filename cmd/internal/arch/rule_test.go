package arch

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
)

var update = flag.Bool("update", false, "write docs/architecture.md's table and testdata/links.golden again")

// rule is one wall. Its check gives one line for each violation, beginning with where it is.
type rule struct {
	name  string
	why   string
	check func(*tree) []string
}

func rules(e exceptions) []rule {
	return slices.Concat(importRules(), pureRules(), shapeRules(e.long), wordRules(e.backgrounds), fileRules(e.paths))
}

const root = "../../.."

func repository(t *testing.T) *tree {
	t.Helper()
	files, err := read(root)
	if err != nil {
		t.Fatal(err)
	}
	tr, err := parse(tracked(t, files))
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// TestWalls holds the repository against every rule.
func TestWalls(t *testing.T) {
	tr := repository(t)
	for _, r := range rules(ours()) {
		t.Run(r.name, func(t *testing.T) {
			for _, v := range r.check(tr) {
				t.Errorf("%s\n\twhy: %s", v, r.why)
			}
		})
	}
}

// TestPlanted holds every rule against its fixture testdata/<rule>.txtar: a small tree, with the violations that the rule must find,
// and no others, in the archive's comment. A § in a fixture is left out when it is read: so one can hold what no file of the repository
// may.
func TestPlanted(t *testing.T) {
	for _, r := range rules(exceptions{}) {
		t.Run(r.name, func(t *testing.T) {
			if r.why == "" {
				t.Error("a rule needs a reason")
			}
			a, err := txtar.ParseFile(filepath.Join("testdata", r.name+".txtar"))
			if err != nil {
				t.Fatal(err)
			}
			files := map[string][]byte{}
			for _, f := range a.Files {
				files[f.Name] = bytes.ReplaceAll(f.Data, []byte("§"), nil)
			}
			tr, err := parse(files)
			if err != nil {
				t.Fatal(err)
			}
			want := nonEmpty(strings.ReplaceAll(string(a.Comment), "§", ""))
			if len(want) == 0 {
				t.Fatal("the fixture plants no violation")
			}
			compare(t, r.check(tr), want)
		})
	}
}

// compare wants each wanted text in exactly one finding, and no finding left over.
func compare(t *testing.T, got, want []string) {
	t.Helper()
	left := slices.Clone(got)
	for _, w := range want {
		i := slices.IndexFunc(left, func(g string) bool { return strings.Contains(g, w) })
		if i < 0 {
			t.Errorf("not found: %s\nin:\n%s", w, strings.Join(got, "\n"))
			continue
		}
		left = slices.Delete(left, i, i+1)
	}
	for _, g := range left {
		t.Errorf("found, but not planted: %s", g)
	}
}

func nonEmpty(s string) []string {
	var lines []string
	for line := range strings.Lines(s) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return lines
}

// TestFixtures wants no fixture without a rule.
func TestFixtures(t *testing.T) {
	names, err := filepath.Glob("testdata/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		name := strings.TrimSuffix(filepath.Base(n), ".txtar")
		if !slices.ContainsFunc(rules(exceptions{}), func(r rule) bool { return r.name == name }) {
			t.Errorf("%s belongs to no rule", n)
		}
	}
}

// TestUpdate writes the generated files with -update.
func TestUpdate(t *testing.T) {
	if !*update {
		return
	}
	tr := repository(t)
	doc := filepath.Join(root, architecture)
	old, err := os.ReadFile(doc)
	if err != nil {
		t.Fatal(err)
	}
	text, err := replaceTable(string(old), tr)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(doc, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// violation formats a finding.
func violation(where, format string, args ...any) string {
	return where + ": " + fmt.Sprintf(format, args...)
}
