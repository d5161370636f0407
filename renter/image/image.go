// Package image opens container images as people have them on disk: OCI archives, docker archives and OCI layouts, as docker save, podman
// save, skopeo, buildah and buildx write them, or by their name in a registry. It picks the image of one platform, reads layers where they
// lie, and says of anything else what it is. It refuses to know providers.
//
// Formats: OCI image-spec 1.1 (image-layout.md, image-index.md, manifest.md) and the archive of docker save (moby's image/spec/v1.2).
package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/gpufair/gpufair/p2p/blob"
	"github.com/gpufair/gpufair/p2p/wire"
	"github.com/gpufair/gpufair/renter"
)

// Limits. An image may be a stranger's file, so nothing in it decides how much memory opening it takes.
const (
	maxManifest  = 4 << 20      // bytes of an index or manifest: what registries take
	maxConfig    = 8 << 20      // bytes of a config: it lists every command of a long build
	maxSmall     = 64 << 20     // bytes of all indexes, manifests and configs together
	maxLayers    = 127          // what overlayfs can stack and docker allows
	maxEntries   = 10_000       // of a tar: the layers and manifests of many platforms are some hundreds
	maxName      = 4096         // bytes of a name in a tar: no format's names come near
	maxLinks     = 8            // links that follow one another in a tar: docker writes one
	maxManifests = 1000         // in an index, nested ones included
	maxNesting   = 4            // indexes in indexes: buildx nests two
	maxUnpacked  = blob.MaxBlob // bytes of a compressed archive when unpacked
)

var (
	// ErrNotImage says that what lies at a path is no image, or one that nobody can run.
	ErrNotImage = errors.New("not an image that can be run")
	// ErrPlatform says that there is an image, but none for the platform that was asked for.
	ErrPlatform = errors.New("not built for this platform")
)

// Opener fulfils renter.Images. Its zero value is ready, and safe for concurrent use.
type Opener struct {
	Transport http.RoundTripper // to registries; nil: net/http's own
}

var _ renter.Images = Opener{}

// Open opens the image for platform ("linux/amd64", "linux/arm64/v8") in the file or folder at path. An archive that is compressed by
// gzip is unpacked into a temporary file first, which takes as much disk until Close; all else is read in place. The digests of manifest
// and config are checked here, those of layers by who receives them. Of an image in a registry, whose path starts with [renter.FromRegistry],
// only these two are read. Errors wrap [ErrNotImage], [ErrPlatform] or the system's error.
func (o Opener) Open(ctx context.Context, path, platform string) (renter.Image, error) {
	want, err := v1.ParsePlatform(platform)
	if err != nil || want.OS == "" || want.Architecture == "" {
		return nil, fmt.Errorf("image %s: platform %q: want one such as linux/amd64", path, platform)
	}
	within, cancel := context.WithTimeout(ctx, resolveIn)
	defer cancel()
	var b bundle
	var source string
	if bare, ok := strings.CutPrefix(path, renter.FromRegistry); ok {
		b, source, err = openRemote(within, bare, o.Transport)
	} else {
		b, err = openBundle(ctx, path)
	}
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", path, err)
	}
	img := &opened{bundle: b, source: source, left: maxSmall, small: map[wire.Hash][]byte{}, layers: map[wire.Hash]string{}}
	if err := img.load(ctx, *want); err != nil {
		return nil, errors.Join(fmt.Errorf("image %s: %w", path, err), b.Close())
	}
	return img, nil
}

// notImage is an [ErrNotImage] that says why.
func notImage(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrNotImage, fmt.Errorf(format, args...))
}

// opened is an image in a bundle.
type opened struct {
	bundle   bundle
	source   string // repository, of an image in a registry
	left     int64  // of maxSmall
	manifest wire.Hash
	small    map[wire.Hash][]byte // manifest and config, checked
	layers   map[wire.Hash]string // names in the bundle
	blobs    []renter.ImageBlob
}

// load finds out which kind of image the bundle holds. Newer dockers write both kinds of index into one archive; OCI's is the richer.
func (o *opened) load(ctx context.Context, want v1.Platform) error {
	index, err := o.readSmall("index.json", maxManifest)
	if err == nil {
		return o.loadOCI(ctx, index, want)
	}
	if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	list, err := o.readSmall("manifest.json", maxManifest)
	if err == nil {
		return o.loadDocker(ctx, list, want)
	}
	if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return o.bundle.explain()
}

// addSmall keeps a blob that was read and checked.
func (o *opened) addSmall(data []byte) wire.Hash {
	h := wire.Sum("", data)
	if _, ok := o.small[h]; !ok {
		o.small[h] = data
		o.blobs = append(o.blobs, renter.ImageBlob{Hash: h, Size: int64(len(data))})
	}
	return h
}

// addLayer notes where a layer lies. An image may have one twice.
func (o *opened) addLayer(h wire.Hash, name string, size int64) {
	if _, ok := o.layers[h]; !ok {
		o.layers[h] = name
		o.blobs = append(o.blobs, renter.ImageBlob{Hash: h, Size: size})
	}
}

// Manifest implements renter.Image.
func (o *opened) Manifest() wire.Hash { return o.manifest }

// Source implements renter.Image.
func (o *opened) Source() string { return o.source }

// Blobs implements renter.Image.
func (o *opened) Blobs() []renter.ImageBlob { return append([]renter.ImageBlob(nil), o.blobs...) }

// Blob implements blob.Source.
func (o *opened) Blob(ctx context.Context, h wire.Hash) (blob.Reader, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if data, ok := o.small[h]; ok {
		return held{bytes.NewReader(data)}, nil
	}
	name, ok := o.layers[h]
	if !ok {
		return nil, fmt.Errorf("image blob %s: %w", h.Short(), blob.ErrNotFound)
	}
	r, err := o.bundle.open(name)
	if err != nil {
		return nil, fmt.Errorf("image blob %s: %w", h.Short(), err)
	}
	return r, nil
}

// Close implements renter.Image.
func (o *opened) Close() error { return o.bundle.Close() }

// held is a blob in memory.
type held struct{ *bytes.Reader }

func (held) Close() error { return nil }

// readSmall reads a file of the bundle that may have limit bytes.
func (o *opened) readSmall(name string, limit int64) ([]byte, error) {
	r, err := o.bundle.open(name)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	if r.Size() > limit {
		return nil, notImage("%s has %d bytes, %d are allowed", name, r.Size(), limit)
	}
	if o.left -= r.Size(); o.left < 0 {
		return nil, notImage("its indexes, manifests and configs have more than %d bytes together", maxSmall)
	}
	data := make([]byte, r.Size())
	if _, err := r.ReadAt(data, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return data, nil
}

// hashOf is a digest as the rest of the program writes it.
func hashOf(d v1.Hash) (wire.Hash, error) {
	if d.Algorithm != "sha256" {
		return wire.Hash{}, notImage("the digest %s is not of SHA-256", strings.TrimSuffix(d.String(), ":"))
	}
	return wire.ParseHash(d.Hex)
}
