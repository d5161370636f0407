// Package gpu speaks with NVIDIA's driver. It runs only inside the supervised child, is the sole importer of NVML and the only
// package with cgo, and tells what the driver says; it measures nothing yet, and knows no offer and no price.
package gpu

import (
	"context"

	"github.com/gpufair/gpufair/benchmark"
)

// Detect asks the driver for its cards. It never fails: without a usable driver the answer has a [benchmark.Problem] that says what
// to do. It may block for ever on a hung card, whatever ctx says: the child's supervisor has the deadline. Its problems' codes:
// "no_nvml" (this program was built without it), "no_library", "old_driver", "no_driver", "version_mismatch", "no_permission",
// "no_card", "lost", "power", "driver_error".
func Detect(ctx context.Context) benchmark.GPUs {
	if err := ctx.Err(); err != nil {
		return benchmark.GPUs{Problem: &benchmark.Problem{Code: "driver_error", Text: "asking for cards: " + err.Error(), Advice: "try again"}}
	}
	return detect()
}
