//go:build unix

package wire

import "golang.org/x/sys/unix"

// freeSpace is how many bytes a process without privileges may still write where dir lies.
func freeSpace(dir string) (uint64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, err
	}
	return uint64(st.Bavail) * uint64(st.Bsize), nil
}
