// Package jobnet is the job's network: for now a namespace with nothing but its own loopback, proven before the job's first
// instruction. It fulfils provider.Network and knows neither containers nor leases.
package jobnet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/gpufair/gpufair/provider"
)

// ownNamespace is that of the current thread; /proc/self would be the main thread's.
const ownNamespace = "/proc/thread-self/ns/net"

// EgressNone is the only egress there is for now: none.
const EgressNone = "none"

// Network wires namespaces. Its zero value is ready; it may be used by several goroutines at once.
type Network struct{}

var _ provider.Network = Network{}

// Wire implements provider.Network. It fails if the process shares our own namespace, or if its namespace has a way out: any interface
// besides loopback that is up or has an address (the kernel may put idle tunnel devices into every new namespace).
func (Network) Wire(ctx context.Context, req provider.WireRequest) error {
	if req.Egress != EgressNone {
		return fmt.Errorf("wire job %s: egress %q is not offered, only %q: %w", req.ID, req.Egress, EgressNone, provider.ErrRequest)
	}
	ns, err := os.Open("/proc/" + strconv.Itoa(req.PID) + "/ns/net")
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("wire job %s: process %d: %w", req.ID, req.PID, provider.ErrNotFound)
	}
	if err != nil {
		return fmt.Errorf("wire job %s: %w", req.ID, err)
	}
	defer ns.Close()
	if err := notOurs(ns); err != nil {
		return fmt.Errorf("wire job %s: %w", req.ID, err)
	}
	done := make(chan error, 1)
	go func() { done <- inside(ns, isolate) }()
	select {
	case err = <-done:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("wire job %s: %w", req.ID, err)
	}
	return nil
}

// Unwire implements provider.Network: the namespace goes with its processes, so there is nothing to remove.
func (Network) Unwire(context.Context, string) error { return nil }

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

// isolate turns loopback on and looks for a way out, in the current thread's namespace.
func isolate() error {
	if err := up("lo"); err != nil {
		return err
	}
	ifs, err := net.Interfaces()
	if err != nil {
		return fmt.Errorf("list interfaces: %w", err)
	}
	loopback := false
	for _, i := range ifs {
		if i.Flags&net.FlagLoopback != 0 {
			loopback = i.Flags&net.FlagUp != 0
			continue
		}
		addrs, err := i.Addrs()
		if err != nil {
			return fmt.Errorf("list addresses of %s: %w", i.Name, err)
		}
		if i.Flags&net.FlagUp != 0 || len(addrs) > 0 {
			return fmt.Errorf("the job's namespace has interface %s, a way out that was not agreed: it must not run", i.Name)
		}
	}
	if !loopback {
		return errors.New("the loopback interface is not up")
	}
	return nil
}

// up turns an interface of the current thread's namespace on.
func up(name string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("turn on %s: %w", name, err)
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq(name)
	if err == nil {
		err = unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, req)
	}
	if err == nil {
		req.SetUint16(req.Uint16() | unix.IFF_UP)
		err = unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req)
	}
	if err != nil {
		return fmt.Errorf("turn on %s: %w", name, err)
	}
	return nil
}
