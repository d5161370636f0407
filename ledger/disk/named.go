package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// ErrNotFile says that a name that a person gave is of something else than a file with bytes: a folder, a pipe, a device, a link to be
// written over. To open a pipe waits for its other end, and a device may do anything.
var ErrNotFile = errors.New("not a plain file")

// OpenFile opens the plain file at a path from outside for reading; links are followed. Errors wrap ErrNotFile or those of io/fs. It
// never waits: what becomes a pipe between the look and the opening is not waited for either.
func OpenFile(path string) (*os.File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if err := plain(path, info); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if info, err = f.Stat(); err == nil {
		err = plain(path, info)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// MayWrite reports with an error that wraps ErrNotFile whether something else than a plain file is at path. Nothing is fine. A link is
// something else: whoever may make one in that folder would choose what is written over.
func MayWrite(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return plain(path, info)
}

func plain(path string, info fs.FileInfo) error {
	kind := "a device"
	switch mode := info.Mode(); {
	case mode.IsRegular():
		return nil
	case mode.IsDir():
		kind = "a folder"
	case mode&fs.ModeSymlink != 0:
		kind = "a symbolic link"
	case mode&fs.ModeNamedPipe != 0:
		kind = "a pipe"
	case mode&fs.ModeSocket != 0:
		kind = "a socket"
	}
	return fmt.Errorf("%s is %s: %w", path, kind, ErrNotFile)
}

// Temporary is the pattern of the names, by os.CreateTemp's rule, that files have which [Replace] is writing in place of one called name.
func Temporary(name string) string { return "." + name + ".*.new" }

// Replace writes a file with that mode to path, in place of a plain file that is there: fill writes and judges a new file of a random
// name beside it, which is synced and takes the name then, durably. On an error what was there stays, and nothing else is left. Errors wrap
// what fill gave, ErrNotFile or those of io/fs.
func Replace(path string, mode fs.FileMode, fill func(*os.File) error) error {
	if err := MayWrite(path); err != nil {
		return err
	}
	dir, name := filepath.Split(path)
	dir = filepath.Clean(dir)
	f, err := os.CreateTemp(dir, Temporary(name)) // 0600
	if err != nil {
		return err
	}
	if err = fill(f); err == nil {
		err = errors.Join(f.Chmod(mode), f.Sync())
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = MayWrite(path)
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return Folder{path: dir}.Sync()
}
