package blob

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Client pushes to and fetches from one peer under one lease. Each method is one attempt over one stream; after a broken line call
// it again, and it goes on from where it was. An error that is a *p2p.Error is the peer's refusal, which another attempt meets too
// unless its kind is p2p.KindBusy. Safe for concurrent use.
type Client struct {
	Network  p2p.Network
	Protocol p2p.Protocol
	Peer     identity.PeerID
	Lease    wire.Hash
}

// Push sends the blob h of src, from the offset that the peer has, and returns when the peer has checked and stored it.
func (c Client) Push(ctx context.Context, src Source, h wire.Hash, progress Progress) error {
	return c.push(ctx, src, h, false, progress)
}

// PushTree sends the folder whose manifest is the blob h of src: the manifest, then the chunks that the peer lacks.
func (c Client) PushTree(ctx context.Context, src Source, h wire.Hash, progress Progress) error {
	return c.push(ctx, src, h, true, progress)
}

func (c Client) push(ctx context.Context, src Source, h wire.Hash, tree bool, progress Progress) error {
	o, err := openOutgoing(ctx, src, h, tree)
	if err != nil {
		return fmt.Errorf("push %s: %w", h.Short(), err)
	}
	defer o.root.Close()
	ask := hello{Lease: c.Lease, Hash: h, Push: true, Tree: tree, Size: o.root.Size(), Total: o.claim}
	err = c.talk(ctx, ask, progress, func(v *conv, _ welcome) error { return v.send(ctx, o) })
	if err != nil {
		return fmt.Errorf("push %s: %w", h.Short(), err)
	}
	return nil
}

// Fetch gets the blob h into dst, from the offset that dst has. With dst holding it already it asks nobody.
func (c Client) Fetch(ctx context.Context, dst *Store, h wire.Hash, progress Progress) error {
	if size, ok := dst.Has(h); ok {
		if progress != nil {
			progress(size, size)
		}
		return nil
	}
	return c.fetch(ctx, dst, h, false, progress)
}

// FetchTree gets the folder whose manifest is h into dst: the manifest, then the chunks that dst lacks. [Unpack] makes files of it.
func (c Client) FetchTree(ctx context.Context, dst *Store, h wire.Hash, progress Progress) (Manifest, error) {
	if err := c.fetch(ctx, dst, h, true, progress); err != nil {
		return Manifest{}, err
	}
	return LoadManifest(ctx, dst, h)
}

func (c Client) fetch(ctx context.Context, dst *Store, h wire.Hash, tree bool, progress Progress) error {
	ask := hello{Lease: c.Lease, Hash: h, Tree: tree}
	err := c.talk(ctx, ask, progress, func(v *conv, w welcome) error {
		return v.receive(ctx, dst, incoming{hash: h, size: w.Size, tree: tree, claim: -1})
	})
	if err != nil {
		return fmt.Errorf("fetch %s: %w", h.Short(), err)
	}
	return nil
}

// talk opens a stream, says hello and, after a welcome, lets f go on.
func (c Client) talk(ctx context.Context, ask hello, progress Progress, f func(*conv, welcome) error) error {
	s, err := c.Network.Open(ctx, c.Peer, c.Protocol)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { s.Reset(p2p.KindTimeout) })
	defer stop()
	v := newConv(s, progress)
	err = s.SetDeadline(time.Now().Add(frameTime))
	if err == nil {
		err = p2p.Send(s, ask, maxControl)
	}
	var w welcome
	if err == nil {
		err = v.hear(&w)
	}
	if err == nil {
		err = f(v, w)
	}
	p2p.Finish(s, err) // what this side's log should hold is in err
	if ctx.Err() != nil && err != nil {
		return errors.Join(context.Cause(ctx), err)
	}
	return err
}

// LoadManifest reads the manifest h of a folder from src.
func LoadManifest(ctx context.Context, src Source, h wire.Hash) (Manifest, error) {
	r, err := src.Blob(ctx, h)
	if err != nil {
		return Manifest{}, err
	}
	m, err := readManifest(r)
	return m, errors.Join(err, r.Close())
}
