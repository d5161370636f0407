// Package blob moves bytes between two peers: single blobs (image layers, configs) and folders, content-addressed, resumable after
// a dropped connection, verified, with progress. It owns the manifest of a folder, the store on disk and the conversation, and
// refuses to know leases, jobs and money: whether a peer may put or get a blob is for an [Authorizer].
//
// Everything is a blob, named by the SHA-256 of its whole content, so that OCI digests are names here. A folder is the blob of its
// [Manifest] and the blobs of its chunks.
package blob

import (
	"context"
	"errors"
	"io"

	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Sizes of the format and of the conversation.
const (
	ChunkSize   = 1 << 20   // bytes of a file's chunk; its last one is shorter
	MaxBlob     = 1 << 40   // bytes of one blob: no image layer comes near
	maxData     = 256 << 10 // bytes of one data frame: large enough for bulk, small enough to notice a refusal soon
	maxControl  = 64 << 10  // bytes of every other frame: the widest one lists 262,144 chunks as bits
	MaxManifest = 16 << 20  // bytes of an encoded manifest: 262,144 chunks are 9 MiB
)

var (
	// ErrQuota says that a blob does not fit: the store's quota or the lease's.
	ErrQuota = errors.New("over quota")
	// ErrHashMismatch says that bytes are not those that their name promises. What was received under the name is dropped.
	ErrHashMismatch = errors.New("content does not match its hash")
	// ErrNotFound says that a source has no such blob.
	ErrNotFound = errors.New("no such blob")
	// ErrPath says that a manifest or folder holds something that may not travel: a path that leaves the folder, a device node, a
	// symbolic link to the outside, or more than the limits.
	ErrPath = errors.New("not allowed in a folder")
	// ErrForbidden says that the authorizer does not let this peer put or get this blob.
	ErrForbidden = errors.New("not for this peer")
	// ErrBusy says that the blob is being received by someone else right now.
	ErrBusy = errors.New("blob is being received already")
	// ErrExists says that the target of an unpack is there already.
	ErrExists = errors.New("target exists")
	// ErrChanged says that a packed file is not what it was when it was packed.
	ErrChanged = errors.New("file changed while it was read")
)

// Reader is an open blob.
type Reader interface {
	io.ReaderAt
	io.Closer
	Size() int64 // bytes
}

// Source is where blobs are read from: a [Store], a [Packed] folder, or a [SourceFunc]. Safe for concurrent use.
type Source interface {
	// Blob opens a blob; [ErrNotFound] if there is none of that name.
	Blob(ctx context.Context, h wire.Hash) (Reader, error)
}

// SourceFunc is a function as a [Source].
type SourceFunc func(ctx context.Context, h wire.Hash) (Reader, error)

// Blob calls f.
func (f SourceFunc) Blob(ctx context.Context, h wire.Hash) (Reader, error) { return f(ctx, h) }

// Progress is told how many of how many bytes have passed, those of earlier attempts included. It is called in one goroutine, about
// once per data frame, and must not block.
type Progress func(done, total int64)

// Request is what a peer asks for, as the server's [Authorizer] sees it.
type Request struct {
	Peer  identity.PeerID
	Lease wire.Hash // opaque here
	Hash  wire.Hash // of the blob, or of a folder's manifest
	Size  int64     // bytes of the blob, or of the manifest; 0 in a fetch
	Tree  bool      // the manifest's chunks come with it
	Total int64     // push of a tree: bytes of manifest and files together, as the peer claims and the server then checks; else Size
}

// Authorizer decides what a server takes and gives, and where from. Its errors reach the peer: [ErrForbidden], [ErrNotFound] and
// [ErrQuota] by name, a *p2p.Error as it is, others as an internal error. Safe for concurrent use.
type Authorizer interface {
	// Push names the store that takes what r describes.
	Push(ctx context.Context, r Request) (*Store, error)
	// Fetch names the source that has what r asks for.
	Fetch(ctx context.Context, r Request) (Source, error)
}
