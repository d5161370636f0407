package kvtest

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/gpufair/gpufair/ledger/kv"
)

// model holds a store against a map: random transactions, some of which fail, and in each of them every read agrees with the map.
func model(t *testing.T, open Open) {
	e := open(t)
	s, err := kv.Open(t.Context(), e, Schema())
	must(t, err)
	rapid.Check(t, func(rt *rapid.T) {
		empty(t, s)
		truth := map[string]string{}
		for range rapid.IntRange(1, 6).Draw(rt, "transactions") {
			fails := rapid.IntRange(0, 3).Draw(rt, "fails") == 0
			trial := maps.Clone(truth)
			boom := errors.New("boom")
			err := s.Update(t.Context(), func(x *kv.Txn) error {
				step(rt, x, trial)
				if fails {
					return boom
				}
				return nil
			})
			switch {
			case fails && !errors.Is(err, boom), !fails && err != nil:
				rt.Fatal(err)
			case !fails:
				truth = trial
			}
		}
		must(t, s.View(t.Context(), func(x *kv.Txn) error { agree(rt, x, truth, "", ""); return nil }))
	})
}

func empty(t *testing.T, s *kv.Store) {
	must(t, s.Update(t.Context(), func(x *kv.Txn) error {
		for _, o := range modelOwners() {
			for p, err := range x.Of(o).Iterate(nil, nil) {
				if err != nil {
					return err
				}
				must(t, x.Of(o).Delete(p.Key))
			}
		}
		return nil
	}))
}

func modelOwners() []kv.Owner { return []kv.Owner{kv.Books, kv.Provider, kv.MarketAnnounce} }

// step makes a few random changes and reads in x and in the map, whose keys are owner + "/" + key.
func step(rt *rapid.T, x *kv.Txn, truth map[string]string) {
	keys := rapid.StringMatching(`[ab/\x{ff}]{1,3}`)
	for range rapid.IntRange(0, 8).Draw(rt, "operations") {
		if rapid.IntRange(0, 5).Draw(rt, "try") == 0 {
			try(rt, x, truth)
		}
		o := rapid.SampledFrom(modelOwners()).Draw(rt, "owner")
		key := keys.Draw(rt, "key")
		switch rapid.IntRange(0, 3).Draw(rt, "operation") {
		case 0, 1:
			v := rapid.StringN(0, 3, 8).Draw(rt, "value")
			if err := x.Of(o).Set([]byte(key), []byte(v)); err != nil {
				rt.Fatal(err)
			}
			truth[string(o)+"/"+key] = v
		case 2:
			if err := x.Of(o).Delete([]byte(key)); err != nil {
				rt.Fatal(err)
			}
			delete(truth, string(o)+"/"+key)
		case 3:
			v, err := x.Of(o).Get([]byte(key))
			if w, ok := truth[string(o)+"/"+key]; ok != (err == nil) || string(v) != w {
				rt.Fatalf("get %s of %s: got %q, %v, want %q, %v", key, o, v, err, w, ok)
			}
			agree(rt, x, truth, key[:1], key)
		}
	}
}

// try makes a step that may fail alone.
func try(rt *rapid.T, x *kv.Txn, truth map[string]string) {
	trial, boom := maps.Clone(truth), errors.New("boom")
	fails := rapid.Bool().Draw(rt, "try fails")
	err := x.Try(func() error {
		step(rt, x, trial)
		if fails {
			return boom
		}
		return nil
	})
	if fails != errors.Is(err, boom) {
		rt.Fatalf("try: got %v", err)
	}
	if !fails {
		maps.Copy(truth, trial)
		maps.DeleteFunc(truth, func(k, _ string) bool { _, ok := trial[k]; return !ok })
	}
	agree(rt, x, truth, "", "")
}

// agree checks that iteration over each owner shows what the map holds.
func agree(rt *rapid.T, x *kv.Txn, truth map[string]string, prefix, from string) {
	for _, o := range modelOwners() {
		var w []string
		for _, full := range slices.Sorted(maps.Keys(truth)) {
			if key, ok := strings.CutPrefix(full, string(o)+"/"); ok && strings.HasPrefix(key, prefix) && key >= from {
				w = append(w, key+"="+truth[full])
			}
		}
		got, err := scan(x.Of(o), prefix, from)
		if err != nil || !slices.Equal(got, w) {
			rt.Fatalf("iterate over %q from %q of %s: got %q, %v, want %q", prefix, from, o, got, err, w)
		}
	}
}
