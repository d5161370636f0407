package main

import (
	"context"
	"path/filepath"

	"github.com/rogpeppe/go-internal/lockedfile"

	"github.com/gpufair/gpufair/cmd/internal/cli"
)

// startLock is held by a command while it starts an agent, so that two commands start only one.
func startLock(d cli.Dirs) string { return filepath.Join(d.Run, "agent.start") }

// lifeLock is held by an agent from before it opens its store until after it has closed it: longer than its socket answers.
func lifeLock(d cli.Dirs) string { return filepath.Join(d.Run, "agent.life") }

// lock takes a lock between processes, waiting until ctx ends. A killed process holds none.
func lock(ctx context.Context, path string) (unlock func(), err error) {
	type held struct {
		unlock func()
		err    error
	}
	got := make(chan held)
	go func() { // the system's call can't be cancelled
		unlock, err := lockedfile.MutexAt(path).Lock()
		select {
		case got <- held{unlock, err}:
		case <-ctx.Done():
			if err == nil {
				unlock()
			}
		}
	}()
	select {
	case h := <-got:
		return h.unlock, h.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
