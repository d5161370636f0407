package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/gpufair/gpufair/p2p/blob"
	"github.com/gpufair/gpufair/p2p/wire"
	"github.com/gpufair/gpufair/renter"
)

// must is for the making of images, which cannot fail here.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// built makes an image of two layers for a platform.
func built(platform string) v1.Image {
	p := must(v1.ParsePlatform(platform))
	img := must(random.Image(3000, 2))
	config := must(img.ConfigFile()).DeepCopy()
	config.OS, config.Architecture, config.Variant = p.OS, p.Architecture, p.Variant
	return must(mutate.ConfigFile(img, config))
}

// indexed is an index of images by platform.
func indexed(images ...v1.Image) v1.ImageIndex {
	var idx v1.ImageIndex = empty.Index
	for _, img := range images {
		p := must(img.ConfigFile()).Platform()
		idx = mutate.AppendManifests(idx, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: p}})
	}
	return idx
}

// layoutOf writes an OCI layout and gives its folder.
func layoutOf(t testing.TB, idx v1.ImageIndex) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "layout")
	must(layout.Write(dir, idx))
	return dir
}

// entry is one entry of a tar.
type entry struct {
	tar.Header
	data []byte
}

func file(name string, data []byte) entry {
	return entry{tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(data))}, data}
}

func link(kind byte, name, to string) entry {
	return entry{tar.Header{Name: name, Typeflag: kind, Linkname: to}, nil}
}

func tarOf(entries ...entry) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		if err := w.WriteHeader(&e.Header); err != nil {
			panic(err)
		}
		must(w.Write(e.data))
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	return b.Bytes()
}

// entriesOf are the files of a folder, each name after prefix.
func entriesOf(t testing.TB, dir, prefix string) []entry {
	t.Helper()
	var all []entry
	check(t, filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel := must(filepath.Rel(dir, p))
		all = append(all, file(prefix+filepath.ToSlash(rel), must(os.ReadFile(p))))
		return nil
	}))
	return all
}

func zipped(data []byte) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	must(z.Write(data))
	if err := z.Close(); err != nil {
		panic(err)
	}
	return b.Bytes()
}

// put writes a file of the test and gives its path.
func put(t testing.TB, name string, data []byte) string {
	t.Helper()
	p := filepath.Join(t.TempDir(), name)
	check(t, os.WriteFile(p, data, 0o600))
	return p
}

// dockerOf is a docker archive as go-containerregistry writes it: layers in gzip.
func dockerOf(t testing.TB, images map[string]v1.Image) string {
	t.Helper()
	refs := map[name.Reference]v1.Image{}
	for tag, img := range images {
		refs[must(name.NewTag(tag))] = img
	}
	p := filepath.Join(t.TempDir(), "docker.tar")
	check(t, tarball.MultiRefWriteToFile(p, refs))
	return p
}

// saveOf is the archive that docker save wrote before 25: plain layers in folders, a layer that is there twice as a link, no compression.
func saveOf(img v1.Image, more ...entry) []byte {
	config := must(img.RawConfigFile())
	s := saved{Config: wire.Sum("", config).String() + ".json", RepoTags: []string{"job:latest"}}
	entries := []entry{file(s.Config, config)}
	for i, l := range must(img.Layers()) {
		dir := fmt.Sprintf("layer%d", i)
		s.Layers = append(s.Layers, dir+"/layer.tar")
		entries = append(
			entries, file("store/"+dir, must(io.ReadAll(must(l.Uncompressed())))), file(dir+"/VERSION", []byte("1.0")),
			link(tar.TypeSymlink, dir+"/layer.tar", "../store/"+dir),
		)
	}
	return tarOf(append(append(entries, file("manifest.json", must(json.Marshal([]saved{s})))), more...)...)
}

func open(t testing.TB, path string) renter.Image {
	t.Helper()
	img, err := Opener{}.Open(t.Context(), path, "linux/amd64")
	check(t, err)
	t.Cleanup(func() { img.Close() })
	return img
}

// read reads a blob whole.
func read(t testing.TB, src blob.Source, h wire.Hash) []byte {
	t.Helper()
	r, err := src.Blob(t.Context(), h)
	check(t, err)
	defer r.Close()
	data := make([]byte, r.Size())
	if _, err := r.ReadAt(data, 0); err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	return data
}

// verify checks every promise of an opened image, and that it is want: the same config and the same unpacked layers.
func verify(t *testing.T, img renter.Image, want v1.Image) {
	t.Helper()
	blobs := img.Blobs()
	if len(blobs) == 0 || blobs[0].Hash != img.Manifest() {
		t.Fatal("the manifest is not the first blob")
	}
	seen := map[wire.Hash]bool{}
	for _, b := range blobs {
		data := read(t, img, b.Hash)
		if wire.Sum("", data) != b.Hash || int64(len(data)) != b.Size || seen[b.Hash] {
			t.Errorf("blob %s: %d bytes of %d, seen before: %v", b.Hash.Short(), len(data), b.Size, seen[b.Hash])
		}
		seen[b.Hash] = true
	}
	m := must(v1.ParseManifest(bytes.NewReader(read(t, img, img.Manifest()))))
	if m.MediaType != types.OCIManifestSchema1 && m.MediaType != types.DockerManifestSchema2 {
		t.Errorf("the manifest's type is %q", m.MediaType)
	}
	if m.Config.Digest != must(want.ConfigName()) {
		t.Error("another config")
	}
	config := must(want.ConfigFile())
	for i, l := range m.Layers {
		if !seen[must(hashOf(l.Digest))] {
			t.Errorf("layer %d is not among the blobs", i)
		}
		data := read(t, img, must(hashOf(l.Digest)))
		if bytes.HasPrefix(data, gzipMagic) {
			if l.MediaType != types.OCILayer && l.MediaType != types.DockerLayer {
				t.Errorf("a layer in gzip has type %q", l.MediaType)
			}
			data = must(io.ReadAll(must(gzip.NewReader(bytes.NewReader(data)))))
		}
		if wire.Sum("", data).String() != config.RootFS.DiffIDs[i].Hex {
			t.Errorf("layer %d is not the image's", i)
		}
	}
	if len(m.Layers) != len(config.RootFS.DiffIDs) {
		t.Errorf("%d layers", len(m.Layers))
	}
	if _, err := img.Blob(t.Context(), wire.Hash{1}); !errors.Is(err, blob.ErrNotFound) {
		t.Errorf("a blob that it does not have: %v", err)
	}
}

func TestOpen(t *testing.T) {
	amd, arm := built("linux/amd64"), built("linux/arm64/v8")
	one, many := layoutOf(t, indexed(amd)), layoutOf(t, indexed(arm, amd))
	unnamed := layoutOf(t, mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: arm}, mutate.IndexAddendum{Add: amd}))
	nested := layoutOf(t, mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: indexed(arm, amd)}))
	attested := layoutOf(t, mutate.AppendManifests(
		indexed(amd),
		mutate.IndexAddendum{Add: built("linux/amd64"), Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "unknown", Architecture: "unknown"}}},
	))
	twice := layoutOf(t, mutate.AppendManifests(
		empty.Index,
		mutate.IndexAddendum{Add: amd, Descriptor: v1.Descriptor{Annotations: map[string]string{"io.containerd.image.name": "a"}}},
		mutate.IndexAddendum{Add: amd, Descriptor: v1.Descriptor{Annotations: map[string]string{"io.containerd.image.name": "b"}}},
	))
	schema2 := layoutOf(t, indexed(mutate.MediaType(mutate.ConfigMediaType(amd, types.DockerConfigJSON), types.DockerManifestSchema2)))
	untarred := t.TempDir()
	check(t, os.CopyFS(untarred, tarFS(t, saveOf(amd))))
	withBoth := append(entriesOf(t, one, ""), file("manifest.json", []byte("[]"))) // as docker writes it since 25
	for what, path := range map[string]string{
		"layout": one, "layout of two platforms": many, "index without platforms": unnamed, "nested index": nested, "attestations": attested,
		"two names": twice, "docker's types": schema2,
		"archive": put(t, "a.tar", tarOf(entriesOf(t, one, "")...)), "archive of two": put(t, "a.tar", tarOf(entriesOf(t, many, "./")...)),
		"archive in gzip": put(t, "a.tar.gz", zipped(tarOf(entriesOf(t, many, "")...))), "any name": put(t, "image", tarOf(entriesOf(t, one, "")...)),
		"docker since 25": put(t, "a.tar", tarOf(withBoth...)), "docker archive": dockerOf(t, map[string]v1.Image{"a:1": amd, "a:2": amd}),
		"docker archive of two": dockerOf(t, map[string]v1.Image{"a:1": amd, "b:1": arm}),
		"docker save":           put(t, "a.tar", saveOf(amd)), "docker save in gzip": put(t, "a.tgz", zipped(saveOf(amd))), "docker save, unpacked": untarred,
	} {
		t.Run(what, func(t *testing.T) { verify(t, open(t, path), amd) })
	}
	if open(t, put(t, "a.tar", saveOf(amd))).Manifest() != open(t, put(t, "b.tar", saveOf(amd))).Manifest() {
		t.Error("one image has two manifests")
	}
	if img, err := (Opener{}).Open(t.Context(), many, "linux/arm64"); err != nil {
		t.Error(err)
	} else {
		verify(t, img, arm)
		check(t, img.Close())
	}
}

// tarFS is a tar as files, for unpacking it; its links are followed.
func tarFS(t testing.TB, data []byte) fs.FS {
	dir := t.TempDir()
	r := tar.NewReader(bytes.NewReader(data))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return os.DirFS(dir)
		}
		check(t, err)
		p := filepath.Join(dir, h.Name)
		check(t, os.MkdirAll(filepath.Dir(p), 0o700))
		if h.Typeflag == tar.TypeSymlink {
			check(t, os.WriteFile(p, must(os.ReadFile(filepath.Join(filepath.Dir(p), h.Linkname))), 0o600))
			continue
		}
		check(t, os.WriteFile(p, must(io.ReadAll(r)), 0o600))
	}
}

// TestLayerTwice has one layer in two places: it is one blob.
func TestLayerTwice(t *testing.T) {
	amd := built("linux/amd64")
	amd = must(mutate.AppendLayers(amd, must(amd.Layers())[0]))
	for _, path := range []string{layoutOf(t, indexed(amd)), put(t, "a.tar", saveOf(amd))} {
		img := open(t, path)
		verify(t, img, amd)
		if n := len(img.Blobs()); n != 4 { // manifest, config, two of three layers
			t.Errorf("%d blobs", n)
		}
	}
}

// TestVariants picks the usual variant where an index has several.
func TestVariants(t *testing.T) {
	v6, v7 := built("linux/arm/v6"), built("linux/arm/v7")
	path := layoutOf(t, indexed(v6, v7))
	for platform, want := range map[string]v1.Image{"linux/arm": v7, "linux/arm/v6": v6, "linux/arm/v7": v7} {
		img, err := Opener{}.Open(t.Context(), path, platform)
		check(t, err)
		verify(t, img, want)
		check(t, img.Close())
	}
}

// TestUnpackedLeavesNothing holds that a compressed archive's copy goes, at Close and when opening fails.
func TestUnpackedLeavesNothing(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	amd := built("linux/amd64")
	path := put(t, "a.tgz", zipped(saveOf(amd)))
	img := open(t, path)
	verify(t, img, amd)
	check(t, img.Close())
	for _, bad := range [][]byte{zipped(saveOf(built("linux/s390x"))), zipped([]byte("text")), zipped(saveOf(amd))[:900]} {
		if _, err := (Opener{}).Open(t.Context(), put(t, "a.tgz", bad), "linux/amd64"); err == nil {
			t.Error("opened")
		}
	}
	if left := must(os.ReadDir(tmp)); slices.ContainsFunc(left, func(e fs.DirEntry) bool { return strings.HasPrefix(e.Name(), "gpufair-") }) {
		t.Errorf("left behind: %v", left)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, path := range []string{path, put(t, "a.tar", saveOf(amd))} {
		if _, err := (Opener{}).Open(ctx, path, "linux/amd64"); !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: %v", err)
		}
	}
	if _, err := unpack(t.Context(), bytes.NewReader(zipped(make([]byte, 100_000))), 99_999); !errors.Is(err, ErrNotImage) {
		t.Errorf("too large: %v", err)
	}
}

// TestUndistributable keeps layers from travelling that may not, and those that nobody can unpack.
func TestUndistributable(t *testing.T) {
	for mediaType, says := range map[types.MediaType]string{
		types.DockerForeignLayer: "may not be passed on", types.OCILayer + "+encrypted": "encrypted", "text/plain": "no container can be made",
	} {
		img := must(mutate.AppendLayers(built("linux/amd64"), static.NewLayer([]byte("layer"), mediaType)))
		_, err := Opener{}.Open(t.Context(), layoutOf(t, indexed(img)), "linux/amd64")
		if !errors.Is(err, ErrNotImage) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", mediaType, err)
		}
	}
}
