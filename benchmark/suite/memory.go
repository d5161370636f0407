package suite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gpufair/gpufair/benchmark"
)

// Sizes of the buffers of the memory kernels.
const (
	blockBytes = 32 << 10 // of one step; fits the first-level cache of every processor that matters
	minBuffer  = 64 << 20 // where the caches are small
	maxBuffer  = 1 << 30  // three of them must fit in a PC's memory
	timesCache = 4        // spec: gpu, 3
	triadScale = 3.0      // STREAM's scalar
)

// bufferSize is four times the last-level caches of cores, as far as a sixth of the free memory allows (three buffers, half of it).
func bufferSize(cores benchmark.Cores) (int, error) {
	free, err := meminfo("MemAvailable")
	if err != nil {
		return 0, fmt.Errorf("size of buffers: %w", err)
	}
	size := min(max(timesCache*lastLevelCache(cores), minBuffer), maxBuffer, free/6)
	step := uint64(len(cores) * blockBytes)
	if size < minBuffer/4 || size < step {
		return 0, fmt.Errorf("size of buffers: only %d MiB of memory are free; end other programs and try again", free>>20)
	}
	return int(size / step * step), nil
}

// memory is one of the four ways through memory: read, write, copy, triad. Each worker has its own part of each buffer and touches it
// first, so that the part lies at its core's side of the machine.
type memory struct {
	figure  benchmark.FigureID
	team    *team
	bytes   int       // of each buffer: whole blocks for every worker
	raw     [3][]byte // mappings; the second and third only where needed
	sums    []uint64  // of read: what each worker found in its part
	want    []uint64  // of read: what it put there
	pattern [blockBytes]byte
}

// buffers is how many of the three buffers the figure needs.
func (m *memory) buffers() int {
	switch m.figure {
	case benchmark.FigureMemTriad:
		return 3
	case benchmark.FigureMemCopy:
		return 2
	}
	return 1
}

// Name is the figure and our own loops.
func (m *memory) Name() (figure benchmark.FigureID, family benchmark.KernelID, name, size string) {
	return m.figure, benchmark.KernelGo, fmt.Sprintf("gpufair loops %d", benchmark.KernelSet), fmt.Sprintf("%d x %d MiB", m.buffers(), m.bytes>>20)
}

// Open maps the buffers and fills them with random numbers between 0 and 1.
func (m *memory) Open(context.Context) error {
	for i := range m.buffers() {
		b, err := unix.Mmap(-1, 0, m.bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		if err != nil {
			return fmt.Errorf("map %d MiB: %w", m.bytes>>20, err)
		}
		m.raw[i] = b
		// Huge pages, as any program that cares for bandwidth asks for. A kernel without them says EINVAL; the figure is then lower, and true.
		if err := unix.Madvise(b, unix.MADV_HUGEPAGE); err != nil && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("advise huge pages: %w", err)
		}
	}
	for i := range m.pattern {
		m.pattern[i] = byte(rand.Uint32())
	}
	m.sums, m.want = make([]uint64, len(m.team.work)), make([]uint64, len(m.team.work))
	m.team.do(func(w int) {
		r := rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
		for i := range m.buffers() {
			words := floats(m.part(i, w))
			for j := range words {
				words[j] = r.Float64()
			}
		}
		for _, v := range floats(m.part(0, w)) {
			m.want[w] += math.Float64bits(v)
		}
	})
	return nil
}

// part is worker w's part of buffer i.
func (m *memory) part(i, w int) []byte {
	n := m.bytes / len(m.team.work)
	return m.raw[i][w*n : (w+1)*n]
}

// floats sees a mapping's bytes as numbers; mappings are aligned to pages and parts to blocks.
func floats(b []byte) []float64 { return unsafe.Slice((*float64)(unsafe.Pointer(&b[0])), len(b)/8) }

func words(b []byte) []uint64 { return unsafe.Slice((*uint64)(unsafe.Pointer(&b[0])), len(b)/8) }

// Run goes times times through the buffers.
func (m *memory) Run(_ context.Context, times int) (benchmark.Sample, error) {
	start := time.Now()
	m.team.do(func(w int) {
		for range times {
			m.pass(w)
		}
	})
	return benchmark.Sample{Work: uint64(m.bytes) * uint64(m.buffers()) * uint64(times), Elapsed: time.Since(start)}, nil
}

func (m *memory) pass(w int) {
	switch m.figure {
	case benchmark.FigureMemRead:
		m.sums[w] = sum(words(m.part(0, w)))
	case benchmark.FigureMemWrite:
		for b := m.part(0, w); len(b) > 0; b = b[blockBytes:] {
			copy(b[:blockBytes], m.pattern[:])
		}
	case benchmark.FigureMemCopy:
		copy(m.part(0, w), m.part(1, w))
	case benchmark.FigureMemTriad:
		triad(floats(m.part(0, w)), floats(m.part(1, w)), floats(m.part(2, w)))
	}
}

// sum adds with eight chains, so that the additions do not wait for each other. v holds whole blocks.
func sum(v []uint64) uint64 {
	var s [8]uint64
	for ; len(v) >= 8; v = v[8:] {
		s[0] += v[0]
		s[1] += v[1]
		s[2] += v[2]
		s[3] += v[3]
		s[4] += v[4]
		s[5] += v[5]
		s[6] += v[6]
		s[7] += v[7]
	}
	return s[0] + s[1] + s[2] + s[3] + s[4] + s[5] + s[6] + s[7]
}

// triad is STREAM's a = b + s*c. The conversion keeps the product from being fused with the sum, so that [memory.Check] sees equal bits.
func triad(a, b, c []float64) {
	for len(a) >= 4 && len(b) >= 4 && len(c) >= 4 {
		a[0] = b[0] + float64(triadScale*c[0])
		a[1] = b[1] + float64(triadScale*c[1])
		a[2] = b[2] + float64(triadScale*c[2])
		a[3] = b[3] + float64(triadScale*c[3])
		a, b, c = a[4:], b[4:], c[4:]
	}
}

// Check looks at every byte once: each must be what was read or written.
func (m *memory) Check(context.Context) error {
	bad := make([]bool, len(m.team.work))
	m.team.do(func(w int) { bad[w] = !m.right(w) })
	for w := range bad {
		if bad[w] {
			return fmt.Errorf("%w: memory gave back other bytes than were put there: test it (memtest86+) before lending this machine", ErrWrong)
		}
	}
	return nil
}

func (m *memory) right(w int) bool {
	switch m.figure {
	case benchmark.FigureMemRead:
		return m.sums[w] == m.want[w]
	case benchmark.FigureMemWrite:
		for b := m.part(0, w); len(b) > 0; b = b[blockBytes:] {
			if !bytes.Equal(b[:blockBytes], m.pattern[:]) {
				return false
			}
		}
		return true
	case benchmark.FigureMemCopy:
		return bytes.Equal(m.part(0, w), m.part(1, w))
	default:
		a, b, c := floats(m.part(0, w)), floats(m.part(1, w)), floats(m.part(2, w))
		for i := range a {
			if a[i] != b[i]+float64(triadScale*c[i]) {
				return false
			}
		}
		return true
	}
}

// Close gives the buffers back.
func (m *memory) Close() error {
	var errs []error
	for i, b := range m.raw {
		if b != nil {
			errs = append(errs, unix.Munmap(b))
		}
		m.raw[i] = nil
	}
	return errors.Join(errs...)
}
