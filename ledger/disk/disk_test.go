package disk_test

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/gpufair/gpufair/ledger/disk"
	"github.com/gpufair/gpufair/ledger/disk/disktest"
)

func TestFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "folder")
	d, err := disk.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	disktest.Conformance(t, d)
	for name, want := range map[string]os.FileMode{dir: 0o700, filepath.Join(dir, "b"): 0o600} {
		st, err := os.Stat(name)
		if err != nil || runtime.GOOS != "windows" && st.Mode().Perm() != want {
			t.Errorf("%s: %v, %v; want %v", name, st.Mode(), err, want)
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if f, err := d.Open("x"); err == nil || f != nil {
		t.Errorf("opened %v in a folder that is gone: %v", f, err)
	}
	if err := d.Sync(); err == nil && runtime.GOOS != "windows" {
		t.Error("synced a folder that is gone")
	}
}

func TestSimulated(t *testing.T) {
	disktest.Conformance(t, disktest.New(rand.New(rand.NewPCG(1, 2)).IntN))
}
