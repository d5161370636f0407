package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// What an attempt takes that is denied; the tests' limits lie below.
const (
	manyProcesses = 100
	manyMiB       = 192
	manyOpen      = 6000
	diskMiB       = 24
	diskFiles     = 20_000
	tmpMiB        = 40
	tmpFiles      = 6_000
	devFiles      = 500
)

// resources is what takes all there is.
func resources() map[string]func() error {
	return map[string]func() error{
		"fork bomb":            forks,
		"all memory":           eat,
		"open files":           openFiles,
		"cores of others":      cores,
		"fill /scratch":        func() error { return fill("/scratch", diskMiB) },
		"fill /out":            func() error { return fill("/out", diskMiB) },
		"fill the image":       func() error { return fill("/", diskMiB) },
		"fill the exit record": func() error { return fill("/run/gpufair/record", diskMiB) },
		"files in /scratch":    func() error { return makeFiles("/scratch", diskFiles) },
		"fill /tmp":            func() error { return fill("/tmp", tmpMiB) },
		"files in /tmp":        func() error { return makeFiles("/tmp", tmpFiles) },
		"fill /dev/shm":        func() error { return fill("/dev/shm", manyMiB) },
		"fill /run":            func() error { return fill("/run", tmpMiB) },
		"files in /dev":        func() error { return makeFiles("/dev", devFiles) },
		"fill /dev":            func() error { return fill("/dev", 1) },
		"write its own image":  changeImage,
	}
}

func forks() error {
	for n := range manyProcesses {
		cmd := exec.Command("/bin/hostile", "sleep")
		if err := cmd.Start(); err != nil {
			return fmt.Errorf("%d: %w", n, err)
		}
		defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	}
	return nil
}

func eat() error {
	for range manyMiB {
		b, err := unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		if err != nil {
			return err
		}
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
	}
	return nil
}

func openFiles() error {
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &lim); err != nil {
		return err
	}
	lim.Cur = lim.Max
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &lim); err != nil {
		return err
	}
	for n := range manyOpen {
		if _, err := unix.Open("/", unix.O_RDONLY, 0); err != nil {
			return fmt.Errorf("%d: %w", n, err)
		}
	}
	return nil
}

// cores asks for every core and looks what it got.
func cores() error {
	var set unix.CPUSet
	for i := range 64 {
		set.Set(i)
	}
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return err
	}
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return err
	}
	if set.Count() < 2 {
		return fmt.Errorf("%d core", set.Count())
	}
	return nil
}

func fill(dir string, mib int) error {
	path := filepath.Join(dir, "big")
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer os.Remove(path)
	defer f.Close()
	b := make([]byte, 1<<20)
	for i := range b {
		b[i] = byte(i * 7)
	}
	for n := range mib {
		if _, err := f.Write(b); err != nil {
			return fmt.Errorf("after %d MiB: %w", n, errors.Unwrap(err))
		}
	}
	return nil
}

func makeFiles(dir string, n int) error {
	in := filepath.Join(dir, "many")
	if err := os.Mkdir(in, 0o700); err != nil {
		return err
	}
	defer os.RemoveAll(in)
	for i := range n {
		if err := unix.Mknod(filepath.Join(in, strconv.Itoa(i)), unix.S_IFREG|0o600, 0); err != nil {
			return fmt.Errorf("after %d: %w", i, err)
		}
	}
	return nil
}

// changeImage is allowed, as long as no other job sees it: what it writes must not be there already.
func changeImage() error {
	if b, err := os.ReadFile("/etc/passwd"); err != nil || string(b) == "mine" {
		return fmt.Errorf("another job's changes are in the image: %q (%v)", b, err)
	}
	return os.WriteFile("/etc/passwd", []byte("mine"), 0o600)
}
