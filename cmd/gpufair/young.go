package main

import (
	"context"
	"time"

	"github.com/gpufair/gpufair/renter/control/api"
)

const (
	youngFor  = 6 * time.Second // until an agent that knows no offer after its start has none to hear of
	youngPoll = 200 * time.Millisecond
)

// connectMarket is connect for what needs offers: an agent that has just started gets a few seconds to hear of them.
func (a *app) connectMarket(ctx context.Context) (api.Client, error) {
	c, err := a.connect(ctx)
	if err != nil {
		return c, err
	}
	err = heard(ctx, c.Status, func() { a.Note("gpufair: the agent has just started: it looks for offers") })
	if err != nil {
		return c, explained("reach the agent", err)
	}
	return c, nil
}

// heard waits until an agent that has just started knows an offer, and youngFor at most. say is called once, if it waits.
func heard(ctx context.Context, status func(context.Context) (api.Status, error), say func()) error {
	poll := time.NewTicker(youngPoll)
	defer poll.Stop()
	for end := time.Now().Add(youngFor); ; {
		s, err := status(ctx)
		if err != nil || s.Offers > 0 || time.Since(s.Since) >= youngFor || !time.Now().Before(end) {
			return err
		}
		if say != nil {
			say()
			say = nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-poll.C:
		}
	}
}
