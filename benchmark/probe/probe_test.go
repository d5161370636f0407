package probe

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/gpufair/gpufair/benchmark"
	"github.com/gpufair/gpufair/benchmark/lock"
	"github.com/gpufair/gpufair/benchmark/suite"
)

// The children of these tests are this test binary again, in a mode.
const modeEnv = "GPUFAIR_TEST_PROBE"

func TestMain(m *testing.M) {
	mode := os.Getenv(modeEnv)
	if mode == "" {
		os.Exit(m.Run())
	}
	name, arg, _ := strings.Cut(mode, " ")
	if f, ok := modes()[name]; ok {
		os.Exit(f(arg))
	}
	os.Exit(99)
}

func modes() map[string]func(arg string) int {
	return map[string]func(arg string) int{
		"serve": func(string) int {
			ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
			defer stop()
			return code(Serve(ctx, os.Stdin, os.Stdout, Driver{Detect: func(context.Context) benchmark.GPUs { return oneGPU() }, Open: openFake}))
		},
		"hang": func(string) int { // politely: SIGTERM ends it
			stopped := make(chan os.Signal, 1)
			signal.Notify(stopped, syscall.SIGTERM)
			fmt.Fprintln(os.Stderr, "hanging")
			<-stopped
			fmt.Fprint(os.Stderr, "ended politely")
			return 0
		},
		"deaf": func(string) int { // to SIGTERM and to the end of stdin
			signal.Ignore(syscall.SIGTERM)
			fmt.Fprintln(os.Stderr, "hanging")
			time.Sleep(time.Hour)
			return 3
		},
		"crash": func(string) int {
			fmt.Fprintln(os.Stderr, "undefined symbol: nvmlNothing")
			return code(syscall.Kill(os.Getpid(), syscall.SIGKILL))
		},
		"exit":   func(string) int { fmt.Fprintln(os.Stderr, "symbol lookup error"); return 127 },
		"silent": func(string) int { return 0 },
		"say":    func(arg string) int { fmt.Println(arg); return 0 },
		"long":   func(string) int { fmt.Print(strings.Repeat("x", maxLine+10)); return 0 },
		"twice":  func(string) int { fmt.Print("{\"gpus\":{\"cards\":null}}\n{\"gpus\":{\"cards\":null}}\n"); return 0 },
		"measured": func(string) int {
			step, report := cannedStep(), cannedReport()
			return code(errors.Join(send(os.Stdout, event{Progress: &step}), send(os.Stdout, event{Report: &report})))
		},
		"late": func(string) int { // its library crashes after the answer
			fmt.Println(`{"gpus":{"driver":"1","cards":null}}`)
			return code(syscall.Kill(os.Getpid(), syscall.SIGKILL))
		},
		"flood": func(string) int {
			for range 5000 {
				fmt.Fprintln(os.Stderr, strings.Repeat("y", 3000))
			}
			fmt.Println(`{"gpus":{"driver":"1","cards":null}}`)
			return 0
		},
		"middle": func(fifo string) int { // a daemon that will be killed while its child hangs
			c := Config{Command: []string{"/usr/bin/env", modeEnv + "=orphan " + fifo, os.Args[0]}, Log: slog.New(slog.DiscardHandler)}
			_, err := ask(context.Background(), c, request{Op: opDetect}, time.Minute, nil)
			return code(err)
		},
		"orphan": func(fifo string) int { // knows SIGTERM only, so only the parent's death by Pdeathsig ends it
			if err := os.WriteFile(fifo, []byte(strconv.Itoa(os.Getpid())+"\n"), 0o600); err != nil {
				return code(err)
			}
			time.Sleep(time.Hour)
			return 3
		},
	}
}

func code(err error) int {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func oneGPU() benchmark.GPUs {
	return benchmark.GPUs{Driver: "580.95.05", Cards: []benchmark.GPU{{UUID: "GPU-1", Name: "NVIDIA GeForce RTX 4090", MemoryMiB: 24564}}}
}

// card is a device whose only kernel is steady and whose clock is its own.
type card struct{ uuid string }

func openFake(uuid string) (suite.Device, error) {
	if uuid != "GPU-1" {
		return nil, errors.New("no card has the UUID " + uuid)
	}
	return card{uuid}, nil
}

func (c card) Describe() benchmark.Device {
	return benchmark.Device{Hash: benchmark.GPUDevice(c.uuid), Kind: benchmark.KindGPU, Model: "M"}
}
func (c card) Kernels() []suite.Kernel                       { return []suite.Kernel{c} }
func (c card) Sustained() (suite.Kernel, benchmark.FigureID) { return nil, 0 }
func (c card) Close() error                                  { return nil }
func (c card) Open(context.Context) error                    { return nil }
func (c card) Check(context.Context) error                   { return nil }
func (c card) Skipped() []string                             { return []string{"fp8: needs a newer driver"} }
func (c card) Unread() []string                              { return []string{"heat: not told"} }

func (c card) Name() (benchmark.FigureID, benchmark.KernelID, string, string) {
	return benchmark.FigureBF16Tensor, benchmark.KernelPTX, "k", "s"
}

func (c card) Run(_ context.Context, n int) (benchmark.Sample, error) {
	return benchmark.Sample{Work: uint64(n) * 1e9, Elapsed: time.Duration(n) * 100 * time.Millisecond}, nil
}

func TestMeasureGPU(t *testing.T) {
	c, _ := child("serve")
	held, err := lock.Acquire(t.TempDir(), "test", []lock.Key{lock.GPUKey("GPU-1"), lock.GPUKey("GPU-2")})
	if err != nil {
		t.Fatal(err)
	}
	defer held.Release()
	steps := 0
	got, err := MeasureGPU(t.Context(), c, held, "GPU-1", benchmark.Quick, func(suite.Progress) { steps++ })
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Measurements) != 1 || got.Measurements[0].Stats.Median != 10_000 || got.Device.Kind != benchmark.KindGPU || len(got.Skipped) != 1 || len(got.Unread) != 1 || steps != 3 {
		t.Errorf("%+v, %d steps", got, steps)
	}
	if _, err := MeasureGPU(t.Context(), c, held, "GPU-2", benchmark.Quick, nil); err == nil || !strings.Contains(err.Error(), "no card has the UUID GPU-2") {
		t.Errorf("%v", err)
	}
	if _, err := MeasureGPU(t.Context(), c, held, "GPU-3", benchmark.Quick, nil); !errors.Is(err, ErrUnlocked) {
		t.Errorf("unlocked: %v", err)
	}
}

// child is the config of a child in a mode; what it says on stderr goes to the returned log.
func child(mode string) (Config, *bytes.Buffer) {
	var log bytes.Buffer
	return Config{
		Command: []string{"/usr/bin/env", modeEnv + "=" + mode, "GORACE=atexit_sleep_ms=0", os.Args[0]},
		Log:     slog.New(slog.NewTextHandler(&log, nil)),
	}, &log
}

func TestDetect(t *testing.T) {
	c, _ := child("serve")
	got, err := Detect(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if got.GPUs.Problem != nil || len(got.GPUs.Cards) != 1 || got.GPUs.Cards[0].Name != "NVIDIA GeForce RTX 4090" || len(got.CPU.Cores) == 0 {
		t.Errorf("%+v", got)
	}
}

// Whatever the child does, the CPU is found and the owner told.
func TestDetectSurvivesItsChild(t *testing.T) {
	for mode, want := range map[string]string{
		"crash": "crashed", "exit": "crashed", "silent": "garbage", "long": "garbage", "twice": "garbage", "say {}": "garbage",
		"say hello": "garbage", `say {"gpus":{},"failure":{}}`: "garbage", `say {"gpu":1}`: "garbage", `say {"report":{}}`: "garbage",
	} {
		c, _ := child(mode)
		got, err := Detect(t.Context(), c)
		if err != nil {
			t.Errorf("%s: %v", mode, err)
			continue
		}
		if got.GPUs.Problem == nil || got.GPUs.Problem.Code != want || got.GPUs.Problem.Advice == "" || len(got.CPU.Cores) == 0 {
			t.Errorf("%s: %+v %v, want %s", mode, got, got.GPUs.Problem, want)
		}
	}
	if got, err := Detect(t.Context(), Config{Command: []string{"/nonexistent"}}); err != nil || got.GPUs.Problem == nil {
		t.Errorf("no such program: %+v, %v", got, err)
	}
}

func TestCrashNamesItsSignalAndLastWords(t *testing.T) {
	c, log := child("crash")
	_, err := ask(t.Context(), c, request{Op: opDetect}, time.Minute, nil)
	var crash *Crash
	if !errors.As(err, &crash) || crash.Signal != syscall.SIGKILL || crash.Stderr != "undefined symbol: nvmlNothing" {
		t.Errorf("%v", err)
	}
	if !strings.Contains(log.String(), "nvmlNothing") {
		t.Errorf("log: %s", log)
	}
	c, _ = child("exit")
	if _, err = ask(t.Context(), c, request{Op: opDetect}, time.Minute, nil); !errors.As(err, &crash) || crash.Code != 127 || crash.Signal != 0 {
		t.Errorf("%v", err)
	}
}

func TestAnswerBeforeCrashStands(t *testing.T) {
	c, log := child("late")
	answer, err := ask(t.Context(), c, request{Op: opDetect}, time.Minute, nil)
	if err != nil || answer.GPUs.Driver != "1" || !strings.Contains(log.String(), "after its answer") {
		t.Errorf("%+v, %v, log %s", answer, err, log)
	}
}

func TestStderrIsBounded(t *testing.T) {
	c, log := child("flood")
	if _, err := ask(t.Context(), c, request{Op: opDetect}, time.Minute, nil); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(log.String(), "\n"); n != maxLogLines+1 || log.Len() > 2*maxLogLines*maxLogLine {
		t.Errorf("%d lines, %d bytes of log", n, log.Len())
	}
}

// A hang ends politely where that helps and by force where it does not, after the limit and after a cancel.
func TestHangIsEnded(t *testing.T) {
	c, _ := child("hang")
	if _, err := ask(t.Context(), c, request{Op: opDetect}, 100*time.Millisecond, nil); !errors.Is(err, ErrTimeout) {
		t.Errorf("limit: %v", err)
	}
	gone := errors.New("the owner is back")
	for mode, polite := range map[string]bool{"hang": true, "deaf": false} {
		ctx, cancel := context.WithCancelCause(t.Context())
		c, log := child(mode)
		c.Log = slog.New(&onRecord{c.Log.Handler(), func() { cancel(gone) }}) // its first word: now it hangs
		if !polite {
			c.Grace = 50 * time.Millisecond
		}
		if _, err := ask(ctx, c, request{Op: opDetect}, time.Minute, nil); !errors.Is(err, gone) {
			t.Errorf("%s: %v", mode, err)
		}
		if strings.Contains(log.String(), "ended politely") != polite {
			t.Errorf("%s: %s", mode, log)
		}
	}
	if p := problem(fmt.Errorf("x: %w", ErrTimeout)); p.Code != "hung" || !strings.Contains(p.Advice, "reboot") {
		t.Errorf("%+v", p)
	}
}

// What not even SIGKILL ends, since a driver holds it in the kernel, is left behind; what ends late is still heard.
func TestStuckWorkIsLeftBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		start, release := time.Now(), make(chan struct{})
		if _, ended := follow(ctx, 7*time.Second, func() int { <-release; return 1 }); ended || time.Since(start) != 67*time.Second {
			t.Errorf("ended %t after %s", ended, time.Since(start))
		}
		close(release)
		late := func() int { <-ctx.Done(); time.Sleep(5 * time.Second); return 2 }
		if got, ended := follow(ctx, 7*time.Second, late); !ended || got != 2 {
			t.Errorf("late: %d, %t", got, ended)
		}
	})
}

// onRecord calls f with each record.
type onRecord struct {
	slog.Handler
	f func()
}

func (o *onRecord) Handle(ctx context.Context, r slog.Record) error {
	o.f()
	return o.Handler.Handle(ctx, r)
}

func TestChildDiesWithItsParent(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "pid")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	middle := exec.CommandContext(t.Context(), os.Args[0])
	middle.Env = append(os.Environ(), modeEnv+"=middle "+fifo)
	if err := middle.Start(); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(fifo) // waits for the grandchild
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	line, err := bufio.NewReader(f).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := middle.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	middle.Wait() // ends with the kill
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 20_000)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n != 1 {
			unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
			t.Fatalf("the child lives on without its parent: %d, %v", n, err)
		}
		return
	}
}

func TestServeEndsWithItsPipe(t *testing.T) {
	in, daemon := io.Pipe()
	done := make(chan error)
	go func() {
		done <- Serve(t.Context(), in, io.Discard, Driver{Detect: func(ctx context.Context) benchmark.GPUs {
			daemon.Close() // the daemon dies while the driver is asked
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), errOrphan) {
				t.Errorf("ended by %v", context.Cause(ctx))
			}
			return benchmark.GPUs{}
		}})
	}()
	if _, err := io.WriteString(daemon, `{"op":"detect"}`+"\n"); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestServeAnswersWhatItCannotDo(t *testing.T) {
	for ask, want := range map[string]string{
		`{"op":"fly"}`: "restart the daemon",
		`{"op":"measure-cpu","cores":"1023","profile":"quick"}`: "core 1023",
		`{"op":"measure-cpu","profile":"quick"}`:                "cores",
	} {
		var out bytes.Buffer
		if err := Serve(t.Context(), strings.NewReader(ask+"\n"), &out, Driver{}); err != nil {
			t.Errorf("%s: %v", ask, err)
		}
		e, err := readEvent(bytes.TrimSpace(out.Bytes()))
		if err != nil || e.Failure == nil || !strings.Contains(e.Failure.Text, want) {
			t.Errorf("%s: %s", ask, &out)
		}
	}
	for _, ask := range []string{"", "x\n", `{"op":`, strings.Repeat("x", maxLine+1)} {
		if err := Serve(t.Context(), strings.NewReader(ask), io.Discard, Driver{}); err == nil {
			t.Errorf("%.20q was served", ask)
		}
	}
}

func TestMeasureNeedsTheLock(t *testing.T) {
	c, _ := child("serve")
	cores := benchmark.Cores{0, 1}
	held, err := lock.Acquire(t.TempDir(), "test", lock.CoreKeys(cores[:1]))
	if err != nil {
		t.Fatal(err)
	}
	defer held.Release()
	for _, l := range []*lock.Lock{nil, held} {
		if _, err := MeasureCPU(t.Context(), c, l, cores, benchmark.Quick, nil); !errors.Is(err, ErrUnlocked) {
			t.Errorf("%v", err)
		}
	}
}

func locked(t *testing.T, cores benchmark.Cores) *lock.Lock {
	t.Helper()
	held, err := lock.Acquire(t.TempDir(), "test", lock.CoreKeys(cores))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { held.Release() })
	return held
}

// The whole of a real run is in the end-to-end tests of cmd, the kernels' in suite: here is what crosses the pipe.
func TestMeasureCPU(t *testing.T) {
	cores := benchmark.Cores{0}
	want := cannedReport()
	c, _ := child("measured")
	var steps []suite.Progress
	got, err := MeasureCPU(t.Context(), c, locked(t, cores), cores, benchmark.Quick, func(p suite.Progress) { steps = append(steps, p) })
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]suite.Progress{cannedStep()}, steps); diff != "" {
		t.Error(diff)
	}
	c, _ = child(`say {"gpus":{"cards":null}}`)
	if _, err := MeasureCPU(t.Context(), c, locked(t, cores), cores, benchmark.Quick, nil); !errors.Is(err, ErrGarbage) {
		t.Errorf("another answer: %v", err)
	}
}

func cannedReport() benchmark.Report {
	return benchmark.Report{
		Device: benchmark.Device{
			Hash: benchmark.GPUDevice("x"), Kind: benchmark.KindCPU, Model: "M", Cores: benchmark.Cores{0, 1, 5}, MemoryMiB: 9, OS: "linux",
		},
		Profile: benchmark.Quick, KernelSet: 1, Started: time.UnixMilli(1).UTC(), Finished: time.UnixMilli(2).UTC(),
		Measurements: []benchmark.Measurement{{
			Figure: benchmark.FigureMemCopy, Kernel: benchmark.KernelOpenBLAS, KernelName: "k", Size: "s",
			Stats: benchmark.Stats{Median: 2, P5: 1, P95: 3, Spread: 4, N: 5, Unstable: true},
		}},
	}
}

func cannedStep() suite.Progress {
	return suite.Progress{Figure: benchmark.FigureMemCopy, Step: "measure", Series: 1, Done: 2, Total: 6}
}

func TestMeasureFailuresCrossThePipe(t *testing.T) {
	c, _ := child("serve")
	cores := benchmark.Cores{1023}
	var failed *Failure
	_, err := MeasureCPU(t.Context(), c, locked(t, cores), cores, benchmark.Quick, nil)
	if !errors.As(err, &failed) || !errors.Is(err, suite.ErrCoreAbsent) {
		t.Errorf("a core that is not there: %v", err)
	}
	if f := failure(fmt.Errorf("x: %w", suite.ErrWrong)); !errors.Is(f, suite.ErrWrong) || f.Code != "wrong_result" {
		t.Errorf("%+v", f)
	}

	cpu, err := suite.DetectCPU()
	if err != nil {
		t.Fatal(err)
	}
	gone := errors.New("the owner is back")
	ctx, cancel := context.WithCancelCause(t.Context())
	_, err = MeasureCPU(ctx, c, locked(t, cpu.Cores[:1]), cpu.Cores[:1], benchmark.Quick, func(suite.Progress) { cancel(gone) })
	if err == nil || !errors.Is(err, gone) {
		t.Errorf("cancelled: %v", err)
	}
}
