package blob

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/gpufair/gpufair/p2p/wire"
)

// tree makes a folder with all that may travel, and gives it.
func tree(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for _, d := range []string{"a", "a/empty", "read-only"} {
		if err := os.Mkdir(filepath.Join(root, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, data := range map[string][]byte{
		"a/big": noise(1, 2*ChunkSize+17), "a/exact": noise(2, ChunkSize), "a/none": nil, "a-b": []byte("small"),
		"read-only/twin": noise(2, ChunkSize), "run.sh": []byte("#!/bin/sh\n"), "ünïcode näme": []byte("x"),
	} {
		if err := os.WriteFile(filepath.Join(root, name), data, 0o640); err != nil {
			t.Fatal(err)
		}
	}
	for name, mode := range map[string]fs.FileMode{"run.sh": 0o755, "read-only/twin": 0o444, "read-only": 0o555} {
		if err := os.Chmod(filepath.Join(root, name), mode); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { os.Chmod(filepath.Join(root, "read-only"), 0o755) })
	if err := os.Symlink("../a-b", filepath.Join(root, "a", "link")); err != nil {
		t.Fatal(err)
	}
	return root
}

// picture is a folder as text: equal folders have equal pictures.
func picture(t *testing.T, root string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, p)
		info, err := d.Info()
		if err != nil || rel == "." {
			return err
		}
		text := info.Mode().String()
		switch {
		case d.Type()&fs.ModeSymlink != 0:
			text, err = os.Readlink(p)
		case d.Type().IsRegular():
			var b []byte
			b, err = os.ReadFile(p)
			text += " " + wire.Sum("", b).String()
		}
		all[rel] = text
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func samePicture(t *testing.T, got, want map[string]string) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%d entries, want %d", len(got), len(want))
	}
	for p, w := range want {
		if got[p] != w {
			t.Errorf("%s: %q, want %q", p, got[p], w)
		}
	}
}

func pack(t *testing.T, dir string) *Packed {
	t.Helper()
	p, err := Pack(t.Context(), dir, PackOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func openRoot(t *testing.T) *os.Root {
	t.Helper()
	r, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

func TestPackUnpack(t *testing.T) {
	root := tree(t)
	p := pack(t, root)
	if again := pack(t, root); again.ID != p.ID {
		t.Error("the same folder has two names")
	}
	if m, err := DecodeManifest(content(t, p, p.ID)); err != nil || m.Bytes() != p.Manifest.Bytes() {
		t.Fatal(err)
	}
	parent := openRoot(t)
	var last, total int64
	o := UnpackOptions{Sync: true, Progress: func(done, all int64) { last, total = done, all }}
	if err := Unpack(t.Context(), p, p.Manifest, parent, "out", o); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(parent.Name(), "out")
	t.Cleanup(func() { os.Chmod(filepath.Join(out, "read-only"), 0o755) })
	samePicture(t, picture(t, out), picture(t, root))
	if last != total || total != p.Manifest.Bytes() {
		t.Errorf("progress ended at %d of %d", last, total)
	}
	if err := Unpack(t.Context(), p, p.Manifest, parent, "out", UnpackOptions{}); !errors.Is(err, ErrExists) {
		t.Errorf("a second unpack: %v", err)
	}
	if left, _ := os.ReadDir(parent.Name()); len(left) != 1 {
		t.Errorf("beside the folder lie %v", left)
	}
}

func TestUnpackRefuses(t *testing.T) {
	parent := openRoot(t)
	for _, name := range []string{"", ".", "..", "a/b", "/a", `a\b`} {
		if err := Unpack(t.Context(), pack(t, t.TempDir()), manifest(), parent, name, UnpackOptions{}); !errors.Is(err, ErrPath) {
			t.Errorf("%q: %v", name, err)
		}
	}
	// A manifest that nobody checked is checked here.
	setuid := manifest(Entry{Path: "x", Type: File, Mode: 0o4755})
	if err := Unpack(t.Context(), pack(t, t.TempDir()), setuid, parent, "out", UnpackOptions{}); !errors.Is(err, ErrPath) {
		t.Error(err)
	}
	if err := Unpack(t.Context(), pack(t, t.TempDir()), manifest(file("../x", 0)), parent, "out", UnpackOptions{}); !errors.Is(err, ErrPath) {
		t.Error(err)
	}
	if left, _ := os.ReadDir(parent.Name()); len(left) != 0 {
		t.Errorf("%v was made", left)
	}
}

func TestUnpackFindsBadChunks(t *testing.T) {
	s := openStore(t, t.TempDir(), 1<<30)
	p := pack(t, tree(t))
	list, err := p.Manifest.chunks()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range list {
		if _, err := s.Put(t.Context(), content(t, p, c.hash)); err != nil {
			t.Fatal(err)
		}
	}
	bad := list[1].hash
	if err := os.WriteFile(filepath.Join(s.root.Name(), wholePath(bad)), noise(9, int(list[1].size)), 0o600); err != nil {
		t.Fatal(err)
	}
	parent := openRoot(t)
	if err := Unpack(t.Context(), s, p.Manifest, parent, "out", UnpackOptions{}); !errors.Is(err, ErrHashMismatch) {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(parent.Name()); len(left) != 0 {
		t.Errorf("%v was left", left)
	}
	if _, ok := s.Has(bad); ok {
		t.Error("the bad chunk was kept")
	}
	if err := Unpack(t.Context(), s, p.Manifest, parent, "out", UnpackOptions{}); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	if _, err := s.Put(t.Context(), content(t, p, bad)); err != nil {
		t.Fatal(err)
	}
	if err := Unpack(t.Context(), s, p.Manifest, parent, "out", UnpackOptions{}); err != nil {
		t.Fatal(err)
	}
	os.Chmod(filepath.Join(parent.Name(), "out", "read-only"), 0o755)
}

func TestPackRefusesAndSkips(t *testing.T) {
	root := t.TempDir()
	for name, make := range map[string]func(path string) error{
		"pipe":     func(p string) error { return syscall.Mkfifo(p, 0o600) },
		"absolute": func(p string) error { return os.Symlink("/etc/passwd", p) },
		"outside":  func(p string) error { return os.Symlink("../x", p) },
		"bad\nname": func(p string) error {
			return os.WriteFile(p, nil, 0o600)
		},
		"bad\xffdir": func(p string) error {
			return errors.Join(os.Mkdir(p, 0o700), os.WriteFile(filepath.Join(p, "x"), nil, 0o600))
		},
	} {
		one := t.TempDir()
		for _, dir := range []string{one, root} {
			if err := make(filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := Pack(t.Context(), one, PackOptions{}); !errors.Is(err, ErrPath) {
			t.Errorf("%q: %v", name, err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "good"), []byte("good"), 0o600); err != nil {
		t.Fatal(err)
	}
	skipped := 0
	p, err := Pack(t.Context(), root, PackOptions{Skip: func(_ string, why error) {
		if skipped++; !errors.Is(why, ErrPath) {
			t.Error(why)
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if len(p.Manifest.Entries) != 1 || p.Manifest.Entries[0].Path != "good" || skipped != 5 {
		t.Errorf("%v, %d skipped", p.Manifest.Entries, skipped)
	}
}

// A file may become a pipe between the listing and the opening: that must neither be packed nor waited for.
func TestPackDoesNotWaitForAPipe(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	p := &packer{Packed: &Packed{root: root, places: map[wire.Hash]place{}}, buf: make([]byte, 1)}
	if _, err := p.file(Entry{Path: "pipe"}); !errors.Is(err, ErrPath) {
		t.Error(err)
	}
}

func TestPackedNoticesChanges(t *testing.T) {
	root := tree(t)
	p := pack(t, root)
	h := p.Manifest.Entries[1].Chunks // of a-b or a/…: find the big one
	for _, e := range p.Manifest.Entries {
		if e.Path == "a/big" {
			h = e.Chunks
		}
	}
	if _, err := p.Blob(t.Context(), someHash); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	if err := os.WriteFile(filepath.Join(root, "a", "big"), noise(5, 2*ChunkSize+17), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Blob(t.Context(), h[0]); !errors.Is(err, ErrChanged) {
		t.Errorf("other bytes: %v", err)
	}
	if err := os.Remove(filepath.Join(root, "a", "big")); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Blob(t.Context(), h[0]); !errors.Is(err, ErrChanged) {
		t.Errorf("gone: %v", err)
	}
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, noise(1, 2*ChunkSize+17), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(secret, filepath.Join(root, "a", "big")); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Blob(t.Context(), h[0]); !errors.Is(err, ErrChanged) {
		t.Errorf("through a link to the outside: %v", err)
	}
}

func TestPackEmptyAndMissing(t *testing.T) {
	p := pack(t, t.TempDir())
	if len(p.Manifest.Entries) != 0 || p.Manifest.Bytes() != 0 {
		t.Error(p.Manifest)
	}
	parent := openRoot(t)
	if err := Unpack(t.Context(), p, p.Manifest, parent, "out", UnpackOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := Pack(t.Context(), filepath.Join(t.TempDir(), "missing"), PackOptions{}); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Pack(ctx, tree(t), PackOptions{}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if !bytes.Equal(content(t, p, p.ID), p.encoded) {
		t.Error("the manifest is not its blob")
	}
}
