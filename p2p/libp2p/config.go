package libp2p

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpufair/gpufair/p2p"
)

// DefaultPort is where a machine listens, on TCP and on UDP, when its config names no other.
const DefaultPort = 4701

// Config is all that an owner can set about the network. [Default] fills it.
type Config struct {
	// Network is the name of the market to join; see [p2p.CheckNetwork].
	Network string
	// Listen are "ip:port" pairs. Each is opened for TCP and for QUIC (UDP) on the same port number; port 0 takes any port that is free
	// on both.
	Listen []string
	// Loopback keeps the machine to itself: it listens and dials on loopback only, and mDNS is off. For demos on one machine.
	Loopback bool
	// MDNS finds peers on the local network.
	MDNS bool
	// Outside are multiaddresses that this machine has beside those that it finds out: of a router or a cloud that hands on to it.
	Outside []string
	// UPnP asks the router to let others in, by UPnP or NAT-PMP.
	UPnP bool
	// Index is the part that this machine has in the network's DHT, see [p2p.Index]. A relay keeps it always.
	Index IndexRole
	// Relay makes this machine a relay for others; nil is none. It must be reachable by others.
	Relay *RelayConfig
	// Peers are dialled for ever, at start and whenever they are lost.
	Peers []p2p.PeerAddr
	// Agent is this program and its version, as peers see it.
	Agent string
	// LowConns and HighConns bound the connections: over High, those least needed are closed until Low are left. Home routers die of
	// many (spec: p2p, 3.18).
	LowConns, HighConns int
	// ConnsPerIP is how many connections one address may hold, ConnRate how many new ones it may open in a second. Loopback is exempt.
	ConnsPerIP int
	ConnRate   float64
	// MaxMessage is the largest gossip message in bytes.
	MaxMessage int
	// Metrics takes libp2p's own metrics; nil is none.
	Metrics prometheus.Registerer
}

// IndexRole is what a machine does for the index.
type IndexRole int

// The parts: none; to ask, and to keep what others say while peers outside can dial this machine; to keep it always.
const (
	NoIndex IndexRole = iota
	AutoIndex
	KeepIndex
)

// Default is the config of a machine on network that no one has configured.
func Default(network string) Config {
	return Config{
		Network: network, Listen: []string{fmt.Sprintf("0.0.0.0:%d", DefaultPort), fmt.Sprintf("[::]:%d", DefaultPort)},
		MDNS: true, UPnP: true, Index: AutoIndex, Agent: "gpufair", LowConns: 32, HighConns: 96, ConnsPerIP: 64, ConnRate: 10, MaxMessage: 4 << 10,
	}
}

// Local is the config of a machine that talks only to others on the same machine, on a free port.
func Local(network string) Config {
	c := Default(network)
	c.Listen, c.Loopback, c.MDNS, c.UPnP = []string{"127.0.0.1:0"}, true, false, false
	return c
}

const (
	maxListen      = 8   // addresses of one machine
	maxStaticPeers = 64  // more than the low mark of connections
	maxAgent       = 100 // it travels in every handshake
)

// Validate says what is wrong, naming the field as the config file does.
func (c Config) Validate() error {
	if err := p2p.CheckNetwork(c.Network); err != nil {
		return fmt.Errorf("network: %w", err)
	}
	switch {
	case len(c.Listen) == 0 || len(c.Listen) > maxListen:
		return fmt.Errorf("listen: %d addresses: want 1 to %d of ip:port, such as 0.0.0.0:%d", len(c.Listen), maxListen, DefaultPort)
	case c.Loopback && c.MDNS:
		return errors.New("mdns: loopback has no multicast; turn mdns off, or loopback")
	case c.Loopback && c.Relay != nil:
		return errors.New("relay: others must be able to reach it, but this machine listens on loopback only")
	case len(c.Outside) > maxListen:
		return fmt.Errorf("announce: %d addresses: want at most %d", len(c.Outside), maxListen)
	case len(c.Peers) > maxStaticPeers:
		return fmt.Errorf("peers: %d: want at most %d", len(c.Peers), maxStaticPeers)
	case c.Agent == "" || len(c.Agent) > maxAgent:
		return fmt.Errorf("agent: want 1 to %d bytes", maxAgent)
	case c.LowConns < 1 || c.HighConns < c.LowConns || c.HighConns > 4096:
		return fmt.Errorf("connections: low %d, high %d: want 1 <= low <= high <= 4096", c.LowConns, c.HighConns)
	case c.ConnsPerIP < 1 || c.ConnsPerIP > 4096:
		return fmt.Errorf("connections per address: %d: want 1 to 4096", c.ConnsPerIP)
	case c.ConnRate <= 0 || c.ConnRate > 1000:
		return fmt.Errorf("new connections per second: %v: want over 0, at most 1000", c.ConnRate)
	case c.MaxMessage < 512 || c.MaxMessage > 64<<10:
		return fmt.Errorf("gossip message limit: %d: want 512 to 65536 bytes", c.MaxMessage)
	}
	if c.Relay != nil {
		if err := c.Relay.Validate(); err != nil {
			return fmt.Errorf("relay: %w", err)
		}
	}
	for _, l := range c.Listen {
		if err := c.checkListen(l); err != nil {
			return err
		}
	}
	for _, a := range c.Outside {
		if _, err := ma.NewMultiaddr(a); err != nil {
			return fmt.Errorf("announce: %.80q: want one such as /ip4/192.0.2.7/udp/%d/quic-v1: %w", a, DefaultPort, err)
		}
	}
	for _, p := range c.Peers {
		if _, err := addrInfo(p); err != nil {
			return fmt.Errorf("peers: %w", err)
		}
	}
	return nil
}

func (c Config) checkListen(l string) error {
	ap, err := netip.ParseAddrPort(l)
	if err != nil {
		return fmt.Errorf("listen: %q: want ip:port, such as 0.0.0.0:%d: %w", l, DefaultPort, err)
	}
	if c.Loopback && !ap.Addr().IsLoopback() {
		return fmt.Errorf("listen: %q is not a loopback address, but loopback is set; use 127.0.0.1:%d", l, ap.Port())
	}
	return nil
}

// addrInfo is a peer's addresses in libp2p's words.
func addrInfo(p p2p.PeerAddr) (peer.AddrInfo, error) {
	info := peer.AddrInfo{ID: peer.ID(p.Peer.Libp2p())}
	if p.Peer.IsZero() || info.ID == "" {
		return info, errors.New("a peer without an id; want /ip4/…/p2p/12D3KooW…")
	}
	for _, a := range p.Addrs {
		m, err := ma.NewMultiaddr(a)
		if err != nil {
			return info, fmt.Errorf("peer %s: address %.80q: want one such as /ip4/192.0.2.7/udp/%d/quic-v1: %w", p.Peer.Short(), a, DefaultPort, err)
		}
		info.Addrs = append(info.Addrs, m)
	}
	return info, nil
}

// ParsePeerAddr reads a multiaddress that ends with /p2p/<peer id>, as config files and people write a static peer.
func ParsePeerAddr(s string) (p2p.PeerAddr, error) {
	info, err := peer.AddrInfoFromString(s)
	if err != nil {
		return p2p.PeerAddr{}, fmt.Errorf("peer address %.120q: want /ip4/192.0.2.7/udp/%d/quic-v1/p2p/12D3KooW…: %w", s, DefaultPort, err)
	}
	return peerAddr(*info)
}
