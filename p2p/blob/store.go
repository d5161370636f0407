package blob

import (
	"context"
	"errors"
	"io"

	"github.com/gpufair/gpufair/p2p/wire"
)

// Store keeps blobs in a directory of its own, one file each, and the received part of unfinished ones. It belongs to one process.
// A blob appears whole or not at all: a process killed at any point leaves whole blobs and partial files to resume. Safe for
// concurrent use.
type Store struct{}

// OpenStore opens or makes the store in dir (0700), which holds at most quota bytes of blobs, unfinished ones included.
func OpenStore(dir string, quota int64) (*Store, error) { return nil, errors.New("not built yet") }

// Close ends the store's use of its directory.
func (s *Store) Close() error { return nil }

// Blob opens a blob, or [ErrNotFound].
func (s *Store) Blob(ctx context.Context, h wire.Hash) (Reader, error) {
	return nil, errors.New("not built yet")
}

// Has reports a whole blob's size.
func (s *Store) Has(h wire.Hash) (size int64, ok bool) { return 0, false }

// Partial is how many bytes of an unfinished blob are there.
func (s *Store) Partial(h wire.Hash) int64 { return 0 }

// Used is the bytes that count against the quota.
func (s *Store) Used() int64 { return 0 }

// List names all whole blobs, in no order.
func (s *Store) List() []wire.Hash { return nil }

// Put stores a small blob and gives its name.
func (s *Store) Put(ctx context.Context, data []byte) (wire.Hash, error) {
	return wire.Hash{}, errors.New("not built yet")
}

// PutStream stores what r gives until io.EOF and gives its name and size.
func (s *Store) PutStream(ctx context.Context, r io.Reader) (wire.Hash, int64, error) {
	return wire.Hash{}, 0, errors.New("not built yet")
}

// Remove drops a blob and what is there of an unfinished one. A blob that is not there is no error.
func (s *Store) Remove(h wire.Hash) error { return errors.New("not built yet") }
