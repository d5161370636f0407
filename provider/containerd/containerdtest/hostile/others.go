package main

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// others is what reaches for other processes: the host's and other jobs'.
func others() map[string]func() error {
	pid, _ := strconv.Atoi(os.Getenv("VICTIM")) // a process of the host
	return map[string]func() error{
		"see the host's processes": func() error {
			names, err := filepath.Glob("/proc/[0-9]*/cmdline")
			if err != nil {
				return err
			}
			for _, n := range names {
				b, err := os.ReadFile(n)
				if err == nil && len(b) > 0 && !bytes.Contains(b, []byte("hostile")) {
					return nil
				}
			}
			return fmt.Errorf("%d processes, all its own", len(names))
		},
		"signal a process of the host": func() error { return unix.Kill(pid, 0) },
		"trace a process of the host":  func() error { return unix.PtraceAttach(pid) },
		"abstract socket of the host": func() error {
			c, err := net.Dial("unix", "@"+os.Getenv("ABSTRACT"))
			if err == nil {
				c.Close()
			}
			return err
		},
		"shared memory of the host": func() error {
			key, err := strconv.Atoi(os.Getenv("SHM"))
			if err != nil {
				return err
			}
			_, err = unix.SysvShmGet(key, 0, 0)
			return err
		},
		"name of its control group": cgroupName,
	}
}
