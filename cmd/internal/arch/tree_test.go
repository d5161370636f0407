package arch

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const module = "github.com/gpufair/gpufair"

// tree is the source of a module as the rules see it: parsed, never built. All build tags are seen at once.
type tree struct {
	fset     *token.FileSet
	packages []*pkg            // by directory
	text     map[string][]byte // every file by its slash path, Go or not
}

// pkg is the files of one directory.
type pkg struct {
	dir   string // "ledger/money"
	name  string // of its non-test files, or of its tests if it has only those
	files []*file
}

type file struct {
	path string
	test bool
	ast  *ast.File
	src  []byte
}

// code is the files that are no tests.
func (p *pkg) code() []*file {
	return slices.DeleteFunc(slices.Clone(p.files), func(f *file) bool { return f.test })
}

// supports says that the package only serves tests, as the standard library's httptest does: its name, or that of a directory above
// it, ends in "test".
func (p *pkg) supports() bool { return servesTests(p.dir) }

func servesTests(dir string) bool {
	return slices.ContainsFunc(strings.Split(dir, "/"), func(part string) bool { return strings.HasSuffix(part, "test") })
}

// within says that the package is dir or lies under it.
func (p *pkg) within(dir string) bool { return within(p.dir, dir) }

func within(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }

// imports are the import paths of a file.
func (f *file) imports() []string {
	var paths []string
	for _, i := range f.ast.Imports {
		if s, err := strconv.Unquote(i.Path.Value); err == nil {
			paths = append(paths, s)
		}
	}
	return paths
}

// internal is the directory of an import of our own module.
func internal(importPath string) (dir string, ok bool) {
	if importPath == module {
		return ".", true
	}
	return strings.CutPrefix(importPath, module+"/")
}

// qualifier is the name under which f knows the package importPath: "" if it does not import it.
func (f *file) qualifier(importPath string) string {
	for _, i := range f.ast.Imports {
		if s, _ := strconv.Unquote(i.Path.Value); s != importPath {
			continue
		}
		if i.Name != nil {
			return i.Name.Name
		}
		name := path.Base(importPath)
		if importPath == "math/rand/v2" {
			name = "rand"
		}
		return name
	}
	return ""
}

// uses calls yield for every use of one of names from the package importPath, called or only named.
func (f *file) uses(importPath string, names []string, yield func(pos token.Pos, name string)) {
	q := f.qualifier(importPath)
	if q == "" || q == "_" {
		return
	}
	ast.Inspect(f.ast, func(n ast.Node) bool {
		s, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if x, ok := s.X.(*ast.Ident); ok && x.Name == q && x.Obj == nil && slices.Contains(names, s.Sel.Name) {
			yield(s.Pos(), s.Sel.Name)
		}
		return true
	})
}

// at is a position as "dir/file.go:12".
func (t *tree) at(pos token.Pos) string {
	p := t.fset.Position(pos)
	return fmt.Sprintf("%s:%d", p.Filename, p.Line)
}

// parse makes a tree of files by slash path.
func parse(files map[string][]byte) (*tree, error) {
	t := &tree{fset: token.NewFileSet(), text: files}
	byDir := map[string]*pkg{}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if !strings.HasSuffix(name, ".go") || strings.Contains("/"+name, "/testdata/") {
			continue
		}
		a, err := parser.ParseFile(t.fset, name, files[name], parser.ParseComments)
		if err != nil {
			return nil, fmt.Errorf("parse %s: %w", name, err)
		}
		dir := path.Dir(name)
		p := byDir[dir]
		if p == nil {
			p = &pkg{dir: dir}
			byDir[dir] = p
		}
		f := &file{path: name, test: strings.HasSuffix(name, "_test.go"), ast: a, src: files[name]}
		if !f.test || p.name == "" {
			p.name = strings.TrimSuffix(a.Name.Name, "_test")
		}
		p.files = append(p.files, f)
	}
	for _, dir := range slices.Sorted(maps.Keys(byDir)) {
		t.packages = append(t.packages, byDir[dir])
	}
	return t, nil
}

// read reads the module's files below root, but for what git ignores.
func read(root string) (map[string][]byte, error) {
	files := map[string][]byte{}
	err := filepath.WalkDir(root, func(full string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, full)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if d.IsDir() {
			if slices.Contains([]string{".git", "bin", "dist", "demo-out"}, rel) {
				return fs.SkipDir
			}
			return nil
		}
		if !d.Type().IsRegular() {
			return nil
		}
		data, err := os.ReadFile(full)
		if err != nil {
			return err
		}
		files[rel] = data
		return nil
	})
	return files, err
}

// find is the package in dir, or nil.
func (t *tree) find(dir string) *pkg {
	for _, p := range t.packages {
		if p.dir == dir {
			return p
		}
	}
	return nil
}

// prefixed says that an import path is prefix or lies under it, or under a versioned or hyphenated sibling of it
// ("github.com/x/badger" covers "github.com/x/badger/v4").
func prefixed(importPath, prefix string) bool {
	if strings.HasSuffix(prefix, "/") || strings.HasSuffix(prefix, "-") {
		return strings.HasPrefix(importPath, prefix)
	}
	return within(importPath, prefix)
}
