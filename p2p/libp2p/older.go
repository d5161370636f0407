package libp2p

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/p2p/protocol/ping"
	msmux "github.com/multiformats/go-multistream"
)

// olderWait is how long an older connection has to answer: many round trips around the world.
const olderWait = 2 * time.Second

// checkOlder asks the other connections to a peer whether they still live when a new one came up, and closes those that are silent
// while the new one answers. A peer that was killed and has come back would else be two for 30 s, until QUIC gives the dead
// connection up, and what is sent meanwhile could go to the dead one. On a line so busy that neither answers, nothing is closed.
func (n *Network) checkOlder(conn network.Conn) {
	for _, old := range n.host.Network().ConnsToPeer(conn.RemotePeer()) {
		if old == conn || old.IsClosed() || old.Stat().Opened.After(conn.Stat().Opened) {
			continue
		}
		if !n.work() {
			return
		}
		go func() {
			defer n.serving.Done()
			ctx, cancel := context.WithTimeout(n.ctx, olderWait)
			defer cancel()
			newer := make(chan error, 1)
			go func() { // ends with ctx
				_, err := echo(ctx, conn)
				newer <- err
			}()
			_, err := echo(ctx, old)
			silent := err != nil && ctx.Err() != nil // an error before that is an answer, or the end of the connection
			if <-newer == nil && silent && n.ctx.Err() == nil {
				n.log.Info("peer came back; closing its dead connection", "peer", conn.RemotePeer(), "addr", old.RemoteMultiaddr(), "silent", olderWait)
				_ = old.Close()
			}
		}()
	}
}

// work counts in a goroutine that Close waits for, unless the network is closed.
func (n *Network) work() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ctx.Err() != nil {
		return false
	}
	n.serving.Add(1)
	return true
}

// echo pings a peer over this very connection and says how long the answer took; libp2p's own ping takes any.
func echo(ctx context.Context, conn network.Conn) (time.Duration, error) {
	s, err := conn.NewStream(overRelay(ctx))
	if err != nil {
		return 0, fmt.Errorf("open ping: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = s.Reset() })
	defer stop()
	defer s.Close()
	if err := s.SetProtocol(ping.ID); err != nil {
		return 0, fmt.Errorf("ping: %w", err)
	}
	if err := msmux.SelectProtoOrFail(ping.ID, s); err != nil {
		return 0, fmt.Errorf("agree on ping: %w", err)
	}
	sent, back := make([]byte, ping.PingSize), make([]byte, ping.PingSize)
	if _, err := rand.Read(sent); err != nil {
		return 0, fmt.Errorf("ping: %w", err)
	}
	start := time.Now()
	if _, err := s.Write(sent); err != nil {
		return 0, fmt.Errorf("ping: %w", err)
	}
	if _, err := io.ReadFull(s, back); err != nil {
		return 0, fmt.Errorf("ping: %w", err)
	}
	if !bytes.Equal(sent, back) {
		return 0, fmt.Errorf("ping: other bytes came back")
	}
	return time.Since(start), nil
}
