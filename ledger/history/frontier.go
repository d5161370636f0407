package history

import (
	"fmt"

	"golang.org/x/mod/sumdb/tlog"
)

// Frontier is a log that grows from its first leaf on, and keeps no more of it than the next leaf needs: at most 48 hashes. It is for whoever
// reads all leaves in order. The zero value is the empty log. Not safe for concurrent use.
type Frontier struct {
	size  uint64
	roots []Hash // of the whole subtrees, from the largest on: one for each bit of size
}

// Size is how many leaves were added.
func (f *Frontier) Size() uint64 { return f.size }

// Add adds a leaf and gives the stored hashes that it makes, as [Append] does: their numbers begin at StoredCount of the size before.
func (f *Frontier) Add(leaf []byte) ([]Hash, error) {
	if f.size >= MaxSize {
		return nil, fmt.Errorf("append to a log of %d entries: %w (limit %d)", f.size, ErrSize, uint64(MaxSize))
	}
	h := LeafHash(leaf)
	out := []Hash{h}
	for full := f.size; full&1 == 1; full >>= 1 {
		last := len(f.roots) - 1
		h = tlog.NodeHash(f.roots[last], h)
		f.roots, out = f.roots[:last], append(out, h)
	}
	f.roots = append(f.roots, h)
	f.size++
	return out, nil
}

// Root is the root hash of the log, as [Root] gives it.
func (f *Frontier) Root() (Hash, error) {
	if f.size == 0 {
		return Root(nil, 0)
	}
	root := f.roots[len(f.roots)-1]
	for i := len(f.roots) - 2; i >= 0; i-- {
		root = tlog.NodeHash(f.roots[i], root)
	}
	return root, nil
}
