package arch

import (
	"bytes"
	"go/ast"
	"go/token"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
)

const (
	maxFunction = 70  // lines, from func to its closing brace
	maxFile     = 500 // lines
	minDoc      = 80  // characters of a package comment: less cannot say what it owns and what it refuses to know
)

func shapeRules(allowed map[string]string) []rule {
	return []rule{
		{"docs", "a package is one noun; its comment, in one file, says what it owns and what it refuses to know.", docs},
		{"sizes", "beauty is decided in the tail: a function over 70 lines or a file over 500 needs its reason in exceptions_test.go.", func(t *tree) []string {
			return sizes(t, allowed)
		}},
		{"init", "an init function runs before main can say no, in an order that nobody reads: construct things in main.", initRule},
		{"names", "a package named after a kind of thing collects what belongs elsewhere: name it after what a reader looks for.", names},
		{"variables", "a package variable that changes is a global: two agents in one process, or two tests, would share it.", variables},
	}
}

// refuses are the words by which a package comment sets a limit.
var refuses = regexp.MustCompile(`(?i)\b(no|not|none|nothing|never|neither|refuses|only|without|alone|cannot)\b`)

func docs(t *tree) (found []string) {
	for _, p := range t.packages {
		files := p.code()
		if len(files) == 0 {
			files = p.files
		}
		var docs []*ast.CommentGroup
		for _, f := range files {
			if f.ast.Doc != nil {
				docs = append(docs, f.ast.Doc)
			}
		}
		if len(docs) != 1 {
			found = append(found, violation(p.dir, "has %d package comments, not one", len(docs)))
			continue
		}
		text := docs[0].Text()
		begin := "Package " + p.name + " "
		if p.name == "main" {
			begin = "Command " + path.Base(p.dir) + " "
		}
		switch {
		case !strings.HasPrefix(text, begin):
			found = append(found, violation(t.at(docs[0].Pos()), "the package comment does not begin with %q", begin))
		case len(text) < minDoc || !refuses.MatchString(text):
			found = append(found, violation(t.at(docs[0].Pos()), "the package comment does not say what the package refuses to know or do"))
		}
	}
	return found
}

func sizes(t *tree, allowed map[string]string) (found []string) {
	needed := map[string]bool{}
	grown := func(where, key string, lines, limit int) {
		if lines <= limit {
			return
		}
		needed[key] = true
		if allowed[key] == "" {
			found = append(found, violation(where, "%s has %d lines, over %d", key, lines, limit))
		}
	}
	for _, p := range t.packages {
		for _, f := range p.files {
			if ast.IsGenerated(f.ast) {
				continue
			}
			grown(f.path, f.path, bytes.Count(f.src, []byte("\n")), maxFile)
			for _, d := range f.ast.Decls {
				if fn, ok := d.(*ast.FuncDecl); ok {
					lines := t.fset.Position(fn.End()).Line - t.fset.Position(fn.Pos()).Line + 1
					grown(t.at(fn.Pos()), funcName(p, fn), lines, maxFunction)
				}
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(allowed)) {
		if !needed[key] {
			found = append(found, violation(key, "stands in exceptions_test.go, but is not over a limit"))
		}
	}
	return found
}

// funcName is "dir.Func" or "dir.Type.Method".
func funcName(p *pkg, fn *ast.FuncDecl) string {
	name := fn.Name.Name
	if fn.Recv != nil && len(fn.Recv.List) == 1 {
		typ := fn.Recv.List[0].Type
		for {
			switch x := typ.(type) {
			case *ast.StarExpr:
				typ = x.X
				continue
			case *ast.IndexExpr:
				typ = x.X
				continue
			case *ast.IndexListExpr:
				typ = x.X
				continue
			case *ast.Ident:
				name = x.Name + "." + name
			}
			break
		}
	}
	return p.dir + "." + name
}

func initRule(t *tree) (found []string) {
	for _, p := range t.packages {
		for _, f := range p.files {
			for _, d := range f.ast.Decls {
				if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
					found = append(found, violation(t.at(fn.Pos()), "declares func init"))
				}
			}
		}
	}
	return found
}

var emptyNames = []string{"util", "utils", "common", "helpers", "types", "misc", "base", "shared", "lib", "tools"}

func names(t *tree) (found []string) {
	for _, p := range t.packages {
		for _, n := range []string{p.name, path.Base(p.dir)} {
			if slices.Contains(emptyNames, n) {
				found = append(found, violation(p.dir, "is named %q", n))
				break
			}
		}
		if base := path.Base(p.dir); p.dir != "." && p.name != base && p.name != "main" {
			found = append(found, violation(p.dir, "holds package %s: directory and package have one name", p.name))
		}
	}
	return found
}

// changing are types whose values change by their own methods.
var changing = regexp.MustCompile(`^(sync\.(Mutex|RWMutex|Map|Pool|WaitGroup|Once)|atomic\.\w+|(bytes\.Buffer)|chan\b.*)$`)

// variables finds package variables that code assigns to, takes the address of, or whose type is made to change. It looks at names in
// one package, so it sees what an ordinary slip looks like, not what a determined author can hide.
func variables(t *tree) (found []string) {
	for _, p := range t.packages {
		globals := map[string]*ast.ValueSpec{}
		for _, f := range p.code() {
			for _, d := range f.ast.Decls {
				g, ok := d.(*ast.GenDecl)
				if !ok || g.Tok != token.VAR {
					continue
				}
				for _, s := range g.Specs {
					v := s.(*ast.ValueSpec)
					for _, n := range v.Names {
						globals[n.Name] = v
						if v.Type != nil && changing.MatchString(typeText(v.Type)) {
							found = append(found, violation(t.at(n.Pos()), "the package variable %s is a %s", n.Name, typeText(v.Type)))
						}
					}
				}
			}
		}
		for _, f := range p.code() {
			for _, d := range f.ast.Decls {
				if fn, ok := d.(*ast.FuncDecl); ok && fn.Body != nil {
					found = append(found, changes(t, fn, globals)...)
				}
			}
		}
	}
	return found
}

func typeText(e ast.Expr) string {
	switch x := e.(type) {
	case *ast.SelectorExpr:
		return typeText(x.X) + "." + x.Sel.Name
	case *ast.Ident:
		return x.Name
	case *ast.IndexExpr:
		return typeText(x.X)
	case *ast.ChanType:
		return "chan"
	}
	return ""
}

func changes(t *tree, fn *ast.FuncDecl, globals map[string]*ast.ValueSpec) (found []string) {
	global := func(e ast.Expr) *ast.Ident {
		for {
			switch x := e.(type) {
			case *ast.IndexExpr:
				e = x.X
				continue
			case *ast.SelectorExpr:
				e = x.X
				continue
			case *ast.ParenExpr:
				e = x.X
				continue
			case *ast.Ident:
				// The parser resolves names within a file: an unresolved one may be a global of another file.
				if spec := globals[x.Name]; x.Name != "_" && spec != nil && (x.Obj == nil || x.Obj.Decl == spec) {
					return x
				}
			}
			return nil
		}
	}
	report := func(e ast.Expr, how string) {
		if id := global(e); id != nil {
			found = append(found, violation(t.at(e.Pos()), "%s the package variable %s", how, id.Name))
		}
	}
	ast.Inspect(fn.Body, func(n ast.Node) bool {
		switch x := n.(type) {
		case *ast.AssignStmt:
			if x.Tok != token.DEFINE {
				for _, l := range x.Lhs {
					report(l, "assigns to")
				}
			}
		case *ast.IncDecStmt:
			report(x.X, "changes")
		case *ast.CallExpr:
			if id, ok := x.Fun.(*ast.Ident); ok && (id.Name == "delete" || id.Name == "clear") && id.Obj == nil && len(x.Args) > 0 {
				report(x.Args[0], "changes")
			}
		}
		return true
	})
	return found
}
