package disktest

import (
	"io/fs"
	"slices"
	"syscall"

	"github.com/gpufair/gpufair/ledger/disk"
)

// file is an open file.
type file struct {
	disk   *Disk
	node   *node
	name   string
	closed bool // guarded by disk.mu
}

var _ disk.File = (*file)(nil)

// call begins a call on the file; the caller holds the disk's mu.
func (f *file) call() (Kind, error) {
	k, err := f.disk.call()
	if err == nil && f.closed {
		err = fs.ErrClosed
	}
	return k, err
}

// WriteAt fulfils [disk.File].
func (f *file) WriteAt(p []byte, at int64) (int, error) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	k, err := f.call()
	if err != nil {
		return 0, err
	}
	size := len(p)
	switch {
	case k == Off, k == Fail, k == Full:
		if f.disk.rand(4) > 0 { // else all of it
			size = f.disk.rand(size + 1)
		}
	case f.disk.full:
		size = min(size, max(0, len(f.node.seen)-int(at))) // in place there is room
	}
	if size > 0 {
		data := slices.Clone(p[:size])
		f.node.seen = put(f.node.seen, int(at), data)
		f.node.dirty = append(f.node.dirty, edit{at: int(at), data: data})
	}
	switch {
	case k == Off, k == Fail:
		return size, failed(k, "write "+f.name)
	case size < len(p):
		return size, &fs.PathError{Op: "write", Path: f.name, Err: syscall.ENOSPC}
	}
	return size, nil
}

// Truncate fulfils [disk.File].
func (f *file) Truncate(size int64) error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	k, err := f.call()
	if err != nil {
		return err
	}
	if k == Fail {
		return failed(k, "truncate "+f.name)
	}
	if int(size) != len(f.node.seen) {
		f.node.seen = resize(f.node.seen, int(size))
		f.node.dirty = append(f.node.dirty, edit{at: int(size)})
	}
	if k == Off {
		return ErrOff
	}
	return nil
}

// Sync fulfils [disk.File]. When it fails, any part of what was written reaches the disk, the rest never does, and readers see either what
// was written or what is on the disk.
func (f *file) Sync() error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	k, err := f.call()
	if err != nil {
		return err
	}
	switch k {
	case Off:
		return ErrOff
	case Fail:
		f.node.kept, f.node.dirty = f.node.survive(f.disk.rand), nil
		if f.disk.rand(2) == 0 {
			f.node.seen = slices.Clone(f.node.kept)
		}
		return failed(k, "sync "+f.name)
	}
	for _, e := range f.node.dirty { // not what was given up before, though readers may see it
		f.node.kept = e.on(f.node.kept)
	}
	f.node.dirty = nil
	return nil
}

// Close fulfils [disk.File]. It makes nothing durable.
func (f *file) Close() error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if f.disk.off {
		return ErrOff
	}
	f.closed = true
	return nil
}
