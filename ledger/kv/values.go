package kv

import (
	"errors"
	"fmt"

	"github.com/gpufair/gpufair/p2p/wire"
)

// Save writes v, as deterministic CBOR, under key.
func Save(tx Tx, key []byte, v any) error {
	b, err := wire.Marshal(v)
	if err != nil {
		return err
	}
	return tx.Set(key, b)
}

// Load reads what [Save] wrote; ok is false if there is nothing under key.
func Load[T any](r Reader, key []byte) (v T, ok bool, err error) {
	b, err := r.Get(key)
	if errors.Is(err, ErrNotFound) {
		return v, false, nil
	}
	if err != nil {
		return v, false, err
	}
	if err := wire.UnmarshalStrict(b, &v); err != nil {
		return v, false, fmt.Errorf("stored %q: %w", key[:min(len(key), 12)], err)
	}
	return v, true, nil
}

// All reads every value that [Save] wrote under a prefix, in the order of their keys.
func All[T any](r Reader, prefix string) ([]T, error) {
	var out []T
	for pair, err := range r.Iterate([]byte(prefix), nil) {
		if err != nil {
			return nil, err
		}
		var v T
		if err := wire.UnmarshalStrict(pair.Value, &v); err != nil {
			return nil, fmt.Errorf("stored %q: %w", pair.Key[:min(len(pair.Key), 12)], err)
		}
		out = append(out, v)
	}
	return out, nil
}
