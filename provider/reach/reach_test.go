package reach

import (
	"context"
	"errors"
	"fmt"
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

// TestOwner denies what the owner names and what the host's interfaces have on their links, and everything if those can't be read.
func TestOwner(t *testing.T) {
	var refused *Refused
	p := New([]netip.Prefix{netip.MustParsePrefix("8.8.0.0/16")})
	if err := p.Check(netip.MustParseAddrPort("8.8.4.4:80")); !errors.As(err, &refused) || refused.Rule != Owner {
		t.Errorf("what the owner denies: %v", err)
	}
	own, err := (&Host{}).Networks()
	if err != nil || !slices.ContainsFunc(own, func(p netip.Prefix) bool { return p.Contains(netip.MustParseAddr("127.0.0.1")) }) {
		t.Errorf("own networks: %v, %v", own, err)
	}
	p = &Policy{Host: &Host{}}
	if err := p.Check(netip.MustParseAddrPort("127.0.0.1:80")); !errors.As(err, &refused) || refused.Rule != OwnNet {
		t.Errorf("the host's own address: %v", err)
	}
}

// TestRebinding resolves a name to one address when it is asked and to another when it is dialled: only what was judged is dialled.
func TestRebinding(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	looks := 0
	r := &Resolver{Policy: &Policy{Rules: Rules()}, Lookup: func(context.Context, string, string) ([]netip.Addr, error) {
		looks++
		return []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("::ffff:127.0.0.1")}, nil
	}}
	var refused *Refused
	if c, err := r.DialContext(t.Context(), "tcp", fmt.Sprintf("rebind.example:%d", port)); !errors.As(err, &refused) || refused.Rule != Loopback {
		t.Errorf("dialled %v, %v", c, err)
	}
	if looks != 1 {
		t.Errorf("looked up %d times", looks)
	}
	r.Policy = &Policy{}
	c, err := r.DialContext(t.Context(), "tcp", fmt.Sprintf("rebind.example:%d", port))
	if err != nil {
		t.Fatalf("without rules: %v", err)
	}
	c.Close()
	if looks != 2 {
		t.Errorf("looked up %d times: what was judged is not what was dialled", looks)
	}
}
