package control

import (
	"bytes"
	"time"

	"github.com/gpufair/gpufair/renter/control/api"
)

// maxTail bounds what is held to find the last lines: output without line ends counts as its pieces.
const maxTail = 4 << 20

// tail keeps the last n lines of what it is given.
type tail struct {
	n      int
	pieces []api.LogLine
	bytes  int
	ends   int // line ends in pieces
	last   time.Time
}

func newTail(n int) *tail { return &tail{n: n} }

func lineEnds(l api.LogLine) int { return bytes.Count(l.Data, []byte{'\n'}) }

func (t *tail) add(l api.LogLine) error {
	t.pieces, t.bytes, t.ends, t.last = append(t.pieces, l), t.bytes+len(l.Data), t.ends+lineEnds(l), l.Time
	for len(t.pieces) > 1 && (t.bytes > maxTail || t.ends-lineEnds(t.pieces[0]) > t.n) {
		t.bytes, t.ends = t.bytes-len(t.pieces[0].Data), t.ends-lineEnds(t.pieces[0])
		t.pieces = t.pieces[1:]
	}
	return nil
}

// lines is the last n lines, the first piece cut to where they start.
func (t *tail) lines() []api.LogLine {
	extra := t.ends - t.n
	if len(t.pieces) > 0 && len(t.pieces[len(t.pieces)-1].Data) > 0 && !bytes.HasSuffix(t.pieces[len(t.pieces)-1].Data, []byte{'\n'}) {
		extra++ // the last line has no end yet
	}
	out := append([]api.LogLine(nil), t.pieces...)
	for ; extra > 0 && len(out) > 0; extra-- {
		for len(out) > 0 {
			i := bytes.IndexByte(out[0].Data, '\n')
			if i >= 0 {
				out[0].Data = out[0].Data[i+1:]
				break
			}
			out = out[1:]
		}
	}
	return out
}

// newest is when the newest piece came, or since if there is none.
func (t *tail) newest(since time.Time) time.Time {
	if t.last.IsZero() {
		return since
	}
	return t.last.Add(1)
}
