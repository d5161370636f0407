package blob

import (
	"context"
	"errors"
	"time"

	"github.com/gpufair/gpufair/p2p"
)

// ServerLimits is what the protocol may cost a server: a renter pushes an image's layers over a few streams at once.
func ServerLimits() p2p.Limits {
	return p2p.Limits{Streams: 64, PeerStreams: 8, Idle: time.Minute}
}

// Serve is the handler of the protocol: peers push and fetch as far as a lets them.
func Serve(a Authorizer) p2p.Handler {
	return func(ctx context.Context, s p2p.Stream) error { return errors.New("not built yet") }
}
