package wire

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/ledger/backup"
	"github.com/gpufair/gpufair/ledger/badger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/disk"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/p2p/identity"
)

// A store is made again beside its place, in store.new, and moved there whole: what was there becomes store.aside-<epoch> and is never
// deleted. The file "ready" in store.new says that it is whole; a start that finds no store but that moves it the last step. So a crash
// at any point leaves the old store or the new one, and never neither.
const (
	newStore  = "store.new"
	aside     = "store.aside-"
	readyName = "ready"
)

// RestoreConfig says what a ledger is made again from.
type RestoreConfig struct {
	State string // folder of identity and store
	// Backup is a file to start from; empty: from what is left of the store and its journal.
	Backup string
	// OtherDevice allows a backup that another device of the same account made: its leases are shown and settled, and can't be continued.
	OtherDevice bool
	Release     string
	Log         *slog.Logger
	Now         time.Time
}

// Restored is what came of it.
type Restored struct {
	Epoch    uint32         `json:"epoch"`
	Entries  uint64         `json:"entries"`
	From     string         `json:"from" doc:"backup, store, records or nothing"`
	Replayed int            `json:"replayed" doc:"transactions that the journal had beyond it"`
	Salvaged books.Salvaged `json:"salvaged"`
	Aside    string         `json:"aside,omitempty" doc:"where the old store is now"`
	Peers    int            `json:"peers" doc:"that are to be asked"`
}

// What a restored ledger came from.
const (
	FromBackup  = "backup"
	FromStore   = "store"   // it was sound as far as it reached
	FromRecords = "records" // it was not: every signed record that reads was checked and taken over
	FromNothing = "nothing"
)

// MarkFile remembers, beside the keys, that this device has had a ledger.
func MarkFile(state string) string { return filepath.Join(IdentityDir(state), "ledger") }

// restoring is a restore under way.
type restoring struct {
	RestoreConfig
	dev    *identity.Device
	header backup.Header // of the backup
	old    *badger.DB    // nil: there is none, or it can't be opened
	known  uint32        // highest epoch that is known
	out    Restored
	unread int    // pairs of the old store whose values are damaged
	why    string // the ledger that was made last is not sound
}

// Restore makes a ledger again, with the daemon stopped. Errors are for people.
func Restore(ctx context.Context, c RestoreConfig) (Restored, error) {
	r := &restoring{RestoreConfig: c, known: books.MarkedEpoch(MarkFile(c.State))}
	what := "recover the ledger"
	if c.Backup != "" {
		what = "restore the ledger"
	}
	for _, step := range []func(context.Context) error{r.checkIdentity, r.checkBackup, r.finish, r.openOld, r.needed, r.build} {
		if err := step(ctx); err != nil {
			return r.out, errors.Join(explainRestore(what, err), r.closeOld())
		}
	}
	if err := errors.Join(r.closeOld(), r.swap()); err != nil {
		return r.out, explainRestore(what, err)
	}
	return r.out, nil
}

// explainRestore adds what to do.
func explainRestore(what string, err error) error {
	next := "nothing was changed: the old store is where it was"
	code := cli.ExitSystem
	switch {
	case errors.Is(err, kv.ErrInUse):
		code, next = cli.ExitRefused, "stop the daemon first (`gpufair agent stop`, or Ctrl-C where `gpufaird run` runs)"
	case errors.Is(err, errSound):
		code, next = cli.ExitRefused, "start the daemon: it asks the peers by itself for what a restored ledger may have lost"
	case errors.Is(err, errForeign):
		code, next = cli.ExitRefused, "give a backup of this account; `identity import` brings another account back, in a --home of its own"
	case errors.Is(err, backup.ErrOther):
		code, next = cli.ExitRefused, "give the backup of this device; with --other-device one of another device of the same account is taken"
	case errors.Is(err, backup.ErrBackup):
		code, next = cli.ExitCorrupt, "take another copy of the file, or an older backup"
	case errors.Is(err, kv.ErrReadOnly):
		next = "free some space on the disk; " + next
	case errors.Is(err, identity.ErrNoIdentity):
		code, next = cli.ExitNotFound, "`identity import` brings the account back from its words; then `ledger restore FILE --other-device`, since this\nPC is a new device of it"
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, disk.ErrNotFile):
		code, next = cli.ExitNotFound, "give the name of a file that `ledger backup` wrote"
	}
	return cli.Fail(code, what, err, next)
}

func (r *restoring) checkIdentity(context.Context) (err error) {
	r.dev, err = identity.Load(IdentityDir(r.State))
	return err
}

// checkBackup reads the backup whole, before anything is made.
func (r *restoring) checkBackup(ctx context.Context) error {
	if r.Backup == "" {
		return nil
	}
	f, err := disk.OpenFile(r.Backup)
	if err != nil {
		return err
	}
	defer f.Close()
	if r.header, err = backup.Check(ctx, f); err != nil {
		return err
	}
	switch {
	case r.header.Account != r.dev.Account():
		return fmt.Errorf("%w: of account %s, this is %s: %w", backup.ErrOther, r.header.Account, r.dev.Account(), errForeign)
	case r.header.Device != r.dev.Peer() && !r.OtherDevice:
		return fmt.Errorf("%w: of device %s, this is %s", backup.ErrOther, r.header.Device, r.dev.Peer())
	}
	r.known = max(r.known, r.header.Epoch)
	return nil
}

// errForeign is why no flag helps.
var errForeign = errors.New("a ledger belongs to the account whose keys signed it")

func (r *restoring) place(parts ...string) string {
	return filepath.Join(append([]string{r.State}, parts...)...)
}

// finish does the last step of an earlier restore: what it made is the store that is there.
func (r *restoring) finish(context.Context) error {
	_, err := FinishRestore(r.State)
	return err
}

// openOld opens the store that is there, which takes its lock: so no daemon runs.
func (r *restoring) openOld(ctx context.Context) error {
	dir := filepath.Join(StoreDir(r.State), "badger")
	if epoch, ok := books.HeadEpoch(filepath.Join(StoreDir(r.State), "ledger"), r.dev.Peer()); ok {
		r.known = max(r.known, epoch)
	}
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	db, err := badger.Open(ctx, badger.Config{Dir: dir, Log: r.Log})
	if errors.Is(err, badger.ErrDamaged) {
		r.Log.Warn("the store can't be opened; its journal is read", "err", err)
		return nil
	}
	r.old = db
	return err
}

// errSound says that there is nothing to make again.
var errSound = errors.New("the ledger that is there is sound")

// needed refuses to make a ledger again that can be used as it is.
func (r *restoring) needed(ctx context.Context) error {
	if r.Backup != "" || r.old == nil {
		return nil
	}
	store, err := kv.Open(ctx, r.old, schema(r.Release))
	if err != nil {
		return err
	}
	b, err := books.Open(ctx, books.Config{
		Dir: filepath.Join(StoreDir(r.State), "ledger"), Mark: MarkFile(r.State), Store: store, Device: r.dev, Log: r.Log,
	})
	if broken(err) {
		r.Log.Warn("the ledger can't be opened", "err", err)
		return nil
	}
	if err != nil {
		return err
	}
	v, err := b.Verify(ctx)
	if err = errors.Join(err, b.Close()); err == nil && v.Result == books.ResultOK {
		err = errSound
	}
	return err
}

func (r *restoring) closeOld() error {
	if r.old == nil {
		return nil
	}
	return r.old.Close()
}

// build makes store.new.
func (r *restoring) build(ctx context.Context) error {
	if err := os.RemoveAll(r.place(newStore)); err != nil {
		return fmt.Errorf("remove an earlier try: %w", err)
	}
	sound, err := r.try(ctx, newStore, true)
	if err == nil && !sound && r.out.Replayed > 0 && r.Backup != "" { // the journal is of another life of the ledger
		if err = os.RemoveAll(r.place(newStore)); err == nil {
			sound, err = r.try(ctx, newStore, false)
		}
	}
	if err != nil {
		return err
	}
	if !sound {
		return r.salvage(ctx)
	}
	return nil
}

// try fills a store from the backup, or from what is there, and reports whether the ledger in it is sound; then it is of a new epoch.
func (r *restoring) try(ctx context.Context, name string, journal bool) (sound bool, err error) {
	db, err := badger.Open(ctx, badger.Config{Dir: r.place(name, "badger"), Log: r.Log})
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if r.out.From, err = r.fill(ctx, db); err != nil {
		return false, err
	}
	store, err := kv.Open(ctx, db, schema(r.Release))
	if err != nil {
		return false, err
	}
	if r.Backup != "" {
		if err := books.CheckRestored(ctx, store, r.header); err != nil {
			return false, err
		}
	}
	r.out.Replayed = 0
	if journal && r.follows() {
		r.out.Replayed, err = books.ReplayInto(ctx, filepath.Join(StoreDir(r.State), "ledger"), store)
		if err != nil && !broken(err) { // what can't be opened is found below not to be sound
			return false, err
		}
	}
	if sound, err = r.sound(ctx, name, store); err != nil || !sound {
		return false, err
	}
	return true, r.begin(ctx, store)
}

// follows reports whether the journal that is there may go on from what the new store was filled from: it is of the same epoch.
func (r *restoring) follows() bool {
	if r.Backup == "" {
		return true
	}
	epoch, ok := books.HeadEpoch(filepath.Join(StoreDir(r.State), "ledger"), r.dev.Peer())
	return ok && epoch == r.header.Epoch && r.header.Device == r.dev.Peer()
}

// fill copies the records.
func (r *restoring) fill(ctx context.Context, to kv.Engine) (from string, err error) {
	fill := backup.NewFill(to)
	add := func(p kv.Pair) error { return fill.Add(ctx, p) }
	switch {
	case r.Backup != "":
		from = FromBackup
		f, err := disk.OpenFile(r.Backup)
		if err != nil {
			return from, err
		}
		defer f.Close()
		if _, err := backup.Read(ctx, f, add); err != nil {
			return from, err
		}
	case r.old != nil:
		from = FromStore
		r.unread = 0
		if err = r.old.View(ctx, func(v kv.Reader) error { return r.copyReadable(v, nil, add) }); err != nil {
			return from, err
		}
	default:
		return FromNothing, nil
	}
	return from, fill.Flush(ctx)
}

// copyReadable adds the pairs under a prefix, without those whose values are damaged: it counts them.
func (r *restoring) copyReadable(v kv.Reader, prefix []byte, add func(kv.Pair) error) error {
	for from, more := prefix, true; more; {
		more = false
		for p, err := range v.Iterate(prefix, from) {
			if errors.Is(err, kv.ErrDamaged) && p.Key != nil {
				r.unread, from, more = r.unread+1, append(p.Key, 0), true // the next key that there can be
				break
			}
			if err == nil {
				err = add(p)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// sound checks the whole ledger in a store that nobody uses yet.
func (r *restoring) sound(ctx context.Context, name string, store *kv.Store) (bool, error) {
	b, err := r.books(ctx, name, store)
	if broken(err) {
		r.why = err.Error()
		r.Log.Warn("the ledger can't be opened", "from", r.out.From, "err", err)
		return false, os.RemoveAll(r.place(name, "ledger"))
	}
	if err != nil {
		return false, err
	}
	v, err := b.Verify(ctx)
	if err = errors.Join(err, b.Close(), os.RemoveAll(r.place(name, "ledger"))); err != nil {
		return false, err
	}
	r.out.Entries = v.Entries
	if v.Result != books.ResultOK {
		r.why = fmt.Sprintf("%s: %s: %s", v.Result, v.Entry, v.Detail)
		r.Log.Warn("the ledger is not sound", "from", r.out.From, "result", v.Result, "entry", v.Entry, "detail", v.Detail)
	}
	return v.Result == books.ResultOK, nil
}

// books opens the ledger in a store that is being made, which has no journal yet: nobody is told that one is missing there.
func (r *restoring) books(ctx context.Context, name string, store *kv.Store) (*books.Books, error) {
	return books.Open(ctx, books.Config{Dir: r.place(name, "ledger"), Store: store, Device: r.dev, Log: slog.New(slog.DiscardHandler)})
}

// begin makes the store the start of a new epoch. Its journal and head note are begun with it: the first start misses none.
func (r *restoring) begin(ctx context.Context, store *kv.Store) (err error) {
	if r.out.Epoch, err = books.NewEpoch(ctx, store, r.dev, r.known, r.Now); err != nil {
		return err
	}
	r.known = r.out.Epoch
	b, err := r.books(ctx, newStore, store)
	if err != nil {
		return err
	}
	if err := b.Close(); err != nil {
		return err
	}
	return store.View(ctx, func(t *kv.Txn) error {
		r.out.Peers, err = books.CountPending(t)
		return err
	})
}

// salvage makes a new ledger of the signed records that read, in place of one that is not sound; all other owners' records are kept.
func (r *restoring) salvage(ctx context.Context) (err error) {
	const source = newStore + ".damaged"
	if err := errors.Join(os.RemoveAll(r.place(source)), os.Rename(r.place(newStore), r.place(source))); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(r.place(source))) }()
	from, err := badger.Open(ctx, badger.Config{Dir: r.place(source, "badger"), Log: r.Log})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	to, err := badger.Open(ctx, badger.Config{Dir: r.place(newStore, "badger"), Log: r.Log})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	damaged, err := kv.Open(ctx, from, schema(r.Release))
	if err != nil {
		return err
	}
	store, err := kv.Open(ctx, to, schema(r.Release))
	if err != nil {
		return err
	}
	if err := copyOthers(ctx, from, store); err != nil {
		return err
	}
	if err := r.begin(ctx, store); err != nil { // what is signed while it is made is of an epoch of its own
		return err
	}
	b, err := r.books(ctx, newStore, store)
	if err != nil {
		return err
	}
	r.out.From = FromRecords
	r.out.Salvaged, err = b.Salvage(ctx, damaged)
	r.out.Salvaged.Lost += r.unread
	if err = errors.Join(err, b.Close(), os.RemoveAll(r.place(newStore, "ledger"))); err != nil {
		return err
	}
	if sound, err := r.sound(ctx, newStore, store); err != nil || !sound {
		return errors.Join(err, fmt.Errorf("the ledger made of the signed records is not sound (%s): keep the folder and report it", r.why))
	}
	return r.begin(ctx, store)
}

// copyOthers copies what belongs to no ledger.
func copyOthers(ctx context.Context, from *badger.DB, to *kv.Store) error {
	var batch []kv.Write
	size := 0
	flush := func() error {
		err := to.Update(ctx, func(t *kv.Txn) error { return t.Replay(batch) })
		batch, size = nil, 0
		return err
	}
	err := from.View(ctx, func(v kv.Reader) error {
		for _, o := range kv.Owners() {
			if o == kv.Books {
				continue
			}
			for p, err := range v.Iterate([]byte(string(o)+"/"), nil) {
				if err == nil && size+len(p.Value) > copyBytes {
					err = flush()
				}
				if err != nil {
					return err
				}
				batch, size = append(batch, kv.Write{Key: p.Key, Value: p.Value}), size+len(p.Key)+len(p.Value)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return flush()
}

// copyBytes is half of what a transaction may write, so that one more record always fits.
const copyBytes = kv.MaxTxBytes / 2
