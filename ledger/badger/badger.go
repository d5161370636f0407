// Package badger holds the bytes of a kv store on disk. It owns badger's settings, its ballast and floor of free space, its lock and
// its garbage collection, and is the only importer of github.com/dgraph-io/badger. It refuses to know what is stored.
package badger

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/dgraph-io/badger/v4"
	"github.com/dustin/go-humanize"

	"github.com/gpufair/gpufair/ledger/kv"
)

// Config is where and how a store lies.
type Config struct {
	Dir       string // the store's own directory; made, or narrowed, to mode 0700
	FreeFloor uint64 // bytes of free space under which nothing is written; 0 means DefaultFreeFloor
	Ballast   uint64 // bytes set aside for opening a store on a full disk; 0 means DefaultBallast
	Log       *slog.Logger

	// free measures the free bytes where a path lies; nil means the disk itself.
	free func(dir string) (uint64, error)
}

const (
	// DefaultFreeFloor is room for two memtables, two value log files and one compaction at the sizes below, twice.
	DefaultFreeFloor = 128 << 20
	// DefaultBallast is room for what Open writes: the flush of two memtables and the first pages of new files.
	DefaultBallast = 32 << 20
)

// The settings of a small daemon (spec: ledger, Badger v4). kv's limits of a transaction follow from memTable.
const (
	memTable       = 8 << 20
	memTables      = 2
	blockCache     = 8 << 20
	indexCache     = 4 << 20
	valueLogFile   = 16 << 20
	valueThreshold = 64 << 10
	compactors     = 2
)

// DB is an open store. Safe for concurrent use.
type DB struct {
	db   *badger.DB
	conf Config

	mu     sync.Mutex
	closed bool           // guarded by mu
	calls  sync.WaitGroup // of what uses db; Add only under mu and while not closed

	ballastMu sync.Mutex // held while the ballast is made or removed
}

var _ kv.Engine = (*DB)(nil)

func (c Config) withDefaults() (Config, error) {
	if c.Dir == "" || c.Log == nil {
		return c, errors.New("open store: its directory and its log must be given")
	}
	if c.FreeFloor == 0 {
		c.FreeFloor = DefaultFreeFloor
	}
	if c.Ballast == 0 {
		c.Ballast = DefaultBallast
	}
	if c.free == nil {
		c.free = freeSpace
	}
	return c, nil
}

// Open opens or makes the store in c.Dir. It starts badger's own goroutines, which end with [DB.Close]. Errors wrap [kv.ErrInUse] if a
// process holds the store already, and [kv.ErrReadOnly] if there is too little free space to open it: badger dies of SIGBUS on a full
// disk; [ErrDamaged] if its files are not what was written. Opening may take seconds after a crash.
func Open(ctx context.Context, c Config) (*DB, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("open store in %s: %w", c.Dir, err)
	}
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("open store: make its directory: %w", err)
	}
	if err := os.Chmod(c.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("open store: keep others out of %s: %w", c.Dir, err)
	}
	d := &DB{conf: c}
	if err := d.roomToOpen(); err != nil {
		return nil, err
	}
	if d.db, err = openLibrary(c); err != nil {
		return nil, err
	}
	if err := d.keepBallast(); err != nil {
		return nil, errors.Join(err, d.db.Close())
	}
	return d, nil
}

func options(c Config) badger.Options {
	return badger.DefaultOptions(c.Dir).
		WithLogger(logger{c.Log}).
		WithSyncWrites(true).
		WithVerifyValueChecksum(true).
		WithDetectConflicts(false). // the store has one writer, and its writes are blind
		WithMetricsEnabled(false).
		WithMemTableSize(memTable).
		WithNumMemtables(memTables).
		WithBlockCacheSize(blockCache).
		WithIndexCacheSize(indexCache).
		WithValueLogFileSize(valueLogFile).
		WithValueThreshold(valueThreshold).
		WithNumCompactors(compactors).
		WithCompactL0OnClose(true)
}

// openError says who holds the store, or that it is damaged. Badger gives no typed error for its lock, only these words.
func openError(dir string, err error) error {
	if text := err.Error(); !strings.Contains(text, "directory lock") && !strings.Contains(text, "lock file") {
		if !ofSystem(text) {
			return damaged(dir, err)
		}
		return fmt.Errorf("open store in %s: %w", dir, err)
	}
	holder := "another process"
	if pid, rerr := os.ReadFile(filepath.Join(dir, "LOCK")); rerr == nil && len(bytes.TrimSpace(pid)) > 0 {
		holder = "process " + string(bytes.TrimSpace(pid))
	}
	return fmt.Errorf("open store in %s: %w by %s: another daemon is running on this directory; "+
		"use that one, stop it first, or give this one another data directory", dir, kv.ErrInUse, holder)
}

// enter counts a call, so that Close waits for it.
func (d *DB) enter(ctx context.Context) (leave func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("store in %s: %w", d.conf.Dir, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, fmt.Errorf("store in %s: %w", d.conf.Dir, kv.ErrClosed)
	}
	d.calls.Add(1)
	return d.calls.Done, nil
}

// Close fulfils [kv.Engine].
func (d *DB) Close() error {
	d.mu.Lock()
	again := d.closed
	d.closed = true
	d.mu.Unlock()
	d.calls.Wait()
	if again {
		return nil
	}
	if err := d.db.Close(); err != nil {
		return fmt.Errorf("close store in %s: %w", d.conf.Dir, err)
	}
	return nil
}

// View fulfils [kv.Engine].
func (d *DB) View(ctx context.Context, fn func(kv.Reader) error) error {
	leave, err := d.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	txn := d.db.NewTransaction(false)
	defer txn.Discard()
	return fn(reader{txn})
}

// Apply fulfils [kv.Engine]: it returns after the write-ahead log was synced.
func (d *DB) Apply(ctx context.Context, writes []kv.Write) error {
	leave, err := d.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	txn := d.db.NewTransaction(true)
	defer txn.Discard()
	for _, w := range writes {
		if w.Delete {
			err = txn.Delete(w.Key)
		} else {
			err = txn.Set(w.Key, w.Value)
		}
		if err != nil {
			return fmt.Errorf("write key %q: %w", w.Key, typed(err))
		}
	}
	if err := txn.Commit(); err != nil {
		return fmt.Errorf("write %d keys to the store in %s: %w", len(writes), d.conf.Dir, typed(err))
	}
	return nil
}

// typed adds kv's kind to badger's error.
func typed(err error) error {
	for from, to := range map[error]error{
		badger.ErrTxnTooBig: kv.ErrTooLarge, badger.ErrDBClosed: kv.ErrClosed, badger.ErrBlockedWrites: kv.ErrClosed,
		badger.ErrConflict: kv.ErrConflict,
	} {
		if errors.Is(err, from) {
			return fmt.Errorf("%w: %w", to, err)
		}
	}
	return err
}

// Writable fulfils [kv.Engine]: it measures the free space, and gives the ballast back to the disk when it is under the floor, so that
// badger's own background work has room.
func (d *DB) Writable(ctx context.Context) error {
	leave, err := d.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	free, err := d.conf.free(d.conf.Dir)
	if err != nil {
		return fmt.Errorf("measure free space of %s: %w", d.conf.Dir, err)
	}
	if free >= d.conf.FreeFloor {
		return nil
	}
	if err := d.dropBallast(); err != nil {
		return err
	}
	return fmt.Errorf("write to the store in %s: %w: %s of disk are free and the floor is %s: free some space, writing goes on by itself",
		d.conf.Dir, kv.ErrReadOnly, humanize.IBytes(free), humanize.IBytes(d.conf.FreeFloor))
}

const (
	// collectEvery is how often garbage is looked for: values over 64 KiB are rare, so there is little of it.
	collectEvery = 10 * time.Minute
	// garbageShare is how much of a value log file must be garbage before it is rewritten.
	garbageShare = 0.5
)

// Run collects garbage and keeps the ballast until ctx ends, and gives nil then. A fault is logged and tried again next time.
func (d *DB) Run(ctx context.Context) error {
	tick := time.NewTicker(collectEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if err := d.collect(ctx); err != nil && !errors.Is(err, kv.ErrClosed) && ctx.Err() == nil {
				d.conf.Log.Warn("store not tidied", "dir", d.conf.Dir, "err", err)
			}
		}
	}
}

// collect rewrites value log files that are mostly garbage, one at a time, while there is room to, and makes the ballast again.
func (d *DB) collect(ctx context.Context) error {
	for {
		if err := d.Writable(ctx); err != nil {
			return err
		}
		leave, err := d.enter(ctx)
		if err != nil {
			return err
		}
		err = d.db.RunValueLogGC(garbageShare)
		leave()
		if errors.Is(err, badger.ErrNoRewrite) {
			return d.keepBallast()
		}
		if err != nil {
			return fmt.Errorf("collect garbage in %s: %w", d.conf.Dir, err)
		}
	}
}

// reader is a snapshot.
type reader struct{ txn *badger.Txn }

func (r reader) Get(key []byte) ([]byte, error) {
	item, err := r.txn.Get(key)
	if errors.Is(err, badger.ErrKeyNotFound) {
		return nil, fmt.Errorf("read key %q: %w", key, kv.ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("read key %q: %w", key, err)
	}
	return valueOf(item)
}

// valueOf gives an item's value. Where badger cannot read one, it logs that and gives an empty one without an error.
func valueOf(item *badger.Item) ([]byte, error) {
	v, err := item.ValueCopy(nil)
	if err == nil && len(v) == 0 && item.ValueSize() > 0 {
		err = ErrDamaged
	}
	if err != nil {
		return nil, fmt.Errorf("read key %q: %w", item.Key(), err)
	}
	return v, nil
}

func (r reader) Iterate(prefix, from []byte) iter.Seq2[kv.Pair, error] {
	return func(yield func(kv.Pair, error) bool) {
		opts := badger.DefaultIteratorOptions
		opts.Prefix, opts.PrefetchValues = prefix, false // a goroutine for each value, of which most lie beside their keys
		it := r.txn.NewIterator(opts)
		defer it.Close()
		if bytes.Compare(from, prefix) < 0 {
			from = prefix
		}
		for it.Seek(from); it.Valid(); it.Next() {
			item := it.Item()
			v, err := valueOf(item)
			if err != nil {
				yield(kv.Pair{Key: item.KeyCopy(nil)}, err)
				return
			}
			if !yield(kv.Pair{Key: item.KeyCopy(nil), Value: v}, nil) {
				return
			}
		}
	}
}

// logger gives badger's messages to slog. Badger's "info" is what it does on its own: nothing a person asked for.
type logger struct{ log *slog.Logger }

func (l logger) say(log func(string, ...any), format string, args []any) {
	log("badger: " + strings.TrimSpace(fmt.Sprintf(format, args...)))
}

func (l logger) Errorf(format string, args ...any)   { l.say(l.log.Error, format, args) }
func (l logger) Warningf(format string, args ...any) { l.say(l.log.Warn, format, args) }
func (l logger) Infof(format string, args ...any)    { l.say(l.log.Debug, format, args) }
func (l logger) Debugf(format string, args ...any)   { l.say(l.log.Debug, format, args) }
