package badger

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpufair/gpufair/ledger/kv"
)

// TestDamagedStore: whatever is cut or overwritten, the daemon is told which folder is damaged and what to do; the library's panics and
// exits do not reach it.
func TestDamagedStore(t *testing.T) {
	whole := conf(t)
	d := open(t, whole)
	for i := range byte(40) {
		must(t, d.Apply(t.Context(), []kv.Write{{Key: []byte{'k', i}, Value: []byte(strings.Repeat(string(rune('a'+i%26)), 3000))}}))
	}
	must(t, d.Close())
	cut := func(n int64) func([]byte) []byte { return func(b []byte) []byte { return b[:min(n, int64(len(b)))] } }
	flip := func(fromEnd int) func([]byte) []byte {
		return func(b []byte) []byte { b[len(b)-fromEnd] ^= 0x55; return b }
	}
	for name, c := range map[string]struct {
		files  string
		change func([]byte) []byte
	}{
		"table cut to nothing": {"*.sst", cut(0)}, "table of 3 bytes": {"*.sst", cut(3)}, "table of 1000 bytes": {"*.sst", cut(1000)},
		"table's last byte": {"*.sst", flip(1)}, "table's first length byte": {"*.sst", flip(4)}, "table's checksum": {"*.sst", flip(7)},
		"table's index": {"*.sst", flip(30)}, "table of zeros": {"*.sst", func(b []byte) []byte { return make([]byte, len(b)) }},
		"table's first block": {"*.sst", func(b []byte) []byte { b[20] ^= 0x55; return b }},
		"manifest cut":        {"MANIFEST", cut(5)}, "manifest's magic": {"MANIFEST", func(b []byte) []byte { b[0] ^= 1; return b }},
		"key registry cut": {"KEYREGISTRY", cut(7)}, "key registry changed": {"KEYREGISTRY", flip(1)},
	} {
		t.Run(name, func(t *testing.T) {
			damagedConf := whole
			damagedConf.Dir = filepath.Join(t.TempDir(), "store")
			must(t, os.CopyFS(damagedConf.Dir, os.DirFS(whole.Dir)))
			files, err := filepath.Glob(filepath.Join(damagedConf.Dir, c.files))
			must(t, err)
			if len(files) == 0 {
				t.Fatal("the store has no " + c.files)
			}
			for _, f := range files {
				b, err := os.ReadFile(f)
				must(t, err)
				must(t, os.WriteFile(f, c.change(b), 0o600))
			}
			db, err := Open(t.Context(), damagedConf)
			if err == nil {
				db.Close()
			}
			want(t, "open", err, ErrDamaged)
			for _, word := range []string{damagedConf.Dir, "ledger recover", "journal"} {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("%q does not say %q", err, word)
				}
			}
		})
	}
	// a table that no manifest names is what a crash leaves: it costs nothing
	must(t, os.WriteFile(filepath.Join(whole.Dir, "009999.sst"), []byte("cut"), 0o600))
	open(t, whole)
}

// TestDamagedValue: where badger reads a value of the value log as an empty one, for it is damaged, that is an error here.
func TestDamagedValue(t *testing.T) {
	c := conf(t)
	d := open(t, c)
	must(t, d.Apply(t.Context(), []kv.Write{set("a", "1"), set("b", strings.Repeat("x", valueThreshold+1)), set("c", "")}))
	must(t, d.Close())
	logs, err := filepath.Glob(filepath.Join(c.Dir, "*.vlog"))
	must(t, err)
	for _, f := range logs {
		b, err := os.ReadFile(f)
		must(t, err)
		if len(b) > 1000 {
			b[1000] ^= 1
			must(t, os.WriteFile(f, b, 0o600))
		}
	}
	d = open(t, c)
	if get(t, d, "a") != "1" || get(t, d, "c") != "" {
		t.Error("the values beside it are gone")
	}
	must(t, d.View(t.Context(), func(r kv.Reader) error {
		_, err := r.Get([]byte("b"))
		want(t, "get", err, ErrDamaged)
		err = nil
		for _, e := range r.Iterate(nil, nil) {
			err = errors.Join(err, e)
		}
		want(t, "iterate", err, ErrDamaged)
		return nil
	}))
}
