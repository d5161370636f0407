//go:build linux && cgo

package gpu

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
	"unsafe"

	"github.com/gpufair/gpufair/benchmark"
	"github.com/gpufair/gpufair/benchmark/suite"
)

// job is one kernel of the suite on a card.
type job struct {
	card   *Card
	figure benchmark.FigureID
	size   string
	memory []uint64 // allocated on the card until Close
	work
}

// work is what a job does.
type work interface {
	// open allocates and fills what run needs.
	open(j *job) error
	// run queues the work n times and tells how much that is.
	run(j *job, n int) (uint64, error)
	// check looks at the last result; its error wraps [suite.ErrWrong].
	check(j *job) error
}

var _ suite.Kernel = (*job)(nil)

// kernelName has the version of the PTX files: figures of different ones are not compared.
const kernelName = "gpufair ptx 1"

// Name is the figure and gpufair's own kernels.
func (j *job) Name() (figure benchmark.FigureID, family benchmark.KernelID, name, size string) {
	return j.figure, benchmark.KernelPTX, kernelName, j.size
}

// Open makes the data.
func (j *job) Open(context.Context) error {
	if err := j.open(j); err != nil {
		return err
	}
	return j.card.sync()
}

// Run does the work and times it by two events on the card's own clock.
func (j *job) Run(_ context.Context, n int) (benchmark.Sample, error) {
	c := j.card
	if err := c.cuda.check("cuEventRecord", c.cuda.EventRecord(c.events[0], c.stream)); err != nil {
		return benchmark.Sample{}, err
	}
	done, err := j.run(j, n)
	if err != nil {
		return benchmark.Sample{}, err
	}
	var ms float32
	err = errors.Join(
		c.cuda.check("cuEventRecord", c.cuda.EventRecord(c.events[1], c.stream)),
		c.cuda.check("cuEventSynchronize", c.cuda.EventSync(c.events[1])),
	)
	if err == nil {
		err = c.cuda.check("cuEventElapsedTime", c.cuda.EventElapsed(&ms, c.events[0], c.events[1]))
	}
	return benchmark.Sample{Work: done, Elapsed: time.Duration(float64(ms) * float64(time.Millisecond))}, err
}

// Check looks at the last result.
func (j *job) Check(context.Context) error { return j.check(j) }

// Close frees the card's memory.
func (j *job) Close() error {
	var errs []error
	for _, p := range j.memory {
		errs = append(errs, j.card.cuda.check("cuMemFree", j.card.cuda.Free(p)))
	}
	j.memory = nil
	return errors.Join(errs...)
}

// alloc takes memory of the card until the job's Close.
func (j *job) alloc(bytes uint64) (p uint64, err error) {
	if err := j.card.cuda.check("cuMemAlloc", j.card.cuda.Alloc(&p, bytes)); err != nil {
		return 0, fmt.Errorf("take %d MiB of the card's memory: %w", bytes>>20, err)
	}
	j.memory = append(j.memory, p)
	return p, nil
}

// launch starts a kernel that is there for certain, or says which is missing.
func (j *job) launch(name string, gx, gy, threads uint32, args ...any) error {
	f, ok := j.card.mods.find(name)
	if !ok {
		return fmt.Errorf("kernel %s is missing", name)
	}
	return j.card.cuda.launch(f, j.card.stream, gx, gy, threads, args...)
}

// each starts a kernel that goes through memory by itself, with enough threads for every card.
func (j *job) each(name string, args ...any) error {
	return j.launch(name, j.blocks(32), 1, 256, args...)
}

func (j *job) blocks(perSM uint32) uint32 { return j.card.facts.SMs * perSM }

func (c *Card) sync() error { return c.cuda.check("cuStreamSynchronize", c.cuda.StreamSync(c.stream)) }

// up and down are the two halves of the pinned memory.
func (c *Card) up() []byte { return unsafe.Slice((*byte)(c.host), hostBytes/2) }

func (c *Card) down() []byte {
	return unsafe.Slice((*byte)(unsafe.Add(c.host, hostBytes/2)), hostBytes/2)
}

// read copies bytes of the card's memory into down.
func (c *Card) read(from uint64, n int) ([]byte, error) {
	to := c.down()[:n]
	if err := c.cuda.check("cuMemcpyDtoHAsync", c.cuda.ToHost(unsafe.Pointer(&to[0]), from, uint64(n), c.stream)); err != nil {
		return nil, err
	}
	return to, c.sync()
}

// windows calls look with random pieces of n bytes of the card's memory, and with each piece's place in bytes. Pieces and places are
// multiples of 16.
func (c *Card) windows(from, n uint64, look func(at uint64, piece []byte) error) error {
	size := min(n, 64<<10)
	for range 16 {
		at := rand.Uint64N((n-size)/16+1) * 16
		piece, err := c.read(from+at, int(size))
		if err != nil {
			return err
		}
		if err := look(at, piece); err != nil {
			return err
		}
	}
	return nil
}

// view is memory as values of one type.
func view[T any](b []byte) []T {
	var t T
	return unsafe.Slice((*T)(unsafe.Pointer(&b[0])), len(b)/int(unsafe.Sizeof(t)))
}

// mix, word, unit and bf16 are the kernels' own (kernels/bench.cu).
func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

func word(seed, i uint64) uint64 { return mix(seed + i*0x9e3779b97f4a7c15) }

func unit(seed, i uint64) float64 {
	return float64(int64(word(seed, i)>>40)-0x800000) / (1 << 24)
}
