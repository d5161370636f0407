//go:build unix

package rail

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"syscall"
)

// Check looks whether the program is there, nobody else may change it, and the user as whom it runs is there and may run it: what the first
// payment would find out. It runs nothing of it.
func (c Command) Check() error {
	if err := c.program(); err != nil {
		return err
	}
	who, credential, err := c.who()
	if err != nil || credential == nil {
		return err
	}
	test := exec.Command("test", "-x", c.Args[0]) // access(2) would ask for this process, which is root's
	test.SysProcAttr, test.Dir = &syscall.SysProcAttr{Credential: credential}, "/"
	var no *exec.ExitError
	if err := test.Run(); errors.As(err, &no) {
		return fmt.Errorf("user %q may not run it: give everybody the rights to run it and to enter every folder on the way to it, or set settlement.user", who.Username)
	}
	return nil
}

// program checks the program's file.
func (c Command) program() error {
	info, err := os.Stat(c.Args[0])
	switch {
	case err != nil:
		return err
	case !info.Mode().IsRegular() || info.Mode()&0o111 == 0:
		return errors.New("it is no program")
	case info.Mode()&0o022 != 0:
		return fmt.Errorf("its mode is %v: others than its owner may change it, and so sign for payments", info.Mode())
	}
	return nil
}

// who is as whom the program runs, with the credential for that in a daemon of root.
func (c Command) who() (*user.User, *syscall.Credential, error) {
	if os.Geteuid() != 0 {
		who, err := user.Current()
		return who, nil, err
	}
	who, err := user.Lookup(cmp.Or(c.User, DefaultUser))
	if err != nil {
		return nil, nil, err
	}
	credential, err := credential(who)
	return who, credential, err
}

// confine gives the program a clean environment, a process group of its own and, in a daemon of root, another user without groups.
// Its files are closed but for the three pipes, as os/exec does.
func (c Command) confine(cmd *exec.Cmd) error {
	if err := c.program(); err != nil {
		return err
	}
	who, credential, err := c.who()
	if err != nil {
		return err
	}
	attr := &syscall.SysProcAttr{Setpgid: true, Credential: credential}
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
