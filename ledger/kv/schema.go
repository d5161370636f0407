package kv

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Step is one numbered change of what is stored. It runs in one transaction of its own, together with the new schema number.
type Step struct {
	Number uint32 // 1, 2, 3 … without gaps; never used again for anything else
	Name   string // what it does, for the log and the error
	Run    func(context.Context, *Txn) error
}

// Schema is what a program can read: the last step's number.
type Schema struct {
	Release string // of this program, such as v0.3.0; kept in the store, so that an older program can say which one to use
	Steps   []Step // all there ever were
}

// schemaKey holds "<number> <release that wrote it>".
const schemaKey = "schema"

// Open brings the engine's data to the newest step and gives the store over it. It refuses data of a newer schema with ErrSchema and
// the release to use. The caller still owns the engine when Open returns an error.
func Open(ctx context.Context, engine Engine, schema Schema) (*Store, error) {
	if err := schema.validate(); err != nil {
		return nil, err
	}
	s := &Store{engine: engine, writer: make(chan struct{}, 1)}
	have, release, err := s.schema(ctx)
	if err != nil {
		return nil, err
	}
	if want := uint32(len(schema.Steps)); have > want {
		return nil, fmt.Errorf("open store: %w: its data is of schema %d, written by release %s; this is release %s, which knows schema %d: "+
			"use release %s or newer", ErrSchema, have, release, schema.Release, want, release)
	}
	for _, step := range schema.Steps[have:] {
		err := s.Update(ctx, func(t *Txn) error {
			if err := step.Run(ctx, t); err != nil {
				return err
			}
			return t.Of(store).Set([]byte(schemaKey), fmt.Appendf(nil, "%d %s", step.Number, schema.Release))
		})
		if err != nil {
			return nil, fmt.Errorf("open store: migrate to schema %d (%s): nothing of it was kept: %w", step.Number, step.Name, err)
		}
	}
	return s, nil
}

func (s Schema) validate() error {
	if s.Release == "" || strings.ContainsAny(s.Release, " \n") {
		return fmt.Errorf("schema of release %q: %w: want a release without spaces", s.Release, ErrSchema)
	}
	if len(s.Steps) == 0 {
		return fmt.Errorf("schema of release %s: %w: want at least one step", s.Release, ErrSchema)
	}
	for i, step := range s.Steps {
		if step.Number != uint32(i)+1 || step.Run == nil {
			return fmt.Errorf("schema of release %s: %w: step %d (%s) is at place %d", s.Release, ErrSchema, step.Number, step.Name, i+1)
		}
	}
	return nil
}

// schema reads the number and the release that wrote it; 0 for an empty store.
func (s *Store) schema(ctx context.Context) (number uint32, release string, err error) {
	err = s.engine.View(ctx, func(r Reader) error {
		v, err := r.Get([]byte(string(store) + separator + schemaKey))
		if errors.Is(err, ErrNotFound) {
			for p, err := range r.Iterate(nil, nil) {
				if err != nil {
					return err
				}
				return fmt.Errorf("%w: it has data (key %q) but no schema number, so it is damaged or not a store of gpufair: "+
					"restore it from a backup", ErrSchema, p.Key)
			}
			return nil
		}
		if err != nil {
			return err
		}
		n, rel, _ := strings.Cut(string(v), " ")
		u, perr := strconv.ParseUint(n, 10, 32)
		if perr != nil || u == 0 || rel == "" {
			return fmt.Errorf("%w: its schema number %q is damaged: restore it from a backup", ErrSchema, v)
		}
		number, release = uint32(u), rel
		return nil
	})
	if err != nil {
		return 0, "", fmt.Errorf("open store: %w", err)
	}
	return number, release, nil
}
