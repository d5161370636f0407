package containerd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/gpufair/gpufair/provider"
)

const (
	snapshotter = "overlayfs"
	// imagePrefix names images by their manifest and never by what an archive calls itself.
	imagePrefix = "gpufair/"
	// importIn is when containerd forgets what an import that was killed had stored.
	importIn = 2 * time.Hour
)

func imageName(manifest string) string { return imagePrefix + manifest }

// Import implements provider.Runtime. All that is stored before the image is known to be good belongs to a lease of containerd's that is
// released at the end, so that a broken or lying archive leaves nothing behind.
func (c *Client) Import(ctx context.Context, req provider.ImportRequest, archive *os.File) (provider.ImageInfo, error) {
	ctx = c.with(ctx)
	manifest, err := digest.Parse(req.Digest)
	if err != nil || manifest.Algorithm() != digest.SHA256 || req.MaxBytes <= 0 {
		return provider.ImageInfo{}, fmt.Errorf("import image %q, at most %d bytes: %w", req.Digest, req.MaxBytes, provider.ErrRequest)
	}
	info, err := c.Image(ctx, req.Digest)
	if err == nil || !errors.Is(err, provider.ErrNotFound) {
		return info, err
	}
	ls := c.client.LeasesService()
	lease, err := ls.Create(ctx, leases.WithRandomID(), leases.WithExpiration(importIn))
	if err != nil {
		return provider.ImageInfo{}, c.fail(err, "import image %s", req.Digest)
	}
	defer func() {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), endIn)
		defer cancel()
		_ = ls.Delete(clean, lease, leases.SynchronousDelete) // else it expires
	}()
	im := importer{c: c, store: c.client.ContentStore(), lease: lease.ID, max: req.MaxBytes}
	if err := im.run(leases.WithLease(ctx, lease.ID), manifest, archive); err != nil {
		return provider.ImageInfo{}, c.fail(err, "import image %s", req.Digest)
	}
	return c.Image(ctx, req.Digest)
}

// Image implements provider.Runtime.
func (c *Client) Image(ctx context.Context, manifest string) (provider.ImageInfo, error) {
	ctx = c.with(ctx)
	img, err := c.client.GetImage(ctx, imageName(manifest))
	if err != nil {
		return provider.ImageInfo{}, c.fail(err, "look up image %s", manifest)
	}
	return c.imageInfo(ctx, img)
}

// Images implements provider.Runtime.
func (c *Client) Images(ctx context.Context) ([]provider.ImageInfo, error) {
	ctx = c.with(ctx)
	all, err := c.client.ListImages(ctx)
	if err != nil {
		return nil, c.fail(err, "list images")
	}
	var out []provider.ImageInfo
	for _, img := range all {
		if !strings.HasPrefix(img.Name(), imagePrefix) {
			continue
		}
		info, err := c.imageInfo(ctx, img)
		if errors.Is(err, provider.ErrNotFound) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, err
		}
		out = append(out, info)
	}
	return out, nil
}

// RemoveImage implements provider.Runtime.
func (c *Client) RemoveImage(ctx context.Context, manifest string) error {
	err := c.client.ImageService().Delete(c.with(ctx), imageName(manifest), images.SynchronousDelete())
	if errdefs.IsNotFound(err) {
		return nil
	}
	return c.fail(err, "remove image %s", manifest)
}

// imageInfo reads what an image says of itself. It was checked when it was imported.
func (c *Client) imageInfo(ctx context.Context, img containerd.Image) (provider.ImageInfo, error) {
	d := img.Target().Digest.String()
	var m ocispec.Manifest
	if err := c.readJSON(ctx, img.Target(), &m); err != nil {
		return provider.ImageInfo{}, c.fail(err, "read manifest of image %s", d)
	}
	var config ocispec.Image
	if err := c.readJSON(ctx, m.Config, &config); err != nil {
		return provider.ImageInfo{}, c.fail(err, "read config of image %s", d)
	}
	info := provider.ImageInfo{
		Digest: d, Args: append(append([]string{}, config.Config.Entrypoint...), config.Config.Cmd...),
		Env: config.Config.Env, Dir: config.Config.WorkingDir, User: config.Config.User,
	}
	for _, l := range m.Layers {
		info.Size += l.Size
	}
	return info, nil
}

// readJSON reads a blob of known digest and size.
func (c *Client) readJSON(ctx context.Context, d ocispec.Descriptor, v any) error {
	b, err := content.ReadBlob(ctx, c.client.ContentStore(), d)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, v)
}
