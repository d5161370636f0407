package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// writable opens for writing the first of the files that is there, and writes nothing. A program that is running refuses too, but only
// whom the file system has let pass.
func writable(paths ...string) func() error {
	return func() error {
		err := error(os.ErrNotExist)
		for _, p := range paths {
			var f *os.File
			if f, err = os.OpenFile(p, os.O_WRONLY, 0); err == nil {
				return f.Close()
			}
			if errors.Is(err, syscall.ETXTBSY) {
				return nil
			}
			if !errors.Is(err, os.ErrNotExist) {
				return err
			}
		}
		return errors.Join(err, errAbsent)
	}
}

// readable opens and reads a little.
func readable(path string) func() error {
	return func() error {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		n, err := f.Read(make([]byte, 16))
		if n == 0 {
			return fmt.Errorf("nothing is in it (%v)", err)
		}
		return nil
	}
}

// kernelFile is readable for a file that the kernel may have been built without.
func kernelFile(path string) func() error {
	return func() error {
		err := readable(path)()
		if errors.Is(err, os.ErrNotExist) {
			err = errors.Join(err, errAbsent)
		}
		return err
	}
}

// files is what reaches for files that are not the job's.
func files() map[string]func() error {
	secret := os.Getenv("SECRET") // path on the host of a file that is none of the job's business
	return map[string]func() error{
		"core pattern":                  writable("/proc/sys/kernel/core_pattern"),
		"sysrq":                         writable("/proc/sysrq-trigger"),
		"interrupt routes":              writable("/proc/irq/default_smp_affinity"),
		"memory of the kernel":          kernelFile("/proc/kcore"),
		"interrupts":                    kernelFile("/proc/interrupts"),
		"timers":                        kernelFile("/proc/timer_list"),
		"firmware":                      func() error { return notEmpty("/sys/firmware") },
		"write /sys":                    writable("/sys/kernel/mm/transparent_hugepage/enabled", "/sys/power/state", "/sys/kernel/mm/ksm/run"),
		"its own limits":                writable("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory.max"),
		"change the inputs":             func() error { return os.WriteFile("/in/mine", nil, 0o600) },
		"replace init":                  writable("/run/gpufair/init"),
		"a file of the host":            readable(secret),
		"root of a process of the host": readable(filepath.Join("/proc", os.Getenv("VICTIM"), "root", secret)),
		"a link to the host":            func() error { return viaLink("/out/link", secret) },
		"runtime's socket":              func() error { _, err := os.Stat(os.Getenv("SOCKET")); return err },
	}
}

func notEmpty(dir string) error {
	entries, err := os.ReadDir(dir)
	if err == nil && len(entries) == 0 {
		err = errors.New("nothing is in it")
	}
	return err
}

// viaLink leaves the link behind for those who collect results.
func viaLink(link, target string) error {
	if err := os.Symlink(target, link); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return readable(link)()
}

// cgroupName is not hidden from a job that shares the host's cgroup namespace.
func cgroupName() error {
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return err
	}
	if id := os.Getenv("GPUFAIR_LEASE"); id == "" || !strings.Contains(string(b), id) {
		return errors.New("the group has no name inside")
	}
	return nil
}
