package jobnet

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// ownNamespace is that of the current thread; /proc/self would be the main thread's.
const ownNamespace = "/proc/thread-self/ns/net"

// notOurs refuses our own network namespace.
func notOurs(ns *os.File) error {
	theirs, err := ns.Stat()
	if err != nil {
		return err
	}
	ours, err := os.Stat(ownNamespace)
	if err != nil {
		return err
	}
	if os.SameFile(theirs, ours) {
		return errors.New("the job shares the host's network namespace: it must not run")
	}
	return nil
}

// inside runs f on a thread in the network namespace and brings the thread back. One that can't be brought back stays locked, so that it
// ends with its goroutine and serves nobody else. (It may be the main thread, which never ends: hence the way back.)
func inside(ns *os.File, f func() error) error {
	runtime.LockOSThread()
	ours, err := os.Open(ownNamespace)
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer ours.Close()
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter the network namespace (it takes root): %w", err)
	}
	err = f()
	if back := unix.Setns(int(ours.Fd()), unix.CLONE_NEWNET); back != nil {
		return errors.Join(err, fmt.Errorf("leave the network namespace: %w", back))
	}
	runtime.UnlockOSThread()
	return err
}
