package blob

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/gpufair/gpufair/p2p/wire"
)

// UnpackOptions tune [Unpack].
type UnpackOptions struct {
	Progress Progress
	// Sync makes files and folders durable before Unpack returns, for results whose other copy will be wiped.
	Sync bool
}

// Unpack makes the folder name in parent from a manifest and the chunks in src, each checked again. It appears under its name only
// when it is whole. [ErrExists] if the name is taken, [ErrHashMismatch] (and the chunk removed, if src is a [Store]) if a chunk is
// bad: get it again.
func Unpack(ctx context.Context, src Source, m Manifest, parent *os.Root, name string, o UnpackOptions) error {
	if !filepath.IsLocal(name) || name == "." || strings.ContainsAny(name, `/\`) {
		return fmt.Errorf("unpack into %q: %w: want a name", name, ErrPath)
	}
	if err := m.Check(); err != nil {
		return fmt.Errorf("unpack into %q: %w", name, err)
	}
	if err := free(parent, name); err != nil {
		return err
	}
	tmp := "." + name + ".unpacking" // one that is left over from a killed process is nobody's
	if err := parent.RemoveAll(tmp); err != nil {
		return fmt.Errorf("unpack into %q: %w", name, err)
	}
	err := unpackAll(ctx, src, m, parent, tmp, o)
	if err == nil {
		err = free(parent, name)
	}
	if err == nil {
		err = parent.Rename(tmp, name)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("unpack into %q: %w", name, err), parent.RemoveAll(tmp))
	}
	if o.Sync {
		return syncDir(parent, ".")
	}
	return nil
}

// free reports [ErrExists] if name is taken.
func free(parent *os.Root, name string) error {
	switch _, err := parent.Lstat(name); {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("unpack: %w", err)
	}
	return fmt.Errorf("unpack into %q: %w: choose another name or move it away", name, ErrExists)
}

func unpackAll(ctx context.Context, src Source, m Manifest, parent *os.Root, tmp string, o UnpackOptions) error {
	if err := parent.Mkdir(tmp, 0o700); err != nil {
		return err
	}
	root, err := parent.OpenRoot(tmp)
	if err != nil {
		return err
	}
	defer root.Close()
	u := &unpacker{src: src, root: root, o: o, total: m.Bytes(), buf: make([]byte, ChunkSize)}
	for _, e := range m.Entries {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := u.entry(ctx, e); err != nil {
			return fmt.Errorf("%q: %w", e.Path, err)
		}
	}
	// Modes of folders come last and from the inside out: a read-only one could not be filled.
	for _, e := range slices.Backward(m.Entries) {
		if e.Type != Dir {
			continue
		}
		if err := u.closeDir(e.Path, fs.FileMode(e.Mode)); err != nil {
			return fmt.Errorf("%q: %w", e.Path, err)
		}
	}
	return u.closeDir(".", 0o755)
}

type unpacker struct {
	src   Source
	root  *os.Root
	o     UnpackOptions
	done  int64
	total int64
	buf   []byte
}

func (u *unpacker) entry(ctx context.Context, e Entry) error {
	path := filepath.FromSlash(e.Path)
	if !filepath.IsLocal(path) { // on Windows NUL and C: are not
		return fmt.Errorf("%w: this system has no such name", ErrPath)
	}
	switch e.Type {
	case Dir:
		return u.root.Mkdir(path, 0o700)
	case Symlink:
		return u.root.Symlink(filepath.FromSlash(e.Target), path)
	}
	f, err := u.root.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = u.fill(ctx, f, e)
	if err == nil {
		err = f.Chmod(fs.FileMode(e.Mode))
	}
	if err == nil && u.o.Sync {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

func (u *unpacker) fill(ctx context.Context, f *os.File, e Entry) error {
	for i, h := range e.Chunks {
		size := min(ChunkSize, e.Size-int64(i)*ChunkSize)
		if err := u.chunk(ctx, h, u.buf[:size]); err != nil {
			return err
		}
		if _, err := f.Write(u.buf[:size]); err != nil {
			return err
		}
		u.done += size
		if u.o.Progress != nil {
			u.o.Progress(u.done, u.total)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

// chunk reads the chunk h into b and checks it.
func (u *unpacker) chunk(ctx context.Context, h wire.Hash, b []byte) error {
	r, err := u.src.Blob(ctx, h)
	if err != nil {
		return err
	}
	size := r.Size()
	_, err = io.ReadFull(io.NewSectionReader(r, 0, int64(len(b))), b)
	if closeErr := r.Close(); err == nil {
		err = closeErr
	}
	if err == nil && size == int64(len(b)) && wire.Sum("", b) == h {
		return nil
	}
	err = errors.Join(fmt.Errorf("chunk %s: %w", h.Short(), ErrHashMismatch), err)
	if s, ok := u.src.(*Store); ok {
		err = errors.Join(err, s.Remove(h))
	}
	return err
}

func (u *unpacker) closeDir(path string, mode fs.FileMode) error {
	if u.o.Sync {
		if err := syncDir(u.root, path); err != nil {
			return err
		}
	}
	return u.root.Chmod(path, mode)
}

// syncDir makes the names in a folder durable. Windows has no such call: it journals names itself.
func syncDir(root *os.Root, path string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	d, err := root.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
