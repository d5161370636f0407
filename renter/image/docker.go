package image

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/gpufair/gpufair/p2p/wire"
)

// saved is one image in the manifest.json of docker save.
type saved struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// loadDocker loads the image for a platform from a docker archive, which has no manifest: it is made here, the same for the same image.
func (o *opened) loadDocker(ctx context.Context, list []byte, want v1.Platform) error {
	var all []saved
	if err := json.Unmarshal(list, &all); err != nil {
		if bytes.HasPrefix(bytes.TrimSpace(list), []byte("{")) {
			return notImage("it is a folder of docker's own kind (skopeo's dir:); write an OCI layout: skopeo copy dir:FOLDER oci:OTHER")
		}
		return notImage("its manifest.json cannot be read: %w", err)
	}
	if len(all) > maxManifests {
		return notImage("it holds %d images, %d are allowed", len(all), maxManifests)
	}
	var (
		found  []candidate
		others []string
		of     = map[wire.Hash]saved{} // by config
	)
	for _, s := range all {
		config, err := o.readConfigFile(s.Config)
		if err != nil {
			return err
		}
		h := wire.Sum("", config)
		if _, ok := of[h]; ok {
			continue // the same image twice
		}
		of[h] = s
		c := candidate{config: config, name: strings.Join(s.RepoTags, " ")}
		if c.name == "" {
			c.name = s.Config
		}
		if c.platform, c.diffs, err = readConfig(config); err != nil {
			return err
		}
		if fits(want, c.platform) {
			found = append(found, c)
		} else {
			others = append(others, c.platform.String())
		}
	}
	c, err := best(found, others, want)
	if err != nil {
		return err
	}
	return o.makeManifest(ctx, c, of[wire.Sum("", c.config)].Layers)
}

// readConfigFile reads a config and checks it against the digest in its name, where there is one.
func (o *opened) readConfigFile(name string) ([]byte, error) {
	data, err := o.readSmall(path.Clean(name), maxConfig)
	if errors.Is(err, os.ErrNotExist) {
		return nil, notImage("its config %q is not in it: save the image again", name)
	}
	if err != nil {
		return nil, err
	}
	digest := strings.TrimPrefix(strings.TrimSuffix(path.Base(name), ".json"), "sha256:")
	if b, err := hex.DecodeString(digest); err == nil && len(b) == len(wire.Hash{}) && wire.Hash(b) != wire.Sum("", data) {
		return nil, notImage("its config %s is damaged: it does not have its digest; save the image again", name)
	}
	return data, nil
}

// makeManifest makes the manifest of a saved image. A layer that is not compressed has the digest that the config promises; others are
// read once.
func (o *opened) makeManifest(ctx context.Context, c candidate, layers []string) error {
	if n := len(layers); n == 0 || n > maxLayers || n != c.diffs {
		return notImage("its manifest.json lists %d layers and its config %d; they must be as many, 1 to %d", n, c.diffs, maxLayers)
	}
	config, err := v1.ParseConfigFile(bytes.NewReader(c.config))
	if err != nil {
		return err
	}
	descriptor := func(t types.MediaType, h wire.Hash, size int64) v1.Descriptor {
		return v1.Descriptor{MediaType: t, Size: size, Digest: v1.Hash{Algorithm: "sha256", Hex: h.String()}}
	}
	m := v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Config: descriptor(types.OCIConfigJSON, wire.Sum("", c.config), int64(len(c.config)))}
	hashes := make([]wire.Hash, len(layers))
	for i, name := range layers {
		t, h, size, err := o.inspectLayer(ctx, path.Clean(name), config.RootFS.DiffIDs[i])
		if err != nil {
			return err
		}
		hashes[i] = h
		m.Layers = append(m.Layers, descriptor(t, h, size))
	}
	manifest, err := json.Marshal(m)
	if err != nil {
		return err
	}
	o.manifest = o.addSmall(manifest)
	o.addSmall(c.config)
	for i, name := range layers {
		o.addLayer(hashes[i], path.Clean(name), m.Layers[i].Size)
	}
	return nil
}

// inspectLayer gives a layer's type, digest and size in bytes.
func (o *opened) inspectLayer(ctx context.Context, name string, diff v1.Hash) (types.MediaType, wire.Hash, int64, error) {
	fail := func(err error) (types.MediaType, wire.Hash, int64, error) { return "", wire.Hash{}, 0, err }
	r, err := o.bundle.open(name)
	if errors.Is(err, os.ErrNotExist) {
		return fail(notImage("its layer %q is not in it: save the image again", name))
	}
	if err != nil {
		return fail(err)
	}
	defer r.Close()
	head := make([]byte, len(zstdMagic))
	n, err := r.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return fail(err)
	}
	t := types.OCIUncompressedLayer
	switch head = head[:n]; {
	case bytes.HasPrefix(head, gzipMagic):
		t = types.OCILayer
	case bytes.HasPrefix(head, zstdMagic):
		t = types.OCILayerZStd
	default:
		h, err := hashOf(diff)
		return t, h, r.Size(), err
	}
	d, _, err := v1.SHA256(&watched{ctx: ctx, r: io.NewSectionReader(r, 0, r.Size())})
	if err != nil {
		return fail(err)
	}
	h, err := hashOf(d)
	return t, h, r.Size(), err
}
