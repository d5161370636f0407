package kv

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"iter"
	"sync"
)

// Memory is an engine without a disk. Its data is a persistent treap: a snapshot is a pointer to a root that nobody changes.
// The zero value is ready; it must not be copied.
type Memory struct {
	mu     sync.Mutex
	root   *node // guarded by mu; the nodes are never changed
	closed bool  // guarded by mu
}

var _ Engine = (*Memory)(nil)

func (m *Memory) snapshot(ctx context.Context) (*node, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("memory store: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, fmt.Errorf("memory store: %w", ErrClosed)
	}
	return m.root, nil
}

// View fulfils [Engine].
func (m *Memory) View(ctx context.Context, fn func(Reader) error) error {
	root, err := m.snapshot(ctx)
	if err != nil {
		return err
	}
	return fn(root)
}

// Writable fulfils [Engine]: it is nil until Close.
func (m *Memory) Writable(ctx context.Context) error {
	_, err := m.snapshot(ctx)
	return err
}

// Apply fulfils [Engine].
func (m *Memory) Apply(ctx context.Context, writes []Write) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("memory store: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return fmt.Errorf("memory store: %w", ErrClosed)
	}
	for _, w := range writes {
		left, _, right := m.root.split(w.Key)
		if w.Delete {
			m.root = join(left, right)
			continue
		}
		sum := sha256.Sum256(w.Key)
		n := &node{key: bytes.Clone(w.Key), value: bytes.Clone(w.Value), weight: binary.BigEndian.Uint64(sum[:])}
		m.root = join(join(left, n), right)
	}
	return nil
}

// Close fulfils [Engine].
func (m *Memory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.root, m.closed = nil, true
	return nil
}

// node is a treap: ordered by key, heaped by weight (a hash of the key), so it is balanced whatever order keys come in. A nil node is
// an empty tree.
type node struct {
	key, value  []byte
	weight      uint64
	left, right *node
}

// split gives copies of what is before, at and after key.
func (n *node) split(key []byte) (before, at, after *node) {
	if n == nil {
		return nil, nil, nil
	}
	c := *n
	switch cmp := bytes.Compare(key, n.key); {
	case cmp < 0:
		before, at, c.left = n.left.split(key)
		return before, at, &c
	case cmp > 0:
		c.right, at, after = n.right.split(key)
		return &c, at, after
	default:
		return n.left, n, n.right
	}
}

// join gives a tree of all of a, whose keys are before all of b.
func join(a, b *node) *node {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	case a.weight > b.weight:
		c := *a
		c.right = join(a.right, b)
		return &c
	default:
		c := *b
		c.left = join(a, b.left)
		return &c
	}
}

// Get fulfils [Reader].
func (n *node) Get(key []byte) ([]byte, error) {
	for at := n; at != nil; {
		switch cmp := bytes.Compare(key, at.key); {
		case cmp < 0:
			at = at.left
		case cmp > 0:
			at = at.right
		default:
			return bytes.Clone(at.value), nil
		}
	}
	return nil, fmt.Errorf("read key %q: %w", key, ErrNotFound)
}

// Iterate fulfils [Reader].
func (n *node) Iterate(prefix, from []byte) iter.Seq2[Pair, error] {
	if bytes.Compare(from, prefix) < 0 {
		from = prefix
	}
	return func(yield func(Pair, error) bool) { n.walk(prefix, from, yield) }
}

func (n *node) walk(prefix, from []byte, yield func(Pair, error) bool) bool {
	if n == nil {
		return true
	}
	if bytes.Compare(n.key, from) < 0 {
		return n.right.walk(prefix, from, yield)
	}
	if !n.left.walk(prefix, from, yield) || !bytes.HasPrefix(n.key, prefix) {
		return false
	}
	return yield(Pair{Key: bytes.Clone(n.key), Value: bytes.Clone(n.value)}, nil) && n.right.walk(prefix, from, yield)
}
