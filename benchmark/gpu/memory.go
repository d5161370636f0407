//go:build linux && cgo

package gpu

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"unsafe"

	"github.com/gpufair/gpufair/benchmark"
	"github.com/gpufair/gpufair/benchmark/suite"
)

// errMemory is the end of what is said of memory that gives back other bytes.
const errMemory = "the card's memory is broken: do not lend it"

func wrong(what string) error { return fmt.Errorf("%w: %s; %s", suite.ErrWrong, what, errMemory) }

// stream is one way through memory: buffers of bytes, moved so many times a byte.
type stream struct {
	kernel string
	bytes  uint64
	moves  uint64
	a, b   uint64
	c, out uint64
}

const (
	writeStart = 7 // of mem_write's count
	triadScale = 3
)

// streams are the four ways. A buffer is 1 GiB or four times the cache, whichever is more, and at most a quarter of what is free.
func (c *Card) streams() []suite.Kernel {
	size := min(max(1<<30, 4*c.l2), c.free/4) &^ 0xffff
	var out []suite.Kernel
	for _, s := range []struct {
		id     benchmark.FigureID
		kernel string
		moves  uint64
	}{
		{benchmark.FigureMemRead, "mem_read", 1},
		{benchmark.FigureMemWrite, "mem_write", 1},
		{benchmark.FigureMemCopy, "mem_copy", 2},
		{benchmark.FigureMemTriad, "mem_triad", 3},
	} {
		out = append(out, &job{card: c, figure: s.id, size: fmt.Sprintf("%d KiB a buffer", size>>10), work: &stream{kernel: s.kernel, bytes: size, moves: s.moves}})
	}
	return out
}

func (s *stream) open(j *job) (err error) {
	buffers := []*uint64{&s.a}
	switch s.kernel {
	case "mem_copy":
		buffers = append(buffers, &s.b)
	case "mem_triad":
		buffers = append(buffers, &s.b, &s.c)
	}
	for _, p := range buffers {
		if *p, err = j.alloc(s.bytes); err != nil {
			return err
		}
	}
	if s.out, err = j.alloc(uint64(j.blocks(32)) * 256 * 4); err != nil {
		return err
	}
	if s.kernel == "mem_triad" {
		return errors.Join(j.each("fill_f32", s.a, s.bytes/4, uint64(1)), j.each("fill_f32", s.b, s.bytes/4, uint64(2)))
	}
	return j.each("mem_fill", s.a, s.bytes/8, uint64(1), uint64(0))
}

func (s *stream) run(j *job, n int) (uint64, error) {
	words := s.bytes / 16
	for range n {
		var err error
		switch s.kernel {
		case "mem_read":
			err = j.each(s.kernel, s.a, words, s.out)
		case "mem_write":
			err = j.each(s.kernel, s.a, words, uint32(writeStart))
		case "mem_copy":
			err = j.each(s.kernel, s.a, s.b, words)
		default:
			err = j.each(s.kernel, s.a, s.b, s.c, float32(triadScale), words)
		}
		if err != nil {
			return 0, err
		}
	}
	return uint64(n) * s.bytes * s.moves, nil
}

func (s *stream) check(j *job) error {
	switch s.kernel {
	case "mem_read":
		return s.checkRead(j)
	case "mem_write":
		return j.card.windows(s.a, s.bytes, func(at uint64, piece []byte) error {
			for i, v := range view[uint32](piece) {
				if v != writeStart+uint32(at/4)+uint32(i) {
					return wrong("a word that was written is another one")
				}
			}
			return nil
		})
	case "mem_copy":
		return j.card.windows(s.b, s.bytes, func(at uint64, piece []byte) error {
			for i, v := range view[uint64](piece) {
				if v != word(1, at/8+uint64(i)) {
					return wrong("a word that was copied is another one")
				}
			}
			return nil
		})
	}
	return j.card.windows(s.c, s.bytes, func(at uint64, piece []byte) error {
		for i, v := range view[float32](piece) {
			k := at/4 + uint64(i)
			if !(math.Abs(float64(v)-(unit(1, k)+triadScale*unit(2, k))) < 1e-6) { // fused or not
				return wrong("a sum is off")
			}
		}
		return nil
	})
}

// checkRead compares the exclusive or of all that the threads read with that of all that was written.
func (s *stream) checkRead(j *job) error {
	n := int(j.blocks(32)) * 256 * 4
	var got uint32
	for at := 0; at < n; at += hostBytes / 2 {
		piece, err := j.card.read(s.out+uint64(at), min(n-at, hostBytes/2))
		if err != nil {
			return err
		}
		for _, v := range view[uint32](piece) {
			got ^= v
		}
	}
	var want uint64
	for i := range s.bytes / 8 {
		want ^= word(1, i)
	}
	if got != uint32(want^want>>32) {
		return wrong("what was read is not what was written")
	}
	return nil
}

// memTest writes a pattern to nearly all memory and verifies it, each bit both ways in turn.
type memTest struct {
	chunks []uint64
	bytes  uint64 // of each chunk
	err    uint64 // address of the count, the first place and the bits
	pass   uint64
}

// memTestKeep is what the driver and a desktop may need meanwhile.
const memTestKeep = 512 << 20

func (c *Card) memTest() suite.Kernel {
	t := &memTest{bytes: min(1<<30, c.free/4) &^ 0xffff}
	keep := min(memTestKeep, c.free/4)
	n := (c.free - keep) / t.bytes
	t.chunks = make([]uint64, n)
	return &job{card: c, figure: benchmark.FigureMemTest, size: fmt.Sprintf("%d MiB", n*t.bytes>>20), work: t}
}

func (t *memTest) open(j *job) (err error) {
	if t.err, err = j.alloc(24); err != nil {
		return err
	}
	for i := range t.chunks {
		if t.chunks[i], err = j.alloc(t.bytes); err != nil {
			return err
		}
	}
	zero := view[uint64](j.card.up())[:3]
	zero[0], zero[1], zero[2] = 0, math.MaxUint64, 0
	return j.card.cuda.check("cuMemcpyHtoDAsync", j.card.cuda.ToDevice(t.err, unsafe.Pointer(&zero[0]), 24, j.card.stream))
}

// run writes all chunks before it verifies the first, so that one that stands in for another is found.
func (t *memTest) run(j *job, n int) (uint64, error) {
	for range n {
		t.pass++
		flip := -(t.pass & 1)
		for i, p := range t.chunks {
			if err := j.each("mem_fill", p, t.bytes/8, t.pass<<8|uint64(i), flip); err != nil {
				return 0, err
			}
		}
		for i, p := range t.chunks {
			if err := j.each("mem_verify", p, t.bytes/8, t.pass<<8|uint64(i), flip, t.err); err != nil {
				return 0, err
			}
		}
	}
	return uint64(n) * 2 * t.bytes * uint64(len(t.chunks)), nil
}

func (t *memTest) check(j *job) error {
	b, err := j.card.read(t.err, 24)
	if err != nil {
		return err
	}
	if e := view[uint64](b); e[0] != 0 {
		return wrong(fmt.Sprintf("%d of its words came back changed in %d passes (bits %#x)", e[0], t.pass, e[2]))
	}
	return nil
}

// link is the copy between the machine's pinned memory and the card.
type link struct {
	to    bool // the card
	bytes uint64
	dev   uint64
}

func (c *Card) links() []suite.Kernel {
	size := min(hostBytes/2, c.free/4) &^ 0xffff
	text := fmt.Sprintf("%d KiB a copy, pinned", size>>10)
	return []suite.Kernel{
		&job{card: c, figure: benchmark.FigureToDevice, size: text, work: &link{to: true, bytes: size}},
		&job{card: c, figure: benchmark.FigureFromDevice, size: text, work: &link{bytes: size}},
	}
}

func (l *link) open(j *job) (err error) {
	if l.dev, err = j.alloc(l.bytes); err != nil {
		return err
	}
	up := view[uint64](j.card.up()[:l.bytes])
	seed := rand.Uint64()
	for i := range up {
		up[i] = word(seed, uint64(i))
	}
	return l.copy(j, true)
}

func (l *link) copy(j *job, to bool) error {
	c := j.card
	if to {
		return c.cuda.check("cuMemcpyHtoDAsync", c.cuda.ToDevice(l.dev, c.host, l.bytes, c.stream))
	}
	return c.cuda.check("cuMemcpyDtoHAsync", c.cuda.ToHost(unsafe.Pointer(&c.down()[0]), l.dev, l.bytes, c.stream))
}

func (l *link) run(j *job, n int) (uint64, error) {
	for range n {
		if err := l.copy(j, l.to); err != nil {
			return 0, err
		}
	}
	return uint64(n) * l.bytes, nil
}

// check fetches what was sent and compares every byte.
func (l *link) check(j *job) error {
	c := j.card
	if l.to {
		clear(c.down()[:l.bytes])
		if err := errors.Join(l.copy(j, false), c.sync()); err != nil {
			return err
		}
	}
	if !bytes.Equal(c.up()[:l.bytes], c.down()[:l.bytes]) {
		return fmt.Errorf("%w: bytes changed on their way to the card or back; look at its seat, riser and cables", suite.ErrWrong)
	}
	return nil
}
