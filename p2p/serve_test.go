package p2p_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"testing"
	"testing/synctest"

	"pgregory.net/rapid"

	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/p2ptest"
	"github.com/gpufair/gpufair/p2p/wire"
)

func TestKindOf(t *testing.T) {
	for _, c := range []struct {
		err  error
		want p2p.Kind
	}{
		{nil, p2p.KindOK},
		{errors.New("x"), p2p.KindInternal},
		{fmt.Errorf("op: %w", p2p.Errorf(p2p.KindBusy, "later")), p2p.KindBusy},
		{fmt.Errorf("op: %w", wire.ErrFormat), p2p.KindBadRequest},
		{wire.ErrTooLarge, p2p.KindBadRequest},
		{identity.ErrSignature, p2p.KindBadRequest},
		{identity.ErrSigner, p2p.KindBadRequest},
		{io.ErrUnexpectedEOF, p2p.KindBadRequest},
		{identity.ErrVersion, p2p.KindVersion},
		{identity.ErrPower, p2p.KindForbidden},
		{context.DeadlineExceeded, p2p.KindTimeout},
		{fmt.Errorf("serve log: %w", context.Canceled), p2p.KindUnavailable},
		{fmt.Errorf("read: %w", os.ErrDeadlineExceeded), p2p.KindTimeout},
	} {
		if got := p2p.KindOf(c.err); got != c.want {
			t.Errorf("%v: %s, want %s", c.err, got, c.want)
		}
	}
	if got := p2p.Kind(99).String(); got != "kind 99" {
		t.Errorf("a kind of a later release reads %q", got)
	}
}

func TestCheckNetwork(t *testing.T) {
	for name, ok := range map[string]bool{
		"main": true, "lan-2": true, "": false, "Main": false, "a/b": false, "a b": false, "ä": false, strings.Repeat("x", 33): false,
	} {
		if (p2p.CheckNetwork(name) == nil) != ok {
			t.Errorf("%q: %v", name, p2p.CheckNetwork(name))
		}
	}
	if got := p2p.ProtocolID("main", "lease"); got != "/gpufair/main/lease/1.0.0" {
		t.Error(got)
	}
	if got := p2p.OffersTopic("main", "any", "any"); got != "/gpufair/main/offers/1/any/any" {
		t.Error(got)
	}
}

// TestServiceAdmits holds random streams against a plain count of what the limits allow.
func TestServiceAdmits(t *testing.T) {
	peers := []identity.PeerID{{1}, {2}, {3}}
	rapid.Check(t, func(t *rapid.T) {
		limits := p2p.Limits{Streams: rapid.IntRange(1, 6).Draw(t, "streams"), PeerStreams: rapid.IntRange(1, 4).Draw(t, "peer")}
		s := p2p.NewService(limits, nil)
		held := map[identity.PeerID][]func(){}
		total := 0
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			peer := rapid.SampledFrom(peers).Draw(t, "who")
			if rapid.Bool().Draw(t, "end") && len(held[peer]) > 0 {
				held[peer][0]()
				held[peer] = held[peer][1:]
				total--
				continue
			}
			release, ok := s.Admit(peer)
			if want := total < limits.Streams && len(held[peer]) < limits.PeerStreams; ok != want {
				t.Fatalf("admitted %v with %d streams, %d of the peer, limits %+v", ok, total, len(held[peer]), limits)
			}
			if ok {
				held[peer] = append(held[peer], release)
				total++
			}
		}
	})
}

func TestNoDefaultIsInfinite(t *testing.T) {
	l := p2p.Limits{}.WithDefaults()
	if l.Streams <= 0 || l.PeerStreams <= 0 || l.Idle <= 0 {
		t.Errorf("%+v", l)
	}
	if l := (p2p.Limits{Streams: 3}).WithDefaults(); l.PeerStreams > 3 {
		t.Errorf("one peer may take more than all: %+v", l)
	}
}

func TestJudge(t *testing.T) {
	var logged bytes.Buffer
	log := slog.New(slog.NewTextHandler(&logged, nil))
	accept := func(context.Context, identity.PeerID, []byte) p2p.Verdict { return p2p.Accept }
	for name, c := range map[string]struct {
		v    p2p.Validator
		data string
		want p2p.Verdict
	}{
		"fits":      {accept, "1234", p2p.Accept},
		"too large": {accept, "12345", p2p.Reject},
		"none":      {nil, "1", p2p.Accept},
		"panic":     {func(context.Context, identity.PeerID, []byte) p2p.Verdict { panic("boom") }, "1", p2p.Ignore},
	} {
		if got := p2p.Judge(t.Context(), c.v, 4, identity.PeerID{}, []byte(c.data), log); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
	if !strings.Contains(logged.String(), "boom") {
		t.Error("the panic is not in the log")
	}
}

// TestRefusalText has a handler refuse with more text than may travel, cut inside a letter: it must still arrive.
func TestRefusalText(t *testing.T) {
	net := p2ptest.NewNet(t)
	a, b := net.Join(p2ptest.Device(t)), net.Join(p2ptest.Device(t))
	net.Mesh()
	long := strings.Repeat("ü", 511) + "x"
	b.Handle("/x", p2p.Limits{}, p2p.Answer(64, func(context.Context, identity.PeerID, int) (int, error) {
		return 0, &p2p.Error{Kind: p2p.KindRefused, Code: strings.Repeat("c", 200), Detail: "x" + long}
	}))
	var got int
	err := p2p.Call(t.Context(), a, b.Self(), "/x", 1, &got, 64)
	var e *p2p.Error
	if !errors.As(err, &e) || e.Kind != p2p.KindRefused || !strings.HasPrefix(e.Detail, "xüü") || len(e.Detail) > 512 {
		t.Errorf("got %v", err)
	}
}

func TestWatchersInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w p2p.Watchers
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var got []string
		note := func(p identity.PeerID, up bool) { got = append(got, fmt.Sprint(p[0], up)) }
		w.Set(identity.PeerID{1}, true)
		w.Watch(ctx, note)
		w.Set(identity.PeerID{1}, true) // no news
		w.Set(identity.PeerID{2}, true)
		w.Set(identity.PeerID{1}, false)
		w.Set(identity.PeerID{1}, false) // no news
		w.Set(identity.PeerID{1}, true)
		synctest.Wait()
		if want := "[1 true 2 true 1 false 1 true]"; fmt.Sprint(got) != want {
			t.Errorf("got %v, want %s", got, want)
		}
		cancel()
		synctest.Wait()
		w.Set(identity.PeerID{3}, true)
		synctest.Wait()
		if len(got) != 4 {
			t.Errorf("told after the end: %v", got)
		}
	})
}

// endings notes how a stream was ended.
type endings struct {
	p2p.Stream
	closed bool
	kind   p2p.Kind
}

func (e *endings) Write(b []byte) (int, error) { return len(b), nil }
func (e *endings) Close() error                { e.closed = true; return nil }
func (e *endings) Reset(kind p2p.Kind) error   { e.kind = kind; return nil }

// A peer's own mistake, and one that leaves without a word, make no line in the log.
func TestFinish(t *testing.T) {
	ours, silent := fmt.Errorf("read own file: %w", io.EOF), &endings{}
	for _, c := range []struct {
		err    error
		closed bool
		kind   p2p.Kind
		logged bool
	}{
		{nil, true, 0, false},
		{io.EOF, true, 0, false},
		{p2p.Respond(silent, nil, io.EOF, 10), true, 0, false},
		{p2p.Respond(silent, nil, ours, 10), true, 0, true},
		{fmt.Errorf("frame: %w", wire.ErrTooLarge), false, p2p.KindBadRequest, false},
		{p2p.Errorf(p2p.KindForbidden, "no"), false, p2p.KindForbidden, false},
		{fmt.Errorf("serve log: %w", context.Canceled), false, p2p.KindUnavailable, false},
		{ours, false, p2p.KindInternal, true},
	} {
		var s endings
		got := p2p.Finish(&s, c.err)
		if s.closed != c.closed || s.kind != c.kind || (got != nil) != c.logged {
			t.Errorf("finish with %v: closed %t, reset with %v, to be logged %v", c.err, s.closed, s.kind, got)
		}
	}
}
