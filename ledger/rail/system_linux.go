package rail

import (
	"math"
	"syscall"

	"golang.org/x/sys/unix"
)

// bind has the kernel end the program when the thread that started it ends: a daemon that was killed leaves none behind, which the next
// one would run a second time beside it. It also keeps from it what this process itself inherited; Go's own files are marked already.
func bind(a *syscall.SysProcAttr) {
	a.Pdeathsig = syscall.SIGKILL
	_ = unix.CloseRange(3, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC) // since Linux 5.11
}
