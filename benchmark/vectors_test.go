package benchmark_test

import (
	"testing"

	"github.com/gpufair/gpufair/benchmark"
	"github.com/gpufair/gpufair/p2p/identity/identitytest"
	"github.com/gpufair/gpufair/p2p/wire"
)

// The exact bytes of a passport, for other programs and for our own later ones.
func TestVectors(t *testing.T) {
	dev := identitytest.Provider(t).Device
	const finished, month = 1_796_029_200_000, 30 * 24 * 3600 * 1000 // Unix milliseconds, milliseconds
	v, raw := identitytest.Signed(t, "passport of a CPU", dev, benchmark.DomainPassport, benchmark.Passport{
		Header: dev.Header(1), Delegation: dev.DelegationHash(), DeviceHash: wire.Sum("gpufair/test", []byte("cpu")), Kind: benchmark.KindCPU,
		Model: "AMD Ryzen 7 5800X 8-Core Processor", Cores: benchmark.Cores{0, 1}, KernelSet: 1, OS: "linux 6.1.0 amd64", Profile: benchmark.Quick,
		Started: finished - 40_000, Finished: finished, Expires: finished + month,
		Measurements: []benchmark.Measurement{{
			Figure: benchmark.FigureFP32Matmul, Kernel: benchmark.KernelOpenBLAS, KernelName: "openblas 0.3.21 (Zen)", Size: "n=1024",
			Stats: benchmark.Stats{Median: 87_300, P5: 86_900, P95: 87_500, Spread: 4_000, N: 20},
		}},
	})
	if _, err := benchmark.OpenPassport(raw); err != nil {
		t.Error(err)
	}
	identitytest.Check(t, "testdata/vectors.json", []identitytest.Vector{v})
}
