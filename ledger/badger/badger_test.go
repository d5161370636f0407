package badger

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/kv/kvtest"
)

// conf is a store with a small ballast, so that tests do not write 32 MiB each.
func conf(t *testing.T) Config {
	return Config{
		Dir: filepath.Join(t.TempDir(), "store"), FreeFloor: 4 << 20, Ballast: 1 << 20,
		Log: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelInfo})),
	}
}

func open(t *testing.T, c Config) *DB {
	t.Helper()
	d, err := Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func want(t *testing.T, what string, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Fatalf("%s: got error %v, want %v", what, err, target)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func set(key, value string) kv.Write { return kv.Write{Key: []byte(key), Value: []byte(value)} }

func get(t *testing.T, d *DB, key string) (value string) {
	t.Helper()
	must(t, d.View(t.Context(), func(r kv.Reader) error {
		v, err := r.Get([]byte(key))
		value = string(v)
		return err
	}))
	return value
}

func TestConformance(t *testing.T) {
	kvtest.Run(t, func(t *testing.T) kv.Engine { return open(t, conf(t)) })
}

// TestSettings holds the settings that the spec measured against what Open really uses.
func TestSettings(t *testing.T) {
	d := open(t, conf(t))
	o := d.db.Opts()
	if !o.SyncWrites || !o.VerifyValueChecksum || !o.CompactL0OnClose || o.MemTableSize != 8<<20 || o.NumMemtables != 2 ||
		o.BlockCacheSize != 8<<20 || o.IndexCacheSize != 4<<20 || o.ValueLogFileSize != 16<<20 || o.ValueThreshold != 64<<10 ||
		o.NumCompactors != 2 {
		t.Errorf("settings differ from the spec: %+v", o)
	}
	// A transaction within kv's limits must fit, with badger's bookkeeping of 12 bytes a key.
	if kv.MaxTxBytes+12*kv.MaxTxKeys >= d.db.MaxBatchSize() || kv.MaxTxKeys >= d.db.MaxBatchCount() {
		t.Errorf("kv allows more than badger's %d bytes, %d keys", d.db.MaxBatchSize(), d.db.MaxBatchCount())
	}
}

func TestReopen(t *testing.T) {
	c := conf(t)
	d := open(t, c)
	big := strings.Repeat("x", valueThreshold+1) // lies in the value log
	must(t, d.Apply(t.Context(), []kv.Write{set("a", "1"), set("b", big)}))
	must(t, d.Close())
	d = open(t, c)
	if get(t, d, "a") != "1" || get(t, d, "b") != big {
		t.Error("a reopened store lost a value")
	}
}

func TestDirectoryIsPrivate(t *testing.T) {
	c := conf(t)
	must(t, os.Mkdir(c.Dir, 0o755))
	open(t, c)
	st, err := os.Stat(c.Dir)
	must(t, err)
	if st.Mode().Perm() != 0o700 {
		t.Errorf("the store's directory has mode %o, want 700", st.Mode().Perm())
	}
}

func TestSecondDaemonIsRefused(t *testing.T) {
	c := conf(t)
	d := open(t, c)
	_, err := Open(t.Context(), c)
	want(t, "second open", err, kv.ErrInUse)
	for _, word := range []string{"process " + strconv.Itoa(os.Getpid()), "another daemon is running", c.Dir, "stop it"} {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("the error does not say %q: %v", word, err)
		}
	}
	must(t, d.Apply(t.Context(), []kv.Write{set("a", "1")})) // the first is unharmed
	must(t, d.Close())
	open(t, c)
}

// disk is a disk whose free space the test sets; the ballast really takes of it.
type disk struct{ free uint64 }

func (f *disk) measure(dir string) (uint64, error) {
	st, err := os.Stat(filepath.Join(dir, ballastName))
	if err != nil {
		return f.free, nil
	}
	return f.free - min(f.free, uint64(st.Size())), nil
}

func TestFullDisk(t *testing.T) {
	f, c := &disk{free: 100 << 20}, conf(t)
	c.free = f.measure
	ballast := filepath.Join(c.Dir, ballastName)
	d := open(t, c)
	if st, err := os.Stat(ballast); err != nil || uint64(st.Size()) != c.Ballast {
		t.Fatalf("no ballast of %d bytes: %v, %v", c.Ballast, st, err)
	}
	must(t, d.Writable(t.Context()))
	must(t, d.Apply(t.Context(), []kv.Write{set("a", "1")}))

	f.free = c.FreeFloor + c.Ballast - 1 // others fill the disk: a byte under the floor
	err := d.Writable(t.Context())
	want(t, "write under the floor", err, kv.ErrReadOnly)
	if !strings.Contains(err.Error(), "free some space") {
		t.Errorf("the error does not say what to do: %v", err)
	}
	if _, err := os.Stat(ballast); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the ballast was not given up: %v", err)
	}
	if get(t, d, "a") != "1" {
		t.Error("reading under the floor failed")
	}
	must(t, d.collect(t.Context())) // there is room to write again, but none for ballast
	if _, err := os.Stat(ballast); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("ballast was made under the floor: %v", err)
	}
	f.free = c.FreeFloor + c.Ballast
	must(t, d.Writable(t.Context()))
	must(t, d.collect(t.Context()))
	if _, err := os.Stat(ballast); err != nil {
		t.Errorf("the ballast was not made again: %v", err)
	}

	f.free = c.FreeFloor - 1
	want(t, "collecting under the floor", d.collect(t.Context()), kv.ErrReadOnly)
}

func TestOpenOnFullDisk(t *testing.T) {
	f, c := &disk{free: 100 << 20}, conf(t)
	c.free = f.measure
	must(t, open(t, c).Close())
	f.free = c.Ballast // full but for the ballast, which is there for this
	d := open(t, c)
	want(t, "write", d.Writable(t.Context()), kv.ErrReadOnly)
	must(t, d.Close())
	f.free = c.Ballast - 1
	_, err := Open(t.Context(), c)
	want(t, "open on a full disk", err, kv.ErrReadOnly)
	if !strings.Contains(err.Error(), "free some space and start again") {
		t.Errorf("the error does not say what to do: %v", err)
	}
}

func TestFreeSpaceOfRealDisk(t *testing.T) {
	free, err := freeSpace(t.TempDir())
	if err != nil || free == 0 {
		t.Errorf("free space: %d, %v", free, err)
	}
	if _, err := freeSpace(filepath.Join(t.TempDir(), "absent")); err == nil {
		t.Error("free space of a directory that is not there")
	}
}

func TestCollect(t *testing.T) {
	c := conf(t)
	d := open(t, c)
	value := bytes.Repeat([]byte("x"), kv.MaxValue)
	for i := range 80 { // 40 MiB: two value log files are full
		must(t, d.Apply(t.Context(), []kv.Write{{Key: fmt.Appendf(nil, "k%d", i%2), Value: value}}))
	}
	must(t, d.Close()) // compaction finds out what is garbage
	d = open(t, c)
	files := func() int {
		names, err := filepath.Glob(filepath.Join(c.Dir, "*.vlog"))
		must(t, err)
		return len(names)
	}
	before := files()
	must(t, d.collect(t.Context()))
	if after := files(); after >= before {
		t.Errorf("%d value log files before collecting garbage, %d after", before, after)
	}
	if get(t, d, "k0") != string(value) || get(t, d, "k1") != string(value) {
		t.Error("collecting garbage lost a value")
	}
}

func TestRunEndsWithContext(t *testing.T) {
	d := open(t, conf(t))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	cancel()
	must(t, <-done)
}

// TestCloseWaits: a view under way keeps its store until it ends.
func TestCloseWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, conf(t))
		must(t, d.Apply(t.Context(), []kv.Write{set("a", "1")}))
		end, viewed, closed := make(chan struct{}), make(chan error, 1), make(chan error, 1)
		go func() {
			viewed <- d.View(t.Context(), func(r kv.Reader) error {
				<-end
				_, err := r.Get([]byte("a"))
				return err
			})
		}()
		synctest.Wait() // until the view waits
		go func() { closed <- d.Close() }()
		synctest.Wait() // until Close waits too
		select {
		case <-closed:
			t.Error("Close did not wait for the view")
		default:
		}
		want(t, "call after Close began", d.Writable(t.Context()), kv.ErrClosed)
		close(end)
		must(t, <-viewed)
		must(t, <-closed)
	})
}

func TestLogGoesToSlog(t *testing.T) {
	var out bytes.Buffer
	l := logger{slog.New(slog.NewTextHandler(&out, nil))}
	l.Infof("chatter\n")
	l.Warningf("file %d is odd\n", 7)
	if s := out.String(); strings.Contains(s, "chatter") || !strings.Contains(s, `level=WARN msg="badger: file 7 is odd"`) {
		t.Errorf("log: %s", s)
	}
}

func TestConfigNeedsDirAndLog(t *testing.T) {
	for _, c := range []Config{{Log: slog.New(slog.DiscardHandler)}, {Dir: t.TempDir()}} {
		if _, err := Open(t.Context(), c); err == nil {
			t.Errorf("opened %+v", c)
		}
	}
}
