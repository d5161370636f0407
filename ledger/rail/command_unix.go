//go:build unix

package rail

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"syscall"
)

// confine gives the program a clean environment, a process group of its own and, in a daemon of root, another user without groups.
// Its files are closed but for the three pipes, as os/exec does.
func (c Command) confine(cmd *exec.Cmd) error {
	info, err := os.Stat(c.Args[0])
	switch {
	case err != nil:
		return err
	case !info.Mode().IsRegular() || info.Mode()&0o111 == 0:
		return errors.New("it is no program")
	case info.Mode()&0o022 != 0:
		return fmt.Errorf("its mode is %v: others than its owner may change it, and so sign for payments", info.Mode())
	}
	attr := &syscall.SysProcAttr{Setpgid: true}
	who, err := user.Current()
	if os.Geteuid() == 0 {
		name := c.User
		if name == "" {
			name = DefaultUser
		}
		if who, err = user.Lookup(name); err == nil {
			attr.Credential, err = credential(who)
		}
	}
	if err != nil {
		return err
	}
	bind(attr)
	cmd.SysProcAttr, cmd.Dir = attr, "/"
	cmd.Env = append([]string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8", "HOME=" + who.HomeDir, "USER=" + who.Username,
		"LOGNAME=" + who.Username,
	}, c.Env...)
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	return nil
}

// credential is of a user that is not root.
func credential(who *user.User) (*syscall.Credential, error) {
	uid, err1 := strconv.ParseUint(who.Uid, 10, 32)
	gid, err2 := strconv.ParseUint(who.Gid, 10, 32)
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	if uid == 0 || gid == 0 {
		return nil, fmt.Errorf("user %q is root: name one without its rights", who.Username)
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}

// reap ends what an ended program left running in its group.
func reap(group int) { _ = syscall.Kill(-group, syscall.SIGKILL) } // mostly there is nobody
