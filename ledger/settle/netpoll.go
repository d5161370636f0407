package settle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/netting"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Times of what is done about open clearings without anybody asking.
const (
	pollEvery = 10 * time.Second // how often they are looked through
	pollMost  = time.Hour        // the longest pause for one of them; it doubles from pollEvery on
	pollFor   = 20 * time.Second // for one of them
)

// wait is when an open clearing is looked at again.
type wait struct {
	at    time.Time
	pause time.Duration
}

// Run asks the other members of open clearings for what this side lacks, and brings them what they lack, until ctx ends. It does so whether
// or not the owner consents to new ones: who has agreed is bound.
func (n *Net) Run(ctx context.Context) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		if err := n.Poll(ctx, false); err != nil && ctx.Err() == nil {
			n.c.Log.Warn("open clearings not looked through", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// Poll does once what Run does again and again: for the clearings whose time has come, or for all of them.
func (n *Net) Poll(ctx context.Context, all bool) error {
	var open []wire.Hash
	err := n.c.Books.View(ctx, func(r *books.Reader) (err error) { open, err = r.OpenClearings(); return err })
	if err != nil {
		return fmt.Errorf("look through open clearings: %w", err)
	}
	n.forgetWaits(open)
	var errs []error
	for _, id := range open {
		if ctx.Err() != nil {
			break
		}
		if n.due(id, all) {
			errs = append(errs, n.poll(ctx, id))
		}
	}
	return errors.Join(errs...)
}

// forgetWaits drops the pauses of clearings that are not open any more.
func (n *Net) forgetWaits(open []wire.Hash) {
	n.mu.Lock()
	defer n.mu.Unlock()
	kept := make(map[wire.Hash]wait, len(open))
	for _, id := range open {
		if w, ok := n.waits[id]; ok {
			kept[id] = w
		}
	}
	n.waits = kept
}

// due reports whether a clearing's time has come, and sets the next one.
func (n *Net) due(id wire.Hash, now bool) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	w := n.waits[id]
	if n.running[id] || !now && time.Now().Before(w.at) {
		return false
	}
	w.pause = min(max(2*w.pause, pollEvery), pollMost)
	w.at = time.Now().Add(w.pause)
	n.waits[id] = w
	return true
}

// poll does what is to be done about one clearing.
func (n *Net) poll(ctx context.Context, id wire.Hash) error {
	ctx, cancel := context.WithTimeout(ctx, pollFor)
	defer cancel()
	var v books.Netted
	err := n.c.Books.View(ctx, func(r *books.Reader) (err error) { v, err = r.Clearing(id); return err })
	if err != nil {
		return err
	}
	if v.State == netting.Prepared { // of an earlier process: this device has not signed, so nothing has come of it
		return n.giveUp(ctx, v.Terms)
	}
	for _, d := range v.Terms.Devices() {
		if d == v.Self || ctx.Err() != nil || v.State == netting.Cleared && !slices.Contains(v.Untold(v.Self), d) {
			continue
		}
		if v, err = n.exchange(ctx, id, v, d); err != nil {
			return err
		}
		if !v.State.Reserves() && v.State != netting.Cleared {
			return nil
		}
	}
	return nil
}

// exchange brings one member what this side knows of a clearing, and takes what that one knows.
func (n *Net) exchange(ctx context.Context, id wire.Hash, v books.Netted, d identity.PeerID) (books.Netted, error) {
	got, err := n.ask(ctx, d, NetAsk{News: &NetNews{
		Terms: v.Terms, Words: v.Words(), Free: time.Now().UnixMilli() > v.Terms.Deadline, Booked: v.State == netting.Cleared,
	}})
	if err != nil {
		n.c.Log.Debug("member of a clearing not asked", "clearing", id.Short(), "peer", d, "err", err)
		return v, nil
	}
	err = n.c.Books.Update(context.WithoutCancel(ctx), func(tx *books.Tx) error {
		if _, err := tx.HearClearing(v.Terms, got.Words); err != nil && !badWord(err) {
			return err
		}
		if v, err = tx.Clearing(id); err != nil {
			return err
		}
		if v.State != netting.Cleared || !slices.Contains(got.Has, d) {
			return nil
		}
		if err := tx.ToldClearing(id, d); err != nil {
			return err
		}
		v, err = tx.Clearing(id)
		return err
	})
	return v, err
}
