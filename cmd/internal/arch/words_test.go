package arch

import (
	"go/ast"
	"go/build/constraint"
	"go/token"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

func wordRules(allowed map[string]string) []rule {
	return []rule{
		{"modes", "no identifier, flag, variable or build tag outside cmd and tests makes code behave differently in a demo, a devnet or a " +
			"test: what was tested is what runs. Give it as a value of Config.", modes},
		{"environment", "settings come from cmd as values: a package that reads variables or flags of its own behaves in ways that no " +
			"signature shows.", environment},
		{"endings", "only main may end the process or begin a context: everything else must be stoppable by its caller. For what must outlive a " +
			"cancelled caller take context.WithoutCancel.", func(t *tree) []string { return endings(t, allowed) }},
		{"errors", "an error says operation and subject, never \"failed to\": everything that is an error failed.", errorWords},
		{"skips", "a test that skips itself proves nothing on the machine that needed it: make it run anywhere, or do not write it.", skips},
	}
}

// modeWords are parts of identifiers that tell of a program which knows where it runs.
var modeWords = []string{"demo", "devnet", "testing", "testonly", "mock", "fake"}

// modePhrases are such words in a row.
var modePhrases = []string{"for test", "for tests", "in test", "in tests", "is test", "test mode", "under test"}

// tags are the build tags that say something of the platform only. GOOS and GOARCH names come on top.
var tags = []string{"unix", "cgo", "ignore"}

var platforms = regexp.MustCompile(`^(linux|darwin|windows|freebsd|netbsd|openbsd|amd64|arm64|gc|go1\.\d+)$`)

func modes(t *tree) (found []string) {
	for _, p := range t.packages {
		if p.within("cmd") || p.supports() {
			continue
		}
		for _, f := range p.files {
			found = append(found, buildTags(t, f)...)
			if !f.test {
				found = append(found, modeNames(t, f)...)
			}
		}
	}
	return found
}

func buildTags(t *tree, f *file) (found []string) {
	for _, g := range f.ast.Comments {
		for _, c := range g.List {
			if c.Pos() > f.ast.Package || !constraint.IsGoBuild(c.Text) {
				continue
			}
			e, err := constraint.Parse(c.Text)
			if err != nil {
				found = append(found, violation(t.at(c.Pos()), "the build constraint does not parse: %v", err))
				continue
			}
			for _, tag := range strings.FieldsFunc(e.String(), func(r rune) bool { return strings.ContainsRune("()!&| ", r) }) {
				if !slices.Contains(tags, tag) && !platforms.MatchString(tag) {
					found = append(found, violation(t.at(c.Pos()), "has the build tag %q", tag))
				}
			}
		}
	}
	return found
}

func modeNames(t *tree, f *file) (found []string) {
	ast.Inspect(f.ast, func(n ast.Node) bool {
		id, ok := n.(*ast.Ident)
		if !ok || (id.Obj != nil && id.Obj.Pos() != id.Pos()) { // declarations and foreign names, not each use
			return true
		}
		words := split(id.Name)
		phrase := " " + strings.Join(words, " ") + " "
		for _, w := range modeWords {
			if slices.Contains(words, w) {
				found = append(found, violation(t.at(id.Pos()), "the identifier %s says %q", id.Name, w))
			}
		}
		for _, w := range modePhrases {
			if strings.Contains(phrase, " "+w+" ") {
				found = append(found, violation(t.at(id.Pos()), "the identifier %s says %q", id.Name, w))
			}
		}
		return true
	})
	return found
}

// split cuts an identifier into its words, in lower case: "HTTPForTest" is http, for, test.
func split(name string) []string {
	var (
		words []string
		word  []rune
	)
	end := func() {
		if len(word) > 0 {
			words = append(words, strings.ToLower(string(word)))
			word = nil
		}
	}
	runes := []rune(name)
	for i, r := range runes {
		switch {
		case r == '_' || unicode.IsDigit(r):
			end()
			continue
		case unicode.IsUpper(r) && i > 0 && (unicode.IsLower(runes[i-1]) || (i+1 < len(runes) && unicode.IsLower(runes[i+1]))):
			end()
		}
		word = append(word, r)
	}
	end()
	return words
}

func environment(t *tree) (found []string) {
	for _, p := range t.packages {
		if p.within("cmd") || p.supports() {
			continue
		}
		for _, f := range p.code() {
			f.uses("os", []string{"Getenv", "LookupEnv", "ExpandEnv"}, func(pos token.Pos, name string) {
				found = append(found, violation(t.at(pos), "uses os.%s", name))
			})
			f.uses("syscall", []string{"Getenv"}, func(pos token.Pos, name string) {
				found = append(found, violation(t.at(pos), "uses syscall.%s", name))
			})
			if slices.Contains(f.imports(), "flag") {
				found = append(found, violation(f.path, "imports flag"))
			}
		}
	}
	return found
}

func endings(t *tree, allowed map[string]string) (found []string) {
	needed := map[string]bool{}
	for _, p := range t.packages {
		if p.within("cmd") || p.supports() {
			continue
		}
		for _, f := range p.code() {
			within := func(pos token.Pos) string { return enclosing(p, f, pos) }
			f.uses("context", []string{"Background", "TODO"}, func(pos token.Pos, name string) {
				needed[within(pos)] = true
				if allowed[within(pos)] == "" {
					found = append(found, violation(t.at(pos), "uses context.%s in %s", name, within(pos)))
				}
			})
			f.uses("os", []string{"Exit"}, func(pos token.Pos, name string) {
				found = append(found, violation(t.at(pos), "uses os.%s", name))
			})
			f.uses("log", []string{"Fatal", "Fatalf", "Fatalln"}, func(pos token.Pos, name string) {
				found = append(found, violation(t.at(pos), "uses log.%s", name))
			})
		}
	}
	for _, key := range slices.Sorted(maps.Keys(allowed)) {
		if !needed[key] {
			found = append(found, violation(key, "stands in exceptions_test.go, but makes no context"))
		}
	}
	return found
}

// enclosing is the name of the function at pos.
func enclosing(p *pkg, f *file, pos token.Pos) string {
	for _, d := range f.ast.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Pos() <= pos && pos < fn.End() {
			return funcName(p, fn)
		}
	}
	return p.dir
}

var failed = regexp.MustCompile(`(?i)\bfailed to\b`)

func errorWords(t *tree) (found []string) {
	for _, p := range t.packages {
		for _, f := range p.code() {
			ast.Inspect(f.ast, func(n ast.Node) bool {
				if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING && failed.MatchString(lit.Value) {
					found = append(found, violation(t.at(lit.Pos()), "says %s", lit.Value))
				}
				return true
			})
		}
	}
	return found
}

func skips(t *tree) (found []string) {
	for _, p := range t.packages {
		for _, f := range p.files {
			if !f.test && !p.supports() {
				continue
			}
			ast.Inspect(f.ast, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok {
					return true
				}
				s, ok := call.Fun.(*ast.SelectorExpr)
				if ok && slices.Contains([]string{"Skip", "Skipf", "SkipNow"}, s.Sel.Name) && isTestVariable(s.X) {
					found = append(found, violation(t.at(call.Pos()), "calls %s", s.Sel.Name))
				}
				return true
			})
		}
	}
	return found
}

// isTestVariable says that e is a parameter of type *testing.T, B or F, or testing.TB. Skip of a rapid.T only draws again.
func isTestVariable(e ast.Expr) bool {
	id, ok := e.(*ast.Ident)
	if !ok || id.Obj == nil {
		return false
	}
	field, ok := id.Obj.Decl.(*ast.Field)
	if !ok {
		return false
	}
	typ := field.Type
	if star, ok := typ.(*ast.StarExpr); ok {
		typ = star.X
	}
	return strings.HasPrefix(typeText(typ), "testing.")
}
