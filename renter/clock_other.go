//go:build !linux

package renter

import (
	"sync"
	"time"
)

// monotonic is milliseconds since the first call. Go's clock stands still while Windows or macOS sleep; a claim for that time is cut to
// this side's own measure, never paid too high.
func monotonic() uint64 { return uint64(time.Since(start()) / time.Millisecond) }

var start = sync.OnceValue(time.Now)
