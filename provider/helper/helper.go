// Package helper carries Runtime, Network and Mounts over a unix socket, one JSON request and answer per connection with file
// descriptors beside them, so that a small root process can serve a daemon without privileges. It does none of the work itself.
package helper

import (
	"context"
	"net"

	"github.com/gpufair/gpufair/provider"
)

// Server serves the contracts. Its fields are set before Serve.
type Server struct {
	Runtime provider.Runtime
	Network provider.Network
	Mounts  provider.Mounts
	// UIDs are the users that may call, besides root, by the peer credentials of the socket.
	UIDs []uint32
}

// Serve answers on l until ctx is done; then it closes l, cancels what runs, waits for it and returns nil.
func (s *Server) Serve(ctx context.Context, l *net.UnixListener) error { return nil }

// Client calls a [Server] at a socket path. Its Runtime, Network and Mounts may be used by several goroutines at once; a call whose ctx is
// done is cancelled at the server too.
type Client struct{}

// NewClient makes a client; it does not connect yet.
func NewClient(socket string) *Client { return &Client{} }

// Runtime, Network and Mounts give the contracts.
func (c *Client) Runtime() provider.Runtime { return nil }

// Network gives the contract.
func (c *Client) Network() provider.Network { return nil }

// Mounts gives the contract.
func (c *Client) Mounts() provider.Mounts { return nil }
