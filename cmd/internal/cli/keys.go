package cli

import (
	"encoding"
	"fmt"
	"reflect"
	"strings"

	"github.com/pelletier/go-toml/v2/unstable"
)

// key is one key of a config struct.
type key struct {
	name string // dotted
	leaf bool   // a variable or --set may give it: no table, and nothing in a list of tables
	list bool   // of plain values
	text bool   // its type, or that of its elements, reads text: an amount, a duration, a size
	want string // what its value must be, for people
}

// env is the variable that overrides the key.
func (k key) env() string {
	return envPrefix + strings.ToUpper(strings.NewReplacer(".", "_", "-", "_").Replace(k.name))
}

// forms are the TOML values that a text from outside may mean, the likeliest first: as it is, a list of texts, a text.
func (k key) forms(text string) []string {
	switch {
	case !k.list && k.text:
		return []string{quote(text)}
	case !k.list:
		return []string{text, quote(text)}
	}
	items := []string{}
	for item := range strings.SplitSeq(text, ",") {
		if item = strings.TrimSpace(item); item != "" {
			items = append(items, item)
		}
	}
	quoted := make([]string, len(items))
	for i, item := range items {
		quoted[i] = quote(item)
	}
	return []string{text, "[" + strings.Join(items, ",") + "]", "[" + strings.Join(quoted, ",") + "]"}
}

// quote writes a TOML basic string.
func quote(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteString(`\` + string(r))
		case r < ' ' || r == 0x7f:
			fmt.Fprintf(&b, `\u%04X`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

var textType = reflect.TypeFor[encoding.TextUnmarshaler]()

// keysOf walks a config struct by its toml tags.
func keysOf(t reflect.Type) []key { return walk(t, "", true) }

func walk(t reflect.Type, prefix string, leaf bool) []key {
	var keys []key
	for f := range fields(t) {
		name := prefix + f.name
		ft := f.typ
		for ft.Kind() == reflect.Pointer {
			ft = ft.Elem()
		}
		switch {
		case ft.Kind() == reflect.Struct && !reflect.PointerTo(ft).Implements(textType):
			keys = append(keys, key{name: name, want: "a table of its own: [" + name + "]"})
			keys = append(keys, walk(ft, name+".", leaf)...)
		case ft.Kind() == reflect.Slice && tableLike(ft.Elem()):
			keys = append(keys, key{name: name, want: "tables of its own, each value of its kind: [[" + name + "]]"})
			keys = append(keys, walk(ft.Elem(), name+".", false)...)
		default:
			text := reflect.PointerTo(ft).Implements(textType)
			list := ft.Kind() == reflect.Slice && !text
			if list {
				text = reflect.PointerTo(ft.Elem()).Implements(textType)
			}
			keys = append(keys, key{name: name, leaf: leaf && ft.Kind() != reflect.Map, list: list, text: text, want: wanted(ft, text)})
		}
	}
	return keys
}

// wanted says what a value of type t must be, for people.
func wanted(t reflect.Type, text bool) string {
	switch {
	case t.Kind() == reflect.Slice && text, t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.String:
		return "a list of texts in quotes"
	case t.Kind() == reflect.Slice:
		return "a list, each of it " + wanted(t.Elem(), false)
	case text, t.Kind() == reflect.String:
		return "a text in quotes"
	case t.Kind() == reflect.Bool:
		return "true or false"
	case t.Kind() == reflect.Float32, t.Kind() == reflect.Float64:
		return "a number"
	case t.Kind() == reflect.Map:
		return "a table"
	case t.Kind() >= reflect.Int && t.Kind() <= reflect.Int64:
		return "a whole number"
	case t.Kind() >= reflect.Uint && t.Kind() <= reflect.Uint64:
		return "a whole number, 0 or more"
	}
	return "of another kind"
}

func tableLike(t reflect.Type) bool {
	return t.Kind() == reflect.Struct && !reflect.PointerTo(t).Implements(textType)
}

type field struct {
	name string
	typ  reflect.Type
}

// fields are the exported fields of a struct under their names in TOML; those of an embedded struct without a tag as its own.
func fields(t reflect.Type) func(func(field) bool) {
	return func(yield func(field) bool) {
		for f := range t.Fields() {
			name, _, _ := strings.Cut(f.Tag.Get("toml"), ",")
			switch {
			case name == "-" || !f.IsExported():
				continue
			case f.Anonymous && name == "" && f.Type.Kind() == reflect.Struct:
				for inner := range fields(f.Type) {
					if !yield(inner) {
						return
					}
				}
				continue
			case name == "":
				name = f.Name
			}
			if !yield(field{name, f.Type}) {
				return
			}
		}
	}
}

// place is where a key stands in a file, from 1.
type place struct{ line, column int }

// positions finds where each key of a document stands. Keys in the n-th table of a list are found as "lots[n].cores", n from 0. A
// document that does not parse gives what was found before the mistake.
func positions(data []byte) map[string]place {
	at := map[string]place{}
	count := map[string]int{}
	prefix := ""
	var p unstable.Parser
	p.Reset(data)
	for p.NextExpression() {
		e := p.Expression()
		name, where := dotted(&p, e)
		switch e.Kind {
		case unstable.Table:
			prefix = name + "."
		case unstable.ArrayTable:
			name = fmt.Sprintf("%s[%d]", name, count[name])
			count[strings.TrimSuffix(name, name[strings.LastIndexByte(name, '['):])]++
			prefix = name + "."
		case unstable.KeyValue:
			name = prefix + name
		default:
			continue
		}
		if _, ok := at[name]; !ok {
			at[name] = where
		}
	}
	return at
}

// bare finds numbers and truth values where text is wanted. The TOML library would put `price = 1` into an amount's integer, past the
// amount's own reading: one millionth instead of one.
func bare(source string, data []byte, keys []key) (ms Mistakes) {
	text := map[string]bool{}
	for _, k := range keys {
		text[k.name] = k.text
	}
	var p unstable.Parser
	var visit func(prefix string, n *unstable.Node, wanted bool)
	visit = func(prefix string, n *unstable.Node, wanted bool) {
		switch n.Kind {
		case unstable.KeyValue:
			name, _ := dotted(&p, n)
			visit(prefix+name, n.Value(), text[prefix+name])
		case unstable.InlineTable:
			for it := n.Children(); it.Next(); {
				visit(prefix+".", it.Node(), false)
			}
		case unstable.Array:
			for it := n.Children(); it.Next(); {
				visit(prefix, it.Node(), wanted)
			}
		case unstable.Integer, unstable.Float, unstable.Bool:
			if wanted {
				at := p.Shape(n.Raw).Start
				ms = append(ms, Mistake{
					Source: source, Line: at.Line, Column: at.Column, Key: Clean(prefix),
					What: fmt.Sprintf("must stand in quotes: %q", string(n.Data)),
				})
			}
		}
	}
	prefix := ""
	p.Reset(data)
	for p.NextExpression() {
		e := p.Expression()
		switch e.Kind {
		case unstable.Table, unstable.ArrayTable:
			name, _ := dotted(&p, e)
			prefix = name + "."
		case unstable.KeyValue:
			visit(prefix, e, false)
		}
	}
	return ms
}

func dotted(p *unstable.Parser, e *unstable.Node) (string, place) {
	var (
		parts []string
		where place
	)
	if e.Kind != unstable.Table && e.Kind != unstable.ArrayTable && e.Kind != unstable.KeyValue {
		return "", where
	}
	for it := e.Key(); it.Next(); {
		n := it.Node()
		if len(parts) == 0 {
			start := p.Shape(n.Raw).Start
			where = place{start.Line, start.Column}
		}
		parts = append(parts, string(n.Data))
	}
	return strings.Join(parts, "."), where
}

// Nearest is the one of names that text was probably meant to be, or "" if none is close: at most a third of its letters wrong.
func Nearest(text string, names []string) string {
	best, distance := "", len(text)/3+1
	for _, n := range names {
		d := edits(text, n)
		// The last part alone may be right, with its table forgotten or mistaken.
		if last(text) == last(n) {
			d = min(d, 1)
		}
		if d < distance || (d == distance && best == "") {
			best, distance = n, d
		}
	}
	return best
}

func last(s string) string { return s[strings.LastIndexByte(s, '.')+1:] }

// maxEdits is the longest text compared: keys, flags and commands are shorter, and the work grows with the square.
const maxEdits = 64

// edits counts the letters to insert, drop, change or swap with their neighbour to make b of a (optimal string alignment).
func edits(a, b string) int {
	if len(a) > maxEdits || len(b) > maxEdits {
		return maxEdits
	}
	d := make([][]int, len(a)+1)
	for i := range d {
		d[i] = make([]int, len(b)+1)
		d[i][0] = i
	}
	for j := range d[0] {
		d[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			change := 1
			if a[i-1] == b[j-1] {
				change = 0
			}
			d[i][j] = min(d[i-1][j]+1, d[i][j-1]+1, d[i-1][j-1]+change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d[i][j] = min(d[i][j], d[i-2][j-2]+1)
			}
		}
	}
	return d[len(a)][len(b)]
}

// lookup finds a variable in an environment; the last one wins, as in os/exec.
func lookup(env []string, name string) (string, bool) {
	for i := len(env) - 1; i >= 0; i-- {
		if v, ok := strings.CutPrefix(env[i], name+"="); ok {
			return v, true
		}
	}
	return "", false
}
