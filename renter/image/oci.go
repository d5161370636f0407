package image

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/gpufair/gpufair/p2p/wire"
)

// layerTypes are the layers that every provider can unpack.
func layerTypes() []types.MediaType {
	return []types.MediaType{types.OCIUncompressedLayer, types.OCILayer, types.OCILayerZStd, types.DockerUncompressedLayer, types.DockerLayer}
}

// candidate is an image manifest that an index lists.
type candidate struct {
	manifest []byte
	config   []byte
	parsed   *v1.Manifest
	diffs    int // layers that the config counts
	platform v1.Platform
	name     string // what the index calls it, for people
}

// search walks an index and those in it.
type search struct {
	image  *opened
	want   v1.Platform
	seen   map[wire.Hash]bool
	found  []candidate // of the wanted platform
	others []string    // what else there is, for people
}

// loadOCI loads the image for a platform from a layout's index.
func (o *opened) loadOCI(ctx context.Context, index []byte, want v1.Platform) error {
	s := &search{image: o, want: want, seen: map[wire.Hash]bool{}}
	if err := s.walk(ctx, index, 1); err != nil {
		return err
	}
	c, err := best(s.found, s.others, want)
	if err != nil {
		return err
	}
	o.manifest = o.addSmall(c.manifest)
	o.addSmall(c.config)
	if n := len(c.parsed.Layers); n == 0 || n > maxLayers || n != c.diffs {
		return notImage("its manifest lists %d layers and its config %d; they must be as many, 1 to %d", n, c.diffs, maxLayers)
	}
	for _, l := range c.parsed.Layers {
		if err := o.takeLayer(l); err != nil {
			return err
		}
	}
	return nil
}

// takeLayer checks that a layer is there and can be unpacked.
func (o *opened) takeLayer(l v1.Descriptor) error {
	switch {
	case strings.HasSuffix(string(l.MediaType), "+encrypted"):
		return notImage("layer %s is encrypted; decrypt it first: skopeo copy --decryption-key", l.Digest)
	case l.MediaType.IsLayer() && !l.MediaType.IsDistributable():
		return notImage("layer %s may not be passed on (%s): build on another base", l.Digest, l.MediaType)
	case !slices.Contains(layerTypes(), l.MediaType):
		return notImage("layer %s is of type %q, which no container can be made of", l.Digest, l.MediaType)
	}
	h, err := hashOf(l.Digest)
	if err != nil {
		return err
	}
	name := blobName(h)
	r, err := o.bundle.open(name)
	if errors.Is(err, os.ErrNotExist) {
		return notImage("layer %s is not in it: save the image again, whole", l.Digest)
	}
	if err != nil {
		return err
	}
	defer r.Close()
	if r.Size() != l.Size {
		return notImage("layer %s has %d bytes, its manifest says %d: save the image again", l.Digest, r.Size(), l.Size)
	}
	o.addLayer(h, name, l.Size)
	return nil
}

func blobName(h wire.Hash) string { return "blobs/sha256/" + h.String() }

// walk collects the images that an index lists.
func (s *search) walk(ctx context.Context, index []byte, depth int) error {
	idx, err := v1.ParseIndexManifest(bytes.NewReader(index))
	if err != nil {
		return notImage("its index cannot be read: %w", err)
	}
	if depth > maxNesting {
		return notImage("its indexes are nested more than %d deep", maxNesting)
	}
	for i := range idx.Manifests {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := s.visit(ctx, &idx.Manifests[i], depth); err != nil {
			return err
		}
	}
	return nil
}

func (s *search) visit(ctx context.Context, d *v1.Descriptor, depth int) error {
	h, err := hashOf(d.Digest)
	switch {
	case err != nil:
		return err
	case s.seen[h]:
		return nil
	case len(s.seen) == maxManifests:
		return notImage("its index lists more than %d manifests", maxManifests)
	}
	s.seen[h] = true
	switch {
	case d.Annotations["vnd.docker.reference.type"] != "" || (d.Platform != nil && d.Platform.OS == "unknown"):
		return nil // buildx's attestations of another image
	case d.Platform != nil && d.Platform.OS != "" && !fits(s.want, *d.Platform):
		s.others = append(s.others, d.Platform.String())
		return nil
	case d.MediaType.IsSchema1():
		return notImage("its manifest is of docker's schema 1: pull and save it again with a newer docker")
	}
	data, err := s.read(d.Digest, h, maxManifest)
	if err != nil {
		return err
	}
	if d.MediaType.IsIndex() {
		return s.walk(ctx, data, depth+1)
	}
	return s.add(d, data)
}

// read reads and checks a small blob.
func (s *search) read(d v1.Hash, h wire.Hash, limit int64) ([]byte, error) {
	data, err := s.image.readSmall(blobName(h), limit)
	if errors.Is(err, os.ErrNotExist) {
		return nil, notImage("%s is listed but not in it: save the image again, for this platform", d)
	}
	if err == nil && wire.Sum("", data) != h {
		err = notImage("%s is damaged: it does not have its digest; save the image again", d)
	}
	return data, err
}

// add notes an image manifest, if it is one for the wanted platform.
func (s *search) add(d *v1.Descriptor, data []byte) error {
	m, err := v1.ParseManifest(bytes.NewReader(data))
	if err != nil {
		return notImage("the manifest %s cannot be read: %w", d.Digest, err)
	}
	kind := cmp.Or(m.MediaType, d.MediaType, types.OCIManifestSchema1)
	if m.SchemaVersion != 2 || !kind.IsImage() || !m.Config.MediaType.IsConfig() {
		s.others = append(s.others, fmt.Sprintf("an artifact of type %q", cmp.Or(m.ArtifactType, string(m.Config.MediaType), string(kind))))
		return nil
	}
	h, err := hashOf(m.Config.Digest)
	if err != nil {
		return err
	}
	config, err := s.read(m.Config.Digest, h, maxConfig)
	if err != nil {
		return err
	}
	c := candidate{manifest: data, config: config, parsed: m}
	if c.platform, c.diffs, err = readConfig(config); err != nil {
		return err
	}
	if !fits(s.want, c.platform) {
		s.others = append(s.others, c.platform.String())
		return nil
	}
	if c.platform.Variant == "" && d.Platform != nil {
		c.platform.Variant = d.Platform.Variant
	}
	for _, key := range []string{"io.containerd.image.name", "org.opencontainers.image.ref.name"} {
		c.name = cmp.Or(c.name, d.Annotations[key])
	}
	c.name = cmp.Or(c.name, d.Digest.String())
	s.found = append(s.found, c)
	return nil
}

// readConfig gives an image's platform and the number of its layers.
func readConfig(data []byte) (v1.Platform, int, error) {
	config, err := v1.ParseConfigFile(bytes.NewReader(data))
	if err != nil {
		return v1.Platform{}, 0, notImage("its config cannot be read: %w", err)
	}
	if config.OS == "" || config.Architecture == "" {
		return v1.Platform{}, 0, notImage("its config does not say for which platform it is built")
	}
	return v1.Platform{OS: config.OS, Architecture: config.Architecture, Variant: config.Variant}, len(config.RootFS.DiffIDs), nil
}

// best takes the candidate with the wanted variant, or the only one. others are what there is besides.
func best(found []candidate, others []string, want v1.Platform) (candidate, error) {
	if len(found) == 0 {
		slices.Sort(others)
		others = slices.Compact(others)
		switch {
		case len(others) == 0:
			return candidate{}, notImage("its index lists no image")
		case len(others) > 10:
			others = append(others[:10], "…")
		}
		return candidate{}, fmt.Errorf("%w: it is for %s, the machine to run it is %s; build or save it for that platform",
			ErrPlatform, strings.Join(others, ", "), want)
	}
	exact := slices.DeleteFunc(slices.Clone(found), func(c candidate) bool { return variant(c.platform) != variant(want) })
	if len(exact) > 0 {
		found = exact
	}
	if len(found) > 1 {
		names := make([]string, len(found))
		for i, c := range found {
			names[i] = fmt.Sprintf("%s (%s)", c.name, c.platform)
		}
		return candidate{}, notImage("it holds %d images for %s: %s; save only one of them", len(found), want, strings.Join(names[:min(len(names), 10)], ", "))
	}
	return found[0], nil
}

// fits says that have may run where want is asked for. Which variant is best is for [best].
func fits(want, have v1.Platform) bool {
	return want.OS == have.OS && want.Architecture == have.Architecture
}

// variant is a platform's variant, the usual ones of an architecture written out.
func variant(p v1.Platform) string {
	if p.Variant == "" {
		switch p.Architecture {
		case "amd64":
			return "v1"
		case "arm64":
			return "v8"
		case "arm":
			return "v7"
		}
	}
	return p.Variant
}
