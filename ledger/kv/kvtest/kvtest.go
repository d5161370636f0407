// Package kvtest is the conformance suite of kv engines: whatever fulfils kv.Engine passes [Run]. It owns the tests and a model of the
// store to hold engines against. It refuses to know any engine.
package kvtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/gpufair/gpufair/ledger/kv"
)

// Open gives a new, empty engine for one test; it is closed with t.
type Open func(t *testing.T) kv.Engine

// Run runs the suite.
func Run(t *testing.T, open Open) {
	for name, test := range map[string]func(*testing.T, Open){
		"GetSetDelete":    getSetDelete,
		"Order":           order,
		"Snapshot":        snapshot,
		"Atomic":          atomic,
		"Limits":          limits,
		"OwnBytes":        ownBytes,
		"NestedIteration": nestedIteration,
		"SharedView":      sharedView,
		"Closed":          closed,
		"Cancelled":       cancelled,
		"OneWriter":       oneWriter,
		"Model":           model,
	} {
		t.Run(name, func(t *testing.T) { test(t, open) })
	}
}

// Schema is a schema with one step that does nothing.
func Schema() kv.Schema {
	return kv.Schema{Release: "v0.0.1", Steps: []kv.Step{{
		Number: 1, Name: "first", Run: func(context.Context, *kv.Txn) error { return nil },
	}}}
}

func store(t *testing.T, open Open) *kv.Store {
	t.Helper()
	s, err := kv.Open(t.Context(), open(t), Schema())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func want(t *testing.T, what string, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Fatalf("%s: got error %v, want %v", what, err, target)
	}
}

func apply(t *testing.T, e kv.Engine, writes ...kv.Write) {
	t.Helper()
	must(t, e.Writable(t.Context()))
	must(t, e.Apply(t.Context(), writes))
}

func set(key, value string) kv.Write { return kv.Write{Key: []byte(key), Value: []byte(value)} }
func del(key string) kv.Write        { return kv.Write{Key: []byte(key), Delete: true} }

// scan reads a range as "k=v" texts.
func scan(r kv.Reader, prefix, from string) ([]string, error) {
	var out []string
	for p, err := range r.Iterate([]byte(prefix), []byte(from)) {
		if err != nil {
			return nil, err
		}
		out = append(out, string(p.Key)+"="+string(p.Value))
	}
	return out, nil
}

func expect(t *testing.T, r kv.Reader, prefix, from string, pairs ...string) {
	t.Helper()
	got, err := scan(r, prefix, from)
	must(t, err)
	if !slices.Equal(got, pairs) {
		t.Fatalf("iterate over %q from %q: got %q, want %q", prefix, from, got, pairs)
	}
}

func getSetDelete(t *testing.T, open Open) {
	e := open(t)
	apply(t, e, set("a", "1"), set("b", ""), set("c", "3"))
	apply(t, e, set("a", "2"), del("c"), del("never there"))
	must(t, e.View(t.Context(), func(r kv.Reader) error {
		if v, err := r.Get([]byte("a")); err != nil || string(v) != "2" {
			t.Errorf("a: got %q, %v, want 2", v, err)
		}
		if v, err := r.Get([]byte("b")); err != nil || len(v) != 0 {
			t.Errorf("b: got %q, %v, want an empty value", v, err)
		}
		_, err := r.Get([]byte("c"))
		want(t, "deleted key", err, kv.ErrNotFound)
		return nil
	}))
	boom := errors.New("boom")
	want(t, "view that fails", e.View(t.Context(), func(kv.Reader) error { return boom }), boom)
}

func order(t *testing.T, open Open) {
	e := open(t)
	apply(t, e, set("b/\xff", "4"), set("b/", "2"), set("c", "5"), set("b/a", "3"), set("a", "1"), set("b", "0"))
	must(t, e.View(t.Context(), func(r kv.Reader) error {
		expect(t, r, "", "", "a=1", "b=0", "b/=2", "b/a=3", "b/\xff=4", "c=5")
		expect(t, r, "b/", "", "b/=2", "b/a=3", "b/\xff=4")
		expect(t, r, "b/", "b/a", "b/a=3", "b/\xff=4")
		expect(t, r, "b/", "b/aa", "b/\xff=4")
		expect(t, r, "b/", "a", "b/=2", "b/a=3", "b/\xff=4")
		expect(t, r, "b/", "c")
		expect(t, r, "nothing", "")
		return nil
	}))
}

// snapshot: a view neither sees nor waits for later writes.
func snapshot(t *testing.T, open Open) {
	e := open(t)
	apply(t, e, set("a", "1"), set("b", "1"))
	must(t, e.View(t.Context(), func(r kv.Reader) error {
		for range r.Iterate(nil, nil) {
			apply(t, e, set("a", "2"), del("b"), set("c", "2"))
			break
		}
		expect(t, r, "", "", "a=1", "b=1")
		return e.View(t.Context(), func(r kv.Reader) error { expect(t, r, "", "", "a=2", "c=2"); return nil })
	}))
}

// atomic: what a failed transaction wrote is gone, over all owners; what a good one wrote is there.
func atomic(t *testing.T, open Open) {
	s, ctx, boom := store(t, open), t.Context(), errors.New("boom")
	both := func(v string, err error) error {
		return s.Update(ctx, func(t *kv.Txn) error {
			return errors.Join(t.Of(kv.Books).Set([]byte("k"), []byte(v)), t.Of(kv.Provider).Set([]byte("k"), []byte(v)), err)
		})
	}
	must(t, both("1", nil))
	want(t, "transaction that fails", both("2", boom), boom)
	must(t, s.View(ctx, func(x *kv.Txn) error {
		expect(t, x.Of(kv.Books), "", "", "k=1")
		expect(t, x.Of(kv.Provider), "", "", "k=1")
		return nil
	}))
}

// limits: a transaction as big as kv allows fits the engine, in each way to fill it.
func limits(t *testing.T, open Open) {
	s := store(t, open)
	for name, fill := range map[string]struct{ keys, key, value int }{
		"many small keys":    {kv.MaxTxKeys, 64, 64 - len(kv.Books) - 1},
		"long keys":          {kv.MaxTxBytes / kv.MaxKey, kv.MaxKey - len(kv.Books) - 1, 0},
		"values in the tree": {16, 64, kv.MaxTxBytes/16 - 100},
		"largest values":     {1, 16, kv.MaxValue},
	} {
		must(t, s.Update(t.Context(), func(x *kv.Txn) error {
			for i := range fill.keys {
				key := fmt.Appendf(nil, "%-*d", fill.key, i)
				if err := x.Of(kv.Books).Set(key, bytes.Repeat([]byte{byte(i)}, fill.value)); err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
			}
			return nil
		}))
	}
}

// ownBytes: neither the caller's buffers nor what a reader gets are shared with the store.
func ownBytes(t *testing.T, open Open) {
	e := open(t)
	key, value := []byte("key"), []byte("value")
	apply(t, e, kv.Write{Key: key, Value: value})
	copy(key, "xxx")
	copy(value, "xxxxx")
	for range 2 {
		must(t, e.View(t.Context(), func(r kv.Reader) error {
			expect(t, r, "", "", "key=value")
			v, err := r.Get([]byte("key"))
			copy(v, "yyyyy")
			for p := range r.Iterate(nil, nil) {
				copy(p.Key, "yyy")
				copy(p.Value, "yyyyy")
			}
			return err
		}))
	}
}

// nestedIteration: loops within loops, in an update, with writes between.
func nestedIteration(t *testing.T, open Open) {
	s := store(t, open)
	must(t, s.Update(t.Context(), func(x *kv.Txn) error {
		b := x.Of(kv.Books)
		return errors.Join(b.Set([]byte("a"), []byte("1")), b.Set([]byte("b"), []byte("1")))
	}))
	var seen []string
	must(t, s.Update(t.Context(), func(x *kv.Txn) error {
		b := x.Of(kv.Books)
		for p, err := range b.Iterate(nil, nil) {
			must(t, err)
			for q, err := range b.Iterate(nil, nil) {
				must(t, err)
				seen = append(seen, string(p.Key)+string(q.Key))
			}
			must(t, b.Set([]byte("c"), []byte("1")))
		}
		return nil
	}))
	if w := []string{"aa", "ab", "ba", "bb", "bc"}; !slices.Equal(seen, w) {
		t.Fatalf("nested iteration: got %q, want %q", seen, w)
	}
}

// sharedView: several goroutines read one view, while a writer goes on; the race detector looks on.
func sharedView(t *testing.T, open Open) {
	s := store(t, open)
	const pairs = 300
	must(t, s.Update(t.Context(), func(x *kv.Txn) error {
		for i := range pairs {
			if err := x.Of(kv.Books).Set(fmt.Appendf(nil, "%03d", i), []byte("v")); err != nil {
				return err
			}
		}
		return nil
	}))
	must(t, s.View(t.Context(), func(x *kv.Txn) error {
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				n, r := 0, x.Of(kv.Books)
				for p, err := range r.Iterate(nil, nil) {
					v, gerr := r.Get(p.Key)
					if err != nil || gerr != nil || string(v) != "v" {
						t.Error(string(v), err, gerr)
					}
					n++
				}
				if n != pairs {
					t.Errorf("%d pairs, want %d", n, pairs)
				}
			})
		}
		all.Go(func() {
			if err := s.Update(t.Context(), func(x *kv.Txn) error { return x.Of(kv.Books).Set([]byte("new"), []byte("w")) }); err != nil {
				t.Error(err)
			}
		})
		all.Wait()
		return nil
	}))
}

func closed(t *testing.T, open Open) {
	e := open(t)
	apply(t, e, set("a", "1"))
	must(t, e.Close())
	must(t, e.Close())
	want(t, "view", e.View(t.Context(), func(kv.Reader) error { t.Error("view of a closed engine ran"); return nil }), kv.ErrClosed)
	want(t, "apply", e.Apply(t.Context(), []kv.Write{set("a", "2")}), kv.ErrClosed)
	want(t, "writable", e.Writable(t.Context()), kv.ErrClosed)
}

func cancelled(t *testing.T, open Open) {
	e := open(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	want(t, "view", e.View(ctx, func(kv.Reader) error { return nil }), context.Canceled)
	want(t, "apply", e.Apply(ctx, []kv.Write{set("a", "1")}), context.Canceled)
	must(t, e.View(t.Context(), func(r kv.Reader) error { expect(t, r, "", ""); return nil }))
}

// oneWriter: counters raised by many goroutines at once lose nothing, while readers always see both alike.
func oneWriter(t *testing.T, open Open) {
	const workers, rounds = 4, 25
	s, ctx := store(t, open), t.Context()
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for range rounds {
				if err := s.Update(ctx, func(x *kv.Txn) error { return errors.Join(raise(x.Of(kv.Books)), raise(x.Of(kv.Renter))) }); err != nil {
					t.Error(err)
				}
				if err := s.View(ctx, alike); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	must(t, s.View(ctx, func(x *kv.Txn) error {
		if v, err := x.Of(kv.Books).Get([]byte("n")); err != nil || len(v) != workers*rounds {
			t.Errorf("after %d updates: counted %d, %v", workers*rounds, len(v), err)
		}
		return nil
	}))
}

// raise counts in unary: the length of the value.
func raise(tx kv.Tx) error {
	v, err := tx.Get([]byte("n"))
	if err != nil && !errors.Is(err, kv.ErrNotFound) {
		return err
	}
	return tx.Set([]byte("n"), append(v, 1))
}

func alike(x *kv.Txn) error {
	a, errA := x.Of(kv.Books).Get([]byte("n"))
	b, errB := x.Of(kv.Renter).Get([]byte("n"))
	if err := errors.Join(errA, errB); err != nil {
		return err
	}
	if !bytes.Equal(a, b) {
		return fmt.Errorf("half a transaction is visible: %d and %d", len(a), len(b))
	}
	return nil
}
