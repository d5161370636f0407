package blob

import (
	"errors"

	"github.com/gpufair/gpufair/p2p/wire"
)

// Type is what an entry of a folder is. Anything else (device nodes, sockets, pipes) does not travel.
type Type uint8

// The types.
const (
	File    Type = 1
	Dir     Type = 2
	Symlink Type = 3
)

// Manifest is a folder as a value: its entries with paths, modes and the hashes of their chunks. Equal folders have equal manifests;
// times and owners are left out for that reason. The folder itself is no entry.
type Manifest struct {
	Version uint16  `cbor:"1,keyasint"` // 1
	Entries []Entry `cbor:"2,keyasint"` // strictly rising by path, so a folder comes before what is in it
}

// Entry is one file, folder or symbolic link.
type Entry struct {
	Path   string      `cbor:"1,keyasint"` // slashes, relative, clean
	Type   Type        `cbor:"2,keyasint"`
	Mode   uint32      `cbor:"3,keyasint"`           // permission bits, at most 0777; 0 for a link
	Size   int64       `cbor:"4,keyasint,omitempty"` // bytes of a file
	Chunks []wire.Hash `cbor:"5,keyasint,omitempty"` // of a file: one per [ChunkSize] bytes
	Target string      `cbor:"6,keyasint,omitempty"` // of a link: relative, inside, ".." only at its start
}

// Encode checks m and gives its bytes and its name, their SHA-256.
func (m Manifest) Encode() ([]byte, wire.Hash, error) {
	return nil, wire.Hash{}, errors.New("not built yet")
}

// DecodeManifest reads and checks an encoded manifest of at most [MaxManifest] bytes. The error is [ErrPath] for one that breaks a
// rule of paths or a limit.
func DecodeManifest(b []byte) (Manifest, error) { return Manifest{}, errors.New("not built yet") }

// Check reports the first rule that m breaks.
func (m Manifest) Check() error { return errors.New("not built yet") }

// Bytes is the size of all files together.
func (m Manifest) Bytes() int64 { return 0 }
