package lock

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpufair/gpufair/benchmark"
)

const childEnv = "GPUFAIR_TEST_LOCK_DIR"

// TestMain is also the second process of the tests: it claims core 1, says so and waits to be killed.
func TestMain(m *testing.M) {
	dir := os.Getenv(childEnv)
	if dir == "" {
		os.Exit(m.Run())
	}
	if _, err := Acquire(dir, "gpufaird run", CoreKeys(benchmark.Cores{1})); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("claimed")
	bufio.NewReader(os.Stdin).ReadString('\n')
	os.Exit(2)
}

func TestSecondProcessIsRefusedUntilTheFirstDies(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "locks")
	first := exec.CommandContext(t.Context(), os.Args[0])
	first.Env = append(os.Environ(), childEnv+"="+dir)
	stdin, err := first.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	out, err := first.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "claimed\n" {
		t.Fatalf("first process: %q, %v", line, err)
	}

	_, err = Acquire(dir, "gpufaird benchmark", CoreKeys(benchmark.Cores{0, 1, 2}))
	var held *HeldError
	if !errors.As(err, &held) || held.Key != "core-1" || held.PID != first.Process.Pid || held.Holder != "gpufaird run" {
		t.Fatalf("second claim: %v (%+v)", err, held)
	}
	for _, word := range []string{"core 1", fmt.Sprint(first.Process.Pid), "gpufaird run", "config"} {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%q does not say %q", err, word)
		}
	}
	// all or none: cores 0 and 2 are free again
	others, err := Acquire(dir, "other", CoreKeys(benchmark.Cores{0, 2}))
	if err != nil {
		t.Fatal(err)
	}
	defer others.Release()

	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	first.Wait() // ends with the kill
	after, err := Acquire(dir, "next", CoreKeys(benchmark.Cores{1}))
	if err != nil {
		t.Fatalf("after the first process died: %v", err)
	}
	if err := after.Release(); err != nil {
		t.Fatal(err)
	}
}

func TestOneClaimAtATimeWithinAProcess(t *testing.T) {
	dir := t.TempDir()
	keys := append(CoreKeys(benchmark.Cores{3, 4}), GPUKey("GPU-1"), GPUKey("GPU-1"))
	l, err := Acquire(dir, "first", keys)
	if err != nil {
		t.Fatal(err)
	}
	if !l.Covers(keys) || l.Covers(CoreKeys(benchmark.Cores{3, 5})) {
		t.Error("covers what it should not, or not what it should")
	}
	var held *HeldError
	if _, err := Acquire(dir, "second", []Key{GPUKey("GPU-1")}); !errors.As(err, &held) || held.PID != os.Getpid() || held.Holder != "first" {
		t.Errorf("second claim: %v", err)
	}
	if err := l.Release(); err != nil {
		t.Fatal(err)
	}
	if err := l.Release(); err != nil {
		t.Errorf("second release: %v", err)
	}
	if l.Covers(keys) || (*Lock)(nil).Covers(keys) {
		t.Error("a released or nil lock covers keys")
	}
	again, err := Acquire(dir, "second", keys)
	if err != nil {
		t.Fatal(err)
	}
	again.Release()
}

func TestBadKeysAndFolders(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink(filepath.Join(dir, "elsewhere"), filepath.Join(dir, "core-9.lock")); err != nil {
		t.Fatal(err)
	}
	for _, k := range []Key{"", "../core-1", "gpu-\x00", "core-9"} {
		if l, err := Acquire(dir, "x", []Key{k}); err == nil {
			l.Release()
			t.Errorf("key %q was claimed", k)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "elsewhere")); err == nil {
		t.Error("a symbolic link was followed")
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Acquire(file, "x", CoreKeys(benchmark.Cores{1})); err == nil || !strings.Contains(err.Error(), "config") {
		t.Errorf("a folder that is a file: %v", err)
	}
}

// TestLockIsItsOwnersAlone: who can open a lock file can hold it, so nobody else can, also where an earlier release let them.
func TestLockIsItsOwnersAlone(t *testing.T) {
	dir := t.TempDir()
	old := filepath.Join(dir, "core-2.lock")
	if err := os.WriteFile(old, []byte("1 earlier\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(old, 0o644); err != nil {
		t.Fatal(err)
	}
	l, err := Acquire(dir, "x", CoreKeys(benchmark.Cores{1, 2}))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Release()
	for _, name := range []string{"core-1.lock", "core-2.lock"} {
		st, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if st.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %o, want 600", name, st.Mode().Perm())
		}
	}
}

func TestUnsignedLockFile(t *testing.T) {
	for _, text := range []string{"", "x", "12x y", "-1 x", "0 x", "2147483647 gone"} {
		path := filepath.Join(t.TempDir(), "core-1.lock")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		var held *HeldError
		if err := holder(f, "core-1"); !errors.As(err, &held) || held.PID != 0 || strings.Contains(err.Error(), "kill") {
			t.Errorf("%q: %v", text, err)
		}
		f.Close()
	}
}
