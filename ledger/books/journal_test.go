package books

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/p2p/wire"
)

// story writes a few transactions of every kind and gives the renter, the provider and the size of the provider's journal after each
// of its transactions.
func story(t *testing.T) (p pairOf, ends []int64) {
	t.Helper()
	p = newPair(t)
	mark := func() {
		info, err := os.Stat(filepath.Join(p.provider.dir, journalName))
		must(t, err)
		ends = append(ends, info.Size())
	}
	mark()
	lane := p.sell(1, 500)
	mark()
	for _, amount := range []money.Micro{200, 900} {
		p.pay(lane, amount)
		mark()
	}
	p.close(lane, 900)
	mark()
	return p, ends
}

func readJournal(t *testing.T, dir string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, journalName))
	must(t, err)
	return b
}

// A journal torn at any byte gives exactly the transactions that were whole, and goes on from there.
func TestTornAtEveryByte(t *testing.T) {
	p, ends := story(t)
	b := readJournal(t, p.provider.dir)
	whole := func(n int) (k int) {
		for _, end := range ends {
			if int64(n) >= end {
				k++
			}
		}
		return k
	}
	for n := range len(b) + 1 {
		s := scanJournal(b[:n])
		if len(s.records) != whole(n) || s.lost != 0 || s.alien || (n >= fileHead && s.torn != (int64(n) != s.good)) {
			t.Fatalf("torn at %d: %d records of %d, %+v", n, len(s.records), whole(n), s.good)
		}
	}
	cuts := []int{0, 1, fileHead - 1, fileHead}
	for _, end := range ends {
		cuts = append(cuts, int(end)-1, int(end), int(end)+1, int(end)+recordHead)
	}
	for _, n := range cuts {
		if n > len(b) {
			continue
		}
		dir := t.TempDir()
		must(t, os.WriteFile(filepath.Join(dir, journalName), b[:n], 0o600))
		again := openParty(t, p.provider.dev, &kv.Memory{}, dir, testLimits)
		if again.ReadOnly() != nil || again.seq != uint64(whole(n)) {
			t.Fatalf("torn at %d: %d transactions of %d, %v", n, again.seq, whole(n), again.ReadOnly())
		}
		again.verified(ResultOK)
		if got := readJournal(t, dir); len(got) > max(n, fileHead) || scanJournal(got).torn {
			t.Fatalf("torn at %d: %d bytes are left, torn: %v", n, len(got), scanJournal(got).torn)
		}
		again.update(func(tx *Tx) error { return tx.Of(kv.Provider).Set([]byte("after"), []byte("x")) })
		if third := again.reopen(true); third.seq != uint64(whole(n))+1 {
			t.Fatalf("torn at %d, written after: %d transactions", n, third.seq)
		}
	}
}

// One flipped byte anywhere never changes a transaction, and is never taken for a torn tail while whole transactions follow.
func TestFlippedAtEveryByte(t *testing.T) {
	p, ends := story(t)
	ends = ends[:3]
	b := readJournal(t, p.provider.dir)[:ends[2]]
	all := scanJournal(b).records
	last := int(ends[len(ends)-2]) // where the last record starts
	for i := range b {
		b[i] ^= 0x10
		s := scanJournal(b)
		b[i] ^= 0x10
		if i < fileHead {
			if !s.alien {
				t.Fatalf("flipped byte %d of the file's head is not seen", i)
			}
			continue
		}
		if len(s.records) >= len(all) {
			t.Fatalf("flipped byte %d is not seen", i)
		}
		for k, r := range s.records {
			if r.Seq != all[k].Seq || len(r.Writes) != len(all[k].Writes) {
				t.Fatalf("flipped byte %d changed record %d", i, k)
			}
		}
		if i < last && s.lost != all[len(all)-1].Seq {
			t.Fatalf("flipped byte %d looks like a torn tail: %d transactions would be cut", i, len(all)-len(s.records))
		}
	}
}

// Damage in the middle of the journal: the store saves the day if it has everything, and else nothing is written over the rest.
func TestDamagedJournal(t *testing.T) {
	p, ends := story(t)
	for _, at := range []int64{5, ends[1] + recordHead + 3} {
		b := readJournal(t, p.provider.dir)
		b[at] ^= 1
		for _, fresh := range []bool{false, true} {
			dir := t.TempDir()
			must(t, os.CopyFS(dir, os.DirFS(p.provider.dir)))
			must(t, os.WriteFile(filepath.Join(dir, journalName), b, 0o600))
			engine := &kv.Memory{}
			if !fresh {
				engine = copyEngine(t, p.provider.engine)
			}
			again := openParty(t, p.provider.dev, engine, dir, testLimits)
			if fresh {
				if err := again.ReadOnly(); !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrBehind) {
					t.Fatalf("damaged at %d, empty store: %v", at, err)
				}
				if got := readJournal(t, dir); !bytes.Equal(got, b) {
					t.Fatal("a read-only ledger wrote to its journal")
				}
				continue
			}
			if err := again.ReadOnly(); err != nil {
				t.Fatalf("damaged at %d, whole store: %v", at, err)
			}
			again.verified(ResultOK)
			aside, err := filepath.Glob(filepath.Join(dir, journalName+".damaged-*"))
			if err != nil || len(aside) != 1 {
				t.Fatalf("the damaged journal was not kept: %v", aside)
			}
		}
	}
}

// TestDamagedJournalIsTold: a journal that is set aside, or gone, beside a whole store is told of in the log, and only then.
func TestDamagedJournalIsTold(t *testing.T) {
	p, ends := story(t)
	for name, c := range map[string]struct {
		change func(path string, b []byte) error
		want   string
	}{
		"whole": {func(string, []byte) error { return nil }, ""},
		"damaged": {func(path string, b []byte) error {
			b[ends[1]+recordHead+3] ^= 1
			return os.WriteFile(path, b, 0o600)
		}, "journal.damaged-"},
		"missing": {func(path string, _ []byte) error { return os.Remove(path) }, "journal was missing"},
	} {
		dir := t.TempDir()
		must(t, os.CopyFS(dir, os.DirFS(p.provider.dir)))
		must(t, c.change(filepath.Join(dir, journalName), readJournal(t, dir)))
		store, err := kv.Open(t.Context(), copyEngine(t, p.provider.engine), schema)
		must(t, err)
		var log bytes.Buffer
		again, err := Open(t.Context(), Config{
			Dir: dir, Store: store, Device: p.provider.dev, Limits: testLimits, Log: slog.New(slog.NewTextHandler(&log, nil)),
		})
		must(t, err)
		must(t, again.Close())
		if got := log.String(); c.want == "" && got != "" || c.want != "" && (!strings.Contains(got, "level=WARN") ||
			!strings.Contains(got, c.want) || !strings.Contains(got, "make a backup")) {
			t.Errorf("%s: log %q, want %q", name, got, c.want)
		}
	}
}

// Empty state overwrote the good backup (lnd#4377): a ledger that is shorter than its head note writes nothing, not even a new note.
func TestBehindTheHeadNote(t *testing.T) {
	p, ends := story(t)
	must(t, p.provider.Close())
	note, err := os.ReadFile(filepath.Join(p.provider.dir, headName))
	must(t, err)
	for name, keep := range map[string]int64{"everything lost": 0, "the last transaction lost": ends[len(ends)-2]} {
		dir := t.TempDir()
		must(t, os.WriteFile(filepath.Join(dir, headName), note, 0o600))
		must(t, os.WriteFile(filepath.Join(dir, journalName), readJournal(t, p.provider.dir)[:keep], 0o600))
		again := openParty(t, p.provider.dev, &kv.Memory{}, dir, testLimits)
		if err := again.ReadOnly(); !errors.Is(err, ErrReadOnly) || !errors.Is(err, ErrBehind) {
			t.Fatalf("%s: %v", name, err)
		}
		if err := again.Update(t.Context(), func(*Tx) error { return nil }); !errors.Is(err, ErrReadOnly) {
			t.Errorf("%s: update: %v", name, err)
		}
		again.verified(ResultBehind)
		must(t, again.Close())
		if got, err := os.ReadFile(filepath.Join(dir, headName)); err != nil || !bytes.Equal(got, note) {
			t.Errorf("%s: the head note was overwritten: %v", name, err)
		}
	}
}

// A store whose history was rewritten with the device's own key does not fit the head note that was signed before.
func TestRewrittenHistory(t *testing.T) {
	p, _ := story(t)
	must(t, p.provider.Close())
	note, err := os.ReadFile(filepath.Join(p.provider.dir, headName))
	must(t, err)
	other := pairOf{renter: newParty(t), provider: openParty(t, p.provider.dev, &kv.Memory{}, t.TempDir(), testLimits)}
	other.meet()
	lane := other.sell(1, 500)
	for i := range money.Micro(9) {
		other.pay(lane, 100+i)
	}
	must(t, other.provider.Close())
	must(t, os.WriteFile(filepath.Join(other.provider.dir, headName), note, 0o600))
	again := openParty(t, p.provider.dev, copyEngine(t, other.provider.engine), other.provider.dir, testLimits)
	if err := again.ReadOnly(); !errors.Is(err, ErrForged) {
		t.Fatal(err)
	}
	again.verified(ResultForged)
}

func TestDamagedHeadNote(t *testing.T) {
	p, _ := story(t)
	must(t, p.provider.Close())
	must(t, os.WriteFile(filepath.Join(p.provider.dir, headName), []byte("{"), 0o600))
	again := p.provider.reopen(false)
	if err := again.ReadOnly(); err == nil || !strings.Contains(err.Error(), "compare the ledger with your peers") {
		t.Fatal(err)
	}
	again.verified(ResultCorrupt)
}

// The store may lag behind the journal by any number of transactions, and what the replay meets twice is put in once.
func TestStoreLags(t *testing.T) {
	p := newPair(t)
	lane := p.sell(1, 500)
	old := copyEngine(t, p.provider.engine)
	p.pay(lane, 700)
	p.close(lane, 700)
	for range 2 {
		dir := t.TempDir()
		must(t, os.CopyFS(dir, os.DirFS(p.provider.dir)))
		again := openParty(t, p.provider.dev, old, dir, testLimits)
		if got := again.account(1, p.renter); got.Owed != 700 || again.ReadOnly() != nil {
			t.Fatalf("%+v, %v", got, again.ReadOnly())
		}
		again.verified(ResultOK)
	}
}

func TestRotate(t *testing.T) {
	p := newPair(t)
	lane := p.sell(1, 0)
	p.pay(lane, 10)
	for range 2 {
		p.provider.leader <- struct{}{}
		p.provider.noted, p.provider.journal.size = time.Time{}, rotateAt // as if it were long
		p.provider.after(t.Context())
		<-p.provider.leader
		p.pay(lane, p.provider.lane(lane).Amount+1)
	}
	if old := scanJournal(readJournal(t, p.provider.dir)); len(old.records) != 1 {
		t.Fatalf("%d records after rotating", len(old.records))
	}
	again := p.provider.reopen(false)
	if got := again.lane(lane); got.Amount != 12 || again.ReadOnly() != nil {
		t.Fatalf("%+v, %v", got, again.ReadOnly())
	}
	again.verified(ResultOK)
	// An empty store can't be rebuilt from the end of the story alone, and must say so.
	if err := p.provider.reopen(true).ReadOnly(); !errors.Is(err, ErrBehind) {
		t.Fatal(err)
	}
}

// A peer can't smuggle something into a record that reads as a record of its own.
func TestSmuggledRecord(t *testing.T) {
	fake, err := record{Seq: 99, Writes: []kv.Write{{Key: []byte("books/seq"), Value: []byte{1}}}}.encode(seed{})
	must(t, err)
	p := newParty(t)
	p.update(func(tx *Tx) error { return tx.Of(kv.Provider).Set([]byte("evidence"), fake) })
	b := readJournal(t, p.dir)
	if s := scanJournal(b[:len(b)-1]); s.lost != 0 || len(s.records) != 0 {
		t.Fatalf("%+v", s)
	}
}

// failing is an engine whose next Apply fails.
type failing struct {
	kv.Engine
	fail error
}

func (f *failing) Apply(ctx context.Context, writes []kv.Write) error {
	if f.fail != nil {
		return f.fail
	}
	return f.Engine.Apply(ctx, writes)
}

// A commit that returned an error is unknown: the ledger stops, and opened again it has what the journal has.
func TestUnknownOutcome(t *testing.T) {
	engine := &failing{Engine: &kv.Memory{}}
	p := openParty(t, newDevice(t), engine, t.TempDir(), testLimits)
	set := func(k string) error {
		return p.Update(t.Context(), func(tx *Tx) error { return tx.Of(kv.Provider).Set([]byte(k), []byte("v")) })
	}
	must(t, set("a"))
	engine.fail = errors.New("disk gone")
	if err := set("b"); !errors.Is(err, ErrUnknownOutcome) || !errors.Is(err, engine.fail) {
		t.Fatal(err)
	}
	engine.fail = nil
	if err := set("c"); !errors.Is(err, ErrReadOnly) {
		t.Fatal("written after an unknown outcome:", err)
	}
	again := openParty(t, p.dev, copyEngine(t, engine), p.dir, testLimits)
	again.view(func(r *Reader) error {
		for k, want := range map[string]bool{"a": true, "b": true, "c": false} {
			if _, err := r.Of(kv.Provider).Get([]byte(k)); (err == nil) != want {
				t.Errorf("%s: %v", k, err)
			}
		}
		return nil
	})
}

// Whatever lies in the file, reading it ends and stays within it.
func FuzzScanJournal(f *testing.F) {
	r, err := record{Seq: 1, Writes: []kv.Write{{Key: []byte("books/seq"), Value: []byte{1}}}}.encode(seed{})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(append(seed{}.header(), r...))
	f.Add(seed{}.header())
	f.Fuzz(func(t *testing.T, b []byte) {
		s := scanJournal(b)
		if s.good > int64(len(b)) {
			t.Fatal("good bytes beyond the end")
		}
	})
}

// edit changes a record.
func edit[T any](t *testing.T, f func(*T)) func([]byte) []byte {
	return func(b []byte) []byte {
		var v T
		must(t, wire.UnmarshalStrict(b, &v))
		f(&v)
		b, err := wire.Marshal(v)
		must(t, err)
		return b
	}
}

func TestVerifyNamesTheDamage(t *testing.T) {
	flip := func(b []byte) []byte {
		b[len(b)-1] ^= 1
		return b
	}
	p, _ := story(t)
	p.settle(p.renter, p.provider, 900, "x")
	for name, c := range map[string]struct {
		prefix string
		change func([]byte) []byte
		want   string
	}{
		"balance":          {"books/bal/", flip, ResultCorrupt},
		"entry":            {"books/e/", func(b []byte) []byte { b[0] ^= 1; return b }, ResultCorrupt},
		"log hash":         {"books/h/", flip, ResultCorrupt},
		"entry's id":       {"books/id/", flip, ResultCorrupt},
		"voucher":          {"books/v/", flip, ResultForged},
		"receipt":          {"books/r/", flip, ResultForged},
		"lane's receipt":   {"books/lane/", edit(t, func(l *Lane) { l.Receipts-- }), ResultCorrupt},
		"lane's hold":      {"books/lane/", edit(t, func(l *Lane) { l.HoldLeft++ }), ResultCorrupt},
		"lane's amount":    {"books/lane/", edit(t, func(l *Lane) { l.Amount++ }), ResultCorrupt},
		"lane's final":     {"books/lane/", edit(t, func(l *Lane) { *l.Final-- }), ResultCorrupt},
		"lane's settled":   {"books/lane/", edit(t, func(l *Lane) { l.Settled-- }), ResultCorrupt},
		"account's debt":   {"books/acct/", edit(t, func(a *Account) { a.Owed-- }), ResultCorrupt},
		"account's open":   {"books/acct/", edit(t, func(a *Account) { a.Open++ }), ResultCorrupt},
		"account's past":   {"books/acct/", edit(t, func(a *Account) { a.Settled *= 2 }), ResultCorrupt},
		"account's leases": {"books/acct/", edit(t, func(a *Account) { a.Lanes++ }), ResultCorrupt},
		"settlement":       {"books/set/", func(b []byte) []byte { b[len(b)/2] ^= 1; return b }, ResultForged},
		"head":             {"books/head", flip, ResultCorrupt},
	} {
		engine := copyEngine(t, p.provider.engine)
		var found kv.Pair
		must(t, engine.View(t.Context(), func(r kv.Reader) error {
			for pair, err := range r.Iterate([]byte(c.prefix), nil) {
				found = pair
				return err
			}
			return nil
		}))
		if found.Key == nil {
			t.Fatalf("%s: nothing to damage", name)
		}
		must(t, engine.Apply(t.Context(), []kv.Write{{Key: found.Key, Value: c.change(found.Value)}}))
		dir := t.TempDir()
		must(t, os.CopyFS(dir, os.DirFS(p.provider.dir)))
		must(t, os.Remove(filepath.Join(dir, headName)))
		again := openParty(t, p.provider.dev, engine, dir, testLimits)
		v, err := again.Verify(t.Context())
		if err != nil || (v.Result != c.want && v.Result != ResultCorrupt) || v.Detail == "" {
			t.Errorf("%s: %+v, %v; want %s", name, v, err, c.want)
		}
	}
}

func TestDelegationIsNeeded(t *testing.T) {
	p := pairOf{renter: newParty(t), provider: newParty(t)}
	lane := p.sell(1, 0)
	a, err := p.deliver(p.promise(lane, 10))
	must(t, err)
	err = p.renter.Update(t.Context(), func(tx *Tx) error {
		_, err := tx.RecordReceipt(a.Receipt)
		return err
	})
	if !errors.Is(err, ErrDelegation) {
		t.Fatal(err)
	}
	p.renter.view(func(r *Reader) error {
		has, err := r.HasDelegation(wire.Hash{})
		if has || err != nil {
			t.Error(has, err)
		}
		return nil
	})
}
