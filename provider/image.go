package provider

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/blob"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Imported images stay for the next lease that wants them, by a simple rule: one that no open lease names is removed when it was not used
// for a day, and the least recently used ones as soon as all of them together are over 32 GiB.
const (
	imageFor   = 24 * time.Hour
	imageBytes = 32 << 30 // of compressed layers: what the runtime tells
)

// minImage is what an unpacked image may always have: less than the smallest distribution is no image.
const minImage = 256 << 20

func digest(h wire.Hash) string { return "sha256:" + h.String() }

// imported reports whether the runtime has an image.
func (a *Agent) imported(ctx context.Context, manifest wire.Hash) (bool, error) {
	_, err := a.runtime.Image(ctx, digest(manifest))
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// importImage hands the pushed image to the runtime, through a pipe, unless it has it, and notes the use.
func (a *Agent) importImage(ctx context.Context, s *stage, manifest wire.Hash, limit int64) (ImageInfo, error) {
	err := a.books.Update(ctx, func(tx *books.Tx) error {
		return kv.Save(tx.Of(kv.Provider), deviceKey(keyImage, manifest), time.Now().UnixMilli())
	})
	if err != nil {
		return ImageInfo{}, fmt.Errorf("import image %s: %w", manifest.Short(), err)
	}
	image, err := a.runtime.Image(ctx, digest(manifest))
	if err == nil || !errors.Is(err, ErrNotFound) {
		return image, err
	}
	store, err := s.open()
	if err != nil {
		return ImageInfo{}, err
	}
	pushed, err := readImage(ctx, store, manifest, s.quota)
	if err != nil {
		return ImageInfo{}, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return ImageInfo{}, fmt.Errorf("import image %s: %w", manifest.Short(), err)
	}
	defer r.Close()
	wrote := make(chan error, 1)
	go func() {
		err := pushed.archive(ctx, w, store, manifest)
		wrote <- errors.Join(err, w.Close())
	}()
	image, err = a.runtime.Import(ctx, ImportRequest{Digest: digest(manifest), MaxBytes: max(limit, minImage)}, r)
	r.Close() // a writer that still writes gets EPIPE
	if werr := <-wrote; err == nil && werr != nil {
		err = fmt.Errorf("import image %s: %w", manifest.Short(), werr)
	}
	return image, err
}

// archive writes a pushed image as the tar of an OCI layout, for Runtime.Import.
func (p pushedImage) archive(ctx context.Context, w io.Writer, store *blob.Store, manifest wire.Hash) error {
	index, err := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json",
		"manifests": []descriptor{{MediaType: p.mediaType, Digest: digest(manifest), Size: int64(len(p.raw))}},
	})
	if err != nil {
		return fmt.Errorf("index of image %s: %w", manifest.Short(), err)
	}
	tw := tar.NewWriter(w)
	layout := []byte(`{"imageLayoutVersion":"1.0.0"}`)
	if err := writeTar(tw, "oci-layout", int64(len(layout)), bytes.NewReader(layout)); err != nil {
		return err
	}
	if err := writeTar(tw, "index.json", int64(len(index)), bytes.NewReader(index)); err != nil {
		return err
	}
	written := map[wire.Hash]bool{}
	hashes := []wire.Hash{manifest}
	for _, part := range p.parts {
		hashes = append(hashes, part.hash)
	}
	for _, h := range hashes {
		if written[h] {
			continue // images may name one layer twice
		}
		written[h] = true
		if err := writeBlob(ctx, tw, store, h); err != nil {
			return err
		}
	}
	return tw.Close()
}

func writeBlob(ctx context.Context, tw *tar.Writer, store *blob.Store, h wire.Hash) error {
	r, err := store.Blob(ctx, h)
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

// wantImage notes that a lease wants an image, so that the sweeper leaves it.
func (a *Agent) wantImage(id market.LeaseID, image wire.Hash) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.removing == digest(image) {
		return p2p.Errorf(p2p.KindBusy, "the image is being removed: ask again")
	}
	a.wanted[id] = digest(image)
	return nil
}

// mayRemove marks an image as being removed, unless a lease wants it. An empty digest takes the mark off.
func (a *Agent) mayRemove(image string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, d := range a.wanted {
		if d == image {
			return false
		}
	}
	a.removing = image
	return true
}

// sweepImages removes images by the rule above.
func (a *Agent) sweepImages(ctx context.Context, now time.Time) error {
	images, err := a.runtime.Images(ctx)
	if err != nil || len(images) == 0 {
		return err
	}
	used, err := a.imageUses(ctx, images, now)
	if err != nil {
		return err
	}
	slices.SortFunc(images, func(x, y ImageInfo) int { return cmp.Compare(used[y.Digest], used[x.Digest]) }) // the newest first
	var sum int64
	for _, image := range images {
		sum += image.Size
		old := now.Sub(time.UnixMilli(used[image.Digest])) > imageFor
		if !old && sum <= imageBytes || !a.mayRemove(image.Digest) {
			continue
		}
		err := a.runtime.RemoveImage(ctx, image.Digest)
		a.mayRemove("")
		if err != nil {
			return err
		}
		sum -= image.Size
		a.log.Info("removed an image that no lease uses", "image", image.Digest, "bytes", image.Size)
	}
	return nil
}

// imageUses gives when each image was used last; one without a note counts as used now. Notes of images that are gone are dropped.
func (a *Agent) imageUses(ctx context.Context, images []ImageInfo, now time.Time) (map[string]int64, error) {
	used := map[string]int64{}
	err := a.books.Update(ctx, func(tx *books.Tx) error {
		own := tx.Of(kv.Provider)
		var stale [][]byte
		for pair, err := range own.Iterate([]byte(keyImage), nil) {
			if err != nil {
				return err
			}
			at, _, err := kv.Load[int64](own, pair.Key)
			if err != nil {
				return err
			}
			d := "sha256:" + fmt.Sprintf("%x", strings.TrimPrefix(string(pair.Key), keyImage))
			if slices.ContainsFunc(images, func(i ImageInfo) bool { return i.Digest == d }) {
				used[d] = at
			} else if now.Sub(time.UnixMilli(at)) > imageFor { // a young note may be of an import that is under way
				stale = append(stale, pair.Key)
			}
		}
		for _, k := range stale {
			if err := own.Delete(k); err != nil {
				return err
			}
		}
		for _, i := range images {
			if _, ok := used[i.Digest]; ok {
				continue
			}
			used[i.Digest] = now.UnixMilli()
			h, err := wire.ParseHash(strings.TrimPrefix(i.Digest, "sha256:"))
			if err != nil {
				return err
			}
			if err := kv.Save(own, deviceKey(keyImage, h), now.UnixMilli()); err != nil {
				return err
			}
		}
		return nil
	})
	return used, err
}

// unwantImage forgets what a lease wanted.
func (a *Agent) unwantImage(id market.LeaseID) {
	a.mu.Lock()
	delete(a.wanted, id)
	a.mu.Unlock()
}

// Push is whether a renter may push a blob now, for [blob.Authorizer]: only what its lease's job lacks, into its lease's own stage.
func (a *Agent) Push(ctx context.Context, r blob.Request) (*blob.Store, error) {
	k, err := a.keeperFor(market.LeaseID(r.Lease), r.Peer)
	if err != nil {
		return nil, toPeer(err)
	}
	lack, _, err := k.lack(ctx)
	if err != nil {
		return nil, toPeer(err)
	}
	rec := k.look().rec
	if rec.State != work.Preparing || rec.Spec == nil {
		return nil, p2p.Errorf(p2p.KindConflict, "the lease is %s: nothing is to be pushed", rec.State)
	}
	room := max(rec.diskBytes(), minImage)
	switch {
	case !slices.Contains(lack, r.Hash) || r.Tree != (r.Hash == rec.Spec.Inputs):
		return nil, blob.ErrForbidden
	case r.Total > room:
		return nil, fmt.Errorf("%d bytes, the lease has room for %d: %w", r.Total, room, blob.ErrQuota)
	}
	store, err := k.stage.open()
	return store, toPeer(err)
}

// Fetch is where a renter's results are, for [blob.Authorizer].
func (a *Agent) Fetch(ctx context.Context, r blob.Request) (blob.Source, error) {
	k, err := a.keeperFor(market.LeaseID(r.Lease), r.Peer)
	if err != nil {
		return nil, toPeer(err)
	}
	rec := k.look().rec
	if rec.Tidy && rec.Outputs.IsZero() { // also after a restart: what was not packed at the end is not packed now
		return nil, toPeer(fmt.Errorf("results %s: the lease has none: %w", r.Hash.Short(), blob.ErrNotFound))
	}
	source, err := k.results.source(ctx, rec.Folders.Out, r.Hash)
	if err != nil {
		return nil, toPeer(err)
	}
	return source, nil
}
