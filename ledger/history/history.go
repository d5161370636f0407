// Package history makes a ledger's past undeniable: an RFC 6962 Merkle log over the exact bytes of its entries, checkpoints of it, and
// the proofs that an entry is in it and that it only grew. It owns the hashing and the checkpoint's text. It refuses to know what an
// entry says, where hashes are stored and who holds the key: it takes a reader of stored hashes and gives values.
//
// Hashes are those of golang.org/x/mod/sumdb/tlog: a log of n leaves has [StoredCount](n) stored hashes, numbered from 0 in the order
// in which [Append] makes them, never changed once made. So a store keeps one record per number, and an append writes only new ones.
package history

import (
	"errors"
	"fmt"

	"golang.org/x/mod/sumdb/tlog"
)

var (
	// ErrProof says that a proof does not show what it was sent to show. If the checkpoints' signatures are good, the log was rewritten.
	ErrProof = errors.New("proof does not hold")
	// ErrSize says that a size or an index is outside of the log.
	ErrSize = errors.New("outside of the log")
	// ErrCheckpoint says that a text is not a checkpoint of ours.
	ErrCheckpoint = errors.New("not a checkpoint")
)

// Hash is a node of the log: SHA-256 with the prefixes of RFC 6962, 2.1.
type Hash = tlog.Hash

// Hashes reads stored hashes by number. ReadHashes gives exactly one hash for each index, in their order, or an error.
type Hashes = tlog.HashReader

// HashesFunc is a function as [Hashes].
type HashesFunc = tlog.HashReaderFunc

// SaltSize is the length of the random salt before every entry's bytes, so that a proof for one entry gives away no other entry, even
// one whose bytes are easy to guess. The ledger makes the salt and stores it with the entry.
const SaltSize = 16

// MaxSize is the largest log: more leaves than a lane-second for every GPU there is, and small enough for every arithmetic here.
const MaxSize = 1 << 48

// maxProof bounds a proof: two hashes for each level of the largest log.
const maxProof = 2 * 48

// Leaf is the leaf's data: the salt and the exact bytes of the entry.
func Leaf(salt [SaltSize]byte, entry []byte) []byte {
	return append(append(make([]byte, 0, SaltSize+len(entry)), salt[:]...), entry...)
}

// LeafHash is SHA-256(0x00 ‖ leaf).
func LeafHash(leaf []byte) Hash { return tlog.RecordHash(leaf) }

// StoredCount is how many stored hashes a log of size leaves has.
func StoredCount(size uint64) uint64 { return uint64(tlog.StoredHashCount(int64(size))) }

// Appended is what an append adds.
type Appended struct {
	Index  uint64 // of the leaf, from 0
	First  uint64 // number of Hashes[0]; the others follow without gaps
	Hashes []Hash // to store; about two per leaf on average, at most 49
	Size   uint64 // of the log now
	Root   Hash   // of the log now
}

// Append adds leaf to the log of size leaves whose hashes stored reads; it reads at most 96 of them. It stores nothing: the caller puts
// the new hashes into the same transaction as the entry. To add several, let stored read the transaction.
func Append(stored Hashes, size uint64, leaf []byte) (Appended, error) {
	if size >= MaxSize {
		return Appended{}, fmt.Errorf("append to a log of %d entries: %w (limit %d)", size, ErrSize, uint64(MaxSize))
	}
	added, err := tlog.StoredHashes(int64(size), leaf, stored)
	if err != nil {
		return Appended{}, fmt.Errorf("append entry %d to the log: %w", size, err)
	}
	a := Appended{Index: size, First: StoredCount(size), Hashes: added, Size: size + 1}
	if a.Root, err = Root(overlay(stored, a.First, added), a.Size); err != nil {
		return Appended{}, err
	}
	return a, nil
}

// overlay reads the hashes from first on from added, the others from stored.
func overlay(stored Hashes, first uint64, added []Hash) Hashes {
	return HashesFunc(func(indexes []int64) ([]Hash, error) {
		var old []int64
		for _, i := range indexes {
			if uint64(i) < first {
				old = append(old, i)
			}
		}
		var have []Hash
		if len(old) > 0 {
			var err error
			if have, err = stored.ReadHashes(old); err != nil {
				return nil, err
			}
			if len(have) != len(old) {
				return nil, fmt.Errorf("read %d stored hashes: got %d", len(old), len(have))
			}
		}
		out := make([]Hash, len(indexes))
		for n, i := range indexes {
			if uint64(i) < first {
				out[n], have = have[0], have[1:]
				continue
			}
			out[n] = added[uint64(i)-first]
		}
		return out, nil
	})
}

// Root is the root hash of the log's first size leaves; of none it is SHA-256 of nothing (RFC 6962, 2.1).
func Root(stored Hashes, size uint64) (Hash, error) {
	if size > MaxSize {
		return Hash{}, fmt.Errorf("root of %d entries: %w (limit %d)", size, ErrSize, uint64(MaxSize))
	}
	h, err := tlog.TreeHash(int64(size), stored)
	if err != nil {
		return Hash{}, fmt.Errorf("root of the log's first %d entries: %w", size, err)
	}
	return h, nil
}
