package blob

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/gpufair/gpufair/p2p/wire"
)

// Packed is a folder ready to travel: its manifest, and its chunks read from the files when they are asked for. A [Source]. A file
// that changed since is [ErrChanged]: pack again. Safe for concurrent use.
type Packed struct {
	Manifest Manifest
	ID       wire.Hash // names the manifest

	root    *os.Root
	encoded []byte
	places  map[wire.Hash]place
}

// place is where a chunk lies.
type place struct {
	path   string
	offset int64
	size   int64
}

// PackOptions tune [Pack]. The zero value refuses what may not travel.
type PackOptions struct {
	// Skip, if set, is told what may not travel (with an [ErrPath] or [ErrChanged] that says why), which is then left out instead of
	// failing the whole: for a job's results.
	Skip func(path string, why error)
	// Progress, if set, is told the bytes hashed so far; the total is not known and 0.
	Progress Progress
}

// Pack reads the folder dir once to make its manifest. Close the result after use. Errors name the path and are [ErrPath] where the
// folder holds something that may not travel. Whatever dir's owner does meanwhile, nothing outside dir is read.
func Pack(ctx context.Context, dir string, o PackOptions) (*Packed, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("pack folder: %w", err)
	}
	p := &packer{Packed: &Packed{Manifest: Manifest{Version: manifestVersion}, root: root, places: map[wire.Hash]place{}}, o: o, buf: make([]byte, ChunkSize)}
	err = fs.WalkDir(root.FS(), ".", func(path string, d fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return p.visit(path, d, err)
	})
	if err == nil {
		slices.SortFunc(p.Manifest.Entries, func(a, b Entry) int { return strings.Compare(a.Path, b.Path) })
		p.encoded, p.ID, err = p.Manifest.Encode()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("pack folder %s: %w", dir, err), root.Close())
	}
	return p.Packed, nil
}

// packer is a Pack on its way.
type packer struct {
	*Packed
	o      PackOptions
	buf    []byte
	chunks int
	done   int64
}

func (p *packer) visit(path string, d fs.DirEntry, err error) error {
	if path == "." {
		return err
	}
	var e Entry
	if err == nil {
		e, err = p.entry(path, d)
	}
	if err == nil {
		err = e.check()
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: it is gone", ErrChanged)
	}
	switch {
	case err == nil:
		p.Manifest.Entries = append(p.Manifest.Entries, e)
		if len(p.Manifest.Entries) > MaxEntries {
			return fmt.Errorf("%w: over %d entries: pack fewer files, or an archive of them", ErrPath, MaxEntries)
		}
		return nil
	case p.o.Skip != nil && (errors.Is(err, ErrPath) || errors.Is(err, ErrChanged)) && p.chunks <= MaxChunks:
		p.o.Skip(path, err)
		if d != nil && d.IsDir() {
			return fs.SkipDir
		}
		return nil
	}
	return fmt.Errorf("%q: %w", path, err)
}

// entry reads one path of the folder.
func (p *packer) entry(path string, d fs.DirEntry) (Entry, error) {
	if err := checkPath(path); err != nil {
		return Entry{}, err
	}
	e := Entry{Path: path}
	switch d.Type() {
	case 0:
		return p.file(e)
	case fs.ModeDir:
		info, err := d.Info()
		if err != nil {
			return e, err
		}
		e.Type, e.Mode = Dir, uint32(info.Mode().Perm())
	case fs.ModeSymlink:
		target, err := p.root.Readlink(path)
		if err != nil {
			return e, err
		}
		e.Type, e.Target = Symlink, filepath.ToSlash(target)
	default:
		return e, fmt.Errorf("%w: a %s, not a file, folder or link", ErrPath, d.Type())
	}
	return e, nil
}

// file hashes a file. It is opened without waiting, since it may have become a pipe meanwhile, and judged by what was opened.
func (p *packer) file(e Entry) (Entry, error) {
	f, err := p.root.OpenFile(e.Path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return e, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return e, err
	}
	if !info.Mode().IsRegular() {
		return e, fmt.Errorf("%w: a %s, not a file", ErrPath, info.Mode().Type())
	}
	e.Type, e.Mode = File, uint32(info.Mode().Perm())
	for {
		n, err := io.ReadFull(f, p.buf)
		if n > 0 {
			if p.chunks++; p.chunks > MaxChunks {
				return e, fmt.Errorf("%w: over %d chunks of %d bytes in all", ErrPath, MaxChunks, ChunkSize)
			}
			h := wire.Sum("", p.buf[:n])
			if _, ok := p.places[h]; !ok {
				p.places[h] = place{path: e.Path, offset: e.Size, size: int64(n)}
			}
			e.Chunks = append(e.Chunks, h)
			e.Size += int64(n)
			p.done += int64(n)
			if p.o.Progress != nil {
				p.o.Progress(p.done, 0)
			}
		}
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return e, nil
		case err != nil:
			return e, err
		}
	}
}

// memory is a blob in memory.
type memory struct{ *bytes.Reader }

func (memory) Close() error { return nil }

// Blob gives the manifest or a chunk.
func (p *Packed) Blob(_ context.Context, h wire.Hash) (Reader, error) {
	if h == p.ID {
		return memory{bytes.NewReader(p.encoded)}, nil
	}
	at, ok := p.places[h]
	if !ok {
		return nil, fmt.Errorf("chunk %s: %w", h.Short(), ErrNotFound)
	}
	f, err := p.root.OpenFile(at.path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("read %q: %w: %w", at.path, ErrChanged, err)
	}
	defer f.Close()
	b := make([]byte, at.size)
	if _, err := f.ReadAt(b, at.offset); err != nil {
		return nil, fmt.Errorf("read %q: %w: %w", at.path, ErrChanged, err)
	}
	if wire.Sum("", b) != h {
		return nil, fmt.Errorf("read %q: %w", at.path, ErrChanged)
	}
	return memory{bytes.NewReader(b)}, nil
}

// Close lets go of the folder.
func (p *Packed) Close() error { return p.root.Close() }
