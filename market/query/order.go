package query

import (
	"cmp"
	"strings"
)

// Order sorts lots: by its first field, ties by the next, and so on. A lot that does not state a field comes after those that do,
// whichever way the order runs. The zero Order says that all are equal.
type Order struct {
	keys []key
	text string
}

type key struct {
	field *field
	desc  bool
}

// DefaultOrder is what a search uses that names none: cheapest first.
const DefaultOrder = "price"

const maxKeys = 8

// ParseOrder reads fields separated by commas, the largest first if a - stands before or after: "price,-fp32_matmul". The error is a
// [*SyntaxError].
func ParseOrder(s string) (Order, error) {
	p := parser{src: s}
	if len(s) > MaxQuery {
		return Order{}, &SyntaxError{Src: s[:32] + "…", Msg: "order too long"}
	}
	o := Order{text: strings.TrimSpace(s)}
	p.blanks()
	for p.pos < len(p.src) {
		var k key
		if p.take('-') {
			k.desc = true
		} else {
			p.take('+')
		}
		f, err := p.field()
		if err != nil {
			return Order{}, err
		}
		k.field = f
		if p.take('-') {
			k.desc = true
		}
		if len(o.keys) == maxKeys {
			return Order{}, p.fail(p.pos, "", "more than %d fields", maxKeys)
		}
		o.keys = append(o.keys, k)
		p.blanks()
		if p.pos < len(p.src) && !p.take(',') {
			return Order{}, p.fail(p.pos, "orders look like price,-fp32_matmul", "want a comma")
		}
		p.blanks()
	}
	return o, nil
}

func (p *parser) take(c byte) bool {
	if p.pos < len(p.src) && p.src[p.pos] == c {
		p.pos++
		return true
	}
	return false
}

// String is the order as it was written.
func (o Order) String() string { return o.text }

// Compare is negative if a comes before b, positive if after, 0 if the order does not tell them apart.
func (o Order) Compare(a, b *Facts) int {
	for i := range o.keys {
		if c := o.keys[i].compare(a, b); c != 0 {
			return c
		}
	}
	return 0
}

func (k *key) compare(a, b *Facts) int {
	var c int
	var knownA, knownB bool
	if k.field.isText() {
		x, y := a.text[k.field.index], b.text[k.field.index]
		knownA, knownB = x != word{}, y != word{}
		if x != y {
			c = cmp.Compare(x.String(), y.String())
		}
	} else {
		var x, y uint64
		x, knownA = k.field.number(a)
		y, knownB = k.field.number(b)
		c = cmp.Compare(x, y)
	}
	switch {
	case knownA != knownB && knownA:
		return -1
	case knownA != knownB:
		return 1
	case k.desc:
		return -c
	}
	return c
}
