// Package libp2p is the one libp2p network behind p2p's contract: host, transports, gossip, limits, mDNS, and the peers it keeps.
// It owns everything that libp2p is asked or told, and refuses to know what the conversations are about.
package libp2p

import (
	"context"
	"log/slog"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
)

// Network is this machine among its peers; it fulfils [p2p.Network].
type Network struct {
	p2p.Network
}

// New binds the listeners of c, so that a busy port is an error here. persist may be nil: then nothing outlives the process. Call
// Run, or Close if it never comes to that.
func New(dev *identity.Device, c Config, persist p2p.Persist, log *slog.Logger) (*Network, error) {
	panic("not yet")
}

// Run keeps the peers, mDNS and the saved list going until ctx ends, then closes the host. It returns nil on cancel.
func (n *Network) Run(ctx context.Context) error { panic("not yet") }

// Close ends the network at once.
func (n *Network) Close() error { panic("not yet") }

// Keep adds a peer to those that are dialled for ever (join does so).
func (n *Network) Keep(to p2p.PeerAddr) error { panic("not yet") }

func peerAddr(info peer.AddrInfo) (p2p.PeerAddr, error) {
	id, err := identity.PeerFromLibp2p(string(info.ID))
	if err != nil {
		return p2p.PeerAddr{}, err
	}
	to := p2p.PeerAddr{Peer: id}
	for _, a := range info.Addrs {
		to.Addrs = append(to.Addrs, a.String())
	}
	return to, nil
}
