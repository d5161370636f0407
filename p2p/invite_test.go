package p2p_test

import (
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/p2ptest"
)

func TestInvite(t *testing.T) {
	dev := p2ptest.Device(t)
	addrs := []string{"/ip4/192.0.2.7/udp/4701/quic-v1", "/ip4/192.0.2.7/tcp/4701"}
	text, err := p2p.NewInvite(dev, "main", addrs, "5.00 CREDIT")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(text, "gpufair-invite:") || len(text) > 600 {
		t.Errorf("%d characters: %s", len(text), text)
	}
	for _, s := range []string{text, "  " + text + "\n", text[:100] + "\n  " + text[100:]} {
		got, err := p2p.ParseInvite(s)
		if err != nil {
			t.Fatal(err)
		}
		at := got.PeerAddr()
		if got.Network != "main" || got.Account != dev.Account() || at.Peer != dev.Peer() || !slices.Equal(at.Addrs, addrs) ||
			got.Credit != "5.00 CREDIT" || got.Delegation != dev.DelegationHash() {
			t.Errorf("got %+v", got)
		}
	}
}

// TestInviteAddrs leaves out what is too long, as an address over a relay and IPv6 can be, and takes the first of the rest.
func TestInviteAddrs(t *testing.T) {
	long := "/ip6/2001:db8:1111:2222:3333:4444:5555:6666/udp/47010/quic-v1/p2p/12D3KooWRKPiH6zvnejzovLUhimmpPHAxTUKQHufVXzjvJ8cFucH/p2p-circuit"
	addrs := []string{long}
	for i := range 20 {
		addrs = append(addrs, fmt.Sprintf("/ip4/192.0.2.%d/tcp/4701", i))
	}
	text, err := p2p.NewInvite(p2ptest.Device(t), "main", addrs, "")
	if err != nil {
		t.Fatal(err)
	}
	if inv, err := p2p.ParseInvite(text); err != nil || !slices.Equal(inv.Addrs, addrs[1:17]) {
		t.Errorf("%q %v", inv.Addrs, err)
	}
	if addrs[0] != long {
		t.Error("the caller's addresses were changed")
	}
}

// TestInviteMistyped changes every character in turn, and cuts the string everywhere: no change may pass.
func TestInviteMistyped(t *testing.T) {
	text, err := p2p.NewInvite(p2ptest.Device(t), "main", []string{"/ip4/192.0.2.7/tcp/4701"}, "")
	if err != nil {
		t.Fatal(err)
	}
	for i := range text {
		for name, bad := range map[string]string{"cut": text[:i], "letter missing": text[:i] + text[i+1:], "letter changed": text[:i] + other(text[i]) + text[i+1:]} {
			_, err := p2p.ParseInvite(bad)
			if !errors.Is(err, p2p.ErrInvite) {
				t.Fatalf("%s at %d: got %v, want ErrInvite", name, i, err)
			}
			if !strings.Contains(err.Error(), "copy the whole string again") && !strings.Contains(err.Error(), "it starts with") {
				t.Fatalf("%s at %d: %v says no next step", name, i, err)
			}
		}
	}
}

func other(c byte) string {
	if c == 'A' {
		return "B"
	}
	return "A"
}

func TestInviteRefusals(t *testing.T) {
	dev := p2ptest.Device(t)
	good := []string{"/ip4/192.0.2.7/tcp/4701"}
	for name, c := range map[string]struct {
		network string
		addrs   []string
		credit  string
	}{
		"network":        {"Not A Name", good, ""},
		"no address":     {"main", nil, ""},
		"an empty one":   {"main", make([]string, 17), ""},
		"a host":         {"main", []string{"example.org:4701"}, ""},
		"a long address": {"main", []string{"/dns4/" + strings.Repeat("x", 200)}, ""},
		"long credit":    {"main", good, strings.Repeat("9", 65)},
	} {
		if _, err := p2p.NewInvite(dev, c.network, c.addrs, c.credit); err == nil {
			t.Errorf("%s: an invite was made", name)
		}
	}
	// Another record of the same device is not an invite.
	sealed, err := dev.Seal("gpufair/other/1", p2p.Invite{Header: dev.Header(1), Network: "main", Addrs: good})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p2p.ParseInvite(p2p.InvitePrefix + base64.RawURLEncoding.EncodeToString(sealed)); !errors.Is(err, p2p.ErrInvite) {
		t.Errorf("a record of another domain: %v", err)
	}
	// One that is signed, but holds what no invite holds.
	sealed, err = dev.Seal(p2p.DomainInvite, p2p.Invite{Header: dev.Header(1), Network: "main"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p2p.ParseInvite(p2p.InvitePrefix + base64.RawURLEncoding.EncodeToString(sealed)); !errors.Is(err, p2p.ErrInvite) {
		t.Errorf("an invite without an address: %v", err)
	}
}

func FuzzParseInvite(f *testing.F) {
	text, err := p2p.NewInvite(p2ptest.Device(f), "main", []string{"/ip4/192.0.2.7/tcp/4701"}, "1")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add("gpufair-invite:AAAA")
	f.Fuzz(func(t *testing.T, s string) {
		inv, err := p2p.ParseInvite(s)
		if (err == nil) == errors.Is(err, p2p.ErrInvite) {
			t.Fatalf("%v is neither nil nor ErrInvite", err)
		}
		if err == nil && (p2p.CheckNetwork(inv.Network) != nil || len(inv.Addrs) == 0) {
			t.Fatalf("a bad invite passed: %+v", inv)
		}
	})
}
