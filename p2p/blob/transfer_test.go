package blob

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/p2ptest"
	"github.com/gpufair/gpufair/p2p/wire"
)

const proto p2p.Protocol = "/gpufair/test/blob/1.0.0"

var lease = wire.Sum("some lease")

// world is a provider that serves blobs and a renter beside it.
type world struct {
	net    *p2ptest.Net
	a, b   *p2ptest.Node
	client Client
	store  *Store // the provider's
	source Source // what the provider gives
	deny   error  // what its authorizer says to all
	asked  atomic.Pointer[Request]
}

func (w *world) Push(_ context.Context, r Request) (*Store, error) {
	w.asked.Store(&r)
	return w.store, w.deny
}

func (w *world) Fetch(_ context.Context, r Request) (Source, error) {
	w.asked.Store(&r)
	return w.source, w.deny
}

// run is f in a new world inside a bubble.
func run(t *testing.T, quota int64, f func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		net := p2ptest.NewNet(t)
		w := &world{net: net, a: net.Join(p2ptest.Device(t)), b: net.Join(p2ptest.Device(t)), store: openStore(t, t.TempDir(), quota)}
		w.source = w.store
		net.Mesh()
		w.b.Handle(proto, ServerLimits(), Serve(w))
		w.client = Client{Network: w.a, Protocol: proto, Peer: w.b.Self(), Lease: lease}
		f(t, w)
	})
}

// again connects the two after a cut.
func (w *world) again(t *testing.T) {
	t.Helper()
	w.net.Faults(w.a.Self(), w.b.Self(), p2ptest.Faults{})
	if err := w.a.Connect(t.Context(), w.b.PeerAddr()); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
}

func put(t *testing.T, s *Store, data []byte) wire.Hash {
	t.Helper()
	h, _, err := s.PutStream(t.Context(), bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// bar checks that progress only rises, and ends at its total.
type bar struct{ first, done, total int64 }

func (b *bar) step(t *testing.T) Progress {
	b.first = -1
	return func(done, total int64) {
		if done < b.done || done > total {
			t.Errorf("progress went from %d to %d of %d", b.done, done, total)
		}
		if b.first < 0 {
			b.first = done
		}
		b.done, b.total = done, total
	}
}

func TestPushAndFetchBlob(t *testing.T) {
	run(t, 1<<30, func(t *testing.T, w *world) {
		mine := openStore(t, t.TempDir(), 1<<30)
		for _, data := range [][]byte{nil, []byte("x"), noise(1, maxData), noise(2, 5*maxData+1)} {
			var p bar
			h := put(t, mine, data)
			for range 2 { // the second finds all there
				if err := w.client.Push(t.Context(), mine, h, p.step(t)); err != nil {
					t.Fatal(err)
				}
			}
			if !bytes.Equal(content(t, w.store, h), data) || p.done != int64(len(data)) || p.total != p.done || p.first != p.done {
				t.Errorf("%d bytes: %+v", len(data), p)
			}
			want := Request{Peer: w.a.Self(), Lease: lease, Hash: h, Size: int64(len(data)), Total: int64(len(data))}
			if got := *w.asked.Load(); got != want {
				t.Errorf("the authorizer was asked %+v, want %+v", got, want)
			}
			fresh, q := openStore(t, t.TempDir(), 1<<30), bar{}
			for range 2 {
				if err := w.client.Fetch(t.Context(), fresh, h, q.step(t)); err != nil {
					t.Fatal(err)
				}
			}
			if !bytes.Equal(content(t, fresh, h), data) || q.done != int64(len(data)) {
				t.Errorf("fetch of %d bytes: %+v", len(data), q)
			}
			if got := *w.asked.Load(); got != (Request{Peer: w.a.Self(), Lease: lease, Hash: h}) {
				t.Errorf("the authorizer was asked %+v", got)
			}
		}
	})
}

func TestPushAndFetchTree(t *testing.T) {
	run(t, 1<<30, func(t *testing.T, w *world) {
		root := tree(t)
		packed := pack(t, root)
		var p, q bar
		if err := w.client.PushTree(t.Context(), packed, packed.ID, p.step(t)); err != nil {
			t.Fatal(err)
		}
		// a/exact and read-only/twin are one chunk: it travels once.
		if want := int64(len(packed.encoded)) + packed.Manifest.Bytes() - ChunkSize; p.done != want || p.total != want {
			t.Errorf("%+v, want %d", p, want)
		}
		if r := w.asked.Load(); !r.Tree || r.Total != int64(len(packed.encoded))+packed.Manifest.Bytes() {
			t.Errorf("the authorizer was asked %+v", *r)
		}
		mine := openStore(t, t.TempDir(), 1<<30)
		m, err := w.client.FetchTree(t.Context(), mine, packed.ID, q.step(t))
		if err != nil || q.done != p.done || q.total != p.total {
			t.Fatal(q, err)
		}
		parent := openRoot(t)
		if err := Unpack(t.Context(), mine, m, parent, "out", UnpackOptions{}); err != nil {
			t.Fatal(err)
		}
		out := filepath.Join(parent.Name(), "out")
		defer os.Chmod(filepath.Join(out, "read-only"), 0o755)
		samePicture(t, picture(t, out), picture(t, root))

		// A folder with one file more costs that file.
		if err := os.WriteFile(filepath.Join(root, "more"), noise(7, 1000), 0o600); err != nil {
			t.Fatal(err)
		}
		more := pack(t, root)
		var r bar
		if err := w.client.PushTree(t.Context(), more, more.ID, r.step(t)); err != nil {
			t.Fatal(err)
		}
		if used := w.store.Used(); used != p.done+int64(len(more.encoded))+1000 {
			t.Errorf("%d bytes in use", used)
		}
	})
}

// After a cut the blob goes on from the byte where it was: nothing that arrived travels again.
func TestBlobResumes(t *testing.T) {
	const size, cut = 20 * maxData, 7*maxData + 1000
	data := noise(3, size)
	for name, step := range map[string]func(*testing.T, *world, *Store, wire.Hash, Progress) error{
		"push": func(t *testing.T, w *world, mine *Store, h wire.Hash, p Progress) error {
			return w.client.Push(t.Context(), mine, h, p)
		},
		"fetch": func(t *testing.T, w *world, mine *Store, h wire.Hash, p Progress) error {
			return w.client.Fetch(t.Context(), mine, h, p)
		},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, 1<<30, func(t *testing.T, w *world) {
				from, to := openStore(t, t.TempDir(), 1<<30), w.store
				mine := from
				if name == "fetch" {
					from, to = w.store, openStore(t, t.TempDir(), 1<<30)
					mine = to
				}
				h := put(t, from, data)
				w.net.Faults(w.a.Self(), w.b.Self(), p2ptest.Faults{CutAfter: cut})
				if err := step(t, w, mine, h, nil); err == nil {
					t.Fatal("nobody noticed the cut")
				}
				synctest.Wait()
				had := to.Partial(h)
				if had == 0 || had > cut {
					t.Fatalf("%d bytes arrived before the cut at %d", had, cut)
				}
				w.again(t)
				var p bar
				if err := step(t, w, mine, h, p.step(t)); err != nil {
					t.Fatal(err)
				}
				if p.first != had || p.done != size {
					t.Errorf("went on from %d to %d, had %d", p.first, p.done, had)
				}
				if !bytes.Equal(content(t, to, h), data) {
					t.Error("other bytes arrived")
				}
			})
		})
	}
}

func TestTreeResumes(t *testing.T) {
	run(t, 1<<30, func(t *testing.T, w *world) {
		root := t.TempDir()
		if err := os.WriteFile(filepath.Join(root, "big"), noise(4, 8*ChunkSize), 0o600); err != nil {
			t.Fatal(err)
		}
		packed := pack(t, root)
		w.net.Faults(w.a.Self(), w.b.Self(), p2ptest.Faults{CutAfter: 5*ChunkSize + ChunkSize/2})
		if err := w.client.PushTree(t.Context(), packed, packed.ID, nil); err == nil {
			t.Fatal("nobody noticed the cut")
		}
		synctest.Wait()
		had := int64(0)
		for _, c := range packed.Manifest.Entries[0].Chunks {
			if size, ok := w.store.Has(c); ok {
				had += size
			}
		}
		if had < 4*ChunkSize {
			t.Errorf("only %d bytes were kept of the 5.5 chunks that arrived", had)
		}
		w.again(t)
		// What the peer has is not sent again: the rest fits through a line that is cut after it.
		left := int(packed.Manifest.Bytes() - had)
		w.net.Faults(w.a.Self(), w.b.Self(), p2ptest.Faults{CutAfter: left + 10_000})
		var p bar
		if err := w.client.PushTree(t.Context(), packed, packed.ID, p.step(t)); err != nil {
			t.Fatal(err)
		}
		if p.done != p.total {
			t.Errorf("%+v", p)
		}
	})
}
