package query

import (
	"math"
	"slices"
)

type op uint8

const (
	opEq op = iota
	opNe
	opLt
	opLe
	opGt
	opGe
	opIn
	opNotIn
	opAny // takes back what was said about the field
)

// verdict is what a condition thinks of a lot.
type verdict uint8

const (
	fails verdict = iota
	holds
	unknown
)

// cond is one condition. A number's operands are spans, a text's strings.
type cond struct {
	field  *field
	op     op
	index  uint8  // in Facts.num or Facts.text
	figure bool   // or rather in Facts.figs
	span   span   // of the value, for the comparisons
	pass   span   // what passes, for the comparisons; for != what does not
	word   word   // for = and != of a text
	spans  []span // for in and notin
	words  []word
	isText bool
	text   string // as written
}

// ranged makes a comparison's operand the span of numbers that pass, so that judging is one look; != is the one that may not.
func (c *cond) ranged() {
	s := c.span
	none := span{1, 0}
	switch c.op {
	case opLt:
		c.pass = span{0, s.lo - 1}
		if s.lo == 0 {
			c.pass = none
		}
	case opLe:
		c.pass = span{0, s.hi}
	case opGt:
		c.pass = span{s.hi + 1, math.MaxUint64}
		if s.hi == math.MaxUint64 {
			c.pass = none
		}
	case opGe:
		c.pass = span{s.lo, math.MaxUint64}
	default:
		c.pass = s
	}
}

func (s span) has(v uint64) bool { return v >= s.lo && v <= s.hi }

func (c *cond) judge(f *Facts, allowUnknown bool) verdict {
	var known, ok bool
	if c.isText {
		have := f.text[c.index]
		known, ok = have != word{}, c.textHolds(have)
	} else {
		var v uint64
		if c.figure {
			v, known = c.field.number(f)
		} else {
			v, known = f.num[c.index], f.known&(1<<c.index) != 0
		}
		ok = known && c.numberHolds(v)
	}
	switch {
	case !known && !allowUnknown:
		return unknown
	case !known || ok:
		return holds
	}
	return fails
}

func (c *cond) textHolds(have word) bool {
	switch c.op {
	case opEq:
		return have == c.word
	case opNe:
		return have != c.word
	case opIn:
		return slices.Contains(c.words, have)
	case opNotIn:
		return !slices.Contains(c.words, have)
	}
	return false
}

func (c *cond) numberHolds(v uint64) bool {
	switch c.op {
	case opNe:
		return !c.pass.has(v)
	case opIn:
		return slices.ContainsFunc(c.spans, func(s span) bool { return s.has(v) })
	case opNotIn:
		return !slices.ContainsFunc(c.spans, func(s span) bool { return s.has(v) })
	}
	return c.pass.has(v)
}

// withDefaults takes back what field=any takes back and adds, after the query's own which
// are narrower, the built-in conditions on fields that it does not name.
func withDefaults(conds []cond) []cond {
	named := map[string]bool{}
	dropped := map[string]bool{}
	for _, c := range conds {
		named[c.field.name] = true
		if c.op == opAny {
			dropped[c.field.name] = true
		}
	}
	conds = slices.DeleteFunc(conds, func(c cond) bool { return dropped[c.field.name] })
	if !named["free"] {
		conds = append(conds, cond{field: lookup("free"), op: opGe, span: span{1, 1}, text: "free>=1"})
	}
	if !named["kind"] {
		conds = append(conds, cond{field: lookup("kind"), op: opEq, word: wordGPU, isText: true, text: "kind=gpu"})
	}
	for i := range conds {
		c := &conds[i]
		c.index, c.figure = uint8(c.field.index), c.field.class == classFigure
		c.ranged()
	}
	return conds
}

// Quantity is how many devices the query asks for: the smallest number of free devices or GPUs that its conditions let pass, at
// least 1.
func (q Query) Quantity() uint32 {
	n := uint64(1)
	for _, c := range q.conds {
		if c.field.name != "num_gpus" && c.field.name != "free" {
			continue
		}
		switch c.op {
		case opEq, opGe:
			n = max(n, c.span.lo)
		case opGt:
			n = max(n, c.span.hi+1)
		}
	}
	return uint32(min(n, 1<<16))
}
