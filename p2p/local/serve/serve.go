// Package serve is the daemon's end of the local API: HTTP with an OpenAPI description on a unix socket that only its user can open,
// errors as problem details with a next step, JSON lines for streams, and metrics. It owns how requests arrive and knows nothing of
// what they ask.
package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/gpufair/gpufair/p2p/local"
)

// Limits of a request. The socket's user is trusted; the limits keep a mistake small.
const (
	maxBody     = 1 << 20 // bytes: the longest request is a run with its environment
	maxHeader   = 64 << 10
	headTimeout = 10 * time.Second
	closeWait   = 5 * time.Second // for answers in flight at shutdown
)

// Config says who serves where.
type Config struct {
	Socket  string // path of the unix socket; its folder is made with mode 0700 if it is missing
	Title   string // of the OpenAPI description
	Version string // of the program
}

// Server is a local API. Register operations on API before Run.
type Server struct {
	socket string
	ln     net.Listener
	mux    *http.ServeMux
	api    huma.API
	log    *slog.Logger
}

// ErrTaken says that another process listens on the socket.
var ErrTaken = errors.New("another process listens there")

// New binds the socket. A socket file that nobody listens on is left over from a killed daemon and is replaced.
func New(c Config, log *slog.Logger) (*Server, error) {
	if err := os.MkdirAll(filepath.Dir(c.Socket), 0o700); err != nil {
		return nil, fmt.Errorf("folder of the local API's socket: %w", err)
	}
	if conn, err := net.DialTimeout("unix", c.Socket, time.Second); err == nil {
		conn.Close()
		return nil, fmt.Errorf("local API on %s: %w: stop the other daemon, or give this one another config", c.Socket, ErrTaken)
	}
	if err := os.Remove(c.Socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("left-over socket %s: %w", c.Socket, err)
	}
	ln, err := net.Listen("unix", c.Socket)
	if err != nil {
		return nil, fmt.Errorf("local API on %s: %w", c.Socket, err)
	}
	if err := os.Chmod(c.Socket, 0o600); err != nil {
		ln.Close()
		return nil, fmt.Errorf("mode of %s: %w", c.Socket, err)
	}
	s := &Server{socket: c.Socket, ln: ln, mux: http.NewServeMux(), log: log}
	s.api = NewAPI(s.mux, c)
	return s, nil
}

// NewAPI makes the API on mux without a socket, so that its OpenAPI description can be printed and its handlers tested.
func NewAPI(mux *http.ServeMux, c Config) huma.API {
	conf := huma.DefaultConfig(c.Title, c.Version)
	conf.DocsPath = ""     // its page loads scripts from a public network
	conf.CreateHooks = nil // no $schema links in answers
	conf.SchemasPath = ""  // the whole description is at /openapi.json
	conf.AllowAdditionalPropertiesByDefault = false
	return huma.NewGroup(humago.New(mux, conf), local.Version)
}

// API is where operations are registered; their paths are under the version prefix.
func (s *Server) API() huma.API { return s.api }

// Mux takes what is not part of the versioned API: /metrics.
func (s *Server) Mux() *http.ServeMux { return s.mux }

// Run serves until ctx ends, then lets answers in flight finish for a moment.
func (s *Server) Run(ctx context.Context) error {
	srv := &http.Server{
		Handler:           http.MaxBytesHandler(s.mux, maxBody),
		ReadHeaderTimeout: headTimeout,
		MaxHeaderBytes:    maxHeader,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
	}
	stop := context.AfterFunc(ctx, func() {
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeWait)
		defer cancel()
		if srv.Shutdown(late) != nil {
			srv.Close() // streams that nobody reads
		}
	})
	defer stop()
	err := srv.Serve(s.ln)
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("local API on %s: %w", s.socket, err)
}

// Close gives the socket back when Run was never called.
func (s *Server) Close() error { return s.ln.Close() }

// problem is a [local.Error] that huma writes as it is.
type problem struct{ e *local.Error }

func (p problem) Error() string                { return p.e.Error() }
func (p problem) Unwrap() error                { return p.e }
func (p problem) GetStatus() int               { return p.e.Status }
func (p problem) ContentType(string) string    { return "application/problem+json" }
func (p problem) MarshalJSON() ([]byte, error) { return json.Marshal(p.e) }

// Fail is an error for the person who asked: what failed and why, and what to do next (may be empty).
func Fail(status int, err error, next string) error {
	return problem{&local.Error{Status: status, Title: http.StatusText(status), Detail: err.Error(), Next: next}}
}

// FailCode is [Fail] with a code of market/reason.
func FailCode(status int, code string, err error, next string) error {
	return problem{&local.Error{Status: status, Title: http.StatusText(status), Detail: err.Error(), Code: code, Next: next}}
}

// Lines answers with a stream of JSON values, one a line: f writes them until it returns. An error of f after the first line can
// only be logged, so f sends its own last line for it.
func Lines(f func(ctx context.Context, send func(v any) error) error) *huma.StreamResponse {
	return &huma.StreamResponse{Body: func(hc huma.Context) {
		hc.SetHeader("Content-Type", "application/x-ndjson")
		w := hc.BodyWriter()
		ctl, ok := w.(http.ResponseWriter)
		ctx, cancel := context.WithCancelCause(hc.Context())
		defer cancel(nil)
		send := func(v any) error {
			b, err := json.Marshal(v)
			if err != nil {
				return fmt.Errorf("line of the answer: %w", err)
			}
			if _, err := w.Write(append(b, '\n')); err != nil {
				cancel(err)
				return fmt.Errorf("line of the answer: %w", err)
			}
			if ok {
				return http.NewResponseController(ctl).Flush()
			}
			return nil
		}
		if err := f(ctx, send); err != nil && ctx.Err() == nil {
			cancel(err)
		}
	}}
}
