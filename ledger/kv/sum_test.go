package kv

import (
	"context"
	"errors"
	"testing"

	"pgregory.net/rapid"
)

// Whatever transactions write, replace, delete and take back, the store's sum is that of its pairs; and whatever is lost or altered behind
// its back is found.
func TestCheck(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		ctx, engine := context.Background(), &Memory{}
		s, err := Open(ctx, engine, Schema{Release: "v1", Steps: []Step{{Number: 1, Run: func(context.Context, *Txn) error { return nil }}}})
		if err != nil {
			rt.Fatal(err)
		}
		check := func() error { return s.View(ctx, func(t *Txn) error { return t.Check() }) }
		key := rapid.SliceOfN(rapid.Byte(), 1, 2)
		for range rapid.IntRange(1, 8).Draw(rt, "transactions") {
			err := s.Update(ctx, func(tx *Txn) error {
				own := tx.Of(Provider)
				for range rapid.IntRange(0, 6).Draw(rt, "writes") {
					k := key.Draw(rt, "key")
					if rapid.Bool().Draw(rt, "delete") {
						if err := own.Delete(k); err != nil {
							return err
						}
					} else if err := own.Set(k, key.Draw(rt, "value")); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				rt.Fatal(err)
			}
			if err := check(); err != nil {
				rt.Fatal(err)
			}
		}
		var pairs []Pair
		err = engine.View(ctx, func(r Reader) error {
			for p, err := range r.Iterate(nil, nil) {
				if err != nil {
					return err
				}
				pairs = append(pairs, p)
			}
			return nil
		})
		if err != nil {
			rt.Fatal(err)
		}
		p := rapid.SampledFrom(pairs).Draw(rt, "damaged")
		w := Write{Key: p.Key, Delete: true}
		if rapid.Bool().Draw(rt, "altered") {
			w = Write{Key: p.Key, Value: append(p.Value, 1)}
		}
		if err := engine.Apply(ctx, []Write{w}); err != nil {
			rt.Fatal(err)
		}
		if err := check(); !errors.Is(err, ErrDamaged) {
			rt.Fatalf("key %q damaged: %v", p.Key, err)
		}
	})
}
