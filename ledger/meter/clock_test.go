package meter_test

import (
	"testing"

	"github.com/gpufair/gpufair/ledger/meter"
	"github.com/gpufair/gpufair/ledger/money"
)

// machine is a computer's clocks. Running time passes on all of them; sleep counts on the one that counts it (CLOCK_BOOTTIME, or any on
// systems where the steady clock goes on in sleep); a step moves the wall clock alone, which nobody meters by.
type machine struct{ steady, withSleep, wall int64 }

func (m *machine) run(ms int64)   { m.steady += ms; m.withSleep += ms; m.wall += ms }
func (m *machine) sleep(ms int64) { m.withSleep += ms; m.wall += ms }
func (m *machine) step(ms int64)  { m.wall += ms }

// Clocks that are stepped by hours and machines that are suspended for hours, on either side or both: what is billed is the time that the
// job was seen to run, whichever clock the provider's system has, and the renter signs that and no more.
func TestClocksAndSuspend(t *testing.T) {
	const (
		tick  = 10_000
		hours = 3 * 3_600_000
		perMs = 3_600_000 // micro-units per device-hour
	)
	type sides struct{ provider, renter *machine }
	for name, c := range map[string]struct {
		happens func(s sides)
		counts  bool  // the provider's steady clock counts sleep
		lost    int64 // of the time that passed on the renter's clock, what the provider did not see run
	}{
		"nothing":                              {func(sides) {}, false, 0},
		"provider's wall clock 3 h forward":    {func(s sides) { s.provider.step(hours) }, false, 0},
		"provider's wall clock 3 h back":       {func(s sides) { s.provider.step(-hours) }, false, 0},
		"renter's wall clock 3 h forward":      {func(s sides) { s.renter.step(hours) }, false, 0},
		"renter's wall clock 3 h back":         {func(s sides) { s.renter.step(-hours) }, false, 0},
		"provider suspended, clock stands":     {func(s sides) { s.provider.sleep(hours); s.renter.run(hours) }, false, hours},
		"provider suspended, clock goes on":    {func(s sides) { s.provider.sleep(hours); s.renter.run(hours) }, true, hours},
		"both suspended":                       {func(s sides) { s.provider.sleep(hours); s.renter.sleep(hours) }, true, hours},
		"provider suspended and clock stepped": {func(s sides) { s.provider.sleep(hours); s.provider.step(-hours); s.renter.run(hours) }, true, hours},
	} {
		s := sides{&machine{steady: 1, withSleep: 1}, &machine{steady: 1, withSleep: 1}}
		clock := func() uint64 {
			if c.counts {
				return uint64(s.provider.withSleep)
			}
			return uint64(s.provider.steady)
		}
		own := func() uint64 { return uint64(s.renter.withSleep) }
		claims, signs := meter.New(tick*5/2), meter.New(1<<63)
		must(t, claims.Start(perMs, 1, clock()))
		must(t, signs.Start(perMs, 1, own()))
		var amount, signed money.Micro
		for i := range 60 {
			s.provider.run(tick)
			s.renter.run(tick)
			if i == 30 {
				c.happens(s)
			}
			must(t, claims.Sample(clock()))
			must(t, signs.Sample(own()))
			var err error
			amount, err = meter.Charge(claims.Segments())
			must(t, err)
			signed, _, err = meter.Agree(amount, claims.Billable(), signs.Segments())
			must(t, err)
			if signed != amount {
				t.Fatalf("%s: tick %d: claimed %v, signed %v", name, i, amount, signed)
			}
		}
		ran := money.Micro(60 * tick)
		if c.lost > 0 && c.counts { // the interval in which the gap fell is not billed either
			ran -= tick
		}
		if amount != ran {
			t.Errorf("%s: billed %v for %v of running time", name, amount, ran)
		}
		if own := signs.Billable(); own != uint64(60*tick+c.lost) {
			t.Errorf("%s: the renter measured %d ms", name, own)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
