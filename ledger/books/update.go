package books

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/p2p/identity"
)

// maxBatch is how many functions share one commit: with 4 KiB each they stay well under a transaction's limit (kv.MaxTxBytes).
const maxBatch = 128

// job is one call of Update.
type job struct {
	fn       func(*Tx) error
	err      error
	panicked any
	done     chan struct{}
}

// Update calls fn with a transaction and commits durably what it wrote, through fn's error nothing. It returns when the journal's Sync
// has: only then may anything be sent that depends on it. Functions run one at a time, each after everything committed or about to be
// committed before it; fn must not call Update or wait for the network. If fn's commit failed, the error wraps ErrUnknownOutcome, and
// the ledger is read-only until it is opened again. ctx may end the wait before fn runs.
func (b *Books) Update(ctx context.Context, fn func(*Tx) error) error {
	j := &job{fn: fn, done: make(chan struct{})}
	b.mu.Lock()
	b.queue = append(b.queue, j)
	b.mu.Unlock()
	for {
		select {
		case <-j.done:
			if j.panicked != nil {
				panic(j.panicked)
			}
			return j.err
		case b.leader <- struct{}{}:
			b.lead(ctx)
			<-b.leader
		case <-ctx.Done():
			if b.withdraw(j) {
				return fmt.Errorf("write ledger: %w", context.Cause(ctx))
			}
			ctx = context.WithoutCancel(ctx) // it is being committed: its outcome must be known
		}
	}
}

// withdraw takes a job out of the queue; false if it runs already.
func (b *Books) withdraw(j *job) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := len(b.queue)
	b.queue = slices.DeleteFunc(b.queue, func(q *job) bool { return q == j })
	return len(b.queue) < n
}

// lead commits the functions that wait, as one batch. The caller holds the leader's token.
func (b *Books) lead(ctx context.Context) {
	b.mu.Lock()
	n := min(len(b.queue), maxBatch)
	batch := slices.Clone(b.queue[:n])
	b.queue = slices.Delete(b.queue, 0, n)
	refuse := b.readOnly
	if b.closed {
		refuse = ErrClosed
	}
	b.mu.Unlock()
	if n == 0 {
		return
	}
	if refuse != nil {
		finish(batch, fmt.Errorf("write ledger: %w: %w", ErrReadOnly, refuse))
		return
	}
	again := b.commit(context.WithoutCancel(ctx), batch)
	if len(again) > 0 {
		b.mu.Lock()
		b.queue = append(again, b.queue...)
		b.mu.Unlock()
	}
}

// finish ends jobs whose functions have no error of their own with err.
func finish(jobs []*job, err error) {
	for _, j := range jobs {
		if j.err == nil {
			j.err = err
		}
		close(j.done)
	}
}

// commit runs the batch's functions in one transaction of the store, writes it to the journal as its last act, and gives back jobs that
// had no room in it.
func (b *Books) commit(ctx context.Context, batch []*job) (again []*job) {
	var ran []*job
	journaled := false
	err := b.config.Store.Update(ctx, func(t *kv.Txn) error {
		for i, j := range batch {
			err := j.run(b, t)
			if i > 0 && errors.Is(err, kv.ErrTooLarge) && len(t.Writes()) > 0 {
				again = batch[i:]
				break
			}
			j.err = err
			ran = append(ran, j)
		}
		if len(t.Writes()) == 0 {
			return nil
		}
		if err := save(t.Of(kv.Books), []byte(keySeq), b.seq+1); err != nil {
			return err
		}
		err := b.journal.append(record{Seq: b.seq + 1, Writes: t.Writes()})
		journaled = !errors.Is(err, errNotWritten) // from here on, an error leaves the outcome unknown
		return err
	})
	switch {
	case err != nil && journaled:
		err = fmt.Errorf("write ledger: %w: %w", ErrUnknownOutcome, err)
		b.mu.Lock()
		b.readOnly = err
		b.mu.Unlock()
		b.config.Log.Error("ledger is read-only until restart", "err", err)
	case err != nil:
		err = fmt.Errorf("write ledger: %w", err)
	case journaled:
		b.seq++
		b.after(ctx)
	}
	finish(ran, err)
	if err != nil && len(ran) == 0 && len(again) == 0 { // the store refused before any function ran
		finish(batch, err)
	}
	return again
}

// after does what may follow a commit: the head note and the journal's rotation. The commit itself is done; what fails here is logged
// and tried again with the next one.
func (b *Books) after(ctx context.Context) {
	if time.Since(b.noted) < headEvery {
		return
	}
	err := b.config.Store.View(ctx, func(t *kv.Txn) error { return b.note(newReader(b, t)) })
	if err != nil {
		b.config.Log.Warn("ledger's head note not written", "err", err)
		return
	}
	if b.journal.size >= rotateAt {
		b.rotate()
	}
}

// rotate begins a new journal. All records of the old one are in the store.
func (b *Books) rotate() {
	err := b.journal.begin()
	switch {
	case errors.Is(err, errNotWritten):
		b.config.Log.Warn("ledger's journal not rotated", "err", err)
	case err != nil:
		b.config.Log.Error("ledger's journal not rotated; read-only until restart", "err", err)
		b.mu.Lock()
		b.readOnly = err
		b.mu.Unlock()
	}
}

// run runs the job's function; what it wrote is taken back if it gives an error, but a proof of equivocation is kept.
func (j *job) run(b *Books, t *kv.Txn) error {
	err := t.Try(func() (err error) {
		defer func() {
			if p := recover(); p != nil {
				j.panicked, err = p, fmt.Errorf("write ledger: panic: %v", p)
			}
		}()
		return j.fn(&Tx{Reader: newReader(b, t), now: time.Now()})
	})
	var two *voucher.Equivocation
	if errors.As(err, &two) {
		err = errors.Join(err, keepFraud(t.Of(kv.Books), two))
	}
	var forked *Fork
	if errors.As(err, &forked) {
		err = errors.Join(err, keepFork(t.Of(kv.Books), forked, time.Now().UnixMilli()))
	}
	var heirs *TwoKeys
	if errors.As(err, &heirs) {
		err = errors.Join(err, keepTwoKeys(t.Of(kv.Books), *heirs, time.Now().UnixMilli()))
	}
	return err
}

// fraud is a kept proof.
type fraud struct {
	Have []byte `cbor:"1,keyasint"`
	Got  []byte `cbor:"2,keyasint"`
}

// check checks that a proof against a lane holds by itself: one device signed two vouchers of the lane with one sequence.
func (f fraud) check(lane []byte) error {
	one, err := voucher.Open(f.Have)
	if err != nil {
		return err
	}
	two, err := voucher.Open(f.Got)
	if err != nil {
		return err
	}
	if string(lane) != string(one.Lane[:]) || one.Lane != two.Lane || one.Device != two.Device || one.Seq != two.Seq ||
		one.Hash == two.Hash || identity.SameBody(f.Have, f.Got) {
		return fmt.Errorf("%w: vouchers %d of lane %s and %d of lane %s prove nothing against lane %x", ErrCorrupt,
			one.Seq, one.Lane.Short(), two.Seq, two.Lane.Short(), lane)
	}
	return nil
}

// keepFraud keeps the first proof against a lane: one is enough, and a renter who makes more must not fill the disk.
func keepFraud(t kv.Tx, e *voucher.Equivocation) error {
	k := key("fraud/", e.Lane[:])
	if have, err := raw(t, k); err != nil || have != nil {
		return err
	}
	return save(t, k, fraud{Have: e.Have, Got: e.Got})
}

// Fraud gives the kept proof that a lane's device signed two vouchers with one sequence: both of them, or nil.
func (r *Reader) Fraud(lane ledger.Lane) (have, got []byte, err error) {
	f, _, err := load[fraud](r.own, key("fraud/", lane[:]))
	return f.Have, f.Got, err
}

// View calls fn with a snapshot of what is committed. It never waits for an Update.
func (b *Books) View(ctx context.Context, fn func(*Reader) error) error {
	return b.config.Store.View(ctx, func(t *kv.Txn) error { return fn(newReader(b, t)) })
}
