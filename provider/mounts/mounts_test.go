package mounts

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/gpufair/gpufair/provider"
)

func open1(t *testing.T) (*Mounts, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "leases")
	m, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m, dir
}

func make1(t *testing.T, m *Mounts, id string) provider.Folders {
	t.Helper()
	f, err := m.Make(t.Context(), provider.MountRequest{ID: id, MaxBytes: 1 << 20, UID: uint32(os.Getuid()), GID: uint32(os.Getgid())})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestModes(t *testing.T) {
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	m, dir := open1(t)
	f := make1(t, m, "a1")
	for path, want := range map[string]os.FileMode{
		dir: 0o700, filepath.Join(dir, "a1"): 0o700, f.State: 0o700, f.In: 0o755, f.Out: 0o777, f.Scratch: 0o777, f.Record: 0o777,
	} {
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v; want %v", path, info.Mode(), err, want)
		}
	}
}

// TestLinks lets a job put links out of its folders: neither counting nor removing follows them.
func TestLinks(t *testing.T) {
	m, _ := open1(t)
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "precious"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	f := make1(t, m, "a1")
	before, err := m.Usage(t.Context(), "a1")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(f.Out, "link")); err != nil {
		t.Fatal(err)
	}
	u, err := m.Usage(t.Context(), "a1")
	if err != nil || u.Bytes != before.Bytes || u.Inodes != before.Inodes+1 {
		t.Errorf("usage with a link: %+v, before %+v, %v", u, before, err)
	}
	if err := os.Remove(f.Scratch); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, f.Scratch); err != nil { // in the place of a folder of ours
		t.Fatal(err)
	}
	if u, err := m.Usage(t.Context(), "a1"); err == nil && u.Bytes > before.Bytes {
		t.Errorf("usage through a link: %+v", u)
	}
	if clean, err := m.Remove(t.Context(), "a1"); !clean || err != nil {
		t.Errorf("remove: %v, %v", clean, err)
	}
	if _, err := os.Stat(filepath.Join(outside, "precious")); err != nil {
		t.Errorf("removing followed a link: %v", err)
	}
}

func TestUsage(t *testing.T) {
	m, _ := open1(t)
	f := make1(t, m, "a1")
	before, err := m.Usage(t.Context(), "a1")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(f.Out, "f")
	if err := os.WriteFile(file, make([]byte, 64<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(file, filepath.Join(f.Scratch, "same")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(f.Record, "r"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	sparse, err := os.Create(filepath.Join(f.Scratch, "sparse"))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(sparse.Truncate(1<<40), sparse.Close()); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(f.In, "input"), make([]byte, 1<<20), 0o600); err != nil { // the renter's, counted when it came
		t.Fatal(err)
	}
	u, err := m.Usage(t.Context(), "a1")
	if grown := u.Bytes - before.Bytes; err != nil || grown < 64<<10 || grown > 80<<10 || u.Inodes != before.Inodes+3 {
		t.Errorf("usage %+v, before %+v, %v", u, before, err)
	}
}

func TestMisuse(t *testing.T) {
	m, dir := open1(t)
	for _, id := range []string{"", "..", "a/b", "/etc", "A", "-a", "a\x00"} {
		_, merr := m.Make(t.Context(), provider.MountRequest{ID: id})
		_, uerr := m.Usage(t.Context(), id)
		_, rerr := m.Remove(t.Context(), id)
		for _, err := range []error{merr, uerr, rerr} {
			if !errors.Is(err, provider.ErrRequest) {
				t.Errorf("id %q: %v", id, err)
			}
		}
	}
	if clean, err := m.Remove(t.Context(), "a1"); !clean || err != nil {
		t.Errorf("remove of what is not there: %v, %v", clean, err)
	}
	if _, err := m.Usage(t.Context(), "a1"); !errors.Is(err, provider.ErrNotFound) {
		t.Errorf("usage of what is not there: %v", err)
	}
	make1(t, m, "a1")
	make1(t, m, "b2")
	if err := os.WriteFile(filepath.Join(dir, "c3"), nil, 0o600); err != nil { // not a lease's
		t.Fatal(err)
	}
	ids, err := m.List(t.Context())
	if slices.Sort(ids); err != nil || !slices.Equal(ids, []string{"a1", "b2"}) {
		t.Errorf("list %v, %v", ids, err)
	}
	if _, err := Open("relative"); err == nil {
		t.Error("a relative root was taken")
	}
}
