package blob

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/wire"
)

// lying is a source that gives data under any name.
func lying(data []byte) Source {
	return SourceFunc(func(context.Context, wire.Hash) (Reader, error) { return memory{bytes.NewReader(data)}, nil })
}

func TestWrongBytesAreRefused(t *testing.T) {
	run(t, 1<<30, func(t *testing.T, w *world) {
		data := noise(1, 3*maxData)
		h := wire.Sum("", data)
		wrong := bytes.Clone(data)
		wrong[len(wrong)-1] ^= 1
		if err := w.client.Push(t.Context(), lying(wrong), h, nil); !errors.Is(err, ErrHashMismatch) {
			t.Errorf("push: %v", err)
		}
		synctest.Wait()
		if w.store.Used() != 0 || w.store.Partial(h) != 0 {
			t.Errorf("%d bytes were kept", w.store.Used())
		}
		w.source = lying(wrong)
		mine := openStore(t, t.TempDir(), 1<<30)
		if err := w.client.Fetch(t.Context(), mine, h, nil); !errors.Is(err, ErrHashMismatch) || mine.Used() != 0 {
			t.Errorf("fetch: %v, %d bytes kept", err, mine.Used())
		}
		if err := w.client.Push(t.Context(), lying(data), h, nil); err != nil {
			t.Errorf("the right bytes afterwards: %v", err)
		}
	})
}

func TestWrongChunkIsRefused(t *testing.T) {
	run(t, 1<<30, func(t *testing.T, w *world) {
		packed := pack(t, tree(t))
		wrong := SourceFunc(func(ctx context.Context, h wire.Hash) (Reader, error) {
			r, err := packed.Blob(ctx, h)
			if err != nil || h == packed.ID {
				return r, err
			}
			return memory{bytes.NewReader(noise(8, int(r.Size())))}, nil
		})
		if err := w.client.PushTree(t.Context(), wrong, packed.ID, nil); !errors.Is(err, ErrHashMismatch) {
			t.Errorf("push: %v", err)
		}
		w.source = wrong
		mine := openStore(t, t.TempDir(), 1<<30)
		if _, err := w.client.FetchTree(t.Context(), mine, packed.ID, nil); !errors.Is(err, ErrHashMismatch) {
			t.Errorf("fetch: %v", err)
		}
	})
}

func TestHostileManifestIsRefused(t *testing.T) {
	b, err := wire.Marshal(manifest(file("../x", 1, wire.Sum("", []byte("x")))))
	if err != nil {
		t.Fatal(err)
	}
	h := wire.Sum("", b)
	run(t, 1<<30, func(t *testing.T, w *world) {
		w.source = lying(b)
		mine := openStore(t, t.TempDir(), 1<<30)
		if _, err := w.client.FetchTree(t.Context(), mine, h, nil); !errors.Is(err, ErrPath) {
			t.Errorf("the server's own check: %v", err)
		}
		// A peer without our checks sends it all the same: as a client …
		ask := hello{Lease: lease, Hash: h, Push: true, Tree: true, Size: int64(len(b)), Total: int64(len(b)) + 1}
		err := w.client.talk(t.Context(), ask, nil, func(v *conv, _ welcome) error {
			return v.send(t.Context(), &outgoing{src: lying(b), root: memory{bytes.NewReader(b)}, tree: true, total: int64(len(b))})
		})
		if !errors.Is(err, ErrPath) {
			t.Errorf("pushed: %v", err)
		}
		// … and as a server.
		w.b.Handle(proto, ServerLimits(), func(ctx context.Context, s p2p.Stream) error {
			v := newConv(s, nil)
			var ask hello
			if err := wire.ReadFrame(s, &ask, maxControl); err != nil {
				return err
			}
			if err := v.say(welcome{Size: int64(len(b))}, nil); err != nil {
				return err
			}
			return v.send(ctx, &outgoing{src: lying(b), root: memory{bytes.NewReader(b)}, tree: true, total: int64(len(b))})
		})
		if _, err := w.client.FetchTree(t.Context(), mine, h, nil); !errors.Is(err, ErrPath) {
			t.Errorf("fetched: %v", err)
		}
	})
}

func TestFolderThatIsNotAsAnnouncedIsRefused(t *testing.T) {
	run(t, 1<<30, func(t *testing.T, w *world) {
		packed := pack(t, tree(t))
		size := int64(len(packed.encoded))
		ask := hello{Lease: lease, Hash: packed.ID, Push: true, Tree: true, Size: size, Total: size + 1}
		o, err := openOutgoing(t.Context(), packed, packed.ID, true)
		if err != nil {
			t.Fatal(err)
		}
		err = w.client.talk(t.Context(), ask, nil, func(v *conv, _ welcome) error { return v.send(t.Context(), o) })
		if !errors.Is(err, ErrPath) {
			t.Error(err)
		}
	})
}

func TestQuota(t *testing.T) {
	run(t, 3*ChunkSize, func(t *testing.T, w *world) {
		mine := openStore(t, t.TempDir(), 1<<30)
		h := put(t, mine, noise(1, 3*ChunkSize+1))
		var p bar
		if err := w.client.Push(t.Context(), mine, h, p.step(t)); !errors.Is(err, ErrQuota) || p.done != 0 {
			t.Errorf("push: %v after %d bytes", err, p.done)
		}
		packed := pack(t, tree(t)) // 4 chunks and more
		if err := w.client.PushTree(t.Context(), packed, packed.ID, nil); !errors.Is(err, ErrQuota) {
			t.Errorf("tree: %v", err)
		}
		if used := w.store.Used(); used != int64(len(packed.encoded)) {
			t.Errorf("%d bytes came before the refusal, the manifest has %d", used, len(packed.encoded))
		}
		w.source = mine
		tight := openStore(t, t.TempDir(), 1000)
		if err := w.client.Fetch(t.Context(), tight, h, nil); !errors.Is(err, ErrQuota) {
			t.Errorf("fetch: %v", err)
		}
	})
}

func TestAuthorizerDecides(t *testing.T) {
	run(t, 1<<30, func(t *testing.T, w *world) {
		mine := openStore(t, t.TempDir(), 1<<30)
		h := put(t, mine, []byte("x"))
		w.source = mine
		for _, want := range []error{ErrForbidden, ErrNotFound, ErrQuota} {
			w.deny = want
			if err := w.client.Push(t.Context(), mine, h, nil); !errors.Is(err, want) {
				t.Errorf("push: %v, want %v", err, want)
			}
			if err := w.client.Fetch(t.Context(), openStore(t, t.TempDir(), 1<<30), h, nil); !errors.Is(err, want) {
				t.Errorf("fetch: %v, want %v", err, want)
			}
		}
		if w.store.Used() != 0 {
			t.Error("something was stored")
		}
		w.deny = nil
		if err := w.client.Fetch(t.Context(), openStore(t, t.TempDir(), 1<<30), someHash, nil); !errors.Is(err, ErrNotFound) {
			t.Error(err)
		}
	})
}

// A source that fails in the middle breaks the stream with its kind, and both sides end.
func TestSourceThatChanges(t *testing.T) {
	run(t, 1<<30, func(t *testing.T, w *world) {
		root := tree(t)
		packed := pack(t, root)
		if err := os.Remove(filepath.Join(root, "a", "big")); err != nil {
			t.Fatal(err)
		}
		if err := w.client.PushTree(t.Context(), packed, packed.ID, nil); !errors.Is(err, ErrChanged) {
			t.Errorf("push: %v", err)
		}
		w.source = packed
		if _, err := w.client.FetchTree(t.Context(), openStore(t, t.TempDir(), 1<<30), packed.ID, nil); !errors.Is(err, ErrChanged) {
			t.Errorf("fetch: %v", err)
		}
	})
}

func TestTwoPushesOfOneBlobAtOnce(t *testing.T) {
	run(t, 1<<30, func(t *testing.T, w *world) {
		mine := openStore(t, t.TempDir(), 1<<30)
		h := put(t, mine, noise(1, 1000))
		held, err := w.store.Writer(h, 1000)
		if err != nil {
			t.Fatal(err)
		}
		err = w.client.Push(t.Context(), mine, h, nil)
		if !errors.Is(err, ErrBusy) || p2p.KindOf(err) != p2p.KindBusy {
			t.Error(err)
		}
		if err := held.Close(); err != nil {
			t.Fatal(err)
		}
		if err := w.client.Push(t.Context(), mine, h, nil); err != nil {
			t.Error(err)
		}
	})
}

func TestCancelEndsATransfer(t *testing.T) {
	run(t, 1<<30, func(t *testing.T, w *world) {
		mine := openStore(t, t.TempDir(), 1<<30)
		h := put(t, mine, noise(1, 20*maxData))
		ctx, cancel := context.WithCancel(t.Context())
		err := w.client.Push(ctx, mine, h, func(done, _ int64) {
			if done > 5*maxData {
				cancel()
			}
		})
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		synctest.Wait()
		if n := w.store.Partial(h); n == 0 {
			t.Error("nothing was kept to resume")
		}
	})
}

// A peer that says nothing more is given up, by both sides.
func TestSilentPeer(t *testing.T) {
	run(t, 1<<30, func(t *testing.T, w *world) {
		s, err := w.a.Open(t.Context(), w.b.Self(), proto)
		if err != nil {
			t.Fatal(err)
		}
		data := noise(1, 1000)
		h := wire.Sum("", data)
		if err := p2p.Send(s, hello{Lease: lease, Hash: h, Push: true, Size: 1000, Total: 1000}, maxControl); err != nil {
			t.Fatal(err)
		}
		var yes welcome
		var at have
		if err := errors.Join(p2p.Receive(s, &yes, maxControl), p2p.Receive(s, &at, maxControl)); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Read(make([]byte, 1)); err == nil {
			t.Error("the server said something")
		}
		mine := openStore(t, t.TempDir(), 1<<30)
		if err := w.client.Push(t.Context(), lying(data), h, nil); err != nil {
			t.Errorf("the blob stayed taken: %v", err)
		}
		w.b.Handle(proto, ServerLimits(), func(ctx context.Context, s p2p.Stream) error {
			<-ctx.Done()
			return ctx.Err()
		})
		if err := w.client.Fetch(t.Context(), mine, someHash, nil); p2p.KindOf(err) != p2p.KindTimeout {
			t.Errorf("fetch from a silent server: %v", err)
		}
	})
}

// Garbage and oversized frames end the stream with a bad request, never more.
func TestGarbage(t *testing.T) {
	good, err := wire.Marshal(hello{Lease: lease, Hash: someHash, Push: true, Size: 1000, Total: 1000})
	if err != nil {
		t.Fatal(err)
	}
	frame := func(b []byte) []byte {
		var buf bytes.Buffer
		if err := wire.WriteRaw(&buf, b, 1<<20); err != nil {
			t.Fatal(err)
		}
		return buf.Bytes()
	}
	marshal := func(v any) []byte {
		b, err := wire.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return frame(b)
	}
	says := map[string]string{"huge manifest": "manifest of", "empty data frame": "data frame", "huge data frame": "data frame", "data beyond": "data frame"}
	for name, sent := range map[string][]byte{
		"no CBOR":           frame([]byte("GET / HTTP/1.1")),
		"oversized":         {0xff, 0xff, 0xff, 0xff, 1, 2, 3},
		"unknown key":       frame(append([]byte{0xa4}, good[1:]...)),
		"negative size":     marshal(hello{Push: true, Size: -1}),
		"huge":              marshal(hello{Push: true, Size: MaxBlob + 1, Total: MaxBlob + 1}),
		"total below size":  marshal(hello{Push: true, Size: 10, Total: 9}),
		"fetch with total":  marshal(hello{Total: 1}),
		"huge manifest":     marshal(hello{Hash: someHash, Push: true, Tree: true, Size: MaxManifest + 1, Total: MaxManifest + 1}),
		"empty data frame":  append(frame(good), 0, 0, 0, 0),
		"huge data frame":   append(frame(good), 0, 4, 0, 1),
		"data beyond":       append(frame(good), append([]byte{0, 0, 3, 0xe9}, make([]byte, 1001)...)...),
		"cut in the middle": append(frame(good), 0, 0, 1, 0, 1, 2, 3),
	} {
		t.Run(name, func(t *testing.T) {
			run(t, 1<<30, func(t *testing.T, w *world) {
				s, err := w.a.Open(t.Context(), w.b.Self(), proto)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := s.Write(sent); err != nil {
					t.Fatal(err)
				}
				s.CloseWrite()
				for {
					err := p2p.Receive(s, &struct {
						Offset int64 `cbor:"1,keyasint"`
					}{}, maxControl)
					if err == nil {
						continue
					}
					if p2p.KindOf(err) != p2p.KindBadRequest || !strings.Contains(err.Error(), says[name]) {
						t.Errorf("%v (%v), want a bad request that says %q", err, p2p.KindOf(err), says[name])
					}
					break
				}
				synctest.Wait()
				if used := w.store.Used(); used > 3 {
					t.Errorf("%d bytes are in use", used)
				}
			})
		})
	}
}

// A refusal while data flows is heard at once, even from a peer that reads no more and does not close.
func TestRefusalInTheMiddleIsHeardAtOnce(t *testing.T) {
	run(t, 1<<30, func(t *testing.T, w *world) {
		w.b.Handle(proto, ServerLimits(), func(ctx context.Context, s p2p.Stream) error {
			v := newConv(s, nil)
			if err := wire.ReadFrame(s, &hello{}, maxControl); err != nil {
				return err
			}
			err := errors.Join(v.say(welcome{}, nil), v.say(have{}, nil))
			time.Sleep(time.Second) // the sender has filled the line and waits
			if err == nil {
				err = v.say(nil, ErrQuota)
			}
			<-ctx.Done()
			return err
		})
		data := noise(1, 20*maxData)
		start := time.Now()
		err := w.client.Push(t.Context(), lying(data), wire.Sum("", data), nil)
		if took := time.Since(start); !errors.Is(err, ErrQuota) || took > 2*time.Second {
			t.Errorf("%v after %v", err, took)
		}
	})
}

func TestChunkOfAnotherSizeIsNotSent(t *testing.T) {
	run(t, 1<<30, func(t *testing.T, w *world) {
		packed := pack(t, tree(t))
		longer := SourceFunc(func(ctx context.Context, h wire.Hash) (Reader, error) {
			r, err := packed.Blob(ctx, h)
			if err != nil || h == packed.ID {
				return r, err
			}
			return memory{bytes.NewReader(noise(8, int(r.Size())+1))}, nil
		})
		if err := w.client.PushTree(t.Context(), longer, packed.ID, nil); !errors.Is(err, ErrChanged) {
			t.Error(err)
		}
	})
}

// The receiver may be the hostile one.
func TestHostileReceiver(t *testing.T) {
	for name, c := range map[string]struct {
		offset int64
		bits   []byte
	}{
		"offset behind the end": {1 << 40, nil}, "negative offset": {-1, nil}, "too few bits": {0, []byte{}}, "too many bits": {0, make([]byte, 1000)},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, 1<<30, func(t *testing.T, w *world) {
				packed := pack(t, tree(t))
				w.b.Handle(proto, ServerLimits(), func(ctx context.Context, s p2p.Stream) error {
					v := newConv(s, nil)
					var ask hello
					if err := wire.ReadFrame(s, &ask, maxControl); err != nil {
						return err
					}
					if err := errors.Join(v.say(welcome{}, nil), v.say(have{Offset: c.offset}, nil)); err != nil {
						return err
					}
					if c.bits == nil {
						_, err := io.Copy(io.Discard, s)
						return err
					}
					if _, err := io.CopyN(io.Discard, s, ask.Size+4); err != nil {
						return err
					}
					return v.say(need{Bits: c.bits}, nil)
				})
				if err := w.client.PushTree(t.Context(), packed, packed.ID, nil); !errors.Is(err, wire.ErrFormat) {
					t.Error(err)
				}
			})
		})
	}
}
