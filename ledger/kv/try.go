package kv

import "maps"

// Try runs fn, and takes back what it wrote to the transaction if it gives an error: so that one of several things done in a
// transaction can fail alone. It gives fn's error.
func (t *Txn) Try(fn func() error) error {
	pending, size := maps.Clone(t.pending), t.bytes
	err := fn()
	if err != nil {
		t.pending, t.bytes = pending, size
	}
	return err
}
