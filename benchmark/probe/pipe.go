package probe

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/gpufair/gpufair/benchmark"
	"github.com/gpufair/gpufair/benchmark/suite"
)

// The pipe carries JSON objects, one a line: one request to the child, then its events, of which the last is its answer.

// maxLine is the most bytes of a line: a report of 32 measurements has 16 KiB, a detection of 16 cards 10 KiB.
const maxLine = 256 << 10

// The operations.
const (
	opDetect     = "detect"
	opMeasureCPU = "measure-cpu"
	opMeasureGPU = "measure-gpu"
)

type request struct {
	Op      string            `json:"op"`
	Cores   benchmark.Cores   `json:"cores,omitempty"`
	UUID    string            `json:"uuid,omitempty"` // of a card
	Profile benchmark.Profile `json:"profile,omitempty"`
}

// event has exactly one of its fields.
type event struct {
	Progress *suite.Progress   `json:"progress,omitempty"`
	GPUs     *benchmark.GPUs   `json:"gpus,omitempty"`
	Report   *benchmark.Report `json:"report,omitempty"`
	Failure  *Failure          `json:"failure,omitempty"`
}

// Failure is what the child itself says went wrong. It wraps the error of suite that its code stands for.
type Failure struct {
	Code string `json:"code"` // "wrong_result", "core_absent" or "failed"
	Text string `json:"text"`
}

// Error is the child's text.
func (f *Failure) Error() string { return f.Text }

// Unwrap is [suite.ErrWrong], [suite.ErrCoreAbsent] or nil.
func (f *Failure) Unwrap() error {
	switch f.Code {
	case "wrong_result":
		return suite.ErrWrong
	case "core_absent":
		return suite.ErrCoreAbsent
	}
	return nil
}

func failure(err error) *Failure {
	code := "failed"
	switch {
	case errors.Is(err, suite.ErrWrong):
		code = "wrong_result"
	case errors.Is(err, suite.ErrCoreAbsent):
		code = "core_absent"
	}
	return &Failure{Code: code, Text: err.Error()}
}

// lines splits what is written to it into lines and gives each to take, which may stop the writer with an error.
type lines struct {
	limit int // bytes of a line; a longer one is given in pieces if split, else an error
	split bool
	take  func(line []byte) error
	rest  []byte
}

func (l *lines) Write(p []byte) (int, error) {
	l.rest = append(l.rest, p...)
	for {
		i := bytes.IndexByte(l.rest, '\n')
		switch {
		case i > l.limit || i < 0 && len(l.rest) > l.limit:
			if !l.split {
				return 0, fmt.Errorf("%w: a line of over %d bytes", ErrGarbage, l.limit)
			}
			if err := l.take(l.rest[:l.limit]); err != nil {
				return 0, err
			}
			l.rest = l.rest[l.limit:]
		case i < 0:
			return len(p), nil
		default:
			if err := l.take(l.rest[:i]); err != nil {
				return 0, err
			}
			l.rest = l.rest[i+1:]
		}
	}
}

func readEvent(line []byte) (event, error) {
	var e event
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&e); err != nil {
		return e, fmt.Errorf("%w: %w in %.80q", ErrGarbage, err, line)
	}
	set := 0
	for _, is := range []bool{e.Progress != nil, e.GPUs != nil, e.Report != nil, e.Failure != nil} {
		if is {
			set++
		}
	}
	if set != 1 {
		return e, fmt.Errorf("%w: %d answers in one line", ErrGarbage, set)
	}
	return e, nil
}
