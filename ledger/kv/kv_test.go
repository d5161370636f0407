package kv_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/kv/kvtest"
)

func TestMemory(t *testing.T) {
	kvtest.Run(t, func(t *testing.T) kv.Engine {
		m := new(kv.Memory)
		t.Cleanup(func() { m.Close() })
		return m
	})
}

func open(t *testing.T, e kv.Engine) *kv.Store {
	t.Helper()
	s, err := kv.Open(t.Context(), e, kvtest.Schema())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func want(t *testing.T, what string, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Fatalf("%s: got error %v, want %v", what, err, target)
	}
}

func TestOwnersAreApart(t *testing.T) {
	s := open(t, new(kv.Memory))
	err := s.Update(t.Context(), func(x *kv.Txn) error {
		if err := x.Of(kv.Books).Set([]byte("../renter/k"), []byte("books")); err != nil {
			return err
		}
		for _, o := range []kv.Owner{"", "kvx", "books/", "book", "books/a"} {
			want(t, "set of "+string(o), x.Of(o).Set([]byte("k"), nil), kv.ErrOwner)
			want(t, "delete of "+string(o), x.Of(o).Delete([]byte("k")), kv.ErrOwner)
			_, err := x.Of(o).Get([]byte("k"))
			want(t, "get of "+string(o), err, kv.ErrOwner)
			for _, err := range x.Of(o).Iterate(nil, nil) {
				want(t, "iteration of "+string(o), err, kv.ErrOwner)
			}
		}
		for _, o := range []kv.Owner{kv.Provider, kv.Renter, kv.P2PPersist, kv.MarketAnnounce, kv.Negotiate, kv.Settle} {
			for p := range x.Of(o).Iterate(nil, nil) {
				t.Errorf("%s sees %q", o, p.Key)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestLimits(t *testing.T) {
	s := open(t, new(kv.Memory))
	err := s.Update(t.Context(), func(x *kv.Txn) error {
		b := x.Of(kv.Books)
		want(t, "long key", b.Set(make([]byte, kv.MaxKey-len("books/")+1), nil), kv.ErrTooLarge)
		want(t, "long value", b.Set([]byte("k"), make([]byte, kv.MaxValue+1)), kv.ErrTooLarge)
		if b.Set(nil, nil) == nil || b.Delete(nil) == nil {
			t.Error("an empty key was taken")
		}
		for range 10 { // the same key again counts once
			if err := b.Set([]byte("k"), make([]byte, kv.MaxValue)); err != nil {
				return err
			}
		}
		rest := kv.MaxTxBytes - len("books/k") - kv.MaxValue - len("books/l")
		want(t, "large transaction", b.Set([]byte("l"), make([]byte, rest+1)), kv.ErrTooLarge)
		return b.Set([]byte("l"), make([]byte, rest))
	})
	if err != nil {
		t.Fatal(err)
	}
	err = s.Update(t.Context(), func(x *kv.Txn) error {
		for i := range kv.MaxTxKeys + 1 {
			if err := x.Of(kv.Books).Delete([]byte{'d', byte(i >> 8), byte(i)}); err != nil {
				return err
			}
		}
		return nil
	})
	want(t, "too many keys", err, kv.ErrTooLarge)
}

// TestTryGivesBackItsRoom: what a failed Try wrote does not count against the limits, and its journal does not show it.
func TestTryGivesBackItsRoom(t *testing.T) {
	s, boom := open(t, new(kv.Memory)), errors.New("boom")
	err := s.Update(t.Context(), func(x *kv.Txn) error {
		b := x.Of(kv.Books)
		for range 5 {
			err := x.Try(func() error { return errors.Join(b.Set([]byte("k"), make([]byte, kv.MaxValue)), boom) })
			want(t, "try", err, boom)
		}
		if w := x.Writes(); len(w) != 0 {
			t.Errorf("after failed tries %d writes are left", len(w))
		}
		return errors.Join(b.Set([]byte("l"), make([]byte, kv.MaxValue)), b.Set([]byte("m"), make([]byte, kv.MaxValue-100)))
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestMisuse(t *testing.T) {
	s, ctx := open(t, new(kv.Memory)), t.Context()
	var kept kv.Tx
	err := s.View(ctx, func(x *kv.Txn) error {
		kept = x.Of(kv.Books)
		want(t, "write in a view", kept.Set([]byte("k"), nil), kv.ErrReadOnly)
		want(t, "delete in a view", kept.Delete([]byte("k")), kv.ErrReadOnly)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	_, err = kept.Get([]byte("k"))
	want(t, "get after the end", err, kv.ErrClosed)
	for _, err := range kept.Iterate(nil, nil) {
		want(t, "iteration after the end", err, kv.ErrClosed)
	}
	if err := s.Update(ctx, func(x *kv.Txn) error { kept = x.Of(kv.Books); return nil }); err != nil {
		t.Fatal(err)
	}
	want(t, "write after the end", kept.Set([]byte("k"), nil), kv.ErrClosed)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	want(t, "update of a closed store", s.Update(ctx, func(*kv.Txn) error { return nil }), kv.ErrClosed)
	want(t, "view of a closed store", s.View(ctx, func(*kv.Txn) error { return nil }), kv.ErrClosed)
}

func TestPanicLeavesStoreUsable(t *testing.T) {
	s := open(t, new(kv.Memory))
	func() {
		defer func() { _ = recover() }()
		_ = s.Update(t.Context(), func(x *kv.Txn) error {
			_ = x.Of(kv.Books).Set([]byte("k"), nil)
			panic("boom")
		})
	}()
	err := s.Update(t.Context(), func(x *kv.Txn) error {
		_, err := x.Of(kv.Books).Get([]byte("k"))
		want(t, "write before the panic", err, kv.ErrNotFound)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestWritesReplay: what Writes gives, replayed into another store, makes that store the same; this is what the journal does.
func TestWritesReplay(t *testing.T) {
	a, b := open(t, new(kv.Memory)), open(t, new(kv.Memory))
	var journal [][]kv.Write
	for round := range 3 {
		err := a.Update(t.Context(), func(x *kv.Txn) error {
			err := errors.Join(
				x.Of(kv.Books).Set([]byte("entry"), []byte{byte(round)}),
				x.Of(kv.Provider).Set([]byte{'l', byte(round)}, []byte("lease")),
				x.Of(kv.Provider).Delete([]byte{'l', byte(round - 1)}),
			)
			journal = append(journal, x.Writes())
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // replay is idempotent
		for _, writes := range journal {
			if err := b.Update(t.Context(), func(x *kv.Txn) error { return x.Replay(writes) }); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got, w := dump(t, b), dump(t, a); !slices.Equal(got, w) || len(w) != 2 {
		t.Fatalf("replayed store holds %q, want %q", got, w)
	}
	err := b.Update(t.Context(), func(x *kv.Txn) error { return x.Replay([]kv.Write{{Key: []byte("strange/k")}}) })
	want(t, "replay of an unknown owner", err, kv.ErrOwner)
}

func dump(t *testing.T, s *kv.Store) (out []string) {
	t.Helper()
	err := s.View(t.Context(), func(x *kv.Txn) error {
		for _, o := range []kv.Owner{kv.Books, kv.Provider} {
			for p, err := range x.Of(o).Iterate(nil, nil) {
				if err != nil {
					return err
				}
				out = append(out, string(o)+"/"+string(p.Key)+"="+string(p.Value))
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// faulty is an engine whose disk can be full or fail.
type faulty struct {
	kv.Memory
	full, fails bool
}

var errDisk = errors.New("disk is gone")

func (f *faulty) Writable(ctx context.Context) error {
	if f.full {
		return kv.ErrReadOnly
	}
	return f.Memory.Writable(ctx)
}

func (f *faulty) Apply(ctx context.Context, w []kv.Write) error {
	if f.fails {
		return errDisk
	}
	return f.Memory.Apply(ctx, w)
}

func TestFailedCommitStopsWrites(t *testing.T) {
	e := new(faulty)
	s, ctx := open(t, e), t.Context()
	put := func(x *kv.Txn) error { return x.Of(kv.Books).Set([]byte("k"), []byte("v")) }
	e.fails = true
	err := s.Update(ctx, put)
	want(t, "failed commit", err, kv.ErrUnknown)
	want(t, "failed commit", err, errDisk)
	e.fails = false
	ran := false
	err = s.Update(ctx, func(*kv.Txn) error { ran = true; return nil })
	want(t, "update after a failed commit", err, kv.ErrUnknown)
	if ran {
		t.Error("a transaction ran after a failed commit")
	}
	if err := s.View(ctx, func(*kv.Txn) error { return nil }); err != nil {
		t.Errorf("view after a failed commit: %v", err)
	}
}

func TestFullDiskRefusesBeforeTheFunctionRuns(t *testing.T) {
	e := new(faulty)
	s := open(t, e)
	e.full = true
	err := s.Update(t.Context(), func(*kv.Txn) error { t.Error("the transaction ran"); return nil })
	want(t, "update on a full disk", err, kv.ErrReadOnly)
	e.full = false
	if err := s.Update(t.Context(), func(*kv.Txn) error { return nil }); err != nil {
		t.Errorf("update after space was freed: %v", err)
	}
}

// TestCommitDespiteCancel: a function that returned nil may have written its journal, so its commit is made whatever ctx says.
func TestCommitDespiteCancel(t *testing.T) {
	s := open(t, new(kv.Memory))
	ctx, cancel := context.WithCancel(t.Context())
	err := s.Update(ctx, func(x *kv.Txn) error {
		cancel()
		return x.Of(kv.Books).Set([]byte("k"), []byte("v"))
	})
	if got := dump(t, s); err != nil || len(got) != 1 {
		t.Fatalf("got %v and %q, want the commit", err, got)
	}
}

func TestWaitingForTheWriterEndsWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, new(kv.Memory))
		err := s.Update(t.Context(), func(*kv.Txn) error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			want(t, "second writer", s.Update(ctx, func(*kv.Txn) error { return nil }), context.DeadlineExceeded)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	})
}

func steps(names ...string) (out []kv.Step) {
	for i, name := range names {
		out = append(out, kv.Step{Number: uint32(i) + 1, Name: name, Run: func(_ context.Context, x *kv.Txn) error {
			return x.Of(kv.Books).Set([]byte(name), []byte("done"))
		}})
	}
	return out
}

func TestMigration(t *testing.T) {
	e, ctx := new(kv.Memory), t.Context()
	if _, err := kv.Open(ctx, e, kv.Schema{Release: "v0.1.0", Steps: steps("one")}); err != nil {
		t.Fatal(err)
	}
	boom := errors.New("boom")
	broken := steps("one", "two", "three")
	broken[0].Run = func(context.Context, *kv.Txn) error { t.Error("step 1 ran twice"); return nil }
	good := broken[2].Run
	broken[2].Run = func(ctx context.Context, x *kv.Txn) error { return errors.Join(good(ctx, x), boom) }
	_, err := kv.Open(ctx, e, kv.Schema{Release: "v0.2.0", Steps: broken})
	want(t, "migration that fails", err, boom)
	broken[2].Run = good
	broken[1].Run = func(context.Context, *kv.Txn) error { t.Error("step 2 ran twice"); return nil }
	s, err := kv.Open(ctx, e, kv.Schema{Release: "v0.2.1", Steps: broken})
	if err != nil {
		t.Fatal(err)
	}
	if got, w := dump(t, s), []string{"books/one=done", "books/three=done", "books/two=done"}; !slices.Equal(got, w) {
		t.Fatalf("after migration: %q, want %q", got, w)
	}
	_, err = kv.Open(ctx, e, kv.Schema{Release: "v0.1.0", Steps: steps("one")})
	want(t, "older program", err, kv.ErrSchema)
	if !strings.Contains(err.Error(), "use release v0.2.1 or newer") {
		t.Errorf("the error does not say which release to use: %v", err)
	}
}

func TestSchemaRefusals(t *testing.T) {
	swapped := steps("one", "two")
	swapped[0], swapped[1] = swapped[1], swapped[0]
	for name, sc := range map[string]kv.Schema{
		"no steps":            {Release: "v1"},
		"no release":          {Steps: steps("one")},
		"release with spaces": {Release: "v1 beta", Steps: steps("one")},
		"swapped":             {Release: "v1", Steps: swapped},
		"no function":         {Release: "v1", Steps: []kv.Step{{Number: 1, Name: "one"}}},
	} {
		_, err := kv.Open(t.Context(), new(kv.Memory), sc)
		want(t, name, err, kv.ErrSchema)
	}
	for name, w := range map[string]kv.Write{
		"data without schema": {Key: []byte("books/k"), Value: []byte("v")},
		"damaged number":      {Key: []byte("kv/schema"), Value: []byte("x v1")},
		"number 0":            {Key: []byte("kv/schema"), Value: []byte("0 v1")},
		"no release kept":     {Key: []byte("kv/schema"), Value: []byte("1")},
	} {
		e := new(kv.Memory)
		if err := e.Apply(t.Context(), []kv.Write{w}); err != nil {
			t.Fatal(err)
		}
		_, err := kv.Open(t.Context(), e, kvtest.Schema())
		want(t, name, err, kv.ErrSchema)
	}
}
