// Package meter turns monotonic samples, pauses and rate segments into a cumulative charge, for both sides of a lane. It reads no clock:
// whoever samples says when, in milliseconds of a clock that never steps. It knows no job and no GPU, only devices at a rate.
package meter

import (
	"errors"
	"fmt"
	"math"

	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Segment is a stretch of billable time at one rate.
type Segment struct {
	Rate    money.Rate `cbor:"1,keyasint"` // per device-hour
	Devices uint32     `cbor:"2,keyasint"`
	Ms      uint64     `cbor:"3,keyasint"` // billable milliseconds
}

// Charge is the sum over segments of floor(rate x devices x ms / 3,600,000) (spec: ledger, Model).
func Charge(segments []Segment) (money.Micro, error) {
	var sum money.Micro
	for _, s := range segments {
		c, err := money.Charge(s.Rate, s.Devices, s.Ms)
		if err != nil {
			return 0, err
		}
		if sum, err = money.Add(sum, c); err != nil {
			return 0, err
		}
	}
	return sum, nil
}

// Resource is what a voucher's quantity counts; the quantity is in thousandths of it.
const Resource = "device-second"

// Quantity is the segments' device-milliseconds, or [money.ErrOverflow].
func Quantity(segments []Segment) (uint64, error) {
	var sum money.Micro
	for _, s := range segments {
		if s.Devices != 0 && s.Ms > uint64(money.Max)/uint64(s.Devices) {
			return 0, fmt.Errorf("quantity of %d devices for %d ms: %w", s.Devices, s.Ms, money.ErrOverflow)
		}
		var err error
		if sum, err = money.Add(sum, money.Micro(s.Ms*uint64(s.Devices))); err != nil {
			return 0, err
		}
	}
	return uint64(sum), nil
}

// Billable is the segments' milliseconds in all, at most the largest uint64.
func Billable(segments []Segment) uint64 {
	var sum uint64
	for _, s := range segments {
		if s.Ms > math.MaxUint64-sum {
			return math.MaxUint64
		}
		sum += s.Ms
	}
	return sum
}

// Hash names the segments that an amount was computed from, in a voucher.
func Hash(segments []Segment) (wire.Hash, error) {
	b, err := wire.Marshal(segments)
	if err != nil {
		return wire.Hash{}, err
	}
	return wire.Sum("gpufair/segments/1", b), nil
}

// MaxSegments of one lane: a rate may change once a minute, so more than a day of changes.
const MaxSegments = 2048

var (
	// ErrState says that a meter was told something that does not follow: Start of a running one, a sample of a stopped one.
	ErrState = errors.New("meter in another state")
	// ErrSegments says that a lane changed its rate too often.
	ErrSegments = fmt.Errorf("more than %d rate segments", MaxSegments)
)

// run is a stretch of the sampling clock that was billed to a segment.
type run struct {
	segment  int
	from, to uint64
}

// maxRuns bounds what Stop at an earlier time can take back: each pause or gap starts a run, and a fault is found within a few.
const maxRuns = 64

// State is where a meter stands.
type State uint8

// The states.
const (
	Idle    State = 0 // before the first Start, or after [Decode]
	Running State = 1
	Paused  State = 2
	Stopped State = 3
)

// Meter is one lane's accumulator. Not safe for concurrent use. Times are milliseconds of one monotonic clock.
type Meter struct {
	segments []Segment
	state    State
	last     uint64 // time of the last sample, while Running
	maxGap   uint64
	runs     []run
	gaps     uint64
}

// New makes a meter that bills no stretch of more than maxGap milliseconds between two samples: the machine was asleep, or the daemon
// not there to see the job run. 2.5 ticks is what agents use.
func New(maxGap uint64) *Meter { return &Meter{maxGap: maxGap} }

// Start begins to bill devices at rate from now on. On a running meter it first bills up to now and then changes the rate.
func (m *Meter) Start(rate money.Rate, devices uint32, now uint64) error {
	if m.state == Stopped {
		return fmt.Errorf("start meter: %w: it was stopped", ErrState)
	}
	if m.state == Running {
		if err := m.Sample(now); err != nil {
			return err
		}
	}
	n := len(m.segments)
	if n == 0 || m.segments[n-1].Rate != rate || m.segments[n-1].Devices != devices {
		if n == MaxSegments {
			return fmt.Errorf("start meter: %w", ErrSegments)
		}
		m.segments = append(m.segments, Segment{Rate: rate, Devices: devices})
	}
	m.resume(now)
	return nil
}

func (m *Meter) resume(now uint64) {
	m.state, m.last = Running, now
	m.runs = append(m.runs, run{segment: len(m.segments) - 1, from: now, to: now})
	if len(m.runs) > maxRuns {
		m.runs = append(m.runs[:0], m.runs[len(m.runs)-maxRuns:]...)
	}
}

// Sample bills the time since the last sample if the meter runs. A gap over the meter's limit, or a clock that went back, is not
// billed: billing goes on from now.
func (m *Meter) Sample(now uint64) error {
	if m.state == Stopped {
		return fmt.Errorf("sample meter: %w: it was stopped", ErrState)
	}
	if m.state != Running {
		return nil
	}
	if now < m.last || now-m.last > m.maxGap {
		m.gaps++
		m.resume(now)
		return nil
	}
	seg := &m.segments[len(m.segments)-1]
	if d := now - m.last; seg.Ms > math.MaxUint64-d {
		return fmt.Errorf("sample meter: %w", money.ErrOverflow)
	}
	seg.Ms += now - m.last
	m.last = now
	m.runs[len(m.runs)-1].to = now
	return nil
}

// Pause bills up to now and then nothing until Resume.
func (m *Meter) Pause(now uint64) error {
	if err := m.Sample(now); err != nil {
		return err
	}
	if m.state == Running {
		m.state = Paused
	}
	return nil
}

// Resume goes on billing at the same rate from now on: after Pause, or after [Decode], when the time in between is not billed.
func (m *Meter) Resume(now uint64) error {
	switch {
	case m.state == Running:
		return nil
	case m.state == Stopped, len(m.segments) == 0:
		return fmt.Errorf("resume meter: %w", ErrState)
	}
	m.resume(now)
	return nil
}

// Stop ends the charge at the time of a fault or of the job's end, which may lie before the last sample: what was billed after it is
// taken back (spec: ledger, Rules). A time after the last sample bills the rest, unless that is a gap. A second Stop changes nothing.
func (m *Meter) Stop(at uint64) error {
	if m.state == Stopped {
		return nil
	}
	if m.state == Running && at > m.last {
		if err := m.Sample(at); err != nil {
			return err
		}
	}
	for i := len(m.runs) - 1; i >= 0 && m.runs[i].to > at; i-- {
		r := m.runs[i]
		m.segments[r.segment].Ms -= r.to - max(at, r.from)
	}
	m.state, m.runs = Stopped, nil
	return nil
}

// Credit takes ms off what was billed, newest segment first, never below 0: the owner's reclaim credit, or a fault that was found
// after a crash.
func (m *Meter) Credit(ms uint64) {
	for i := len(m.segments) - 1; i >= 0 && ms > 0; i-- {
		d := min(ms, m.segments[i].Ms)
		m.segments[i].Ms -= d
		ms -= d
	}
	m.runs = nil
	if m.state == Running {
		m.resume(m.last)
	}
}

// State is where the meter stands.
func (m *Meter) State() State { return m.state }

// Gaps counts the stretches that were not billed because no sample came in time.
func (m *Meter) Gaps() uint64 { return m.gaps }

// Segments is a copy of what was billed so far.
func (m *Meter) Segments() []Segment { return append([]Segment(nil), m.segments...) }

// Billable is the milliseconds billed so far.
func (m *Meter) Billable() uint64 { return Billable(m.segments) }

// Charge is the cumulative charge so far.
func (m *Meter) Charge() (money.Micro, error) { return Charge(m.segments) }

// saved is a meter's persisted form: only what was billed. The sampling clock does not outlive the machine's boot.
type saved struct {
	Version  uint16    `cbor:"1,keyasint"`
	Segments []Segment `cbor:"2,keyasint"`
	Stopped  bool      `cbor:"3,keyasint"`
	MaxGap   uint64    `cbor:"4,keyasint"`
	Gaps     uint64    `cbor:"5,keyasint"`
}

// Encode gives the accumulator for the store, at each tick.
func (m *Meter) Encode() ([]byte, error) {
	return wire.Marshal(saved{Version: 1, Segments: m.segments, Stopped: m.state == Stopped, MaxGap: m.maxGap, Gaps: m.gaps})
}

// Decode reads what Encode gave. The meter bills nothing until Resume or Start: a crash is billed up to the last persisted tick.
func Decode(b []byte) (*Meter, error) {
	var s saved
	if err := wire.UnmarshalStrict(b, &s); err != nil {
		return nil, fmt.Errorf("decode meter: %w", err)
	}
	if s.Version != 1 || len(s.Segments) > MaxSegments {
		return nil, fmt.Errorf("decode meter of version %d with %d segments: %w", s.Version, len(s.Segments), wire.ErrFormat)
	}
	m := &Meter{segments: s.Segments, maxGap: s.MaxGap, gaps: s.Gaps}
	if s.Stopped {
		m.state = Stopped
	}
	return m, nil
}
