package main

import (
	"os/exec"
	"syscall"

	"golang.org/x/sys/windows"
)

// detach frees a process of this console, so that closing it or Ctrl-C in it does not reach it.
func detach(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{HideWindow: true, CreationFlags: windows.CREATE_NEW_PROCESS_GROUP | windows.DETACHED_PROCESS}
}
