package reach

import (
	"context"
	"net"
	"net/netip"
	"time"
)

// lookIn and dialIn bound looking a name up and reaching one of its addresses.
const (
	lookIn = 10 * time.Second
	dialIn = 10 * time.Second
)

// Resolver looks names up with this machine's resolvers and gives only addresses that may be reached.
type Resolver struct {
	Policy *Policy
	// Lookup is net.Resolver.LookupNetIP; nil: the one in Go, which asks the servers in /etc/resolv.conf.
	Lookup func(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Allowed are the addresses of host ("ip", "ip4" or "ip6") that may be reached at port. If it has only others the error is the first's
// [*Refused]; a name that is not there is a *net.DNSError.
func (r *Resolver) Allowed(ctx context.Context, network, host string, port uint16) ([]netip.Addr, error) {
	if ip, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{ip}, r.Policy.Check(netip.AddrPortFrom(ip, port))
	}
	ctx, cancel := context.WithTimeout(ctx, lookIn)
	defer cancel()
	lookup := r.Lookup
	if lookup == nil {
		lookup = (&net.Resolver{PreferGo: true}).LookupNetIP
	}
	all, err := lookup(ctx, network, host)
	if err != nil {
		return nil, err
	}
	var allowed []netip.Addr
	var refused error
	for _, ip := range all {
		ip = ip.Unmap()
		if err := r.Policy.Check(netip.AddrPortFrom(ip, port)); err == nil {
			allowed = append(allowed, ip)
		} else if refused == nil {
			refused = err
		}
	}
	if len(allowed) == 0 && refused == nil {
		refused = &net.DNSError{Err: "no address", Name: host, IsNotFound: true}
	}
	if len(allowed) > 0 {
		return allowed, nil
	}
	return nil, refused
}

// Dial connects to an address if it may be reached.
func Dial(ctx context.Context, p *Policy, network string, to netip.AddrPort) (net.Conn, error) {
	if err := p.Check(to); err != nil {
		return nil, err
	}
	d := net.Dialer{Timeout: dialIn}
	return d.DialContext(ctx, network, to.String())
}
