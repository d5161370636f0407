//go:build unix && !linux

package rail

import "syscall"

// bind does nothing: this system can't end a program with the one that started it.
func bind(*syscall.SysProcAttr) {}
