package books

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"iter"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/history"
	"github.com/gpufair/gpufair/ledger/kv"
)

// The walk over all entries reads each of the three tables that an entry is in (the entry, the log's hashes, the idempotency keys) once and
// in its order, and keeps none of it: a look-up for each entry costs as much as its signature.

// digest is a sum over pairs in any order: the SHA-256 of each, as numbers.
type digest [4]uint64

func (d *digest) add(id, index []byte) {
	h := sha256.Sum256(append(append(make([]byte, 0, 64), id...), index...))
	for i := range d {
		d[i] += binary.BigEndian.Uint64(h[8*i:])
	}
}

// entries walks all entries, sums up what they say, and compares the log's hashes that follow from them with the stored ones.
func (a *audit) entries() error {
	stored, stop := iter.Pull2(a.r.own.Iterate([]byte("h/"), nil))
	defer stop()
	for p, err := range a.r.own.Iterate([]byte("e/"), nil) {
		if err != nil {
			return err
		}
		index := a.grown.Size()
		if string(p.Key) != string(key("e/", be8(index))) {
			return corrupt(fmt.Sprintf("entry %d", index), "is missing")
		}
		e, err := ledger.DecodeLeaf(p.Value)
		if err != nil {
			return corrupt(fmt.Sprintf("entry %d", index), "%v", err)
		}
		name := fmt.Sprintf("entry %d (%s)", index, e.ID.Short())
		if err := a.logged(stored, p.Value); err != nil {
			return err
		}
		a.ids.add(e.ID[:], be8(index))
		if err := a.entry(name, e); err != nil {
			return err
		}
	}
	return a.idempotency()
}

// logged adds a leaf to the log and compares the hashes that it makes with those that are stored.
func (a *audit) logged(stored func() (kv.Pair, error, bool), leaf []byte) error {
	number := history.StoredCount(a.grown.Size())
	made, err := a.grown.Add(leaf)
	if err != nil {
		return err
	}
	for i, h := range made {
		p, err, ok := stored()
		if err != nil {
			return err
		}
		n := number + uint64(i)
		if !ok || string(p.Key) != string(key("h/", be8(n))) || !bytes.Equal(p.Value, h[:]) {
			return corrupt(fmt.Sprintf("hash %d of the log", n), "it is not that of the entries")
		}
	}
	return nil
}

// idempotency checks that the idempotency keys lead to the entries: all of them at once, and one after the other if something is wrong.
func (a *audit) idempotency() error {
	var have digest
	for p, err := range a.r.own.Iterate([]byte("id/"), nil) {
		if err != nil {
			return err
		}
		have.add(p.Key[len("id/"):], p.Value)
	}
	if have == a.ids {
		return nil
	}
	err := a.r.Entries(0, func(i uint64, e ledger.Entry) (bool, error) {
		at, err := raw(a.r.own, key("id/", e.ID[:]))
		if err == nil && string(at) != string(be8(i)) {
			err = corrupt(fmt.Sprintf("entry %d (%s)", i, e.ID.Short()), "its idempotency key does not lead to it")
		}
		return err == nil, err
	})
	if err != nil {
		return err
	}
	return corrupt("idempotency keys", "there are more than entries")
}

// entry adds one entry to the sums, and checks what its kind says.
func (a *audit) entry(name string, e ledger.Entry) error {
	for _, p := range e.Postings {
		if err := a.posting(e, p); err != nil {
			return corrupt(name, "%v", err)
		}
	}
	if e.Kind == ledger.KindSettlement {
		return a.settlement(name, e)
	}
	return a.other(name, e)
}

// log compares the root that follows from the entries with the head.
func (a *audit) log(h head) error {
	if n := a.grown.Size(); n != h.Size {
		return corrupt("head", "it says %d entries, there are %d", h.Size, n)
	}
	root, err := a.grown.Root()
	if err != nil {
		return err
	}
	if root != history.Hash(h.Root) {
		return corrupt("head", "its root is not that of the entries")
	}
	return nil
}
