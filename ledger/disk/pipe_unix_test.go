//go:build unix

package disk_test

import (
	"syscall"
	"testing"
)

// makePipe makes a named pipe, where the system has any.
func makePipe(tb testing.TB, path string) bool {
	tb.Helper()
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		tb.Fatal(err)
	}
	return true
}
