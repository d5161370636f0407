package kv

// undo is what a key's pending change was before another replaced it.
type undo struct {
	key string
	old change
	had bool
}

// Try runs fn, and takes back what it wrote to the transaction if it gives an error: so that one of several things done in a
// transaction can fail alone. It gives fn's error. It may be nested, and costs what fn writes, however much was written before.
func (t *Txn) Try(fn func() error) error {
	mark, size := len(t.undone), t.bytes
	t.trying++
	err := fn()
	t.trying--
	if err != nil {
		for i := len(t.undone) - 1; i >= mark; i-- {
			if u := t.undone[i]; u.had {
				t.pending[u.key] = u.old
			} else {
				delete(t.pending, u.key)
			}
		}
		t.undone, t.bytes = t.undone[:mark], size
	}
	if t.trying == 0 {
		t.undone = nil
	}
	return err
}
