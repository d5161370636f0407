package auction

import (
	"fmt"

	"github.com/gpufair/gpufair/ledger/history"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Log is the seller's Merkle log of one auction (RFC 6962): its leaves are the commits' envelopes. The zero value is an empty log. Not
// for concurrent use.
type Log struct {
	stored []history.Hash
	size   uint32
	root   wire.Hash
}

// ReadHashes gives stored hashes to package history.
func (l *Log) ReadHashes(indexes []int64) ([]history.Hash, error) {
	out := make([]history.Hash, len(indexes))
	for n, i := range indexes {
		if i < 0 || i >= int64(len(l.stored)) {
			return nil, fmt.Errorf("hash %d of %d: %w", i, len(l.stored), history.ErrSize)
		}
		out[n] = l.stored[i]
	}
	return out, nil
}

// Append makes commit the next leaf and gives its index. The error wraps history.ErrSize at MaxLeaves.
func (l *Log) Append(commit []byte) (uint32, error) {
	if l.size >= MaxLeaves {
		return 0, fmt.Errorf("append commit %d: %w (limit %d)", l.size, history.ErrSize, MaxLeaves)
	}
	a, err := history.Append(l, uint64(l.size), commit)
	if err != nil {
		return 0, err
	}
	l.stored = append(l.stored, a.Hashes...)
	l.size, l.root = uint32(a.Size), wire.Hash(a.Root)
	return uint32(a.Index), nil
}

// Head is how many leaves there are, and their root.
func (l *Log) Head() (size uint32, root wire.Hash) {
	if l.size == 0 {
		return 0, wire.Hash(history.Empty(history.Origin{}).Root)
	}
	return l.size, l.root
}

// Prove gives the proof that leaf index is in the log as it is now.
func (l *Log) Prove(index uint32) ([]wire.Hash, error) {
	p, err := history.ProveInclusion(l, uint64(l.size), uint64(index))
	if err != nil {
		return nil, err
	}
	out := make([]wire.Hash, len(p))
	for i, h := range p {
		out[i] = wire.Hash(h)
	}
	return out, nil
}

// Included checks that commit is leaf index of a log of size leaves with that root; otherwise the error wraps history.ErrProof. A
// bidder opens only when it holds for its own commit under a Seal that others have seen.
func Included(path []wire.Hash, size uint32, root wire.Hash, index uint32, commit []byte) error {
	p := make([]history.Hash, len(path))
	for i, h := range path {
		p[i] = history.Hash(h)
	}
	return history.CheckInclusion(p, history.Checkpoint{Size: uint64(size), Root: history.Hash(root)}, uint64(index), commit)
}
