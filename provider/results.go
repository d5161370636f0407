package provider

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/gpufair/gpufair/p2p/blob"
	"github.com/gpufair/gpufair/p2p/wire"
)

// packing is one lease's results as they were packed last. Packing reads and hashes all of /out with the owner's cores, so what a renter
// asks for is limited to a tenth of the time. Safe for concurrent use; mu is held while it packs.
type packing struct {
	mu    sync.Mutex
	pack  *blob.Packed // guarded by mu; nil: never packed, or dropped
	after time.Time    // guarded by mu; no pack by request before
	gone  bool         // guarded by mu; dropped for good
}

const (
	packEvery = 5 * time.Second // at most, by request
	packShare = 10              // of the time that a pack takes: the pause after it
)

// sync packs what is in out now and names it, zero for nothing; soon after the last time it names what was packed then.
func (p *packing) sync(ctx context.Context, out string) (wire.Hash, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Now().Before(p.after) {
		return p.id(), nil
	}
	return p.renew(ctx, out)
}

// last packs what is in out at the end.
func (p *packing) last(ctx context.Context, out string) (wire.Hash, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.renew(ctx, out)
}

// id names the newest pack; mu is held.
func (p *packing) id() wire.Hash {
	if p.pack == nil || len(p.pack.Manifest.Entries) == 0 {
		return wire.Hash{}
	}
	return p.pack.ID
}

// renew packs; mu is held.
func (p *packing) renew(ctx context.Context, out string) (wire.Hash, error) {
	if out == "" || p.gone {
		return wire.Hash{}, nil // the job never started, or it was wiped
	}
	began := time.Now()
	skip := func(string, error) {} // a device node or a file that is being written: the next pack may have it
	pack, err := blob.Pack(ctx, out, blob.PackOptions{Skip: skip})
	p.after = time.Now().Add(max(packEvery, packShare*time.Since(began)))
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
	return p.id(), nil
}

// source gives the packed results under the name that the renter was told; after a restart they are packed again.
func (p *packing) source(ctx context.Context, out string, want wire.Hash) (blob.Source, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pack == nil && !time.Now().Before(p.after) {
		if _, err := p.renew(ctx, out); err != nil {
			return nil, err
		}
	}
	if p.pack == nil || p.pack.ID != want {
		return nil, fmt.Errorf("results %s: %w: ask for the lease's status again", want.Short(), blob.ErrNotFound)
	}
	return p.pack, nil
}

// drop lets go of the results.
func (p *packing) drop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gone = true
	if p.pack != nil {
		p.pack.Close()
		p.pack = nil
	}
}
