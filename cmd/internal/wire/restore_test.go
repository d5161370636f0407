package wire

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/backup"
	"github.com/gpufair/gpufair/ledger/badger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/disk"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/meter"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/p2p/identity"
)

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// home is a daemon's state folder without its daemon.
type home struct {
	t     *testing.T
	state string
	dev   *identity.Device
	warns io.Writer // what a person is warned of when store and ledger open; nil: nowhere
}

func newHome(t *testing.T) home {
	t.Helper()
	h := home{t: t, state: t.TempDir()}
	var err error
	h.dev, _, err = identity.LoadOrCreate(IdentityDir(h.state), time.Now())
	must(t, err)
	return h
}

// open opens store and ledger as a daemon does; close as one that is killed does, or cleanly.
func (h home) open() (b *books.Books, kill, stop func()) {
	h.t.Helper()
	if _, err := FinishRestore(h.state); err != nil {
		h.t.Fatal(err)
	}
	dir := StoreDir(h.state)
	log := slog.New(slog.DiscardHandler)
	if h.warns != nil {
		log = slog.New(slog.NewTextHandler(h.warns, &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	db, err := badger.Open(h.t.Context(), badger.Config{Dir: filepath.Join(dir, "badger"), Log: log, Ballast: 1 << 20, FreeFloor: 1 << 20})
	must(h.t, err)
	store, err := kv.Open(h.t.Context(), db, schema("v0.0.1"))
	must(h.t, err)
	b, err = books.Open(h.t.Context(), books.Config{
		Dir: filepath.Join(dir, "ledger"), Mark: MarkFile(h.state), Store: store, Device: h.dev, Log: log,
	})
	must(h.t, err)
	kill = func() { h.t.Helper(); must(h.t, db.Close()) }
	return b, kill, func() { h.t.Helper(); must(h.t, errors.Join(b.Close(), db.Close())) }
}

// rent opens lanes and promises 100 on each, with a job's record beside it.
func (h home) rent(b *books.Books, from, n int) {
	h.t.Helper()
	for i := from; i < from+n; i++ {
		lane := ledger.Lane{byte(i), 7}
		must(h.t, b.Update(h.t.Context(), func(tx *books.Tx) error {
			_, err := tx.Promise(books.Opening{Channel: b.Channel(identity.AccountID{9}, money.Credit), Lane: lane, Rate: 3_600_000, Devices: 1, Hold: 5})
			if err != nil {
				return err
			}
			if _, err := tx.SignVoucher(lane, 100, []meter.Segment{{Rate: 3_600_000, Devices: 1, Ms: 100}}); err != nil {
				return err
			}
			return tx.Of(kv.Renter).Set([]byte{'j', byte(i)}, []byte("job"))
		}))
	}
}

func (h home) backup(b *books.Books) string {
	h.t.Helper()
	var out bytes.Buffer
	_, err := b.Backup(h.t.Context(), &out, time.Now())
	must(h.t, err)
	path := filepath.Join(h.t.TempDir(), "ledger.backup")
	must(h.t, os.WriteFile(path, out.Bytes(), 0o600))
	return path
}

func (h home) restore(from string) (Restored, error) {
	return Restore(h.t.Context(), RestoreConfig{State: h.state, Backup: from, Release: "v0.0.1", Log: slog.New(slog.DiscardHandler), Now: time.Now()})
}

// owes checks what the ledger owes after it was opened, that it is sound and can be written.
func (h home) owes(want int64, jobs int) {
	h.t.Helper()
	b, _, stop := h.open()
	defer stop()
	if err := b.ReadOnly(); err != nil {
		h.t.Error(err)
	}
	v, err := b.Verify(h.t.Context())
	if err != nil || v.Result != books.ResultOK {
		h.t.Errorf("%+v, %v", v, err)
	}
	n := 0
	must(h.t, b.View(h.t.Context(), func(r *books.Reader) error {
		a, err := r.Account(ledger.AsRenter, money.Credit, identity.AccountID{9})
		if a.Owed != want {
			h.t.Errorf("%d owed, want %d", a.Owed, want)
		}
		for _, err := range r.Of(kv.Renter).Iterate([]byte("j"), nil) {
			must(h.t, err)
			n++
		}
		return err
	}))
	if n != jobs {
		h.t.Errorf("%d job records, want %d", n, jobs)
	}
	must(h.t, b.Update(h.t.Context(), func(tx *books.Tx) error { return tx.Of(kv.Renter).Set([]byte("x"), nil) }))
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// TestRestore: the backup, and what the journal that is there has beyond it; the old store is set aside.
func TestRestore(t *testing.T) {
	h := newHome(t)
	b, kill, _ := h.open()
	h.rent(b, 0, 3)
	file := h.backup(b)
	if _, err := h.restore(file); cli.CodeOf(err) != cli.ExitRefused || !errors.Is(err, kv.ErrInUse) {
		t.Errorf("while the daemon runs: %v", err)
	}
	h.rent(b, 3, 2)
	kill()
	got, err := h.restore(file)
	if err != nil || got.From != FromBackup || got.Replayed == 0 || got.Peers != 1 || !exists(got.Aside) {
		t.Fatalf("%+v, %v", got, err)
	}
	var warned bytes.Buffer
	h.warns = &warned
	h.owes(500, 5)
	if warned.Len() > 0 {
		t.Errorf("the first start after a restore warns: %s", &warned)
	}
	must(t, os.RemoveAll(StoreDir(h.state)))
	again, err := h.restore(file)
	if err != nil || again.Replayed != 0 || again.Epoch <= got.Epoch || again.Aside != "" {
		t.Fatalf("of a lost store: %+v after epoch %d, %v", again, got.Epoch, err)
	}
	h.owes(300, 3)
	again2, err := h.restore(file) // and the journal of the restored one is not of the backup's life
	if err != nil || again2.Replayed != 0 || again2.Epoch <= again.Epoch {
		t.Fatalf("again: %+v, %v", again2, err)
	}
	h.owes(300, 3)
}

// TestRestoreRefuses: what can't be this ledger leaves everything as it was.
func TestRestoreRefuses(t *testing.T) {
	h, other := newHome(t), newHome(t)
	b, _, stop := h.open()
	h.rent(b, 0, 3)
	file := h.backup(b)
	stop()
	ob, _, ostop := other.open()
	other.rent(ob, 0, 1)
	foreign := other.backup(ob)
	ostop()
	raw, err := os.ReadFile(file)
	must(t, err)
	raw[len(raw)/2] ^= 1
	damaged := filepath.Join(t.TempDir(), "damaged")
	must(t, os.WriteFile(damaged, raw, 0o600))
	for name, c := range map[string]struct {
		from string
		code cli.ExitCode
		want error
	}{
		"another account's": {foreign, cli.ExitRefused, backup.ErrOther},
		"a damaged one":     {damaged, cli.ExitCorrupt, backup.ErrBackup},
		"none":              {filepath.Join(t.TempDir(), "no"), cli.ExitNotFound, os.ErrNotExist},
		"a device":          {os.DevNull, cli.ExitNotFound, disk.ErrNotFile},
		"a sound ledger":    {"", cli.ExitRefused, errSound},
	} {
		if _, err := h.restore(c.from); cli.CodeOf(err) != c.code || !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
		list, err := filepath.Glob(filepath.Join(h.state, "store*"))
		if err != nil || len(list) != 1 {
			t.Errorf("%s: %q, %v", name, list, err)
		}
	}
	h.owes(300, 3)
}

// loss is a way to lose a ledger of four leases and their jobs.
type loss struct {
	lose     func(h home)
	unopened bool   // the store, or the ledger in it, can't be opened
	from     string // empty: the next start needs no help
	owed     int64
	jobs     int
	verdict  string // empty: corrupt
}

func (h home) ledgerFile(parts ...string) string {
	return filepath.Join(append([]string{StoreDir(h.state)}, parts...)...)
}

// first changes the first record under a prefix.
func (h home) first(prefix string, f func([]byte)) {
	h.change(func(own kv.Tx) error {
		for p, err := range own.Iterate([]byte(prefix), nil) {
			if err != nil {
				return err
			}
			f(p.Value)
			return own.Set(p.Key, p.Value)
		}
		return nil
	})
}

var losses = map[string]loss{
	"all deleted but the mark":     {lose: func(h home) { must(h.t, os.RemoveAll(h.ledgerFile())) }, from: FromStore, verdict: books.ResultBehind},
	"store deleted, journal whole": {lose: func(h home) { must(h.t, os.RemoveAll(h.ledgerFile("badger"))) }, owed: 400, jobs: 4},
	"store and journal deleted": {lose: func(h home) {
		must(h.t, errors.Join(os.RemoveAll(h.ledgerFile("badger")), os.Remove(h.ledgerFile("ledger", "journal"))))
	}, from: FromStore, verdict: books.ResultBehind},
	"a table cut": {lose: func(h home) {
		list, err := filepath.Glob(h.ledgerFile("badger", "*.sst"))
		if err != nil || len(list) == 0 {
			h.t.Fatal("no table to cut", err)
		}
		must(h.t, os.Truncate(list[0], 3))
	}, unopened: true, from: FromNothing, owed: 400, jobs: 4},
	"a record changed": {lose: func(h home) { h.first("bal/", func(v []byte) { v[7] ^= 1 }) }, from: FromRecords, owed: 400, jobs: 4},
	"an entry lost": {lose: func(h home) {
		h.change(func(own kv.Tx) error { return own.Delete([]byte("e/\x00\x00\x00\x00\x00\x00\x00\x01")) })
	}, from: FromRecords, owed: 400, jobs: 4},
	"the last transaction's number changed": {lose: func(h home) { h.first("seq", func(v []byte) { v[0] = 0xff }) }, unopened: true, from: FromRecords, owed: 400, jobs: 4},
	"a large value damaged": {lose: func(h home) {
		h.write(kv.Renter, "large", bytes.Repeat([]byte("large"), 20<<10))
		flip(h.t, h.ledgerFile("badger", "*.vlog"), []byte("largelarge"))
	}, from: FromRecords, owed: 400, jobs: 4},
	"a voucher changed": {lose: func(h home) { h.first("v/", func(v []byte) { v[len(v)-1] ^= 1 }) }, from: FromRecords, owed: 300, jobs: 4, verdict: books.ResultForged},
}

// TestRecover: every way to lose a ledger is seen at the start and has a way out.
func TestRecover(t *testing.T) {
	for name, c := range losses {
		t.Run(name, func(t *testing.T) {
			h := newHome(t)
			b, _, stop := h.open()
			h.rent(b, 0, 4)
			stop()
			c.lose(h)
			if c.from == "" {
				h.owes(c.owed, c.jobs)
				return
			}
			if !c.unopened {
				b, kill, _ := h.open()
				v, err := b.Verify(t.Context())
				if err != nil || v.Result == books.ResultOK {
					t.Errorf("before: %+v, %v", v, err)
				}
				kill()
			}
			v, looked, err := StoppedVerify(t.Context(), h.state)
			if err != nil || !looked || v.Result != cmp.Or(c.verdict, books.ResultCorrupt) {
				t.Errorf("while stopped: %+v, looked %v, %v", v, looked, err)
			}
			got, err := h.restore("")
			if err != nil || got.From != c.from {
				t.Fatalf("%+v, %v", got, err)
			}
			h.owes(c.owed, c.jobs)
		})
	}
}

// write writes a record as an agent does.
func (h home) write(o kv.Owner, key string, value []byte) {
	h.t.Helper()
	b, _, stop := h.open()
	must(h.t, b.Update(h.t.Context(), func(tx *books.Tx) error { return tx.Of(o).Set([]byte(key), value) }))
	stop()
}

// flip changes a byte of the first file of a pattern that holds text.
func flip(t *testing.T, pattern string, text []byte) {
	t.Helper()
	list, err := filepath.Glob(pattern)
	must(t, err)
	for _, name := range list {
		b, err := os.ReadFile(name)
		must(t, err)
		if at := bytes.Index(b, text); at >= 0 {
			b[at] ^= 1
			must(t, os.WriteFile(name, b, 0o600))
			return
		}
	}
	t.Fatalf("%q is in none of %q", text, list)
}

// change changes records behind the ledger's back.
func (h home) change(f func(kv.Tx) error) {
	h.t.Helper()
	db, err := badger.Open(h.t.Context(), badger.Config{Dir: filepath.Join(StoreDir(h.state), "badger"), Log: slog.New(slog.DiscardHandler)})
	must(h.t, err)
	store, err := kv.Open(h.t.Context(), db, schema("v0.0.1"))
	must(h.t, err)
	must(h.t, store.Update(h.t.Context(), func(t *kv.Txn) error { return f(t.Of(kv.Books)) }))
	must(h.t, db.Close())
}

// TestRestoreCutShort: a crash before, between and after the two renames leaves the old ledger or the new one.
func TestRestoreCutShort(t *testing.T) {
	h := newHome(t)
	b, _, stop := h.open()
	h.rent(b, 0, 3)
	file := h.backup(b)
	stop()
	// While it is being filled: what is there of the new store is of no use, and the old one is as it was.
	must(t, os.MkdirAll(filepath.Join(h.state, newStore, "badger"), 0o700))
	h.owes(300, 3)
	if _, err := h.restore(file); err != nil {
		t.Fatal(err)
	}
	// Between the renames.
	must(t, os.Rename(StoreDir(h.state), filepath.Join(h.state, newStore)))
	if done, err := FinishRestore(h.state); !done || err != nil {
		t.Errorf("not finished: %v", err)
	}
	h.owes(300, 3)
	if done, err := FinishRestore(h.state); done || err != nil {
		t.Errorf("finished twice: %v", err)
	}
	// So does a command that comes before the next start: it sets no whole store aside for one made of nothing.
	must(t, os.Rename(StoreDir(h.state), filepath.Join(h.state, newStore)))
	if got, err := h.restore(""); !errors.Is(err, errSound) {
		t.Errorf("recovered from %q, %v", got.From, err)
	}
	h.owes(300, 3)
	must(t, os.Rename(StoreDir(h.state), filepath.Join(h.state, newStore)))
	if err := StoppedBackup(t.Context(), h.state, io.Discard); err != nil {
		t.Error(err)
	}
	// A half-filled one takes no place, even if no other is there.
	must(t, os.RemoveAll(StoreDir(h.state)))
	must(t, os.MkdirAll(filepath.Join(h.state, newStore), 0o700))
	if done, err := FinishRestore(h.state); done || err != nil {
		t.Errorf("a half-filled store was taken: %v", err)
	}
	b2, kill, _ := h.open()
	if err := b2.ReadOnly(); !errors.Is(err, books.ErrBehind) || !strings.Contains(err.Error(), "epoch") {
		t.Errorf("a ledger that begins anew without a word: %v", err)
	}
	kill()
}

// TestOtherDevice: another device of the account takes a backup over only if it is told to, and continues none of its leases.
func TestOtherDevice(t *testing.T) {
	h := newHome(t)
	b, _, stop := h.open()
	h.rent(b, 0, 2)
	must(t, b.KeepOwn(t.Context()))
	file := h.backup(b)
	stop()
	next := home{t: t, state: t.TempDir()}
	phrase, err := identity.Phrase(IdentityDir(h.state))
	must(t, err)
	next.dev, err = identity.Import(IdentityDir(next.state), phrase, time.Now())
	must(t, err)
	if _, err := next.restore(file); cli.CodeOf(err) != cli.ExitRefused || !errors.Is(err, backup.ErrOther) {
		t.Errorf("without being told: %v", err)
	}
	_, err = Restore(t.Context(), RestoreConfig{
		State: next.state, Backup: file, OtherDevice: true, Release: "v0.0.1", Log: slog.New(slog.DiscardHandler), Now: time.Now(),
	})
	must(t, err)
	next.owes(200, 2)
	b, _, stop = next.open()
	defer stop()
	must(t, b.Update(t.Context(), func(tx *books.Tx) error { return tx.Forget(identity.AccountID{9}) }))
	err = b.Update(t.Context(), func(tx *books.Tx) error {
		_, err := tx.SignVoucher(ledger.Lane{0, 7}, 200, []meter.Segment{{Rate: 3_600_000, Devices: 1, Ms: 200}})
		return err
	})
	if err == nil {
		t.Error("a lane of another device was continued")
	}
}
