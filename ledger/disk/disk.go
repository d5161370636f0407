// Package disk is a folder of files as the ledger's journal and head note need it: what they ask of a file system, in as few calls as
// they can do with, and this machine's own folder. It owns the order in which bytes become durable, and how a file is opened or replaced
// whose name came from a person; it refuses to know what the bytes say.
package disk

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
)

// Disk is a folder. Names are file names without a path. What is written is durable only after File.Sync, and which name it has only
// after Disk.Sync: until then a loss of power may keep any part of it, in any order. Errors wrap those of io/fs.
type Disk interface {
	// Read gives a file's bytes; fs.ErrNotExist if there is none of that name.
	Read(name string) ([]byte, error)
	// Open opens a file for writing, and makes it, with mode 0600, if there is none.
	Open(name string) (File, error)
	// Rename gives a file another name, in place of any file that had it.
	Rename(from, to string) error
	// Sync makes names durable: new files and renames.
	Sync() error
}

// File is an open file. One goroutine at a time. An error of WriteAt, Truncate or Sync leaves open what the disk has, and a Sync after a
// Sync that failed promises nothing for what was written before: the system may have given up those bytes and still show them to readers.
type File interface {
	io.WriterAt
	// Truncate makes the file size bytes long.
	Truncate(size int64) error
	// Sync returns when the file's bytes and length are on the disk.
	Sync() error
	Close() error
}

// Folder is a folder of this machine.
type Folder struct{ path string }

var _ Disk = Folder{}

// Open gives the folder at path, made with mode 0700 if it is not there.
func Open(path string) (Folder, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return Folder{}, fmt.Errorf("make folder: %w", err)
	}
	return Folder{path: path}, nil
}

// Read fulfils [Disk].
func (d Folder) Read(name string) ([]byte, error) { return os.ReadFile(filepath.Join(d.path, name)) }

// Open fulfils [Disk].
func (d Folder) Open(name string) (File, error) {
	f, err := os.OpenFile(filepath.Join(d.path, name), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err // not f: a nil *os.File is no nil File
	}
	return f, nil
}

// Rename fulfils [Disk].
func (d Folder) Rename(from, to string) error {
	return os.Rename(filepath.Join(d.path, from), filepath.Join(d.path, to))
}

// Sync fulfils [Disk]. Windows can't sync a folder; there NTFS's own journal keeps the order.
func (d Folder) Sync() error {
	if runtime.GOOS == "windows" {
		return nil
	}
	f, err := os.Open(d.path)
	if err != nil {
		return fmt.Errorf("sync folder: %w", err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("sync folder %s: %w", d.path, err)
	}
	return nil
}
