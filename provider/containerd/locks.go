package containerd

import (
	"context"
	"sync"
)

// locks is a mutex for each id. Its zero value is ready.
type locks struct {
	mu   sync.Mutex
	held map[string]chan struct{} // guarded by mu; closed when the id is free
}

// lock takes the id and gives what frees it; it fails only when ctx ends.
func (l *locks) lock(ctx context.Context, id string) (func(), error) {
	for {
		l.mu.Lock()
		other, taken := l.held[id]
		if !taken {
			if l.held == nil {
				l.held = map[string]chan struct{}{}
			}
			mine := make(chan struct{})
			l.held[id] = mine
			l.mu.Unlock()
			return func() {
				l.mu.Lock()
				delete(l.held, id)
				l.mu.Unlock()
				close(mine)
			}, nil
		}
		l.mu.Unlock()
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-other:
		}
	}
}
