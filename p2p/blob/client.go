package blob

import (
	"context"
	"errors"

	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Client pushes to and fetches from one peer under one lease. Each method is one attempt over one stream; after a broken line call
// it again, and it goes on from where it was. Safe for concurrent use.
type Client struct {
	Network  p2p.Network
	Protocol p2p.Protocol
	Peer     identity.PeerID
	Lease    wire.Hash
}

// Push sends the blob h of src, from the offset that the peer has, and returns when the peer has checked and stored it.
func (c Client) Push(ctx context.Context, src Source, h wire.Hash, progress Progress) error {
	return errors.New("not built yet")
}

// PushTree sends the folder whose manifest is the blob h of src: the manifest, then the chunks that the peer lacks.
func (c Client) PushTree(ctx context.Context, src Source, h wire.Hash, progress Progress) error {
	return errors.New("not built yet")
}

// Fetch gets the blob h into dst, from the offset that dst has. With dst holding it already it asks nobody.
func (c Client) Fetch(ctx context.Context, dst *Store, h wire.Hash, progress Progress) error {
	return errors.New("not built yet")
}

// FetchTree gets the folder whose manifest is h into dst: the manifest, then the chunks that dst lacks. [Unpack] makes files of it.
func (c Client) FetchTree(ctx context.Context, dst *Store, h wire.Hash, progress Progress) (Manifest, error) {
	return Manifest{}, errors.New("not built yet")
}
