package suite

import (
	"fmt"
	"runtime/debug"
	"strings"

	"github.com/ebitengine/purego"
	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/gonum"

	"github.com/gpufair/gpufair/benchmark"
)

// openBLASLibrary is the name that Debian's libopenblas0-* packages and their like install.
const openBLASLibrary = "libopenblas.so.0"

// The codes of CBLAS (netlib's cblas.h) that we use.
const (
	cblasRowMajor = 101
	cblasNoTrans  = 111
)

// library is a linear algebra library: products of square matrices of n rows, row by row, c = a*b.
type library struct {
	family benchmark.KernelID
	name   string // with version and target
	sgemm  func(n int, a, b, c []float32)
	dgemm  func(n int, a, b, c []float64)
}

// side is the size of the matrices: one product then takes a good part of an interval, and enough work for each core.
func (l library) side(cores int) int {
	n := 1024
	switch {
	case cores > 16:
		n = 4096
	case cores > 2:
		n = 2048
	}
	if l.family == benchmark.KernelGonum {
		n /= 2 // several times slower
	}
	return n
}

// loadLibrary takes OpenBLAS under its file name with as many threads as cores, or gonum where it is not installed or not as we know
// it. The process must be bound to its cores before: the library starts its threads as it is loaded.
func loadLibrary(file string, cores int) library {
	l, err := openBLAS(file, cores)
	if err != nil {
		return goBLAS()
	}
	return l
}

func openBLAS(file string, cores int) (library, error) {
	handle, err := purego.Dlopen(file, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return library{}, fmt.Errorf("load %s: %w", file, err)
	}
	var (
		setThreads func(n int32)
		config     func() string
		core       func() string
		sgemm      func(order, ta, tb, m, n, k int32, alpha float32, a *float32, lda int32, b *float32, ldb int32, beta float32, c *float32, ldc int32)
		dgemm      func(order, ta, tb, m, n, k int32, alpha float64, a *float64, lda int32, b *float64, ldb int32, beta float64, c *float64, ldc int32)
	)
	for name, f := range map[string]any{
		"openblas_set_num_threads": &setThreads, "openblas_get_config": &config, "openblas_get_corename": &core,
		"cblas_sgemm": &sgemm, "cblas_dgemm": &dgemm,
	} {
		sym, err := purego.Dlsym(handle, name)
		if err != nil {
			return library{}, fmt.Errorf("load %s: %w", file, err)
		}
		purego.RegisterFunc(f, sym)
	}
	setThreads(int32(cores))
	return library{
		family: benchmark.KernelOpenBLAS, name: openBLASName(config(), core()),
		sgemm: func(n int, a, b, c []float32) {
			k := int32(n)
			sgemm(cblasRowMajor, cblasNoTrans, cblasNoTrans, k, k, k, 1, &a[0], k, &b[0], k, 0, &c[0], k)
		},
		dgemm: func(n int, a, b, c []float64) {
			k := int32(n)
			dgemm(cblasRowMajor, cblasNoTrans, cblasNoTrans, k, k, k, 1, &a[0], k, &b[0], k, 0, &c[0], k)
		},
	}, nil
}

// openBLASName makes "openblas 0.3.21 (Zen)" of the library's own words ("OpenBLAS 0.3.21 NO_LAPACKE DYNAMIC_ARCH … MAX_THREADS=64").
func openBLASName(config, core string) string {
	version := "of unknown version"
	if words := strings.Fields(config); len(words) > 1 {
		version = words[1]
	}
	name := fmt.Sprintf("openblas %s (%s)", version, core)
	return name[:min(len(name), benchmark.MaxText)]
}

// goBLAS is gonum, which spreads a product over GOMAXPROCS goroutines by itself.
func goBLAS() library {
	var name strings.Builder
	name.WriteString("gonum")
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if m.Path == "gonum.org/v1/gonum" {
				name.WriteString(" " + strings.TrimPrefix(m.Version, "v"))
			}
		}
	}
	var impl gonum.Implementation
	return library{
		family: benchmark.KernelGonum, name: name.String(),
		sgemm: func(n int, a, b, c []float32) {
			impl.Sgemm(blas.NoTrans, blas.NoTrans, n, n, n, 1, a, n, b, n, 0, c, n)
		},
		dgemm: func(n int, a, b, c []float64) {
			impl.Dgemm(blas.NoTrans, blas.NoTrans, n, n, n, 1, a, n, b, n, 0, c, n)
		},
	}
}
