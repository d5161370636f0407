// Package gpu speaks with NVIDIA's driver. It runs only inside the supervised child, is the sole importer of NVML and the only
// package with cgo. It tells what the driver says, and makes a card a device of the suite by kernels of its own; it knows no offer and no
// price.
package gpu

import (
	"context"

	"github.com/gpufair/gpufair/benchmark"
	"github.com/gpufair/gpufair/benchmark/probe"
	"github.com/gpufair/gpufair/benchmark/suite"
)

// Driver is NVIDIA's, for the child's main.
func Driver() probe.Driver { return probe.Driver{Detect: Detect, Open: Open} }

// Detect asks the driver for its cards. It never fails: without a usable driver the answer has a [benchmark.Problem] that says what
// to do. It may block for ever on a hung card, whatever ctx says: the child's supervisor has the deadline. Its problems' codes:
// "no_nvml" (this program was built without it), "no_library", "old_driver", "no_driver", "version_mismatch", "no_permission",
// "no_card", "lost", "reset_required", "power", "driver_error"; where a card is in the machine, "not_installed" for "no_library" and "lost" for
// "no_card". Where
// cards are shown and no kernel can run, the answer's Compute says why: "no_cuda", "old_driver", "no_card", "version_mismatch",
// "cuda_compat", "no_uvm", "no_jit", "cuda_error".
func Detect(ctx context.Context) benchmark.GPUs {
	if err := ctx.Err(); err != nil {
		return benchmark.GPUs{Problem: &benchmark.Problem{Code: "driver_error", Text: "asking for cards: " + err.Error(), Advice: "try again"}}
	}
	return detect()
}

// Open makes the card of a UUID a device, for the calling goroutine. It is refused with a [benchmark.Problem] or in words for the owner
// when the card can't be measured as it is.
func Open(uuid string) (suite.Device, error) { return open(uuid) }
