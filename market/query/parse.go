package query

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Limits of a query: what a person types is far below, and a peer's query must not cost more than its answer.
const (
	MaxQuery = 4 << 10 // bytes
	maxConds = 64
	maxList  = 64
)

type parser struct {
	src string
	pos int // in bytes
}

func (p *parser) fail(at int, hint, format string, args ...any) error {
	return &SyntaxError{Src: p.src, Column: utf8.RuneCountInString(p.src[:at]), Msg: fmt.Sprintf(format, args...), Hint: hint}
}

func (p *parser) blanks() {
	for p.pos < len(p.src) && strings.IndexByte(" \t\r\n", p.src[p.pos]) >= 0 {
		p.pos++
	}
}

func (p *parser) parse() ([]cond, error) {
	if len(p.src) > MaxQuery {
		return nil, &SyntaxError{Src: p.src[:32] + "…", Msg: fmt.Sprintf("query of %d bytes, want at most %d", len(p.src), MaxQuery)}
	}
	if strings.ContainsAny(p.src, "\n\r\t") {
		p.src = strings.NewReplacer("\n", " ", "\r", " ", "\t", " ").Replace(p.src) // so that the caret stands right
	}
	var conds []cond
	for p.blanks(); p.pos < len(p.src); p.blanks() {
		if len(conds) == maxConds {
			return nil, p.fail(p.pos, "", "more than %d conditions", maxConds)
		}
		c, err := p.cond()
		if err != nil {
			return nil, err
		}
		conds = append(conds, c)
	}
	return conds, nil
}

func isNameByte(c byte) bool {
	return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9')
}

func (p *parser) name() string {
	start := p.pos
	for p.pos < len(p.src) && isNameByte(p.src[p.pos]) {
		p.pos++
	}
	return strings.ToLower(p.src[start:p.pos])
}

func (p *parser) cond() (cond, error) {
	start := p.pos
	f, err := p.field()
	if err != nil {
		return cond{}, err
	}
	o, err := p.op(f)
	if err != nil {
		return cond{}, err
	}
	c := cond{field: f, op: o, isText: f.isText()}
	p.blanks()
	if o == opIn || o == opNotIn {
		err = p.list(&c)
	} else {
		err = p.value(&c)
	}
	c.text = p.src[start:p.pos]
	return c, err
}

func (p *parser) field() (*field, error) {
	start := p.pos
	name := p.name()
	if name == "" {
		return nil, p.fail(start, "conditions look like price<0.5 or gpu_name=RTX_4090, with blanks between them", "want the name of a field")
	}
	if f := lookup(name); f != nil {
		return f, nil
	}
	return nil, p.fail(start, suggest(name), "no field %q", name)
}

// ops in the order to try them: a longer one before its own start.
var ops = []struct {
	text string
	op   op
}{
	{"==", opEq},
	{"!=", opNe},
	{"<=", opLe},
	{">=", opGe},
	{"=", opEq},
	{"<", opLt},
	{">", opGt},
}

func (p *parser) op(f *field) (op, error) {
	p.blanks()
	start := p.pos
	for _, o := range ops {
		if strings.HasPrefix(p.src[p.pos:], o.text) {
			p.pos += len(o.text)
			if f.isText() && o.op != opEq && o.op != opNe {
				return 0, p.fail(start, "use =, !=, in or notin", "%s has no order, so %s says nothing", f.name, o.text)
			}
			return o.op, nil
		}
	}
	word := p.name()
	if word == "not" {
		p.blanks()
		word += p.name()
	}
	switch word {
	case "in":
		return opIn, nil
	case "notin", "nin":
		return opNotIn, nil
	}
	return 0, p.fail(start, "operators are = != < <= > >= in notin", "want an operator after %s", f.name)
}

// word reads one value: up to a blank, or in quotes; within a list also up to a comma or bracket.
func (p *parser) word(stop string) (string, error) {
	start := p.pos
	if p.pos < len(p.src) && (p.src[p.pos] == '"' || p.src[p.pos] == '\'') {
		end := strings.IndexByte(p.src[p.pos+1:], p.src[p.pos])
		if end < 0 {
			return "", p.fail(start, "", "the quote is never closed")
		}
		p.pos += end + 2
		return p.src[start+1 : p.pos-1], nil
	}
	for p.pos < len(p.src) && strings.IndexByte(stop, p.src[p.pos]) < 0 {
		p.pos++
	}
	return p.src[start:p.pos], nil
}

func (p *parser) value(c *cond) error {
	start := p.pos
	w, err := p.word(" ")
	if err != nil {
		return err
	}
	if w == "" {
		return p.fail(start, "", "want a value for %s", c.field.name)
	}
	if strings.EqualFold(w, "any") && c.op == opEq {
		c.op = opAny
		return nil
	}
	s, text, problem := c.field.read(w)
	if problem != "" {
		return p.fail(start, problem, "%q is no value of %s", w, c.field.name)
	}
	c.span, c.word = s, wordOf(text)
	return nil
}

func (p *parser) list(c *cond) error {
	if p.pos == len(p.src) || p.src[p.pos] != '[' {
		return p.fail(p.pos, "lists look like "+c.field.name+" in [a,b]", "want a list in brackets")
	}
	for n := 0; ; n++ {
		p.pos++ // the bracket or comma
		p.blanks()
		start := p.pos
		w, err := p.word(" ,]")
		if err != nil {
			return err
		}
		if w == "" {
			return p.fail(start, "", "want a value for %s", c.field.name)
		}
		s, text, problem := c.field.read(w)
		switch {
		case problem != "":
			return p.fail(start, problem, "%q is no value of %s", w, c.field.name)
		case n == maxList:
			return p.fail(start, "", "more than %d values", maxList)
		}
		c.spans, c.words = append(c.spans, s), append(c.words, wordOf(text))
		p.blanks()
		switch {
		case p.pos < len(p.src) && p.src[p.pos] == ']':
			p.pos++
			return nil
		case p.pos == len(p.src) || p.src[p.pos] != ',':
			return p.fail(p.pos, "", "want , or ] in the list")
		}
	}
}

// suggest is a hint with the field nearest to name, if one is near.
func suggest(name string) string {
	best, bestD := "", 1+max(1, len(name)/3)
	for _, f := range fields {
		for _, n := range append([]string{f.name}, f.aliases...) {
			if d := distance(name, n); d < bestD {
				best, bestD = n, d
			}
		}
	}
	if best == "" {
		return "`gpufair search --help` lists the fields"
	}
	return fmt.Sprintf("did you mean %s?", best)
}

// distance is the Levenshtein distance: how many letters to add, drop or change.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diag := row[0]
		row[0] = i + 1
		for j := range len(b) {
			next := diag
			if a[i] != b[j] {
				next = 1 + min(diag, row[j], row[j+1])
			}
			diag, row[j+1] = row[j+1], next
		}
	}
	return row[len(b)]
}
