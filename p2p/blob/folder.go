package blob

import (
	"context"
	"errors"
	"os"

	"github.com/gpufair/gpufair/p2p/wire"
)

// Packed is a folder ready to travel: its manifest, and its chunks read from the files when they are asked for. A [Source]. A file
// that changed since is [ErrChanged]: pack again. Safe for concurrent use.
type Packed struct {
	Manifest Manifest
	ID       wire.Hash // names the manifest
}

// PackOptions tune [Pack]. The zero value refuses what may not travel.
type PackOptions struct {
	// Skip, if set, is told what may not travel (with an [ErrPath] that says why), which is then left out instead of failing the whole:
	// for a job's results.
	Skip func(path string, why error)
	// Progress, if set, is told the bytes hashed so far; the total is not known and 0.
	Progress Progress
}

// Pack reads the folder dir once to make its manifest. Close the result after use. Errors name the path and are [ErrPath] where the
// folder holds something that may not travel.
func Pack(ctx context.Context, dir string, o PackOptions) (*Packed, error) {
	return nil, errors.New("not built yet")
}

// Blob gives the manifest or a chunk.
func (p *Packed) Blob(ctx context.Context, h wire.Hash) (Reader, error) {
	return nil, errors.New("not built yet")
}

// Close lets go of the folder.
func (p *Packed) Close() error { return nil }

// UnpackOptions tune [Unpack].
type UnpackOptions struct {
	Progress Progress
	// Sync makes files and folders durable before Unpack returns, for results whose other copy will be wiped.
	Sync bool
}

// Unpack makes the folder name in parent from a manifest and the chunks in src, each checked again. It appears under its name only
// when it is whole. [ErrExists] if the name is taken, [ErrHashMismatch] (and the chunk removed, if src is a [Store]) if a chunk is
// bad: get it again.
func Unpack(ctx context.Context, src Source, m Manifest, parent *os.Root, name string, o UnpackOptions) error {
	return errors.New("not built yet")
}
