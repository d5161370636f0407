package provider

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p/blob"
	"github.com/gpufair/gpufair/p2p/wire"
)

// stage holds what one lease's renter pushed, in a folder and with a quota of its own, until the job has started or the lease has
// ended: no renter sees, fills or keeps another's. Safe for concurrent use.
type stage struct {
	dir   string
	quota int64 // bytes of image and inputs together

	mu    sync.Mutex
	store *blob.Store // guarded by mu; nil: nothing was pushed
	gone  bool        // guarded by mu; dropped for good
}

// stage makes the stage of a lease. Every lot has an equal share of the inbox, so that none waits for another; a share always holds a
// small image.
func (a *Agent) stageOf(rec record, id string) *stage {
	share := max(a.inboxBytes/int64(max(len(a.config().Lots), 1)), minImage)
	return &stage{dir: filepath.Join(a.inbox, id), quota: min(2*max(rec.diskBytes(), minImage), share)}
}

var errStageGone = reason.Errorf(reason.NotPreparing, "the job has started or the lease has ended: nothing can be pushed")

// open gives the store, making it if need be.
func (s *stage) open() (*blob.Store, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return nil, errStageGone
	}
	if s.store == nil {
		store, err := blob.OpenStore(s.dir, s.quota)
		if err != nil {
			return nil, err
		}
		s.store = store
	}
	return s.store, nil
}

// drop removes all that was pushed; nothing can be pushed afterwards. A stream that still pushes fails.
func (s *stage) drop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone = true
	var err error
	if s.store != nil {
		err = s.store.Close()
		s.store = nil
	}
	return errors.Join(err, os.RemoveAll(s.dir))
}

// maxImageManifest is the largest image manifest or config that we read: registries allow 4 MiB (OCI distribution spec).
const maxImageManifest = 4 << 20

// imageManifest is what we need of an OCI image manifest.
type imageManifest struct {
	MediaType string       `json:"mediaType"`
	Config    descriptor   `json:"config"`
	Layers    []descriptor `json:"layers"`
}

type descriptor struct {
	MediaType string `json:"mediaType"`
	Digest    string `json:"digest"`
	Size      int64  `json:"size"`
}

func (d descriptor) hash() (wire.Hash, error) {
	hexed, ok := strings.CutPrefix(d.Digest, "sha256:")
	if !ok {
		return wire.Hash{}, fmt.Errorf("digest %.80q: %w: want sha256", d.Digest, ErrImage)
	}
	h, err := wire.ParseHash(hexed)
	if err != nil {
		return wire.Hash{}, fmt.Errorf("digest %.80q: %w", d.Digest, ErrImage)
	}
	return h, nil
}

// readSmall reads a whole pushed blob of at most limit bytes.
func readSmall(ctx context.Context, store *blob.Store, h wire.Hash, limit int64) ([]byte, error) {
	r, err := store.Blob(ctx, h)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	if r.Size() > limit {
		return nil, fmt.Errorf("blob %s of %d bytes: %w", h.Short(), r.Size(), wire.ErrTooLarge)
	}
	return io.ReadAll(io.NewSectionReader(r, 0, r.Size()))
}

// pushedImage is a pushed image's manifest and the blobs that it names: config first, then layers.
type pushedImage struct {
	raw       []byte
	mediaType string
	parts     []imagePart
}

// imagePart is a blob that an image names.
type imagePart struct {
	hash wire.Hash
	size int64
}

// maxLayers of an image: overlayfs takes no more.
const maxLayers = 128

// readImage reads a pushed manifest. One that names more bytes than the stage may hold is refused before a layer is pushed.
func readImage(ctx context.Context, store *blob.Store, manifest wire.Hash, quota int64) (pushedImage, error) {
	var p pushedImage
	raw, err := readSmall(ctx, store, manifest, maxImageManifest)
	if errors.Is(err, wire.ErrTooLarge) {
		err = fmt.Errorf("%w: %w", ErrImage, err)
	}
	if err != nil {
		return p, err
	}
	var m imageManifest
	if err := json.Unmarshal(raw, &m); err != nil || m.Config.Digest == "" || len(m.Layers) > maxLayers {
		return p, fmt.Errorf("manifest %s: %w", manifest.Short(), ErrImage)
	}
	p.raw, p.mediaType = raw, m.MediaType
	if p.mediaType == "" {
		p.mediaType = "application/vnd.oci.image.manifest.v1+json"
	}
	var sum int64
	for _, d := range append([]descriptor{m.Config}, m.Layers...) {
		h, err := d.hash()
		if err != nil {
			return p, err
		}
		if d.Size < 0 || d.Size > quota-sum {
			return p, fmt.Errorf("image %s names over %d bytes: %w", manifest.Short(), quota, blob.ErrQuota)
		}
		sum += d.Size
		p.parts = append(p.parts, imagePart{h, d.Size})
	}
	return p, nil
}

// missing lists the blobs that must come before the job can start: image is what the runtime lacks of it, first the manifest alone, since it
// names the rest; inputs is their manifest, if they are not whole. One call at a time reads manifests.
func (s *stage) missing(ctx context.Context, spec work.Spec, imported bool) (image, inputs []wire.Hash, err error) {
	store, err := s.open()
	if err != nil {
		return nil, nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !imported {
		read, err := readImage(ctx, store, spec.Image, s.quota)
		switch {
		case errors.Is(err, blob.ErrNotFound):
			image = append(image, spec.Image)
		case err != nil:
			return nil, nil, err
		}
		for _, p := range read.parts {
			if _, ok := store.Has(p.hash); !ok {
				image = append(image, p.hash)
			}
		}
	}
	if spec.Inputs.IsZero() {
		return image, nil, nil
	}
	whole, err := hasTree(ctx, store, spec.Inputs)
	if err == nil && !whole {
		inputs = append(inputs, spec.Inputs)
	}
	return image, inputs, err
}

// hasTree reports whether a folder's manifest and all its chunks are there.
func hasTree(ctx context.Context, store *blob.Store, manifest wire.Hash) (bool, error) {
	raw, err := readSmall(ctx, store, manifest, blob.MaxManifest)
	if errors.Is(err, blob.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	m, err := blob.DecodeManifest(raw)
	if err != nil {
		return false, err
	}
	for _, e := range m.Entries {
		for _, c := range e.Chunks {
			if _, ok := store.Has(c); !ok {
				return false, nil
			}
		}
	}
	return true, nil
}

// unpackInputs makes the files of /in, which any user of the image may read, whatever modes the renter's own copy has.
func unpackInputs(ctx context.Context, store *blob.Store, manifest wire.Hash, in string, room int64) error {
	raw, err := readSmall(ctx, store, manifest, blob.MaxManifest)
	if err != nil {
		return fmt.Errorf("inputs: %w", err)
	}
	m, err := blob.DecodeManifest(raw)
	if err != nil {
		return fmt.Errorf("inputs: %w", err)
	}
	if m.Bytes() > room { // one chunk may be named often
		return fmt.Errorf("inputs of %d bytes, the lease has room for %d: %w", m.Bytes(), room, blob.ErrQuota)
	}
	for i, e := range m.Entries {
		switch {
		case e.Type == blob.Dir, e.Type == blob.File && e.Mode&0o100 != 0:
			m.Entries[i].Mode |= 0o555
		case e.Type == blob.File:
			m.Entries[i].Mode |= 0o444
		}
	}
	parent, err := os.OpenRoot(filepath.Dir(in))
	if err != nil {
		return fmt.Errorf("inputs: %w", err)
	}
	defer parent.Close()
	// Unpack makes the folder whole or not at all; it is empty, or left of a start that a crash cut short
	if err := parent.RemoveAll(filepath.Base(in)); err != nil {
		return fmt.Errorf("inputs: %w", err)
	}
	if err := blob.Unpack(ctx, store, m, parent, filepath.Base(in), blob.UnpackOptions{}); err != nil {
		return fmt.Errorf("inputs: %w", err)
	}
	if err := parent.Chmod(filepath.Base(in), 0o755); err != nil {
		return fmt.Errorf("inputs: %w", err)
	}
	return nil
}
