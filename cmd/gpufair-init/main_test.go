package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// asInit makes the test's own program behave as gpufair-init.
const asInit = "GPUFAIR_TEST_AS_INIT"

func TestMain(m *testing.M) {
	if os.Getenv(asInit) != "" {
		main()
	}
	os.Exit(m.Run())
}

// start runs init as PID 1 of a namespace of its own (it takes root).
func start(t *testing.T, env []string, command ...string) (*exec.Cmd, string) {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0], append([]string{dir, "--"}, command...)...)
	cmd.Env = append(env, asInit+"=1", "GORACE=atexit_sleep_ms=0")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	if err := cmd.Start(); err != nil {
		t.Fatalf("start init (run these tests as root): %v", err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return cmd, dir
}

// end waits for init and gives its exit code and its record.
func end(t *testing.T, cmd *exec.Cmd, dir string) (int, record) {
	t.Helper()
	_ = cmd.Wait() // the code says it
	var r record
	b, err := os.ReadFile(filepath.Join(dir, "exit.json"))
	if err == nil {
		err = json.Unmarshal(b, &r)
	}
	if err != nil {
		t.Fatalf("exit record: %v", err)
	}
	if age := time.Since(time.Unix(0, r.At)); age < 0 || age > time.Minute {
		t.Errorf("the record is %v old", age)
	}
	r.At = 0
	return cmd.ProcessState.ExitCode(), r
}

func TestEnds(t *testing.T) {
	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, []byte("text"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		command []string
		env     []string
		want    record
		says    string
	}{
		{command: []string{"/bin/sh", "-c", "exit 0"}},
		{command: []string{"sh", "-c", "exit 7"}, env: []string{"PATH=/nonesuch:/bin"}, want: record{Code: 7}},
		{command: []string{"sh", "-c", "exit 127"}, env: []string{"PATH=/bin"}, want: record{Code: 127}},
		{command: []string{"sh", "-c", "kill -SEGV $$"}, env: []string{"PATH=/bin"}, want: record{Code: 139, Signal: 11}},
		{command: []string{"sh", "-c", "kill -KILL $$"}, env: []string{"PATH=/bin"}, want: record{Code: 137, Signal: 9}},
		{command: []string{"sh", "-c", "[ $$ -ne 1 ] && [ -z \"$X\" ] && sleep 0 & wait"}, env: []string{"PATH=/bin"}},
		{command: []string{"nonesuch"}, env: []string{"PATH=/bin"}, want: record{Code: 127}, says: "nonesuch: not found in PATH (/bin)"},
		{command: []string{"sh"}, want: record{Code: 127}, says: "not found in PATH ()"},
		{command: []string{"/nonesuch"}, want: record{Code: 127}, says: "no such file"},
		{command: []string{"/etc/passwd/x"}, want: record{Code: 127}, says: "no such file"},
		{command: []string{""}, want: record{Code: 127}, says: "empty"},
		{command: []string{"/etc"}, want: record{Code: 126}, says: "is a directory"},
		{command: []string{"/etc/passwd"}, want: record{Code: 126}, says: "permission denied"},
		{command: []string{"passwd"}, env: []string{"PATH=/etc:/nonesuch"}, want: record{Code: 126}, says: "/etc/passwd: permission denied"},
		{command: []string{plain}, want: record{Code: 126}, says: "exec format error"},
	} {
		cmd, dir := start(t, c.env, c.command...)
		code, got := end(t, cmd, dir)
		says := got.ExecError
		got.ExecError = ""
		if got != c.want || code != c.want.Code || !strings.Contains(says, c.says) || (c.says == "") != (says == "") {
			t.Errorf("%q: exits with %d, record %+v %q; want %+v %q", c.command, code, got, says, c.want, c.says)
		}
	}
}

// TestSignals forwards one to a command that answers in its own way, once that says that it listens.
func TestSignals(t *testing.T) {
	ready := filepath.Join(t.TempDir(), "ready")
	cmd, dir := start(t, []string{"PATH=/bin:/usr/bin"}, "sh", "-c", "trap 'exit 5' TERM; touch "+ready+"; while :; do sleep 0.05; done")
	awaitFile(t, ready)
	awaitFile(t, filepath.Join(dir, "started"))
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code, r := end(t, cmd, dir); code != 5 || r != (record{Code: 5}) {
		t.Errorf("exits with %d, record %+v", code, r)
	}
}

// TestReaps leaves children behind whose parents are gone: they don't stay as zombies.
func TestReaps(t *testing.T) {
	dir := t.TempDir()
	seen := filepath.Join(dir, "seen")
	script := `for i in 1 2 3 4 5; do (sleep 0.01 & ) ; done; sleep 0.3; touch ` + seen + `; while :; do sleep 0.05; done`
	cmd, record := start(t, []string{"PATH=/bin:/usr/bin"}, "sh", "-c", script)
	awaitFile(t, seen)
	deadline := time.Now().Add(time.Minute)
	for zombies(t, cmd.Process.Pid) > 0 {
		if time.Now().After(deadline) {
			t.Fatal("zombies are left")
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code, _ := end(t, cmd, record); code != 128+15 {
		t.Errorf("exits with %d", code)
	}
}

// zombies counts the dead children of a process.
func zombies(t *testing.T, parent int) int {
	t.Helper()
	n := 0
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // gone
		}
		_, rest, _ := strings.Cut(string(b), ") ")
		if f := strings.Fields(rest); len(f) > 1 && f[0] == "Z" && f[1] == strconv.Itoa(parent) {
			n++
		}
	}
	return n
}

func awaitFile(t *testing.T, path string) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		if _, err := os.Stat(path); err == nil {
			return
		} else if !os.IsNotExist(err) || time.Now().After(deadline) {
			t.Fatalf("wait for %s: %v", path, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// TestRecordIsWhole replaces an older record in one step and leaves nothing beside it.
func TestRecordIsWhole(t *testing.T) {
	dir := t.TempDir()
	for code := range 3 {
		if err := write(dir, record{Code: code}); err != nil {
			t.Fatal(err)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 || entries[0].Name() != "exit.json" {
		t.Errorf("%v, %v", entries, err)
	}
	if err := write(filepath.Join(dir, "none"), record{}); err == nil || !os.IsNotExist(err) {
		t.Errorf("no folder: %v", err)
	}
}
