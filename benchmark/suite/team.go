package suite

import (
	"errors"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/gpufair/gpufair/benchmark"
)

// team is one worker on each core, each on a thread of its own that is bound to it.
type team struct {
	work []chan func() // one worker each
	done sync.WaitGroup
}

func newTeam(cores benchmark.Cores) (*team, error) {
	t := &team{}
	ready := make(chan error)
	for _, c := range cores {
		work := make(chan func())
		t.work = append(t.work, work)
		t.done.Go(func() {
			runtime.LockOSThread() // and never unlocked: the bound thread ends with its goroutine
			ready <- unix.SchedSetaffinity(0, maskOf(benchmark.Cores{c}))
			for f := range work {
				f()
			}
		})
	}
	var errs []error
	for range cores {
		errs = append(errs, <-ready)
	}
	if err := errors.Join(errs...); err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}

// do runs f on every worker at once and returns when all are done.
func (t *team) do(f func(worker int)) {
	var wg sync.WaitGroup
	wg.Add(len(t.work))
	for i, work := range t.work {
		work <- func() { defer wg.Done(); f(i) }
	}
	wg.Wait()
}

func (t *team) close() {
	for _, work := range t.work {
		close(work)
	}
	t.done.Wait()
}
