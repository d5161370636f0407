// Command gpufair-init is PID 1 in every job: it runs the job's command, forwards signals to it, reaps what it leaves behind and writes the
// exit record. It is static, uses the standard library only, and needs nothing of the image it runs in, not even /proc. It owns the format of
// the record (provider/containerd reads it) and knows nothing of leases.
//
// Usage: gpufair-init RECORD_DIR -- COMMAND [ARGUMENT...]
//
// In RECORD_DIR it makes the empty file "started" once the command runs, and at the end "exit.json". It exits with the command's code,
// 128+n after signal n, 127 if there is no such command and 126 if it can't be executed.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// record is exit.json.
type record struct {
	Code      int    `json:"code"`
	Signal    int    `json:"signal,omitempty"`     // number of the signal that ended the command
	ExecError string `json:"exec_error,omitempty"` // the command never ran
	At        int64  `json:"at"`                   // Unix nanoseconds
}

func main() {
	if len(os.Args) < 4 || os.Args[2] != "--" {
		fmt.Fprintln(os.Stderr, "usage: gpufair-init RECORD_DIR -- COMMAND [ARGUMENT...] (it is started by gpufaird, as the first process of a job)")
		os.Exit(2)
	}
	dir := os.Args[1]
	r := run(dir, os.Args[3:])
	r.At = time.Now().UnixNano()
	if err := write(dir, r); err != nil {
		fmt.Fprintln(os.Stderr, "gpufair-init: write exit record:", err)
	}
	os.Exit(r.Code)
}

// run executes the command and waits for it, reaping every other child meanwhile.
func run(dir string, argv []string) record {
	signals := make(chan os.Signal, 64) // more than there are kinds of signals, so that none is lost before the command runs
	signal.Notify(signals)
	path, err := lookup(argv[0], os.Getenv("PATH"))
	if err != nil {
		return refused(argv[0], err)
	}
	pid, err := syscall.ForkExec(path, argv, &syscall.ProcAttr{Env: os.Environ(), Files: []uintptr{0, 1, 2}})
	if err != nil {
		return refused(argv[0], err)
	}
	if f, err := os.OpenFile(filepath.Join(dir, "started"), os.O_CREATE|os.O_WRONLY, 0o644); err == nil {
		f.Close() // nothing was written
	}
	go forward(signals, pid)
	return reap(pid)
}

// refused is the record of a command that could not be executed, with the codes that a shell gives.
func refused(name string, err error) record {
	r := record{Code: 126, ExecError: fmt.Sprintf("%s: %v", name, err)}
	if errors.Is(err, fs.ErrNotExist) {
		r.Code = 127
	}
	return r
}

// errNotFound says what execve's ENOENT would leave out.
type errNotFound string

func (e errNotFound) Error() string { return string(e) }

func (e errNotFound) Is(target error) bool { return target == fs.ErrNotExist }

// lookup finds a command as execvp(3) does: a name with a slash is a path, any other is looked for in the folders of PATH.
func lookup(name, path string) (string, error) {
	if name == "" {
		return "", errNotFound("the command is empty")
	}
	if strings.Contains(name, "/") {
		return name, executable(name)
	}
	var denied error
	for _, dir := range filepath.SplitList(path) {
		file := filepath.Join(dir, name)
		err := executable(file)
		if err == nil {
			return file, nil
		}
		if !errors.Is(err, fs.ErrNotExist) && denied == nil {
			denied = fmt.Errorf("%s: %w", file, err)
		}
	}
	if denied != nil {
		return "", denied
	}
	return "", errNotFound(fmt.Sprintf("not found in PATH (%s)", path))
}

func executable(file string) error {
	info, err := os.Stat(file)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return errNotFound("no such file")
	case err != nil:
		return errors.Unwrap(err)
	case info.IsDir():
		return syscall.EISDIR
	case info.Mode()&0o111 == 0:
		return syscall.EACCES
	}
	return nil
}

// forward passes on every signal but those that are about init itself: its children's ends, and what the Go runtime sends to itself.
func forward(signals <-chan os.Signal, pid int) {
	for s := range signals {
		switch s {
		case syscall.SIGCHLD, syscall.SIGURG, syscall.SIGPIPE:
		default:
			_ = syscall.Kill(pid, s.(syscall.Signal)) // it may have ended just now
		}
	}
}

// reap waits for all children until the command itself has ended; what it leaves behind dies with PID 1.
func reap(pid int) record {
	for {
		var ws syscall.WaitStatus
		got, err := syscall.Wait4(-1, &ws, 0, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil:
			return record{Code: 126, ExecError: fmt.Sprintf("wait for the command: %v", err)}
		case got == pid && ws.Exited():
			return record{Code: ws.ExitStatus()}
		case got == pid && ws.Signaled():
			return record{Code: 128 + int(ws.Signal()), Signal: int(ws.Signal())}
		}
	}
}

// write puts the record on disk: written aside, synced, renamed, and the folder synced, so that it is there whole or not at all.
func write(dir string, r record) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	tmp := filepath.Join(dir, "exit.tmp")
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	if err := os.Rename(tmp, filepath.Join(dir, "exit.json")); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
