package kv

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
)

// ErrDamaged says that a store holds something else than what was written to it.
var ErrDamaged = errors.New("the store is damaged")

// sumKey holds the sum of all other pairs.
const sumKey = "sum"

// sum is a digest of pairs in any order: the SHA-256 of each, added up as four numbers without carry, so that one change costs one
// addition and one subtraction. It finds what a disk or an engine lost or altered; it keeps nobody from writing what they like.
type sum [4]uint64

func (s *sum) add(key, value []byte) {
	for i, v := range pairHash(key, value) {
		s[i] += v
	}
}

func (s *sum) sub(key, value []byte) {
	for i, v := range pairHash(key, value) {
		s[i] -= v
	}
}

func pairHash(key, value []byte) (out [4]uint64) {
	b := binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(key)+len(value)), uint32(len(key)))
	h := sha256.Sum256(append(append(b, key...), value...))
	for i := range out {
		out[i] = binary.BigEndian.Uint64(h[8*i:])
	}
	return out
}

func (s *sum) bytes() (out []byte) {
	for _, v := range s {
		out = binary.BigEndian.AppendUint64(out, v)
	}
	return out
}

// fullSumKey is the key with its owner.
const fullSumKey = string(store) + separator + sumKey

// readSum reads what an engine's pairs should add up to; those of an empty one to nothing.
func readSum(r Reader) (s sum, err error) {
	b, err := r.Get([]byte(fullSumKey))
	if errors.Is(err, ErrNotFound) {
		return s, nil
	}
	if err != nil {
		return s, err
	}
	if len(b) != len(s)*8 {
		return s, fmt.Errorf("sum of the store: %w", ErrDamaged)
	}
	for i := range s {
		s[i] = binary.BigEndian.Uint64(b[8*i:])
	}
	return s, nil
}

// withSum adds to writes what the pairs add up to after them.
func withSum(r Reader, writes []Write) ([]Write, error) {
	s, err := readSum(r)
	if err != nil {
		return nil, err
	}
	for _, w := range writes {
		old, err := r.Get(w.Key)
		switch {
		case err == nil:
			s.sub(w.Key, old)
		case !errors.Is(err, ErrNotFound):
			return nil, err
		}
		if !w.Delete {
			s.add(w.Key, w.Value)
		}
	}
	return append(writes, Write{Key: []byte(fullSumKey), Value: s.bytes()}), nil
}

// Check reads the whole snapshot and compares it with what was ever written; it leaves out what the transaction itself wrote. An error
// that wraps ErrDamaged says that something was lost or altered, by the disk or by the engine.
func (t *Txn) Check() error {
	want, err := readSum(t.base)
	if err != nil {
		return err
	}
	var got sum
	for p, err := range t.base.Iterate(nil, nil) {
		if err != nil {
			return err
		}
		if string(p.Key) != fullSumKey {
			got.add(p.Key, p.Value)
		}
	}
	if got != want {
		return fmt.Errorf("%w: its pairs are not those that were written", ErrDamaged)
	}
	return nil
}
