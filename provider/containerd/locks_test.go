package containerd

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"
)

func TestLocks(t *testing.T) {
	var l locks
	var all sync.WaitGroup
	inside := 0 // the race detector finds two at once
	for range 20 {
		all.Go(func() {
			unlock, err := l.lock(t.Context(), "a")
			if err != nil {
				t.Error(err)
				return
			}
			inside++
			unlock()
		})
	}
	all.Wait()
	if inside != 20 || len(l.held) != 0 {
		t.Errorf("%d were inside, %d ids are left", inside, len(l.held))
	}
	unlock, err := l.lock(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := l.lock(ctx, "a"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a taken id: %v", err)
	}
	other, err := l.lock(ctx, "b")
	if err != nil {
		t.Fatalf("another id: %v", err)
	}
	other()
}
