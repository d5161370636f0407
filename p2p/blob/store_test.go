package blob

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpufair/gpufair/p2p/wire"
)

// noise is n bytes that are always the same for a seed.
func noise(seed byte, n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{seed}).Read(b)
	return b
}

func openStore(t *testing.T, dir string, quota int64) *Store {
	t.Helper()
	s, err := OpenStore(dir, quota)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func content(t *testing.T, src Source, h wire.Hash) []byte {
	t.Helper()
	r, err := src.Blob(t.Context(), h)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	b, err := io.ReadAll(io.NewSectionReader(r, 0, r.Size()))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestStorePutAndReopen(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "blobs")
	s := openStore(t, dir, 1<<20)
	small, big := noise(1, 1000), noise(2, 300_000)
	h1, err := s.Put(t.Context(), small)
	if err != nil {
		t.Fatal(err)
	}
	h2, n, err := s.PutStream(t.Context(), bytes.NewReader(big))
	if err != nil || n != int64(len(big)) || h2 != wire.Sum("", big) {
		t.Fatal(h2, n, err)
	}
	for range 2 { // the same again costs nothing
		if _, err := s.Put(t.Context(), small); err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.PutStream(t.Context(), bytes.NewReader(big)); err != nil {
			t.Fatal(err)
		}
	}
	if s.Used() != 301_000 || len(s.List()) != 2 {
		t.Errorf("%d bytes in %d blobs", s.Used(), len(s.List()))
	}
	s.Close()
	s = openStore(t, dir, 1<<20)
	if s.Used() != 301_000 || !bytes.Equal(content(t, s, h1), small) || !bytes.Equal(content(t, s, h2), big) {
		t.Error("the store came back different")
	}
	if err := errors.Join(s.Remove(h1), s.Remove(h1), s.Remove(h2)); err != nil || s.Used() != 0 {
		t.Errorf("%d bytes left: %v", s.Used(), err)
	}
	if _, err := s.Blob(t.Context(), h1); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	if left, err := os.ReadDir(filepath.Join(dir, wholeDir)); err != nil || len(left) != 0 {
		t.Error(left, err)
	}
}

func TestStoreQuota(t *testing.T) {
	s := openStore(t, t.TempDir(), 1000)
	if _, err := s.Put(t.Context(), noise(1, 600)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Put(t.Context(), noise(2, 401)); !errors.Is(err, ErrQuota) {
		t.Errorf("put: %v", err)
	}
	if _, _, err := s.PutStream(t.Context(), bytes.NewReader(noise(3, 1<<20))); !errors.Is(err, ErrQuota) {
		t.Errorf("stream: %v", err)
	}
	if _, err := s.Writer(someHash, 401); !errors.Is(err, ErrQuota) {
		t.Errorf("writer: %v", err)
	}
	if _, err := s.Writer(someHash, MaxBlob+1); !errors.Is(err, ErrQuota) {
		t.Errorf("largest: %v", err)
	}
	if s.Used() != 600 {
		t.Errorf("%d bytes in use after refusals", s.Used())
	}
	w, err := s.Writer(someHash, 400)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Put(t.Context(), noise(4, 1)); !errors.Is(err, ErrQuota) {
		t.Errorf("beside a writer that holds the rest: %v", err)
	}
	if err := w.Close(); err != nil || s.Used() != 600 {
		t.Errorf("%d bytes in use after an empty writer: %v", s.Used(), err)
	}
	if left, err := os.ReadDir(filepath.Join(s.root.Name(), tempDir)); err != nil || len(left) != 0 {
		t.Error(left, err)
	}
}

func TestWriterResumes(t *testing.T) {
	dir := t.TempDir()
	data := noise(1, 700_000)
	h := wire.Sum("", data)
	s := openStore(t, dir, 1<<20)
	w, err := s.Writer(h, int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Writer(h, int64(len(data))); !errors.Is(err, ErrBusy) {
		t.Errorf("a second writer: %v", err)
	}
	if err := s.Remove(h); !errors.Is(err, ErrBusy) {
		t.Errorf("remove under a writer: %v", err)
	}
	if _, err := w.Write(data[:300_000]); err != nil {
		t.Fatal(err)
	}
	if err := w.Commit(); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("commit in the middle: %v", err)
	}
	s.Close() // as a killed process does: the writer is never closed
	s = openStore(t, dir, 1<<20)
	if s.Used() != 300_000 || s.Partial(h) != 300_000 {
		t.Errorf("%d bytes in use, %d of the blob", s.Used(), s.Partial(h))
	}
	if _, ok := s.Has(h); ok {
		t.Error("an unfinished blob counts as whole")
	}
	w, err = s.Writer(h, int64(len(data)))
	if err != nil || w.Offset() != 300_000 {
		t.Fatal(w.Offset(), err)
	}
	if _, err := w.Write(data[w.Offset():]); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Commit(), w.Close()); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(content(t, s, h), data) || s.Used() != int64(len(data)) || s.Partial(h) != 0 {
		t.Error("the blob is not what was written")
	}
}

func TestWriterRefusesWrongBytes(t *testing.T) {
	s := openStore(t, t.TempDir(), 1<<20)
	data := noise(1, 1000)
	h := wire.Sum("", data)
	w, err := s.Writer(h, 1000)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(noise(2, 1000)); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte{1}); !errors.Is(err, ErrHashMismatch) {
		t.Errorf("more than the size: %v", err)
	}
	if err := w.Commit(); !errors.Is(err, ErrHashMismatch) {
		t.Errorf("commit: %v", err)
	}
	if err := w.Close(); err != nil || s.Used() != 0 || s.Partial(h) != 0 {
		t.Errorf("%d bytes in use, %d kept: %v", s.Used(), s.Partial(h), err)
	}
	// What an earlier program left behind may be longer than the blob.
	if err := os.WriteFile(filepath.Join(s.root.Name(), partialPath(h)), noise(3, 2000), 0o600); err != nil {
		t.Fatal(err)
	}
	w, err = s.Writer(h, 1000)
	if err != nil || w.Offset() != 0 {
		t.Fatal(w, err)
	}
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Commit(); err != nil || !bytes.Equal(content(t, s, h), data) || s.Used() != 1000 {
		t.Error(s.Used(), err)
	}
}

func TestStoreIgnoresWhatIsNotItsOwn(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, 1<<20)
	h, err := s.Put(t.Context(), []byte("x"))
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	if err := os.WriteFile(filepath.Join(dir, tempDir, "of a killed process"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"readme", strings.ToUpper(h.String()), h.String()[:63]} {
		if err := os.WriteFile(filepath.Join(dir, wholeDir, name), []byte("other"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	outside := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(outside, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(dir, wholeDir, someHash.String())); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, dir, 1<<20)
	if s.Used() != 1 || len(s.List()) != 1 {
		t.Errorf("%d bytes in %d blobs", s.Used(), len(s.List()))
	}
	if left, err := os.ReadDir(filepath.Join(dir, tempDir)); err != nil || len(left) != 0 {
		t.Error(left, err)
	}
	if _, err := s.Blob(context.Background(), someHash); !errors.Is(err, ErrNotFound) {
		t.Errorf("a link out of the store was opened: %v", err)
	}
}

func TestOpenFile(t *testing.T) {
	if _, err := OpenFile(t.TempDir()); err == nil {
		t.Error("a folder was opened as a blob")
	}
	path := filepath.Join(t.TempDir(), "layer")
	if err := os.WriteFile(path, []byte("layer"), 0o600); err != nil {
		t.Fatal(err)
	}
	src := SourceFunc(func(context.Context, wire.Hash) (Reader, error) { return OpenFile(path) })
	if got := content(t, src, wire.Hash{}); string(got) != "layer" {
		t.Error(got)
	}
}
