//go:build linux && cgo

package gpu

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"
)

// compared is how far a kernel's result on the card is from that of the same code on the CPU. cmd/internal/gpucheck reads it.
type compared struct {
	Kernel string  `json:"kernel"`
	Worst  float64 `json:"worst"` // difference of two numbers of the result; of bytes, how many differ
	Limit  float64 `json:"limit"`
	Wrong  bool    `json:"wrong,omitempty"`
	Absent bool    `json:"absent,omitempty"` // this card or driver does not run it
}

// trial is one kernel on small data that both sides make for themselves.
type trial struct {
	kernel string
	bytes  uint64 // of the result
	limit  float64
	worst  func(card, cpu []byte) float64
	run    func(j *job, out uint64) error
}

const (
	trialWords   = 16 << 10 // of 8 bytes
	trialBlocks  = 3        // so that threads go round more than once, and not equally often
	trialThreads = 256
	trialSide    = 256 // of a matrix
)

// simple is a kernel that goes through memory by itself.
func simple(kernel string, bytes uint64, worst func(card, cpu []byte) float64, limit float64, args func(out uint64) []any) trial {
	return trial{kernel, bytes, limit, worst, func(j *job, out uint64) error {
		return j.launch(kernel, trialBlocks, 1, trialThreads, args(out)...)
	}}
}

// after fills count buffers of bytes with a pattern by fill, and gives them to args.
func after(fill string, count int, bytes, per uint64, kernel string, x, y uint32, args func(in []uint64, out uint64) []any) func(j *job, out uint64) error {
	return func(j *job, out uint64) error {
		in := make([]uint64, count)
		for i := range in {
			p, err := j.alloc(bytes)
			if err != nil {
				return err
			}
			in[i] = p
			fillArgs := []any{p, bytes / per, uint64(i + 1)}
			if fill == "mem_fill" {
				fillArgs = append(fillArgs, uint64(0))
			}
			if err := j.launch(fill, trialBlocks, 1, trialThreads, fillArgs...); err != nil {
				return err
			}
		}
		return j.launch(kernel, x, y, trialThreads, args(in, out)...)
	}
}

func trials() []trial {
	const all = trialWords * 8
	out := []trial{
		simple("mem_fill", all, differ, 0, func(out uint64) []any { return []any{out, uint64(trialWords), uint64(42), ^uint64(0)} }),
		simple("mem_write", all, differ, 0, func(out uint64) []any { return []any{out, uint64(all / 16), uint32(writeStart)} }),
		simple("fill_f32", all, differ, 0, func(out uint64) []any { return []any{out, uint64(all / 4), uint64(7)} }),
		simple("fill_bf16", all, differ, 0, func(out uint64) []any { return []any{out, uint64(all / 2), uint64(7)} }),
		{"mem_read", trialBlocks * trialThreads * 4, 0, differ, after("mem_fill", 1, all, 8, "mem_read", trialBlocks, 1, func(in []uint64, out uint64) []any {
			return []any{in[0], uint64(all / 16), out}
		})},
		{"mem_copy", all, 0, differ, after("mem_fill", 1, all, 8, "mem_copy", trialBlocks, 1, func(in []uint64, out uint64) []any {
			return []any{in[0], out, uint64(all / 16)}
		})},
		{"mem_triad", all, 1e-6, apart[float32], after("fill_f32", 2, all, 4, "mem_triad", trialBlocks, 1, func(in []uint64, out uint64) []any {
			return []any{in[0], in[1], out, float32(triadScale), uint64(all / 16)}
		})},
		{"mem_verify", 24, 0, differ, verifyTrial},
	}
	for _, g := range []struct {
		kernel, fill string
		per          uint64
		limit        float64 // the tensor cores keep fewer bits of a sum than FP32
	}{{"sgemm", "fill_f32", 4, 1e-5}, {"bf16_gemm", "fill_bf16", 2, 1e-4}} {
		const tiles = trialSide / gemmTile
		out = append(out, trial{
			g.kernel, trialSide * trialSide * 4, g.limit, apart[float32],
			after(g.fill, 2, trialSide*trialSide*g.per, g.per, g.kernel, tiles, tiles, func(in []uint64, out uint64) []any {
				return []any{in[0], in[1], out, uint32(trialSide)}
			}),
		})
	}
	return append(out, rateTrials()...)
}

// verifyTrial counts the words of another pattern: all of them.
func verifyTrial(j *job, out uint64) error {
	zero := view[uint64](j.card.up())[:3]
	zero[0], zero[1], zero[2] = 0, math.MaxUint64, 0
	if err := j.card.cuda.check("cuMemcpyHtoDAsync", j.card.cuda.ToDevice(out, unsafe.Pointer(&zero[0]), 24, j.card.stream)); err != nil {
		return err
	}
	return after("mem_fill", 1, trialWords*8, 8, "mem_verify", trialBlocks, 1, func(in []uint64, out uint64) []any {
		return []any{in[0], uint64(trialWords), uint64(2), uint64(0), out} // the fill's seed is 1
	})(j, out)
}

func rateTrials() []trial {
	const threads = trialBlocks * trialThreads
	rate := func(kernel string, bytes uint64, limit float64, worst func(card, cpu []byte) float64, more ...any) trial {
		return simple(kernel, threads*bytes, worst, limit, func(out uint64) []any { return append([]any{out, uint32(rateRounds)}, more...) })
	}
	return []trial{
		rate("fp32_rate", 4, 1e-5, apart[float32], float32(chainA), float32(chainB)),
		rate("fp64_rate", 8, 1e-12, apart[float64], float64(chainA), float64(chainB)),
		rate("f16_k8_rate", 128, sumSlack, apart[float32]),
		rate("f16_rate", 128, sumSlack, apart[float32]),
		rate("f16acc_rate", 64, sumSlack, apartHalves),
		rate("bf16_rate", 128, sumSlack, apart[float32]),
		rate("tf32_rate", 128, sumSlack, apart[float32]),
		rate("s8_rate", 128, 0, differ),
		rate("e4m3_rate", 128, sumSlack, apart[float32]),
		rate("f64_rate", 128, 1e-9, apart[float64]),
	}
}

// differ counts the bytes that differ.
func differ(card, cpu []byte) (n float64) {
	for i := range cpu {
		if card[i] != cpu[i] {
			n++
		}
	}
	return n
}

// apart is the largest difference; of what is no number, the largest there is.
func apart[T float32 | float64](card, cpu []byte) (worst float64) {
	want := view[T](cpu)
	for i, v := range view[T](card) {
		worst = max(worst, distance(float64(v), float64(want[i])))
	}
	return worst
}

func apartHalves(card, cpu []byte) (worst float64) {
	want := view[uint16](cpu)
	for i, v := range view[uint16](card) {
		worst = max(worst, distance(float64(half(v)), float64(half(want[i]))))
	}
	return worst
}

func distance(a, b float64) float64 {
	if d := math.Abs(a - b); d <= math.MaxFloat64 {
		return d
	}
	return math.MaxFloat64
}

// result runs a trial on one side. The bytes are a copy; nil where the side lacks the kernel.
func (t trial) result(c *Card) (b []byte, err error) {
	if _, ok := c.mods.find(t.kernel); !ok {
		return nil, nil
	}
	j := &job{card: c}
	defer func() { err = errors.Join(err, j.Close()) }()
	out, err := j.alloc(t.bytes)
	if err != nil {
		return nil, err
	}
	if err := t.run(j, out); err != nil {
		return nil, fmt.Errorf("run %s: %w", t.kernel, err)
	}
	read, err := c.read(out, int(t.bytes))
	return append([]byte{}, read...), err
}

// compareCard runs every kernel on the card of uuid and on the CPU, and prints a line for each. An error is a card that could not be asked; a
// wrong result is none.
func compareCard(out io.Writer, uuid, emulation string) (err error) {
	card, err := OpenCard(uuid)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, card.Close()) }()
	cpu, err := openEmulation(emulation)
	if err != nil {
		return fmt.Errorf("open the kernels for the CPU: %w", err)
	}
	defer func() { err = errors.Join(err, cpu.Close()) }()
	lines := json.NewEncoder(out)
	for _, t := range trials() {
		got, err := t.result(card)
		if err != nil {
			return err
		}
		line := compared{Kernel: t.kernel, Limit: t.limit, Absent: got == nil}
		if got != nil {
			want, err := t.result(cpu)
			if err != nil {
				return fmt.Errorf("on the CPU: %w", err)
			}
			line.Worst = t.worst(got, want)
			line.Wrong = line.Worst > t.limit
		}
		if err := lines.Encode(line); err != nil {
			return err
		}
	}
	return nil
}

// openEmulation makes testdata/fakecuda.cpp, built as a library at path, a card that computes on the CPU. It stays on the thread.
func openEmulation(path string) (*Card, error) {
	lib, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nil, err
	}
	honest, err := purego.Dlsym(lib, "emulate_honestly")
	if err != nil {
		return nil, err
	}
	purego.SyscallN(honest)
	c := &Card{cuda: &cuda{}}
	if err := bind(lib, c.cuda); err != nil {
		return nil, err
	}
	runtime.LockOSThread()
	c.undo = append(c.undo, func() error { runtime.UnlockOSThread(); return nil })
	var ctx uintptr
	err = errors.Join(
		c.cuda.check("cuInit", c.cuda.Init(0)), c.cuda.check("cuDeviceGet", c.cuda.Device(&c.dev, 0)),
		c.cuda.check("cuDevicePrimaryCtxRetain", c.cuda.Retain(&ctx, c.dev)), c.cuda.check("cuCtxSetCurrent", c.cuda.SetCurrent(ctx)),
	)
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	c.later("cuDevicePrimaryCtxRelease", func() int32 { return c.cuda.Release(c.dev) })
	if c.mods, err = loadModules(c.cuda, 89, 12080); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	c.undo = append(c.undo, c.mods.close)
	if err := c.workplace(); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// compare compares the card of a scenario with the kernels on the CPU, in a process of its own.
func (f fake) compare(t *testing.T, lines ...string) (got map[string]compared) {
	t.Helper()
	f.set(t, lines...)
	b, err := os.ReadFile(filepath.Join(f.dir, cudaLibrary))
	if err != nil {
		t.Fatal(err)
	}
	emulation := filepath.Join(t.TempDir(), "emulation.so") // of another name, or it would be the same library
	if err := os.WriteFile(emulation, b, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), f.env("compare "+uuid(0)+" "+emulation)...)
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, said.String())
	}
	got = map[string]compared{}
	d := json.NewDecoder(strings.NewReader(string(out)))
	for {
		var line compared
		if err := d.Decode(&line); errors.Is(err, io.EOF) {
			return got
		} else if err != nil {
			t.Fatal(err)
		}
		got[line.Kernel] = line
	}
}

// An honest card agrees with the CPU in every kernel; turned bits in what any of them wrote are found, and cost no other.
func TestCompare(t *testing.T) {
	f := newCardFake(t)
	all := f.compare(t)
	if len(all) != len(trials()) || len(all) != 20 {
		t.Errorf("%d kernels were compared", len(all))
	}
	for name, c := range all {
		if c.Wrong || c.Absent || c.Worst > c.Limit {
			t.Errorf("honest %+v", c)
		}
		if !strings.Contains(basePTX+mainPTX+fp8PTX, ".entry "+name+"(") {
			t.Errorf("%s is no kernel", name)
		}
	}
	if n := strings.Count(basePTX+mainPTX+fp8PTX, ".entry "); n != len(all) {
		t.Errorf("there are %d kernels", n)
	}
	// every other kernel is wrong, then the rest; those that make the others' data by themselves
	groups := make([][]string, 3)
	for i, t := range trials() {
		group := i % 2
		if strings.Contains(t.kernel, "fill") {
			group = 2
		}
		groups[group] = append(groups[group], t.kernel)
	}
	for i, broken := range groups {
		var scenario []string
		for _, name := range broken {
			scenario = append(scenario, "cuda.wrong."+name+" 1")
		}
		for name, c := range f.compare(t, scenario...) {
			if is := slices.Contains(broken, name); is && !c.Wrong || !is && c.Wrong && i != 2 {
				t.Errorf("with wrong %q: %+v", broken, c)
			}
		}
	}
	if got := f.compare(t, "cuda.version 11080"); !got["e4m3_rate"].Absent || got["e4m3_rate"].Wrong || got["sgemm"].Absent {
		t.Errorf("on an old driver: %+v", got)
	}
}
