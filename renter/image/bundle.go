package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/gpufair/gpufair/p2p/blob"
)

// bundle is a set of files by slash path: a folder or a tar. Safe for concurrent use.
type bundle interface {
	// open opens a regular file; os.ErrNotExist if there is none of that name.
	open(name string) (blob.Reader, error)
	// explain says why a bundle without an index is no image.
	explain() error
	io.Closer
}

// openBundle opens what lies at a path, if it is a folder, a tar or a tar in gzip.
func openBundle(ctx context.Context, name string) (bundle, error) {
	info, err := os.Stat(name) // before opening: opening a pipe would wait for its writer
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, Missing(name)
	case err != nil:
		return nil, err
	case info.IsDir():
		root, err := os.OpenRoot(name)
		if err != nil {
			return nil, err
		}
		return folder{root}, nil
	case !info.Mode().IsRegular():
		return nil, notImage("it is %s", kindOf(info.Mode()))
	case info.Size() == 0:
		return nil, notImage("it is an empty file")
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	a, err := openArchive(ctx, f)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return a, nil
}

// folder is a bundle in a folder. Links that lead out of it are not followed: os.Root sees to that.
type folder struct{ root *os.Root }

func (f folder) Close() error { return f.root.Close() }

func (f folder) open(name string) (blob.Reader, error) {
	if !fs.ValidPath(name) {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	info, err := f.root.Stat(filepath.FromSlash(name))
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, notImage("%s in it is %s, not a file", name, kindOf(info.Mode()))
	}
	file, err := f.root.Open(filepath.FromSlash(name))
	if err != nil {
		return nil, err
	}
	return sized{file, info.Size()}, nil
}

func (f folder) explain() error {
	for _, sign := range []string{"Dockerfile", "Containerfile"} {
		if _, err := f.root.Stat(sign); err == nil {
			return notImage("it is a folder with a %s, which must be built first: buildah build -t NAME, then buildah push NAME oci-archive:NAME.tar", sign)
		}
	}
	return notImage("it is a folder without oci-layout and index.json; skopeo copy … oci:FOLDER writes such folders")
}

// sized is an open file of known size.
type sized struct {
	*os.File
	size int64
}

func (s sized) Size() int64 { return s.size }

// archive is a bundle in a tar: sections of one open file.
type archive struct {
	file    *os.File
	members map[string]member
	first   string // name of the first entry, for people
	ended   bool   // by blocks of zeros, as a whole tar is
	scratch string // path of file, if it is ours to remove
}

// member is one entry of a tar.
type member struct {
	offset, size int64
	link         string // name of the entry that holds the bytes
}

// openArchive takes f over, unless it returns an error.
func openArchive(ctx context.Context, f *os.File) (*archive, error) {
	head := make([]byte, sniffed)
	n, err := f.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	a := &archive{file: f}
	if head = head[:n]; bytes.HasPrefix(head, gzipMagic) {
		if a.file, err = unpack(ctx, io.NewSectionReader(f, 0, 1<<62), maxUnpacked); err != nil {
			return nil, err
		}
		a.scratch = a.file.Name()
		if n, err = a.file.ReadAt(head[:cap(head)], 0); err != nil && !errors.Is(err, io.EOF) {
			return nil, errors.Join(err, a.Close())
		}
		head = head[:n]
	}
	if err := a.scan(ctx, head); err != nil {
		if a.scratch != "" {
			err = errors.Join(err, a.Close())
		}
		return nil, err
	}
	if a.scratch != "" {
		return a, f.Close()
	}
	return a, nil
}

// unpack writes what r holds, compressed by gzip, into a temporary file of at most limit bytes.
func unpack(ctx context.Context, r io.Reader, limit int64) (_ *os.File, err error) {
	z, err := gzip.NewReader(r)
	if err != nil {
		return nil, notImage("it is a damaged gzip file: %w", err)
	}
	out, err := os.CreateTemp("", "gpufair-image-*.tar")
	if err != nil {
		return nil, fmt.Errorf("unpack: %w", err)
	}
	defer func() {
		if err != nil {
			out.Close()
			os.Remove(out.Name())
		}
	}()
	_ = os.Remove(out.Name()) // where an open file can go, nothing is left even after a crash; elsewhere Close removes it
	src := &watched{ctx: ctx, r: z}
	n, err := io.Copy(out, io.LimitReader(src, limit+1))
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case src.err != nil:
		return nil, notImage("it is a damaged gzip file: %w", src.err)
	case err != nil:
		return nil, fmt.Errorf("unpack %s: %w; set TMPDIR to a larger disk, or unpack it with gunzip", out.Name(), err)
	case n > limit:
		return nil, notImage("unpacked it has more than %d bytes", limit)
	}
	return out, nil
}

// watched stops reading when ctx ends, and remembers its own error to tell it from the writer's.
type watched struct {
	ctx context.Context
	r   io.Reader
	err error
}

func (w *watched) Read(p []byte) (int, error) {
	if err := w.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := w.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		w.err = err
	}
	return n, err
}

// scan notes where each entry lies. No entry is ever written to disk, so a name that leaves the archive names nothing.
func (a *archive) scan(ctx context.Context, head []byte) error {
	info, err := a.file.Stat()
	if err != nil {
		return err
	}
	a.members = map[string]member{}
	whole := io.NewSectionReader(a.file, 0, info.Size()) // a seeker: layers are skipped, not read
	t := tar.NewReader(whole)
	for entries := 0; ; entries++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		h, err := t.Next()
		switch {
		case errors.Is(err, io.EOF):
			a.ended = a.zerosBefore(whole)
			return nil
		case entries == 0 && (errors.Is(err, tar.ErrHeader) || info.Size() < int64(sniffed)):
			return notImage("it is %s", sniff(head))
		case err != nil:
			return notImage("the tar is damaged or cut off after %d entries: %w", entries, err)
		case entries == maxEntries:
			return notImage("the tar has more than %d entries", maxEntries)
		}
		offset, err := whole.Seek(0, io.SeekCurrent)
		if err != nil {
			return err
		}
		a.note(h, offset)
	}
}

// zerosBefore says that the last block that was read is of zeros.
func (a *archive) zerosBefore(r io.Seeker) bool {
	block := make([]byte, sniffed)
	end, err := r.Seek(0, io.SeekCurrent)
	if err == nil {
		_, err = a.file.ReadAt(block, max(0, end-int64(len(block))))
	}
	return err == nil && len(bytes.Trim(block, "\x00")) == 0
}

func (a *archive) note(h *tar.Header, offset int64) {
	name := path.Clean(h.Name)
	if a.first == "" {
		a.first = name[:min(len(name), 200)]
	}
	if !fs.ValidPath(name) || len(name) > maxName {
		return
	}
	delete(a.members, name) // of two entries of one name the last one counts
	switch h.Typeflag {
	case tar.TypeReg:
		for key := range h.PAXRecords {
			if strings.HasPrefix(key, "GNU.sparse.") {
				return // its bytes are not in one piece; no tool writes layers so
			}
		}
		a.members[name] = member{offset: offset, size: h.Size}
	case tar.TypeSymlink: // docker before 25 has a layer once, and links to it
		a.members[name] = member{link: path.Join(path.Dir(name), h.Linkname)}
	case tar.TypeLink:
		a.members[name] = member{link: path.Clean(h.Linkname)}
	}
}

func (a *archive) open(name string) (blob.Reader, error) {
	for range maxLinks {
		m, ok := a.members[path.Clean(name)]
		switch {
		case !ok:
			return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
		case m.link == "":
			return section{io.NewSectionReader(a.file, m.offset, m.size)}, nil
		}
		name = m.link
	}
	return nil, notImage("%s in it is a link to a link, more than %d times", name, maxLinks)
}

func (a *archive) explain() error {
	switch {
	case len(a.members) == 0 && a.first == "":
		return notImage("it is an empty tar")
	case !a.ended:
		return notImage("it is a tar that is cut off: save the image again")
	case a.members["repositories"] != member{}:
		return notImage("it is a docker archive of before 2016: docker load it and docker save it again")
	}
	return notImage("it is a tar without index.json or manifest.json (its first entry is %q); docker save and skopeo write images, docker export does not",
		a.first)
}

func (a *archive) Close() error {
	err := a.file.Close()
	if a.scratch != "" {
		if e := os.Remove(a.scratch); e != nil && !errors.Is(e, os.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	return err
}

// section is a part of an open file.
type section struct{ *io.SectionReader }

func (section) Close() error { return nil }
