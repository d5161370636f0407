package mounts

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpufair/gpufair/provider"
)

// each runs a test on every kind of disk. Tests of disks take root and mkfs.ext4: a test that is left out proves nothing.
func each(t *testing.T, test func(t *testing.T, m *Mounts, dir string)) {
	for _, kind := range []string{provider.DiskEncrypted, provider.DiskQuota, provider.DiskPlain} {
		t.Run(kind, func(t *testing.T) {
			m, dir := open1(t)
			m.kind = kind
			test(t, m, dir)
		})
	}
}

func open1(t *testing.T) (*Mounts, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "leases")
	m := openAt(t, dir)
	t.Cleanup(func() {
		ids, err := m.List(t.Context())
		if err != nil {
			t.Error(err)
		}
		for _, id := range ids {
			if clean, err := m.Remove(t.Context(), id); !clean || err != nil {
				t.Errorf("remove: %v, %v", clean, err)
			}
		}
	})
	return m, dir
}

func openAt(t *testing.T, dir string) *Mounts {
	t.Helper()
	m, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

func make1(t *testing.T, m *Mounts, id string) provider.Folders {
	t.Helper()
	f, err := m.Make(t.Context(), provider.MountRequest{ID: id, MaxBytes: 1 << 20, UID: uint32(os.Getuid()), GID: uint32(os.Getgid())})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestTry shows that this host has the best kind of disk, so that the tests of it are tests.
func TestTry(t *testing.T) {
	m, dir := open1(t)
	info, err := m.Info(t.Context())
	if err != nil || info.Disk != provider.DiskEncrypted {
		t.Fatalf("this host gives disks of kind %q, %v", info.Disk, err)
	}
	if _, err := os.Lstat(filepath.Join(dir, tryDir)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the trial is left: %v", err)
	}
}

func TestModes(t *testing.T) {
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	each(t, func(t *testing.T, m *Mounts, dir string) {
		f := make1(t, m, "a1")
		for path, want := range map[string]os.FileMode{
			dir: 0o700, filepath.Join(dir, "a1"): 0o700, f.State: 0o700, f.In: 0o755, f.Out: 0o777, f.Scratch: 0o777, f.Record: 0o777,
			f.Root.Upper: 0o755, f.Root.Work: 0o700, f.Root.Lower: 0o700, filepath.Dir(f.Out): 0o700,
		} {
			info, err := os.Stat(path)
			if err != nil || info.Mode().Perm() != want {
				t.Errorf("%s: %v, %v; want %v", path, info.Mode(), err, want)
			}
		}
	})
}

// TestLinks lets a job put links out of its folders: neither counting nor removing follows them.
func TestLinks(t *testing.T) {
	each(t, func(t *testing.T, m *Mounts, _ string) {
		outside := t.TempDir()
		put(t, filepath.Join(outside, "precious"), string(make([]byte, 1<<20)))
		f := make1(t, m, "a1")
		before, err := m.Usage(t.Context(), "a1")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(outside, filepath.Join(f.Out, "link")); err != nil {
			t.Fatal(err)
		}
		u, err := m.Usage(t.Context(), "a1")
		if err != nil || u.Bytes > before.Bytes+64<<10 || u.Inodes != before.Inodes+1 {
			t.Errorf("usage with a link: %+v, before %+v, %v", u, before, err)
		}
		if err := os.Remove(f.Scratch); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(outside, f.Scratch); err != nil { // in the place of a folder of ours
			t.Fatal(err)
		}
		if u, err := m.Usage(t.Context(), "a1"); err == nil && u.Bytes > before.Bytes+64<<10 {
			t.Errorf("usage through a link: %+v", u)
		}
		if clean, err := m.Remove(t.Context(), "a1"); !clean || err != nil {
			t.Errorf("remove: %v, %v", clean, err)
		}
		if _, err := os.Stat(filepath.Join(outside, "precious")); err != nil {
			t.Errorf("removing followed a link: %v", err)
		}
	})
}

func TestUsage(t *testing.T) {
	each(t, func(t *testing.T, m *Mounts, _ string) {
		f := make1(t, m, "a1")
		before, err := m.Usage(t.Context(), "a1")
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(f.Out, "f")
		put(t, file, string(make([]byte, 64<<10)))
		if err := os.Link(file, filepath.Join(f.Out, "same")); err != nil {
			t.Fatal(err)
		}
		put(t, filepath.Join(f.Record, "r"), "")
		put(t, filepath.Join(f.Root.Upper, "changed"), "")
		sparse, err := os.Create(filepath.Join(f.Scratch, "sparse"))
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(sparse.Truncate(1<<40), sparse.Close()); err != nil {
			t.Fatal(err)
		}
		u, err := m.Usage(t.Context(), "a1")
		if grown := u.Bytes - before.Bytes; err != nil || grown < 64<<10 || grown > 96<<10 || u.Inodes != before.Inodes+4 {
			t.Errorf("usage %+v, before %+v, %v", u, before, err)
		}
		if u.Held != (m.kind != provider.DiskPlain) {
			t.Errorf("usage of a disk of kind %s: held %v", m.kind, u.Held)
		}
	})
}

// TestQuota fills a disk with bytes, then one with files.
func TestQuota(t *testing.T) {
	for _, kind := range []string{provider.DiskEncrypted, provider.DiskQuota} {
		m, _ := open1(t)
		m.kind = kind
		f := make1(t, m, "a1")
		big, err := os.Create(filepath.Join(f.Scratch, "big"))
		if err != nil {
			t.Fatal(err)
		}
		n, err := io.Copy(big, io.LimitReader(zeros{}, 1<<30))
		if !errors.Is(err, unix.ENOSPC) || n < 1<<20 || n > 4<<20 {
			t.Errorf("%s: %d bytes were written to a disk for 1 MiB, %v", kind, n, err)
		}
		if err := errors.Join(big.Close(), os.Remove(big.Name())); err != nil {
			t.Fatal(err)
		}
		files := 0
		for ; err == nil && files <= 2*minInodes; files++ {
			err = unix.Mknod(filepath.Join(f.Out, strconv.Itoa(files)), unix.S_IFREG|0o600, 0)
		}
		if !errors.Is(err, unix.ENOSPC) || files > minInodes {
			t.Errorf("%s: %d files were made, %v", kind, files, err)
		}
	}
}

// zeros is a stream without end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// TestEncrypted looks for what a job wrote in the bytes of its disk. On a disk without a key it is there: so it is the key that hides it.
func TestEncrypted(t *testing.T) {
	const text, name = "the renter's own words", "a-name-of-the-renters"
	for kind, hidden := range map[string]bool{provider.DiskEncrypted: true, provider.DiskQuota: false} {
		m, _ := open1(t)
		m.kind = kind
		f := make1(t, m, "a1")
		for _, dir := range []string{f.In, f.Out, f.Scratch, f.Root.Upper, f.Record} {
			put(t, filepath.Join(dir, name), text)
		}
		unix.Sync()
		raw, err := os.ReadFile(m.at("a1", imageFile))
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(raw, []byte(text)) == hidden || bytes.Contains(raw, []byte(name)) == hidden {
			t.Errorf("%s: text on disk: %v, name: %v", kind, bytes.Contains(raw, []byte(text)), bytes.Contains(raw, []byte(name)))
		}
	}
}

// TestWipe shows that the key goes with the lease: neither a copy of the disk nor the disk itself tells anything afterwards, and a wipe that
// can't be complete is not said to be.
func TestWipe(t *testing.T) {
	m, _ := open1(t)
	m.kind = provider.DiskEncrypted
	f := make1(t, m, "a1")
	put(t, filepath.Join(f.Out, "secret"), "words")
	held, err := os.Open(filepath.Join(f.Out, "secret"))
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if clean, err := m.Remove(t.Context(), "a1"); clean || !errors.Is(err, errOpen) {
		t.Errorf("wipe with an open file: %v, %v", clean, err)
	}
	held.Close()
	if err := forgetKey(m.at("a1", diskDir), m.at("a1", dataDir)); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(m.at("a1", dataDir))
	if err != nil || len(entries) != 6 {
		t.Fatalf("%v, %v", entries, err)
	}
	for _, e := range entries {
		if e.Name() == outDir {
			t.Errorf("a name is readable without the key: %s", e.Name())
		}
	}
	if err := os.WriteFile(m.at("a1", dataDir, "new"), nil, 0o600); !errors.Is(err, unix.ENOKEY) {
		t.Errorf("written without the key: %v", err)
	}
	if clean, err := m.Remove(t.Context(), "a1"); !clean || err != nil {
		t.Errorf("wipe: %v, %v", clean, err)
	}
	nothing(t, m, "a1")
}

// nothing looks for what a lease could leave on the host.
func nothing(t *testing.T, m *Mounts, id string) {
	t.Helper()
	if _, err := os.Lstat(m.at(id)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its folder is left: %v", err)
	}
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || bytes.Contains(b, []byte(m.at(id))) {
		t.Errorf("a mount is left: %v", err)
	}
	loops, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range loops {
		if b, err := os.ReadFile(l); err == nil && bytes.Contains(b, []byte(m.path)) {
			t.Errorf("%s is left: %s", l, b)
		}
	}
}

// TestCrash finds what a process that was killed left: a disk that was in use goes on, what is not whole is made anew, and all can be removed.
func TestCrash(t *testing.T) {
	m, dir := open1(t)
	m.kind = provider.DiskEncrypted
	f := make1(t, m, "a1")
	put(t, filepath.Join(f.Out, "result"), "so far")
	next := openAt(t, dir)
	if got := make1(t, next, "a1"); got != f {
		t.Errorf("folders %+v, were %+v", got, f)
	}
	if b, err := os.ReadFile(filepath.Join(f.Out, "result")); string(b) != "so far" {
		t.Errorf("after a restart: %q, %v", b, err)
	}
	for name, spoil := range map[string]func() error{
		"before the end": func() error { return os.Remove(m.at("a1", readyFile)) },
		"while formatting": func() error {
			return errors.Join(unix.Unmount(m.at("a1", diskDir), 0), os.Remove(m.at("a1", readyFile)))
		},
		"by a reboot": func() error { return unix.Unmount(m.at("a1", diskDir), 0) },
		"with a layer bound": func() error {
			at := filepath.Join(f.Root.Lower, "0")
			return errors.Join(os.MkdirAll(at, 0o700), unix.Mount(t.TempDir(), at, "", unix.MS_BIND, ""), os.Remove(m.at("a1", readyFile)))
		},
	} {
		if err := spoil(); err != nil {
			t.Fatal(name, err)
		}
		if _, err := next.Usage(t.Context(), "a1"); !errors.Is(err, provider.ErrNotFound) {
			t.Errorf("cut off %s: usage %v", name, err)
		}
		make1(t, next, "a1")
		if entries, err := os.ReadDir(f.Out); len(entries) > 0 || err != nil {
			t.Errorf("cut off %s: %v, %v", name, entries, err)
		}
		if err := spoil(); err != nil {
			t.Fatal(name, err)
		}
		if clean, err := next.Remove(t.Context(), "a1"); !clean || err != nil {
			t.Errorf("cut off %s: remove: %v, %v", name, clean, err)
		}
		nothing(t, m, "a1")
		make1(t, next, "a1")
	}
}

// TestFullWhenTried: a disk that is full for a moment is no reason to leave jobs' data bare from then on.
func TestFullWhenTried(t *testing.T) {
	small := t.TempDir()
	mount := func(flags uintptr, size string) {
		t.Helper()
		if err := unix.Mount("tmpfs", small, "tmpfs", flags, "size="+size); err != nil {
			t.Fatal(err)
		}
	}
	mount(0, "16k")
	t.Cleanup(func() {
		if err := unix.Unmount(small, 0); err != nil {
			t.Error(err)
		}
	})
	m, err := Open(small)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if info, err := m.Info(t.Context()); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("%+v, %v", info, err)
	}
	mount(unix.MS_REMOUNT, "64m")
	if info, err := m.Info(t.Context()); err != nil || info.Disk == provider.DiskPlain && info.Why == "" {
		t.Errorf("%+v, %v", info, err)
	}
}

func TestMisuse(t *testing.T) {
	m, dir := open1(t)
	for _, id := range []string{"", "..", "a/b", "/etc", "A", "-a", "a\x00", ".try"} {
		_, merr := m.Make(t.Context(), provider.MountRequest{ID: id, MaxBytes: 1 << 20})
		_, uerr := m.Usage(t.Context(), id)
		_, rerr := m.Remove(t.Context(), id)
		for _, err := range []error{merr, uerr, rerr} {
			if !errors.Is(err, provider.ErrRequest) {
				t.Errorf("id %q: %v", id, err)
			}
		}
	}
	if _, err := m.Make(t.Context(), provider.MountRequest{ID: "a1"}); !errors.Is(err, provider.ErrRequest) {
		t.Errorf("a disk without a quota: %v", err)
	}
	if clean, err := m.Remove(t.Context(), "a1"); !clean || err != nil {
		t.Errorf("remove of what is not there: %v, %v", clean, err)
	}
	if _, err := m.Usage(t.Context(), "a1"); !errors.Is(err, provider.ErrNotFound) {
		t.Errorf("usage of what is not there: %v", err)
	}
	make1(t, m, "a1")
	make1(t, m, "b2")
	put(t, filepath.Join(dir, "c3"), "") // not a lease's
	ids, err := m.List(t.Context())
	if slices.Sort(ids); err != nil || !slices.Equal(ids, []string{"a1", "b2"}) {
		t.Errorf("list %v, %v", ids, err)
	}
	if _, err := Open("relative"); err == nil {
		t.Error("a relative root was taken")
	}
}
