package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	stopWithin = 60 * time.Second // for a daemon to stop in order: its parts have 15 s each
	pollEvery  = 200 * time.Millisecond
	tailBytes  = 3000 // of each log when the demo fails
)

// world is what the demo starts, in a private folder.
type world struct {
	dir, bin string
	procs    []*process // in the order of their start
}

// process is a program that runs beside the demo.
type process struct {
	name string
	log  string // path
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended; err is set then
	err  error
}

// newWorld checks what the machine has and makes the folder.
func newWorld(bin string) (*world, error) {
	bin, err := filepath.Abs(bin)
	if err != nil {
		return nil, err
	}
	for _, program := range []string{"gpufair", "gpufaird", "gpufair-init"} {
		if _, err := os.Stat(filepath.Join(bin, program)); err != nil {
			return nil, fmt.Errorf("%w\n  next: make build, from the repository's root", err)
		}
	}
	if err := needRoot(os.Geteuid()); err != nil {
		return nil, err
	}
	if err := os.Setenv("PATH", os.Getenv("PATH")+":/usr/sbin:/sbin"); err != nil { // where Debian has runc; sudo and su do not always look there
		return nil, err
	}
	for _, program := range []string{"containerd", "ctr", "runc", "go"} {
		if _, err := exec.LookPath(program); err != nil {
			return nil, fmt.Errorf("%w\n  next: make deps", err)
		}
	}
	dir, err := os.MkdirTemp("", "gpufair-demo-")
	if err != nil {
		return nil, err
	}
	return &world{dir: dir, bin: bin}, os.Chmod(dir, 0o711) // containerd's folder is below: a job's root is nobody outside, and must reach its files there
}

// needRoot says what to do as another user. sudo has a PATH of its own, which mostly lacks Go's folder: ours goes with it.
func needRoot(uid int) error {
	if uid == 0 {
		return nil
	}
	return errors.New("this user is not root, and starting containers takes root\n  next: sudo env \"PATH=$PATH\" make demo")
}

func (w *world) path(name string) string { return filepath.Join(w.dir, name) }

// environment is ours without what a person may have set for their own gpufair.
func environment() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "GPUFAIR_") })
}

// start starts a program that runs until it is stopped. It has a process group of its own: Ctrl-C is for the demo, which stops all in order.
func (w *world) start(name, program string, args ...string) (*process, error) {
	p := &process{name: name, log: w.path(name + ".log"), done: make(chan struct{})}
	log, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p.cmd = exec.Command(program, args...)
	p.cmd.Stdout, p.cmd.Stderr, p.cmd.Env = log, log, environment()
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	w.procs = append(w.procs, p)
	return p, nil
}

// until waits for a condition while p, which it depends on, runs. f says whether it holds and, if not, why.
func until(ctx context.Context, p *process, what string, within time.Duration, f func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for {
		ok, why := f()
		if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until %s: %w; the last answer: %w", what, ctx.Err(), orErr(why, errors.New("not yet")))
		case <-p.done:
			return fmt.Errorf("wait until %s: %s ended: %w", what, p.name, orErr(p.err, errors.New("without an error")))
		case <-time.After(pollEvery):
		}
	}
}

func orErr(err, def error) error {
	if err != nil {
		return err
	}
	return def
}

// ask runs a command of gpufair or gpufaird and gives its stdout.
func (w *world) ask(ctx context.Context, home, program string, args ...string) ([]byte, error) {
	var out, complaints bytes.Buffer
	cmd := w.command(ctx, home, program, args...)
	cmd.Stdout, cmd.Stderr = &out, &complaints
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%s %s: %w\n%s%s", program, strings.Join(args, " "), err, out.Bytes(), complaints.Bytes())
	}
	return out.Bytes(), nil
}

func (w *world) command(ctx context.Context, home, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(w.bin, program), append(slices.Clone(args[:1]), append([]string{"--home", w.path(home)}, args[1:]...)...)...)
	cmd.Env = environment()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 20 * time.Second // then it is killed
	return cmd
}

// askJSON runs a command with --json and decodes each line of its answer.
func askJSON[T any](ctx context.Context, w *world, home, program string, args ...string) ([]T, error) {
	out, err := w.ask(ctx, home, program, append(slices.Clone(args[:1]), append([]string{"--json"}, args[1:]...)...)...)
	if err != nil {
		return nil, err
	}
	var all []T
	for dec := json.NewDecoder(bytes.NewReader(out)); dec.More(); {
		var v T
		if err := dec.Decode(&v); err != nil {
			return nil, fmt.Errorf("%s %s --json: %w in %.200q", program, strings.Join(args, " "), err, out)
		}
		all = append(all, v)
	}
	return all, nil
}

// one is askJSON of exactly one object.
func one[T any](ctx context.Context, w *world, home, program string, args ...string) (T, error) {
	all, err := askJSON[T](ctx, w, home, program, args...)
	if err == nil && len(all) != 1 {
		err = fmt.Errorf("%s %s --json: %d objects, want one", program, strings.Join(args, " "), len(all))
	}
	if err != nil {
		var none T
		return none, err
	}
	return all[0], nil
}

// containerdConfig leaves out what looks for more of the host than a few containers need.
const containerdConfig = `version = 2
root = %q
state = %q
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.aufs", "io.containerd.internal.v1.tracing",
  "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.opt"]
[grpc]
  address = %q
[debug]
  level = "warn"
`

func (w *world) socket() string { return w.path("containerd.sock") }

// startContainerd starts a containerd with folders and a socket of its own, so that the machine's is left alone.
func (w *world) startContainerd(ctx context.Context) error {
	text := fmt.Sprintf(containerdConfig, w.path("containerd"), w.path("containerd-run"), w.socket())
	if err := os.WriteFile(w.path("containerd.toml"), []byte(text), 0o600); err != nil {
		return err
	}
	p, err := w.start("containerd", "containerd", "--config", w.path("containerd.toml"))
	if err != nil {
		return err
	}
	return until(ctx, p, "containerd listens", time.Minute, func() (bool, error) {
		c, err := net.Dial("unix", w.socket())
		if err == nil {
			c.Close()
		}
		return err == nil, err
	})
}

// showLogs prints the ends of all logs.
func (w *world) showLogs() {
	logs, _ := filepath.Glob(w.path("*.log")) // the pattern is well-formed
	agent := w.path(filepath.Join(renter, "state", "agent.log"))
	for _, path := range append(logs, agent) {
		data, err := os.ReadFile(path)
		if err != nil || len(data) == 0 {
			continue
		}
		data = data[max(0, len(data)-tailBytes):]
		fmt.Fprintf(os.Stderr, "\n--- end of %s\n%s\n", filepath.Base(path), bytes.TrimSpace(data))
	}
}

// close stops what was started, in reverse, and removes the folder. After a success, too, it looks whether anything is left; finding some is
// an error then. It ignores the demo's own context: cleaning up is not to be interrupted.
func (w *world) close(success bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), 4*stopWithin)
	defer cancel()
	var errs []error
	if agent, err := one[struct{ PID int }](ctx, w, renter, "gpufair", "agent", "status"); err == nil { // the renter's commands started it
		if _, err := w.ask(ctx, renter, "gpufair", "agent", "stop", "--force"); err != nil {
			errs = append(errs, err, syscall.Kill(agent.PID, syscall.SIGKILL))
		}
	}
	for i := len(w.procs) - 1; i >= 0; i-- {
		if w.procs[i].name == "containerd" {
			errs = append(errs, w.endJobs(success)) // while containerd lives: it cleans up after a shim
		}
		errs = append(errs, w.procs[i].stop())
	}
	errs = append(errs, w.unmount(success))
	return errors.Join(append(errs, os.RemoveAll(w.dir))...)
}

func (p *process) stop() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.done:
		return nil
	case <-time.After(stopWithin):
	}
	err := fmt.Errorf("stop %s: it still ran after %v, and was killed", p.name, stopWithin)
	return errors.Join(err, p.cmd.Process.Kill())
}

// namespace is an owner's in containerd, and the name of its control group.
func (w *world) namespace(owner string) string { return filepath.Base(w.dir) + "-" + owner }

// endJobs ends what runs in containers that are left. After a success there are none.
func (w *world) endJobs(success bool) error {
	var errs []error
	for _, o := range providers() {
		ctr := func(args ...string) (string, error) {
			out, err := exec.Command("ctr", append([]string{"--address", w.socket(), "--namespace", w.namespace(o.name)}, args...)...).CombinedOutput()
			if err != nil {
				err = fmt.Errorf("ctr %s: %w: %s", strings.Join(args, " "), err, out)
			}
			return string(out), err
		}
		left, err := ctr("tasks", "list", "--quiet")
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for id := range strings.FieldsSeq(left) {
			if success {
				errs = append(errs, fmt.Errorf("container %s of %s was left running", id, o.name))
			}
			_, err := ctr("tasks", "delete", "--force", id)
			errs = append(errs, err)
		}
		groups, _ := filepath.Glob("/sys/fs/cgroup/*/" + w.namespace(o.name)) // the pattern is well-formed
		for _, dir := range append(groups, "/sys/fs/cgroup/"+w.namespace(o.name)) {
			err := os.Remove(dir)
			switch {
			case errors.Is(err, os.ErrNotExist):
			case err != nil:
				errs = append(errs, err)
			case success:
				errs = append(errs, fmt.Errorf("control group %s was left behind", dir))
			}
		}
	}
	return errors.Join(append(errs, w.endShims())...)
}

// endShims kills shims that are still there. That is an error: a shim ends with its container.
func (w *world) endShims() error {
	var errs []error
	processes, _ := filepath.Glob("/proc/[0-9]*/cmdline") // the pattern is well-formed
	for _, f := range processes {
		line, err := os.ReadFile(f)
		name, _, _ := bytes.Cut(line, []byte{0})
		if err != nil || !strings.HasPrefix(filepath.Base(string(name)), "containerd-shim") || !bytes.Contains(line, []byte(w.socket()+"\x00")) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f))); err == nil {
			errs = append(errs, fmt.Errorf("shim %d was left running", pid), syscall.Kill(pid, syscall.SIGKILL))
		}
	}
	return errors.Join(errs...)
}

// unmount lets go of mounts below the folder. After a success there are none.
func (w *world) unmount(success bool) error {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	var errs []error
	lines := strings.Split(string(table), "\n")
	for _, line := range slices.Backward(lines) { // the newest first
		f := strings.Fields(line)
		if len(f) < 5 || !strings.HasPrefix(f[4], w.dir+"/") {
			continue
		}
		if success {
			errs = append(errs, fmt.Errorf("%s was left mounted", f[4]))
		}
		errs = append(errs, syscall.Unmount(f[4], syscall.MNT_DETACH))
	}
	return errors.Join(errs...)
}
