package meter_test

import (
	"errors"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/gpufair/gpufair/ledger/meter"
	"github.com/gpufair/gpufair/ledger/money"
)

const gap = 25_000 // 2.5 ticks

// step is one call of a table test.
type step struct {
	do string
	at uint64
}

func play(t *testing.T, steps []step) *meter.Meter {
	t.Helper()
	m := meter.New(gap)
	for _, s := range steps {
		var err error
		switch s.do {
		case "start":
			err = m.Start(3_600_000, 1, s.at) // one micro-unit a millisecond
		case "double":
			err = m.Start(7_200_000, 1, s.at)
		case "sample":
			err = m.Sample(s.at)
		case "pause":
			err = m.Pause(s.at)
		case "resume":
			err = m.Resume(s.at)
		case "stop":
			err = m.Stop(s.at)
		case "crash":
			var b []byte
			if b, err = m.Encode(); err == nil {
				m, err = meter.Decode(b)
			}
		}
		if err != nil {
			t.Fatalf("%s at %d: %v", s.do, s.at, err)
		}
	}
	return m
}

func TestMeter(t *testing.T) {
	for name, c := range map[string]struct {
		steps []step
		ms    uint64
		cost  money.Micro
	}{
		"plain":                        {[]step{{"start", 100}, {"sample", 10_100}, {"sample", 20_100}}, 20_000, 20_000},
		"before the start is free":     {[]step{{"sample", 50}, {"start", 10_000}, {"sample", 11_000}}, 1000, 1000},
		"stop bills the rest":          {[]step{{"start", 0}, {"sample", 10_000}, {"stop", 12_000}}, 12_000, 12_000},
		"stop twice":                   {[]step{{"start", 0}, {"sample", 10_000}, {"stop", 4000}, {"stop", 9000}}, 4000, 4000},
		"pause is free":                {[]step{{"start", 0}, {"pause", 1000}, {"sample", 9000}, {"resume", 10_000}, {"sample", 11_000}}, 2000, 2000},
		"gap is free":                  {[]step{{"start", 0}, {"sample", 10_000}, {"sample", 10_001 + gap}, {"sample", 20_001 + gap}}, 20_000, 20_000},
		"longest step is billed":       {[]step{{"start", 0}, {"sample", gap}}, gap, gap},
		"clock back is free":           {[]step{{"start", 50_000}, {"sample", 51_000}, {"sample", 1000}, {"sample", 2000}}, 2000, 2000},
		"clock to the end":             {[]step{{"start", 0}, {"sample", math.MaxUint64}, {"sample", 5}}, 0, 0},
		"fault before the last sample": {[]step{{"start", 0}, {"sample", 10_000}, {"sample", 20_000}, {"stop", 13_000}}, 13_000, 13_000},
		"fault before a pause": {
			[]step{{"start", 0}, {"sample", 5000}, {"pause", 6000}, {"resume", 8000}, {"sample", 9000}, {"stop", 5500}}, 5500, 5500,
		},
		"fault in a pause":        {[]step{{"start", 0}, {"pause", 6000}, {"resume", 8000}, {"sample", 9000}, {"stop", 7000}}, 6000, 6000},
		"fault in a gap":          {[]step{{"start", 0}, {"sample", 5000}, {"sample", 90_000}, {"sample", 91_000}, {"stop", 50_000}}, 5000, 5000},
		"fault before the start":  {[]step{{"start", 1000}, {"sample", 5000}, {"stop", 0}}, 0, 0},
		"fault long after":        {[]step{{"start", 0}, {"sample", 5000}, {"stop", 500_000}}, 5000, 5000},
		"rate change":             {[]step{{"start", 0}, {"double", 1000}, {"sample", 2000}}, 2000, 3000},
		"fault before the change": {[]step{{"start", 0}, {"sample", 900}, {"double", 1000}, {"sample", 2000}, {"stop", 500}}, 500, 500},
		"crash bills the last tick": {
			[]step{{"start", 0}, {"sample", 10_000}, {"crash", 0}, {"resume", 19_000}, {"sample", 20_000}}, 11_000, 11_000,
		},
		"crash on another boot":   {[]step{{"start", 90_000}, {"sample", 95_000}, {"crash", 0}, {"resume", 10}, {"sample", 1010}}, 6000, 6000},
		"crash, never seen again": {[]step{{"start", 0}, {"sample", 10_000}, {"crash", 0}, {"sample", 20_000}, {"stop", 20_000}}, 10_000, 10_000},
		"crash keeps the stop":    {[]step{{"start", 0}, {"sample", 10_000}, {"stop", 9000}, {"crash", 0}, {"stop", 1}}, 9000, 9000},
	} {
		m := play(t, c.steps)
		cost, err := m.Charge()
		if err != nil || m.Billable() != c.ms || cost != c.cost {
			t.Errorf("%s: %d ms cost %d, %v; want %d and %d", name, m.Billable(), uint64(cost), err, c.ms, uint64(c.cost))
		}
	}
}

func TestStates(t *testing.T) {
	stopped := play(t, []step{{"start", 0}, {"stop", 5}})
	for name, err := range map[string]error{
		"sample": stopped.Sample(9), "start": stopped.Start(1, 1, 9), "resume": stopped.Resume(9), "pause": stopped.Pause(9),
		"resume before start": meter.New(gap).Resume(0),
	} {
		if !errors.Is(err, meter.ErrState) {
			t.Errorf("%s: %v", name, err)
		}
	}
	m := meter.New(gap)
	for i := range uint64(meter.MaxSegments) {
		if err := m.Start(money.Rate(i), 1, i); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.Start(1, 9, meter.MaxSegments); !errors.Is(err, meter.ErrSegments) {
		t.Error(err)
	}
}

func TestCredit(t *testing.T) {
	m := play(t, []step{{"start", 0}, {"double", 10_000}, {"sample", 12_000}})
	m.Credit(3000)
	if c, err := m.Charge(); err != nil || c != 9000 {
		t.Fatal(c, err)
	}
	m.Credit(1 << 60)
	if c, err := m.Charge(); err != nil || c != 0 {
		t.Fatal(c, err)
	}
	if err := m.Sample(13_000); err != nil || m.Billable() != 1000 {
		t.Fatal(m.Billable(), err)
	}
}

// However time passes, a meter never bills more than the time that passed, never what was paused, and a stop at any earlier moment
// bills exactly what a meter that was stopped then would have.
func TestNeverTooMuch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, now, ran := meter.New(gap), uint64(1000), uint64(0)
		faultAt := rapid.Uint64Range(0, 400_000).Draw(t, "fault")
		if err := m.Start(1_000_000, 2, now); err != nil {
			t.Fatal(err)
		}
		running, before := true, uint64(0) // before: billed up to faultAt
		for range rapid.IntRange(0, 30).Draw(t, "steps") {
			d := rapid.Uint64Range(0, 2*gap).Draw(t, "d")
			if running && d <= gap {
				ran += d
				if now < faultAt {
					before += min(d, faultAt-now)
				}
			}
			now += d
			var err error
			switch rapid.IntRange(0, 2).Draw(t, "act") {
			case 0:
				err = m.Sample(now)
			case 1:
				err, running = m.Pause(now), false
			case 2:
				if running {
					err = m.Sample(now)
				}
				err, running = errors.Join(err, m.Resume(now)), true
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if m.Billable() != ran {
			t.Fatalf("billed %d of %d ms", m.Billable(), ran)
		}
		if faultAt > now {
			return
		}
		if err := m.Stop(faultAt); err != nil || m.Billable() != before {
			t.Fatalf("stopped at %d of %d: billed %d, want %d, %v", faultAt, now, m.Billable(), before, err)
		}
	})
}

func TestAgree(t *testing.T) {
	own := []meter.Segment{{Rate: 3_600_000, Devices: 1, Ms: 100_000}}
	for name, c := range map[string]struct {
		amount money.Micro
		ms     uint64
		want   money.Micro
	}{
		"honest":              {100_000, 100_000, 100_000},
		"within tolerance":    {102_050, 102_050, 102_050},
		"a millisecond over":  {102_051, 102_051, 102_050},
		"far over":            {900_000, 900_000, 102_050},
		"less":                {40_000, 40_000, 40_000},
		"cheaper than its ms": {40_000, 100_000, 40_000},
		"dearer than its ms":  {90_000, 40_000, 40_000},
		"nothing":             {0, 0, 0},
	} {
		got, segs, err := meter.Agree(c.amount, c.ms, own)
		if err != nil || got != c.want {
			t.Errorf("%s: %d, %v; want %d", name, uint64(got), err, uint64(c.want))
		}
		if most, err := meter.Charge(segs); err != nil || most < got {
			t.Errorf("%s: segments come to %d", name, uint64(most))
		}
	}
	if own[0].Ms != 100_000 {
		t.Error("Agree changed its input")
	}
	if got, _, err := meter.Agree(5, 5, nil); got != 0 || err != nil {
		t.Error("a job that never ran here costs nothing:", got, err)
	}
}

// The renter never signs more than the claim, nor more than its own measure with the tolerance.
func TestAgreeBound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var own []meter.Segment
		for range rapid.IntRange(1, 4).Draw(t, "segments") {
			own = append(own, meter.Segment{
				Rate: money.Rate(rapid.Uint64Range(0, 1e9).Draw(t, "rate")), Devices: rapid.Uint32Range(1, 8).Draw(t, "devices"),
				Ms: rapid.Uint64Range(0, 1e8).Draw(t, "ms"),
			})
		}
		claim := money.Micro(rapid.Uint64Range(0, 1e15).Draw(t, "claim"))
		ms := rapid.Uint64Range(0, 1e9).Draw(t, "claimed ms")
		got, segs, err := meter.Agree(claim, ms, own)
		if err != nil {
			t.Fatal(err)
		}
		if got > claim || meter.Billable(segs) > meter.Tolerance(meter.Billable(own)) || meter.Billable(segs) > ms {
			t.Fatalf("signs %d for a claim of %d, %d ms of %d claimed", uint64(got), uint64(claim), meter.Billable(segs), ms)
		}
	})
}

func TestOverflow(t *testing.T) {
	huge := []meter.Segment{{Rate: math.MaxUint64, Devices: math.MaxUint32, Ms: math.MaxUint64}}
	if _, err := meter.Charge(huge); !errors.Is(err, money.ErrOverflow) {
		t.Error(err)
	}
	if _, err := meter.Quantity(huge); !errors.Is(err, money.ErrOverflow) {
		t.Error(err)
	}
	if meter.Tolerance(math.MaxUint64) != math.MaxUint64 || meter.Billable(append(huge, huge...)) != math.MaxUint64 {
		t.Error("ends of the range")
	}
}

func FuzzDecode(f *testing.F) {
	m := meter.New(gap)
	if err := m.Start(5, 1, 0); err != nil {
		f.Fatal(err)
	}
	b, err := m.Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := meter.Decode(b)
		if err != nil {
			return
		}
		if _, err := m.Encode(); err != nil {
			t.Fatal(err)
		}
		m.Credit(1)
		_ = m.Stop(1)
	})
}
