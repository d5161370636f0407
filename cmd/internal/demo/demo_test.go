package main

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/gpufair/gpufair/renter/image"
)

// TestWriteImage holds that what the demo writes is an image to the renter.
func TestWriteImage(t *testing.T) {
	dir := t.TempDir()
	program, archive := filepath.Join(dir, "program"), filepath.Join(dir, "image.tar")
	if err := os.WriteFile(program, []byte("not really"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := writeImage(archive, program, "job"); err != nil {
		t.Fatal(err)
	}
	img, err := image.Opener{}.Open(t.Context(), archive, "linux/"+runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(img.Blobs()); n != 3 {
		t.Errorf("%d blobs: want manifest, config and layer", n)
	}
	if err := img.Close(); err != nil {
		t.Error(err)
	}
}

func TestParseCores(t *testing.T) {
	for list, want := range map[string][]int{"0": {0}, "0-2,5": {0, 1, 2, 5}, "1,3-4": {1, 3, 4}} {
		if got, err := parseCores(list); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %v, %v", list, got, err)
		}
	}
	for _, list := range []string{"", "a", "0-", "1,,2"} {
		if got, err := parseCores(list); err == nil {
			t.Errorf("%q: %v", list, got)
		}
	}
	if cores, err := allowedCores(); err != nil || len(cores) == 0 {
		t.Errorf("this machine: %v, %v", cores, err)
	}
}

// TestNeedRoot wants a line that finds Go under sudo.
func TestNeedRoot(t *testing.T) {
	if err := needRoot(0); err != nil {
		t.Error(err)
	}
	if err := needRoot(1000); err == nil || !strings.Contains(err.Error(), `next: sudo env "PATH=$PATH" make demo`) {
		t.Error(err)
	}
}
