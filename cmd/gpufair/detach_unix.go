//go:build unix

package main

import (
	"os/exec"
	"syscall"
)

// detach gives a process a session of its own, so that closing the terminal or Ctrl-C in it does not reach it.
func detach(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }
