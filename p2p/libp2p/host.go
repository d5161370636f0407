package libp2p

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"syscall"
	"time"

	golibp2p "github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/config"
	"github.com/libp2p/go-libp2p/core/connmgr"
	"github.com/libp2p/go-libp2p/core/control"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/gologshim"
	rcmgr "github.com/libp2p/go-libp2p/p2p/host/resource-manager"
	basicconnmgr "github.com/libp2p/go-libp2p/p2p/net/connmgr"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"
	"github.com/libp2p/go-libp2p/p2p/security/noise"
	quic "github.com/libp2p/go-libp2p/p2p/transport/quic"
	"github.com/libp2p/go-libp2p/p2p/transport/tcp"
	"github.com/libp2p/go-libp2p/x/rate"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpufair/gpufair/p2p/identity"
)

// LogTo sends libp2p's own log records to h, for the whole process. Only main calls it, before [New]; without it they go to standard
// error, errors only.
func LogTo(h slog.Handler) { gologshim.SetDefaultHandler(h) }

// networkVersion is what a host calls its network in identify: peers of another one are let go.
func networkVersion(name string) string { return "gpufair/" + name }

// newHost makes the host and opens every listener of c, or says which one it could not open and what to do.
func newHost(dev *identity.Device, c Config, r *reach, t *traffic) (host.Host, error) {
	limits, err := newLimits(c)
	if err != nil {
		return nil, fmt.Errorf("resource limits: %w", err)
	}
	conns, err := basicconnmgr.NewConnManager(c.LowConns, c.HighConns, basicconnmgr.WithGracePeriod(20*time.Second))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("connection manager: %w", err), limits.Close())
	}
	h, err := golibp2p.New(append(r.options(),
		golibp2p.Identity(dev.HostKey()),
		golibp2p.NoListenAddrs, // they are opened below, one by one: libp2p is content if one of many opens
		golibp2p.BandwidthReporter(t),
		// Noise alone: TLS refuses a certificate from a clock an hour fast, and there is no second try (spec: p2p, 6).
		golibp2p.Security(noise.ID, noise.New),
		golibp2p.DefaultMuxers,
		tcpTransport(c),
		golibp2p.Transport(quic.NewTransport),
		golibp2p.AddrsFactory(c.addrs),
		golibp2p.ConnectionGater(gate{loopback: c.Loopback}),
		golibp2p.ConnectionManager(conns),
		golibp2p.ResourceManager(limits),
		golibp2p.UserAgent(c.Agent),
		golibp2p.ProtocolVersion(networkVersion(c.Network)),
		golibp2p.WithDialTimeout(10*time.Second),
		golibp2p.SwarmOpts(swarm.WithDialRanker(rank)),
		metrics(c.Metrics),
	)...)
	if err != nil {
		return nil, fmt.Errorf("libp2p host: %w", err)
	}
	for _, l := range c.Listen {
		if err := listen(h, netip.MustParseAddrPort(l)); err != nil {
			return nil, errors.Join(fmt.Errorf("listen on %s: %w", l, err), h.Close())
		}
	}
	if len(h.Network().ListenAddresses()) == 0 {
		return nil, errors.Join(fmt.Errorf("listen: %v: this machine has no such address; set others under listen", c.Listen), h.Close())
	}
	r.host = h
	close(r.ready)
	return h, nil
}

// tcpAfter is how long QUIC alone is tried at an address of the LAN or of this machine.
const tcpAfter = time.Second

// rank orders dials as libp2p does, but gives QUIC more than 30 ms before TCP is tried too at a near address: a machine under load shook
// hands over both, and gave up the slower one when the other side had just begun to use it.
func rank(addrs []ma.Multiaddr) []network.AddrDelay {
	ranked := swarm.DefaultDialRanker(addrs)
	for i, a := range ranked {
		if _, err := a.Addr.ValueForProtocol(ma.P_TCP); err == nil && a.Delay > 0 && !manet.IsPublicAddr(a.Addr) {
			ranked[i].Delay = max(a.Delay, tcpAfter)
		}
	}
	return ranked
}

// addrs are the addresses of a host that it has found out, and those that its owner knows of.
func (c Config) addrs(found []ma.Multiaddr) []ma.Multiaddr {
	for _, a := range c.Outside {
		if m, err := ma.NewMultiaddr(a); err == nil {
			found = append(found, m)
		}
	}
	return found
}

// tcpTransport dials from the port that it listens on, so that a router shows others one address and holes can be punched in it. A second
// daemon could silently share such a port, but for [probe], which finds it taken.
func tcpTransport(c Config) golibp2p.Option {
	if c.Loopback {
		return golibp2p.Transport(tcp.NewTCPTransport, tcp.DisableReuseport())
	}
	return golibp2p.Transport(tcp.NewTCPTransport)
}

// metrics sends libp2p's metrics to reg, or nowhere. libp2p's own DisableMetrics still puts some into the default registry.
func metrics(reg prometheus.Registerer) golibp2p.Option {
	return func(c *config.Config) error {
		if c.DisableMetrics, c.PrometheusRegisterer = reg == nil, reg; reg == nil {
			c.PrometheusRegisterer = prometheus.NewRegistry()
		}
		return nil
	}
}

// freePortTries is how often port 0 is tried: a port free on TCP may be taken on UDP, or be taken between our look and libp2p's.
const freePortTries = 20

func listen(h host.Host, ap netip.AddrPort) error {
	if ap.Port() != 0 {
		if _, err := probe(ap); err != nil {
			return listenAdvice(ap, err)
		}
		return listenBoth(h, ap)
	}
	var err error
	for range freePortTries {
		var port uint16
		if port, err = probe(ap); err != nil {
			continue
		}
		if err = listenBoth(h, netip.AddrPortFrom(ap.Addr(), port)); err == nil {
			return nil
		}
	}
	return fmt.Errorf("no port is free on both TCP and UDP: %w", err)
}

// listenAdvice says what to do about a port that can not be opened; nil means that nothing need be done.
func listenAdvice(ap netip.AddrPort, err error) error {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("port %d is taken by another program: stop it, or set another port under listen: %w", ap.Port(), err)
	case errors.Is(err, syscall.EACCES):
		return fmt.Errorf("port %d needs privileges: set one over 1023 under listen: %w", ap.Port(), err)
	case ap.Addr() == netip.IPv6Unspecified() && (errors.Is(err, syscall.EAFNOSUPPORT) || errors.Is(err, syscall.EADDRNOTAVAIL)):
		return nil // a machine without IPv6 listens on IPv4 alone
	}
	return err
}

// probe opens and closes ap on TCP and on UDP, since libp2p gives a listener's error as text only. For port 0 it takes a free one.
func probe(ap netip.AddrPort) (port uint16, err error) {
	tcpNet, udpNet := "tcp4", "udp4"
	if ap.Addr().Is6() {
		tcpNet, udpNet = "tcp6", "udp6"
	}
	l, err := net.ListenTCP(tcpNet, net.TCPAddrFromAddrPort(ap))
	if err != nil {
		return 0, err
	}
	port = l.Addr().(*net.TCPAddr).AddrPort().Port()
	c, err := net.ListenUDP(udpNet, net.UDPAddrFromAddrPort(netip.AddrPortFrom(ap.Addr(), port)))
	if err != nil {
		return 0, errors.Join(err, l.Close())
	}
	return port, errors.Join(l.Close(), c.Close())
}

// listenBoth opens TCP and QUIC on one port, or neither.
func listenBoth(h host.Host, ap netip.AddrPort) error {
	fam := "ip4"
	if ap.Addr().Is6() {
		fam = "ip6"
	}
	var opened []ma.Multiaddr
	for _, form := range []string{"/%s/%s/tcp/%d", "/%s/%s/udp/%d/quic-v1"} {
		addr, err := ma.NewMultiaddr(fmt.Sprintf(form, fam, ap.Addr(), ap.Port()))
		if err != nil {
			return err
		}
		if err := h.Network().Listen(addr); err != nil {
			if closer, ok := h.Network().(interface{ ListenClose(...ma.Multiaddr) }); ok {
				closer.ListenClose(opened...)
			}
			return err
		}
		opened = append(opened, addr)
	}
	return nil
}

// newLimits bounds what all peers together and each address may take. libp2p's default of 8 connections for an address and one new
// one in 5 s would shut out the renters behind one router (spec: p2p, 3.1).
func newLimits(c Config) (network.ResourceManager, error) {
	const (
		memory = 1 << 30 // what the buffers of streams may reserve, not what they use
		files  = 4096
	)
	defaults := rcmgr.DefaultLimits
	golibp2p.SetDefaultServiceLimits(&defaults)
	conns := rcmgr.LimitVal(4 * c.HighConns) // new ones arrive faster than the connection manager trims
	scaled := defaults.Scale(memory, files)
	usual := scaled.ToPartialLimitConfig()
	partial := rcmgr.PartialLimitConfig{
		System:      usual.System,
		PeerDefault: usual.PeerDefault,
		Transient:   rcmgr.ResourceLimits{Conns: conns / 2, ConnsInbound: conns / 4, ConnsOutbound: conns / 2},
		// Each protocol's own p2p.Limits are the tight ones; these only bound protocols of libp2p's.
		ProtocolDefault:     rcmgr.ResourceLimits{Streams: 4096, StreamsInbound: 2048, StreamsOutbound: 4096},
		ProtocolPeerDefault: rcmgr.ResourceLimits{Streams: 512, StreamsInbound: 256, StreamsOutbound: 512},
	}
	partial.System.Conns, partial.System.ConnsInbound, partial.System.ConnsOutbound = conns, conns/2, conns
	if c.Relay != nil {
		c.Relay.limit(&partial)
	}
	limitIndex(&partial, c.Network)
	limiter := rcmgr.NewFixedLimiter(partial.Build(scaled))
	burst := rate.Limit{RPS: c.ConnRate, Burst: 2 * c.ConnsPerIP}
	opts := []rcmgr.Option{
		rcmgr.WithLimitPerSubnet(
			[]rcmgr.ConnLimitPerSubnet{{PrefixLength: 32, ConnCount: c.ConnsPerIP}},
			[]rcmgr.ConnLimitPerSubnet{{PrefixLength: 56, ConnCount: c.ConnsPerIP}, {PrefixLength: 48, ConnCount: 4 * c.ConnsPerIP}}),
		rcmgr.WithConnRateLimiters(&rate.Limiter{
			NetworkPrefixLimits: []rate.PrefixLimit{
				{Prefix: netip.MustParsePrefix("127.0.0.0/8")}, {Prefix: netip.MustParsePrefix("::1/128")},
			},
			SubnetRateLimiter: rate.SubnetLimiter{
				IPv4SubnetLimits: []rate.SubnetLimit{{PrefixLength: 32, Limit: burst}},
				IPv6SubnetLimits: []rate.SubnetLimit{{PrefixLength: 56, Limit: burst}},
				GracePeriod:      time.Minute,
			},
		}),
	}
	if c.Metrics == nil {
		opts = append(opts, rcmgr.WithMetricsDisabled())
	} else {
		stats, err := rcmgr.NewStatsTraceReporter()
		if err != nil {
			return nil, err
		}
		opts = append(opts, rcmgr.WithTraceReporter(stats))
	}
	return rcmgr.NewResourceManager(limiter, opts...)
}

// gate refuses peers that can not be ours: a device's key is Ed25519. On loopback it also keeps dials at home.
type gate struct{ loopback bool }

var _ connmgr.ConnectionGater = gate{}

func ours(p peer.ID) bool {
	_, err := identity.PeerFromLibp2p(string(p))
	return err == nil
}

// InterceptPeerDial fulfils libp2p's gater.
func (g gate) InterceptPeerDial(p peer.ID) bool { return ours(p) }

// InterceptAddrDial fulfils libp2p's gater.
func (g gate) InterceptAddrDial(_ peer.ID, a ma.Multiaddr) bool {
	return !g.loopback || manet.IsIPLoopback(a)
}

// InterceptAccept fulfils libp2p's gater.
func (g gate) InterceptAccept(network.ConnMultiaddrs) bool { return true }

// InterceptSecured fulfils libp2p's gater.
func (g gate) InterceptSecured(_ network.Direction, p peer.ID, _ network.ConnMultiaddrs) bool {
	return ours(p)
}

// InterceptUpgraded fulfils libp2p's gater.
func (g gate) InterceptUpgraded(network.Conn) (bool, control.DisconnectReason) { return true, 0 }
