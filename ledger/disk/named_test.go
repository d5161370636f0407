package disk_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/gpufair/gpufair/ledger/disk"
)

// TestOpenFile: only what has bytes is opened, and nothing is waited for.
func TestOpenFile(t *testing.T) {
	dir := t.TempDir()
	file, link, folder, pipe := filepath.Join(dir, "file"), filepath.Join(dir, "link"), filepath.Join(dir, "folder"), filepath.Join(dir, "pipe")
	err := errors.Join(os.WriteFile(file, []byte("x"), 0o600), os.Symlink(file, link), os.Mkdir(folder, 0o700))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, link} {
		f, err := disk.OpenFile(path)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		f.Close()
	}
	not := []string{folder, os.DevNull}
	if makePipe(t, pipe) {
		not = append(not, pipe)
	}
	for _, path := range not {
		if f, err := disk.OpenFile(path); !errors.Is(err, disk.ErrNotFile) {
			t.Errorf("%s: %v, %v", path, f, err)
		}
		if err := disk.MayWrite(path); !errors.Is(err, disk.ErrNotFile) {
			t.Errorf("to write %s: %v", path, err)
		}
	}
	if _, err := disk.OpenFile(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// TestReplace: a link is not written through, what fails leaves what was there, and the mode is the one that was asked for.
func TestReplace(t *testing.T) {
	dir, elsewhere := t.TempDir(), filepath.Join(t.TempDir(), "other")
	path := filepath.Join(dir, "file")
	write := func(text string, err error) func(*os.File) error {
		return func(f *os.File) error { _, werr := f.WriteString(text); return errors.Join(werr, err) }
	}
	for _, text := range []string{"one", "two"} {
		if err := disk.Replace(path, 0o640, write(text, nil)); err != nil {
			t.Fatal(err)
		}
	}
	full := errors.New("full")
	if err := disk.Replace(path, 0o640, write("three", full)); !errors.Is(err, full) {
		t.Error(err)
	}
	if is, err := os.ReadFile(path); err != nil || string(is) != "two" {
		t.Errorf("%q, %v", is, err)
	}
	if info, err := os.Stat(path); err != nil || runtime.GOOS != "windows" && info.Mode() != 0o640 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if err := errors.Join(os.WriteFile(elsewhere, []byte("theirs"), 0o600), os.Symlink(elsewhere, filepath.Join(dir, "link"))); err != nil {
		t.Fatal(err)
	}
	if err := disk.Replace(filepath.Join(dir, "link"), 0o600, write("mine", nil)); !errors.Is(err, disk.ErrNotFile) {
		t.Error(err)
	}
	// One that is put there meanwhile, too.
	late := filepath.Join(dir, "late")
	err := disk.Replace(late, 0o600, func(*os.File) error { return os.Symlink(elsewhere, late) })
	if !errors.Is(err, disk.ErrNotFile) {
		t.Error(err)
	}
	if is, err := os.ReadFile(elsewhere); err != nil || string(is) != "theirs" {
		t.Errorf("%q, %v", is, err)
	}
	if list, err := os.ReadDir(dir); err != nil || len(list) != 3 {
		t.Errorf("something is left: %v, %v", list, err)
	}
}
