package image

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/gpufair/gpufair/p2p/blob"
	"github.com/gpufair/gpufair/p2p/wire"
)

// refuses holds that path is refused with an error of that kind which says so.
func refuses(t *testing.T, path string, kind error, says ...string) {
	t.Helper()
	img, err := Opener{}.Open(t.Context(), path, "linux/amd64")
	if err == nil {
		img.Close()
		t.Errorf("%s was opened", path)
		return
	}
	if !errors.Is(err, kind) {
		t.Errorf("%v: another kind", err)
	}
	for _, s := range says {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("%v: does not say %q", err, s)
		}
	}
}

func TestRefusesOtherFiles(t *testing.T) {
	for says, data := range map[string]string{
		"PNG": "\x89PNG\r\n\x1a\n" + strings.Repeat("x", 600), "empty file": "", "ELF": "\x7fELF" + strings.Repeat("\x00", 600), "a script": "#!/bin/sh\n",
		"Dockerfile": "FROM debian\nRUN true\n", "JSON": `{"schemaVersion":2}`, "a text file": strings.Repeat("Grüße ", 200),
		"zeros": strings.Repeat("\x00", 300), "empty tar": strings.Repeat("\x00", 1024), "neither a tar": strings.Repeat("\x01\x00", 600),
		"zstd -d": "\x28\xb5\x2f\xfd....", "damaged gzip": "\x1f\x8b\x08\x00 and no more", "ZIP": "PK\x03\x04 and more",
		"a PDF document": string(zipped([]byte("%PDF-1.7\n"))),
	} {
		t.Run(says, func(t *testing.T) { refuses(t, put(t, "job.tar", []byte(data)), ErrNotImage, says) })
	}
	rootfs := tarOf(file("etc/passwd", nil), file("bin/sh", []byte("x")))
	refuses(t, put(t, "a.tar", rootfs), ErrNotImage, "tar without index.json", "etc/passwd", "docker export")
	refuses(t, put(t, "a.tar", tarOf(file("repositories", []byte("{}")))), ErrNotImage, "before 2016")
	refuses(t, put(t, "a.tar", tarOf(file("manifest.json", []byte(`{"schemaVersion":2}`)))), ErrNotImage, "skopeo copy dir:")
	refuses(t, put(t, "a.tar", tarOf(file("index.json", []byte(`{"manifests":`)))), ErrNotImage, "its index cannot be read")
	refuses(t, put(t, "a.tar", tarOf(file("manifest.json", []byte(`[{]`)))), ErrNotImage, "manifest.json cannot be read")
}

func TestRefusesOtherThings(t *testing.T) {
	dir := t.TempDir()
	refuses(t, dir, ErrNotImage, "folder without oci-layout")
	check(t, os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte("FROM x"), 0o600))
	refuses(t, dir, ErrNotImage, "a Dockerfile", "built first")
	refuses(t, "oci-archive:job.tar", fs.ErrNotExist, "give the path alone")
	refuses(t, "./job", fs.ErrNotExist, "nothing lies there")
	refuses(t, "job.tar", fs.ErrNotExist, "nothing lies there")
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", filepath.Join(t.TempDir(), "s"))
	check(t, err)
	defer l.Close()
	refuses(t, l.Addr().String(), ErrNotImage, "a socket")
	refuses(t, os.DevNull, ErrNotImage, "a device")
	for _, platform := range []string{"", "linux", "a/b/c/d", "linux/"} {
		if _, err := (Opener{}).Open(t.Context(), dir, platform); err == nil || !strings.Contains(err.Error(), "linux/amd64") {
			t.Errorf("platform %q: %v", platform, err)
		}
	}
}

func TestRefusesOtherPlatforms(t *testing.T) {
	arm, s390 := built("linux/arm64/v8"), built("linux/s390x")
	for _, path := range []string{
		layoutOf(t, indexed(arm, s390)), layoutOf(t, mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: arm}, mutate.IndexAddendum{Add: s390})),
		dockerOf(t, map[string]v1.Image{"a:1": arm, "b:1": s390}),
	} {
		refuses(t, path, ErrPlatform, "linux/arm64/v8, linux/s390x", "machine to run it is linux/amd64")
	}
	two := layoutOf(t, indexed(built("linux/amd64"), built("linux/amd64")))
	refuses(t, two, ErrNotImage, "2 images for linux/amd64", "save only one")
	refuses(t, dockerOf(t, map[string]v1.Image{"a:1": built("linux/amd64"), "b:1": built("linux/amd64")}), ErrNotImage, "2 images", "a:1", "b:1")
	refuses(t, layoutOf(t, empty.Index), ErrNotImage, "lists no image")
	chart := mutate.ConfigMediaType(built("linux/amd64"), "application/vnd.example.chart")
	refuses(t, layoutOf(t, mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: chart})), ErrPlatform, "artifact", "vnd.example.chart")
	refuses(t, put(t, "a.tar", saveOf(must(mutate.ConfigFile(built("linux/amd64"), &v1.ConfigFile{OS: "linux"})))), ErrNotImage, "for which platform")
}

// spoilt is an archive of a layout of which f changed a file, or removed it by giving nil.
func spoilt(t *testing.T, img v1.Image, name string, f func([]byte) []byte) string {
	t.Helper()
	var all []entry
	for _, e := range entriesOf(t, layoutOf(t, indexed(img)), "") {
		if e.Name == name {
			data := f(bytes.Clone(e.data))
			if data == nil {
				continue
			}
			e = file(name, data)
		}
		all = append(all, e)
	}
	return put(t, "spoilt.tar", tarOf(all...))
}

func TestRefusesDamage(t *testing.T) {
	img := built("linux/amd64")
	blobOf := func(h v1.Hash) string { return "blobs/sha256/" + h.Hex }
	manifest, config, layer := blobOf(must(img.Digest())), blobOf(must(img.ConfigName())), blobOf(must(must(img.Layers())[1].Digest()))
	gone := func([]byte) []byte { return nil }
	flip := func(b []byte) []byte { b[len(b)/2] ^= 1; return b }
	short := func(b []byte) []byte { return b[1:] }
	large := func(b []byte) []byte { return make([]byte, maxConfig+1) }
	for _, c := range []struct {
		name string
		f    func([]byte) []byte
		says string
	}{
		{manifest, gone, "is listed but not in it"},
		{manifest, flip, "does not have its digest"},
		{manifest, large, "are allowed"},
		{config, gone, "is listed but not in it"},
		{config, flip, "does not have its digest"},
		{config, large, "are allowed"},
		{layer, gone, "is not in it"},
		{layer, short, "its manifest says"},
	} {
		refuses(t, spoilt(t, img, c.name, c.f), ErrNotImage, c.says)
	}
	whole := must(os.ReadFile(spoilt(t, img, "", nil)))
	refuses(t, put(t, "cut.tar", whole[:len(whole)*2/3]), ErrNotImage, "cut off")
	first := must(tar.NewReader(bytes.NewReader(whole)).Next())
	refuses(t, put(t, "cut.tar", whole[:512+(first.Size+511)/512*512]), ErrNotImage, "cut off") // between two entries
	whole = saveOf(img)
	refuses(t, put(t, "cut.tar", whole[:len(whole)*2/3]), ErrNotImage, "cut off")
	refuses(t, put(t, "cut.tgz", zipped(whole)[:700]), ErrNotImage, "damaged gzip")

	raw := must(img.RawConfigFile())
	bad := bytes.Replace(raw, []byte(`"linux"`), []byte(`"Linux"`), 1)
	docker := func(config []byte, layers ...string) string {
		s := []saved{{Config: wire.Sum("", raw).String() + ".json", Layers: layers}}
		return put(t, "a.tar", tarOf(file(s[0].Config, config), file("manifest.json", must(json.Marshal(s)))))
	}
	refuses(t, docker(bad, "a", "b"), ErrNotImage, "does not have its digest")
	refuses(t, docker(raw, "a", "b"), ErrNotImage, `layer "a" is not in it`)
	refuses(t, docker(raw, "a"), ErrNotImage, "1 layers and its config 2")
	refuses(t, put(t, "a.tar", tarOf(file("manifest.json", []byte(`[{"Config":"x.json"}]`)))), ErrNotImage, `config "x.json" is not in it`)
}

// TestRefusesHostile is about archives made to hurt: nothing outside them is read, and nothing grows without a limit.
func TestRefusesHostile(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "index.json")
	check(t, os.WriteFile(secret, must(os.ReadFile(filepath.Join(layoutOf(t, indexed(built("linux/amd64"))), "index.json"))), 0o600))
	dir := t.TempDir()
	check(t, os.Symlink(secret, filepath.Join(dir, "index.json")))
	if _, err := (Opener{}).Open(t.Context(), dir, "linux/amd64"); err == nil || !strings.Contains(err.Error(), "escapes") {
		t.Errorf("a link out of the layout: %v", err)
	}
	sub := t.TempDir()
	check(t, os.Mkdir(filepath.Join(sub, "index.json"), 0o700))
	refuses(t, sub, ErrNotImage, "a folder, not a file")

	for _, e := range []entry{
		file("../index.json", []byte("{}")), file("/index.json", []byte("{}")), link(tar.TypeSymlink, "index.json", secret),
		link(tar.TypeSymlink, "index.json", "../../../../etc/passwd"), link(tar.TypeLink, "index.json", secret), link(tar.TypeFifo, "index.json", ""),
		{tar.Header{Name: "index.json", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}, nil},
	} {
		refuses(t, put(t, "a.tar", tarOf(e)), ErrNotImage, "tar without index.json")
	}
	refuses(t, put(t, "a.tar", tarOf(link(tar.TypeSymlink, "index.json", "b"), link(tar.TypeSymlink, "b", "index.json"))), ErrNotImage, "a link to a link")
	sparse := file("index.json", []byte("{"))
	sparse.PAXRecords = map[string]string{"VENDOR.sparse": "x"}
	data := tarOf(sparse)
	refuses(t, put(t, "a.tar", data), ErrNotImage, "its index cannot be read") // other records do no harm
	data = bytes.Replace(data, []byte("VENDOR.sparse"), []byte("GNU.sparse.xy"), 1)
	refuses(t, put(t, "a.tar", data), ErrNotImage, "tar without index.json")

	var many []entry
	for i := range maxEntries + 1 {
		many = append(many, file(fmt.Sprint(i), nil))
	}
	refuses(t, put(t, "a.tar", tarOf(many...)), ErrNotImage, "more than 10000 entries")
	refuses(t, put(t, "a.tar", tarOf(file("index.json", make([]byte, maxManifest+1)))), ErrNotImage, "are allowed")
}

// TestRefusesHugeIndexes holds the limits of what an index may make us read.
func TestRefusesHugeIndexes(t *testing.T) {
	encode := func(idx v1.IndexManifest) []byte { return must(json.Marshal(idx)) }
	listing := func(data []byte, d v1.Descriptor) (v1.Descriptor, entry) {
		h := wire.Sum("", data)
		d.Digest, d.Size = v1.Hash{Algorithm: "sha256", Hex: h.String()}, int64(len(data))
		return d, file(blobName(h), data)
	}
	var wide v1.IndexManifest
	for i := range maxManifests + 1 {
		d, _ := listing([]byte{byte(i), byte(i >> 8)}, v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "s390x"}})
		wide.Manifests = append(wide.Manifests, d)
	}
	refuses(t, put(t, "a.tar", tarOf(file("index.json", encode(wide)))), ErrNotImage, "more than 1000 manifests")

	data, all := encode(v1.IndexManifest{}), []entry(nil)
	for range maxNesting {
		d, e := listing(data, v1.Descriptor{MediaType: types.OCIImageIndex})
		data, all = encode(v1.IndexManifest{Manifests: []v1.Descriptor{d}}), append(all, e)
	}
	refuses(t, put(t, "a.tar", tarOf(append(all, file("index.json", data))...)), ErrNotImage, "more than 4 deep")

	var fat v1.IndexManifest
	all = nil
	for i := range maxSmall/maxManifest + 1 {
		pad := bytes.Repeat([]byte(" "), maxManifest-3)
		d, e := listing(append(fmt.Appendf(nil, "{}%c", ' '+rune(i%2)), pad[i:]...), v1.Descriptor{MediaType: types.OCIManifestSchema1})
		fat.Manifests, all = append(fat.Manifests, d), append(all, e)
	}
	refuses(t, put(t, "a.tar", tarOf(append(all, file("index.json", encode(fat)))...)), ErrNotImage, "together")

	sha512 := `{"manifests":[{"digest":"sha512:` + strings.Repeat("a", 128) + `"}]}`
	refuses(t, put(t, "a.tar", tarOf(file("index.json", []byte(sha512)))), ErrNotImage, "not of SHA-256")
	schema1 := `{"manifests":[{"mediaType":"application/vnd.docker.distribution.manifest.v1+json","digest":"sha256:` + strings.Repeat("a", 64) + `"}]}`
	refuses(t, put(t, "a.tar", tarOf(file("index.json", []byte(schema1)))), ErrNotImage, "schema 1")
}

// heap is a bundle in memory.
type heap map[string][]byte

func (m heap) open(name string) (blob.Reader, error) {
	data, ok := m[name]
	if !ok {
		return nil, fs.ErrNotExist
	}
	return held{bytes.NewReader(data)}, nil
}

func (heap) explain() error { return ErrNotImage }
func (heap) Close() error   { return nil }

// sound holds that what was opened keeps its promises.
func sound(t *testing.T, o *opened) {
	t.Helper()
	for i, b := range o.Blobs() {
		r, err := o.Blob(t.Context(), b.Hash)
		if err != nil || r.Size() != b.Size {
			t.Fatalf("blob %s: %v", b.Hash.Short(), err)
		}
		r.Close()
		if i < 2 && wire.Sum("", read(t, o, b.Hash)) != b.Hash {
			t.Fatal("manifest or config do not have their digest")
		}
	}
	if n := len(o.Blobs()); n == 0 || n > maxLayers+2 || o.Blobs()[0].Hash != o.Manifest() {
		t.Fatalf("%d blobs", n)
	}
}

// FuzzIndex feeds any bytes as index and manifest of a layout, and as both kinds of manifest.json.
func FuzzIndex(f *testing.F) {
	config := []byte(`{"os":"linux","architecture":"amd64","rootfs":{"diff_ids":["sha256:` + strings.Repeat("a", 64) + `"]}}`)
	c, l := wire.Sum("", config).String(), wire.Sum("", []byte("layer")).String()
	manifest := []byte(`{"schemaVersion":2,"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"sha256:` + c + `"},"layers":[` +
		`{"mediaType":"application/vnd.oci.image.layer.v1.tar","size":5,"digest":"sha256:` + l + `"}]}`)
	index := []byte(`{"manifests":[{"digest":"sha256:` + wire.Sum("", manifest).String() + `","platform":{"os":"linux","architecture":"amd64"}}]}`)
	f.Add(index, manifest, config)
	f.Add([]byte(nil), []byte(`[{"Config":"config","RepoTags":["a:1"],"Layers":["layer"]}]`), config)
	f.Fuzz(func(t *testing.T, index, manifest, config []byte) {
		b := heap{"config": config, "layer": []byte("layer"), "manifest.json": manifest, "blobs/sha256/" + l: []byte("layer")}
		for _, small := range [][]byte{manifest, config} {
			b[blobName(wire.Sum("", small))] = small
		}
		if index != nil {
			b["index.json"] = index
		}
		o := &opened{bundle: b, left: maxSmall, small: map[wire.Hash][]byte{}, layers: map[wire.Hash]string{}}
		err := o.load(t.Context(), v1.Platform{OS: "linux", Architecture: "amd64"})
		if err == nil {
			sound(t, o)
		} else if !errors.Is(err, ErrNotImage) && !errors.Is(err, ErrPlatform) {
			t.Fatal(err)
		}
	})
}

// FuzzArchive feeds any bytes as a file. Of every entry that it notes, all bytes are there.
func FuzzArchive(f *testing.F) {
	whole := tarOf(file("a/b", []byte("x")), link(tar.TypeSymlink, "c", "a/b"), link(tar.TypeLink, "d", "c"), file("../e", nil))
	f.Add(whole)
	f.Add(zipped(whole))
	f.Add([]byte("\x89PNG\r\n"))
	path := filepath.Join(f.TempDir(), "x")
	f.Fuzz(func(t *testing.T, whole []byte) {
		check(t, os.WriteFile(path, whole, 0o600))
		b, err := openBundle(t.Context(), path)
		if err != nil {
			if !errors.Is(err, ErrNotImage) {
				t.Fatal(err)
			}
			return
		}
		defer b.Close()
		for name := range b.(*archive).members {
			r, err := b.open(name)
			if err != nil {
				continue
			}
			if n, err := io.Copy(io.Discard, io.NewSectionReader(r, 0, r.Size())); err != nil || n != r.Size() {
				t.Fatalf("%q: %d of %d bytes: %v", name, n, r.Size(), err)
			}
		}
	})
}
