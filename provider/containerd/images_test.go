package containerd_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/gpufair/gpufair/provider"
	"github.com/gpufair/gpufair/provider/containerd/containerdtest"
	"github.com/gpufair/gpufair/provider/providertest"
)

func hexSum(b []byte) string { h := sha256.Sum256(b); return hex.EncodeToString(h[:]) }

// reseal changes an image's manifest and gives the image with the new digest.
func reseal(t *testing.T, img containerdtest.Image, change func(m map[string]any)) containerdtest.Image {
	t.Helper()
	last := &img.Blobs[len(img.Blobs)-1]
	var m map[string]any
	if err := json.Unmarshal(last.Data, &m); err != nil {
		t.Fatal(err)
	}
	change(m)
	b, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	last.Data, last.Name = b, "blobs/sha256/"+hexSum(b)
	img.Digest = "sha256:" + hexSum(b)
	return img
}

// bomb is a gzipped layer of one sparse-looking file of n zero bytes.
func bomb(t *testing.T, n int64) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	if err := w.WriteHeader(&tar.Header{Name: "zeros", Mode: 0o644, Size: n}); err != nil {
		t.Fatal(err)
	}
	chunk := make([]byte, 1<<20)
	for ; n > 0; n -= int64(len(chunk)) {
		if _, err := w.Write(chunk); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// badImage is an image, what spoils its archive, and what is said of it.
type badImage struct {
	img  containerdtest.Image
	tar  func(b []byte) []byte
	says string
}

func smallImage(t *testing.T) containerdtest.Image {
	t.Helper()
	return containerdtest.NewImage(t, containerdtest.ImageConfig{Args: []string{"x"}, Files: map[string][]byte{"bin/x": []byte("x")}})
}

func badImages(t *testing.T) map[string]badImage {
	t.Helper()
	small := func() containerdtest.Image { return smallImage(t) }
	good, zeros := small(), bomb(t, 48<<20)
	return map[string]badImage{
		"garbage":           {img: good, tar: func([]byte) []byte { return []byte("not a tar") }, says: "read archive"},
		"empty":             {img: good, tar: func([]byte) []byte { return nil }, says: "read archive"},
		"truncated in blob": {img: good, tar: func(b []byte) []byte { return b[:2600] }, says: "read archive"},
		"blob missing": {img: func() containerdtest.Image {
			i := small()
			i.Blobs = append(i.Blobs[:2], i.Blobs[3:]...)
			return i
		}(), says: "does not hold sha256"},
		"manifest missing": {img: func() containerdtest.Image {
			i := small()
			i.Digest = "sha256:" + strings.Repeat("0", 64)
			return i
		}(), says: "does not hold sha256"},
		"blob altered": {img: func() containerdtest.Image {
			i := small()
			i.Blobs[2].Data = append([]byte{}, i.Blobs[2].Data...)
			i.Blobs[2].Data[20] ^= 1
			return i
		}(), says: "does not have the digest in its name"},
		"other machine": {img: containerdtest.NewImage(t, containerdtest.ImageConfig{Architecture: "s390x"}), says: "linux/s390x"},
		"an index": {img: reseal(t, small(), func(m map[string]any) {
			m["mediaType"] = "application/vnd.oci.image.index.v1+json"
		}), says: "not an image manifest"},
		"foreign layer": {img: reseal(t, small(), func(m map[string]any) {
			m["layers"].([]any)[0].(map[string]any)["mediaType"] = "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip"
		}), says: "can't be unpacked here"},
		"size lie": {img: reseal(t, small(), func(m map[string]any) {
			m["layers"].([]any)[0].(map[string]any)["size"] = 1
		}), says: "the manifest says 1"},
		"no layers": {img: reseal(t, small(), func(m map[string]any) { m["layers"] = []any{} }), says: "0 layers"},
		"other layer than its diff id": {img: func() containerdtest.Image {
			i := small()
			other := bomb(t, 1<<20)
			i.Blobs[2] = containerdtest.Blob{Name: "blobs/sha256/" + hexSum(other), Data: other}
			return reseal(t, i, func(m map[string]any) {
				l := m["layers"].([]any)[0].(map[string]any)
				l["digest"], l["size"] = "sha256:"+hexSum(other), len(other)
			})
		}(), says: "unpack"},
		"bomb": {img: func() containerdtest.Image {
			i := small()
			i.Blobs[2] = containerdtest.Blob{Name: "blobs/sha256/" + hexSum(zeros), Data: zeros}
			return reseal(t, i, func(m map[string]any) {
				l := m["layers"].([]any)[0].(map[string]any)
				l["digest"], l["size"] = "sha256:"+hexSum(zeros), len(zeros)
			})
		}(), says: "unpacked it is larger"},
	}
}

// TestBadImages imports what is not an image for this machine: it is refused for the right reason and nothing of it stays.
func TestBadImages(t *testing.T) {
	d := containerdtest.Start(t)
	client := connect(t, config(t, d))
	good := smallImage(t)
	for name, c := range badImages(t) {
		t.Run(name, func(t *testing.T) {
			b := c.img.Archive(t)
			if c.tar != nil {
				b = c.tar(b)
			}
			_, err := client.Import(providertest.Context(t), provider.ImportRequest{Digest: c.img.Digest, MaxBytes: 16 << 20}, containerdtest.File(t, b))
			if !errors.Is(err, provider.ErrImage) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("import: %v; want it to say %q", err, c.says)
			}
		})
	}
	if list, err := client.Images(providertest.Context(t)); err != nil || len(list) != 0 {
		t.Errorf("images: %+v, %v", list, err)
	}
	for _, what := range []string{"content", "snapshots", "leases"} {
		out, err := exec.Command("ctr", "--address", d.Address, "-n", "gpufair-test", what, "ls").Output()
		if n := strings.Count(string(out), "\n"); err != nil || n != 1 {
			t.Errorf("%s are left (%v):\n%s", what, err, out)
		}
	}
	if _, err := client.Import(providertest.Context(t), provider.ImportRequest{Digest: good.Digest, MaxBytes: 16 << 20}, containerdtest.File(t, good.Archive(t))); err != nil {
		t.Errorf("a good image after the bad ones: %v", err)
	}
	_, err := client.Import(providertest.Context(t), provider.ImportRequest{Digest: "sha256:x", MaxBytes: 1}, containerdtest.File(t, nil))
	if !errors.Is(err, provider.ErrRequest) {
		t.Errorf("a digest that is none: %v", err)
	}
}

// TestImportShared imports what another namespace of the same containerd has, as two daemons of one machine do, or one beside Kubernetes.
// Who only knows the digest of a blob gets none of it.
func TestImportShared(t *testing.T) {
	d := containerdtest.Start(t)
	c := config(t, d)
	first := connect(t, c)
	c.Namespace += "-second"
	second := connect(t, c)
	imports := func(into provider.Runtime, img containerdtest.Image) error {
		_, err := into.Import(providertest.Context(t), provider.ImportRequest{Digest: img.Digest, MaxBytes: 16 << 20}, containerdtest.File(t, img.Archive(t)))
		return err
	}
	if err := imports(first, smallImage(t)); err != nil {
		t.Fatal(err)
	}
	guess := smallImage(t)
	guess.Blobs[2].Data = make([]byte, len(guess.Blobs[2].Data))
	if err := imports(second, guess); !errors.Is(err, provider.ErrImage) || !strings.Contains(err.Error(), "does not have the digest in its name") {
		t.Errorf("a blob of another namespace, by its digest alone: %v", err)
	}
	if err := imports(second, smallImage(t)); err != nil {
		t.Errorf("an image that another namespace has: %v", err)
	}
	if err := first.RemoveImage(providertest.Context(t), smallImage(t).Digest); err != nil {
		t.Error(err)
	}
	if _, err := second.Image(providertest.Context(t), smallImage(t).Digest); err != nil {
		t.Errorf("after the other namespace removed it: %v", err)
	}
}

// TestImportCancelled gives up an import whose archive never comes.
func TestImportCancelled(t *testing.T) {
	d := containerdtest.Start(t)
	client := connect(t, config(t, d))
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err = client.Import(ctx, provider.ImportRequest{Digest: "sha256:" + strings.Repeat("0", 64), MaxBytes: 1 << 20}, r)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("import: %v", err)
	}
}
