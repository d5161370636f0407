package provider

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/blob"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// maxImageManifest is the largest image manifest or config that we read: registries allow 4 MiB (OCI distribution spec).
const maxImageManifest = 4 << 20

// imageManifest is what we need of an OCI image manifest.
type imageManifest struct {
	Config descriptor   `json:"config"`
	Layers []descriptor `json:"layers"`
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
func (a *Agent) readSmall(ctx context.Context, h wire.Hash, limit int64) ([]byte, error) {
	r, err := a.blobs.Blob(ctx, h)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	if r.Size() > limit {
		return nil, fmt.Errorf("blob %s of %d bytes: %w", h.Short(), r.Size(), wire.ErrTooLarge)
	}
	return io.ReadAll(io.NewSectionReader(r, 0, r.Size()))
}

// imageParts are the blobs that a pushed manifest names: config first, then layers.
func (a *Agent) imageParts(ctx context.Context, manifest wire.Hash) ([]wire.Hash, error) {
	raw, err := a.readSmall(ctx, manifest, maxImageManifest)
	if err != nil {
		return nil, err
	}
	var m imageManifest
	if err := json.Unmarshal(raw, &m); err != nil || m.Config.Digest == "" || len(m.Layers) > maxLayers {
		return nil, fmt.Errorf("manifest %s: %w", manifest.Short(), ErrImage)
	}
	var parts []wire.Hash
	for _, d := range append([]descriptor{m.Config}, m.Layers...) {
		h, err := d.hash()
		if err != nil {
			return nil, err
		}
		parts = append(parts, h)
	}
	return parts, nil
}

// maxLayers of an image: overlayfs takes no more.
const maxLayers = 128

// lackOfImage lists what is still to be pushed of an image: first the manifest alone, since it names the rest.
func (a *Agent) lackOfImage(ctx context.Context, manifest wire.Hash) ([]wire.Hash, error) {
	parts, err := a.imageParts(ctx, manifest)
	if errors.Is(err, blob.ErrNotFound) {
		return []wire.Hash{manifest}, nil
	}
	if err != nil {
		return nil, err
	}
	var lack []wire.Hash
	for _, h := range parts {
		if _, ok := a.blobs.Has(h); !ok {
			lack = append(lack, h)
		}
	}
	return lack, nil
}

// hasTree reports whether a folder's manifest and all its chunks are there.
func (a *Agent) hasTree(ctx context.Context, manifest wire.Hash) (bool, error) {
	m, err := a.manifest(ctx, manifest)
	if errors.Is(err, blob.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	for _, e := range m.Entries {
		for _, c := range e.Chunks {
			if _, ok := a.blobs.Has(c); !ok {
				return false, nil
			}
		}
	}
	return true, nil
}

func (a *Agent) manifest(ctx context.Context, h wire.Hash) (blob.Manifest, error) {
	raw, err := a.readSmall(ctx, h, blob.MaxManifest)
	if err != nil {
		return blob.Manifest{}, err
	}
	return blob.DecodeManifest(raw)
}

// writeArchive writes a pushed image as the tar of an OCI layout, for Runtime.Import.
func (a *Agent) writeArchive(ctx context.Context, w io.Writer, manifest wire.Hash) error {
	raw, err := a.readSmall(ctx, manifest, maxImageManifest)
	if err != nil {
		return err
	}
	var kind struct {
		MediaType string `json:"mediaType"`
	}
	if err := json.Unmarshal(raw, &kind); err != nil {
		return fmt.Errorf("manifest %s: %w", manifest.Short(), ErrImage)
	}
	if kind.MediaType == "" {
		kind.MediaType = "application/vnd.oci.image.manifest.v1+json"
	}
	index, err := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json",
		"manifests": []descriptor{{MediaType: kind.MediaType, Digest: digest(manifest), Size: int64(len(raw))}},
	})
	if err != nil {
		return fmt.Errorf("index of image %s: %w", manifest.Short(), err)
	}
	parts, err := a.imageParts(ctx, manifest)
	if err != nil {
		return err
	}
	tw := tar.NewWriter(w)
	small := []struct {
		name string
		data []byte
	}{{"oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)}, {"index.json", index}}
	for _, f := range small {
		if err := writeTar(tw, f.name, int64(len(f.data)), strings.NewReader(string(f.data))); err != nil {
			return err
		}
	}
	written := map[wire.Hash]bool{}
	for _, h := range append([]wire.Hash{manifest}, parts...) {
		if written[h] {
			continue // images may name one layer twice
		}
		written[h] = true
		if err := a.writeBlob(ctx, tw, h); err != nil {
			return err
		}
	}
	return tw.Close()
}

func (a *Agent) writeBlob(ctx context.Context, tw *tar.Writer, h wire.Hash) error {
	r, err := a.blobs.Blob(ctx, h)
	if err != nil {
		return err
	}
	defer r.Close()
	return writeTar(tw, "blobs/sha256/"+h.String(), r.Size(), io.NewSectionReader(r, 0, r.Size()))
}

func writeTar(tw *tar.Writer, name string, size int64, r io.Reader) error {
	if err := tw.WriteHeader(&tar.Header{Name: name, Mode: 0o444, Size: size, Typeflag: tar.TypeReg}); err != nil {
		return fmt.Errorf("archive %s: %w", name, err)
	}
	if _, err := io.Copy(tw, r); err != nil {
		return fmt.Errorf("archive %s: %w", name, err)
	}
	return nil
}

// dropImageBlobs frees the pushed copy of an image that the runtime has now.
func (a *Agent) dropImageBlobs(ctx context.Context, manifest wire.Hash) {
	parts, err := a.imageParts(ctx, manifest)
	if err != nil {
		a.log.Warn("pushed image not dropped", "image", manifest.Short(), "err", err)
		return
	}
	a.dropBlobs(append(parts, manifest))
}

func (a *Agent) dropBlobs(hashes []wire.Hash) {
	for _, h := range hashes {
		if err := a.blobs.Remove(h); err != nil {
			a.log.Warn("pushed blob not dropped", "blob", h.Short(), "err", err)
		}
	}
}

// unpackInputs makes the files of /in and drops the pushed copy.
func (a *Agent) unpackInputs(ctx context.Context, manifest wire.Hash, in string) error {
	m, err := a.manifest(ctx, manifest)
	if err != nil {
		return fmt.Errorf("inputs: %w", err)
	}
	if err := os.Remove(in); err != nil && !errors.Is(err, os.ErrNotExist) { // it is empty, and Unpack makes it whole or not at all
		return fmt.Errorf("inputs: %w", err)
	}
	parent, err := os.OpenRoot(filepath.Dir(in))
	if err != nil {
		return fmt.Errorf("inputs: %w", err)
	}
	defer parent.Close()
	if err := blob.Unpack(ctx, a.blobs, m, parent, filepath.Base(in), blob.UnpackOptions{}); err != nil {
		return fmt.Errorf("inputs: %w", err)
	}
	drop := []wire.Hash{manifest}
	for _, e := range m.Entries {
		drop = append(drop, e.Chunks...)
	}
	a.dropBlobs(drop)
	return nil
}

// Push is whether a renter may push a blob now, for [blob.Authorizer]: only what its lease's job lacks.
func (a *Agent) Push(ctx context.Context, r blob.Request) (*blob.Store, error) {
	k, err := a.keeperFor(market.LeaseID(r.Lease), r.Peer)
	if err != nil {
		return nil, toPeer(err)
	}
	var lack []wire.Hash
	var inputs wire.Hash
	var room int64
	err = k.do(ctx, func() error {
		if k.rec.State != work.Preparing || k.rec.Spec == nil || k.busy != "" {
			return p2p.Errorf(p2p.KindConflict, "the lease is %s: nothing is to be pushed", k.rec.State)
		}
		room, inputs = max(a.diskBytes(k.rec), minImage), k.rec.Spec.Inputs
		lack, err = k.missing(ctx)
		return err
	})
	if err != nil {
		return nil, toPeer(err)
	}
	switch {
	case !slices.Contains(lack, r.Hash) || r.Tree != (r.Hash == inputs):
		return nil, blob.ErrForbidden
	case r.Total > room:
		return nil, fmt.Errorf("%d bytes, the lease has room for %d: %w", r.Total, room, blob.ErrQuota)
	}
	return a.blobs, nil
}

// Fetch is where a renter's results are, for [blob.Authorizer].
func (a *Agent) Fetch(ctx context.Context, r blob.Request) (blob.Source, error) {
	k, err := a.keeperFor(market.LeaseID(r.Lease), r.Peer)
	if err != nil {
		return nil, toPeer(err)
	}
	var folders Folders
	if err := k.do(ctx, func() error { folders = k.rec.Folders; return nil }); err != nil {
		return nil, toPeer(err)
	}
	source, err := a.outputs.source(ctx, k.id, folders.Out, r.Hash)
	if err != nil {
		return nil, toPeer(err)
	}
	return source, nil
}

// outputs are the packed results of leases. Safe for concurrent use.
type outputs struct {
	mu     sync.Mutex
	packed map[market.LeaseID]*packing // guarded by mu
}

// packing is one lease's newest pack; mu is held while it is made anew.
type packing struct {
	mu   sync.Mutex
	pack *blob.Packed // guarded by mu
}

func newOutputs() *outputs { return &outputs{packed: map[market.LeaseID]*packing{}} }

func (o *outputs) of(lease market.LeaseID) *packing {
	o.mu.Lock()
	defer o.mu.Unlock()
	p := o.packed[lease]
	if p == nil {
		p = &packing{}
		o.packed[lease] = p
	}
	return p
}

// pack packs what /out holds now and names it; zero if there is nothing.
func (o *outputs) pack(ctx context.Context, lease market.LeaseID, out string) (wire.Hash, error) {
	if out == "" {
		return wire.Hash{}, nil // the job never started
	}
	p := o.of(lease)
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.renew(ctx, out)
}

func (p *packing) renew(ctx context.Context, out string) (wire.Hash, error) {
	skip := func(string, error) {} // a device node or a file that is being written: the next pack may have it
	pack, err := blob.Pack(ctx, out, blob.PackOptions{Skip: skip})
	if errors.Is(err, os.ErrNotExist) {
		return wire.Hash{}, nil // wiped
	}
	if err != nil {
		return wire.Hash{}, fmt.Errorf("pack results: %w", err)
	}
	if p.pack != nil {
		p.pack.Close()
	}
	p.pack = pack
	if len(pack.Manifest.Entries) == 0 {
		return wire.Hash{}, nil
	}
	return pack.ID, nil
}

// source gives the packed results under the name that the renter was told; after a restart they are packed again.
func (o *outputs) source(ctx context.Context, lease market.LeaseID, out string, want wire.Hash) (blob.Source, error) {
	p := o.of(lease)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pack == nil && out != "" {
		if _, err := p.renew(ctx, out); err != nil {
			return nil, err
		}
	}
	if p.pack == nil || p.pack.ID != want {
		return nil, fmt.Errorf("results %s: %w: ask for the lease's status again", want.Short(), blob.ErrNotFound)
	}
	return p.pack, nil
}

// drop lets go of a lease's results.
func (o *outputs) drop(lease market.LeaseID) {
	o.mu.Lock()
	p := o.packed[lease]
	delete(o.packed, lease)
	o.mu.Unlock()
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pack != nil {
		p.pack.Close()
		p.pack = nil
	}
}

// errNotYours says that a lease is another account's or device's.
var errNotYours = p2p.Errorf(p2p.KindForbidden, "the lease is not yours")

// keeperFor finds the keeper of a lease for the renter's device that bought it.
func (a *Agent) keeperFor(id market.LeaseID, peer identity.PeerID) (*keeper, error) {
	a.mu.Lock()
	k := a.keepers[id]
	a.mu.Unlock()
	if k == nil {
		return nil, p2p.Errorf(p2p.KindNotFound, "no lease %s that has not ended", id.Short())
	}
	if k.accept.Device != peer {
		return nil, errNotYours
	}
	return k, nil
}
