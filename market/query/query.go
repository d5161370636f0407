// Package query is the search language: it parses what people type (Vast's command line words it the same way), matches it against
// the facts of a lot, explains why a lot does not match, and orders what does. It knows no book, no network and no account.
//
//	gpu_name=RTX_4090 num_gpus>=2 price<0.5 vram>=24 region in [eu,us] fp32_matmul>50
package query

import (
	"fmt"
	"strings"
)

// Query is a parsed search: conditions that must all hold. The zero Query matches every lot that has a free GPU. It is a value; its
// methods may be called from many goroutines.
type Query struct {
	// AllowUnknown lets a lot match a condition on a field that it does not state. Without it a missing field never matches.
	AllowUnknown bool

	conds []cond
	text  string
}

// String is the query as it was written.
func (q Query) String() string { return q.text }

// Parse reads a query. The error is a [*SyntaxError].
//
// Conditions are separated by blanks and hold all together: field, operator, value. Operators: = (or ==), !=, <, <=, >, >=, in [a,b]
// and notin [a,b]. field=any takes back a condition, also a built-in one. Unless a condition says otherwise, only GPUs match
// (kind=gpu), and only lots with a free device (free>=1).
func Parse(s string) (Query, error) {
	p := parser{src: s}
	conds, err := p.parse()
	if err != nil {
		return Query{}, err
	}
	return Query{conds: withDefaults(conds), text: strings.TrimSpace(s)}, nil
}

// SyntaxError says where a query is wrong and what to write instead.
type SyntaxError struct {
	Src    string // the whole text
	Column int    // of the mistake, in bytes from 0
	Msg    string
	Hint   string // what to do; may be empty
}

// Error is the message over the text with a caret under the mistake.
func (e *SyntaxError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "query, column %d: %s\n  %s\n  %s^", e.Column+1, e.Msg, e.Src, strings.Repeat(" ", e.Column))
	if e.Hint != "" {
		b.WriteString("\n" + e.Hint)
	}
	return b.String()
}

// Match reports whether every condition holds for a lot.
func (q Query) Match(f *Facts) bool {
	for i := range q.conds {
		if q.conds[i].judge(f, q.AllowUnknown) != holds {
			return false
		}
	}
	return true
}
