package jobnet

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/gpufair/gpufair/provider"
	"github.com/gpufair/gpufair/provider/reach"
)

// TestProve proves the denial on a machine with a neighbour, and leaves nothing behind.
func TestProve(t *testing.T) {
	n, pid := connected(t, plenty, plenty)
	c, err := net.Dial("tcp", neighbour+":80") // the machine has talked with it
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	ns, err := os.Open("/proc/" + strconv.Itoa(pid) + "/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	host, err := (&reach.Host{}).Networks()
	if err != nil {
		t.Fatal(err)
	}
	always, err := n.refuses(t.Context(), ns, provider.WireRequest{ID: "j", PID: pid}, forbidden(host))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	for _, egress := range []string{provider.EgressInternet, provider.EgressNone} {
		p, err := Prove(t.Context(), n.config.Command, egress, []string{"203.0.113.0/24"})
		if err != nil {
			t.Fatalf("%s: %v", egress, err)
		}
		if !slices.Contains(p.Host, netip.MustParseAddr(hostAddr)) || !slices.Contains(p.Neighbours, netip.MustParseAddr(neighbour)) {
			t.Errorf("%s: this machine's %v and neighbours %v were tried", egress, p.Host, p.Neighbours)
		}
		if p.Tried != always+len(p.Neighbours) {
			t.Errorf("%s: %d addresses tried, %d are before each job", egress, p.Tried, always)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestProveFindsHole leaves a rule out, and lets the command be no child: the first is a hole, the second proves nothing.
func TestProveFindsHole(t *testing.T) {
	if _, err := world(); err != nil {
		t.Fatal(err)
	}
	for _, rule := range []string{reach.Private, reach.OwnNet} {
		if _, err := Prove(t.Context(), open(t, rule).config.Command, provider.EgressInternet, nil); !errors.Is(err, ErrHole) {
			t.Errorf("without the rule %s: %v", rule, err)
		}
	}
	if _, err := Prove(t.Context(), []string{"/bin/true"}, provider.EgressInternet, nil); err == nil || errors.Is(err, ErrHole) {
		t.Errorf("no child: %v", err)
	}
}

// TestNoWay tries addresses where there is a way, and where there is none.
func TestNoWay(t *testing.T) {
	outside, err := world()
	if err != nil {
		t.Fatal(err)
	}
	list := []netip.AddrPort{netip.MustParseAddrPort("192.168.50.1:80"), netip.MustParseAddrPort("[fd12::1]:80")}
	for _, one := range list {
		enter(t, outside, func() error {
			if err := noWay([]netip.AddrPort{one}); !errors.Is(err, ErrHole) {
				t.Errorf("a way to %s: %v", one, err)
			}
			return nil
		})
	}
}
