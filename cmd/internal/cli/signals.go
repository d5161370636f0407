package cli

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// Stop is a context that SIGINT or SIGTERM cancels. A second signal ends the process at once, as if nobody listened. Call stop when
// done.
func Stop(parent context.Context) (ctx context.Context, stop context.CancelFunc) {
	ctx, stop = signal.NotifyContext(parent, os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

// Interrupt is one Ctrl-C or SIGTERM of several.
type Interrupt struct {
	Count  int // 1 for the first
	Signal os.Signal
}

// Interrupts reports each Ctrl-C and SIGTERM with its number, for `run`: the first goes to the job, the second releases the lease. The
// third ends the process at once, whatever it is doing. Nothing is cancelled by itself. Call stop when done; the channel is then
// closed.
func Interrupts() (<-chan Interrupt, context.CancelFunc) {
	in := make(chan os.Signal, 4)
	signal.Notify(in, os.Interrupt, syscall.SIGTERM)
	out := count(in, func() { os.Exit(int(ExitInterrupted)) })
	ctx, cancel := context.WithCancel(context.Background())
	context.AfterFunc(ctx, func() {
		signal.Stop(in) // after it nothing sends on in any more
		close(in)
	})
	return out, cancel
}

// count numbers signals until in is closed. The third calls abandon.
func count(in <-chan os.Signal, abandon func()) <-chan Interrupt {
	out := make(chan Interrupt, 2) // nobody may be listening: the count must go on
	go func() {
		defer close(out)
		n := 0
		for s := range in {
			n++
			if n >= 3 {
				abandon()
				return
			}
			out <- Interrupt{Count: n, Signal: s}
		}
	}()
	return out
}
