package query

import "slices"

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
	span   span   // for the comparisons
	word   word   // for = and != of a text
	spans  []span // for in and notin
	words  []word
	isText bool
	text   string // as written
}

func (c *cond) judge(f *Facts, allowUnknown bool) verdict {
	var known, ok bool
	if c.isText {
		have := f.text[c.field.index]
		known, ok = have != word{}, c.textHolds(have)
	} else {
		var v uint64
		if v, known = c.field.number(f); known {
			ok = c.numberHolds(v)
		}
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
	in := func(s span) bool { return v >= s.lo && v <= s.hi }
	switch c.op {
	case opEq:
		return in(c.span)
	case opNe:
		return !in(c.span)
	case opLt:
		return v < c.span.lo
	case opLe:
		return v <= c.span.hi
	case opGt:
		return v > c.span.hi
	case opGe:
		return v >= c.span.lo
	case opIn:
		return slices.ContainsFunc(c.spans, in)
	case opNotIn:
		return !slices.ContainsFunc(c.spans, in)
	}
	return false
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
