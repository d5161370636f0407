// Package kv is the one durable store of a daemon as its owners see it: ordered keys and values, read in snapshots and written in
// transactions that may span several owners, so that lease state and ledger entries commit together. It owns the table of owners and
// their key prefixes, the schema number and its migrations, and a store in memory. It refuses to know what any value means, and which
// engine holds it: an engine is an adapter such as ledger/badger.
//
// A [Store] serialises its writers: [Store.Update] runs one function at a time, and that function sees everything committed before it.
// So an owner may decide, write its journal and return nil: no other writer can make the commit fail behind its back.
package kv

import (
	"context"
	"errors"
	"iter"
)

// The typed errors. Every error of this package and of its engines that a caller may want to tell apart wraps one of them.
var (
	// ErrNotFound says that a key has no value.
	ErrNotFound = errors.New("no such key")
	// ErrConflict says that another writer was first and nothing was written: decide again from what is stored now. A [Store]
	// serialises its writers, so it never comes from a commit; owners use it where a caller's picture of the state is out of date.
	ErrConflict = errors.New("conflicting write")
	// ErrReadOnly says that the engine takes no writes now, because free space is under the floor, or because the transaction is a
	// view. Reads go on.
	ErrReadOnly = errors.New("store is read-only")
	// ErrClosed says that the store was closed, or that a transaction was used after its function returned.
	ErrClosed = errors.New("store is closed")
	// ErrSchema says that the store's data is of another release than the program can read, or of no release at all.
	ErrSchema = errors.New("schema mismatch")
	// ErrTooLarge says that a key, a value or a transaction is over its limit. Nothing was written.
	ErrTooLarge = errors.New("too large")
	// ErrUnknown says that a commit failed in a way that may or may not have reached the disk. The store takes no more writes: reopen
	// it and read before deciding (spec: ledger, Rules).
	ErrUnknown = errors.New("outcome of the commit is unknown")
	// ErrInUse says that another process holds the store.
	ErrInUse = errors.New("store is in use")
	// ErrOwner says that a key was asked for under an owner that is not in the table.
	ErrOwner = errors.New("unknown owner of keys")
)

// Limits of one transaction. They keep it under the 15 % of an 8 MiB memtable that badger can write at once (spec: ledger, Badger v4),
// with the margin that its own bookkeeping needs, so that a transaction that [Store.Update] let through always fits its engine.
const (
	// MaxKey is the longest key, its owner's prefix included. The longest that is needed is two hashes and a few letters.
	MaxKey = 512
	// MaxValue is the longest value. The largest is a job's specification with its environment.
	MaxValue = 512 << 10
	// MaxTxBytes bounds the keys and values that one transaction writes: 4 KiB for each of the 256 lanes of a tick.
	MaxTxBytes = 1 << 20
	// MaxTxKeys bounds the keys that one transaction writes.
	MaxTxKeys = 8192
)

// Owner is a package's own part of the key space. The table below is the only place where prefixes are given out; a name is part of
// the format on disk and never given to anyone else.
type Owner string

// The owners.
const (
	Books          Owner = "books"           // ledger/books: entries, balances, lanes, holds, log hashes, head
	Provider       Owner = "provider"        // provider: leases, slots, offers, settings made at run time
	Renter         Owner = "renter"          // renter: leases, jobs, logs' places
	P2PPersist     Owner = "p2p-persist"     // what p2p.Persist keeps: good peers, blocked peers
	MarketAnnounce Owner = "market-announce" // announce: own records and their serial numbers
	Negotiate      Owner = "negotiate"       // negotiate: conversations that must survive a restart
	Settle         Owner = "settle"          // ledger/settle: statements under way
	store          Owner = "kv"              // this package: the schema
)

func (o Owner) known() bool {
	switch o {
	case Books, Provider, Renter, P2PPersist, MarketAnnounce, Negotiate, Settle, store:
		return true
	}
	return false
}

// Pair is a key and its value. Both belong to the reader: they stay valid after the transaction and may be changed.
type Pair struct{ Key, Value []byte }

// Reader reads one snapshot. A view's may be used by several goroutines at once, which must all be done when its function returns; one of an
// update, or a loop, belongs to one.
type Reader interface {
	// Get gives the value under key, or [ErrNotFound].
	Get(key []byte) ([]byte, error)
	// Iterate gives the pairs whose keys start with prefix and are not before from (nil: from the first), in ascending order of their
	// bytes. It shows the transaction as it was when the loop started. An error ends it; with ErrDamaged comes the key, if it is known.
	// Loops may be nested and left early.
	Iterate(prefix, from []byte) iter.Seq2[Pair, error]
}

// Tx is one owner's part of a transaction. Valid only inside the function that got it; safe for concurrent use as its [Reader] is.
type Tx interface {
	Reader
	// Set puts value under key when the transaction commits. The store keeps its own copies. ErrTooLarge over the limits above;
	// ErrReadOnly in a view.
	Set(key, value []byte) error
	// Delete removes key when the transaction commits; a key that is not there is no error.
	Delete(key []byte) error
}

// Write is one change: a value set, or a key deleted. Key holds its owner's prefix, so a set of writes is whole by itself: ledger/books
// keeps it in the journal.
type Write struct {
	Key    []byte `cbor:"1,keyasint"`
	Value  []byte `cbor:"2,keyasint,omitempty"`
	Delete bool   `cbor:"3,keyasint,omitempty"`
}

// Engine holds the bytes: what an adapter fulfils and kvtest checks. Owners never see it; they use a [Store]. Safe for concurrent use.
type Engine interface {
	// View calls fn with a snapshot: writes applied meanwhile are not seen, and do not wait for fn. Gives fn's error.
	View(ctx context.Context, fn func(Reader) error) error
	// Apply makes all writes durable at once, or none of them; no key is in it twice. The caller stays within the limits above and has
	// asked Writable. After an error nobody may assume either outcome (the store wraps it in ErrUnknown).
	Apply(ctx context.Context, writes []Write) error
	// Writable is nil if there is room to write, or an error that wraps ErrReadOnly and says what to do.
	Writable(ctx context.Context) error
	// Close ends the engine after the calls under way. Later calls give ErrClosed. A second Close is no error.
	Close() error
}
