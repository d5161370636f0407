package kv

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
)

// Txn is a transaction over all owners. Take an owner's part with [Txn.Of]. Valid only inside the function that got it; that of a
// view is safe for concurrent use, that of an update is not.
type Txn struct {
	base    Reader
	view    bool
	ended   bool
	pending map[string]change // not yet committed, by full key
	bytes   int               // of keys and values in pending
	trying  int               // how many Try are under way
	undone  []undo            // since the outermost of them began, oldest first
}

type change struct {
	value   []byte
	deleted bool
}

// Of gives the part of the transaction that belongs to o: its keys are without the owner's prefix, and it reaches no others.
func (t *Txn) Of(o Owner) Tx { return owned{txn: t, owner: o} }

// Writes is everything written so far, all owners together, in order of keys; the last change of a key counts. It is what will be
// committed if nothing is written after it: ledger/books puts it into the journal as the last act of its transactions.
// The slices must not be changed.
func (t *Txn) Writes() []Write { return t.writes("", "") }

// writes is those of Writes whose keys start with prefix and are not before from.
func (t *Txn) writes(prefix, from string) []Write {
	var keys []string
	for k := range t.pending {
		if k >= from && strings.HasPrefix(k, prefix) {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	out := make([]Write, len(keys))
	for i, k := range keys {
		c := t.pending[k]
		out[i] = Write{Key: []byte(k), Value: c.value, Delete: c.deleted}
	}
	return out
}

// Replay puts writes that [Txn.Writes] gave earlier into the transaction: what ledger/books does at start with journal records that
// the store has not seen.
func (t *Txn) Replay(writes []Write) error {
	for _, w := range writes {
		owner, _, ok := strings.Cut(string(w.Key), separator)
		if !ok || !Owner(owner).known() {
			return fmt.Errorf("replay key %q: %w", w.Key, ErrOwner)
		}
		if err := t.put(string(w.Key), change{value: bytes.Clone(w.Value), deleted: w.Delete}); err != nil {
			return err
		}
	}
	return nil
}

func (t *Txn) end() { t.ended = true }

func (t *Txn) put(key string, c change) error {
	switch {
	case t.ended:
		return fmt.Errorf("write key %q after its transaction: %w", key, ErrClosed)
	case t.view:
		return fmt.Errorf("write key %q in a view: %w", key, ErrReadOnly)
	case len(c.value) > MaxValue:
		return fmt.Errorf("write key %q: %d bytes: %w (limit %d)", key, len(c.value), ErrTooLarge, MaxValue)
	}
	size, count := t.bytes+len(key)+len(c.value), len(t.pending)+1
	if old, ok := t.pending[key]; ok {
		size, count = size-len(key)-len(old.value), count-1
	}
	if size > MaxTxBytes || count > MaxTxKeys {
		return fmt.Errorf("write key %q: transaction of %d keys, %d bytes: %w (limits %d, %d); write it in several",
			key, count, size, ErrTooLarge, MaxTxKeys, MaxTxBytes)
	}
	if t.pending == nil {
		t.pending = make(map[string]change)
	}
	if t.trying > 0 {
		old, had := t.pending[key]
		t.undone = append(t.undone, undo{key: key, old: old, had: had})
	}
	t.pending[key], t.bytes = c, size
	return nil
}

func (t *Txn) get(key string) ([]byte, error) {
	if t.ended {
		return nil, fmt.Errorf("read key %q after its transaction: %w", key, ErrClosed)
	}
	if c, ok := t.pending[key]; ok {
		if c.deleted {
			return nil, fmt.Errorf("read key %q: %w", key, ErrNotFound)
		}
		return bytes.Clone(c.value), nil
	}
	return t.base.Get([]byte(key))
}

// iterate merges the snapshot with the changes that were pending when the loop started.
func (t *Txn) iterate(prefix, from string) iter.Seq2[Pair, error] {
	return func(yield func(Pair, error) bool) {
		if t.ended {
			yield(Pair{}, fmt.Errorf("iterate over %q after its transaction: %w", prefix, ErrClosed))
			return
		}
		over := t.writes(prefix, from)
		// overlay gives the pending changes up to key (all of them: nil) and reports whether to go on.
		overlay := func(key []byte) bool {
			for len(over) > 0 && (key == nil || bytes.Compare(over[0].Key, key) <= 0) {
				w := over[0]
				over = over[1:]
				if !w.Delete && !yield(Pair{Key: w.Key, Value: bytes.Clone(w.Value)}, nil) {
					return false
				}
			}
			return true
		}
		for p, err := range t.base.Iterate([]byte(prefix), []byte(from)) {
			if err != nil {
				yield(Pair{}, err)
				return
			}
			_, changed := slices.BinarySearchFunc(over, p.Key, func(w Write, k []byte) int { return bytes.Compare(w.Key, k) })
			if !overlay(p.Key) {
				return
			}
			if !changed && !yield(p, nil) {
				return
			}
		}
		overlay(nil)
	}
}

const separator = "/"

// owned is one owner's view of a transaction.
type owned struct {
	txn   *Txn
	owner Owner
}

var errEmpty = errors.New("a key must not be empty")

func (o owned) key(key []byte) (string, error) {
	switch full := string(o.owner) + separator + string(key); {
	case !o.owner.known():
		return "", fmt.Errorf("key %q of %q: %w: add it to the table in ledger/kv", key, o.owner, ErrOwner)
	case len(key) == 0:
		return "", fmt.Errorf("key of %s: %w", o.owner, errEmpty)
	case len(full) > MaxKey:
		return "", fmt.Errorf("key of %s: %d bytes: %w (limit %d)", o.owner, len(full), ErrTooLarge, MaxKey)
	default:
		return full, nil
	}
}

func (o owned) Get(key []byte) ([]byte, error) {
	full, err := o.key(key)
	if err != nil {
		return nil, err
	}
	return o.txn.get(full)
}

func (o owned) Set(key, value []byte) error {
	full, err := o.key(key)
	if err != nil {
		return err
	}
	return o.txn.put(full, change{value: bytes.Clone(value)})
}

func (o owned) Delete(key []byte) error {
	full, err := o.key(key)
	if err != nil {
		return err
	}
	return o.txn.put(full, change{deleted: true})
}

func (o owned) Iterate(prefix, from []byte) iter.Seq2[Pair, error] {
	return func(yield func(Pair, error) bool) {
		if !o.owner.known() {
			yield(Pair{}, fmt.Errorf("iterate over keys of %q: %w: add it to the table in ledger/kv", o.owner, ErrOwner))
			return
		}
		head := string(o.owner) + separator
		for p, err := range o.txn.iterate(head+string(prefix), head+string(from)) {
			if err == nil {
				p.Key = p.Key[len(head):]
			}
			if !yield(p, err) {
				return
			}
		}
	}
}
