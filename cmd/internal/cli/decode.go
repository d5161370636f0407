package cli

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

// maxMistakes is how many values that can't be read are told of one file: nobody mends more in one go.
const maxMistakes = 50

// sound finds every mistake in reading a TOML document as a T, and gives the document without what can't be read. The library stops at
// the first such value, so each is cut out and the rest is read again.
func sound[T any](source string, data []byte, keys []key) ([]byte, Mistakes) {
	data = slices.Clone(data)
	ms := bare(source, data, keys)
	for _, m := range ms {
		cut(data, m.Line)
	}
	open := false // a syntax mistake has no end: what follows it is gone
	for range maxMistakes {
		err := strict(new(T), data)
		wrong := stopped(err)
		broken := wrong != nil && len(wrong.Key()) == 0
		if !broken || !open {
			ms = append(ms, mistakes(err, source, keys)...)
		}
		if wrong == nil {
			break
		}
		if row, _ := wrong.Position(); broken {
			open = cutSyntax(data, row, open)
		} else {
			cut(data, row)
		}
	}
	slices.SortStableFunc(ms, func(a, b Mistake) int { return a.Line - b.Line })
	return data, ms
}

// strict reads a document in which every key must be known.
func strict(into any, data []byte) error {
	dec := toml.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	return dec.Decode(into)
}

// stopped is where the library stopped reading; nil if it read to the end.
func stopped(err error) *toml.DecodeError {
	var (
		missing *toml.StrictMissingError // holds some of the other
		wrong   *toml.DecodeError
	)
	if errors.As(err, &missing) || !errors.As(err, &wrong) {
		return nil
	}
	return wrong
}

// mistakes are what the library says of a document, for people: all unknown keys, or the one value at which it stopped.
func mistakes(err error, source string, keys []key) (ms Mistakes) {
	var (
		missing *toml.StrictMissingError
		wrong   *toml.DecodeError
	)
	switch {
	case err == nil:
	case errors.As(err, &missing):
		for i := range missing.Errors {
			e := &missing.Errors[i]
			row, col := e.Position()
			name := strings.Join(e.Key(), ".")
			ms = append(ms, Mistake{Source: source, Line: row, Column: col, Key: Clean(name), What: unknown(name, keys)})
		}
	case errors.As(err, &wrong):
		row, col := wrong.Position()
		name := strings.Join(wrong.Key(), ".")
		ms = append(ms, Mistake{Source: source, Line: row, Column: col, Key: Clean(name), What: misfit(wrong.Error(), name, keys)})
	default:
		ms = append(ms, Mistake{Source: source, What: misfit(err.Error(), "", keys)})
	}
	return ms
}

// misfit words why a value can't be read. Where the library names types of our code, it says instead what the key wants.
func misfit(said, name string, keys []key) string {
	said = strings.TrimPrefix(said, "toml: ")
	typed := strings.Contains(said, "cannot decode TOML") || strings.Contains(said, "cannot be stored in") || strings.Contains(said, "cannot store") ||
		strings.Contains(said, "strconv.")
	if !typed {
		return Clean(said)
	}
	if i := slices.IndexFunc(keys, func(k key) bool { return k.name == name }); i >= 0 {
		return "must be " + keys[i].want
	}
	return "is of the wrong kind"
}

// cut blanks the expression on a line, so that all else keeps its place; of a table's head also the keys under it.
func cut(data []byte, line int) {
	var p unstable.Parser
	p.Reset(data)
	from, table := line, false
	for p.NextExpression() {
		e := p.Expression()
		_, where := dotted(&p, e)
		head := e.Kind == unstable.Table || e.Kind == unstable.ArrayTable
		switch {
		case where.line == 0: // a comment
		case where.line <= line:
			from, table = where.line, head
		case !table || head:
			blank(data, from, where.line)
			return
		}
	}
	blank(data, from, 0)
}

// cutSyntax blanks what makes a document no TOML: the line if it is wrong by itself. Else something that began above has no end: all
// behind the last thing that does is blanked, and true returned; open says that this was so before and was not enough.
func cutSyntax(data []byte, line int, open bool) bool {
	lines := bytes.Split(data, []byte("\n"))
	at := bytes.TrimSpace(lines[min(line, len(lines))-1])
	switch {
	case open || len(at) == 0 || toml.Unmarshal(at, new(map[string]any)) == nil:
		from := lastGood(data)
		if !open {
			from++
		}
		blank(data, from, 0)
		return true
	case at[0] == '[': // the keys below belong to the table that this was to be
		next := slices.IndexFunc(lines[line:], func(l []byte) bool { return bytes.HasPrefix(bytes.TrimSpace(l), []byte("[")) })
		if next < 0 {
			blank(data, line, 0)
			return false
		}
		blank(data, line, line+1+next)
	default:
		blank(data, line, line+1)
	}
	return false
}

// lastGood is the line on which the last expression begins that is TOML; 0 if there is none.
func lastGood(data []byte) (line int) {
	var p unstable.Parser
	p.Reset(data)
	for p.NextExpression() {
		if _, where := dotted(&p, p.Expression()); where.line > 0 {
			line = where.line
		}
	}
	return line
}

// blank overwrites lines from (from 1) up to but without to with spaces; a to of 0 is the end.
func blank(data []byte, from, to int) {
	line := 1
	for i, c := range data {
		if c == '\n' {
			line++
		} else if line >= from && (to == 0 || line < to) {
			data[i] = ' '
		}
	}
}

func unknown(name string, keys []key) string {
	names := make([]string, 0, len(keys))
	for _, k := range keys {
		names = append(names, k.name)
	}
	if n := Nearest(name, names); n != "" {
		return "unknown key; did you mean " + n + "?"
	}
	return "unknown key"
}

// unsettable says why a flag can't set a name.
func unsettable(name string, keys []key) string {
	if !slices.ContainsFunc(keys, func(k key) bool { return k.name == name }) {
		return unknown(name, keys)
	}
	for _, k := range keys {
		if k.leaf && strings.HasPrefix(k.name, name+".") {
			return "is a table: give one of its keys, such as " + k.name
		}
	}
	return "can only be set in the config file"
}

// override sets one key from a variable or a flag: as TOML if it reads as TOML of the right type, else as text.
func override(into any, k key, value, source string, keys []key) Mistakes {
	var ms Mistakes
	for _, form := range k.forms(value) {
		doc := []byte(k.name + " = " + form)
		if ms = mistakes(strict(into, doc), source, keys); len(ms) == 0 {
			ms = bare(source, doc, keys)
		}
		if len(ms) == 0 {
			return nil
		}
	}
	return Mistakes{{Source: source, Key: k.name, What: fmt.Sprintf("%q: %s", Clean(value), ms[0].What)}}
}
