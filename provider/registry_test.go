package provider

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpufair/gpufair/market/negotiate"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p/wire"
)

// fakeRegistries are one repository in memory.
type fakeRegistries struct {
	mu     sync.Mutex
	blobs  map[string][]byte
	breaks int           // connections to a layer that break off after half of what is left
	err    error         // of every fetch
	hang   chan struct{} // not nil: every fetch waits for it or for its ctx
	asked  []Part
	opened string
	denied []string
}

func (f *fakeRegistries) Open(name string, deny []string) (Repository, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.opened, f.denied = name, deny
	return f, nil
}

func (f *fakeRegistries) Fetch(ctx context.Context, p Part) (io.ReadCloser, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, p)
	if f.hang != nil {
		select {
		case <-f.hang:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	b, ok := f.blobs[p.Digest]
	switch {
	case f.err != nil:
		return nil, f.err
	case !ok:
		return nil, fmt.Errorf("%w: it answers 404 Not Found", ErrRegistry)
	}
	b = b[p.Offset:]
	if f.breaks > 0 && p.Size > 1000 && !p.Manifest {
		f.breaks--
		return io.NopCloser(io.MultiReader(bytes.NewReader(b[:len(b)/2]), brokenReader{})), nil
	}
	return io.NopCloser(bytes.NewReader(b)), nil
}

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, errors.New("the connection broke off") }

// image puts an image of one layer into the registry and gives the job that wants it.
func (f *fakeRegistries) image(layer []byte) work.Spec {
	put := func(b []byte) descriptor {
		h := wire.Sum("", b)
		f.blobs[digest(h)] = b
		return descriptor{Digest: digest(h), Size: int64(len(b))}
	}
	f.blobs = map[string][]byte{}
	raw, err := json.Marshal(imageManifest{Config: put([]byte("{}")), Layers: []descriptor{put(layer)}})
	if err != nil {
		panic(err)
	}
	put(raw)
	return work.Spec{Image: wire.Sum("", raw), Source: "registry.example.com/library/x", Command: []string{"x"}}
}

// pullRig sells a lease whose runtime has no image.
func pullRig(r *rig) *keeper {
	r.conf.Registries = []string{"registry.example.com", "example.org:5000"}
	r.conf.Egress.Deny = []string{"203.0.113.7/32"}
	r.a.mu.Lock()
	r.a.conf = r.conf
	r.a.mu.Unlock()
	r.runtime.bare = true
	k := r.sell()
	r.attend(k)
	return k
}

// TestPull pulls an image over connections that break off: each goes on where the one before stopped, and then the job starts.
func TestPull(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.paying.Store(true)
		k := pullRig(r)
		layer := bytes.Repeat([]byte("layer"), 1000)
		spec := r.registries.image(layer)
		r.registries.breaks = 3
		status, err := r.prepareWith(k, spec)
		if err != nil || len(status.Missing) != 0 {
			t.Fatalf("the renter is to push %v: %v", status.Missing, err)
		}
		for range 100 { // as a renter does
			if _, err = r.ask(work.Ask{Lease: k.id, Action: work.ActStart}); !reason.Is(negotiate.Typed(err), reason.NotPreparing) {
				break
			}
			time.Sleep(time.Second)
		}
		must(t, err)
		r.await(k.id, work.Running, time.Second)
		var offsets []int64
		for _, p := range r.registries.asked {
			if p.Size == int64(len(layer)) {
				offsets = append(offsets, p.Offset)
			}
		}
		if !slices.Equal(offsets, []int64{0, 2500, 3750, 4375}) || r.registries.opened != spec.Source || !slices.Equal(r.registries.denied, r.conf.Egress.Deny) {
			t.Errorf("the layer was asked for from %v of %s, without %v", offsets, r.registries.opened, r.registries.denied)
		}
	})
}

// TestPullAfterCrash goes on with what was pulled before the daemon died.
func TestPullAfterCrash(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		k := pullRig(r)
		spec := r.registries.image(bytes.Repeat([]byte("layer"), 1000))
		r.registries.breaks = 1000
		_, err := r.prepareWith(k, spec)
		must(t, err)
		synctest.Wait() // the manifest and halves are there
		r.crash()
		r.registries.mu.Lock()
		r.registries.breaks, r.registries.asked = 0, nil
		r.registries.mu.Unlock()
		k = r.keeper(k.id)
		for range 10 {
			if _, err = r.ask(work.Ask{Lease: k.id, Action: work.ActStatus}); err != nil {
				break
			}
			time.Sleep(time.Second)
		}
		must(t, err)
		push, pull, err := k.lack(t.Context())
		if err != nil || len(push)+len(pull) != 0 {
			t.Fatalf("lacks %v and %v, %v", push, pull, err)
		}
		for _, p := range r.registries.asked {
			if p.Manifest || p.Offset == 0 {
				t.Errorf("asked again for %+v", p)
			}
		}
	})
}

// TestPullFails ends the lease, unpaid, with what the renter may know of the reason.
func TestPullFails(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(f *fakeRegistries, s *work.Spec)
		code  reason.Code
		says  string
	}{
		"denied": {func(f *fakeRegistries, _ *work.Spec) {
			f.err = fmt.Errorf("%w: 192.168.1.5:443 is not a job's to reach", ErrDenied)
		}, reason.PullFailed, "where nothing may be fetched from"},
		"not there":   {func(f *fakeRegistries, _ *work.Spec) { f.blobs = nil }, reason.PullFailed, "it answers 404 Not Found"},
		"unreachable": {func(f *fakeRegistries, _ *work.Spec) { f.err = errors.New("no route") }, reason.PullFailed, "can't be reached"},
		"lies": {func(f *fakeRegistries, _ *work.Spec) {
			for d, b := range f.blobs {
				f.blobs[d] = bytes.ToUpper(b)
			}
		}, reason.PullFailed, "it gives another one"},
		"no manifest": {func(f *fakeRegistries, s *work.Spec) {
			s.Image = wire.Sum("", []byte("words"))
			f.blobs[digest(s.Image)] = []byte("words")
		}, reason.ImageInvalid, ""},
		"too large": {func(f *fakeRegistries, s *work.Spec) {
			raw, _ := json.Marshal(imageManifest{Config: descriptor{Digest: digest(s.Image), Size: 1 << 40}})
			s.Image = wire.Sum("", raw)
			f.blobs[digest(s.Image)] = raw
		}, reason.DiskFull, ""},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				k := pullRig(r)
				spec := r.registries.image([]byte("layer"))
				c.spoil(&r.registries, &spec)
				if _, err := r.prepareWith(k, spec); err != nil {
					t.Fatal(err)
				}
				rec := r.over(k.id, string(c.code))
				if rec.Charge != 0 || !strings.Contains(rec.Reason.Detail, c.says) || strings.Contains(rec.Reason.Detail, "192.168") {
					t.Errorf("charged %v; %s", rec.Charge, rec.Reason)
				}
			})
		})
	}
}

// TestPullEnds stops a pull with its lease, and pulls from nowhere that the owner did not name.
func TestPullEnds(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		k := pullRig(r)
		spec := r.registries.image([]byte("layer"))
		other := spec
		other.Source = "registry.example.com.evil.example/x"
		if _, err := r.prepareWith(k, other); !reason.Is(negotiate.Typed(err), reason.RegistryRefused) || len(r.registries.asked) != 0 {
			t.Errorf("from another registry: %v", err)
		}
		r.registries.hang = make(chan struct{})
		if _, err := r.prepareWith(k, spec); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if _, err := r.ask(work.Ask{Lease: k.id, Action: work.ActStop}); err != nil {
			t.Fatal(err)
		}
		r.over(k.id, "stopped_renter") // and with it the bubble: no fetch is left
	})
}
