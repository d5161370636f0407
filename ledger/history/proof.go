package history

import (
	"fmt"

	"golang.org/x/mod/sumdb/tlog"
)

// ProveInclusion gives the proof that leaf index is in the log's first size leaves (RFC 6962, 2.1.1).
func ProveInclusion(stored Hashes, size, index uint64) ([]Hash, error) {
	if size > MaxSize || index >= size {
		return nil, fmt.Errorf("prove entry %d in a log of %d: %w", index, size, ErrSize)
	}
	p, err := tlog.ProveRecord(int64(size), int64(index), stored)
	if err != nil {
		return nil, fmt.Errorf("prove entry %d in a log of %d: %w", index, size, err)
	}
	return p, nil
}

// CheckInclusion checks that leaf (see [Leaf]) is entry index of the log that head names; otherwise the error wraps ErrProof.
func CheckInclusion(proof []Hash, head Checkpoint, index uint64, leaf []byte) error {
	if head.Size > MaxSize || index >= head.Size || len(proof) > maxProof {
		return fmt.Errorf("check entry %d in a log of %d, proof of %d hashes: %w", index, head.Size, len(proof), ErrProof)
	}
	if err := tlog.CheckRecord(proof, int64(head.Size), head.Root, int64(index), LeafHash(leaf)); err != nil {
		return fmt.Errorf("check entry %d in a log of %d: %w", index, head.Size, ErrProof)
	}
	return nil
}

// ProveConsistency gives the proof that the log's first size leaves begin with its first old leaves (RFC 6962, 2.1.2). From 0 leaves,
// or between equal sizes, the proof is empty.
func ProveConsistency(stored Hashes, old, size uint64) ([]Hash, error) {
	if size > MaxSize || old > size {
		return nil, fmt.Errorf("prove that a log of %d extends one of %d: %w", size, old, ErrSize)
	}
	if old == 0 || old == size {
		return nil, nil
	}
	p, err := tlog.ProveTree(int64(size), int64(old), stored)
	if err != nil {
		return nil, fmt.Errorf("prove that a log of %d extends one of %d: %w", size, old, err)
	}
	return p, nil
}

// CheckConsistency checks that the log of head extends that of old, of the same origin; otherwise the error wraps ErrProof. Two signed
// checkpoints of one origin for which nobody can give a proof show that history was rewritten.
func CheckConsistency(proof []Hash, old, head Checkpoint) error {
	bad := fmt.Errorf("check that log %s of %d entries extends %s of %d: %w", head.Origin, head.Size, old.Origin, old.Size, ErrProof)
	switch {
	case old.Origin != head.Origin, old.Size > head.Size, head.Size > MaxSize, len(proof) > maxProof:
		return bad
	case old.Size == 0 || old.Size == head.Size:
		if len(proof) != 0 || (old.Size == 0 && old.Root != emptyRoot()) || (old.Size == head.Size && old.Root != head.Root) {
			return bad
		}
		return nil
	}
	if err := tlog.CheckTree(proof, int64(head.Size), head.Root, int64(old.Size), old.Root); err != nil {
		return bad
	}
	return nil
}
