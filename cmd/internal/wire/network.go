package wire

import (
	"errors"
	"net/netip"

	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/libp2p"
)

// NetConfig is the part of both daemons' config files that says how to meet peers. Embed it: its keys stand at the top of the file.
type NetConfig struct {
	Network string   `toml:"network" comment:"name of the market to join; two networks never hear of each other"`
	Listen  []string `toml:"listen" comment:"ip:port, each opened for TCP and for QUIC (UDP); port 0 takes a free one. With loopback addresses alone\nthis machine talks to itself only"`
	Peers   []string `toml:"peers" comment:"peers to stay connected with: /ip4/192.0.2.7/udp/4701/quic-v1/p2p/12D3KooW…; \"join\" remembers its own"`
	MDNS    bool     `toml:"mdns" comment:"find peers on the local network"`
	UPnP    bool     `toml:"upnp" comment:"ask the router to let peers in (UPnP, NAT-PMP)"`

	Outside []string            `toml:"-"` // multiaddresses that this machine has outside, beside those that it finds out
	Relay   *libp2p.RelayConfig `toml:"-"` // what a relay gives; nil: this machine is none
}

// maxConns is as many connections as a machine may be set to.
const maxConns = 4096

// DefaultNet is the network of a machine that nobody configured.
func DefaultNet() NetConfig {
	c := libp2p.Default(p2p.DefaultNetwork)
	return NetConfig{Network: c.Network, Listen: c.Listen, Peers: []string{}, MDNS: c.MDNS, UPnP: c.UPnP}
}

// Validate says what is wrong, by key.
func (c NetConfig) Validate() error {
	var errs []error
	if err := p2p.CheckNetwork(c.Network); err != nil {
		errs = append(errs, &cli.KeyError{Key: "network", Err: err})
	}
	bad := false
	for _, l := range c.Listen {
		if _, err := netip.ParseAddrPort(l); err != nil {
			errs = append(errs, cli.KeyErrorf("listen", "%q: want ip:port, such as 0.0.0.0:%d", cli.Clean(l), libp2p.DefaultPort))
			bad = true
		}
	}
	for _, p := range c.Peers {
		if _, err := libp2p.ParsePeerAddr(p); err != nil {
			errs = append(errs, &cli.KeyError{Key: "peers", Err: err})
			bad = true
		}
	}
	if len(errs) == 0 && !bad {
		conf, err := c.libp2p("gpufair")
		if err == nil {
			err = conf.Validate()
		}
		if err != nil {
			errs = append(errs, &cli.KeyError{Key: "listen", Err: err})
		}
	}
	return errors.Join(errs...)
}

// libp2p is the network's own config.
func (c NetConfig) libp2p(program string) (libp2p.Config, error) {
	conf := libp2p.Default(c.Network)
	conf.Listen, conf.MDNS, conf.UPnP, conf.Agent = c.Listen, c.MDNS, c.UPnP, program+"/"+cli.ThisBuild().Version
	conf.Outside, conf.Relay = c.Outside, c.Relay
	if c.Relay != nil {
		conf.LowConns = c.Relay.Slots + conf.LowConns
		conf.HighConns = min(2*conf.LowConns, maxConns)
		conf.ConnsPerIP = max(conf.ConnsPerIP, 2*c.Relay.SlotsPerIP)
	}
	conf.Loopback = len(c.Listen) > 0
	for _, l := range c.Listen {
		if ap, err := netip.ParseAddrPort(l); err != nil || !ap.Addr().IsLoopback() {
			conf.Loopback = false
		}
	}
	if conf.Loopback {
		conf.MDNS, conf.UPnP = false, false // there is no multicast, and no router
	}
	for _, text := range c.Peers {
		p, err := libp2p.ParsePeerAddr(text)
		if err != nil {
			return conf, err
		}
		conf.Peers = append(conf.Peers, p)
	}
	return conf, nil
}
