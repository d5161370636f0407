package p2ptest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// echo sends back what it reads until the peer has no more to say.
func echo(_ context.Context, s p2p.Stream) error {
	_, err := io.Copy(s, s)
	return err
}

func testEcho(t *testing.T, f Fabric) {
	a, b := two(t, f)
	from := make(chan identity.PeerID, 2)
	h := func(ctx context.Context, s p2p.Stream) error {
		from <- s.Peer()
		return echo(ctx, s)
	}
	a.Handle(protocol("echo"), p2p.Limits{}, h)
	b.Handle(protocol("echo"), p2p.Limits{}, h)
	for _, pair := range [][2]Machine{{a, b}, {b, a}} { // whoever dialled, both may open
		s := open(t, pair[0], pair[1], protocol("echo"))
		if s.Peer() != pair[1].Self() || s.Protocol() != protocol("echo") {
			t.Errorf("opened %s to %s", s.Protocol(), s.Peer())
		}
		buf := make([]byte, 5)
		for _, word := range []string{"hello", "again"} {
			if _, err := io.WriteString(s, word); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(s, buf); err != nil || string(buf) != word {
				t.Fatalf("echo: %q, %v", buf, err)
			}
		}
		if got := receive(t, from, "handler"); got != pair[0].Self() {
			t.Errorf("the handler saw %s, want %s", got.Short(), pair[0].Self().Short())
		}
	}
}

func testHalfClose(t *testing.T, f Fabric) {
	a, b := two(t, f)
	b.Handle(protocol("count"), p2p.Limits{}, func(_ context.Context, s p2p.Stream) error {
		all, err := io.ReadAll(s)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(s, "%d", len(all))
		return err
	})
	s := open(t, a, b, protocol("count"))
	if _, err := s.Write(make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	if err := s.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(s); err != nil || string(got) != "1000" {
		t.Fatalf("answer after half close: %q, %v", got, err)
	}
	if _, err := s.Write([]byte("more")); err == nil {
		t.Error("write after CloseWrite: no error")
	}
}

// testBulk sends more than any window holds both ways at once.
func testBulk(t *testing.T, f Fabric) {
	a, b := two(t, f)
	b.Handle(protocol("bulk"), p2p.Limits{}, echo)
	s := open(t, a, b, protocol("bulk"))
	data := make([]byte, 4<<20)
	rnd := rand.NewChaCha8([32]byte{1})
	rnd.Read(data)
	var sent error
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, sent = s.Write(data); sent == nil {
			sent = s.CloseWrite()
		}
	})
	got, err := io.ReadAll(s)
	wg.Wait()
	if err != nil || sent != nil || !bytes.Equal(got, data) {
		t.Fatalf("%d of %d bytes came back; read: %v, write: %v", len(got), len(data), err, sent)
	}
}

func testResetKinds(t *testing.T, f Fabric) {
	a, b := two(t, f)
	for _, c := range []struct {
		name string
		err  error
		kind p2p.Kind
	}{
		{"typed", p2p.Errorf(p2p.KindConflict, "the lease is over"), p2p.KindConflict},
		{"wrapped", fmt.Errorf("op: %w", p2p.Errorf(p2p.KindNotFound, "no lease")), p2p.KindNotFound},
		{"ours", fmt.Errorf("read: %w", wire.ErrTooLarge), p2p.KindBadRequest},
		{"unknown", errors.New("disk on fire"), p2p.KindInternal},
	} {
		proto := protocol("reset-" + c.name)
		b.Handle(proto, p2p.Limits{}, func(_ context.Context, s p2p.Stream) error {
			if _, err := s.Read(make([]byte, 1)); err != nil {
				return err
			}
			return c.err
		})
		s := open(t, a, b, proto)
		if _, err := s.Write([]byte{1}); err != nil {
			t.Fatal(err)
		}
		wantKind(t, s, c.kind)
	}
	seen := make(chan error, 1)
	b.Handle(protocol("reader"), p2p.Limits{}, func(_ context.Context, s p2p.Stream) error {
		buf := make([]byte, 1)
		if _, err := s.Read(buf); err != nil {
			return err
		}
		if _, err := s.Write(buf); err != nil {
			return err
		}
		_, err := s.Read(buf)
		seen <- err
		return err
	})
	s := open(t, a, b, protocol("reader"))
	if _, err := s.Write([]byte{1}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Read(make([]byte, 1)); err != nil { // a reset may overtake what was sent before it
		t.Fatal(err)
	}
	if err := s.Reset(p2p.KindForbidden); err != nil {
		t.Fatal(err)
	}
	checkKind(t, receive(t, seen, "handler's read"), p2p.KindForbidden)
	if _, err := s.Read(make([]byte, 1)); err == nil {
		t.Error("read after an own reset: no error")
	}
}

func testPanic(t *testing.T, f Fabric) {
	a, b := two(t, f)
	b.Handle(protocol("fragile"), p2p.Limits{PeerStreams: 1}, func(_ context.Context, s p2p.Stream) error {
		buf := make([]byte, 1)
		if _, err := s.Read(buf); err != nil {
			return err
		}
		if buf[0] == 'x' {
			panic("index out of range")
		}
		_, err := s.Write(buf)
		return err
	})
	s := open(t, a, b, protocol("fragile"))
	if _, err := s.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	wantKind(t, s, p2p.KindInternal)
	for ctx := deadline(t); ; { // its place is free again, if not at once
		s, err := a.Open(ctx, b.Self(), protocol("fragile"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Write([]byte("y")); err == nil {
			if _, err = io.ReadFull(s, make([]byte, 1)); err == nil {
				s.Close()
				return
			}
			checkKind(t, err, p2p.KindBusy)
		}
		s.Close()
	}
}

func testDeadline(t *testing.T, f Fabric) {
	a, b := two(t, f)
	b.Handle(protocol("silent"), p2p.Limits{}, func(ctx context.Context, s p2p.Stream) error {
		_, err := s.Read(make([]byte, 1))
		return err
	})
	s := open(t, a, b, protocol("silent"))
	if err := s.SetDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	_, err := s.Read(make([]byte, 1))
	if !errors.Is(err, os.ErrDeadlineExceeded) || p2p.KindOf(err) != p2p.KindTimeout {
		t.Errorf("read past the deadline: %v", err)
	}
	if err := s.SetDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	for err = nil; err == nil; { // until no window has room
		_, err = s.Write(make([]byte, 64<<10))
	}
	if p2p.KindOf(err) != p2p.KindTimeout {
		// the silent handler reads one byte and closes: then that is what stops the writer
		checkKind(t, err, p2p.KindUnavailable)
	}
}

func testIdle(t *testing.T, f Fabric) {
	a, b := two(t, f)
	ended := make(chan error, 1)
	b.Handle(protocol("idle"), p2p.Limits{Idle: 100 * time.Millisecond}, func(_ context.Context, s p2p.Stream) error {
		_, err := io.Copy(io.Discard, s)
		ended <- err
		return err
	})
	s := open(t, a, b, protocol("idle"))
	if _, err := s.Write([]byte{1}); err != nil { // a busy machine may be so late with it that the stream was idle already
		checkKind(t, err, p2p.KindTimeout)
	}
	checkKind(t, receive(t, ended, "idle handler's end"), p2p.KindTimeout)
	wantKind(t, s, p2p.KindTimeout)
}

// holder is a handler that holds its stream until the peer ends it.
func holder(started chan<- identity.PeerID) p2p.Handler {
	return func(_ context.Context, s p2p.Stream) error {
		if _, err := s.Write([]byte{1}); err != nil {
			return err
		}
		started <- s.Peer()
		_, err := s.Read(make([]byte, 1))
		if errors.Is(err, io.EOF) {
			return nil
		}
		return err
	}
}

// hold opens a stream and waits until its handler has it, or says that it was refused as busy.
func hold(t *testing.T, from, to Machine, proto p2p.Protocol) (s p2p.Stream, busy bool) {
	t.Helper()
	s = open(t, from, to, proto)
	_, err := s.Read(make([]byte, 1))
	if err != nil {
		checkKind(t, err, p2p.KindBusy)
		return s, true
	}
	return s, false
}

func testPeerStreams(t *testing.T, f Fabric) {
	a, b := two(t, f)
	started := make(chan identity.PeerID, 64)
	b.Handle(protocol("hold"), p2p.Limits{PeerStreams: 2}, holder(started))
	first, busy := hold(t, a, b, protocol("hold"))
	_, busy2 := hold(t, a, b, protocol("hold"))
	if busy || busy2 {
		t.Fatal("busy within the limit")
	}
	if _, busy := hold(t, a, b, protocol("hold")); !busy {
		t.Fatal("a third stream was served, the limit is 2")
	}
	first.Close()
	for ctx := deadline(t); ; { // the place is free once the handler has returned
		if ctx.Err() != nil {
			t.Fatal("the place of a closed stream is not free again")
		}
		if _, busy := hold(t, a, b, protocol("hold")); !busy {
			return
		}
	}
}

func testAllStreams(t *testing.T, f Fabric) {
	a, b := two(t, f)
	c := f.Start(t, Device(t))
	connect(t, c, b)
	b.Handle(protocol("hold"), p2p.Limits{Streams: 3, PeerStreams: 2}, holder(make(chan identity.PeerID, 64)))
	for i, from := range []Machine{a, a, c} {
		if _, busy := hold(t, from, b, protocol("hold")); busy {
			t.Fatalf("stream %d of 3 was refused", i+1)
		}
	}
	if _, busy := hold(t, c, b, protocol("hold")); !busy {
		t.Fatal("a fourth stream was served, the limit over all peers is 3")
	}
}

type question struct {
	N    int    `cbor:"1,keyasint"`
	Text string `cbor:"2,keyasint,omitempty"`
}

// twice answers with the double, and refuses what is negative.
func twice(_ context.Context, _ identity.PeerID, q question) (question, error) {
	switch {
	case q.N == -1:
		return question{}, &p2p.Error{Kind: p2p.KindRefused, Code: "negative", Detail: "not below zero"}
	case q.N < 0:
		return question{}, errors.New("secret path /home/owner")
	}
	return question{N: 2 * q.N}, nil
}

func testCall(t *testing.T, f Fabric) {
	a, b := two(t, f)
	b.Handle(protocol("twice"), p2p.Limits{}, p2p.Answer(256, twice))
	ctx := deadline(t)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			var got question
			if err := p2p.Call(ctx, a, b.Self(), protocol("twice"), question{N: i}, &got, 256); err != nil || got.N != 2*i {
				t.Errorf("call %d: %+v, %v", i, got, err)
			}
		})
	}
	wg.Wait()
	var got question
	err := p2p.Call(ctx, a, b.Self(), protocol("twice"), question{N: -1}, &got, 256)
	checkKind(t, err, p2p.KindRefused)
	var e *p2p.Error
	if errors.As(err, &e); e.Code != "negative" || e.Detail != "not below zero" {
		t.Errorf("the refusal arrived as %+v", e)
	}
	err = p2p.Call(ctx, a, b.Self(), protocol("twice"), question{N: -2}, &got, 256)
	checkKind(t, err, p2p.KindInternal)
	if strings.Contains(err.Error(), "secret") {
		t.Errorf("an internal error's text went to the peer: %v", err)
	}
}

func testCallCanceled(t *testing.T, f Fabric) {
	a, b := two(t, f)
	started, ended := make(chan struct{}), make(chan error, 1)
	b.Handle(protocol("slow"), p2p.Limits{}, func(_ context.Context, s p2p.Stream) error {
		var q question
		if err := wire.ReadFrame(s, &q, 256); err != nil {
			return err
		}
		close(started)
		_, err := s.Read(make([]byte, 1))
		ended <- err
		return err
	})
	ctx, cancel := context.WithCancel(deadline(t))
	go func() {
		<-started
		cancel()
	}()
	var got question
	err := p2p.Call(ctx, a, b.Self(), protocol("slow"), question{}, &got, 256)
	cancel()
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v, want context.Canceled", err)
	}
	checkKind(t, receive(t, ended, "the handler's end"), p2p.KindTimeout)
}

func testOversize(t *testing.T, f Fabric) {
	a, b := two(t, f)
	b.Handle(protocol("twice"), p2p.Limits{}, p2p.Answer(64, twice))
	long := question{N: 1, Text: strings.Repeat("x", 100)}
	var got question
	if err := p2p.Call(deadline(t), a, b.Self(), protocol("twice"), long, &got, 64); !errors.Is(err, wire.ErrTooLarge) {
		t.Errorf("own question over the limit: %v", err)
	}
	err := p2p.Call(deadline(t), a, b.Self(), protocol("twice"), long, &got, 256)
	checkKind(t, err, p2p.KindBadRequest)
	s := open(t, a, b, protocol("twice"))
	if _, err := s.Write([]byte{0x7f, 0xff, 0xff, 0xff, 1, 2, 3}); err != nil { // 2 GiB announced
		t.Fatal(err)
	}
	checkKind(t, p2p.Receive(s, &got, 256), p2p.KindBadRequest)
}

// testGarbage sends strangers' bytes to every protocol served; none may stop the machine from serving.
func testGarbage(t *testing.T, f Fabric) {
	a, b := two(t, f)
	b.Handle(protocol("twice"), p2p.Limits{}, p2p.Answer(256, func(ctx context.Context, from identity.PeerID, q question) (question, error) {
		return twice(ctx, from, q)
	}))
	b.Handle(protocol("text"), p2p.Limits{}, p2p.Answer(256, func(_ context.Context, _ identity.PeerID, s string) (string, error) { return s, nil }))
	rnd := rand.New(rand.NewPCG(3, 4))
	for i := range 40 {
		proto := []p2p.Protocol{protocol("twice"), protocol("text")}[i%2]
		junk := make([]byte, 1+rnd.IntN(200))
		for j := range junk {
			junk[j] = byte(rnd.Uint32())
		}
		if i%4 < 2 { // a frame whose length is right, so that the decoder meets it
			junk = append(binary.BigEndian.AppendUint32(nil, uint32(len(junk))), junk...)
		}
		s := open(t, a, b, proto)
		if _, err := s.Write(junk); err != nil {
			checkKind(t, err, p2p.KindBadRequest)
		}
		s.CloseWrite()
		if _, err := io.Copy(io.Discard, s); err != nil && p2p.KindOf(err) == p2p.KindInternal {
			t.Fatalf("garbage %x: %v", junk, err)
		}
		s.Close()
	}
	var got question
	if err := p2p.Call(deadline(t), a, b.Self(), protocol("twice"), question{N: 4}, &got, 256); err != nil || got.N != 8 {
		t.Fatalf("a good question after garbage: %+v, %v", got, err)
	}
}

func testHandlerContext(t *testing.T, f Fabric) {
	a, b := two(t, f)
	started, ended := make(chan struct{}), make(chan struct{})
	b.Handle(protocol("wait"), p2p.Limits{}, func(ctx context.Context, s p2p.Stream) error {
		close(started)
		<-ctx.Done()
		close(ended)
		return nil
	})
	s := open(t, a, b, protocol("wait"))
	if _, err := s.Write([]byte{1}); err != nil {
		t.Fatal(err)
	}
	receive(t, started, "handler's start")
	a.Stop()
	receive(t, ended, "handler's context to end with the connection")
}
