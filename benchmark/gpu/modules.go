//go:build linux && cgo

package gpu

import (
	_ "embed"
	"errors"
	"fmt"
)

// The kernels as text for the driver's compiler, built from kernels/bench.cu by kernels/build.sh (make ptx).
var (
	//go:embed kernels/base.ptx
	basePTX string
	//go:embed kernels/main.ptx
	mainPTX string
	//go:embed kernels/fp8.ptx
	fp8PTX string
)

// ptxFile is one of them, with the oldest card and driver that can run it. A driver compiles it for any later card, too.
type ptxFile struct {
	name string
	text string
	cc   int // compute capability times 10
	cuda int // the driver's CUDA version, as 12040 for 12.4
}

// ptxFiles: the ISA version of a file decides the driver (docs.nvidia.com/cuda/parallel-thread-execution, release notes): 6.5 came with
// CUDA 10.2, 7.0 with 11.0, 8.4 with 12.4.
func ptxFiles() []ptxFile {
	return []ptxFile{{"base", basePTX, 75, 10020}, {"main", mainPTX, 80, 11000}, {"fp8", fp8PTX, 89, 12040}}
}

// modules are the loaded files.
type modules struct {
	cuda    *cuda
	loaded  []uintptr
	skipped []string // files that this card or driver can't run, each with the reason
}

// loadModules loads every file that the card and the driver can run. A file that the driver refuses as too new for it or for the card is
// skipped; without the base there is nothing to measure with.
func loadModules(c *cuda, cc, version int) (*modules, error) {
	m := &modules{cuda: c}
	for _, f := range ptxFiles() {
		switch {
		case cc < f.cc:
			m.skipped = append(m.skipped, fmt.Sprintf("%s: for compute capability %d.%d and newer", f.name, f.cc/10, f.cc%10))
			continue
		case version < f.cuda:
			m.skipped = append(m.skipped, fmt.Sprintf("%s: needs a driver for CUDA %d.%d", f.name, f.cuda/1000, f.cuda%1000/10))
			continue
		}
		module, err := c.load(f.text)
		var e *cudaError
		switch {
		case err == nil:
			m.loaded = append(m.loaded, module)
		case errors.As(err, &e) && refused(e.code) && f.name != "base":
			m.skipped = append(m.skipped, fmt.Sprintf("%s: %v", f.name, err))
		case errors.As(err, &e) && e.code == cudaNoJIT:
			return nil, errors.Join(cudaProblem(e), m.close())
		default:
			return nil, errors.Join(fmt.Errorf("load the kernels %q: %w", f.name, err), m.close())
		}
	}
	if len(m.loaded) == 0 {
		return nil, fmt.Errorf("no kernels for this card (%s); cards from compute capability 7.5 (Turing) on are measured", m.skipped[0])
	}
	return m, nil
}

// refused reports whether a driver's code says that a file is not for it or for its card.
func refused(code int32) bool {
	return code == cudaUnsupportedPTX || code == cudaInvalidPTX || code == cudaNoBinary || code == cudaInvalidImage
}

// find gives the kernel of a name; false if it is in none of the loaded files.
func (m *modules) find(name string) (uintptr, bool) {
	for _, module := range m.loaded {
		if f, err := m.cuda.function(module, name); err == nil {
			return f, true
		}
	}
	return 0, false
}

func (m *modules) close() error {
	var errs []error
	for _, module := range m.loaded {
		errs = append(errs, m.cuda.check("cuModuleUnload", m.cuda.UnloadModule(module)))
	}
	return errors.Join(errs...)
}
