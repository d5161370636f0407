package mounts

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// A lease's disk is a sparse file with an ext4 in it, mounted by a loop device that goes with the mount. Its size is the quota of bytes and
// its inode table that of files, on every host; quotas of the host's own file system often are not there.

const (
	blockBytes = 4096
	inodeBytes = 256
	// perInode is how many bytes of disk a file takes on average at least, by which the quota of files follows that of bytes.
	perInode  = 8 << 10
	minInodes = 16 << 10
	// ext4 keeps a fiftieth of a disk in reserve, up to maxReserve (fs/ext4/super.c, ext4_set_resv_clusters), and takes some for descriptors.
	reserveShare = 50
	maxReserve   = 16 << 20
	descriptors  = 1 << 20
	// makeIn bounds mkfs on a busy machine.
	makeIn = 2 * time.Minute
	// freeIn is how long one attempt to wipe waits for the last reader of a lease's files, which may be packing results.
	freeIn = time.Second
)

// disk is one lease's, by the paths of its file and of its mount point.
type disk struct{ image, at string }

// create makes the file with room for n bytes of the lease's and mounts it.
func (d disk) create(ctx context.Context, n int64, encrypt bool) error {
	files := min(max(n/perInode, minInodes), maxInodes)
	f, err := os.OpenFile(d.image, os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	size := n + files*inodeBytes + n/128 + descriptors
	size += min(size/(reserveShare-1), maxReserve)
	if err := f.Truncate((size + blockBytes - 1) / blockBytes * blockBytes); err != nil {
		return err
	}
	features := "^has_journal" // nothing of it outlives a crash of the host
	if encrypt {
		features += ",encrypt"
	}
	ctx, cancel := context.WithTimeout(ctx, makeIn)
	defer cancel()
	mkfs := exec.CommandContext(ctx, "mkfs.ext4", "-q", "-F", "-m", "0", "-b", strconv.Itoa(blockBytes), "-I", strconv.Itoa(inodeBytes),
		"-N", strconv.FormatInt(files, 10), "-O", features, "-E", "nodiscard,lazy_itable_init=1", d.image)
	mkfs.Env = append(os.Environ(), "PATH=/usr/sbin:/sbin:/usr/bin:/bin")
	if out, err := mkfs.CombinedOutput(); err != nil {
		switch {
		case ctx.Err() != nil:
			err = ctx.Err()
		case bytes.Contains(out, []byte("No space left on device")):
			err = errors.Join(err, unix.ENOSPC)
		}
		return fmt.Errorf("mkfs.ext4: %w: %.200s", err, bytes.TrimSpace(out))
	}
	loop, err := attach(f)
	if err != nil {
		return err
	}
	defer loop.Close() // from then on the mount alone holds it
	// discard: what the job deletes is the owner's again at once.
	err = unix.Mount(loop.Name(), d.at, "ext4", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOATIME, "discard")
	if err != nil {
		return fmt.Errorf("mount %s: %w", d.at, err)
	}
	return nil
}

// attachTries is how often another process may take the loop device that was free.
const attachTries = 64

// attach gives a loop device of the file, which is let go with its last user. It reads past the page cache: the same bytes need not lie in
// memory twice.
func attach(f *os.File) (*os.File, error) {
	ctl, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("loop devices: %w", err)
	}
	defer ctl.Close()
	for range attachTries {
		n, err := unix.IoctlRetInt(int(ctl.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("find a free loop device: %w", err)
		}
		loop, err := os.OpenFile("/dev/loop"+strconv.Itoa(n), os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		err = unix.IoctlLoopConfigure(int(loop.Fd()), &unix.LoopConfig{
			Fd: uint32(f.Fd()), Size: blockBytes, Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR | unix.LO_FLAGS_DIRECT_IO},
		})
		if err == nil {
			return loop, nil
		}
		loop.Close()
		if !errors.Is(err, unix.EBUSY) {
			return nil, fmt.Errorf("attach %s to %s: %w", f.Name(), loop.Name(), err)
		}
	}
	return nil, errors.New("attach a loop device: others take each that is free")
}

// mounted reports whether something is mounted at dir.
func mounted(dir string) bool {
	info, err := os.Lstat(dir)
	above, aerr := os.Lstat(filepath.Dir(dir))
	if err != nil || aerr != nil {
		return false
	}
	return info.Sys().(*syscall.Stat_t).Dev != above.Sys().(*syscall.Stat_t).Dev
}

// destroy forgets the disk's key, unmounts it and removes its file. It waits a while for readers: with one of them the key would stay.
func (d disk) destroy(ctx context.Context, data string) error {
	ctx, cancel := context.WithTimeout(ctx, freeIn)
	defer cancel()
	for mounted(d.at) {
		err := forgetKey(d.at, data)
		if err == nil {
			err = unix.Unmount(d.at, unix.UMOUNT_NOFOLLOW)
		}
		if err == nil {
			continue // whatever else is mounted there
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("unmount %s: %w", d.at, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
	if err := os.Remove(d.image); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// unmountBelow unmounts what is mounted below dir, the newest first: layers of an image, left by a call that was cut off.
func unmountBelow(dir string) error {
	found, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return err
	}
	for _, m := range slices.Backward(found) {
		if m.Mountpoint == dir {
			continue
		}
		if err := unix.Unmount(m.Mountpoint, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount %s: %w", m.Mountpoint, err)
		}
	}
	return nil
}
