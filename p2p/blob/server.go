package blob

import (
	"context"
	"fmt"
	"time"

	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/wire"
)

// ServerLimits is what the protocol may cost a server: a renter pushes an image's layers over a few streams at once. A stream is
// idle while its peer hashes or syncs a large blob.
func ServerLimits() p2p.Limits {
	return p2p.Limits{Streams: 64, PeerStreams: 8, Idle: thinkTime}
}

// Serve is the handler of the protocol: peers push and fetch as far as a lets them.
func Serve(a Authorizer) p2p.Handler {
	return func(ctx context.Context, s p2p.Stream) error {
		stop := context.AfterFunc(ctx, func() { s.Reset(p2p.KindUnavailable) })
		defer stop()
		v := newConv(s, nil)
		if err := s.SetDeadline(time.Now().Add(frameTime)); err != nil {
			return err
		}
		var ask hello
		if err := wire.ReadFrame(s, &ask, maxControl); err != nil {
			return v.say(nil, err)
		}
		if ask.Size < 0 || ask.Size > MaxBlob || ask.Total < ask.Size || !ask.Push && ask.Total != 0 {
			return v.say(nil, fmt.Errorf("%w: a blob of %d bytes, %d in all", wire.ErrFormat, ask.Size, ask.Total))
		}
		r := Request{Peer: s.Peer(), Lease: ask.Lease, Hash: ask.Hash, Size: ask.Size, Tree: ask.Tree, Total: ask.Total}
		if ask.Push {
			return v.take(ctx, a, r)
		}
		return v.give(ctx, a, r)
	}
}

// take is the server's side of a push.
func (c *conv) take(ctx context.Context, a Authorizer, r Request) error {
	dst, err := a.Push(ctx, r)
	if err != nil {
		return c.say(nil, err)
	}
	if err := c.say(welcome{}, nil); err != nil {
		return err
	}
	return c.receive(ctx, dst, incoming{hash: r.Hash, size: r.Size, tree: r.Tree, claim: r.Total})
}

// give is the server's side of a fetch.
func (c *conv) give(ctx context.Context, a Authorizer, r Request) error {
	src, err := a.Fetch(ctx, r)
	if err != nil {
		return c.say(nil, err)
	}
	o, err := openOutgoing(ctx, src, r.Hash, r.Tree)
	if err != nil {
		return c.say(nil, err)
	}
	defer o.root.Close()
	if err := c.say(welcome{Size: o.root.Size()}, nil); err != nil {
		return err
	}
	return c.send(ctx, o)
}
