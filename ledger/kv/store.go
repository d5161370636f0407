package kv

import (
	"context"
	"fmt"
)

// Store is an engine with its owners, writers and schema in order. Safe for concurrent use.
type Store struct {
	engine Engine
	// writer holds a token while an Update runs; a channel, so that waiting for it ends with the caller's context.
	writer chan struct{}
	broken error // guarded by writer: why no write may follow
}

// View calls fn with a snapshot of the store. Writes in fn give ErrReadOnly. It never waits for a writer.
func (s *Store) View(ctx context.Context, fn func(*Txn) error) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("read store: %w", err)
	}
	return s.engine.View(ctx, func(r Reader) error {
		t := &Txn{base: r, view: true}
		defer t.end()
		return fn(t)
	})
}

// Update calls fn once, alone among writers, and commits what it wrote if it returns nil; any error of fn means that nothing was
// written. Free space is checked before fn runs. ctx may end the wait for other writers; once fn has returned nil the commit is made
// whatever ctx says, because fn may have written a journal. If the commit fails, the error wraps ErrUnknown and so does that of every
// Update after it. fn must not call Update of the same store: it would wait for itself until ctx ends.
func (s *Store) Update(ctx context.Context, fn func(*Txn) error) error {
	select {
	case s.writer <- struct{}{}:
		defer func() { <-s.writer }()
	case <-ctx.Done():
		return fmt.Errorf("write store: %w", ctx.Err())
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("write store: %w", err)
	}
	if s.broken != nil {
		return fmt.Errorf("write store: an earlier commit failed; restart the daemon to reopen the store: %w", s.broken)
	}
	if err := s.engine.Writable(ctx); err != nil {
		return err
	}
	var writes []Write
	err := s.engine.View(ctx, func(r Reader) (err error) {
		t := &Txn{base: r}
		defer t.end()
		if err := fn(t); err != nil {
			return err
		}
		if writes = t.Writes(); len(writes) > 0 {
			writes, err = withSum(r, writes)
		}
		return err
	})
	if err != nil || len(writes) == 0 {
		return err
	}
	if err := s.engine.Apply(context.WithoutCancel(ctx), writes); err != nil {
		s.broken = fmt.Errorf("%w: %w", ErrUnknown, err)
		return fmt.Errorf("commit: %w", s.broken)
	}
	return nil
}

// Close closes the engine, after the Update under way.
func (s *Store) Close() error {
	s.writer <- struct{}{}
	defer func() { <-s.writer }()
	return s.engine.Close()
}
