// Package local is how a person's own programs talk to a daemon on the same machine: JSON over HTTP on a unix socket, with errors
// that say what to do next. It owns the client and the values that both daemons' APIs share (peers, invites, checks) and knows
// nothing of offers, jobs or money. Standard library only, so that the tray stays small.
package local

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"strings"
	"time"
)

// Version is the path prefix of the API. A change that old clients can't bear gets another one.
const Version = "/v1"

// maxAnswer bounds what a client reads of one answer or one line of a stream: a statement of 10,000 entries has 4 MiB.
const maxAnswer = 16 << 20

// ErrNotRunning says that no daemon listens on the socket.
var ErrNotRunning = errors.New("not running")

// Error is a refusal of the daemon, in the form of RFC 9457 (problem details) plus what to do next.
type Error struct {
	Status int    `json:"status"`         // HTTP status
	Title  string `json:"title"`          // of the status
	Detail string `json:"detail"`         // what failed and why
	Code   string `json:"code,omitempty"` // of market/reason, where one applies
	Next   string `json:"next,omitempty"` // what a person can do
	Errors []struct {
		Message  string `json:"message"`
		Location string `json:"location"`
	} `json:"errors,omitempty"` // of single fields of the request
}

// Error is the detail, with the fields that were wrong.
func (e *Error) Error() string {
	s := e.Detail
	if s == "" {
		s = e.Title
	}
	for _, f := range e.Errors {
		s += fmt.Sprintf("; %s: %s", f.Location, f.Message)
	}
	return s
}

// Client talks to one daemon's socket. Safe for concurrent use.
type Client struct {
	path string
	http *http.Client
}

// NewClient makes a client of the daemon that listens on the unix socket at path. It connects with the first call.
func NewClient(path string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", path)
	}
	return &Client{path: path, http: &http.Client{Transport: &http.Transport{DialContext: dial, IdleConnTimeout: time.Minute}}}
}

// Socket is the path that the client talks to.
func (c *Client) Socket() string { return c.path }

// Get asks for path (without the version prefix) and decodes the answer into out.
func (c *Client) Get(ctx context.Context, path string, out any) error {
	return c.Do(ctx, http.MethodGet, path, nil, out)
}

// Post sends in as JSON and decodes the answer into out, if out is not nil.
func (c *Client) Post(ctx context.Context, path string, in, out any) error {
	return c.Do(ctx, http.MethodPost, path, in, out)
}

// Do sends one request. The error is an [*Error] if the daemon refused, and [ErrNotRunning] if none listens.
func (c *Client) Do(ctx context.Context, method, path string, in, out any) error {
	resp, err := c.send(ctx, method, path, in)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if out == nil || resp.StatusCode == http.StatusNoContent {
		return nil
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(out); err != nil {
		return fmt.Errorf("answer of the daemon to %s %s: %w", method, path, err)
	}
	return nil
}

// Raw sends a request and gives the answer's bytes, which the caller closes: a file to download.
func (c *Client) Raw(ctx context.Context, method, path string, in any) (io.ReadCloser, error) {
	resp, err := c.send(ctx, method, path, in)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// Stream sends a request whose answer is one JSON value a line and calls f with each line until the stream ends, f returns an error
// or ctx ends.
func (c *Client) Stream(ctx context.Context, method, path string, in any, f func(line []byte) error) error {
	resp, err := c.send(ctx, method, path, in)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, maxAnswer)
	for lines.Scan() {
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue // a keep-alive
		}
		if err := f(lines.Bytes()); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil && ctx.Err() == nil {
		return fmt.Errorf("stream of the daemon on %s: %w", path, err)
	}
	return ctx.Err()
}

func (c *Client) send(ctx context.Context, method, path string, in any) (*http.Response, error) {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return nil, fmt.Errorf("request %s %s: %w", method, path, err)
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://daemon"+Version+path, body)
	if err != nil {
		return nil, fmt.Errorf("request %s %s: %w", method, path, err)
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.explain(err)
	}
	if resp.StatusCode >= 400 {
		defer resp.Body.Close()
		return nil, problem(resp)
	}
	return resp, nil
}

func (c *Client) explain(err error) error {
	var op *net.OpError
	switch {
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("socket %s: you may not talk to this daemon; run the command as its user: %w", c.path, err)
	case errors.As(err, &op) && op.Op == "dial":
		return fmt.Errorf("no daemon listens on %s: %w", c.path, ErrNotRunning)
	}
	conn, gone := net.Dial("unix", c.path)
	if gone != nil { // it was killed while the request waited to be answered
		return fmt.Errorf("the daemon on %s has just ended: %w", c.path, ErrNotRunning)
	}
	conn.Close()
	return fmt.Errorf("talk to the daemon on %s: %w", c.path, err)
}

func problem(resp *http.Response) error {
	e := &Error{Status: resp.StatusCode, Title: http.StatusText(resp.StatusCode)}
	b, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err == nil && json.Unmarshal(b, e) == nil {
		return e
	}
	e.Detail = strings.TrimSpace(string(b))
	return e
}
