package containerd

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/pkg/archive/compression"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/gpufair/gpufair/provider"
)

// Limits of what a stranger's archive may make us read or hold.
const (
	maxEntries     = 10_000   // in the archive: layers and manifests of many platforms are some hundreds
	maxManifest    = 4 << 20  // bytes: what registries take
	maxImageConfig = 8 << 20  // bytes: a config lists every command of a long build
	maxLayers      = 127      // what overlayfs can stack and docker allows
	maxFiles       = 2 << 20  // files in all layers: the largest CUDA images have some 300,000
	archiveSlack   = 64 << 20 // bytes of an archive that are not unpacked layers: manifests, configs, tar headers, what compresses badly
	blockSize      = 4096     // what a file takes on disk at least
)

// importer stores one archive's blobs and makes an image of those that the manifest names.
type importer struct {
	c     *Client
	store content.Store
	lease string
	max   int64 // bytes of the unpacked layers together
}

// bad marks an error as the archive's fault.
func bad(format string, args ...any) error {
	return fmt.Errorf("%w: %w", provider.ErrImage, fmt.Errorf(format, args...))
}

func (im importer) run(ctx context.Context, manifest digest.Digest, archive *os.File) error {
	if err := im.readArchive(ctx, archive); err != nil {
		return err
	}
	target, layers, err := im.check(ctx, manifest)
	if err != nil {
		return err
	}
	if err := im.measure(ctx, layers); err != nil {
		return err
	}
	label := images.SetChildrenLabels(im.store, images.ChildrenHandler(im.store))
	if err := images.Dispatch(ctx, label, nil, target); err != nil {
		return err
	}
	img := images.Image{Name: imageName(manifest.String()), Target: target}
	if err := containerd.NewImage(im.c.client, img).Unpack(ctx, snapshotter); err != nil {
		err = im.c.fail(err, "unpack")
		for _, ours := range []error{provider.ErrNoSpace, provider.ErrUnavailable, context.Canceled, context.DeadlineExceeded} {
			if errors.Is(err, ours) {
				return err
			}
		}
		return bad("%w", err)
	}
	// The record comes last: an image that has one is whole and unpacked.
	if _, err := im.c.client.ImageService().Create(ctx, img); err != nil && !errdefs.IsAlreadyExists(err) {
		return err
	}
	return nil
}

// readArchive stores every blob of the tar under the digest that its name claims, which the store verifies.
func (im importer) readArchive(ctx context.Context, archive *os.File) error {
	stop := context.AfterFunc(ctx, func() { _ = archive.SetReadDeadline(time.Unix(1, 0)) }) // a pipe that nobody fills; a file needs none
	defer stop()
	limited := &io.LimitedReader{R: archive, N: im.max + archiveSlack}
	fault := func(err error) error {
		if cerr := ctx.Err(); cerr != nil {
			return cerr
		}
		if limited.N <= 0 {
			return bad("the archive is larger than %d bytes, which is what this lease takes", im.max)
		}
		return bad("read archive: %w", err)
	}
	t := tar.NewReader(limited)
	for entries := 0; ; entries++ {
		h, err := t.Next()
		if errors.Is(err, io.EOF) && entries > 0 {
			_, _ = io.CopyN(io.Discard, archive, 1<<20) // tar's padding, so that who writes the pipe is not cut off
			return nil
		}
		if err != nil {
			return fault(err)
		}
		if entries == maxEntries {
			return bad("the archive holds more than %d entries", maxEntries)
		}
		hex, isBlob := strings.CutPrefix(path.Clean(h.Name), "blobs/sha256/")
		d := digest.NewDigestFromEncoded(digest.SHA256, hex)
		if !isBlob || h.Typeflag != tar.TypeReg || d.Validate() != nil {
			continue // index.json and oci-layout too: the manifest's digest is known
		}
		src := &faulty{r: t}
		if err := im.writeBlob(ctx, ocispec.Descriptor{Digest: d, Size: h.Size}, src); err != nil {
			if src.err != nil {
				return fault(src.err)
			}
			return err
		}
	}
}

// faulty remembers an error of the reader, to tell it from one of the writer.
type faulty struct {
	r   io.Reader
	err error
}

func (f *faulty) Read(p []byte) (int, error) {
	n, err := f.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		f.err = err
	}
	return n, err
}

// writeBlob stores one blob, or takes the one that is there into our lease.
func (im importer) writeBlob(ctx context.Context, d ocispec.Descriptor, r io.Reader) error {
	ref := "import-" + im.lease + "-" + d.Digest.Encoded()
	w, err := content.OpenWriter(ctx, im.store, content.WithRef(ref), content.WithDescriptor(d))
	if errdefs.IsAlreadyExists(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer w.Close()
	err = fill(w, d, r)
	if err == nil {
		err = w.Commit(ctx, d.Size, d.Digest)
	}
	if err == nil || errdefs.IsAlreadyExists(err) {
		return nil
	}
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), endIn)
	defer cancel()
	_ = im.store.Abort(clean, ref) // else it stays until the next start of containerd
	if errdefs.IsFailedPrecondition(err) {
		return bad("blob %s does not have the digest in its name", d.Digest)
	}
	return err
}

// fill writes a blob's bytes. A writer that is full from the start stands for a blob of another namespace of the same containerd, which a
// commit takes over and more bytes would spoil. Whoever knows only its digest shall not get at it: the bytes must be in the archive.
func fill(w content.Writer, d ocispec.Descriptor, r io.Reader) error {
	st, err := w.Status()
	if err != nil {
		return err
	}
	if st.Offset == 0 {
		_, err = io.Copy(w, r)
		return err
	}
	sum := d.Digest.Verifier()
	if _, err := io.Copy(sum, r); err != nil {
		return err
	}
	if !sum.Verified() {
		return fmt.Errorf("the bytes have another digest: %w", errdefs.ErrFailedPrecondition)
	}
	return nil
}

// check reads the manifest and the config and refuses what can't run here. It gives the manifest's descriptor and the layers.
func (im importer) check(ctx context.Context, manifest digest.Digest) (ocispec.Descriptor, []ocispec.Descriptor, error) {
	none := ocispec.Descriptor{}
	var m ocispec.Manifest
	size, err := im.readSmall(ctx, manifest, maxManifest, &m)
	if err != nil {
		return none, nil, err
	}
	if m.MediaType == "" {
		m.MediaType = ocispec.MediaTypeImageManifest
	}
	if m.SchemaVersion != 2 || !images.IsManifestType(m.MediaType) || !images.IsConfigType(m.Config.MediaType) {
		return none, nil, bad("%s is a %q with config %q, not an image manifest", manifest, m.MediaType, m.Config.MediaType)
	}
	var config ocispec.Image
	if _, err := im.readSmall(ctx, m.Config.Digest, maxImageConfig, &config); err != nil {
		return none, nil, err
	}
	if config.OS != runtime.GOOS || config.Architecture != runtime.GOARCH {
		return none, nil, bad("it is built for %s/%s, this machine is %s/%s", config.OS, config.Architecture, runtime.GOOS, runtime.GOARCH)
	}
	if len(m.Layers) == 0 || len(m.Layers) > maxLayers || len(m.Layers) != len(config.RootFS.DiffIDs) {
		return none, nil, bad("%d layers and %d diff ids: they must be as many, 1 to %d", len(m.Layers), len(config.RootFS.DiffIDs), maxLayers)
	}
	types := []string{
		ocispec.MediaTypeImageLayer, ocispec.MediaTypeImageLayerGzip, ocispec.MediaTypeImageLayerZstd,
		images.MediaTypeDockerSchema2Layer, images.MediaTypeDockerSchema2LayerGzip,
	}
	for _, l := range append(slices.Clone(m.Layers), m.Config) {
		if l.Digest != m.Config.Digest && !slices.Contains(types, l.MediaType) {
			return none, nil, bad("layer %s is of type %q, which can't be unpacked here", l.Digest, l.MediaType)
		}
		info, err := im.info(ctx, l.Digest)
		if err != nil {
			return none, nil, err
		}
		if info.Size != l.Size {
			return none, nil, bad("blob %s has %d bytes, the manifest says %d", l.Digest, info.Size, l.Size)
		}
	}
	return ocispec.Descriptor{MediaType: m.MediaType, Digest: manifest, Size: size}, m.Layers, nil
}

// info looks a blob up that the manifest names.
func (im importer) info(ctx context.Context, d digest.Digest) (content.Info, error) {
	if err := d.Validate(); err != nil {
		return content.Info{}, bad("digest %q: %w", d, err)
	}
	info, err := im.store.Info(ctx, d)
	if errdefs.IsNotFound(err) {
		return info, bad("the archive does not hold %s", d)
	}
	return info, err
}

// readSmall reads a JSON blob of at most limit bytes and gives its size.
func (im importer) readSmall(ctx context.Context, d digest.Digest, limit int64, v any) (int64, error) {
	info, err := im.info(ctx, d)
	if err != nil {
		return 0, err
	}
	if info.Size > limit {
		return 0, bad("%s has %d bytes, %d are allowed", d, info.Size, limit)
	}
	b, err := content.ReadBlob(ctx, im.store, ocispec.Descriptor{Digest: d, Size: info.Size})
	if err != nil {
		return 0, err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return 0, bad("%s: %w", d, err)
	}
	return info.Size, nil
}

// measure counts what the layers take on disk once unpacked, before any of it is: containerd itself knows no cap.
func (im importer) measure(ctx context.Context, layers []ocispec.Descriptor) error {
	var total, files int64
	for _, l := range layers {
		if err := im.measureLayer(ctx, l, &total, &files); err != nil {
			return err
		}
	}
	return nil
}

func (im importer) measureLayer(ctx context.Context, l ocispec.Descriptor, total, files *int64) error {
	ra, err := im.store.ReaderAt(ctx, l)
	if err != nil {
		return err
	}
	defer ra.Close()
	z, err := compression.DecompressStream(content.NewReader(ra))
	if err != nil {
		return bad("layer %s: %w", l.Digest, err)
	}
	defer z.Close()
	// Headers too are decompressed: without a cap of their own they could go on for ever.
	limited := &io.LimitedReader{R: z, N: im.max + archiveSlack}
	t := tar.NewReader(limited)
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			*files++
			// The size in the header counts, holes too: unpacking writes them out.
			*total += min(max(h.Size, 0), im.max+1) + blockSize
		}
		if *total > im.max || *files > maxFiles || limited.N <= 0 {
			return bad("unpacked it is larger than the %d bytes and %d files that this lease takes", im.max, maxFiles)
		}
		if err != nil {
			return bad("layer %s: %w", l.Digest, err)
		}
	}
}
