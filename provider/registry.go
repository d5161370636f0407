package provider

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p/blob"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Registries are what images are pulled from at a stranger's bidding, over the owner's network: nothing is reached that a job may not reach.
type Registries interface {
	// Open makes ready to pull from a repository ("registry.example.com/debian"); deny are networks that the owner denies besides. It connects
	// to nothing.
	Open(name string, deny []string) (Repository, error)
}

// Repository is one repository of a registry, for one pull. One goroutine uses it.
type Repository interface {
	// Fetch gives a part from its offset on; close it. It is [ErrDenied] if the registry leads where no job may go, and [ErrRegistry] if it does
	// not give the part, or another one than was asked for; what else goes wrong may go right at the next try. Nobody has checked the digest.
	Fetch(ctx context.Context, p Part) (io.ReadCloser, error)
}

// Part is a manifest or a blob of an image.
type Part struct {
	Digest   string // "sha256:…"
	Manifest bool
	Size     int64 // bytes; of a manifest the most that it may have
	Offset   int64 // of the first byte that is wanted
}

const (
	pullTries = 5                // in a row that brought nothing
	pullWait  = time.Second      // after the first of them; each other waits twice as long
	pullMost  = 16 * time.Second // at most
)

// pulls reports whether the owner lets images be pulled from a repository's registry.
func (c Config) pulls(source string) bool {
	registry, _, _ := strings.Cut(source, "/")
	return slices.Contains(c.Registries, registry)
}

// mayPull refuses a job whose image is to come from where the owner does not want to be seen.
func (c Config) mayPull(s work.Spec) error {
	if s.Source == "" || c.pulls(s.Source) {
		return nil
	}
	if len(c.Registries) == 0 {
		return reason.Errorf(reason.RegistryRefused, "it pulls from none")
	}
	return reason.Errorf(reason.RegistryRefused, "it pulls from %.160s", strings.Join(c.Registries, ", "))
}

// pull begins to fetch the image of a job from its registry, unless that is under way: it takes as long as the image is large, so it runs
// beside the keeper.
func (k *keeper) pull(ctx context.Context) error {
	return k.do(ctx, func() error {
		if k.rec.State != work.Preparing || k.rec.Spec == nil || k.busy != "" || k.ending != nil || k.pulling {
			return nil
		}
		spec, run := *k.rec.Spec, k.a.ctx
		within, halt := context.WithCancel(run)
		k.pulling, k.halt, k.progress = true, halt, "pulling the image"
		k.beside(func() {
			err := k.a.pull(within, k, spec)
			halt()
			k.post(func() { k.pulled(run, spec, err) })
		})
		return nil
	})
}

// pulled is the keeper's turn after a pull: the renter's next ask finds the image, or the lease ends.
func (k *keeper) pulled(ctx context.Context, spec work.Spec, err error) {
	k.pulling, k.halt = false, nil
	if k.busy == "" {
		k.progress = ""
	}
	if err == nil || ctx.Err() != nil || k.rec.State != work.Preparing || k.ending != nil {
		return
	}
	if now := k.rec.Spec; now.Image != spec.Image || now.Source != spec.Source {
		return // it is no more wanted
	}
	k.log.Warn("image not pulled", "source", spec.Source, "image", digest(spec.Image), "err", err)
	k.finish(ctx, pullReason(err))
}

// pullReason is what the renter is told. What an address turned out to be is the owner's alone to know: it may be of the owner's network.
func pullReason(err error) reason.Reason {
	switch {
	case errors.Is(err, ErrDenied):
		return reason.New(reason.PullFailed, "the registry leads to where nothing may be fetched from")
	case errors.Is(err, ErrRegistry):
		return reason.New(reason.PullFailed, "%s", after(err, ErrRegistry))
	case errors.Is(err, ErrImage), errors.Is(err, ErrNoSpace), errors.Is(err, blob.ErrQuota):
		return startReason(err)
	}
	return reason.New(reason.PullFailed, "the registry can't be reached, or breaks off again and again")
}

// pull brings the image of a job into its lease's stage: manifest first, which names the rest and is held to the stage's quota.
func (a *Agent) pull(ctx context.Context, k *keeper, spec work.Spec) error {
	store, err := k.stage.open()
	if err != nil {
		return err
	}
	repo, err := a.registries.Open(spec.Source, a.config().Egress.Deny)
	if err != nil {
		return err
	}
	if _, ok := store.Has(spec.Image); !ok {
		if err := persevere(ctx, func() (bool, error) { return false, pullManifest(ctx, repo, store, spec.Image) }); err != nil {
			return err
		}
	}
	image, err := readImage(ctx, store, spec.Image, k.stage.quota)
	if err != nil {
		return err
	}
	var total, before int64
	for _, p := range image.parts {
		total += p.size
	}
	for _, p := range image.parts {
		told := time.Time{}
		tell := func(offset int64) {
			if now := time.Now(); now.Sub(told) >= time.Second {
				told = now
				said := fmt.Sprintf("pulling the image: %d of %d MiB", (before+offset)>>20, total>>20)
				k.post(func() {
					if k.pulling {
						k.progress = said
					}
				})
			}
		}
		if _, ok := store.Has(p.hash); !ok {
			if err := persevere(ctx, func() (bool, error) { return pullBlob(ctx, repo, store, p, tell) }); err != nil {
				return err
			}
		}
		before += p.size
	}
	return nil
}

// persevere calls f until it succeeds, says that no try will, or brings nothing for [pullTries] times in a row.
func persevere(ctx context.Context, f func() (more bool, err error)) error {
	wait := pullWait
	for failed := 0; ; {
		more, err := f()
		if more {
			failed, wait = 0, pullWait
		}
		switch failed++; {
		case err == nil, ctx.Err() != nil, failed >= pullTries:
			return err
		case errors.Is(err, ErrDenied), errors.Is(err, ErrRegistry), errors.Is(err, ErrRequest), errors.Is(err, blob.ErrQuota), isReason(err):
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
		wait = min(2*wait, pullMost)
	}
}

func pullManifest(ctx context.Context, repo Repository, store *blob.Store, h wire.Hash) error {
	r, err := repo.Fetch(ctx, Part{Digest: digest(h), Manifest: true, Size: maxImageManifest})
	if err != nil {
		return err
	}
	defer r.Close()
	raw, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	if wire.Sum("", raw) != h {
		return fmt.Errorf("manifest %s: %w: it gives another one", h.Short(), ErrRegistry)
	}
	_, err = store.Put(ctx, raw)
	return err
}

// pullBlob goes on where the try before stopped, and reports whether it brought anything.
func pullBlob(ctx context.Context, repo Repository, store *blob.Store, p imagePart, tell func(offset int64)) (more bool, err error) {
	w, err := store.Writer(p.hash, p.size)
	if err != nil {
		return false, err
	}
	defer w.Close()
	began := w.Offset()
	if began < p.size {
		r, err := repo.Fetch(ctx, Part{Digest: digest(p.hash), Size: p.size, Offset: began})
		if err != nil {
			return false, err
		}
		defer r.Close()
		if _, err := io.Copy(telling{w, tell}, r); err != nil {
			return w.Offset() > began, err
		}
	}
	more = w.Offset() > began
	err = w.Commit()
	if errors.Is(err, blob.ErrHashMismatch) {
		err = fmt.Errorf("blob %s: %w: it gives another one", p.hash.Short(), ErrRegistry)
	}
	return more, err
}

// telling tells how far a blob has come.
type telling struct {
	w    *blob.Writer
	tell func(offset int64)
}

func (t telling) Write(p []byte) (int, error) {
	n, err := t.w.Write(p)
	t.tell(t.w.Offset())
	return n, err
}
