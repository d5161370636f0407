package identity_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// literals lists every string of the module's programs that matches, with the place of its first use. Tests are left out.
func literals(t *testing.T, root string, match *regexp.Regexp) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() && path != root && (strings.HasPrefix(name, ".") || name == "testdata") {
			return fs.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(f, func(n ast.Node) bool {
			lit, ok := n.(*ast.BasicLit)
			if !ok || lit.Kind != token.STRING {
				return true
			}
			if s, err := strconv.Unquote(lit.Value); err == nil && match.MatchString(s) && found[s] == "" {
				found[s] = fset.Position(lit.Pos()).String()
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// Every domain, of signatures and of hashes, is in docs/protocol.md, and the document names none that is gone.
func TestProtocolListsEveryDomain(t *testing.T) {
	root := filepath.Join("..", "..")
	text, err := os.ReadFile(filepath.Join(root, "docs", "protocol.md"))
	if err != nil {
		t.Fatal(err)
	}
	used := literals(t, root, regexp.MustCompile(`^gpufair/[a-z0-9-]+/[0-9]+$`))
	if len(used) < 10 {
		t.Fatalf("only %d domains were found: the search is broken", len(used))
	}
	listed := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `(gpufair/[a-z0-9-]+/[0-9]+)` ").FindAllStringSubmatch(string(text), -1) {
		listed[m[1]] = true
	}
	for d, at := range used {
		if !listed[d] {
			t.Errorf("%s: the domain %q has no row in docs/protocol.md: add one with its fields or inputs", at, d)
		}
	}
	for d := range listed {
		if used[d] == "" {
			t.Errorf("docs/protocol.md lists %q, which no program uses: mark it as retired outside the tables", d)
		}
	}
}

// Every conversation that market/work names has its section.
func TestProtocolListsEveryConversation(t *testing.T) {
	root := filepath.Join("..", "..")
	text, err := os.ReadFile(filepath.Join(root, "docs", "protocol.md"))
	if err != nil {
		t.Fatal(err)
	}
	f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, "market", "work", "work.go"), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	ast.Inspect(f, func(node ast.Node) bool {
		spec, ok := node.(*ast.ValueSpec)
		if !ok || len(spec.Values) != 1 || !strings.HasPrefix(spec.Names[0].Name, "Proto") {
			return true
		}
		lit, ok := spec.Values[0].(*ast.BasicLit)
		if !ok {
			return true
		}
		n++
		name, err := strconv.Unquote(lit.Value)
		if err != nil || !strings.Contains(string(text), "\n| `"+name+"` ") {
			t.Errorf("the conversation %q has no row in docs/protocol.md", name)
		}
		return true
	})
	if n < 8 {
		t.Fatalf("only %d conversations were found: the search is broken", n)
	}
}
