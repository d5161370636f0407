// Package reach says what of the outside world a job, and whatever is fetched at its bidding, may reach: it judges addresses, never names,
// and a dial of its own goes to the address that was judged. It knows no lease and no namespace.
package reach

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Rule denies addresses, or one port of every address.
type Rule struct {
	Name     string // as counters and people see it
	Prefixes []netip.Prefix
	Port     uint16 // denied wherever it is; 0: the rule is about addresses
}

// The names of the rules.
const (
	Loopback  = "loopback"
	Private   = "private"
	Local     = "unique-local"
	Shared    = "shared" // carrier-grade NAT
	LinkLocal = "link-local"
	Metadata  = "metadata" // of clouds, where it is not link-local
	Multicast = "multicast"
	Embedded  = "embedded" // IPv6 that a gateway turns into any IPv4: NAT64, 6to4, Teredo, compatible addresses
	Special   = "special"  // no part of the internet: reserved, documentation, benchmarks
	Mail      = "smtp"
	OwnNet    = "own network" // the host's own addresses and what shares a prefix with one
	Owner     = "owner"       // what the owner denied besides
	Unknown   = "unknown"     // the host's networks could not be read, so that nothing may be reached
)

// Rules are what is always denied (IANA's registries of special-purpose addresses for IPv4 and IPv6; spec: jobs, Network). A rule about a port
// stands last, so that an address is named first.
func Rules() []Rule {
	return []Rule{
		{Name: Loopback, Prefixes: prefixes("127.0.0.0/8", "::1/128")},
		{Name: Private, Prefixes: prefixes("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")},
		{Name: Local, Prefixes: prefixes("fc00::/7", "fec0::/10")},
		{Name: Shared, Prefixes: prefixes("100.64.0.0/10")},
		{Name: LinkLocal, Prefixes: prefixes("169.254.0.0/16", "fe80::/10")},
		{Name: Metadata, Prefixes: prefixes("168.63.129.16/32")}, // Azure's; all others lie in a range that is denied anyhow
		{Name: Multicast, Prefixes: prefixes("224.0.0.0/4", "ff00::/8")},
		{Name: Embedded, Prefixes: prefixes("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32", "::/96", "::ffff:0:0:0/96", "192.88.99.0/24")},
		{Name: Special, Prefixes: prefixes("0.0.0.0/8", "192.0.0.0/24", "192.0.2.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "240.0.0.0/4",
			// Of IPv6 only 2000::/3 is given out (IANA, IPv6 address space); the rest is denied as a whole.
			"::/3", "4000::/2", "8000::/1", "2001:2::/48", "2001:10::/28", "2001:20::/28", "2001:db8::/32", "3fff::/20")},
		{Name: Mail, Port: 25},
	}
}

func prefixes(list ...string) []netip.Prefix {
	out := make([]netip.Prefix, len(list))
	for i, s := range list {
		out[i] = netip.MustParsePrefix(s)
	}
	return out
}

// Refused is the error of an address that may not be reached.
type Refused struct {
	Addr netip.AddrPort
	Rule string // by name
}

// Error names the address and the rule.
func (r *Refused) Error() string {
	return fmt.Sprintf("%s is not a job's to reach: %s", r.Addr, r.Rule)
}

// Policy judges addresses. It may be used by several goroutines at once; its fields are set before.
type Policy struct {
	Rules []Rule
	Host  *Host // nil: the host's own networks are not asked for
}

// New is the policy of every job: [Rules], the host's own networks, and what the owner denies besides.
func New(owner []netip.Prefix) *Policy {
	rules := Rules()
	if len(owner) > 0 {
		rules = slices.Insert(rules, 0, Rule{Name: Owner, Prefixes: owner})
	}
	return &Policy{Rules: rules, Host: &Host{}}
}

// Check is nil if the address may be reached, else a [*Refused]. An IPv4 address in IPv6 clothes (::ffff:0:0/96) is judged as the IPv4
// address that the kernel would dial.
func (p *Policy) Check(to netip.AddrPort) error {
	a := to.Addr().WithZone("").Unmap()
	for _, r := range p.Rules {
		if r.Port != 0 && r.Port == to.Port() || slices.ContainsFunc(r.Prefixes, func(p netip.Prefix) bool { return p.Contains(a) }) {
			return &Refused{to, r.Name}
		}
	}
	if !a.IsValid() || a.IsUnspecified() {
		return &Refused{to, Special}
	}
	if p.Host == nil {
		return nil
	}
	own, err := p.Host.Networks()
	switch {
	case err != nil:
		return &Refused{to, Unknown}
	case slices.ContainsFunc(own, func(p netip.Prefix) bool { return p.Contains(a) }):
		return &Refused{to, OwnNet}
	}
	return nil
}

// Host reads the networks of this machine's interfaces. Its zero value is ready; it may be used by several goroutines at once.
type Host struct {
	mu   sync.Mutex
	read time.Time // guarded by mu, as the two below
	nets []netip.Prefix
	err  error
}

// fresh is how long the interfaces are not looked at again: an address that the machine gets (a VPN, another Wi-Fi) is denied that late.
const fresh = time.Second

// Networks are the addresses of every interface, each with the length of its prefix: a home's neighbours have public IPv6 addresses, which no
// fixed list knows. A network that an interface has a route to, but no address in, is not among them.
func (h *Host) Networks() ([]netip.Prefix, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if now := time.Now(); h.read.IsZero() || now.Sub(h.read) > fresh {
		h.nets, h.err = networks()
		h.read = now
	}
	return h.nets, h.err
}

func networks() ([]netip.Prefix, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("networks of this machine: %w", err)
	}
	out := make([]netip.Prefix, 0, len(addrs))
	for _, a := range addrs {
		n, ok := a.(*net.IPNet)
		if !ok {
			return nil, fmt.Errorf("networks of this machine: %v is not an address with its prefix", a)
		}
		ip, _ := netip.AddrFromSlice(n.IP)
		bits, _ := n.Mask.Size()
		prefix := netip.PrefixFrom(ip.Unmap(), bits)
		if !prefix.IsValid() {
			return nil, fmt.Errorf("networks of this machine: %v is not an address with its prefix", a)
		}
		out = append(out, prefix)
	}
	return out, nil
}
