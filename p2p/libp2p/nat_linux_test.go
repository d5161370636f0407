package libp2p_test

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpufair/gpufair/p2p"
)

var natForm = flag.String("nat", "", "how much the tests behind routers do, which take root and nft: short or long")

// lab is an internet of namespaces: a core that forwards between networks of one machine each, with addresses that pass for public
// ones (spec: p2p, 4: private and documentation ranges are ignored by libp2p). A machine is one that peers can reach or a router.
type lab struct {
	t    *testing.T
	id   string // of all its names
	nets int
}

func newLab(t *testing.T) *lab {
	l := &lab{t: t, id: fmt.Sprintf("gf%x", time.Now().UnixNano()&0xffffff)}
	l.space("core")
	l.in("core", "sysctl", "-qw", "net.ipv4.ip_forward=1")
	return l
}

// sh runs a command, or fails the test.
func (l *lab) sh(name string, args ...string) {
	l.t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		l.t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}

func (l *lab) ns(space string) string { return l.id + "-" + space }

// in runs a command in a namespace.
func (l *lab) in(space string, args ...string) {
	l.t.Helper()
	l.sh("ip", append([]string{"netns", "exec", l.ns(space)}, args...)...)
}

// space makes a namespace, removed at the end of the test with all that is in it.
func (l *lab) space(name string) {
	l.t.Helper()
	l.sh("ip", "netns", "add", l.ns(name))
	l.t.Cleanup(func() { l.sh("ip", "netns", "del", l.ns(name)) })
	l.in(name, "ip", "link", "set", "lo", "up")
}

// wire joins two namespaces: the ends are named after the other side.
func (l *lab) wire(a, b string) {
	l.t.Helper()
	l.sh("ip", "-n", l.ns(a), "link", "add", b, "type", "veth", "peer", "name", a, "netns", l.ns(b))
	l.in(a, "ip", "link", "set", b, "up")
	l.in(b, "ip", "link", "set", a, "up")
}

// public makes a machine with a public address, in a network of its own.
func (l *lab) public(name string) (ip string) {
	l.t.Helper()
	l.nets++
	l.space(name)
	l.wire("core", name)
	l.in("core", "ip", "addr", "add", fmt.Sprintf("44.%d.0.1/24", l.nets), "dev", name)
	l.in(name, "ip", "addr", "add", fmt.Sprintf("44.%d.0.2/24", l.nets), "dev", "core")
	l.in(name, "ip", "route", "add", "default", "via", fmt.Sprintf("44.%d.0.1", l.nets))
	return fmt.Sprintf("44.%d.0.2", l.nets)
}

// What a router does.
const (
	cone      = "masquerade"              // a port inside is one port outside
	symmetric = "masquerade fully-random" // another port for each destination
)

// router makes a router, with a public address and a local network of hosts behind it, and lets nothing in that was not asked for.
func (l *lab) router(name, nat, extra string, hosts ...string) {
	l.t.Helper()
	l.public(name)
	l.in(name, "sysctl", "-qw", "net.ipv4.ip_forward=1")
	l.in(name, "ip", "link", "add", "lan", "type", "bridge")
	l.in(name, "ip", "addr", "add", "192.168.7.1/24", "dev", "lan")
	l.in(name, "ip", "link", "set", "lan", "up")
	for i, host := range hosts {
		l.space(host)
		l.wire(name, host)
		l.in(name, "ip", "link", "set", host, "master", "lan")
		l.in(host, "ip", "addr", "add", fmt.Sprintf("192.168.7.%d/24", i+2), "dev", name)
		l.in(host, "ip", "route", "add", "default", "via", "192.168.7.1")
	}
	rules := filepath.Join(l.t.TempDir(), name)
	text := `table ip nat {
	chain post { type nat hook postrouting priority 100; oifname "core" ` + nat + `; }
}
table ip filter {
	chain in { type filter hook input priority 0; iifname "core" ct state new drop; }
	chain through {
		type filter hook forward priority 0; policy drop;
		` + extra + `
		ct state established,related accept;
		iifname "lan" accept;
	}
}
`
	if err := os.WriteFile(rules, []byte(text), 0o600); err != nil {
		l.t.Fatal(err)
	}
	l.in(name, "nft", "-f", rules)
}

// machine is a child process in a namespace.
type machine struct {
	t    *testing.T
	name string
	peer string
	in   *json.Encoder
	out  *bufio.Scanner
}

// start runs a machine in a namespace until the end of the test.
func (l *lab) start(space string, c natConfig) *machine {
	l.t.Helper()
	home := l.t.TempDir()
	raw, err := json.Marshal(c)
	if err != nil {
		l.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(home, "node"), raw, 0o600); err != nil {
		l.t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		l.t.Fatal(err)
	}
	cmd := exec.Command("ip", "netns", "exec", l.ns(space), self)
	cmd.Env = append(os.Environ(), natHome+"="+home)
	log, err := os.Create(filepath.Join(home, "log"))
	if err != nil {
		l.t.Fatal(err)
	}
	cmd.Stderr = log
	in, err := cmd.StdinPipe()
	if err != nil {
		l.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		l.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() {
		in.Close() // which ends it
		if err := cmd.Wait(); err != nil {
			l.t.Errorf("%s: %v", space, err)
		}
		log.Close()
		if l.t.Failed() {
			text, _ := os.ReadFile(log.Name())
			l.t.Logf("log of %s:\n%s", space, text)
		}
	})
	m := &machine{t: l.t, name: space, in: json.NewEncoder(in), out: bufio.NewScanner(out)}
	m.peer = m.must(natAsk{Do: "addrs"}).Peer
	return m
}

func (m *machine) ask(a natAsk) natAnswer {
	m.t.Helper()
	var answer natAnswer
	if err := m.in.Encode(a); err != nil {
		m.t.Fatalf("%s: %v", m.name, err)
	}
	if !m.out.Scan() {
		m.t.Fatalf("%s ended: %v", m.name, m.out.Err())
	}
	if err := json.Unmarshal(m.out.Bytes(), &answer); err != nil {
		m.t.Fatalf("%s: %q: %v", m.name, m.out.Text(), err)
	}
	return answer
}

// must asks what can not fail.
func (m *machine) must(a natAsk) natAnswer {
	m.t.Helper()
	answer := m.ask(a)
	if answer.Err != "" {
		m.t.Fatalf("%s: %s: %s", m.name, a.Do, answer.Err)
	}
	return answer
}

// reachOf is how this machine is connected to another; "" if it is not.
func (m *machine) reachOf(other *machine) p2p.Reach {
	m.t.Helper()
	for _, p := range m.must(natAsk{Do: "peers"}).Peers {
		if p.Peer == other.peer {
			return p.Reach
		}
	}
	return ""
}

// relayed waits until a machine can be reached over a relay, and gives its addresses.
func (m *machine) relayed() (addrs []string) {
	m.t.Helper()
	until(m.t, m.name+" has a slot of a relay", func() bool {
		addrs = m.must(natAsk{Do: "addrs"}).Addrs
		return slices.ContainsFunc(addrs, func(a string) bool { return strings.Contains(a, "/p2p-circuit") })
	})
	return addrs
}

// TestNAT trades between machines behind routers of several kinds: whatever the routers do, a call and a blob arrive whole.
func TestNAT(t *testing.T) {
	if *natForm == "" {
		return // `make nat` sets it, as root
	}
	for _, c := range []struct {
		name       string
		renter     string // the router of each
		provider   string
		rules      string // besides, in both routers
		oneNetwork bool
		want       p2p.Reach
	}{
		{name: "cone and cone", renter: cone, provider: cone, want: p2p.Punched},
		{name: "symmetric and cone", renter: symmetric, provider: cone, want: p2p.Relayed},
		{name: "symmetric and symmetric", renter: symmetric, provider: symmetric, want: p2p.Relayed},
		{name: "one router", provider: cone, oneNetwork: true, want: p2p.Direct},
		{name: "no UDP", renter: cone, provider: cone, rules: "meta l4proto udp drop;", want: p2p.Punched},
		{name: "no UDP and symmetric", renter: symmetric, provider: symmetric, rules: "meta l4proto udp drop;", want: p2p.Relayed},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			ip := l.public("relay")
			if c.oneNetwork {
				l.router("home", c.provider, c.rules, "provider", "renter")
			} else {
				l.router("home", c.provider, c.rules, "provider")
				l.router("cafe", c.renter, c.rules, "renter")
			}
			relay := l.start("relay", natConfig{Relay: true})
			keep := []string{
				fmt.Sprintf("/ip4/%s/udp/4701/quic-v1/p2p/%s", ip, relay.peer), fmt.Sprintf("/ip4/%s/tcp/4701/p2p/%s", ip, relay.peer),
			}
			provider, renter := l.start("provider", natConfig{Peers: keep}), l.start("renter", natConfig{Peers: keep})
			addrs := provider.relayed()
			renter.relayed()
			trade(t, provider, renter, addrs)
			reached := func(got p2p.Reach) bool { // in one network both ways are tried at once, and the punch may be first
				return got == c.want || c.oneNetwork && got == p2p.Punched
			}
			until(t, fmt.Sprintf("the renter reaches the provider %s", c.want), func() bool { return reached(renter.reachOf(provider)) })
			trade(t, provider, renter, addrs)
			if got := renter.reachOf(provider); !reached(got) {
				t.Errorf("after the trade the provider is reached %q, want %q", got, c.want)
			}
			use := relay.must(natAsk{Do: "reach"}).Relay
			t.Logf("%s: %+v; relay %+v", c.name, renter.must(natAsk{Do: "peers"}).Peers, use)
			if c.want == p2p.Relayed && use.Bytes < 2*natBlob {
				t.Errorf("the relay carried %d bytes, less than what was fetched over it", use.Bytes)
			}
		})
	}
}

// natBlob is many times what libp2p's default relay lets through (128 KiB).
const natBlob = 4 << 20

// trade calls the provider and fetches a blob of it.
func trade(t *testing.T, provider, renter *machine, addrs []string) {
	t.Helper()
	renter.must(natAsk{Do: "connect", Peer: provider.peer, Addrs: addrs})
	call := renter.must(natAsk{Do: "call", Peer: provider.peer})
	h := provider.must(natAsk{Do: "offer", Size: natBlob + int(time.Now().UnixNano()%1000)}).Hash
	got := renter.must(natAsk{Do: "fetch", Peer: provider.peer, Hash: h})
	t.Logf("call %v, %d KiB in %v, %s", call.Took, natBlob>>10, got.Took, renter.reachOf(provider))
}
