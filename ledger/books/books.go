// Package books is the one durable ledger of a daemon: entries, balances, lanes, holds, settlements, the log over them, the journal
// that is their commit point and the head note beside it. Lease state of the agents commits in the same transactions. It knows no
// network and no GPU, and refuses to know what a lease is: lanes are opaque.
//
// A transaction is everything that one function of [Books.Update] writes. Its commit is one Sync of the journal; only then is it put
// into the store, and only then does Update return, so whatever a caller sends after Update can be found again after any crash.
// Functions that wait at the same time share one Sync. Every method of [Tx] may be repeated: ids are derived from what caused an entry,
// and a repeat changes nothing.
package books

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/disk"
	"github.com/gpufair/gpufair/ledger/history"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

var (
	// ErrReadOnly says that the ledger is behind its own proofs or damaged: it is shown, and nothing is written.
	ErrReadOnly = errors.New("ledger is read-only")
	// ErrBehind says that store and journal together are shorter than the head note, or than a head that a peer holds.
	ErrBehind = errors.New("ledger is behind what was signed for it")
	// ErrCorrupt says that a stored record can't be what was written.
	ErrCorrupt = errors.New("ledger is damaged")
	// ErrForged says that a signature or the log does not fit what was signed.
	ErrForged = errors.New("ledger does not fit its signatures")
	// ErrUnknownOutcome says that a commit failed after it may have reached the disk: reopen the ledger and read before deciding.
	ErrUnknownOutcome = errors.New("outcome of the commit is unknown: restart, and look")
	// ErrClosed says that the ledger was closed.
	ErrClosed = errors.New("ledger is closed")
	// ErrNoLane says that no lane of that id is here.
	ErrNoLane = errors.New("no such lane")
	// ErrConflict says that something of the same id but other content is here.
	ErrConflict = errors.New("another of the same id is here")
	// ErrDelegation says that a record names a delegation that is not here: [Tx.KeepDelegation] comes first.
	ErrDelegation = errors.New("unknown delegation")
	// ErrRole says that something is for the other side of a channel to do.
	ErrRole = errors.New("not this side's to do")
)

// Config is what the books need.
type Config struct {
	Dir    string           // for journal and head note; made with mode 0700 if it is not there
	Disk   disk.Disk        // where they lie; nil means in Dir on this machine
	Mark   string           // file outside of Dir that remembers that there was a ledger; empty: none
	Store  *kv.Store        // the books write their own owner's keys, and what callers write in transactions
	Device *identity.Device // signs checkpoints, vouchers, receipts and settlements
	Limits map[money.Unit]ledger.Limits
	Log    *slog.Logger
}

// Validate checks that nothing is missing.
func (c Config) Validate() error {
	if c.Dir == "" || c.Store == nil || c.Device == nil || c.Log == nil {
		return errors.New("books config: folder, store, device and log are needed")
	}
	return nil
}

// Books is an open ledger. Safe for concurrent use.
type Books struct {
	config Config
	disk   disk.Disk
	self   identity.AccountID
	cap    money.Micro // of this device's delegation
	epoch  uint32

	mu       sync.Mutex
	limits   map[money.Unit]ledger.Limits // guarded by mu
	queue    []*job                       // guarded by mu
	readOnly error                        // guarded by mu; why nothing may be written
	closed   bool                         // guarded by mu
	showed   bool                         // guarded by mu; others are shown what is signed here

	opened uint64 // entries when it was opened
	mute   bool   // it was opened behind a head that a peer holds

	leader  chan struct{} // holds a token while a batch is committed; guards the fields below
	journal *journal
	seq     uint64
	newest  uint64    // in the journals, as they were found
	noted   time.Time // of the last head note
	marked  mark
}

// headEvery is how often the head note is written at most: it costs two more syncs. Close writes it, too.
const headEvery = time.Second

// Open opens the ledger over c.Store: it replays the journal into the store, cuts a torn tail, and compares the result with the head
// note. A ledger that is shorter than its head note, or damaged, opens read-only: see [Books.ReadOnly]. The store must not be used by
// another Books.
func Open(ctx context.Context, c Config) (*Books, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if c.Disk == nil {
		folder, err := disk.Open(c.Dir)
		if err != nil {
			return nil, fmt.Errorf("open ledger: %w", err)
		}
		c.Disk = folder
	}
	own, err := identity.OpenDelegation(c.Device.Delegation())
	if err != nil {
		return nil, fmt.Errorf("open ledger: %w", err)
	}
	b := &Books{
		config: c, disk: c.Disk, self: c.Device.Account(), cap: min(money.Micro(own.Cap), money.Max), limits: c.Limits, leader: make(chan struct{}, 1),
	}
	if err := b.replay(ctx); err != nil {
		return nil, fmt.Errorf("open ledger: %w", err)
	}
	if err := b.readEpoch(ctx); err != nil {
		return nil, fmt.Errorf("open ledger: %w", err)
	}
	if err := errors.Join(b.compareHead(ctx), b.compareBehind(ctx), b.remember(ctx)); err != nil {
		return nil, fmt.Errorf("open ledger: %w", err)
	}
	if err := b.View(ctx, func(r *Reader) error { h, err := r.head(); b.opened = h.Size; return err }); err != nil {
		return nil, fmt.Errorf("open ledger: %w", err)
	}
	if b.readOnly != nil {
		c.Log.Error("ledger opened read-only", "err", b.readOnly)
		return b, nil
	}
	if err := b.start(); err != nil {
		return nil, fmt.Errorf("open ledger: %w", err)
	}
	return b, nil
}

// start opens the journal for writing, and says what was wrong with the file that it found.
func (b *Books) start() error {
	_, missing := b.disk.Read(journalName)
	j, aside, err := startJournal(b.disk)
	if err != nil {
		return err
	}
	b.journal = j
	const means = "the store has every transaction that the head note knows of, and a new journal was begun. " +
		"But a store lost from here on can be rebuilt only as far as the journals reach: see to the disk, and make a backup"
	switch {
	case aside != "":
		b.config.Log.Warn("journal was damaged and is set aside", "file", filepath.Join(b.config.Dir, aside), "means", means)
	case b.seq > b.newest && errors.Is(missing, fs.ErrNotExist):
		b.config.Log.Warn("journal was missing", "file", filepath.Join(b.config.Dir, journalName), "means", means)
	}
	return nil
}

// replay brings the store up to the journal's end.
func (b *Books) replay(ctx context.Context) error {
	records, lost, err := readJournals(b.disk)
	if err != nil {
		return err
	}
	err = b.config.Store.View(ctx, func(t *kv.Txn) error {
		b.seq, _, err = load[uint64](t.Of(kv.Books), []byte(keySeq))
		return err
	})
	if err != nil {
		return err
	}
	if n := len(records); n > 0 {
		b.newest = records[n-1].Seq
	}
	if b.newest > b.seq { // the store must never lead
		if err := secureJournal(b.disk); err != nil {
			return err
		}
	}
	for _, r := range records {
		if r.Seq <= b.seq {
			continue
		}
		if r.Seq != b.seq+1 {
			b.readOnly = fmt.Errorf("%w: transactions %d to %d are neither in the store nor in the journal", ErrBehind, b.seq+1, r.Seq-1)
			return nil
		}
		if err := b.config.Store.Update(ctx, func(t *kv.Txn) error { return t.Replay(r.Writes) }); err != nil {
			return fmt.Errorf("replay transaction %d: %w", r.Seq, err)
		}
		b.seq = r.Seq
	}
	if lost > b.seq {
		b.readOnly = fmt.Errorf("%w: the journal is damaged before transaction %d, and the store ends at %d", ErrCorrupt, lost, b.seq)
	}
	return nil
}

// compareHead compares store and head note.
func (b *Books) compareHead(ctx context.Context) error {
	note, ok, err := readHead(b.disk)
	if err != nil {
		if !ok {
			return err
		}
		b.readOnly = errors.Join(b.readOnly, fmt.Errorf("ledger in %s: %w", b.config.Dir, err))
		return nil
	}
	if !ok {
		return nil
	}
	if note.Seq > b.seq {
		b.readOnly = errors.Join(b.readOnly, fmt.Errorf("%w: it knows %d transactions, store and journal have %d; fetch the records back from your peers",
			ErrBehind, note.Seq, b.seq))
		return nil
	}
	return b.View(ctx, func(r *Reader) error {
		if err := r.checkHead(note); err != nil {
			b.readOnly = errors.Join(b.readOnly, err)
		}
		return nil
	})
}

// checkHead checks that the log still has the root that the head note was signed for.
func (r *Reader) checkHead(note headNote) error {
	cp, err := r.openOwn([]byte(note.Checkpoint))
	if err != nil {
		return fmt.Errorf("%w: head note: %w", ErrForged, err)
	}
	switch epoch := uint64(r.b.epoch); {
	case cp.Origin.Epoch > epoch:
		return fmt.Errorf("%w: it is of epoch %d, the store of %d", ErrBehind, cp.Origin.Epoch, epoch)
	case cp.Origin.Epoch < epoch:
		return nil // of the log before the restore
	}
	h, err := r.head()
	if err != nil {
		return err
	}
	if cp.Size > h.Size {
		return fmt.Errorf("%w: it knows %d entries, the store has %d", ErrBehind, cp.Size, h.Size)
	}
	root, err := history.Root(r.hashes(), cp.Size)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if root != cp.Root {
		return fmt.Errorf("%w: its first %d entries are not those that the head note was signed for", ErrForged, cp.Size)
	}
	return nil
}

// ReadOnly is nil, or why nothing is written: it wraps ErrReadOnly and one of ErrBehind, ErrCorrupt, ErrForged, ErrUnknownOutcome.
func (b *Books) ReadOnly() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.readOnly == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrReadOnly, b.readOnly)
}

// SetLimits changes the credit limits by unit, as after a reload of the config. A unit without limits has no credit.
func (b *Books) SetLimits(limits map[money.Unit]ledger.Limits) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.limits = limits
}

// Limits are the credit limits of a unit.
func (b *Books) Limits(u money.Unit) ledger.Limits {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.limits[u]
}

// Self is the account whose ledger this is.
func (b *Books) Self() identity.AccountID { return b.self }

// Device is what signs for it.
func (b *Books) Device() *identity.Device { return b.config.Device }

// Channel is the channel in which this account rents from provider.
func (b *Books) Channel(provider identity.AccountID, u money.Unit) ledger.Channel {
	return ledger.Channel{Renter: b.self, Provider: provider, Unit: u, Epoch: b.epoch}
}

// Close writes the head note and closes the journal, after the batch under way. The store stays open.
func (b *Books) Close() error {
	b.leader <- struct{}{}
	defer func() { <-b.leader }()
	b.mu.Lock()
	closed, broken := b.closed, b.readOnly
	b.closed = true
	b.mu.Unlock()
	if closed || b.journal == nil {
		return nil
	}
	var err error
	if broken == nil {
		err = b.config.Store.View(context.Background(), func(t *kv.Txn) error { return b.note(newReader(b, t)) })
	}
	return errors.Join(err, b.journal.close())
}

// note writes the head note of what r shows.
func (b *Books) note(r *Reader) error {
	h, err := r.head()
	if err != nil {
		return err
	}
	cp, err := r.Checkpoint()
	if err != nil {
		return err
	}
	if err := writeHead(b.disk, headNote{Seq: b.seq, Size: h.Size, Checkpoint: string(cp)}); err != nil {
		return err
	}
	b.noted = time.Now()
	return b.keepMark(h.Size)
}

// head is the log's size and root.
func (r *Reader) head() (head, error) {
	h, ok, err := load[head](r.own, []byte(keyHead))
	if err == nil && !ok {
		h.Root = wire.Hash(history.Empty(history.Origin{}).Root)
	}
	return h, err
}

// Checkpoint is the log's head as a note signed by this device (spec: ledger, Model).
func (r *Reader) Checkpoint() ([]byte, error) {
	h, err := r.head()
	if err != nil {
		return nil, err
	}
	dev := r.b.config.Device
	cp := history.Checkpoint{
		Origin: history.Origin{Peer: dev.Peer(), Epoch: uint64(r.b.epoch)}, Size: h.Size, Root: history.Hash(h.Root),
	}
	return cp.Sign(dev.SignNote)
}
