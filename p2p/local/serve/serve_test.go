package serve

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/danielgtaylor/huma/v2"

	"github.com/gpufair/gpufair/p2p/local"
)

type echo struct {
	Word string `json:"word" minLength:"1"`
}

// start serves a small API on a socket of its own and gives a client of it.
func start(t *testing.T) (*local.Client, *Server) {
	t.Helper()
	s, err := New(Config{Socket: filepath.Join(t.TempDir(), "run", "api.sock"), Title: "test", Version: "1"}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	Post(s.API(), "/echo", "Say it again", func(_ context.Context, in echo) (echo, error) {
		if in.Word == "no" {
			return in, FailCode(http.StatusConflict, "taken", errors.New("echo no: somebody said it before"), "say yes")
		}
		return in, nil
	})
	huma.Register(s.API(), Op(http.MethodGet, "/count", "Count"), func(context.Context, *struct{}) (*huma.StreamResponse, error) {
		return Lines(func(_ context.Context, send func(any) error) error {
			for i := range 3 {
				if err := send(i); err != nil {
					return err
				}
			}
			return nil
		}), nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return local.NewClient(s.socket), s
}

func TestAnswersAndProblems(t *testing.T) {
	c, _ := start(t)
	var out echo
	if err := c.Post(t.Context(), "/echo", echo{"hello"}, &out); err != nil || out.Word != "hello" {
		t.Fatalf("echo: %v %v", out, err)
	}
	var e *local.Error
	err := c.Post(t.Context(), "/echo", echo{"no"}, &out)
	if !errors.As(err, &e) || e.Status != http.StatusConflict || e.Code != "taken" || e.Next != "say yes" {
		t.Fatalf("a refusal arrived as %#v (%v)", e, err)
	}
	if err := c.Post(t.Context(), "/echo", echo{""}, &out); !errors.As(err, &e) || e.Status != http.StatusUnprocessableEntity || len(e.Errors) == 0 {
		t.Fatalf("a wrong field arrived as %#v (%v)", e, err)
	}
	if err := c.Post(t.Context(), "/echo", map[string]string{"word": "a", "wrod": "b"}, &out); !errors.As(err, &e) {
		t.Fatalf("an unknown field was taken: %v", err)
	}
	if err := c.Get(t.Context(), "/nowhere", &out); !errors.As(err, &e) || e.Status != http.StatusNotFound {
		t.Fatalf("an unknown path arrived as %v", err)
	}
}

func TestStream(t *testing.T) {
	c, _ := start(t)
	var got string
	err := c.Stream(t.Context(), http.MethodGet, "/count", nil, func(line []byte) error {
		got += string(line)
		return nil
	})
	if err != nil || got != "012" {
		t.Fatalf("stream: %q %v", got, err)
	}
}

func TestSocket(t *testing.T) {
	_, s := start(t)
	info, err := os.Stat(s.socket)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("socket mode %v, %v: others could talk to the daemon", info.Mode(), err)
	}
	if _, err := New(Config{Socket: s.socket, Title: "second", Version: "1"}, s.log); !errors.Is(err, ErrTaken) {
		t.Fatalf("a second daemon on the same socket: %v", err)
	}
	gone := local.NewClient(filepath.Join(t.TempDir(), "none.sock"))
	if err := gone.Get(t.Context(), "/x", nil); !errors.Is(err, local.ErrNotRunning) {
		t.Fatalf("no daemon: %v", err)
	}
}

func TestLeftOverSocketIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "api.sock")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := New(Config{Socket: path, Title: "t", Version: "1"}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
}
