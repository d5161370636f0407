// Package badger holds the bytes of a kv store on disk. It owns badger's settings, its ballast and floor of free space, its lock, its
// garbage collection and its backups, and is the only importer of github.com/dgraph-io/badger. It refuses to know what is stored.
package badger

import (
	"context"
	"io"
	"log/slog"

	"github.com/gpufair/gpufair/ledger/kv"
)

// Config is where and how a store lies.
type Config struct {
	Dir       string       // made with mode 0700 if it is not there
	FreeFloor uint64       // bytes of free space under which nothing is written; 0 means DefaultFreeFloor
	Log       *slog.Logger // badger's own messages and the garbage collection's; never nil
}

// DefaultFreeFloor is room for two memtables and two value log files of badger, with what compaction needs beside them.
const DefaultFreeFloor = 128 << 20

// DB is an open store. Safe for concurrent use.
type DB struct{}

var _ kv.Engine = (*DB)(nil)

// Open opens or makes the store in c.Dir. Errors wrap [kv.ErrInUse] if another process holds it, [kv.ErrReadOnly] if free space is under
// the floor.
func Open(ctx context.Context, c Config) (*DB, error) { return nil, nil }

// Run collects garbage until ctx ends, and gives nil then.
func (d *DB) Run(ctx context.Context) error { return nil }

// View fulfils [kv.Engine].
func (d *DB) View(ctx context.Context, fn func(kv.Reader) error) error { return nil }

// Apply fulfils [kv.Engine].
func (d *DB) Apply(ctx context.Context, writes []kv.Write) error { return nil }

// Writable fulfils [kv.Engine].
func (d *DB) Writable(ctx context.Context) error { return nil }

// Close fulfils [kv.Engine].
func (d *DB) Close() error { return nil }

// Summary says what a backup holds.
type Summary struct {
	Keys   uint64
	SHA256 [32]byte
}

// Backup writes a snapshot of the store to w.
func (d *DB) Backup(ctx context.Context, w io.Writer) (Summary, error) { return Summary{}, nil }

// Restore fills an empty store from a backup.
func (d *DB) Restore(ctx context.Context, r io.Reader) (Summary, error) { return Summary{}, nil }
