package main

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpufair/gpufair/renter/control/api"
)

// An agent that has just started is waited for until it knows an offer; an older one is taken at its word.
func TestYoungAgent(t *testing.T) {
	broken := errors.New("gone")
	for name, x := range map[string]struct {
		age    time.Duration           // of the agent at the first question
		offers func(time.Duration) int // that it knows, by the time since that
		err    error
		want   time.Duration // until the command goes on
		said   int
	}{
		"it knows one":        {0, func(time.Duration) int { return 1 }, nil, 0, 0},
		"it hears of one":     {0, func(d time.Duration) int { return int(d / (2 * time.Second)) }, nil, 2 * time.Second, 1},
		"there are none":      {0, func(time.Duration) int { return 0 }, nil, youngFor, 1},
		"there are none yet":  {5 * time.Second, func(time.Duration) int { return 0 }, nil, youngFor - 5*time.Second, 1},
		"it runs for long":    {time.Hour, func(time.Duration) int { return 0 }, nil, 0, 0},
		"its clock is ahead":  {-time.Hour, func(time.Duration) int { return 0 }, nil, youngFor, 1},
		"it does not answer ": {0, func(time.Duration) int { return 0 }, broken, 0, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			begin, said := time.Now(), 0
			status := func(context.Context) (api.Status, error) {
				return api.Status{Since: begin.Add(-x.age), Offers: x.offers(time.Since(begin))}, x.err
			}
			if err := heard(t.Context(), status, func() { said++ }); !errors.Is(err, x.err) {
				t.Errorf("%s: %v", name, err)
			}
			if took := time.Since(begin); took != x.want || said != x.said {
				t.Errorf("%s: after %v, want %v; said so %d times", name, took, x.want, said)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) { // Ctrl-C
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		status := func(context.Context) (api.Status, error) { return api.Status{Since: time.Now()}, nil }
		if err := heard(ctx, status, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
}
