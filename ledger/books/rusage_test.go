//go:build unix

package books

import (
	"syscall"
	"testing"
)

// processorSeconds is the processor time that this process has spent on all cores.
func processorSeconds(tb testing.TB) float64 {
	tb.Helper()
	var u syscall.Rusage
	must(tb, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}
