package reach

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"
)

// TestRules has addresses for each rule: denied by it, and by none when it and what stands behind it are left out.
func TestRules(t *testing.T) {
	for _, c := range []struct {
		to    string
		rule  string
		other []string // what would deny it still
	}{
		{"127.0.0.1:80", Loopback, nil},
		{"127.255.255.254:80", Loopback, nil},
		{"[::1]:80", Loopback, []string{Embedded, Special}},
		{"[::ffff:127.0.0.1]:80", Loopback, nil},
		{"10.255.255.255:80", Private, nil},
		{"172.31.0.1:80", Private, nil},
		{"192.168.1.1:80", Private, nil},
		{"[::ffff:10.0.0.1]:80", Private, nil},
		{"[fdff::1]:80", Local, []string{Special}},
		{"100.127.255.255:80", Shared, nil},
		{"169.254.169.254:80", LinkLocal, nil},
		{"[fe80::1%lo]:80", LinkLocal, []string{Special}},
		{"168.63.129.16:80", Metadata, nil},
		{"239.1.1.1:80", Multicast, nil},
		{"[ff02::1]:80", Multicast, []string{Special}},
		{"[64:ff9b::7f00:1]:80", Embedded, []string{Special}},
		{"[2002:7f00:1::]:80", Embedded, nil},
		{"[2001::1]:80", Embedded, nil},
		{"[::7f00:2]:80", Embedded, []string{Special}},
		{"0.0.0.0:80", Special, nil},
		{"0.1.2.3:80", Special, nil},
		{"255.255.255.255:80", Special, nil},
		{"192.0.0.192:80", Special, nil},
		{"[::]:80", Embedded, []string{Special}},
		{"[4000::1]:80", Special, nil},
		{"[2001:db8::1]:80", Special, nil},
		{"8.8.4.4:25", Mail, nil},
		{"[2600:1::1]:25", Mail, nil},
	} {
		to := netip.MustParseAddrPort(c.to)
		var refused *Refused
		if err := (&Policy{Rules: Rules()}).Check(to); !errors.As(err, &refused) || refused.Rule != c.rule {
			t.Errorf("%s: %v, want %s", c.to, err, c.rule)
		}
		rest := slices.DeleteFunc(Rules(), func(r Rule) bool { return r.Name == c.rule || slices.Contains(c.other, r.Name) })
		if err := (&Policy{Rules: rest}).Check(to); err != nil && !to.Addr().IsUnspecified() {
			t.Errorf("%s without its rules: %v", c.to, err)
		}
	}
	for _, to := range []string{"8.8.4.4:443", "1.1.1.1:53", "[2600:1::1]:443", "172.32.0.1:80", "100.128.0.1:80", "11.0.0.1:80", "[2003::1]:80"} {
		if err := (&Policy{Rules: Rules()}).Check(netip.MustParseAddrPort(to)); err != nil {
			t.Errorf("%s: %v", to, err)
		}
	}
	if err := (&Policy{}).Check(netip.AddrPort{}); err == nil {
		t.Error("no address was let through")
	}
}

// TestOwner denies what the owner names and the networks of the host's interfaces.
func TestOwner(t *testing.T) {
	var refused *Refused
	p := New([]netip.Prefix{netip.MustParsePrefix("8.8.0.0/16")})
	if err := p.Check(netip.MustParseAddrPort("8.8.4.4:80")); !errors.As(err, &refused) || refused.Rule != Owner {
		t.Errorf("what the owner denies: %v", err)
	}
	own, err := (&Host{}).Networks()
	if err != nil || !slices.Contains(own, netip.MustParsePrefix("127.0.0.1/8")) { // the address itself, not only its network
		t.Errorf("own networks: %v, %v", own, err)
	}
	p = &Policy{Host: &Host{}}
	if err := p.Check(netip.MustParseAddrPort("127.0.0.1:80")); !errors.As(err, &refused) || refused.Rule != OwnNet {
		t.Errorf("the host's own address: %v", err)
	}
}

// TestAllowed looks names up: addresses that may not be reached are left out, also in IPv6 clothes.
func TestAllowed(t *testing.T) {
	names := map[string][]netip.Addr{
		"both.example": {netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("::ffff:8.8.4.4"), netip.MustParseAddr("2600:1::1")},
		"home.example": {netip.MustParseAddr("::ffff:192.168.1.1"), netip.MustParseAddr("10.0.0.1")},
	}
	r := &Resolver{Policy: &Policy{Rules: Rules()}, Lookup: func(_ context.Context, _, host string) ([]netip.Addr, error) {
		return names[host], nil
	}}
	want := []netip.Addr{netip.MustParseAddr("8.8.4.4"), netip.MustParseAddr("2600:1::1")}
	if ips, err := r.Allowed(t.Context(), "ip", "both.example", 443); err != nil || !slices.Equal(ips, want) {
		t.Errorf("%v, %v; want %v", ips, err, want)
	}
	var refused *Refused
	for host, rule := range map[string]string{"home.example": Private, "127.0.0.1": Loopback} {
		if _, err := r.Allowed(t.Context(), "ip", host, 443); !errors.As(err, &refused) || refused.Rule != rule {
			t.Errorf("%s: %v, want %s", host, err, rule)
		}
	}
	var missing *net.DNSError
	if _, err := r.Allowed(t.Context(), "ip", "none.example", 443); !errors.As(err, &missing) || !missing.IsNotFound {
		t.Errorf("a name without an address: %v", err)
	}
}

// TestDial dials what may be reached and nothing else.
func TestDial(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	to := l.Addr().(*net.TCPAddr).AddrPort()
	var refused *Refused
	if c, err := Dial(t.Context(), &Policy{Rules: Rules()}, "tcp", to); !errors.As(err, &refused) || refused.Rule != Loopback {
		t.Errorf("dialled %v, %v", c, err)
	}
	c, err := Dial(t.Context(), &Policy{}, "tcp", to)
	if err != nil {
		t.Fatalf("without rules: %v", err)
	}
	c.Close()
}
