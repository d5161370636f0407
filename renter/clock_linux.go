package renter

import (
	"time"

	"golang.org/x/sys/unix"
)

// monotonic is milliseconds of a clock that never steps and counts the machine's own sleep (CLOCK_BOOTTIME), so that a laptop that
// slept does not call an honest claim too high.
func monotonic() uint64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return uint64(time.Since(time.Time{}) / time.Millisecond) // no Linux that Go supports lacks it
	}
	return uint64(ts.Nano() / int64(time.Millisecond))
}
