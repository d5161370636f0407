package main

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// call makes a system call and gives its error, nil if it is taken. Errors in fine are as good as success: the kernel would have done it.
func call(number uintptr, a, b, c, d uintptr, fine ...error) error {
	_, _, errno := unix.Syscall6(number, a, b, c, d, 0, 0)
	for _, f := range fine {
		if errors.Is(errno, f) {
			return nil
		}
	}
	if errno != 0 {
		return errno
	}
	return nil
}

func ptr[T any](p *T) uintptr { return uintptr(unsafe.Pointer(p)) }

func text(s string) uintptr {
	b := append([]byte(s), 0)
	return uintptr(unsafe.Pointer(&b[0]))
}

func socket(family, kind, proto int) func() error {
	return func() error {
		_, err := unix.Socket(family, kind, proto)
		return err
	}
}

// kernel is what asks much of the kernel: its rarely used parts, where most ways out of a container were found.
func kernel() map[string]func() error {
	return map[string]func() error{
		"user namespace of its own": newUser,
		"mount namespace":           func() error { return unix.Unshare(unix.CLONE_NEWNS) },
		"mount a tmpfs":             func() error { return unix.Mount("tmpfs", "/tmp", "tmpfs", 0, "size=1m") },
		"new mount interface":       func() error { return call(unix.SYS_FSOPEN, text("tmpfs"), 0, 0, 0) },
		"mount control groups":      func() error { return unix.Mount("cgroup2", "/tmp", "cgroup2", 0, "") },
		"unmask /proc/interrupts":   func() error { return unix.Unmount("/proc/interrupts", unix.MNT_DETACH) },
		"remount /proc/sys":         func() error { return unix.Mount("", "/proc/sys", "", unix.MS_REMOUNT|unix.MS_BIND, "") },
		"pivot_root":                func() error { return call(unix.SYS_PIVOT_ROOT, text("/"), text("/none"), 0, 0, unix.ENOENT) },
		"chroot":                    func() error { return unix.Chroot("/tmp") },
		"host name":                 func() error { return unix.Sethostname([]byte("mine")) },
		"load a module": func() error {
			return call(unix.SYS_DELETE_MODULE, text("gpufair-none"), unix.O_NONBLOCK, 0, 0, unix.ENOENT)
		},
		"swap":          func() error { return call(unix.SYS_SWAPON, text("/none"), 0, 0, 0, unix.ENOENT) },
		"set the clock": setClock,
		"kernel log": func() error {
			_, err := unix.Klogctl(unix.SYSLOG_ACTION_READ_ALL, make([]byte, 64))
			return err
		},
		"key ring": func() error {
			_, err := unix.AddKey("user", "mine", []byte("x"), unix.KEY_SPEC_SESSION_KEYRING)
			return err
		},
		"keyctl": func() error { return call(unix.SYS_KEYCTL, unix.KEYCTL_GET_KEYRING_ID, ^uintptr(2), 1, 0) }, // -3: the session's
		"bpf": func() error {
			attr := struct{ kind, key, value, entries uint32 }{1, 4, 4, 1} // a hash map
			return call(unix.SYS_BPF, 0, ptr(&attr), unsafe.Sizeof(attr), 0)
		},
		"perf events": func() error {
			_, err := unix.PerfEventOpen(&unix.PerfEventAttr{Type: unix.PERF_TYPE_SOFTWARE, Size: uint32(unsafe.Sizeof(unix.PerfEventAttr{}))}, -1, 0, -1, 0)
			return err
		},
		"userfaultfd":        func() error { return call(unix.SYS_USERFAULTFD, 1, 0, 0, 0) }, // UFFD_USER_MODE_ONLY: no privilege asked
		"personality":        func() error { return call(unix.SYS_PERSONALITY, 0x0040000, 0, 0, 0) },
		"socket to the host": socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0),
		"kernel crypto":      socket(unix.AF_ALG, unix.SOCK_SEQPACKET, 0),
		"handle of a file":   openByHandle,
	}
}

// newUser starts a process in a user namespace: a thread of this program could not enter one.
func newUser() error {
	cmd := exec.Command("/bin/hostile", "sleep")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER}
	if err := cmd.Start(); err != nil {
		return err
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait() // killed
	return nil
}

// setClock sets the time to what it is.
func setClock() error {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_REALTIME, &now); err != nil {
		return err
	}
	return call(unix.SYS_CLOCK_SETTIME, unix.CLOCK_REALTIME, ptr(&now), 0, 0)
}

// openByHandle opens a file of the host's file system by its number and not by its name: known as shocker. It asks for its own file only.
func openByHandle() error {
	h, _, err := unix.NameToHandleAt(unix.AT_FDCWD, "/run/gpufair/init", 0)
	if err != nil {
		return err
	}
	f, err := os.Open("/run/gpufair/init")
	if err != nil {
		return err
	}
	_, err = unix.OpenByHandleAt(int(f.Fd()), h, unix.O_RDONLY)
	return err
}
