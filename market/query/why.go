package query

import (
	"math/bits"

	"github.com/gpufair/gpufair/market/reason"
)

// Whole is how far off a lot is that does not meet a condition in any degree: another model, or a figure that it does not state.
const Whole = 1_000_000

// Miss is one condition that a lot does not meet.
type Miss struct {
	Condition string      `json:"condition"` // as written, or the built-in one
	Have      string      `json:"have"`      // what the lot states, with its unit; empty if unknown
	Unknown   bool        `json:"unknown"`   // the lot does not state the field
	Code      reason.Code `json:"code"`      // as the provider would refuse it
	Off       uint64      `json:"off"`       // how far off the lot is, in millionths of the larger of what it has and what passes
}

// String is the miss as one line: "price<0.5: the lot has 0.61".
func (m Miss) String() string {
	if m.Unknown {
		return m.Condition + ": the offer does not say (--allow-unknown lets it pass)"
	}
	return m.Condition + ": the lot has " + m.Have
}

// Explain lists the conditions that f does not meet, in the order of the query; nil if it matches.
func (q Query) Explain(f *Facts) []Miss {
	var out []Miss
	for i := range q.conds {
		c := &q.conds[i]
		if v := c.judge(f, q.AllowUnknown); v != holds {
			out = append(out, Miss{Condition: c.text, Have: c.field.show(f), Unknown: v == unknown, Code: c.code(f, v), Off: c.off(f, v)})
		}
	}
	return out
}

// code is the reason for which the lot would be refused.
func (c *cond) code(f *Facts, v verdict) reason.Code {
	switch {
	case v == unknown:
		return reason.NotStated
	case c.isText || c.figure:
		return reason.ConditionUnmet
	}
	have := f.num[c.index]
	switch c.field.index {
	case numPrice:
		if have > c.pass.hi && (c.op == opLt || c.op == opLe || c.op == opEq) {
			return reason.PriceBelow
		}
	case numFree, numGPUs:
		if all := f.num[numDevices]; c.numberHolds(all) && (c.field.index == numFree || f.text[textKind] == wordGPU) {
			return reason.DeviceTaken // if all were free it would do
		}
		return reason.ResourcesExceeded
	case numMinTerm, numMaxTerm:
		return reason.TermOutOfRange
	case numDevices, numCores, numRAM, numDisk, numVRAM:
		return reason.ResourcesExceeded
	}
	return reason.ConditionUnmet
}

// off is how far a lot that c refuses is from what c lets pass: 1 to [Whole].
func (c *cond) off(f *Facts, v verdict) uint64 {
	if v == unknown || c.isText || c.op == opNe || c.op == opNotIn {
		return Whole
	}
	have, ok := c.field.number(f)
	if !ok {
		return Whole
	}
	if c.op != opIn {
		return c.pass.off(have)
	}
	least := uint64(Whole)
	for _, s := range c.spans {
		least = min(least, s.off(have))
	}
	return least
}

// off is how far v is from the span, in millionths of the larger of both.
func (s span) off(v uint64) uint64 {
	gap, of := uint64(0), v
	switch {
	case s.lo > s.hi: // nothing passes
		return Whole
	case v > s.hi:
		gap = v - s.hi
	case v < s.lo:
		gap, of = s.lo-v, s.lo
	}
	hi, lo := bits.Mul64(gap, Whole) // gap <= of, so the quotient fits
	if hi >= of {
		return Whole
	}
	part, _ := bits.Div64(hi, lo, of)
	return max(part, 1)
}

// Refusals is how many lots one condition refuses.
type Refusals struct {
	Condition string `json:"condition"` // as written, or the built-in one
	Lots      int    `json:"lots"`      // that it refuses
	Alone     int    `json:"alone"`     // of them, that meet every other condition
}

// Census counts which conditions of a query refuse how many lots. One goroutine uses it.
type Census struct {
	Lots    int // looked at
	Matches int
	q       Query
	counts  []Refusals
}

// NewCensus is a census of no lots.
func (q Query) NewCensus() *Census {
	c := &Census{q: q, counts: make([]Refusals, len(q.conds))}
	for i := range q.conds {
		c.counts[i].Condition = q.conds[i].text
	}
	return c
}

// Add counts a lot. It gives how many conditions refuse it, and how far off it is from all of them together.
func (c *Census) Add(f *Facts) (refused int, off uint64) {
	last := 0
	for i := range c.q.conds {
		v := c.q.conds[i].judge(f, c.q.AllowUnknown)
		if v == holds {
			continue
		}
		refused, last = refused+1, i
		off += c.q.conds[i].off(f, v)
		c.counts[i].Lots++
	}
	c.Lots++
	switch refused {
	case 0:
		c.Matches++
	case 1:
		c.counts[last].Alone++
	}
	return refused, off
}

// Refusals are the conditions in the order of the query, with what each refused.
func (c *Census) Refusals() []Refusals { return c.counts }
