package backup_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/backup"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/p2p/identity"
)

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func newDevice(tb testing.TB) *identity.Device {
	tb.Helper()
	_, _, dev, err := identity.Generate()
	must(tb, err)
	return dev
}

var schema = kv.Schema{Release: "v0.0.1", Steps: []kv.Step{{Number: 1, Name: "first", Run: func(context.Context, *kv.Txn) error { return nil }}}}

// open opens a ledger over an engine.
func open(tb testing.TB, dev *identity.Device, engine kv.Engine) *books.Books {
	tb.Helper()
	store, err := kv.Open(tb.Context(), engine, schema)
	must(tb, err)
	b, err := books.Open(tb.Context(), books.Config{Dir: tb.TempDir(), Store: store, Device: dev, Log: slog.New(slog.DiscardHandler)})
	must(tb, err)
	tb.Cleanup(func() { b.Close() })
	return b
}

// promise makes n entries.
func promise(tb testing.TB, b *books.Books, from, n int) {
	tb.Helper()
	for i := range n {
		must(tb, b.Update(tb.Context(), func(t *books.Tx) error {
			_, err := t.Promise(books.Opening{
				Channel: b.Channel(identity.AccountID{9}, money.Credit), Lane: ledger.Lane{byte(from + i), 1}, Rate: 1, Devices: 1, Hold: 5,
			})
			return errors.Join(err, t.Of(kv.Renter).Set(fmt.Appendf(nil, "job/%d", i), bytes.Repeat([]byte("x"), 300)))
		}))
	}
}

func file(tb testing.TB, b *books.Books) []byte {
	tb.Helper()
	var out bytes.Buffer
	_, err := b.Backup(tb.Context(), &out, time.UnixMilli(1_900_000_000_000))
	must(tb, err)
	return out.Bytes()
}

func save(tb testing.TB, b *books.Books, path string, force bool) error {
	tb.Helper()
	_, err := backup.Save(tb.Context(), path, force, func(w io.Writer) error {
		_, err := b.Backup(tb.Context(), w, time.Now())
		return err
	})
	return err
}

// TestRoundTrip: every record of every owner comes back, and the ledger of it is sound.
func TestRoundTrip(t *testing.T) {
	dev := newDevice(t)
	b := open(t, dev, &kv.Memory{})
	promise(t, b, 0, 20)
	raw := file(t, b)
	engine := &kv.Memory{}
	fill := backup.NewFill(engine)
	h, err := backup.Read(t.Context(), bytes.NewReader(raw), func(p kv.Pair) error { return fill.Add(t.Context(), p) })
	must(t, errors.Join(err, fill.Flush(t.Context())))
	if h.Size != 20 || h.Account != dev.Account() || h.Device != dev.Peer() || h.Epoch != 1 || h.Seq != 20 {
		t.Errorf("%+v", h)
	}
	again := open(t, dev, engine)
	v, err := again.Verify(t.Context())
	if err != nil || v.Result != books.ResultOK || v.Entries != 20 {
		t.Errorf("%+v, %v", v, err)
	}
	if !bytes.Equal(file(t, again), raw) {
		t.Error("a backup of what a backup was restored to is another")
	}
}

// TestDamage: cut short anywhere, with anything behind it, or with any one byte changed, a backup is refused.
func TestDamage(t *testing.T) {
	b := open(t, newDevice(t), &kv.Memory{})
	promise(t, b, 0, 3)
	raw := file(t, b)
	refused := func(what string, b []byte) {
		t.Helper()
		if _, err := backup.Check(t.Context(), bytes.NewReader(b)); !errors.Is(err, backup.ErrBackup) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for n := range len(raw) {
		if n > 1500 && n%7 != 0 {
			continue
		}
		refused(fmt.Sprintf("cut at %d of %d", n, len(raw)), raw[:n])
		changed := bytes.Clone(raw)
		changed[n] ^= 1 << (n % 8)
		refused(fmt.Sprintf("byte %d of %d changed", n, len(raw)), changed)
	}
	refused("a byte behind it", append(bytes.Clone(raw), 0))
	refused("twice", append(bytes.Clone(raw), raw...))
}

// TestSave: what is there stays, unless what comes knows at least as much of the same ledger.
func TestSave(t *testing.T) {
	dev := newDevice(t)
	engine := &kv.Memory{}
	b := open(t, dev, engine)
	path := filepath.Join(t.TempDir(), "ledger.backup")
	must(t, save(t, b, filepath.Join(t.TempDir(), "empty"), false))
	promise(t, b, 0, 5)
	must(t, save(t, b, path, false))
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	must(t, save(t, b, path, false))
	promise(t, b, 5, 5)
	must(t, save(t, b, path, false))
	bigger, err := os.ReadFile(path)
	must(t, err)

	small, empty, other := open(t, dev, &kv.Memory{}), open(t, dev, &kv.Memory{}), open(t, newDevice(t), &kv.Memory{})
	promise(t, small, 0, 9)
	promise(t, other, 0, 50)
	damaged := filepath.Join(t.TempDir(), "damaged")
	must(t, os.WriteFile(damaged, bigger[:len(bigger)/100], 0o600))
	for _, c := range []struct {
		name  string
		from  *books.Books
		path  string
		force bool
		want  error
	}{
		{"a smaller one", small, path, false, backup.ErrOlder},
		{"an empty one", empty, path, false, backup.ErrEmpty},
		{"an empty one by force", empty, path, true, backup.ErrEmpty},
		{"another ledger's", other, path, false, backup.ErrOccupied},
		{"over something else", b, damaged, false, backup.ErrOccupied},
	} {
		was, err := os.ReadFile(c.path)
		must(t, err)
		if err := save(t, c.from, c.path, c.force); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
		if is, err := os.ReadFile(c.path); err != nil || !bytes.Equal(is, was) {
			t.Errorf("%s: the file changed: %v", c.name, err)
		}
		if list, err := os.ReadDir(filepath.Dir(c.path)); err != nil || len(list) != 1 {
			t.Errorf("%s: a temporary file is left: %v, %v", c.name, list, err)
		}
	}
	must(t, save(t, small, path, true))
}

// TestSaveFails: a full disk, or a daemon that dies, leaves the old backup and nothing else.
func TestSaveFails(t *testing.T) {
	b := open(t, newDevice(t), &kv.Memory{})
	promise(t, b, 0, 5)
	path := filepath.Join(t.TempDir(), "ledger.backup")
	must(t, save(t, b, path, false))
	was, err := os.ReadFile(path)
	must(t, err)
	promise(t, b, 5, 5)
	raw := file(t, b)
	full := errors.New("no space left on device")
	for n := 0; n < len(raw); n += 97 {
		for name, write := range map[string]func(io.Writer) error{
			"full": func(w io.Writer) error { _, err := w.Write(raw[:n]); return errors.Join(err, full) },
			"cut":  func(w io.Writer) error { _, err := w.Write(raw[:n]); return err },
		} {
			if _, err := backup.Save(t.Context(), path, true, write); err == nil || name == "full" && !errors.Is(err, full) {
				t.Fatalf("%s after %d bytes: %v", name, n, err)
			}
		}
	}
	if is, err := os.ReadFile(path); err != nil || !bytes.Equal(is, was) {
		t.Errorf("the old backup changed: %v", err)
	}
	list, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(list) != 1 {
		t.Errorf("%v, %v", list, err)
	}
}

// TestSaveNames: what others put into the folder is neither written through nor removed, whatever its name; and what is no file is no
// place for a backup, also by force.
func TestSaveNames(t *testing.T) {
	b := open(t, newDevice(t), &kv.Memory{})
	promise(t, b, 0, 5)
	dir := t.TempDir()
	path, mine, other := filepath.Join(dir, "ledger.backup"), filepath.Join(dir, "ledger.backup.new"), filepath.Join(t.TempDir(), "shadow")
	must(t, os.WriteFile(other, []byte("root's"), 0o600))
	must(t, os.WriteFile(mine, []byte("my own"), 0o600))
	must(t, save(t, b, path, false))
	if is, err := os.ReadFile(mine); err != nil || string(is) != "my own" {
		t.Errorf("a file of another name: %q, %v", is, err)
	}
	must(t, os.Remove(mine))
	must(t, os.Symlink(other, mine))
	must(t, save(t, b, path, false))
	link, folder := filepath.Join(dir, "link"), filepath.Join(dir, "folder")
	must(t, errors.Join(os.Symlink(other, link), os.Mkdir(folder, 0o700)))
	for _, at := range []string{link, folder, os.DevNull} {
		for _, force := range []bool{false, true} {
			if err := save(t, b, at, force); !errors.Is(err, backup.ErrOccupied) {
				t.Errorf("%s, force %v: %v", at, force, err)
			}
		}
	}
	if is, err := os.ReadFile(other); err != nil || string(is) != "root's" {
		t.Errorf("a file elsewhere: %q, %v", is, err)
	}
}

// TestDaily: one a day, the newest few, and none that knows more than the newest is removed.
func TestDaily(t *testing.T) {
	dev := newDevice(t)
	engine := &kv.Memory{}
	b := open(t, dev, engine)
	d := backup.Daily{
		Dir: filepath.Join(t.TempDir(), "backups"), Keep: 3, Device: dev.Peer(), Log: slog.New(slog.DiscardHandler),
		Write: func(ctx context.Context, w io.Writer) error { _, err := b.Backup(ctx, w, time.Now()); return err },
	}
	at := time.Date(2027, 3, 1, 15, 0, 0, 0, time.UTC)
	must(t, os.Mkdir(d.Dir, 0o700))
	for _, left := range []string{"2027-02-27", "2027-02-28"} { // by crashes
		must(t, os.WriteFile(filepath.Join(d.Dir, ".gpufair-"+dev.Peer().Short()+"-"+left+".backup.123.new"), []byte("half"), 0o600))
	}
	if _, err := d.Make(t.Context(), at); !errors.Is(err, backup.ErrEmpty) {
		t.Errorf("of an empty ledger: %v", err)
	}
	count := func() int {
		list, err := os.ReadDir(d.Dir)
		must(t, err)
		return len(list)
	}
	for i := range 6 {
		promise(t, b, i, 1)
		for range 2 {
			wait, err := d.Make(t.Context(), at.Add(time.Duration(i)*24*time.Hour))
			if err != nil || wait != 9*time.Hour {
				t.Fatalf("day %d: %v, %v", i, wait, err)
			}
		}
		if n := count(); n != min(i+1, 3) {
			t.Errorf("day %d: %d files", i, n)
		}
	}
	b = open(t, dev, &kv.Memory{}) // a ledger that lost nearly all
	promise(t, b, 0, 1)
	for i := range 5 {
		if _, err := d.Make(t.Context(), at.Add(time.Duration(10+i)*24*time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	if n := count(); n < 3+3 {
		t.Errorf("%d files: those of before the loss were pushed out", n)
	}
}

func FuzzRead(f *testing.F) {
	b := open(f, newDevice(f), &kv.Memory{})
	promise(f, b, 0, 2)
	f.Add(file(f, b))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if _, err := backup.Check(t.Context(), bytes.NewReader(raw)); err != nil && !errors.Is(err, backup.ErrBackup) {
			t.Errorf("%v", err)
		}
	})
}
