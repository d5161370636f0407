package jobnet

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/provider"
	"github.com/gpufair/gpufair/provider/containerd"
	"github.com/gpufair/gpufair/provider/containerd/containerdtest"
	"github.com/gpufair/gpufair/provider/mounts"
	"github.com/gpufair/gpufair/provider/providertest"
	"github.com/gpufair/gpufair/provider/reach"
)

// denials is what no job may reach. Each row is tried from inside a container, where it must be refused, and then with its rules left out,
// where it must not be: a denial that holds without its rule proves nothing of the rule.
var denials = []struct {
	what    string
	network string
	to      string
	rules   []string // what denies it; several where one alone would still deny it
	silent  bool     // nothing answers there in this test's world, though it is let out
}{
	{"the host's own address", "tcp", hostAddr + ":22", []string{reach.OwnNet}, false},
	{"the host's own address, UDP", "udp", hostAddr + ":22", []string{reach.OwnNet}, false},
	{"the host's own IPv6 address", "tcp", "[" + hostAddr6 + "]:22", []string{reach.OwnNet}, false},
	{"a neighbour with a public address", "tcp", neighbour + ":80", []string{reach.OwnNet}, false},
	{"a neighbour with a public IPv6 address", "tcp", "[" + neighbour6 + "]:80", []string{reach.OwnNet}, false},
	{"a neighbour, UDP over IPv6", "udp", "[" + neighbour6 + "]:80", []string{reach.OwnNet}, false},
	{"a home network", "tcp", "192.168.50.1:80", []string{reach.Private}, false},
	{"a home network, UDP", "udp", "192.168.50.1:80", []string{reach.Private}, false},
	{"a home network in IPv6 clothes", "tcp", "[::ffff:192.168.50.1]:80", []string{reach.Private}, false},
	{"a private network of class A", "tcp", "10.1.2.3:80", []string{reach.Private}, false},
	{"a private network of class B", "tcp", "172.16.5.5:80", []string{reach.Private}, false},
	{"the alias of the host", "tcp", gateway4.String() + ":22", []string{reach.Private}, true},
	{"the alias of the host, IPv6", "tcp", "[" + gateway6.String() + "]:22", []string{reach.Local, reach.Special}, true},
	{"another port of the name server", "tcp", nameServer4.String() + ":22", []string{reach.Private}, true},
	{"a provider's inner network", "tcp", "100.64.1.1:80", []string{reach.Shared}, false},
	{"the metadata of a cloud", "tcp", "169.254.169.254:80", []string{reach.LinkLocal}, false},
	{"the metadata of Azure", "tcp", "168.63.129.16:80", []string{reach.Metadata}, false},
	{"a neighbour by its link", "tcp", "[fe80::7%eth0]:80", []string{reach.LinkLocal, reach.Special, reach.OwnNet}, true},
	{"a unique local address", "tcp", "[fd12::1]:80", []string{reach.Local, reach.Special}, false},
	{"NAT64 of an IPv4 address", "tcp", "[64:ff9b::808:404]:80", []string{reach.Embedded, reach.Special}, false},
	{"6to4 of an IPv4 address", "tcp", "[2002:808:404::1]:80", []string{reach.Embedded}, false},
	{"Teredo of an IPv4 address", "tcp", "[2001:0:808:404::1]:80", []string{reach.Embedded}, false},
	{"a documentation network", "tcp", "192.0.2.9:80", []string{reach.Special}, false},
	{"a benchmark network", "tcp", "198.18.0.7:80", []string{reach.Special}, false},
	{"an IPv6 documentation network", "tcp", "[2001:db8::9]:80", []string{reach.Special}, false},
	{"mail", "tcp", server + ":25", []string{reach.Mail}, false},
	{"mail, IPv6", "tcp", "[" + server6 + "]:25", []string{reach.Mail}, false},
}

// unanswered are sent to groups: the stack is in none, so that nothing is heard of them, and no rule is asked.
var unanswered = []string{"udp/224.0.0.251:5353", "udp/[ff05::fb]:5353"}

// TestSelfTestSeesEachRule holds the self-test against the rules: each has an address that it alone, or it first, denies.
func TestSelfTestSeesEachRule(t *testing.T) {
	host := []netip.Prefix{netip.MustParsePrefix(hostAddr + "/24")}
	seen := map[string]bool{reach.Loopback: true, reach.Multicast: true} // those never come to the stack
	p := reach.New(nil)
	p.Host = nil
	for _, to := range forbidden(host) {
		var refused *reach.Refused
		if errors.As(p.Check(to), &refused) {
			seen[refused.Rule] = true
		}
	}
	for _, r := range p.Rules {
		if !seen[r.Name] {
			t.Errorf("the self-test has no address for the rule %s", r.Name)
		}
	}
}

// TestSelfTestOfLoneAddress holds the self-test against a machine whose addresses have no neighbours, as rented ones often are: it tries the
// addresses themselves, and nothing beside them.
func TestSelfTestOfLoneAddress(t *testing.T) {
	host := []netip.Prefix{netip.MustParsePrefix("9.8.7.6/32"), netip.MustParsePrefix("2600:7::1/128"), netip.MustParsePrefix("9.8.6.1/31")}
	list := forbidden(host)
	for _, p := range host {
		if !slices.Contains(list, netip.AddrPortFrom(p.Addr(), 22)) {
			t.Errorf("%s is not tried", p)
		}
	}
	policy := &reach.Policy{Rules: append(reach.Rules(), reach.Rule{Name: reach.OwnNet, Prefixes: host})}
	for _, to := range list {
		if policy.Check(to) == nil {
			t.Errorf("%s is tried, which no rule denies", to)
		}
	}
	if _, err := world(); err != nil {
		t.Fatal(err)
	}
	l, err := openLink("up0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	for _, p := range host[:2] {
		if err := l.address(p); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := removeAddress(p); err != nil {
				t.Error(err)
			}
		})
	}
	connected(t, plenty, plenty)
}

// removeAddress takes an address from the host's end of the line.
func removeAddress(p netip.Prefix) error {
	l, err := openLink("up0")
	if err != nil {
		return err
	}
	defer l.close()
	body := binary.NativeEndian.AppendUint32([]byte{family(p.Addr()), byte(p.Bits()), 0, 0}, uint32(l.index))
	return l.ask(unix.RTM_DELADDR, 0, append(body, attribute(unix.IFA_LOCAL, p.Addr().AsSlice())...))
}

// TestSelfTestIsRepeated loses whoever wired a job after the child was made and before the denial was proven: whoever wires it then proves
// it, also if an earlier child of the job was proven.
func TestSelfTestIsRepeated(t *testing.T) {
	n, pid := connected(t, plenty, plenty)
	req := provider.WireRequest{ID: "j", PID: pid, Egress: provider.EgressInternet, Rate: plenty, Cap: plenty}
	if err := syscall.Kill(childOf(t, n), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	awaitGone(t, n)
	holed := &Network{n.config}
	holed.config.Command = append(slices.Clone(n.config.Command), reach.Private)
	for range 2 { // with the counters of a proven child, and without
		connectUnproven(t, holed, req)
		if err := holed.Wire(t.Context(), req); err == nil || !strings.Contains(err.Error(), "must not run") {
			t.Errorf("a network that was not proven is taken as wired: %v", err)
		}
	}
	if err := n.Wire(t.Context(), req); err != nil {
		t.Error(err)
	}
}

// TestSelfTestFindsHole leaves a rule out: the job may not run.
func TestSelfTestFindsHole(t *testing.T) {
	if _, err := world(); err != nil {
		t.Fatal(err)
	}
	n := open(t, reach.Private)
	req := provider.WireRequest{ID: "j", PID: sleeper(t, syscall.CLONE_NEWNET), Egress: provider.EgressInternet, Rate: plenty, Cap: plenty}
	if err := n.Wire(t.Context(), req); err == nil || !strings.Contains(err.Error(), "must not run") {
		t.Errorf("the self-test found no hole: %v", err)
	}
	if ids, err := n.List(t.Context()); err != nil || len(ids) != 0 {
		t.Errorf("left behind: %v, %v", ids, err)
	}
}

// TestDenialNeedsItsRule leaves out the rules of each row: then the row is let out.
func TestDenialNeedsItsRule(t *testing.T) {
	outside, err := world()
	if err != nil {
		t.Fatal(err)
	}
	servers(t, outside, "world", 80, 25)
	servers(t, 0, "host", 22)
	sets := [][]string{}
	for _, d := range denials {
		if !slices.ContainsFunc(sets, func(s []string) bool { return slices.Equal(s, d.rules) }) {
			sets = append(sets, d.rules)
		}
	}
	for _, rules := range sets {
		t.Run(strings.Join(rules, ","), func(t *testing.T) {
			n := open(t, rules...)
			pid := sleeper(t, syscall.CLONE_NEWNET)
			req := provider.WireRequest{ID: "j", PID: pid, Egress: provider.EgressInternet, Rate: plenty, Cap: plenty}
			connectUnproven(t, n, req)
			for _, d := range denials {
				if !slices.Equal(d.rules, rules) {
					continue
				}
				before := refusals(t, n)
				wait := time.Minute
				if d.silent {
					wait = 200 * time.Millisecond
				}
				got, err := hearWithin(t, wait, pid, d.network, d.to)
				if !d.silent && !strings.HasPrefix(got, "hello") {
					t.Errorf("%s (%s): not reached without its rule: %q, %v", d.what, d.to, got, err)
				}
				if after := refusals(t, n); after != before {
					t.Errorf("%s (%s): refused by another rule too", d.what, d.to)
				}
			}
		})
	}
}

// connectUnproven wires a job whose child leaves out rules: Wire itself would refuse.
func connectUnproven(t *testing.T, n *Network, req provider.WireRequest) {
	t.Helper()
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", req.PID))
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	if err := os.MkdirAll(n.job(req.ID), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := n.start(t.Context(), ns, req); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Unwire(context.WithoutCancel(t.Context()), req.ID); err != nil {
			t.Error(err)
		}
	})
}

func refusals(t *testing.T, n *Network) uint64 {
	t.Helper()
	tr, err := n.Traffic(t.Context(), "j")
	if err != nil {
		t.Fatal(err)
	}
	return tr.Refused
}

// containers is a containerd of the test's own whose jobs have the network.
func containers(t *testing.T, n *Network) providertest.Rig {
	t.Helper()
	d := containerdtest.Start(t)
	rt, err := containerd.New(containerd.Config{Address: d.Address, Namespace: "gpufair-net", RuntimeRoot: d.RuntimeRoot, Logger: containerdtest.Logger(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rt.Close() })
	m, err := mounts.Open(d.Dir + "/leases")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	img := containerdtest.JobImage(t)
	return providertest.Rig{
		Runtime: rt, Network: n, Mounts: m, Archive: img.Archive(t), Digest: img.Digest, Init: containerdtest.Build(t, containerdtest.InitPackage),
		Resolv: n.Resolv(),
	}
}

// TestDenialInContainer tries all of it from inside a real container, and what is no connection: raw sockets, the interface itself.
func TestDenialInContainer(t *testing.T) {
	outside, err := world()
	if err != nil {
		t.Fatal(err)
	}
	servers(t, outside, "world", 80, 25)
	servers(t, 0, "host", 22)
	nameServer(t, map[string][]string{"good.example.": {server}, "rebind.example.": {"192.168.50.1", hostAddr, "169.254.169.254"}})
	n := open(t)
	rig := containers(t, n)
	command := []string{"job", "reach", "raw", "packet", "netadmin", "tun"}
	for _, row := range denials {
		command = append(command, row.network+"/"+row.to)
	}
	command = append(command, unanswered...)
	good := []string{"tcp/" + server + ":80", "udp/" + server + ":80", "tcp/[" + server6 + "]:80", "tcp/good.example:80"}
	command = append(append(command, good...), "tcp/rebind.example:80", "udp/rebind.example:80", "tcp/127.0.0.1:22", "tcp/[::1]:22")
	j := rig.Create(t, "j", providertest.Policy(), work.Spec{Command: command})
	req := provider.WireRequest{ID: j.ID, PID: j.Created.PID, Egress: provider.EgressInternet, Rate: plenty, Cap: plenty}
	if err := n.Wire(providertest.Context(t), req); err != nil {
		t.Fatal(err)
	}
	if err := rig.Runtime.Start(providertest.Context(t), j.ID); err != nil {
		t.Fatal(err)
	}
	j.Wait(t)
	tr, err := n.Traffic(t.Context(), j.ID)
	if err != nil {
		t.Error(err)
	}
	if err := n.Unwire(t.Context(), j.ID); err != nil {
		t.Error(err)
	}
	rig.Delete(t, j.ID)
	out, errs := j.Output(t)
	results := map[string]string{}
	for line := range strings.Lines(out) {
		what, got, _ := strings.Cut(strings.TrimSpace(line), " ")
		results[what] = got
	}
	for _, what := range good {
		if results[what] != "hello from world" {
			t.Errorf("%s: %q, want an answer", what, results[what])
		}
	}
	for _, what := range command[2:] {
		got, tried := results[what]
		late := strings.Contains(got, "timeout") && !slices.Contains(unanswered, what)
		if !slices.Contains(good, what) && (!tried || strings.HasPrefix(got, "hello") || late) {
			t.Errorf("%s: %q, want a refusal at once", what, got)
		}
	}
	if tr.Refused < uint64(len(denials)) || tr.Flows != uint64(len(good)) {
		t.Errorf("traffic %+v; %d rows", tr, len(denials))
	}
	if t.Failed() {
		t.Logf("%s%s", out, errs)
	}
}

// BenchmarkEgress moves bytes from a job to a server outside and back, and the same over bare loopback.
func BenchmarkEgress(b *testing.B) {
	_, pid := connected(b, plenty, 1<<60)
	for _, c := range []struct {
		name string
		dial func() (net.Conn, error)
	}{
		{"loopback", func() (net.Conn, error) { return net.DialTimeout("tcp", "127.0.0.1:22", 5*time.Second) }},
		{"egress", func() (net.Conn, error) { return dial(b, pid, "tcp", server+":80") }},
	} {
		b.Run(c.name, func(b *testing.B) {
			conn, err := c.dial()
			if err != nil {
				b.Fatal(err)
			}
			defer conn.Close()
			const piece = 1 << 20
			b.SetBytes(2 * piece) // out and back
			done := make(chan error, 1)
			go func() {
				buf := make([]byte, piece)
				for range b.N {
					if _, err := conn.Write(buf); err != nil {
						done <- err
						return
					}
				}
				done <- conn.(*net.TCPConn).CloseWrite()
			}()
			buf := make([]byte, piece)
			got := 0
			for {
				k, err := conn.Read(buf)
				got += k
				if err != nil {
					break
				}
			}
			if err := <-done; err != nil || got < b.N*piece {
				b.Fatal(fmt.Errorf("%d bytes came back of %d: %w", got, b.N*piece, err))
			}
		})
	}
}
