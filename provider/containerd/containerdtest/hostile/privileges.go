package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// privileges is what makes a process more than it was.
func privileges() map[string]func() error {
	return map[string]func() error{
		"be the host's root": func() error {
			b, err := os.ReadFile("/proc/self/uid_map")
			if f := strings.Fields(string(b)); err == nil && (len(f) < 2 || f[1] != "0") {
				err = fmt.Errorf("it is host id %v", f[1])
			}
			return err
		},
		"set-user-id program": setUserID,
		"raw socket":          socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP),
		"packet socket":       socket(unix.AF_PACKET, unix.SOCK_RAW, 0),
		"change an interface": func() error {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
			if err != nil {
				return err
			}
			req, err := unix.NewIfreq("lo")
			if err != nil {
				return err
			}
			req.SetUint16(unix.IFF_UP)
			return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req)
		},
		"priority over the owner": func() error { return unix.Setpriority(unix.PRIO_PROCESS, 0, -10) },
		"make a device":           func() error { return unix.Mknod("/dev/mine", unix.S_IFCHR|0o600, int(unix.Mkdev(1, 11))) },
		"open a disk": func() error {
			path := "/dev/mydisk"
			if err := unix.Mknod(path, unix.S_IFBLK|0o600, int(unix.Mkdev(7, 0))); err != nil {
				return err
			}
			f, err := os.Open(path)
			if errors.Is(err, unix.ENXIO) {
				return nil // it let us; the loop device has no file
			}
			if err == nil {
				f.Close()
			}
			return err
		},
	}
}

// setUserID leaves root behind and comes back by a program with the set-user-id bit.
func setUserID() error {
	b, err := os.ReadFile("/bin/hostile")
	if err != nil {
		return err
	}
	const path = "/tmp/climb"
	if err := os.WriteFile(path, b, 0o755); err != nil {
		return err
	}
	defer os.Remove(path)
	if err := os.Chmod(path, 0o755|os.ModeSetuid); err != nil {
		return err
	}
	cmd := exec.Command(path, "root")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1000, Gid: 1000}}
	return cmd.Run()
}
