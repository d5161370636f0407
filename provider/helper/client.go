package helper

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"

	"github.com/gpufair/gpufair/provider"
)

// Client calls a [Server] at a socket path. Its Runtime, Network and Mounts may be used by several goroutines at once; a call whose ctx is
// done is cancelled at the server too.
type Client struct {
	socket string
}

// NewClient makes a client; each call connects.
func NewClient(socket string) *Client { return &Client{socket: socket} }

// call makes one request. Its errors are the server's, or [provider.ErrUnavailable] if that does not answer.
func (c *Client) call(ctx context.Context, name string, args, result any, file *os.File) error {
	raw, err := json.Marshal(args)
	if err != nil {
		return fmt.Errorf("helper %s: %w", name, err)
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", c.socket)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("helper %s: %w: %w: is gpufaird's helper running?", name, provider.ErrUnavailable, err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() }) // the server sees it and cancels
	defer stop()
	var resp response
	err = send(conn.(*net.UnixConn), request{Call: name, Args: raw}, file)
	if err == nil {
		var f *os.File
		if f, err = receive(conn.(*net.UnixConn), &resp); f != nil {
			f.Close() // no answer has one
		}
	}
	switch {
	case ctx.Err() != nil && err != nil:
		return ctx.Err()
	case err != nil:
		return fmt.Errorf("helper %s: %w: %w", name, provider.ErrUnavailable, err)
	case resp.Error != nil:
		return resp.Error.err()
	case result == nil:
		return nil
	}
	if err := json.Unmarshal(resp.Result, result); err != nil {
		return fmt.Errorf("helper %s: %w", name, err)
	}
	return nil
}

// Runtime gives the contract.
func (c *Client) Runtime() provider.Runtime { return runtimeClient{c} }

// Network gives the contract.
func (c *Client) Network() provider.Network { return networkClient{c} }

// Mounts gives the contract.
func (c *Client) Mounts() provider.Mounts { return mountsClient{c} }

// ask makes a call with a result.
func ask[T any](ctx context.Context, c *Client, name string, args any, file *os.File) (T, error) {
	var out T
	err := c.call(ctx, name, args, &out, file)
	return out, err
}

type runtimeClient struct{ c *Client }

func (r runtimeClient) Info(ctx context.Context) (provider.RuntimeInfo, error) {
	return ask[provider.RuntimeInfo](ctx, r.c, "runtime.info", nil, nil)
}

func (r runtimeClient) Import(ctx context.Context, req provider.ImportRequest, archive *os.File) (provider.ImageInfo, error) {
	return ask[provider.ImageInfo](ctx, r.c, "runtime.import", req, archive)
}

func (r runtimeClient) Image(ctx context.Context, digest string) (provider.ImageInfo, error) {
	return ask[provider.ImageInfo](ctx, r.c, "runtime.image", digest, nil)
}

func (r runtimeClient) Images(ctx context.Context) ([]provider.ImageInfo, error) {
	return ask[[]provider.ImageInfo](ctx, r.c, "runtime.images", nil, nil)
}

func (r runtimeClient) RemoveImage(ctx context.Context, digest string) error {
	return r.c.call(ctx, "runtime.remove_image", digest, nil, nil)
}

func (r runtimeClient) Create(ctx context.Context, req provider.CreateRequest) (provider.Created, error) {
	return ask[provider.Created](ctx, r.c, "runtime.create", req, nil)
}

func (r runtimeClient) Start(ctx context.Context, id string) error {
	return r.c.call(ctx, "runtime.start", id, nil, nil)
}

func (r runtimeClient) Signal(ctx context.Context, req provider.SignalRequest) error {
	return r.c.call(ctx, "runtime.signal", req, nil, nil)
}

func (r runtimeClient) Freeze(ctx context.Context, id string) error {
	return r.c.call(ctx, "runtime.freeze", id, nil, nil)
}

func (r runtimeClient) Thaw(ctx context.Context, id string) error {
	return r.c.call(ctx, "runtime.thaw", id, nil, nil)
}

func (r runtimeClient) Status(ctx context.Context, id string) (provider.Container, error) {
	return ask[provider.Container](ctx, r.c, "runtime.status", id, nil)
}

func (r runtimeClient) Wait(ctx context.Context, id string) (provider.Container, error) {
	return ask[provider.Container](ctx, r.c, "runtime.wait", id, nil)
}

func (r runtimeClient) Usage(ctx context.Context, id string) (provider.Usage, error) {
	return ask[provider.Usage](ctx, r.c, "runtime.usage", id, nil)
}

func (r runtimeClient) List(ctx context.Context) ([]provider.Container, error) {
	return ask[[]provider.Container](ctx, r.c, "runtime.list", nil, nil)
}

func (r runtimeClient) Delete(ctx context.Context, id string) error {
	return r.c.call(ctx, "runtime.delete", id, nil, nil)
}

type networkClient struct{ c *Client }

func (n networkClient) Wire(ctx context.Context, req provider.WireRequest) error {
	return n.c.call(ctx, "network.wire", req, nil, nil)
}

func (n networkClient) Traffic(ctx context.Context, id string) (provider.Traffic, error) {
	return ask[provider.Traffic](ctx, n.c, "network.traffic", id, nil)
}

func (n networkClient) List(ctx context.Context) ([]string, error) {
	return ask[[]string](ctx, n.c, "network.list", nil, nil)
}

func (n networkClient) Unwire(ctx context.Context, id string) error {
	return n.c.call(ctx, "network.unwire", id, nil, nil)
}

type mountsClient struct{ c *Client }

func (m mountsClient) Info(ctx context.Context) (provider.MountsInfo, error) {
	return ask[provider.MountsInfo](ctx, m.c, "mounts.info", nil, nil)
}

func (m mountsClient) Free(ctx context.Context) (int64, error) {
	return ask[int64](ctx, m.c, "mounts.free", nil, nil)
}

func (m mountsClient) Make(ctx context.Context, req provider.MountRequest) (provider.Folders, error) {
	return ask[provider.Folders](ctx, m.c, "mounts.make", req, nil)
}

func (m mountsClient) Usage(ctx context.Context, id string) (provider.DiskUsage, error) {
	return ask[provider.DiskUsage](ctx, m.c, "mounts.usage", id, nil)
}

func (m mountsClient) Remove(ctx context.Context, id string) (bool, error) {
	return ask[bool](ctx, m.c, "mounts.remove", id, nil)
}

func (m mountsClient) List(ctx context.Context) ([]string, error) {
	return ask[[]string](ctx, m.c, "mounts.list", nil, nil)
}
