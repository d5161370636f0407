package access

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/gpufair/gpufair/p2p/tunnel"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func now() time.Time { return time.Unix(1_800_000_000, 5) }

func create(t testing.TB, dir string, max int64) *Writer {
	t.Helper()
	w, err := Create(dir, max)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func write(t testing.TB, w *Writer, s Stream, text string) {
	t.Helper()
	if err := w.Write(now(), s, []byte(text)); err != nil {
		t.Fatal(err)
	}
}

// all reads a log from offset to where there is no more now.
func all(t testing.TB, s *Source, offset uint64) []tunnel.Chunk {
	t.Helper()
	var out []tunnel.Chunk
	for {
		c, err := s.Next(t.Context(), offset, false)
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, c)
		offset = c.End()
	}
}

func text(chunks []tunnel.Chunk) string {
	var b strings.Builder
	for _, c := range chunks {
		b.Write(c.Data)
	}
	return b.String()
}

func TestReadBack(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	s := Open(dir, nil)
	defer s.Close()
	if got := all(t, s, 0); got != nil {
		t.Fatalf("a log that is not there yet: %v", got)
	}
	w := create(t, dir, 1<<20)
	write(t, w, Stdout, "hello ")
	write(t, w, Stderr, "world")
	got := all(t, s, 0)
	want := []tunnel.Chunk{
		{Offset: 0, Time: now().UnixNano(), Stream: tunnel.Out, Data: []byte("hello ")},
		{Offset: 6, Time: now().UnixNano(), Stream: tunnel.Err, Data: []byte("world")},
	}
	if len(got) != 2 || got[0].Offset != 0 || got[1].Offset != 6 || got[0].Stream != want[0].Stream || got[1].Stream != want[1].Stream ||
		got[1].Time != want[1].Time || text(got) != "hello world" {
		t.Fatalf("got %+v", got)
	}
	if got := all(t, s, 8); text(got) != "rld" || got[0].Offset != 8 {
		t.Fatalf("from the middle of a record: %+v", got)
	}
	if n, err := Size(dir); n != 11 || err != nil {
		t.Fatalf("size %d, %v", n, err)
	}
	if err := w.Close(now()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Next(t.Context(), 11, true); !errors.Is(err, io.EOF) {
		t.Fatalf("waiting at the end of a complete log: %v", err)
	}
}

// TestFollow reads while another goroutine writes.
func TestFollow(t *testing.T) {
	dir := t.TempDir()
	const lines = 2000
	want := strings.Repeat("0123456789abcdef\n", lines)
	go func() {
		w, err := Create(dir, 1<<20)
		if err != nil {
			return // the reader's deadline tells
		}
		for line := range strings.Lines(want) {
			_ = w.Write(now(), Stdout, []byte(line))
		}
		_ = w.Close(now())
	}()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s := Open(dir, nil)
	defer s.Close()
	var got strings.Builder
	for offset := uint64(0); ; {
		c, err := s.Next(ctx, offset, true)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got.Write(c.Data)
		offset = c.End()
	}
	if got.String() != want {
		t.Fatalf("got %d bytes of %d", got.Len(), len(want))
	}
}

func TestEnded(t *testing.T) {
	dir := t.TempDir()
	w := create(t, dir, 1<<20)
	write(t, w, Stdout, "last words")
	ended := make(chan struct{})
	close(ended) // the writer was killed: no end record
	s := Open(dir, ended)
	defer s.Close()
	c, err := s.Next(t.Context(), 0, true)
	if err != nil || string(c.Data) != "last words" {
		t.Fatalf("%+v, %v", c, err)
	}
	if _, err := s.Next(t.Context(), c.End(), true); !errors.Is(err, io.EOF) {
		t.Fatalf("after the job's end: %v", err)
	}
	waiting := Open(dir, nil)
	defer waiting.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := waiting.Next(ctx, c.End(), true); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("waiting without an end: %v", err)
	}
	_ = w.f.Close()
}

// TestCap shows that a log never holds more than its cap, and that what was dropped is the oldest.
func TestCap(t *testing.T) {
	dir := t.TempDir()
	const limit = 256 << 10
	w := create(t, dir, limit)
	chunk := strings.Repeat("x", 1000)
	for range 2000 {
		write(t, w, Stdout, chunk)
		segs, err := segments(dir)
		if err != nil {
			t.Fatal(err)
		}
		var total int64
		for _, s := range segs {
			total += s.size
		}
		if total > limit {
			t.Fatalf("the log holds %d bytes", total)
		}
	}
	write(t, w, Stdout, "the end")
	s := Open(dir, nil)
	defer s.Close()
	got := all(t, s, 0)
	if got[0].Offset == 0 || !strings.HasSuffix(text(got), "the end") || got[len(got)-1].End() != 2_000_007 {
		t.Fatalf("from %d to %d", got[0].Offset, got[len(got)-1].End())
	}
	if kept := 2_000_007 - got[0].Offset; kept < limit*6/8 {
		t.Fatalf("only %d bytes were kept", kept)
	}
	if _, err := Create(t.TempDir(), MinLog-1); err == nil {
		t.Fatal("a cap below one record was taken")
	}
	_ = w.Close(now())
}

// TestTornTail cuts the log at every byte of its last record: a reader sees the whole records, and a new writer goes on after them.
func TestTornTail(t *testing.T) {
	dir := t.TempDir()
	w := create(t, dir, 1<<20)
	write(t, w, Stdout, "whole")
	write(t, w, Stderr, "torn")
	_ = w.f.Close()
	path := segmentPath(dir, 0)
	full, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for cut := len(full) - headerLen - 4; cut < len(full); cut++ {
		for _, tail := range [][]byte{nil, make([]byte, 50)} { // zeros: what a power cut may leave
			if err := os.WriteFile(path, append(bytes.Clone(full[:cut]), tail...), 0o600); err != nil {
				t.Fatal(err)
			}
			s := Open(dir, nil)
			if got := text(all(t, s, 0)); got != "whole" {
				t.Fatalf("cut at %d: %q", cut, got)
			}
			s.Close()
			w := create(t, dir, 1<<20)
			write(t, w, Stdout, " again")
			_ = w.f.Close()
			s = Open(dir, nil)
			if got := text(all(t, s, 0)); got != "whole again" {
				t.Fatalf("cut at %d, then written: %q", cut, got)
			}
			s.Close()
		}
	}
}

func TestCopy(t *testing.T) {
	dir := t.TempDir()
	w := create(t, dir, 1<<20)
	want := strings.Repeat("y", 3*MaxRecord+7)
	if err := w.Copy(Stdout, iotest.HalfReader(strings.NewReader(want))); err != nil {
		t.Fatal(err)
	}
	_ = w.Close(now())
	s := Open(dir, nil)
	defer s.Close()
	if got := text(all(t, s, 0)); got != want {
		t.Fatalf("%d bytes of %d", len(got), len(want))
	}
	if err := w.Copy(Stdout, strings.NewReader("the log is closed, the job goes on")); err == nil {
		t.Fatal("no error from a closed log")
	}
}

// TestAnyOffset compares reading from any offset with what was written.
func TestAnyOffset(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		dir := t.TempDir()
		w := create(t, dir, MinLog)
		var want []byte
		for _, b := range rapid.SliceOfN(rapid.SliceOfN(rapid.Byte(), 1, 9000), 1, 12).Draw(rt, "writes") {
			write(t, w, Stdout, string(b))
			want = append(want, b...)
		}
		_ = w.Close(now())
		s := Open(dir, nil)
		defer s.Close()
		for range 5 {
			offset := rapid.Uint64Range(0, uint64(len(want))).Draw(rt, "offset")
			got := all(t, s, offset)
			if len(got) == 0 {
				if offset != uint64(len(want)) {
					rt.Fatalf("nothing at %d of %d", offset, len(want))
				}
				continue
			}
			if from := got[0].Offset; from < offset || text(got) != string(want[from:]) {
				rt.Fatalf("at %d: from %d, %d bytes", offset, from, len(text(got)))
			}
		}
	})
}

func FuzzParseRecord(f *testing.F) {
	f.Add(appendRecord(nil, record{stream: Stdout, time: 1, offset: 2, data: []byte("data")}))
	f.Add(appendRecord(nil, record{stream: end}))
	f.Add([]byte{magic})
	f.Fuzz(func(t *testing.T, b []byte) {
		r, n, err := parseRecord(b)
		if err != nil || n == 0 {
			return
		}
		if again := appendRecord(nil, r); !bytes.Equal(again, b[:n]) {
			t.Fatalf("%x reads as %+v, which is %x", b[:n], r, again)
		}
	})
}
