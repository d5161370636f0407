package provider

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p/blob"
	"github.com/gpufair/gpufair/p2p/wire"
)

func put(t *testing.T, s *stage, b []byte) wire.Hash {
	t.Helper()
	store, err := s.open()
	must(t, err)
	h, err := store.Put(t.Context(), b)
	must(t, err)
	return h
}

// A pushed manifest says what is missing, and one that lies or asks for too much is refused before a layer is pushed.
func TestStage(t *testing.T) {
	a, b := wire.Sum("", []byte("a")), wire.Sum("", []byte("b"))
	layer := func(h wire.Hash, size int64) descriptor { return descriptor{Digest: digest(h), Size: size} }
	for name, c := range map[string]struct {
		manifest any
		want     error
	}{
		"good":          {imageManifest{Config: layer(a, 1), Layers: []descriptor{layer(b, 999)}}, nil},
		"too large":     {imageManifest{Config: layer(a, 1), Layers: []descriptor{layer(b, 1000)}}, blob.ErrQuota},
		"overflow":      {imageManifest{Config: layer(a, 1), Layers: []descriptor{layer(b, 1<<62), layer(a, 1<<62), layer(b, 1<<62)}}, blob.ErrQuota},
		"negative size": {imageManifest{Config: layer(a, -1)}, blob.ErrQuota},
		"many layers":   {imageManifest{Config: layer(a, 1), Layers: make([]descriptor, maxLayers+1)}, ErrImage},
		"no config":     {imageManifest{}, ErrImage},
		"other hash":    {imageManifest{Config: descriptor{Digest: "md5:1"}}, ErrImage},
		"not a hash":    {imageManifest{Config: descriptor{Digest: "sha256:../../etc"}}, ErrImage},
		"no manifest":   {"words", ErrImage},
	} {
		raw, err := json.Marshal(c.manifest)
		must(t, err)
		store, err := blob.OpenStore(filepath.Join(t.TempDir(), "big"), 1<<20) // the manifest itself is no matter of the quota here
		must(t, err)
		h, err := store.Put(t.Context(), raw)
		must(t, err)
		got, err := readImage(t.Context(), store, h, 1000)
		if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
			t.Errorf("%s: %v", name, err)
		}
		if c.want == nil && !slices.Equal(got.parts, []imagePart{{a, 1}, {b, 999}}) {
			t.Errorf("%s: parts %v", name, got.parts)
		}
		must(t, store.Close())
	}
}

// A stage has a quota of its own, and after drop nothing of it is left and nothing can be pushed.
func TestStageIsDropped(t *testing.T) {
	s := &stage{dir: filepath.Join(t.TempDir(), "s"), quota: 1000}
	spec := work.Spec{Image: wire.Sum("", []byte("image"))}
	if lack, _, err := s.missing(t.Context(), spec, false); err != nil || !slices.Equal(lack, []wire.Hash{spec.Image}) {
		t.Fatalf("missing %v: %v", lack, err)
	}
	if lack, _, err := s.missing(t.Context(), spec, true); err != nil || len(lack) != 0 {
		t.Fatalf("missing of an imported image %v: %v", lack, err)
	}
	put(t, s, make([]byte, 900))
	store, err := s.open()
	must(t, err)
	if _, err := store.Put(t.Context(), make([]byte, 101)); !errors.Is(err, blob.ErrQuota) {
		t.Fatalf("over the quota: %v", err)
	}
	must(t, s.drop())
	must(t, s.drop())
	if _, err := os.Stat(s.dir); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("left: %v", err)
	}
	if _, err := s.open(); err == nil {
		t.Fatal("opened after drop")
	}
	if _, err := store.Put(t.Context(), []byte("late")); err == nil {
		t.Fatal("pushed after drop")
	}
}

// Inputs may be read by whatever user the job is, are made anew after a start that was cut short, and unpack to no more than their room.
func TestUnpackInputs(t *testing.T) {
	s := &stage{dir: filepath.Join(t.TempDir(), "s"), quota: 1 << 20}
	chunk := put(t, s, []byte("0123456789"))
	m := blob.Manifest{Version: 1, Entries: []blob.Entry{
		{Path: "d", Type: blob.Dir, Mode: 0o700},
		{Path: "d/f", Type: blob.File, Mode: 0o600, Size: 10, Chunks: []wire.Hash{chunk}},
		{Path: "d/x", Type: blob.File, Mode: 0o700, Size: 10, Chunks: []wire.Hash{chunk}},
	}}
	raw, h, err := m.Encode()
	must(t, err)
	if got := put(t, s, raw); got != h {
		t.Fatal("another hash")
	}
	store, err := s.open()
	must(t, err)
	in := filepath.Join(t.TempDir(), "in")
	must(t, os.MkdirAll(filepath.Join(in, "half"), 0o700))
	if err := unpackInputs(t.Context(), store, h, in, 19); !errors.Is(err, blob.ErrQuota) {
		t.Fatalf("20 bytes into 19: %v", err)
	}
	must(t, unpackInputs(t.Context(), store, h, in, 20))
	var modes strings.Builder
	for _, p := range []string{"", "d", "d/f", "d/x"} {
		info, err := os.Stat(filepath.Join(in, p))
		must(t, err)
		modes.WriteString(fmt.Sprintf("%o ", info.Mode().Perm()))
	}
	if modes.String() != "755 755 644 755 " {
		t.Errorf("modes %s", modes.String())
	}
	if _, err := os.Stat(filepath.Join(in, "half")); err == nil {
		t.Error("the half of an earlier start is left")
	}
	must(t, s.drop())
}

// Results that are being fetched or were wiped are never packed again behind the lease's back.
func TestPacking(t *testing.T) {
	out := t.TempDir()
	must(t, os.WriteFile(filepath.Join(out, "a"), []byte("a"), 0o600))
	p := &packing{}
	h, err := p.last(context.Background(), out)
	must(t, err)
	if _, err := p.source(context.Background(), out, h); err != nil || h.IsZero() {
		t.Fatalf("source: %v", err)
	}
	if _, err := p.source(context.Background(), out, wire.Sum("", nil)); !errors.Is(err, blob.ErrNotFound) {
		t.Fatalf("another pack: %v", err)
	}
	fresh := &packing{} // as after a restart
	if _, err := fresh.source(context.Background(), out, h); err != nil {
		t.Fatalf("packed again: %v", err)
	}
	fresh.drop()
	p.drop()
	if _, err := p.source(context.Background(), out, h); !errors.Is(err, blob.ErrNotFound) {
		t.Fatalf("after drop: %v", err)
	}
	if h, err := p.last(context.Background(), out); err != nil || !h.IsZero() {
		t.Fatalf("packed after drop: %v %v", h, err)
	}
}
