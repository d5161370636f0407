package blob

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

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

// Limits of a folder. They keep a stranger's manifest from costing more than its bytes, and any accepted folder fits on every
// system's paths.
const (
	MaxEntries = 1 << 16 // the decoder's own limit on a list; more small files belong into an archive
	MaxChunks  = 1 << 18 // of all files together: 256 GiB, whose manifest has 9 MiB
	MaxPath    = 1024    // bytes of a whole path: macOS's limit, the smallest
	MaxName    = 255     // bytes of one name: of ext4, xfs and APFS
	MaxDepth   = 64      // names in a path
)

// manifestVersion is the version that this program writes and reads.
const manifestVersion = 1

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
	if err := m.Check(); err != nil {
		return nil, wire.Hash{}, err
	}
	b, err := wire.Marshal(m)
	if err != nil {
		return nil, wire.Hash{}, err
	}
	if len(b) > MaxManifest {
		return nil, wire.Hash{}, fmt.Errorf("manifest of %d bytes: %w (limit %d): pack fewer files, or an archive of them", len(b), ErrPath, MaxManifest)
	}
	return b, wire.Sum("", b), nil
}

// DecodeManifest reads and checks an encoded manifest of at most [MaxManifest] bytes. The error is [ErrPath] for one that breaks a
// rule of paths or a limit.
func DecodeManifest(b []byte) (Manifest, error) {
	var m Manifest
	if len(b) > MaxManifest {
		return m, fmt.Errorf("manifest of %d bytes: %w (limit %d)", len(b), ErrPath, MaxManifest)
	}
	if err := wire.UnmarshalStrict(b, &m); err != nil {
		return Manifest{}, fmt.Errorf("manifest: %w", err)
	}
	if err := m.Check(); err != nil {
		return Manifest{}, err
	}
	return m, nil
}

// Check reports the first rule that m breaks.
func (m Manifest) Check() error {
	if m.Version != manifestVersion {
		return fmt.Errorf("manifest of version %d: %w: this program reads version %d", m.Version, ErrPath, manifestVersion)
	}
	if len(m.Entries) > MaxEntries {
		return fmt.Errorf("manifest of %d entries: %w (limit %d)", len(m.Entries), ErrPath, MaxEntries)
	}
	folders := map[string]bool{".": true}
	chunks, last := 0, ""
	for _, e := range m.Entries {
		if err := e.check(); err != nil {
			return fmt.Errorf("%q: %w", e.Path, err)
		}
		if e.Path <= last {
			return fmt.Errorf("%q after %q: %w: paths must rise", e.Path, last, ErrPath)
		}
		last = e.Path
		// Only a folder of this manifest may hold an entry. So nothing is ever made through a link.
		if !folders[path.Dir(e.Path)] {
			return fmt.Errorf("%q: %w: what it lies in is no folder of the manifest", e.Path, ErrPath)
		}
		if e.Type == Dir {
			folders[e.Path] = true
		}
		if chunks += len(e.Chunks); chunks > MaxChunks {
			return fmt.Errorf("%q: %w: over %d chunks in all", e.Path, ErrPath, MaxChunks)
		}
	}
	return nil
}

func (e Entry) check() error {
	if err := checkPath(e.Path); err != nil {
		return err
	}
	if e.Mode > 0o777 {
		return fmt.Errorf("%w: mode %#o has more than permission bits", ErrPath, e.Mode)
	}
	switch e.Type {
	case File:
		if e.Size < 0 || int64(len(e.Chunks)) != chunksOf(e.Size) || e.Target != "" {
			return fmt.Errorf("%w: a file of %d bytes with %d chunks", ErrPath, e.Size, len(e.Chunks))
		}
	case Dir:
		if e.Size != 0 || len(e.Chunks) != 0 || e.Target != "" {
			return fmt.Errorf("%w: a folder with content", ErrPath)
		}
	case Symlink:
		if e.Size != 0 || len(e.Chunks) != 0 || e.Mode != 0 {
			return fmt.Errorf("%w: a link with content", ErrPath)
		}
		return checkTarget(e.Path, e.Target)
	default:
		return fmt.Errorf("%w: type %d", ErrPath, e.Type)
	}
	return nil
}

// chunksOf is how many chunks a file of size bytes has; the division alone, as a claimed size may be near the largest integer.
func chunksOf(size int64) int64 {
	n := size / ChunkSize
	if size%ChunkSize != 0 {
		n++
	}
	return n
}

// checkPath holds for every path of a manifest: relative, clean, inside, and plain enough to print.
func checkPath(p string) error {
	switch {
	case p == "" || p == "." || len(p) > MaxPath:
		return fmt.Errorf("%w: a path of %d bytes (limit %d)", ErrPath, len(p), MaxPath)
	case path.IsAbs(p) || path.Clean(p) != p || p == ".." || strings.HasPrefix(p, "../"):
		return fmt.Errorf("%w: want a clean path inside the folder", ErrPath)
	case !plain(p):
		return fmt.Errorf("%w: its name has control characters or is not UTF-8", ErrPath)
	}
	names := strings.Split(p, "/")
	if len(names) > MaxDepth {
		return fmt.Errorf("%w: %d folders deep (limit %d)", ErrPath, len(names), MaxDepth)
	}
	for _, n := range names {
		if len(n) > MaxName {
			return fmt.Errorf("%w: a name of %d bytes (limit %d)", ErrPath, len(n), MaxName)
		}
	}
	return nil
}

// checkTarget holds for links: relative, and inside whatever the other links are. A ".." after a name could turn behind a link and
// leave ("d/up" -> "..", then "d/up/../x"); at the start it is counted from the real folders that the link lies in.
func checkTarget(link, target string) error {
	if target == "" || len(target) > MaxPath || path.IsAbs(target) || !plain(target) {
		return fmt.Errorf("%w: a link to %q; only relative links travel", ErrPath, target)
	}
	up, rest := 0, target
	for rest == ".." || strings.HasPrefix(rest, "../") {
		up, rest = up+1, strings.TrimPrefix(strings.TrimPrefix(rest, ".."), "/")
	}
	if up > strings.Count(link, "/") {
		return fmt.Errorf("%w: a link to %q, outside the folder", ErrPath, target)
	}
	if slices.Contains(strings.Split(rest, "/"), "..") {
		return fmt.Errorf("%w: a link to %q; \"..\" may stand only at its start", ErrPath, target)
	}
	return nil
}

func plain(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return r < 0x20 || r == 0x7f })
}

// Bytes is the size of all files together.
func (m Manifest) Bytes() int64 {
	var n int64
	for _, e := range m.Entries {
		n += e.Size
	}
	return n
}

// chunk is one blob of a folder's content.
type chunk struct {
	hash wire.Hash
	size int64
}

// chunks lists the folder's distinct chunks in the order in which they travel. One hash with two sizes is [ErrPath]: one of them lies.
func (m Manifest) chunks() ([]chunk, error) {
	var list []chunk
	seen := map[wire.Hash]int64{}
	for _, e := range m.Entries {
		for i, h := range e.Chunks {
			size := min(ChunkSize, e.Size-int64(i)*ChunkSize)
			if had, ok := seen[h]; ok {
				if had != size {
					return nil, fmt.Errorf("%q: %w: chunk %s with two sizes", e.Path, ErrPath, h.Short())
				}
				continue
			}
			seen[h] = size
			list = append(list, chunk{hash: h, size: size})
		}
	}
	return list, nil
}
