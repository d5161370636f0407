// Package containerdtest starts a private containerd for tests and builds small images for it. It runs the host's containerd program with
// folders and a socket of its own, knows nothing of the client, and leaves nothing behind: no process, mount or file.
package containerdtest

import (
	"bytes"
	"crypto/sha256"
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
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
)

// bootIn is how long containerd may take to listen on a busy machine.
const bootIn = 60 * time.Second

// Daemon is a private containerd. It is for one goroutine.
type Daemon struct {
	Dir         string // everything of it lies here
	Address     string // absolute path of its socket
	RuntimeRoot string // where runc shall keep its state
	cmd         *exec.Cmd
}

// config leaves out what tests don't need and what looks for more of the host.
const config = `version = 2
root = %q
state = %q
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.aufs", "io.containerd.internal.v1.tracing",
  "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.opt"]
[grpc]
  address = %q
`

// Start launches a daemon for a test and stops it at the test's end. Tests that need containerd need root and the containerd and runc
// packages: without them they fail and say so, since a test that is left out proves nothing.
func Start(t testing.TB) *Daemon {
	t.Helper()
	d, err := Launch()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Stop(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// Launch starts a daemon in a new folder; the caller stops it.
func Launch() (*Daemon, error) {
	if os.Getuid() != 0 {
		return nil, errors.New("start containerd: it takes root: run these tests as root")
	}
	for _, program := range []string{"containerd", "runc"} {
		if _, err := exec.LookPath(program); err != nil {
			return nil, fmt.Errorf("start containerd: %w: apt-get install containerd runc", err)
		}
	}
	dir, err := os.MkdirTemp("", "gpufair-c") // short: a socket's path may have 107 bytes
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(dir, 0o711); err != nil { // as /run/containerd is: a job's root is nobody outside, and its root file system lies below
		return nil, err
	}
	d := &Daemon{Dir: dir, Address: filepath.Join(dir, "c.sock"), RuntimeRoot: filepath.Join(dir, "runc")}
	text := fmt.Sprintf(config, filepath.Join(dir, "root"), filepath.Join(dir, "state"), d.Address)
	if err := os.WriteFile(d.configPath(), []byte(text), 0o600); err != nil {
		return nil, err
	}
	if err := d.Restart(); err != nil {
		return nil, errors.Join(err, d.Stop())
	}
	return d, nil
}

func (d *Daemon) configPath() string { return filepath.Join(d.Dir, "config.toml") }

// Log is what the daemon has logged.
func (d *Daemon) Log() string {
	b, _ := os.ReadFile(filepath.Join(d.Dir, "log")) // missing: nothing was logged
	return string(b)
}

// Restart starts the daemon again after [Daemon.Kill] and waits until it listens.
func (d *Daemon) Restart() error {
	log, err := os.OpenFile(filepath.Join(d.Dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	d.cmd = exec.Command("containerd", "--config", d.configPath())
	d.cmd.Stdout, d.cmd.Stderr = log, log // files: a pipe would be held open by shims that outlive the daemon
	if err := d.cmd.Start(); err != nil {
		d.cmd = nil
		return fmt.Errorf("start containerd: %w", err)
	}
	deadline := time.Now().Add(bootIn)
	for {
		conn, err := net.Dial("unix", d.Address)
		if err == nil {
			return conn.Close()
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("start containerd: it does not listen: %w\n%s", err, d.Log())
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// Kill ends the daemon as a crash would. Its shims and their jobs go on.
func (d *Daemon) Kill() {
	if d.cmd != nil {
		_ = d.cmd.Process.Kill() // it may have died by itself
		_ = d.cmd.Wait()         // killed: not an error here
		d.cmd = nil
	}
}

// Shims are the process ids of the daemon's shims.
func (d *Daemon) Shims() []int {
	var pids []int
	dirs, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range dirs {
		b, err := os.ReadFile(f)
		args := bytes.Split(b, []byte{0})
		if err != nil || !strings.Contains(filepath.Base(string(args[0])), "containerd-shim") || !bytes.Contains(b, []byte(d.Address+"\x00")) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f))); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// ForgetShim removes the socket that a killed shim left behind outside of the daemon's folder.
func (d *Daemon) ForgetShim(namespace, id string) {
	name := sha256.Sum256([]byte(filepath.Join(d.Address, namespace, id))) // as containerd's SocketAddress has it
	_ = os.Remove(fmt.Sprintf("/run/containerd/s/%x", name))               // gone with a shim that ended well
}

// Mounts are the mounts below the daemon's folder, newest first.
func (d *Daemon) Mounts() ([]string, error) { return mountsBelow(d.Dir) }

// Unmount unmounts all below dir: the disks of leases outlive the daemon that made them, which is what a test that ends in the middle of a
// lease leaves.
func Unmount(dir string) error {
	found, err := mountsBelow(dir)
	for _, at := range found {
		err = errors.Join(err, syscall.Unmount(at, syscall.MNT_DETACH))
	}
	return err
}

func mountsBelow(dir string) ([]string, error) {
	all, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return nil, err
	}
	var found []string
	for _, m := range slices.Backward(all) {
		if m.Mountpoint != dir {
			found = append(found, m.Mountpoint)
		}
	}
	return found, nil
}

// Stop ends the daemon and whatever of its jobs is left, and removes all its files. It is an error if there were any: a test deletes the
// containers that it made.
func (d *Daemon) Stop() error {
	var errs []error
	for _, pid := range d.Shims() {
		errs = append(errs, fmt.Errorf("stop containerd: shim %d was left behind", pid))
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	if d.cmd != nil {
		_ = d.cmd.Process.Signal(syscall.SIGTERM)
		_ = d.cmd.Wait()
		d.cmd = nil
	}
	mounts, err := d.Mounts()
	errs = append(errs, err)
	for _, m := range mounts {
		errs = append(errs, fmt.Errorf("stop containerd: mount %s was left behind", m), syscall.Unmount(m, syscall.MNT_DETACH))
	}
	return errors.Join(append(errs, os.RemoveAll(d.Dir))...)
}
