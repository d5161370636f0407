package blob

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"sync"

	"github.com/gpufair/gpufair/p2p/wire"
)

// Store keeps blobs in a directory of its own, one file each, and the received part of unfinished ones. It belongs to one process.
// A blob appears whole or not at all: a process killed at any point leaves whole blobs and partial files to resume. The content of
// a large blob is synced before it gets its name; chunks are not each synced, but [Unpack] checks them again. Safe for concurrent use.
type Store struct {
	root  *os.Root
	quota int64

	mu      sync.Mutex
	whole   map[wire.Hash]int64 // guarded by mu: size of each blob
	partial map[wire.Hash]int64 // guarded by mu: bytes of each unfinished one; of an open writer what it reserved
	open    map[wire.Hash]bool  // guarded by mu: has a writer
	used    int64               // guarded by mu: sum of whole and partial, and of streams on their way
}

// The directories of a store.
const (
	wholeDir   = "whole"
	partialDir = "partial"
	tempDir    = "temp" // emptied at open
)

// OpenStore opens or makes the store in dir (0700), which holds at most quota bytes of blobs, unfinished ones included.
func OpenStore(dir string, quota int64) (*Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open blob store: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open blob store: %w", err)
	}
	s := &Store{root: root, quota: quota, open: map[wire.Hash]bool{}}
	if err := s.load(); err != nil {
		root.Close()
		return nil, fmt.Errorf("open blob store %s: %w", dir, err)
	}
	return s, nil
}

func (s *Store) load() (err error) {
	if err := s.root.RemoveAll(tempDir); err != nil {
		return err
	}
	for _, d := range []string{wholeDir, partialDir, tempDir} {
		if err := s.root.MkdirAll(d, 0o700); err != nil {
			return err
		}
	}
	if s.whole, err = s.scan(wholeDir); err != nil {
		return err
	}
	s.partial, err = s.scan(partialDir)
	return err
}

// scan lists the blobs in a directory; files that are none of ours stay untouched and uncounted.
func (s *Store) scan(dir string) (map[wire.Hash]int64, error) {
	found := map[wire.Hash]int64{}
	entries, err := fs.ReadDir(s.root.FS(), dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		h, err := wire.ParseHash(e.Name())
		if err != nil || h.String() != e.Name() || !e.Type().IsRegular() {
			continue
		}
		info, err := e.Info()
		if err != nil {
			return nil, err
		}
		found[h] = info.Size()
		s.used += info.Size()
	}
	return found, nil
}

// Close ends the store's use of its directory.
func (s *Store) Close() error { return s.root.Close() }

func wholePath(h wire.Hash) string   { return wholeDir + "/" + h.String() }
func partialPath(h wire.Hash) string { return partialDir + "/" + h.String() }

// fileReader is a blob that is a whole file.
type fileReader struct {
	*os.File
	size int64
}

func (r fileReader) Size() int64 { return r.size }

// OpenFile opens a file as a blob, for a [SourceFunc].
func OpenFile(path string) (Reader, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open blob: %w", err)
	}
	return sized(f)
}

func sized(f *os.File) (Reader, error) {
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		f.Close()
		return nil, fmt.Errorf("open blob: %s is no file (%w)", f.Name(), err)
	}
	return fileReader{File: f, size: info.Size()}, nil
}

// Blob opens a blob, or [ErrNotFound].
func (s *Store) Blob(_ context.Context, h wire.Hash) (Reader, error) {
	if _, ok := s.Has(h); !ok {
		return nil, fmt.Errorf("blob %s: %w", h.Short(), ErrNotFound)
	}
	f, err := s.root.Open(wholePath(h))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("blob %s: %w", h.Short(), ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("open blob: %w", err)
	}
	return sized(f)
}

// Has reports a whole blob's size.
func (s *Store) Has(h wire.Hash) (size int64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	size, ok = s.whole[h]
	return size, ok
}

// Partial is how many bytes of an unfinished blob are there; while it is being received, how many it will have.
func (s *Store) Partial(h wire.Hash) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.partial[h]
}

// Used is the bytes that count against the quota.
func (s *Store) Used() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used
}

// List names all whole blobs, in no order.
func (s *Store) List() []wire.Hash {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]wire.Hash, 0, len(s.whole))
	for h := range s.whole {
		list = append(list, h)
	}
	return list
}

// Put stores a small blob and gives its name.
func (s *Store) Put(_ context.Context, data []byte) (wire.Hash, error) {
	h := wire.Sum("", data)
	return h, s.put(h, data)
}

// put stores data, whose hash the caller computed.
func (s *Store) put(h wire.Hash, data []byte) error {
	if _, ok := s.Has(h); ok {
		return nil
	}
	size := int64(len(data))
	if err := s.reserve(size); err != nil {
		return err
	}
	name, err := s.temp(func(f *os.File) error {
		_, err := f.Write(data)
		return err
	})
	if err != nil {
		s.release(size)
		return fmt.Errorf("store blob: %w", err)
	}
	return s.adopt(name, h, size, size)
}

// PutStream stores what r gives until io.EOF and gives its name and size.
func (s *Store) PutStream(ctx context.Context, r io.Reader) (wire.Hash, int64, error) {
	sum := sha256.New()
	var size int64
	name, err := s.temp(func(f *os.File) error {
		buf := make([]byte, maxData)
		for {
			n, err := r.Read(buf)
			if n > 0 {
				if err := s.reserve(int64(n)); err != nil {
					return err
				}
				size += int64(n)
				sum.Write(buf[:n])
				if _, err := f.Write(buf[:n]); err != nil {
					return err
				}
			}
			switch {
			case errors.Is(err, io.EOF):
				return f.Sync()
			case err != nil:
				return err
			case ctx.Err() != nil:
				return ctx.Err()
			}
		}
	})
	if err != nil {
		s.release(size)
		return wire.Hash{}, 0, fmt.Errorf("store blob: %w", err)
	}
	h := wire.Hash(sum.Sum(nil))
	return h, size, s.adopt(name, h, size, size)
}

// temp makes a file in the store's own temporary directory and gives its path; after an error it is gone.
func (s *Store) temp(fill func(*os.File) error) (string, error) {
	name := tempDir + "/" + rand.Text()
	f, err := s.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", err
	}
	err = fill(f)
	if err = errors.Join(err, f.Close()); err != nil {
		return "", errors.Join(err, s.root.Remove(name))
	}
	return name, nil
}

// adopt gives the finished file name its place as h. reserved is what the caller holds of the quota for it.
func (s *Store) adopt(name string, h wire.Hash, size, reserved int64) error {
	if err := s.root.Rename(name, wholePath(h)); err != nil {
		s.release(reserved)
		return fmt.Errorf("store blob: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used -= reserved
	if _, ok := s.whole[h]; !ok {
		s.used += size
	}
	s.whole[h] = size
	return nil
}

// room reports [ErrQuota] if n more bytes would not fit right now.
func (s *Store) room(n int64) error {
	if err := s.reserve(n); err != nil {
		return err
	}
	s.release(n)
	return nil
}

func (s *Store) reserve(n int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reserveLocked(n)
}

func (s *Store) reserveLocked(n int64) error {
	if n > s.quota-s.used {
		return fmt.Errorf("%d bytes more than the %d in use: %w of %d bytes", n, s.used, ErrQuota, s.quota)
	}
	s.used += n
	return nil
}

func (s *Store) release(n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used -= n
}

// Remove drops a blob and what is there of an unfinished one. A blob that is not there is no error; one that is being received is
// [ErrBusy].
func (s *Store) Remove(h wire.Hash) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[h] {
		return fmt.Errorf("remove blob %s: %w", h.Short(), ErrBusy)
	}
	for _, set := range []struct {
		path  string
		sizes map[wire.Hash]int64
	}{{wholePath(h), s.whole}, {partialPath(h), s.partial}} {
		if err := s.root.Remove(set.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove blob: %w", err)
		}
		s.used -= set.sizes[h]
		delete(set.sizes, h)
	}
	return nil
}

// Writer receives one blob in order, from where an earlier one stopped. One goroutine uses it.
type Writer struct {
	s      *Store
	f      *os.File
	h      wire.Hash
	size   int64
	offset int64
	sum    hash.Hash
	done   bool
}

// Writer opens the unfinished blob h of size bytes for its missing rest, or [ErrBusy] while another writer has it. It reserves the
// whole size, so that [ErrQuota] comes before the first byte. Close it; what was written stays for the next time.
func (s *Store) Writer(h wire.Hash, size int64) (*Writer, error) {
	if size < 0 || size > MaxBlob {
		return nil, fmt.Errorf("blob of %d bytes: %w (limit %d)", size, ErrQuota, int64(MaxBlob))
	}
	if err := s.claim(h, size); err != nil {
		return nil, fmt.Errorf("receive blob %s: %w", h.Short(), err)
	}
	w := &Writer{s: s, h: h, size: size, sum: sha256.New()}
	if err := w.resume(); err != nil {
		return nil, errors.Join(fmt.Errorf("receive blob: %w", err), w.Close())
	}
	return w, nil
}

// claim makes the caller h's only writer and reserves what size needs beyond the part that is there.
func (s *Store) claim(h wire.Hash, size int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[h] {
		return ErrBusy
	}
	if more := size - s.partial[h]; more > 0 {
		if err := s.reserveLocked(more); err != nil {
			return err
		}
		s.partial[h] = size
	}
	s.open[h] = true
	return nil
}

// resume opens the partial file and hashes what is in it. A longer one than the blob is somebody's mistake and starts anew.
func (w *Writer) resume() (err error) {
	w.f, err = w.s.root.OpenFile(partialPath(w.h), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	w.offset, err = io.Copy(w.sum, w.f)
	if err != nil || w.offset <= w.size {
		return err
	}
	return w.restart()
}

func (w *Writer) restart() error {
	w.offset = 0
	w.sum.Reset()
	_, err := w.f.Seek(0, io.SeekStart)
	return errors.Join(err, w.f.Truncate(0))
}

// Offset is how many bytes are there.
func (w *Writer) Offset() int64 { return w.offset }

// Write appends p; more than the blob's size is [ErrHashMismatch].
func (w *Writer) Write(p []byte) (int, error) {
	if int64(len(p)) > w.size-w.offset {
		return 0, fmt.Errorf("blob %s: %w: over %d bytes", w.h.Short(), ErrHashMismatch, w.size)
	}
	n, err := w.f.Write(p)
	w.sum.Write(p[:n])
	w.offset += int64(n)
	if err != nil {
		return n, fmt.Errorf("receive blob: %w", err)
	}
	return n, nil
}

// Commit checks the whole blob, makes its content durable and gives it its name. After [ErrHashMismatch] nothing of it is kept.
func (w *Writer) Commit() error {
	if w.offset != w.size {
		return fmt.Errorf("blob %s: %d of %d bytes: %w", w.h.Short(), w.offset, w.size, io.ErrUnexpectedEOF)
	}
	if got := wire.Hash(w.sum.Sum(nil)); got != w.h {
		return errors.Join(fmt.Errorf("blob %s: %w: it is %s", w.h.Short(), ErrHashMismatch, got.Short()), w.restart())
	}
	if err := w.f.Sync(); err != nil {
		return fmt.Errorf("receive blob: %w", err)
	}
	w.done = true
	err := w.f.Close()
	w.s.mu.Lock()
	reserved := w.s.partial[w.h]
	delete(w.s.partial, w.h)
	delete(w.s.open, w.h)
	w.s.mu.Unlock()
	if err != nil {
		w.s.release(reserved) // the file is found again, and counted, when the store is opened next
		return fmt.Errorf("receive blob: %w", err)
	}
	return w.s.adopt(partialPath(w.h), w.h, w.size, reserved)
}

// Close ends the writing; without a Commit before, what is there is kept to resume. A second Close does nothing.
func (w *Writer) Close() error {
	if w.done {
		return nil
	}
	w.done = true
	var err error
	if w.f != nil {
		err = w.f.Close()
	}
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	delete(w.s.open, w.h)
	w.s.used -= w.s.partial[w.h] - w.offset
	w.s.partial[w.h] = w.offset
	if w.offset == 0 {
		delete(w.s.partial, w.h)
		if e := w.s.root.Remove(partialPath(w.h)); e != nil && !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	return err
}
