package containerd_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/provider"
	"github.com/gpufair/gpufair/provider/containerd"
	"github.com/gpufair/gpufair/provider/containerd/containerdtest"
	"github.com/gpufair/gpufair/provider/providertest"
)

// await waits for what must become true, with the tests' patience.
func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	ctx := providertest.Context(t)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-ctx.Done():
			t.Fatalf("%s: not in time", what)
		case <-tick.C:
		}
	}
}

// TestJobs runs jobs on one containerd.
func TestJobs(t *testing.T) {
	d, rig := newRig(t)
	t.Run("exits", func(t *testing.T) { exits(t, rig) })
	t.Run("sandbox", func(t *testing.T) { sandboxed(t, rig) })
	t.Run("user", func(t *testing.T) { users(t, rig) })
	t.Run("memory", func(t *testing.T) { memory(t, rig) })
	t.Run("processes", func(t *testing.T) { processes(t, rig) })
	t.Run("files in memory", func(t *testing.T) { filesInMemory(t, rig) })
	t.Run("cores", func(t *testing.T) { cores(t, rig) })
	t.Run("orphans", func(t *testing.T) { orphans(t, rig) })
	t.Run("forged record", func(t *testing.T) { forgedRecord(t, rig) })
	t.Run("long output", func(t *testing.T) { longOutput(t, rig) })
	t.Run("nothing left", func(t *testing.T) { nothingLeft(t, d) })
}

func exits(t *testing.T, rig providertest.Rig) {
	for i, c := range []struct {
		command []string
		want    provider.ExitStatus
	}{
		{[]string{"job", "exit", "0"}, provider.ExitStatus{}},
		{[]string{"job", "exit", "42"}, provider.ExitStatus{Code: 42}},
		{[]string{"/bin/job", "exit", "127"}, provider.ExitStatus{Code: 127}}, // its own 127, not "no such command"
		{[]string{"job", "crash", "15"}, provider.ExitStatus{Code: 143, Signal: "SIGTERM"}},
		{[]string{"job", "crash", "9"}, provider.ExitStatus{Code: 137, Signal: "SIGKILL"}},
	} {
		end, _, _ := rig.Run(t, fmt.Sprintf("e%d", i), c.command...).Finish(t)
		if end.Exit == nil || *end.Exit != c.want {
			t.Errorf("%v ended with %+v, want %+v", c.command, end.Exit, c.want)
		}
	}
	for i, c := range []struct {
		command string
		code    int
		says    string
	}{
		{"/nonesuch", 127, "no such file"},
		{"nonesuch", 127, "not found in PATH (/bin)"},
		{"/etc/passwd", 126, "permission denied"},
		{"/bin", 126, "directory"},
		{"/bin/text", 126, "exec format error"},
	} {
		j := rig.Create(t, fmt.Sprintf("n%d", i), providertest.Policy(), work.Spec{Command: []string{c.command}})
		err := rig.Runtime.Start(providertest.Context(t), j.ID)
		if !errors.Is(err, provider.ErrCommand) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("start of %s: %v", c.command, err)
		}
		if end := j.Wait(t); end.Exit == nil || end.Exit.Code != c.code || end.Exit.ExecError == "" {
			t.Errorf("%s ended with %+v", c.command, end.Exit)
		}
	}
}

// sandboxed looks at the sandbox from inside.
func sandboxed(t *testing.T, rig providertest.Rig) {
	j := rig.Create(t, "5a4d0001", providertest.Policy(), work.Spec{Command: []string{"job", "show"}, Env: []string{"FROM_IMAGE=no", "MINE=1"}})
	if err := os.WriteFile(filepath.Join(j.Folders.In, "data"), []byte("input"), 0o644); err != nil {
		t.Fatal(err)
	}
	j.Start(t)
	_, out, errs := j.Finish(t)
	lines := strings.Split(out, "\n")
	for _, want := range []string{
		"NoNewPrivs 1", "Seccomp 2", "CapInh 0000000000000000", "CapAmb 0000000000000000", "CapBnd 00000000000004fb", "CapEff 00000000000004fb",
		"Cpus_allowed_list 0", "interface lo", "hostname job-5a4d0001", "cwd /", "env FROM_IMAGE=no", "env MINE=1", "env HOME=/scratch",
		"env GPUFAIR_LEASE=5a4d0001", "mount operation not permitted", "mknod operation not permitted", "unshare operation not permitted",
		"chroot operation not permitted", "dial 127.0.0.1:1 dial tcp 127.0.0.1:1: connect: connection refused", "dev null", "dev shm",
	} {
		if !slices.Contains(lines, want) {
			t.Errorf("inside, %q is missing", want)
		}
	}
	for _, line := range lines {
		f := strings.Fields(line)
		switch {
		case len(f) < 2:
		case f[0] == "interface" && f[1] != "lo":
			t.Errorf("the job has a network: %s", line)
		case f[0] == "dial" && !strings.Contains(line, "unreachable") && !strings.Contains(line, "refused"):
			t.Errorf("the job has a way out: %s", line)
		case f[0] == "dev" && slices.ContainsFunc([]string{"sd", "vd", "nvme", "loop", "kvm", "mem", "fuse"}, func(p string) bool { return strings.HasPrefix(f[1], p) }):
			t.Errorf("the job sees a device of the host: %s", line)
		}
	}
	if t.Failed() {
		t.Logf("%s%s", out, errs)
	}
	_, out, _ = rig.Run(t, "5a4d0002", "job", "write", "/in/x", "/bin/x", "/x", "/etc/passwd", "/proc/sys/kernel/hostname", "/sys/x", "/run/gpufair/init",
		"/out/x", "/scratch/x", "/tmp/x", "/dev/shm/x").Finish(t)
	want := "/in/x false\n/bin/x true\n/x true\n/etc/passwd true\n/proc/sys/kernel/hostname false\n/sys/x false\n/run/gpufair/init false\n" +
		"/out/x true\n/scratch/x true\n/tmp/x true\n/dev/shm/x true\n" // its own layer takes the changes of the image
	if out != want {
		t.Errorf("writable:\n%s", out)
	}
}

func users(t *testing.T, rig providertest.Rig) {
	for i, c := range []struct{ user, uid string }{{"worker", "Uid 1000,1000,1000,1000"}, {"1000:1000", "Uid 1000,1000,1000,1000"}, {"", "Uid 0,0,0,0"}} {
		j := rig.Create(t, fmt.Sprintf("05e4%d", i), providertest.Policy(), work.Spec{Command: []string{"job", "show"}, User: c.user})
		j.Start(t)
		end, out, errs := j.Finish(t)
		if !strings.Contains(out, c.uid+"\n") || end.Exit.Code != 0 {
			t.Errorf("user %q: %+v\n%s%s", c.user, end.Exit, out, errs)
		}
		if c.user != "" && !strings.Contains(out, "CapEff 0000000000000000\n") {
			t.Errorf("user %q has capabilities:\n%s", c.user, out)
		}
	}
	_, out, _ := func() (provider.Container, string, string) {
		j := rig.Create(t, "05e49", providertest.Policy(), work.Spec{Command: []string{"job", "write", "/out/x", "/scratch/x", "/in/x"}, User: "worker"})
		j.Start(t)
		return j.Finish(t)
	}()
	if out != "/out/x true\n/scratch/x true\n/in/x false\n" {
		t.Errorf("a user of the image writes:\n%s", out)
	}
	img := rig.Import(t)
	_, err := rig.Runtime.Create(providertest.Context(t), provider.CreateRequest{
		ID: "05e4a", Image: img.Digest, Record: t.TempDir(), Root: provider.RootFolders{Upper: "/u", Work: "/w", Lower: t.TempDir()}, Logs: provider.LogRequest{Path: t.TempDir(), MaxBytes: 1 << 20},
		Spec: []byte(`{"process":{"user":{"username":"stranger"},"capabilities":{}},"root":{"path":"rootfs"},"linux":{"resources":{}}}`),
	})
	if !errors.Is(err, provider.ErrRequest) || !strings.Contains(err.Error(), "stranger") {
		t.Errorf("a user that the image does not know: %v", err)
	}
	if _, err := rig.Runtime.Status(providertest.Context(t), "05e4a"); !errors.Is(err, provider.ErrNotFound) {
		t.Errorf("after a create that failed: %v", err)
	}
}

func memory(t *testing.T, rig providertest.Rig) {
	p := providertest.Policy()
	p.MemoryBytes = 64 << 20
	j := rig.Create(t, "0e0001", p, work.Spec{Command: []string{"job", "eat", "1024"}})
	j.Start(t)
	end := j.Wait(t)
	if end.Exit == nil || !end.Exit.OOM || end.Exit.Signal != "SIGKILL" {
		t.Errorf("a job over its memory ended with %+v", end.Exit)
	}
	if u, err := rig.Runtime.Usage(providertest.Context(t), j.ID); err != nil || u.MemoryPeak > 65<<20 || u.MemoryPeak < 32<<20 {
		t.Errorf("usage of a job over its memory: %+v, %v", u, err)
	}
	end, out, _ := rig.Run(t, "0e0002", "job", "eat", "64").Finish(t)
	if out != "ate 64\n" || end.Exit.OOM {
		t.Errorf("a job inside its memory: %+v %q", end.Exit, out)
	}
}

func processes(t *testing.T, rig providertest.Rig) {
	j := rig.Run(t, "0f0001", "job", "fork", "200")
	_, out, _ := j.Finish(t)
	_, n, _ := strings.Cut(strings.TrimSpace(out), "forked ")
	if forked, err := strconv.Atoi(n); err != nil || forked > 40 || !strings.Contains(out, "resource temporarily unavailable") {
		t.Errorf("a fork bomb says: %q", out)
	}
}

func filesInMemory(t *testing.T, rig providertest.Rig) {
	for i, dir := range []string{"/tmp", "/dev/shm"} {
		end, out, _ := rig.Run(t, fmt.Sprintf("f11e%d", i), "job", "fill", dir).Finish(t)
		if !strings.Contains(out, "no space left on device") || end.Exit.Code != 0 {
			t.Errorf("files without end in %s: %+v %q", dir, end.Exit, out)
		}
	}
}

// cores shows that a job stays on its core: a busy loop on each of many threads takes no more than one.
func cores(t *testing.T, rig providertest.Rig) {
	p := providertest.Policy()
	p.Cores = []int{1}
	j := rig.Create(t, "c04e", p, work.Spec{Command: []string{"job", "show"}})
	j.Start(t)
	if _, out, _ := j.Finish(t); !strings.Contains(out, "Cpus_allowed_list 1\n") {
		t.Errorf("leased core 1, got:\n%s", out)
	}
}

// orphans shows that what a job leaves behind dies with it, and is reaped before.
func orphans(t *testing.T, rig providertest.Rig) {
	j := rig.Run(t, "04f4", "job", "orphan")
	if end := j.Wait(t); end.Exit == nil || end.Exit.Code != 0 {
		t.Fatalf("end: %+v", end.Exit)
	}
	await(t, "the end of the job's orphans", func() bool {
		u, err := rig.Runtime.Usage(providertest.Context(t), j.ID)
		return err == nil && u.Pids == 0
	})
}

// forgedRecord lets things lie where the exit record should: none is followed or believed.
func forgedRecord(t *testing.T, rig providertest.Rig) {
	for i, forge := range []func(path string) error{
		func(p string) error { return os.Symlink("/etc/passwd", p) },
		func(p string) error { return syscall.Mkfifo(p, 0o600) },
		func(p string) error { return os.WriteFile(p, make([]byte, 1<<20), 0o600) },
	} {
		j := rig.Run(t, fmt.Sprintf("f04e%d", i), "job", "sleep")
		if err := forge(filepath.Join(j.Folders.Record, "exit.json")); err != nil {
			t.Fatal(err)
		}
		if err := rig.Runtime.Signal(providertest.Context(t), provider.SignalRequest{ID: j.ID, Signal: "SIGKILL"}); err != nil {
			t.Fatal(err)
		}
		if end := j.Wait(t); end.Exit == nil || *end.Exit != (provider.ExitStatus{Code: 137, Signal: "SIGKILL"}) {
			t.Errorf("forgery %d: %+v", i, end.Exit)
		}
	}
}

func longOutput(t *testing.T, rig providertest.Rig) {
	_, out, _ := rig.Run(t, "10a6", "job", "lines", "20000").Finish(t)
	if !strings.HasSuffix(out, "line 19999\n") || strings.Count(out, "\n") != 20000 {
		t.Errorf("%d lines came, the last: %q", strings.Count(out, "\n"), out[max(0, len(out)-40):])
	}
}

// nothingLeft looks for what deleted jobs could leave on the host.
func nothingLeft(t *testing.T, d *containerdtest.Daemon) {
	await(t, "the end of all shims", func() bool { return len(d.Shims()) == 0 })
	if m, err := d.Mounts(); err != nil || len(m) > 0 {
		t.Errorf("mounts are left: %v, %v", m, err)
	}
	left, err := filepath.Glob("/sys/fs/cgroup/*/gpufair-test/*/cgroup.procs")
	if err != nil || len(left) > 0 {
		t.Errorf("groups are left: %v, %v", left, err)
	}
	for _, what := range []string{"snapshots", "containers", "tasks"} {
		b, err := exec.Command("ctr", "--address", d.Address, "-n", "gpufair-test", what, "ls").Output()
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			if strings.Contains(line, "Active") || (what != "snapshots" && !strings.HasPrefix(line, "CONTAINER") && !strings.HasPrefix(line, "TASK")) {
				t.Errorf("%s are left: %s", what, line)
			}
		}
	}
}

// TestAdoption kills, in turn, all that stands between a job and who waits for it.
func TestAdoption(t *testing.T) {
	d, rig := newRig(t)
	const label = "lease"

	t.Run("by a second client", func(t *testing.T) {
		j := rig.Run(t, "ad01", "job", "count", "/in/stop")
		j.Await(t, "line 2\n")
		second := connect(t, config(t, d))
		list, err := second.List(providertest.Context(t))
		if err != nil || len(list) != 1 || list[0].State != provider.ContainerRunning || list[0].Labels[label] != j.ID {
			t.Fatalf("list: %+v, %v", list, err)
		}
		stop(t, j)
		end, err := second.Wait(providertest.Context(t), j.ID)
		if err != nil || end.Exit == nil || end.Exit.Code != 7 {
			t.Fatalf("end: %+v, %v", end.Exit, err)
		}
	})
	t.Run("over a crash of containerd", func(t *testing.T) {
		j := rig.Run(t, "ad02", "job", "count", "/in/stop")
		j.Await(t, "line 0\n")
		type result struct {
			c   provider.Container
			err error
		}
		waited := make(chan result, 1)
		ctx := providertest.Context(t)
		go func() {
			c, err := rig.Runtime.Wait(ctx, j.ID)
			waited <- result{c, err}
		}()
		d.Kill()
		if _, err := rig.Runtime.Status(ctx, j.ID); !errors.Is(err, provider.ErrUnavailable) || !strings.Contains(err.Error(), "containerd has stopped") {
			t.Fatalf("status while containerd is down: %v", err)
		}
		if u, err := rig.Runtime.Usage(ctx, j.ID); err != nil || u.Pids == 0 {
			t.Fatalf("usage while containerd is down: %+v, %v", u, err)
		}
		j.Await(t, "line 8\n") // its output comes in meanwhile
		if err := d.Restart(); err != nil {
			t.Fatal(err)
		}
		await(t, "containerd's answer", func() bool {
			st, err := rig.Runtime.Status(ctx, j.ID)
			return err == nil && st.State == provider.ContainerRunning
		})
		stop(t, j)
		if r := <-waited; r.err != nil || r.c.Exit == nil || r.c.Exit.Code != 7 {
			t.Fatalf("end: %+v, %v", r.c.Exit, r.err)
		}
	})
	t.Run("end while containerd is down", func(t *testing.T) {
		j := rig.Run(t, "ad03", "job", "count", "/in/stop")
		j.Await(t, "line 0\n")
		d.Kill()
		stop(t, j)
		await(t, "the exit record", func() bool {
			_, err := os.Stat(filepath.Join(j.Folders.Record, "exit.json"))
			return err == nil
		})
		if err := d.Restart(); err != nil {
			t.Fatal(err)
		}
		if end := j.Wait(t); end.Exit == nil || end.Exit.Code != 7 {
			t.Fatalf("end: %+v", end.Exit)
		}
	})
	t.Run("shim killed", func(t *testing.T) { shimKilled(t, d, rig) })
	t.Run("nothing left", func(t *testing.T) { nothingLeft(t, d) })
}

// stop lets a counting job end.
func stop(t *testing.T, j providertest.Job) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(j.Folders.In, "stop"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
}

// shimKilled shows that a job whose shim is killed is told to be lost, and that no process of it outlives its deletion.
func shimKilled(t *testing.T, d *containerdtest.Daemon, rig providertest.Rig) {
	j := rig.Run(t, "ad04", "job", "sleep")
	j.Await(t, "ready")
	if err := rig.Runtime.Freeze(providertest.Context(t), j.ID); err != nil { // the hardest to kill
		t.Fatal(err)
	}
	await(t, "the end of older shims", func() bool { return len(d.Shims()) == 1 })
	for _, pid := range d.Shims() {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	if end := j.Wait(t); end.State != provider.ContainerLost && end.State != provider.ContainerStopped {
		t.Fatalf("end: %+v", end)
	}
	rig.Delete(t, j.ID)
	d.ForgetShim("gpufair-test", j.ID)
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", j.Created.PID))
	if err == nil && !strings.Contains(string(b), "State:\tZ") { // dead is enough: reaping it is for the host's init
		t.Errorf("the job's first process outlived its deletion:\n%s", b)
	}
}

// TestUnreachable is what an owner reads whose containerd is not there.
func TestUnreachable(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(path string)
		says  string
	}{
		{"none", func(string) {}, "containerd is not installed"},
		{"stopped", func(p string) {
			l, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer syscall.Close(l)
			if err := syscall.Bind(l, &syscall.SockaddrUnix{Name: p}); err != nil {
				t.Fatal(err)
			}
		}, "nothing listens"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "c.sock")
			c.spoil(path)
			client := connect(t, containerd.Config{Address: path, Namespace: "x", Logger: "/logger"})
			_, err := client.Info(providertest.Context(t))
			if !errors.Is(err, provider.ErrUnavailable) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("info: %v", err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if _, err := client.Wait(ctx, "x"); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("wait: %v", err)
			}
		})
	}
	good := containerd.Config{Address: "/run/c.sock", Namespace: "gpufair", Logger: "/logger"}
	for _, spoil := range []func(*containerd.Config){
		func(c *containerd.Config) { c.Address = "run/c.sock" },
		func(c *containerd.Config) { c.Address = "/" + strings.Repeat("x", 107) },
		func(c *containerd.Config) { c.Namespace = "../x" },
		func(c *containerd.Config) { c.RuntimeRoot = "runc" },
		func(c *containerd.Config) { c.Logger = "" },
	} {
		c := good
		spoil(&c)
		if _, err := containerd.New(c); err == nil {
			t.Errorf("config %+v was taken", c)
		}
	}
}
