package containerdtest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
)

// Blob is one file of an image's archive.
type Blob struct {
	Name string // "blobs/sha256/…"
	Data []byte
}

// Image is an OCI image as an archive that tests may spoil.
type Image struct {
	Digest string // of its manifest
	Layer  string // digest of its layer
	Blobs  []Blob
}

// ImageConfig is what differs between images.
type ImageConfig struct {
	Architecture string   // empty: this machine's
	Args         []string // the command
	User         string
	Files        map[string][]byte // by path without a leading slash; executable
}

func sum(b []byte) string { h := sha256.Sum256(b); return "sha256:" + hex.EncodeToString(h[:]) }

func asJSON(t testing.TB, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// NewImage builds an image of one gzipped layer with the given files, a passwd file that knows the user worker (1000), and a link that
// leads out of the image if it is followed on the host.
func NewImage(t testing.TB, c ImageConfig) Image {
	t.Helper()
	if c.Architecture == "" {
		c.Architecture = runtime.GOARCH
	}
	layer := layerTar(t, c.Files)
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	if _, err := z.Write(layer); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	config := asJSON(t, map[string]any{
		"architecture": c.Architecture, "os": "linux",
		"config": map[string]any{"Cmd": c.Args, "Env": []string{"PATH=/bin", "FROM_IMAGE=yes"}, "User": c.User},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{sum(layer)}},
	})
	manifest := asJSON(t, map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
		"config": descriptor("application/vnd.oci.image.config.v1+json", config),
		"layers": []any{descriptor("application/vnd.oci.image.layer.v1.tar+gzip", zipped.Bytes())},
	})
	index := asJSON(t, map[string]any{
		"schemaVersion": 2, "manifests": []any{descriptor("application/vnd.oci.image.manifest.v1+json", manifest)},
	})
	blob := func(b []byte) Blob { return Blob{Name: "blobs/sha256/" + sum(b)[len("sha256:"):], Data: b} }
	return Image{
		Digest: sum(manifest), Layer: sum(zipped.Bytes()),
		Blobs: []Blob{
			{Name: "oci-layout", Data: []byte(`{"imageLayoutVersion":"1.0.0"}`)},
			{Name: "index.json", Data: index},
			blob(zipped.Bytes()), blob(config), blob(manifest),
		},
	}
}

func descriptor(mediaType string, b []byte) map[string]any {
	return map[string]any{"mediaType": mediaType, "digest": sum(b), "size": len(b)}
}

func layerTar(t testing.TB, files map[string][]byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	put := func(h tar.Header, data []byte) {
		h.Size = int64(len(data))
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(data); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{"bin/", "etc/", "run/", "tmp/"} {
		put(tar.Header{Name: dir, Typeflag: tar.TypeDir, Mode: 0o755}, nil)
	}
	put(tar.Header{Name: "etc/passwd", Typeflag: tar.TypeReg, Mode: 0o644}, []byte("root:x:0:0::/:\nworker:x:1000:1000::/:\n"))
	put(tar.Header{Name: "etc/group", Typeflag: tar.TypeReg, Mode: 0o644}, []byte("root:x:0:\nworker:x:1000:\n"))
	put(tar.Header{Name: "etc/out", Typeflag: tar.TypeSymlink, Linkname: "/proc/1/root", Mode: 0o777}, nil)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		put(tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o755}, files[name])
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// Archive is the image as a tar of an OCI layout.
func (i Image) Archive(t testing.TB) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, blob := range i.Blobs {
		if err := w.WriteHeader(&tar.Header{Name: blob.Name, Mode: 0o644, Size: int64(len(blob.Data))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(blob.Data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// File is b as an open file of the test.
func File(t testing.TB, b []byte) *os.File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "archive.tar")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// Packages that tests build static programs of.
const (
	InitPackage    = "github.com/gpufair/gpufair/cmd/gpufair-init"
	JobPackage     = "github.com/gpufair/gpufair/provider/containerd/containerdtest/job"
	hostilePackage = "github.com/gpufair/gpufair/provider/containerd/containerdtest/hostile"
)

// Build compiles a static program of this module and gives its path.
func Build(t testing.TB, pkg string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), filepath.Base(pkg))
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", out, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatal(fmt.Errorf("build %s: %w\n%s", pkg, err, b))
	}
	return out
}

// JobImage is an image whose only program is /bin/job, of [JobPackage].
func JobImage(t testing.TB) Image {
	t.Helper()
	b, err := os.ReadFile(Build(t, JobPackage))
	if err != nil {
		t.Fatal(err)
	}
	return NewImage(t, ImageConfig{Args: []string{"job", "exit", "0"}, Files: map[string][]byte{"bin/job": b, "bin/text": []byte("no program\n")}})
}

// HostileImage is an image whose only program, /bin/hostile, tries what the sandbox is to deny.
func HostileImage(t testing.TB) Image {
	t.Helper()
	b, err := os.ReadFile(Build(t, hostilePackage))
	if err != nil {
		t.Fatal(err)
	}
	return NewImage(t, ImageConfig{Args: []string{"hostile"}, Files: map[string][]byte{"bin/hostile": b}})
}

// Logger is a program for the jobs' logs: the test's own, which must give what follows the verb to access.RunLogger in its TestMain. It goes
// through a script, since a program with the race detector otherwise sleeps a second at its end and the runtime passes no environment on.
func Logger(t testing.TB) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "logger")
	script := fmt.Sprintf("#!/bin/sh\nGORACE=atexit_sleep_ms=0 exec '%s' \"$@\"\n", self)
	if err := os.WriteFile(path, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}
