package image

import (
	"errors"
	"io"
	"io/fs"
	"log"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/gpufair/gpufair/p2p/blob"
	"github.com/gpufair/gpufair/p2p/wire"
	"github.com/gpufair/gpufair/renter"
)

// TestRemote opens an image by its name in a registry: manifest and config are read and checked, layers are only listed.
func TestRemote(t *testing.T) {
	s := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer s.Close()
	repo := strings.TrimPrefix(s.URL, "http://") + "/some/tool"
	ref, err := name.ParseReference(repo + ":1")
	check(t, err)
	amd, arm := built("linux/amd64"), built("linux/arm64/v8")
	check(t, remote.WriteIndex(ref, indexed(amd, arm)))
	want, err := arm.Digest()
	check(t, err)
	m, err := arm.Manifest()
	check(t, err)
	for _, arg := range []string{repo + ":1", "docker://" + repo + ":1", repo + "@" + want.String()} {
		at, ok := Reference(arg)
		if !ok {
			t.Fatalf("%s is no reference", arg)
		}
		img, err := (Opener{}).Open(t.Context(), at, "linux/arm64")
		check(t, err)
		if got := "sha256:" + img.Manifest().String(); got != want.String() || img.Source() != repo {
			t.Errorf("%s: %s of %q", arg, got, img.Source())
		}
		blobs := img.Blobs()
		last := blobs[len(blobs)-1]
		if len(blobs) != 2+len(m.Layers) || last.Size != m.Layers[len(m.Layers)-1].Size {
			t.Errorf("%s: blobs %v", arg, blobs)
		}
		r, err := img.Blob(t.Context(), last.Hash)
		check(t, err)
		if _, err := r.ReadAt(make([]byte, 1), 0); !errors.Is(err, errLayer) {
			t.Errorf("a layer was read: %v", err)
		}
		if _, err := img.Blob(t.Context(), wire.Hash{}); !errors.Is(err, blob.ErrNotFound) {
			t.Errorf("a blob that is not of it: %v", err)
		}
		check(t, img.Close())
	}
	at, _ := Reference(repo + ":1")
	refuses(t, "docker://"+repo+"@"+want.String(), ErrPlatform, "linux/arm64", "linux/amd64")
	refuses(t, strings.TrimSuffix(at, "1")+"2", fs.ErrNotExist, "no account there (404)", "skopeo copy docker://"+repo)
}

// TestReference tells names in registries from paths.
func TestReference(t *testing.T) {
	hub := strings.TrimPrefix(name.DefaultRegistry, "index.")
	sum := "@sha256:" + strings.Repeat("a", 64)
	for arg, want := range map[string]string{
		"ubuntu":                            hub + "/library/ubuntu:latest",
		"some/tool:2":                       hub + "/some/tool:2",
		"docker://registry.example.com/a/b": "registry.example.com/a/b:latest",
		"registry.example.com:5000/a" + sum: "registry.example.com:5000/a" + sum,
		"./ubuntu":                          "",
		"job.tar":                           "",
		"~/x":                               "",
		"a b":                               "",
		"docker://":                         "",
		"oci-archive:job.tar":               "",
	} {
		got, ok := Reference(arg)
		if ok != (want != "") || ok && got != renter.FromRegistry+want {
			t.Errorf("%s: %q, %v", arg, got, ok)
		}
	}
}
