package containerd_test

import (
	"fmt"
	"os/exec"
	"testing"

	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/provider/providertest"
)

// BenchmarkStart measures from nothing to a running job, and to its end and deletion, against "ctr run --rm" of the same image.
func BenchmarkStart(b *testing.B) {
	d, rig := newRig(b)
	img := rig.Import(b)
	n := 0
	b.Run("gpufair to running", func(b *testing.B) {
		for b.Loop() {
			n++
			j := rig.Create(b, fmt.Sprintf("be4c%d", n), providertest.Policy(), work.Spec{Command: []string{"/bin/job", "exit", "0"}})
			j.Start(b)
			b.StopTimer()
			j.Finish(b)
			rig.Remove(b, j.ID)
			b.StartTimer()
		}
	})
	b.Run("gpufair in all", func(b *testing.B) {
		for b.Loop() {
			n++
			j := rig.Create(b, fmt.Sprintf("be4c%d", n), providertest.Policy(), work.Spec{Command: []string{"/bin/job", "exit", "0"}})
			j.Start(b)
			j.Finish(b)
		}
	})
	b.Run("ctr run in all", func(b *testing.B) {
		for b.Loop() {
			n++
			cmd := exec.Command("ctr", "--address", d.Address, "-n", "gpufair-test", "run", "--rm", "--runc-root", d.RuntimeRoot,
				"gpufair/"+img.Digest, fmt.Sprintf("be4c%d", n), "/bin/job", "exit", "0")
			if out, err := cmd.CombinedOutput(); err != nil {
				b.Fatalf("%v: %s", err, out)
			}
		}
	})
}
