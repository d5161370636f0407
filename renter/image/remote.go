package image

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/gpufair/gpufair/p2p/blob"
	"github.com/gpufair/gpufair/p2p/wire"
	"github.com/gpufair/gpufair/renter"
)

// resolveIn bounds asking a registry for manifests and a config.
const resolveIn = time.Minute

// Reference is the image that arg names in a registry, with [renter.FromRegistry] before it; ok is false for what looks like a path.
func Reference(arg string) (ref string, ok bool) {
	bare, named := strings.CutPrefix(arg, renter.FromRegistry)
	if !named && looksLikePath(arg) {
		return "", false
	}
	r, err := name.ParseReference(bare)
	if err != nil {
		return "", false
	}
	at := ":"
	if _, digest := r.(name.Digest); digest {
		at = "@"
	}
	return renter.FromRegistry + repositoryOf(r.Context()) + at + r.Identifier(), true
}

// repositoryOf is a repository as specs have it: Docker Hub by the name that people know.
func repositoryOf(r name.Repository) string {
	return strings.TrimPrefix(r.RegistryStr(), "index.") + "/" + r.RepositoryStr()
}

// openRemote reads what a registry has of an image, but for its layers: those are the provider's to pull. It asks as anybody, so that what it
// finds the provider finds, too.
func openRemote(ctx context.Context, bare string, next http.RoundTripper) (bundle, string, error) {
	if next == nil {
		next = http.DefaultTransport
	}
	ref, err := name.ParseReference(bare)
	if err != nil {
		return nil, "", notImage("%w", err)
	}
	r := &hosted{repo: ref.Context(), options: []remote.Option{remote.WithContext(ctx), remote.WithTransport(next)}, sizes: map[string]int64{}, configs: map[string]bool{}}
	top, err := remote.Get(ref, r.options...)
	if err != nil {
		return nil, "", r.explained(err)
	}
	r.top = top.Manifest
	if r.index, err = json.Marshal(v1.IndexManifest{SchemaVersion: 2, Manifests: []v1.Descriptor{top.Descriptor}}); err != nil {
		return nil, "", err
	}
	return r, repositoryOf(ref.Context()), nil
}

// hosted is a repository as the layout that [opened] reads.
type hosted struct {
	repo    name.Repository
	options []remote.Option
	top     []byte           // the manifest or index that the name stands for
	index   []byte           // a layout's, which lists that
	sizes   map[string]int64 // of layers and configs, by name in the layout
	configs map[string]bool  // which of them are configs
}

func (r *hosted) open(file string) (blob.Reader, error) {
	hexed, isBlob := strings.CutPrefix(file, "blobs/sha256/")
	size, noted := r.sizes[file]
	switch {
	case file == "index.json":
		return held{bytes.NewReader(r.index)}, nil
	case !isBlob:
		return nil, os.ErrNotExist
	case noted && !r.configs[file]:
		return layer(size), nil
	case noted:
		return r.blob(hexed, size)
	}
	raw := r.top
	if wire.Sum("", raw).String() != hexed {
		got, err := remote.Get(r.repo.Digest("sha256:"+hexed), r.options...)
		if err != nil {
			return nil, r.explained(err)
		}
		raw = got.Manifest
	}
	r.note(raw)
	return held{bytes.NewReader(raw)}, nil
}

// blob reads a config.
func (r *hosted) blob(hexed string, size int64) (blob.Reader, error) {
	if size > maxConfig {
		return layer(size), nil // its reader refuses the size
	}
	l, err := remote.Layer(r.repo.Digest("sha256:"+hexed), r.options...)
	if err != nil {
		return nil, r.explained(err)
	}
	rc, err := l.Compressed()
	if err != nil {
		return nil, r.explained(err)
	}
	defer rc.Close()
	data, err := io.ReadAll(io.LimitReader(rc, maxConfig+1))
	if err != nil {
		return nil, r.explained(err)
	}
	return held{bytes.NewReader(data)}, nil
}

// layer is a layer by its size: nobody reads it here.
type layer int64

func (l layer) Size() int64                       { return int64(l) }
func (l layer) ReadAt([]byte, int64) (int, error) { return 0, errLayer }
func (l layer) Close() error                      { return nil }

var errLayer = errors.New("layers of a registry's image are pulled by the provider")

func (r *hosted) explain() error { return notImage("the registry has no index of it") } // [hosted.open] always has one

func (r *hosted) Close() error { return nil }

// note remembers what a manifest calls blobs.
func (r *hosted) note(manifest []byte) {
	m, err := v1.ParseManifest(bytes.NewReader(manifest))
	if err != nil {
		return // an index, or what nobody can run: the reader of it says so
	}
	for i, d := range append(m.Layers, m.Config) {
		if h, err := hashOf(d.Digest); err == nil {
			r.sizes[blobName(h)], r.configs[blobName(h)] = d.Size, i == len(m.Layers)
		}
	}
}

// explained is an error with what to do about it.
func (r *hosted) explained(err error) error {
	var answer *transport.Error
	if errors.As(err, &answer) && answer.StatusCode >= 400 && answer.StatusCode < 500 && answer.StatusCode != http.StatusTooManyRequests {
		return fmt.Errorf("%w: the registry %s gives no such image to who has no account there (%d): check the name; a private image is saved first: skopeo copy %s%s:TAG oci-archive:FILE",
			os.ErrNotExist, r.repo.RegistryStr(), answer.StatusCode, renter.FromRegistry, repositoryOf(r.repo))
	}
	return err
}
