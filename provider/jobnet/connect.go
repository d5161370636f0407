package jobnet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpufair/gpufair/provider"
)

const (
	// nobody is the user that a child runs as: it owns nothing.
	nobody = 65534
	// readyIn is how long a child may take to answer packets, on a busy machine.
	readyIn = 20 * time.Second
	// politeIn is how long a child that is told to end may take to write its flow log.
	politeIn = 2 * time.Second
)

// connect gives the job its way out: an interface in its namespace, and a child that answers behind it.
func (n *Network) connect(ctx context.Context, ns *os.File, req provider.WireRequest) error {
	if wired, err := n.wired(ctx, req); err != nil || wired {
		return err
	}
	if err := os.MkdirAll(n.job(req.ID), 0o700); err != nil {
		return err
	}
	if err := prune(n.config.Flows, time.Now(), maxFlows); err != nil {
		return fmt.Errorf("prune the flow logs: %w", err)
	}
	err := n.start(ctx, ns, req)
	if err == nil {
		err = n.prove(ctx, ns, req)
	}
	if err != nil {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*politeIn)
		defer cancel()
		return errors.Join(err, n.Unwire(clean, req.ID))
	}
	return nil
}

// wired reports whether a call whose answer was lost has done all of it, the proof too. What is left of an earlier start of the lease it ends.
func (n *Network) wired(ctx context.Context, req provider.WireRequest) (bool, error) {
	f, err := os.OpenFile(n.counters(req.ID), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	pid, err := holder(f)
	if err != nil {
		return false, err
	}
	if pid != 0 {
		c, err := mapCounters(f)
		if err != nil {
			return false, err
		}
		defer c.unmap()
		if atomic.LoadUint64(&c.pid) == uint64(req.PID) {
			return true, nil
		}
	}
	return false, endChild(ctx, n.counters(req.ID))
}

// start makes the interface and its child.
func (n *Network) start(ctx context.Context, ns *os.File, req provider.WireRequest) error {
	job, err := openJob(req.PID, ns)
	if err != nil {
		return err
	}
	defer job.Close()
	var tun *os.File
	err = within(ctx, ns, func() (err error) {
		if err = isolate(); err == nil {
			tun, err = openTUN()
		}
		return err
	})
	if err != nil {
		return err
	}
	defer tun.Close()
	file, err := makeCounters(n.counters(req.ID))
	if err != nil {
		return fmt.Errorf("counters: %w", err)
	}
	defer file.Close()
	c, err := mapCounters(file)
	if err != nil {
		return err
	}
	defer c.unmap()
	atomic.StoreUint64(&c.pid, 0) // an earlier child's: this one is not proven yet
	older, newer, err := openFlowFiles(n.config.Flows, req.ID)
	if err != nil {
		return fmt.Errorf("flow log: %w", err)
	}
	defer older.Close()
	defer newer.Close()
	s := settings{Rate: req.Rate, Cap: req.Cap}
	for _, d := range req.Deny {
		s.Deny = append(s.Deny, netip.MustParsePrefix(d).Masked()) // it was checked
	}
	return n.spawn(ctx, filepath.Join(n.job(req.ID), "child.log"), s, tun, job, file, older, newer)
}

// openJob is a descriptor of the process whose namespace it is; if the number is another's by now it fails.
func openJob(pid int, ns *os.File) (*os.File, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("process %d: %w: %w", pid, provider.ErrNotFound, err)
	}
	f := os.NewFile(uintptr(fd), "job")
	now, err := os.Stat("/proc/" + strconv.Itoa(pid) + "/ns/net")
	if err == nil {
		var then os.FileInfo
		if then, err = ns.Stat(); err == nil && !os.SameFile(now, then) {
			err = errors.New("it is another process by now")
		}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("process %d: %w: %w", pid, provider.ErrNotFound, err)
	}
	return f, nil
}

// spawn starts a child and waits for its word. What it writes besides goes to the file said.
func (n *Network) spawn(ctx context.Context, said string, s settings, files ...*os.File) error {
	program, err := os.Open(n.config.Command[0])
	if err != nil {
		return fmt.Errorf("start the child: %w", err)
	}
	defer program.Close()
	in, err := json.Marshal(s)
	if err != nil {
		return err
	}
	log, err := os.OpenFile(said, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	out, word, err := os.Pipe()
	if err != nil {
		return err
	}
	defer out.Close()
	defer word.Close()
	cmd := n.child(program, files...)
	cmd.Stdout, cmd.Stderr = word, log
	stdin, stdinOurs, err := os.Pipe()
	if err != nil {
		return err
	}
	defer stdinOurs.Close()
	cmd.Stdin = stdin
	err = cmd.Start()
	stdin.Close()
	word.Close()
	if err != nil {
		return fmt.Errorf("start the child: %w", err)
	}
	go func() { _ = cmd.Wait() }() // it ends with its job, or with Unwire; how is in its log
	if _, err := stdinOurs.Write(in); err != nil {
		return errors.Join(fmt.Errorf("start the child: %w", err), cmd.Process.Kill())
	}
	stdinOurs.Close()
	if err := awaitWord(ctx, out); err != nil {
		_ = cmd.Process.Kill() // it may have ended by itself
		text, _ := os.ReadFile(said)
		return fmt.Errorf("start the child: %w: %s", err, strings.TrimSpace(string(text[:min(len(text), 500)])))
	}
	return nil
}

// child is a child that is to be born with the files. The program, open, is one more.
func (n *Network) child(program *os.File, files ...*os.File) *exec.Cmd {
	cmd := exec.Command(n.config.Command[0], n.config.Command[1:]...)
	// By its descriptor, since the folders above the program may be closed to nobody.
	cmd.Path, cmd.Err = "/proc/self/fd/"+strconv.Itoa(3+len(files)), nil
	cmd.Dir, cmd.Env = "/", []string{} // no setting of ours may steer it
	cmd.ExtraFiles = append(files, program)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid:     true, // what is typed at our terminal is not for it
		Credential: &syscall.Credential{Uid: nobody, Gid: nobody, Groups: []uint32{}},
	}
	return cmd
}

// awaitWord waits until the child answers packets, or has ended.
func awaitWord(ctx context.Context, out *os.File) error {
	ctx, cancel := context.WithTimeout(ctx, readyIn)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = out.SetReadDeadline(time.Unix(1, 0)) }) // a pipe takes it
	defer stop()
	b := make([]byte, len(ready))
	_, err := io.ReadFull(out, b)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil || string(b) != ready:
		return errors.New("it ended before it was ready")
	}
	return nil
}

// holder is the process that has the counters locked; 0 if none has.
func holder(f *os.File) (int, error) {
	lock := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(f.Fd(), unix.F_GETLK, &lock); err != nil {
		return 0, fmt.Errorf("lock of %s: %w", f.Name(), err)
	}
	if lock.Type == unix.F_UNLCK {
		return 0, nil
	}
	return int(lock.Pid), nil
}

// endChild ends the child that has the counters locked and returns when it is gone. None there is what is wanted.
func endChild(ctx context.Context, path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	pid, err := holder(f)
	if err != nil || pid == 0 {
		return err
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("child %d: %w", pid, err)
	}
	defer unix.Close(fd)
	if again, err := holder(f); err != nil || again != pid {
		return err // it has ended: the number may be another's
	}
	for _, sig := range []unix.Signal{unix.SIGTERM, unix.SIGKILL} {
		if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("end child %d: %w", pid, err)
		}
		for until := time.Now().Add(politeIn); time.Now().Before(until); {
			if k, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 20); k > 0 && err == nil {
				return nil
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
		}
	}
	return fmt.Errorf("child %d does not end", pid)
}
