package disktest

import (
	"bytes"
	"errors"
	"io/fs"
	"testing"

	"github.com/gpufair/gpufair/ledger/disk"
)

// Conformance checks that a new, empty disk does what [disk.Disk] says.
func Conformance(t *testing.T, d disk.Disk) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	holds := func(name, want string) {
		t.Helper()
		if b, err := d.Read(name); err != nil || !bytes.Equal(b, []byte(want)) {
			t.Fatalf("%s: %q, %v; want %q", name, b, err, want)
		}
	}
	if _, err := d.Read("a"); !errors.Is(err, fs.ErrNotExist) {
		t.Fatal("a file that is not there:", err)
	}
	f, err := d.Open("a")
	must(err)
	for _, w := range []struct {
		at   int64
		text string
	}{{0, "hello"}, {4, "p!"}, {8, "x"}} {
		n, err := f.WriteAt([]byte(w.text), w.at)
		if n != len(w.text) {
			t.Fatalf("wrote %d bytes of %q", n, w.text)
		}
		must(err)
	}
	must(errors.Join(f.Sync(), d.Sync()))
	holds("a", "hellp!\x00\x00x")
	must(f.Truncate(3))
	holds("a", "hel")
	must(f.Truncate(5))
	holds("a", "hel\x00\x00")
	must(f.Close())
	if err := f.Sync(); !errors.Is(err, fs.ErrClosed) {
		t.Fatal("Sync of a closed file:", err)
	}
	f, err = d.Open("a") // what is there stays
	must(err)
	_, err = f.WriteAt([]byte("L"), 2)
	must(errors.Join(err, f.Sync(), f.Close()))
	holds("a", "heL\x00\x00")
	f, err = d.Open("b")
	must(err)
	must(errors.Join(f.Close(), d.Rename("a", "b"), d.Sync()))
	holds("b", "heL\x00\x00")
	if _, err := d.Read("a"); !errors.Is(err, fs.ErrNotExist) {
		t.Fatal("the old name is still there:", err)
	}
	if err := d.Rename("a", "c"); err == nil {
		t.Fatal("renamed a file that is not there")
	}
}
