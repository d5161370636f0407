package jobnet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpufair/gpufair/provider"
)

const plenty = 1 << 40

// connected is a namespace with egress, the world behind it, whose children leave out the rules.
func connected(t testing.TB, rate, most uint64, rules ...string) (*Network, int) {
	t.Helper()
	outside, err := world()
	if err != nil {
		t.Fatal(err)
	}
	servers(t, outside, "world", 80, 25)
	servers(t, 0, "host", 22)
	n := open(t, rules...)
	pid := sleeper(t, syscall.CLONE_NEWNET)
	req := provider.WireRequest{ID: "j", PID: pid, Egress: provider.EgressInternet, Rate: rate, Cap: most}
	if err := n.Wire(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Unwire(context.WithoutCancel(t.Context()), "j"); err != nil {
			t.Error(err)
		}
	})
	return n, pid
}

// dial connects from the namespace of a process.
func dial(t testing.TB, pid int, network, to string) (net.Conn, error) {
	return dialWithin(t, time.Minute, pid, network, to)
}

func dialWithin(t testing.TB, wait time.Duration, pid int, network, to string) (c net.Conn, err error) {
	t.Helper()
	enter(t, pid, func() error {
		c, err = net.DialTimeout(network, to, wait)
		return nil
	})
	return c, err
}

// hear is what answers at an address, asked from the namespace of a process.
func hear(t testing.TB, pid int, network, to string) (string, error) {
	return hearWithin(t, time.Minute, pid, network, to)
}

func hearWithin(t testing.TB, wait time.Duration, pid int, network, to string) (string, error) {
	c, err := dialWithin(t, wait, pid, network, to)
	if err != nil {
		return "", err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(wait))
	if network == "udp" {
		if _, err := c.Write([]byte("hi")); err != nil {
			return "", err
		}
	}
	b := make([]byte, 100)
	k, err := c.Read(b)
	return strings.TrimSpace(string(b[:k])), err
}

func TestEgress(t *testing.T) {
	n, pid := connected(t, plenty, plenty)
	for _, to := range []string{server + ":80", "[" + server6 + "]:80"} {
		for _, network := range []string{"tcp", "udp"} {
			if got, err := hear(t, pid, network, to); got != "hello from world" {
				t.Errorf("%s %s: %q, %v", network, to, got, err)
			}
		}
	}
	// A port where nobody listens is told as such, at once.
	if _, err := dial(t, pid, "tcp", server+":81"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a closed port: %v", err)
	}
	c, err := dial(t, pid, "tcp", server+":80")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	const many = 4 << 20
	sent := make([]byte, many)
	for i := range sent {
		sent[i] = byte(i * 7 >> 3)
	}
	wrote := make(chan error, 1)
	go func() {
		_, err := c.Write(sent)
		wrote <- errors.Join(err, c.(*net.TCPConn).CloseWrite())
	}()
	got, err := io.ReadAll(c)
	if err := errors.Join(err, <-wrote); err != nil {
		t.Fatal(err)
	}
	if string(got) != "hello from world\n"+string(sent) {
		t.Errorf("%d bytes came back of %d, or others", len(got), many)
	}
	tr, err := n.Traffic(t.Context(), "j")
	if err != nil || tr.Out < many || tr.In < many+17 || tr.In > many+4*17+100 || tr.Flows != 5 || tr.Refused != 0 || tr.Over != 0 || tr.Capped {
		t.Errorf("traffic %+v, %v", tr, err)
	}
	if ids, err := n.List(t.Context()); err != nil || len(ids) != 1 || ids[0] != "j" {
		t.Errorf("list: %v, %v", ids, err)
	}
}

func TestNames(t *testing.T) {
	_, pid := connected(t, plenty, plenty)
	nameServer(t, map[string][]string{
		"good.example.": {server, server6}, "nas.home.": {"192.168.50.1", "fd12::1"}, "both.example.": {"192.168.50.1", server, "127.0.0.1"}, "host.example.": {hostAddr},
	})
	for _, network := range []string{"udp", "tcp"} {
		r := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (c net.Conn, err error) {
			return dial(t, pid, network, net.JoinHostPort(nameServer4.String(), "53"))
		}}
		for name, want := range map[string]string{
			"good.example.": "2600:1::1 8.8.4.4", "both.example.": server, "nas.home.": "", "host.example.": "", "none.example.": "", "localhost.": "127.0.0.1 ::1",
		} {
			ips, err := r.LookupNetIP(t.Context(), "ip", name)
			var text []string
			for _, ip := range ips {
				text = append(text, ip.Unmap().String())
			}
			slices.Sort(text)
			if got := strings.Join(text, " "); got != want {
				t.Errorf("%s by %s: %q, %v; want %q", name, network, got, err, want)
			}
		}
	}
	// The name server answers names and nothing else, and no other port of its address is open.
	if _, err := dial(t, pid, "tcp", net.JoinHostPort(nameServer4.String(), "80")); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("port 80 of the name server: %v", err)
	}
}

// TestByteCap lets a job have 1 MiB, and no more after it.
func TestByteCap(t *testing.T) {
	n, pid := connected(t, plenty, 1<<20)
	c, err := dial(t, pid, "tcp", server+":80")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	cut := make(chan error, 1)
	go func() {
		_, err := io.Copy(c, endless{})
		cut <- err
	}()
	k, err := io.Copy(io.Discard, c)
	if err = errors.Join(err, <-cut); err == nil || k > 1<<20 { // the kernel tells one of the two

		t.Errorf("%d bytes came back, and the end looked whole: %v", k, err)
	}
	tr, err := n.Traffic(t.Context(), "j")
	if err != nil || !tr.Capped || tr.In+tr.Out > 1<<20 || tr.In+tr.Out < 1<<20-2*chunk {
		t.Errorf("traffic %+v, %v", tr, err)
	}
	if _, err := dial(t, pid, "tcp", server+":80"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("after the cap: %v", err)
	}
	if _, err := hear(t, pid, "udp", server+":80"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("UDP after the cap: %v", err)
	}
	for _, network := range []string{"tcp", "udp"} {
		if _, err := hear(t, pid, network, net.JoinHostPort(nameServer4.String(), "53")); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("the name server by %s after the cap: %v", network, err)
		}
	}
	if again, err := n.Traffic(t.Context(), "j"); err != nil || again.Over != tr.Over+4 {
		t.Errorf("traffic %+v, %v", again, err)
	}
}

type endless struct{}

func (endless) Read(b []byte) (int, error) { return len(b), nil }

// TestRestart loses whoever wired a job: the connections go on, a repeated Wire finds them, and another process of the same lease counts on.
func TestRestart(t *testing.T) {
	n, pid := connected(t, plenty, plenty)
	c, err := dial(t, pid, "tcp", server+":80")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	again := &Network{n.config}
	req := provider.WireRequest{ID: "j", PID: pid, Egress: provider.EgressInternet, Rate: plenty, Cap: plenty}
	if err := again.Wire(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, len("hello from world\nx"))
	if _, err := io.ReadFull(c, b[:len(b)-1]); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, b[len(b)-1:]); err != nil {
		t.Fatalf("the connection did not outlive a new Network: %v", err)
	}
	before, err := again.Traffic(t.Context(), "j")
	if err != nil {
		t.Fatal(err)
	}
	req.PID = sleeper(t, syscall.CLONE_NEWNET)
	if err := again.Wire(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	if got, err := hear(t, req.PID, "tcp", server+":80"); got != "hello from world" {
		t.Fatalf("the second process: %q, %v", got, err)
	}
	if after, err := again.Traffic(t.Context(), "j"); err != nil || after.In <= before.In {
		t.Errorf("traffic %+v after %+v, %v", after, before, err)
	}
	if _, err := dial(t, pid, "tcp", server+":80"); err == nil {
		t.Error("the first process has a way out still")
	}
}

// TestKill ends the child and the job in every order: the way out is closed when the child is gone, and the child goes when the job does.
func TestKill(t *testing.T) {
	n, pid := connected(t, plenty, plenty)
	child := childOf(t, n)
	if err := syscall.Kill(child, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	awaitGone(t, n)
	if c, err := dial(t, pid, "tcp", server+":80"); err == nil {
		c.Close()
		t.Error("the job has a way out without its child")
	}
	req := provider.WireRequest{ID: "j", PID: pid, Egress: provider.EgressInternet, Rate: plenty, Cap: plenty}
	if err := n.Wire(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	if got, err := hear(t, pid, "tcp", server+":80"); got != "hello from world" {
		t.Errorf("wired again: %q, %v", got, err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	awaitGone(t, n)
	if tr, err := n.Traffic(t.Context(), "j"); err != nil || tr.Flows != 1 {
		t.Errorf("traffic after the end: %+v, %v", tr, err)
	}
	log, err := os.ReadFile(n.config.Flows + "/j.1.log")
	if f := strings.Fields(string(log)); err != nil || len(f) < 4 || f[1] != "open" || f[2] != "tcp" || f[3] != server+":80" {
		t.Errorf("flow log %q, %v", log, err)
	}
	for range 2 {
		if err := n.Unwire(t.Context(), "j"); err != nil {
			t.Fatal(err)
		}
	}
	if ids, err := n.List(t.Context()); err != nil || len(ids) != 0 {
		t.Errorf("left behind: %v, %v", ids, err)
	}
}

func childOf(t testing.TB, n *Network) int {
	t.Helper()
	f, err := os.OpenFile(n.counters("j"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	pid, err := holder(f)
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// awaitGone waits until the child has ended.
func awaitGone(t testing.TB, n *Network) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); childOf(t, n) != 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the child goes on")
		}
	}
}

// TestChild looks at what a child is to the rest of the machine.
func TestChild(t *testing.T) {
	n, _ := connected(t, plenty, plenty)
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", childOf(t, n)))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"Uid:\t65534\t65534\t65534\t65534\n", "Gid:\t65534\t65534\t65534\t65534\n", "Groups:\t \n", "CapEff:\t0000000000000000\n", "CapPrm:\t0000000000000000\n",
		"CapBnd:", "NoNewPrivs:\t1\n",
	} {
		if !strings.Contains(string(b), want) {
			t.Errorf("%q is missing in\n%s", want, b)
		}
	}
}

// TestManyFlows opens more connections than a lease may have: the others are refused, whichever limit comes first, and those that are there
// are counted.
func TestManyFlows(t *testing.T) {
	n, pid := connected(t, plenty, plenty)
	var open []net.Conn
	refused := 0
	enter(t, pid, func() error {
		for range maxTCP + 100 {
			c, err := net.DialTimeout("tcp", server+":80", time.Minute)
			if err != nil {
				refused++
				continue
			}
			open = append(open, c)
		}
		return nil
	})
	if len(open) > maxTCP || refused == 0 {
		t.Errorf("%d connections are open, %d were refused", len(open), refused)
	}
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(5 * time.Millisecond) {
		tr, err := n.Traffic(t.Context(), "j")
		if err != nil || tr.Over > uint64(refused) || tr.Flows > uint64(len(open)) || time.Now().After(end) {
			t.Fatalf("%d open, %d refused: traffic %+v, %v", len(open), refused, tr, err)
		}
		if tr.Over == uint64(refused) && tr.Flows == uint64(len(open)) {
			break
		}
	}
	for _, c := range open {
		c.Close()
	}
}
